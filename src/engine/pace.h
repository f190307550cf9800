#pragma once
// How long steps take, as measured, and how many prompt tokens a step may hold without delaying decoding too much;
// docs/decisions/0014. Pure: the times are passed in.

#include "engine/scheduler.h"

#include <array>
#include <cstdint>

namespace nibble::engine {

class Pace {
 public:
  struct Rule {
    double target_seconds = 0;  // of a step that decodes beside prompts; 0: follows from the measured times
    int max_tokens = 0;         // of a step
    double keys_per_token = 1;  // that cost as much as one token does otherwise, in operations: the first guess
  };
  explicit Pace(const Rule& rule) : rule_(rule) {}

  struct Work {
    int decoding = 0;
    int64_t drafted = 0;  // guesses beside their tokens
    int64_t prompt_tokens = 0;
    double prompt_keys = 0;  // tokens before each prompt token, summed up
  };
  void took(const Work& work, double seconds);

  // How much of prompts the next step may hold while this many sequences decode. Nothing if the time of decoding alone
  // is not known, or was not measured for long: then the next took() measures it.
  [[nodiscard]] PromptBudget budget(int decoding);

 private:
  static constexpr size_t kBuckets = 12;  // of decoding sequences, by powers of two
  struct Decode {
    std::array<double, 8> seconds{};  // the last ones
    int64_t count = 0;
    int64_t prompt_steps_since = 0;
  };
  // seconds = fixed + per_token × tokens + per_key × keys
  struct Model {
    double fixed = 0, per_token = 0, per_key = 0;
  };

  [[nodiscard]] static size_t bucket_of(int decoding);
  [[nodiscard]] double decode_seconds(size_t bucket) const;
  void took_decoding(size_t bucket, double seconds);
  void fit(double decode_guess);

  const Rule rule_;
  std::array<Decode, kBuckets> decodes_{};
  bool above_ = false;  // the last step was scheduled above the target: the next one is below
  int asked_ = -1;      // the bucket that budget() wants measured; -1: none
  // Sums over steps with prompts, the older ones fading, of (1, tokens, keys), each divided by its seconds.
  std::array<std::array<double, 3>, 3> products_{};
  std::array<double, 3> sums_{};
  double weight_ = 0, seconds_ = 0, tokens_ = 0, keys_ = 0;
  Model model_;
};

}  // namespace nibble::engine
