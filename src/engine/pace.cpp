#include "engine/pace.h"

#include <bit>

namespace nibble::engine {
namespace {

// Streams want short steps. Prompts want long ones, since every step that reads pays for all experts' weights.
constexpr double kBesideStreams = 1.5;
// Nobody notices so much; and where base is long, prompts keep 6 / 7 of their speed.
constexpr double kAloneSeconds = 0.04, kAloneBases = 6;
// Steps with prompts after which base is measured again, by a step with few of their tokens.
constexpr int64_t kStepsPerBase = 64;
// A measurement of base counts as at most so many times the one before, since other programs only make a step longer.
constexpr double kMostRise = 1.25;
// What the last step says about a token counts a quarter, and as at most twice or half of what those before said.
constexpr double kShare = 0.25, kMostSurprise = 2;

}  // namespace

size_t Pace::bucket_of(int decoding) {
  return std::min<size_t>(std::bit_width(static_cast<unsigned>(std::max(decoding, 0))), 11);
}

int64_t Pace::prompt_tokens(int decoding) const {
  const Base& base = bases_[bucket_of(decoding)];
  if (base.seconds == 0 || base.steps_since >= kStepsPerBase) return few();
  if (token_seconds_ == 0) return 3 * few();
  const double added = decoding == 0              ? std::max(kAloneSeconds, kAloneBases * base.seconds)
                       : rule_.target_seconds > 0 ? rule_.target_seconds - base.seconds
                                                  : kBesideStreams * base.seconds;
  // So many at least, so that what a token adds is seen.
  return std::max(static_cast<int64_t>(std::min(added / token_seconds_, 1e9)), 3 * few());
}

void Pace::took(const Step& step, double seconds) {
  if (step.prompt_tokens == 0) return;
  Base& base = bases_[bucket_of(step.decoding)];
  ++base.steps_since;
  if (step.allowed == few() || step.prompt_tokens <= few()) {
    base.seconds = base.seconds == 0 ? seconds : std::min(seconds, kMostRise * base.seconds);
    base.steps_since = 0;
  } else if (base.seconds > 0 && step.prompt_tokens >= 2 * few()) {
    base.seconds = std::min(base.seconds, seconds);
    const double token = (seconds - base.seconds) / static_cast<double>(step.prompt_tokens - few());
    const double before = token_seconds_ == 0 ? token : token_seconds_;
    token_seconds_ = before + kShare * (std::clamp(token, before / kMostSurprise, before * kMostSurprise) - before);
  }
}

}  // namespace nibble::engine
