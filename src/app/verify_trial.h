#pragma once
// Level 6: one combination of features, run: by the kernels that it asks for, right as far as is known, and how fast.

#include "app/options.h"
#include "app/verify_subject.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nibble::app {

// Tokens per second, a value per repetition; one round.
struct TrialRates {
  std::vector<double> prompt;    // of a prompt, until its first token
  std::vector<double> alone;     // generated, of one sequence behind it
  std::vector<double> together;  // generated, of four at the same time with their prompts
  std::vector<double> again;     // of the same prompt once more, which the prefix cache may hold
};

struct Trial {
  std::string wrong;               // what is not as it should be; empty: nothing
  Divergence loss;                 // against the same model with nothing rounded
  std::string bound;               // what is known of that loss; empty: nothing is
  std::vector<TrialRates> rounds;  // measured in turn with the other combinations
};

class Trials {
 public:
  // The source outlives it.
  Trials(const ModelSource& source, const ModelOptions& options, MakeBackend make);
  // Of resolved options. Throws Error(kUnsupported) for what the backend refuses.
  [[nodiscard]] Trial run(const ServeOptions& options);
  [[nodiscard]] TrialRates rates(const ServeOptions& options);

 private:
  struct Measured {
    TrialRates rates;
    std::vector<int32_t> text, again;  // greedy, of the first prompt; once more
  };
  [[nodiscard]] Measured measured(const ServeOptions& options) const;
  [[nodiscard]] const std::vector<float>& exact_of(const ModelOptions& model);
  [[nodiscard]] std::string wrong_text(const ServeOptions& options, const Measured& found);

  const ModelSource& source_;
  const MakeBackend make_;
  const std::optional<nlohmann::json> reference_;
  std::vector<int32_t> ids_;
  std::vector<float> exact_;                           // logits of nothing rounded
  std::map<std::string, std::vector<float>> paths_;    // likewise of level 1.5's tokens, by instruction set
  std::map<std::string, std::vector<int32_t>> texts_;  // by what computes
};

// The most that rounding may cost where each part has a known bound: distances, the roots of divergences, add up.
// None where a part has none. Pure.
struct KnownLoss {
  double kl = 0, top1 = 1;
};
[[nodiscard]] std::optional<KnownLoss> known_loss(const nlohmann::json& losses, const backend::RunConfig& run);

}  // namespace nibble::app
