#pragma once
// How many tokens the next step holds. Each sequence that decodes has one; prompts have Pace::prompt_tokens(), and
// Scheduler decides whose those are; both together are at most --max-num-batched-tokens. Two measured times decide that
// number: `base`, what a step beside as many streams takes with hardly a prompt token in it, and `token`, what each
// prompt token adds.
//
//   beside streams            1.5 × base / token             so that the step takes 2.5 × base
//   with --target-itl         (target - base) / token        so that it takes the target
//   no stream runs            max(40 ms, 6 × base) / token   so that whoever comes waits for a short step only
//
// An H100 with 120b and 32 streams: base 20 ms, token 25 us. So a step reads 1200 tokens of prompts and takes 50 ms.
// docs/decisions/0014. Pure: the times are passed in.

#include <algorithm>
#include <array>
#include <cstdint>

namespace nibble::engine {

class Pace {
 public:
  struct Rule {
    double target_seconds = 0;  // of a step beside streams; 0: from measured times
    int max_tokens = 0;         // of a step
  };
  explicit Pace(const Rule& rule) : rule_(rule) {}

  // At most, in the next step, while so many sequences decode; never 0. A token deep in its text counts for several:
  // Scheduler::Limits::keys_per_token.
  [[nodiscard]] int64_t prompt_tokens(int decoding) const;

  struct Step {
    int decoding = 0;
    int64_t allowed = 0;        // by prompt_tokens()
    int64_t prompt_tokens = 0;  // that it held, as they count
  };
  void took(const Step& step, double seconds);

 private:
  struct Base {
    double seconds = 0;       // 0: not measured
    int64_t steps_since = 0;  // with prompts
  };
  [[nodiscard]] static size_t bucket_of(int decoding);
  // So few prompt tokens that their step takes `base`.
  [[nodiscard]] int64_t few() const { return std::max(1, rule_.max_tokens / 64); }

  const Rule rule_;
  std::array<Base, 12> bases_{};  // by powers of two of the number of sequences that decode
  double token_seconds_ = 0;      // 0: not measured
};

}  // namespace nibble::engine
