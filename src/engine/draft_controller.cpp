#include "engine/draft_controller.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

namespace nibble::engine {
namespace {

// Of a plain step's time, what may be spent on drafts that do not pay: at once, and per step.
constexpr double kCredit = 4, kAllowance = 0.01;
constexpr double kMargin = 0.03;     // what drafts must win before they begin; none while they go on
constexpr double kGuess = 0.5;       // of the first token of a draft, before any was verified
constexpr double kGuessWeight = 2;   // verified drafts that this counts for
constexpr double kOthersWeight = 3;  // likewise what is known of other requests, for a new one
constexpr float kFadeOfOne = 0.9f, kFadeOfAll = 0.99f;
constexpr double kGuessPerToken = 0.5;  // of a plain step of one sequence: a guess's cost, before any was measured
constexpr int64_t kPlainSeen = 4;       // plain steps that are measured before the first draft
constexpr double kLeastProbe = 0.1;     // of a plain step: what a probe counts for at least, as times are noisy
constexpr int kMostSincePlain = 64;     // steps with drafts before a plain one is measured again

// The tokens that a bucket's steps have at most.
constexpr std::array<int, 16> kBucketTokens = {0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64, 1 << 30};

size_t bucket_of(int drafted) {
  return static_cast<size_t>(std::lower_bound(kBucketTokens.begin(), kBucketTokens.end(), drafted) -
                             kBucketTokens.begin());
}

// 0 to 1: 0, then by powers of two up to 33 and more.
size_t match_bucket(int matched) {
  return std::min<size_t>(static_cast<size_t>(std::bit_width(static_cast<unsigned>(std::max(0, matched - 1)))), 6);
}

}  // namespace

// The mean of the middle half.
double DraftController::Times::usual() const {
  if (count == 0) return 0;
  auto sorted = seconds;
  const auto seen = static_cast<size_t>(std::min<int64_t>(count, std::ssize(sorted)));
  for (size_t i = seen; i < sorted.size(); ++i) sorted[i] = std::numeric_limits<float>::infinity();
  std::sort(sorted.begin(), sorted.end());
  const auto first = sorted.begin() + static_cast<std::ptrdiff_t>(seen / 4);
  const auto last = sorted.begin() + static_cast<std::ptrdiff_t>(seen - seen / 4);
  return std::accumulate(first, last, 0.0) / static_cast<double>(last - first);
}

// Up to eight sequences each number for itself, then four to a power of two; depths by powers of four.
int64_t DraftController::key_of(const Step& step) {
  const auto n = static_cast<unsigned>(std::max(step.decoding, 1));
  const int shift = std::max(0, static_cast<int>(std::bit_width(n)) - 3);
  const int depth = static_cast<int>(std::bit_width(static_cast<uint64_t>(std::max<int64_t>(step.depth, 0)) >> 8)) / 2;
  return (int64_t{shift} << 32) + (int64_t{n >> shift} << 8) + depth;
}

const DraftController::Like* DraftController::like(const Step& step) const {
  const auto found = likes_.find(key_of(step));
  return found == likes_.end() ? nullptr : &found->second;
}

double DraftController::seconds_of(const Step& step) const {
  const Like* const known = like(step);
  return known == nullptr ? 0 : seconds_of(*known, step);
}

// Where no such step was seen: between the next smaller and larger ones that were; behind the last, with its slope.
// No guess makes a step faster: noise does.
double DraftController::seconds_of(const Like& like, const Step& step) {
  const size_t bucket = bucket_of(step.drafted);
  const double plain = like.by_drafted[0].usual();
  if (like.by_drafted[bucket].count > 0) return std::max(plain, like.by_drafted[bucket].usual());
  size_t below = bucket, above = bucket;
  while (below > 0 && like.by_drafted[below].count == 0) --below;
  while (above < kTokenBuckets && like.by_drafted[above].count == 0) ++above;
  const double less = like.by_drafted[below].usual(), tokens = step.drafted, from = kBucketTokens[below];
  if (above < kTokenBuckets - 1) {
    const double more = like.by_drafted[above].usual(), to = kBucketTokens[above];
    return less + (more - less) * (tokens - from) / (to - from);
  }
  const double slope = below > 0 ? std::max(0.0, less - plain) / from : kGuessPerToken * plain / step.decoding;
  return less + slope * (tokens - from);
}

// How likely each token of a draft is drawn with all before it. What is not known of a place in it follows from the
// place before.
void DraftController::add_chances(const Candidate& candidate) {
  const DraftRates& all = rates_[match_bucket(candidate.matched)];
  double before = kGuess, chance = 1;
  for (size_t i = 0; i < static_cast<size_t>(candidate.length); ++i) {
    const double others = (all.right[i] + kGuessWeight * before) / (all.tried[i] + kGuessWeight);
    before = (candidate.rates->right[i] + kOthersWeight * others) / (candidate.rates->tried[i] + kOthersWeight);
    chances_.push_back(chance *= before);
  }
}

DraftController::Why DraftController::choose(const Step& step, int room, std::span<Candidate> candidates) {
  int all = 0;
  for (Candidate& candidate : candidates) {
    candidate.chosen = adaptive_ ? 0 : std::min(candidate.length, room - all);
    all += candidate.chosen;
  }
  if (!adaptive_) return all > 0 ? Why::kPays : Why::kNothing;
  const Like* const known = like(step);
  if (known == nullptr || known->by_drafted[0].count < kPlainSeen || known->drafts_since_plain >= kMostSincePlain)
    return Why::kNothing;

  // The likeliest tokens of all drafts, in order: each draft's come in its own order, as their chances fall.
  chances_.clear();
  of_.clear();
  for (size_t c = 0; c < candidates.size(); ++c) {
    add_chances(candidates[c]);
    of_.resize(chances_.size(), c);
  }
  order_.resize(chances_.size());
  std::iota(order_.begin(), order_.end(), size_t{0});
  std::stable_sort(order_.begin(), order_.end(), [&](size_t a, size_t b) { return chances_[a] > chances_[b]; });
  const int most = std::min(room, static_cast<int>(order_.size()));

  const double plain = known->by_drafted[0].usual();
  double tokens = step.decoding, best = 0;
  int best_drafted = 0;
  Step with = step;
  for (with.drafted = 1; with.drafted <= most; ++with.drafted) {
    tokens += chances_[order_[static_cast<size_t>(with.drafted) - 1]];
    const double rate = tokens / seconds_of(*known, with);
    if (rate <= best) continue;
    best = rate;
    best_drafted = with.drafted;
  }
  if (best_drafted == 0) return Why::kNothing;
  with.drafted = best_drafted;
  const bool pays = best >= (drafting_ ? 1 : 1 + kMargin) * step.decoding / plain && balance_ > 0;
  if (!pays && balance_ < std::max(kLeastProbe * plain, seconds_of(*known, with) - plain)) return Why::kLoses;
  for (int i = 0; i < best_drafted; ++i) ++candidates[of_[order_[static_cast<size_t>(i)]]].chosen;
  return pays ? Why::kPays : Why::kProbe;
}

void DraftController::took(const Step& step, double seconds, int right) {
  Like& like = likes_[key_of(step)];
  Times& times = like.by_drafted[bucket_of(step.drafted)];
  // Guesses cost no more than as many plain steps: what is above that is some other program's, and one such time would
  // spend the account for long.
  if (step.drafted > 0 && like.by_drafted[0].count > 0)
    seconds = std::min(seconds, (1 + step.drafted) * like.by_drafted[0].usual());
  times.seconds[static_cast<size_t>(times.count++) % times.seconds.size()] = static_cast<float>(seconds);
  like.drafts_since_plain = step.drafted > 0 ? like.drafts_since_plain + 1 : 0;
  drafting_ = step.why == Why::kPays || (drafting_ && step.why == Why::kNothing);
  const double plain = like.by_drafted[0].usual();
  if (!began_ && plain > 0) {
    balance_ = kCredit * plain;
    began_ = true;
  }
  balance_ += kAllowance * plain;
  if (step.drafted > 0) {
    const double least = step.why == Why::kProbe ? kLeastProbe * plain : 0;
    balance_ += right * plain / step.decoding - std::max(least, seconds_of(like, step) - plain);
  }
  balance_ = std::min(balance_, kCredit * plain);
}

void DraftController::verified(DraftRates& rates, int matched, int tried, int right) {
  DraftRates& all = rates_[match_bucket(matched)];
  for (size_t i = 0; i < static_cast<size_t>(tried); ++i) {
    const float drawn = static_cast<int>(i) < right ? 1.0f : 0.0f;
    rates.tried[i] = kFadeOfOne * rates.tried[i] + 1;
    rates.right[i] = kFadeOfOne * rates.right[i] + drawn;
    all.tried[i] = kFadeOfAll * all.tried[i] + 1;
    all.right[i] = kFadeOfAll * all.right[i] + drawn;
  }
}

}  // namespace nibble::engine
