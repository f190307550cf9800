#include "engine/draft_controller.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>

namespace nibble::engine {
namespace {

// Parts of a plain step's time: what may be lost at once before anything was won, and per step; and what may be lost of
// what was won.
constexpr double kCredit = 3, kAllowance = 0.005, kMostWon = 8;
constexpr double kMostForReading = 256;  // plain steps: what may be spent on reading of what was won
constexpr double kMargin = 0.03;         // what drafts must win before they begin; none while they go on
constexpr double kGuess = 0.5;           // of the first token of a draft, before any was verified
constexpr double kGuessWeight = 2;       // verified drafts that this counts for
constexpr double kOthersWeight = 6;  // verified drafts that what is known of other requests counts for, for a new one
constexpr double kHope = 2;          // standard deviations
constexpr float kFadeOfOne = 0.95f, kFadeOfAll = 0.99f;
constexpr int64_t kPlainSeen = 4;     // plain steps that are measured before the first draft
constexpr double kLeastPrice = 0.02;  // of a plain step: what guesses cost at the least, as times are noisy
constexpr int kMostSincePlain = 64;   // steps with drafts before a plain one is measured; a wrong draft counts as 4
// A guess costs no more than another sequence's token, 1 / decoding of a plain step: that is believed before any was
// measured. What is measured above that and this is some other program's.
constexpr double kMostAbovePrior = 0.5;
constexpr double kFadeOfTimes = 0.95, kSlopeWeight = 0.5;  // the slope counts for so many times
constexpr double kMore = 0.5;  // what a guess behind the most that were seen costs, of what these do
constexpr double kAny = 0.5;  // of what the fewest that were seen cost: that there are any, which has other kernels run
constexpr int kWarmUps = 2;   // steps of as many tokens that are no measure: a card loads kernels, then makes a graph
constexpr int kPause = 8;     // steps without proposals after some of which none was verified

// Guesses that a step may have, so that few kinds of steps are met: how long each takes is soon known, and a card
// captures each but once.
constexpr std::array<int, 29> kBucketTokens = {0,  1,  2,  3,  4,  5,  6,  7,  8,   10,  12,  14,  16,  20,     24,
                                               28, 32, 40, 48, 56, 64, 80, 96, 128, 192, 256, 384, 512, 1 << 30};

size_t bucket_of(int drafted) {
  return static_cast<size_t>(std::lower_bound(kBucketTokens.begin(), kBucketTokens.end(), drafted) -
                             kBucketTokens.begin());
}

// 0 to 1: 0, then by powers of two up to 33 and more.
size_t match_bucket(int matched) {
  return std::min<size_t>(static_cast<size_t>(std::bit_width(static_cast<unsigned>(std::max(0, matched - 1)))), 6);
}

// Up to eight sequences each number for itself, then four to a power of two.
int sequences_bucket(int decoding) {
  const auto n = static_cast<unsigned>(std::max(decoding, 1));
  const int shift = std::max(0, static_cast<int>(std::bit_width(n)) - 3);
  return (shift << 8) + static_cast<int>(n >> shift);
}

// Depths by powers of four.
int64_t key_of(const DraftController::Step& step) {
  const int depth = static_cast<int>(std::bit_width(static_cast<uint64_t>(std::max<int64_t>(step.depth, 0)) >> 8)) / 2;
  return (int64_t{sequences_bucket(step.decoding)} << 8) + depth;
}

// Guesses per sequence: what they are believed to cost before any was measured.
double share_of(const DraftController::Step& step) { return static_cast<double>(step.drafted) / step.decoding; }

// In plain steps, as far as guesses are to blame.
double times_of(const DraftController::Step& step, double seconds, double plain) {
  const double most = 1 + share_of(step) + kMostAbovePrior;
  return std::clamp(seconds / plain, 1 / most, most);
}

}  // namespace

template <size_t kKept>
void DraftController::Recent<kKept>::add(double value) {
  values[static_cast<size_t>(count++) % kKept] = static_cast<float>(value);
  auto sorted = values;
  const auto kept = static_cast<std::ptrdiff_t>(std::min<int64_t>(count, kKept));
  const std::ptrdiff_t nth = std::max((kept - 1) / 4, std::min<std::ptrdiff_t>((kept - 1) / 2, 1));
  std::nth_element(sorted.begin(), sorted.begin() + nth, sorted.begin() + kept);
  usual = sorted[static_cast<size_t>(nth)];
}

const DraftController::Plain* DraftController::plain(const Step& step) const {
  const auto found = plain_.find(key_of(step));
  return found == plain_.end() ? nullptr : &found->second;
}

const DraftController::Verifying* DraftController::verifying(const Step& step) const {
  const auto found = verifying_.find(sequences_bucket(step.decoding));
  return found == verifying_.end() ? nullptr : &found->second;
}

double DraftController::price(const Step& step) const {
  const Verifying* const known = verifying(step);
  return step.drafted == 0 ? 0 : price(known, step) + price_of_late(known);
}

// The plain step behind a draft is enqueued late; while drafts go on there is none.
double DraftController::price_of_late(const Verifying* verifying) const {
  return drafting_ || verifying == nullptr || verifying->late.count == 0 ? 0 : std::max(0.0, verifying->late.usual - 1);
}

// Where no step with as many guesses was seen: between the next smaller and larger ones that were; behind the last,
// with its slope. What was seen few times is held against what a guess costs throughout.
double DraftController::price(const Verifying* verifying, const Step& step) {
  const double guesses = step.drafted, each = 1.0 / step.decoding;
  if (verifying == nullptr || verifying->most == 0) return guesses * each;
  const double slope = std::max(0.0, verifying->above + each) / (verifying->shares + each) * each;
  const auto tokens_of = [&](size_t b) { return static_cast<double>(std::min(kBucketTokens[b], verifying->most)); };
  const auto seen_price = [&](size_t b) {
    const auto& seen = verifying->by_drafted[b];
    const auto count = static_cast<double>(std::min<int64_t>(seen.count, std::ssize(seen.values)));
    const double mean = (count * (seen.usual - 1) + kSlopeWeight * slope * tokens_of(b)) / (count + kSlopeWeight);
    return b == 0 ? 0 : mean;
  };
  const auto is_seen = [&](size_t b) { return verifying->by_drafted[b].count > 0; };
  const size_t bucket = bucket_of(step.drafted);
  size_t below = bucket, above = bucket;
  while (below > 0 && !is_seen(below)) --below;
  while (above < kTokenBuckets && !is_seen(above)) ++above;
  if (below == 0 && above == kTokenBuckets) return std::max(kLeastPrice, guesses * slope);
  double price = seen_price(below);
  if (below != bucket && above < kTokenBuckets) {
    const double from = tokens_of(below), to = tokens_of(above);
    if (below == 0) price = kAny * seen_price(above);
    price += (seen_price(above) - price) * std::min(1.0, (guesses - from) / std::max(1.0, to - from));
  } else if (below != bucket) {
    price *= 1 + kMore * (guesses / tokens_of(below) - 1);
  }
  return std::max(kLeastPrice, price);
}

// How likely each token of a draft is drawn with all before it. What is not known of a place in it follows from the
// place before.
void DraftController::add_chances(const Candidate& candidate) {
  const DraftRates& all = rates_[match_bucket(candidate.matched)];
  double before = kGuess, chance = 1, hope = 1;
  for (size_t i = 0; i < static_cast<size_t>(candidate.length); ++i) {
    const double others = (all.right[i] + kGuessWeight * before) / (all.tried[i] + kGuessWeight);
    const double seen = candidate.rates->tried[i] + kOthersWeight;
    before = (candidate.rates->right[i] + kOthersWeight * others) / seen;
    chances_.push_back(chance *= before);
    hopes_.push_back(hope *= std::min(1.0, before + kHope * std::sqrt(before * (1 - before) / (1 + seen))));
  }
}

DraftController::Why DraftController::outlook(const Step& step) const {
  if (!adaptive_) return Why::kPays;
  const Plain* const known = plain(step);
  if (known == nullptr || known->seconds.count < kPlainSeen || known->drafts_since >= kMostSincePlain)
    return Why::kNothing;
  Step least = step;
  least.drafted = 1;
  if (balance_ < price(least) * known->seconds.usual) return Why::kLoses;
  if (in_vain_ > 0 && balance_ < kCredit * known->seconds.usual) return Why::kLoses;
  return drafting_ ? Why::kPays : Why::kProbe;
}

// No step's guesses cost more than the account has, were they all wrong; and none has more than twice as many as were
// seen, or, to begin with, one for each sequence: that any sequence has one may be what costs. What is not expected to
// pay is tried while it may pay for all that is known, and else when the account is full.
DraftController::Why DraftController::choose(const Step& step, int room, std::span<Candidate> candidates) {
  int all = 0;
  for (Candidate& candidate : candidates) {
    candidate.chosen = adaptive_ ? 0 : std::min(candidate.length, room - all);
    all += candidate.chosen;
  }
  if (!adaptive_) return all > 0 ? Why::kPays : Why::kNothing;
  if (const Why why = outlook(step); why == Why::kNothing || why == Why::kLoses) return why;
  if (candidates.empty()) return Why::kNothing;

  // The likeliest tokens of all drafts, in order: each draft's come in its own order, as their chances fall.
  chances_.clear();
  hopes_.clear();
  of_.clear();
  for (size_t c = 0; c < candidates.size(); ++c) {
    add_chances(candidates[c]);
    of_.resize(chances_.size(), c);
  }
  order_.resize(chances_.size());
  std::iota(order_.begin(), order_.end(), size_t{0});
  std::stable_sort(order_.begin(), order_.end(), [&](size_t a, size_t b) { return chances_[a] > chances_[b]; });

  const Verifying* const known = verifying(step);
  const int most = std::min(
      {room, static_cast<int>(order_.size()), std::max(step.decoding, known == nullptr ? 0 : 2 * known->most)});
  const double unit = plain(step)->seconds.usual, late = price_of_late(known);
  double tokens = step.decoding, hoped = tokens, best = 0, best_hoped = 0;  // tokens per plain step
  int drafted = 0, best_drafted = 0;
  const int least = drafting_ ? 1 : std::min(step.decoding, most);
  for (size_t bucket = least > 0 ? bucket_of(least + 1) - 1 : 1; kBucketTokens[bucket] <= most; ++bucket) {
    Step with = step;
    with.drafted = kBucketTokens[bucket];
    for (; drafted < with.drafted; ++drafted) {
      tokens += chances_[order_[static_cast<size_t>(drafted)]];
      hoped += hopes_[order_[static_cast<size_t>(drafted)]];
    }
    const double costs = price(known, with) + late;
    if (costs * unit > balance_) break;
    best_hoped = std::max(best_hoped, hoped / (1 + costs));
    if (tokens / (1 + costs) <= best) continue;
    best = tokens / (1 + costs);
    best_drafted = with.drafted;
  }
  const bool pays = best >= (drafting_ ? 1 : 1 + kMargin) * step.decoding;
  const bool hopeless = !pays && best_hoped < step.decoding && balance_ < kCredit * unit;
  if (best_drafted == 0 || hopeless) {
    in_vain_ = kPause;
    return Why::kLoses;
  }
  for (int i = 0; i < best_drafted; ++i) ++candidates[of_[order_[static_cast<size_t>(i)]]].chosen;
  return pays ? Why::kPays : Why::kProbe;
}

// What a new size of steps takes longer is not the guesses' doing: it comes once.
void DraftController::took(const Step& step, Seconds seconds, int right) {
  const double unit = plain_[key_of(step)].seconds.usual;
  const bool warm = met_[step.decoding + step.drafted]++ >= kWarmUps;
  if (step.drafted > 0 && !warm)
    seconds.step = std::min(seconds.step, unit * (1 + std::max(price(step), kAny * share_of(step))));
  add_times(step, seconds.step, right, warm);
  account(step, seconds, right);
  in_vain_ = std::max(0, in_vain_ - 1);
  drafting_ = balance_ > 0 && (step.why == Why::kPays || (drafting_ && step.why == Why::kNothing));
}

void DraftController::add_times(const Step& step, double seconds, int right, bool warm) {
  Plain& like = plain_[key_of(step)];
  if (step.drafted == 0 && !step.late) {
    like.seconds.add(seconds);
    like.drafts_since = 0;
    return;
  }
  if (step.drafted > 0) like.drafts_since += right > 0 ? 1 : 4;
  if (like.seconds.count == 0) return;
  Verifying& verifying = verifying_[sequences_bucket(step.decoding)];
  const double times = times_of(step, seconds, like.seconds.usual);
  if (step.drafted == 0) {
    verifying.late.add(times);
    return;
  }
  if (warm) verifying.by_drafted[bucket_of(step.drafted)].add(times);
  verifying.above = kFadeOfTimes * verifying.above + times - 1;
  verifying.shares = kFadeOfTimes * verifying.shares + share_of(step);
  verifying.most = std::max(verifying.most, step.drafted);
}

// What was lost is what the step took above a plain one's share for each token that it gave. The account opens when a
// plain step's time is known: credit by a step that looked short would be filled up only after hundreds of steps.
void DraftController::account(const Step& step, const Seconds& seconds, int right) {
  const Recent<4>& known = plain_[key_of(step)].seconds;
  const double unit = known.usual;
  if (known.count < (began_ ? 1 : kPlainSeen)) return;
  if (!std::exchange(began_, true)) balance_ = kCredit * unit;
  if (balance_ < kCredit * unit) balance_ = std::min(balance_ + kAllowance * unit, kCredit * unit);
  double won = -seconds.proposing;
  if (step.drafted > 0 || step.late)
    won += unit * (1 + static_cast<double>(right) / step.decoding - times_of(step, seconds.step, unit));
  balance_ = std::min(balance_ + won, kMostWon * unit);
  reading_balance_ = std::min(reading_balance_ + won + kAllowance * unit, kMostForReading * unit);
}

bool DraftController::may_read(int64_t planned, int64_t tokens) const {
  if (!adaptive_) return true;
  if (read_tokens_ == 0) return planned == 0;
  return static_cast<double>(planned + tokens) * read_seconds_ / read_tokens_ <= reading_balance_;
}

void DraftController::took_reading(int64_t tokens, double seconds) {
  read_tokens_ = kFadeOfTimes * read_tokens_ + static_cast<double>(tokens);
  read_seconds_ = kFadeOfTimes * read_seconds_ + seconds;
  reading_balance_ -= seconds;
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
