#pragma once
// What the levels of `nibble verify` run in this process.

#include "app/bench_report.h"
#include "app/loaded_model.h"
#include "app/options.h"
#include "app/verify_report.h"
#include "backend/backend.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nibble::app {

// make_backend() but for its files; tests put another one here.
using MakeBackend = std::function<std::unique_ptr<backend::Backend>(const backend::RunConfig& run,
                                                                    const backend::BackendConfig& config)>;

struct VerifySubject {
  const ModelSource& source;
  const ModelOptions& model;  // resolved
  MakeBackend make;
};

// A step of one sequence whose every token has logits.
struct RunStep {
  std::vector<float> logits;  // [tokens, vocab]
  std::string not_finite;     // the first value that is a NaN or infinite, and where; empty: all are finite
  std::string modes;          // what the backend says it computes with
};
enum class Scan : uint8_t { kNone, kStages };  // kStages: every slot after every stage
[[nodiscard]] RunStep run_step(const VerifySubject& subject, const backend::RunConfig& run,
                               std::span<const int32_t> tokens, Scan scan = Scan::kNone);

// How far the second distributions over tokens are from the first, in nats, and how often both name the same token.
struct Divergence {
  double mean_kl = 0, largest_kl = 0, top1 = 0;
  bool identical = false;  // bit for bit
};
[[nodiscard]] Divergence divergence(std::span<const float> exact, std::span<const float> other, int64_t vocab);

// The settings with nothing rounded that the weights do not bring: what lossy ones are held against.
[[nodiscard]] backend::RunConfig exact_run(const backend::RunConfig& run);

// Ids of the model's own text where it has one beside it (reference.json, heldout.txt), else random ones.
[[nodiscard]] std::vector<int32_t> verify_tokens(const VerifySubject& subject, int64_t count);

// Level 1.5 of the model's options alone: what is wrong with the kernels that run; empty: nothing, or nobody can say.
// `exact`: of exact_path() with the same instruction set.
[[nodiscard]] std::string wrong_path(const VerifySubject& subject, std::span<const float> exact);
[[nodiscard]] std::vector<float> exact_path(const VerifySubject& subject);

// What is known of a model, beside its files: perplexity, and the losses of lossy flags; none where nobody has
// measured.
[[nodiscard]] std::optional<nlohmann::json> reference_of(const ModelOptions& model);

// How fast a prompt is read and tokens are generated, alone and eight at a time, and the memory that this took.
struct MeasuredSpeed {
  std::vector<BenchRow> rows;
  int64_t host_bytes = 0;               // the process's peak so far
  std::optional<int64_t> device_bytes;  // of a card, in use by all
};
[[nodiscard]] MeasuredSpeed measure_speed(const VerifySubject& subject, int repetitions);

void verify_smoke(const VerifySubject& subject, VerifyChecks& checks);        // level 1
void verify_paths(const VerifySubject& subject, VerifyChecks& checks);        // level 1.5
void verify_correctness(const VerifySubject& subject, VerifyChecks& checks);  // level 2
void verify_performance(const VerifySubject& subject, VerifyChecks& checks);  // level 4, in short

}  // namespace nibble::app
