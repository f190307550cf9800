#pragma once
// How many tokens the next step holds. Each sequence that decodes (a stream) has one, and in steps without prompts its
// guesses (DraftController). Prompts have at most Pace::allowance(), and Scheduler decides whose tokens those are. All
// together are at most --max-num-batched-tokens. Two measured times decide what prompts have: `base`, the seconds of a
// step beside as many streams with hardly a prompt token in it, and `token`, what each prompt token adds. Nothing is
// paced for one request alone (Loop::serve) or where EngineLimits::target_itl_seconds is infinite. While a time is not
// known, and now and then, a step holds few prompt tokens and measures it; other steps hold three times as many at
// least.
//
//   beside streams            1.6 × base / token             so that the step takes 2.6 × base
//   with --target-itl         (target - base) / token        so that it takes the target
//   no stream runs            max(40 ms, 6 × base) / token   so that whoever comes waits for a short step only
//
// Prompts that are no more than a quarter of a step, all together, are read at once where no stream runs.
// An H100 with 120b and 32 streams: base 20 ms, token 25 us. So a step reads 1280 tokens of prompts and takes 52 ms.
// docs/decisions/0058. Pure: the times are passed in.

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace nibble::engine {

class Pace {
 public:
  struct Rule {
    double target_seconds = 0;  // of a step beside streams; 0: from measured times
    int max_tokens = 0;         // of a step
  };
  explicit Pace(const Rule& rule) : rule_(rule) {}

  struct Demand {
    int decoding = 0;        // sequences
    int64_t unread = 0;      // tokens of prompts, weighted by depth: Scheduler::Limits::keys_per_token
    bool newcomers = false;  // somebody waits who has read nothing yet
  };
  // The most tokens of prompts in the next step, weighted as in Demand; never 0.
  [[nodiscard]] int64_t allowance(const Demand& demand) const;

  struct Step {
    int decoding = 0;
    int64_t allowed = 0;  // by allowance()
    int64_t held = 0;     // tokens of prompts, weighted
  };
  void took(const Step& step, double seconds);

 private:
  // Streams want short steps. Prompts want long ones, since every step that reads pays for all experts' weights.
  static constexpr double kBesideStreams = 1.6;
  // Nobody notices so much; and where base is long, prompts keep 6 / 7 of their speed.
  static constexpr double kNoStreamSeconds = 0.04, kNoStreamBases = 6;
  // base is measured again, by a step with few tokens of prompts, after at most so many steps with prompts.
  static constexpr int64_t kMostSteps = 64;
  // A measurement of base counts as at most so many times the one before, since other programs only make a step longer.
  static constexpr double kMostRise = 1.25;
  // What the last step says about a token counts a quarter, and as at most twice or half of what those before said.
  static constexpr double kShare = 0.25, kMostSurprise = 2;

  struct Base {
    double seconds = 0;      // 0: not measured
    int64_t steps_due = 0;   // with prompts, before it is measured again
    int64_t steps_next = 2;  // until then; soon at first, since a first step may be slow
  };
  [[nodiscard]] static size_t bucket_of(int decoding) {
    return std::min<size_t>(std::bit_width(static_cast<unsigned>(std::max(decoding, 0))), 11);
  }
  // So few prompt tokens that their step takes `base`.
  [[nodiscard]] int64_t few() const { return std::max(1, rule_.max_tokens / 64); }

  const Rule rule_;
  std::array<Base, 12> bases_{};  // by powers of two of the number of sequences that decode
  double token_seconds_ = 0;      // 0: not measured
};

inline int64_t Pace::allowance(const Demand& demand) const {
  if (demand.decoding == 0 && demand.unread <= rule_.max_tokens / 4) return std::max<int64_t>(demand.unread, 1);
  const Base& base = bases_[bucket_of(demand.decoding)];
  // A newcomer may be a question that would have to wait for one step more.
  if (base.seconds == 0 || base.steps_due <= (demand.newcomers ? -kMostSteps : 0)) return few();
  if (token_seconds_ == 0) return 3 * few();
  const double added = demand.decoding == 0       ? std::max(kNoStreamSeconds, kNoStreamBases * base.seconds)
                       : rule_.target_seconds > 0 ? rule_.target_seconds - base.seconds
                                                  : kBesideStreams * base.seconds;
  // So many at least, so that what a token adds is seen.
  return std::max(static_cast<int64_t>(std::min(added / token_seconds_, 1e9)), 3 * few());
}

inline void Pace::took(const Step& step, double seconds) {
  if (step.held == 0) return;
  seconds = std::max(seconds, 1e-9);
  Base& base = bases_[bucket_of(step.decoding)];
  --base.steps_due;
  if (step.allowed == few() || step.held <= few()) {
    base.seconds = base.seconds == 0 ? seconds : std::min(seconds, kMostRise * base.seconds);
    base.steps_due = base.steps_next;
    base.steps_next = std::min(4 * base.steps_next, kMostSteps);
  } else if (seconds <= base.seconds) {
    base.seconds = seconds;
  } else if (base.seconds > 0 && step.held >= 2 * few()) {
    const double token = (seconds - base.seconds) / static_cast<double>(step.held - few());
    const double before = token_seconds_ == 0 ? token : token_seconds_;
    token_seconds_ = before + kShare * (std::clamp(token, before / kMostSurprise, before * kMostSurprise) - before);
  }
}

}  // namespace nibble::engine
