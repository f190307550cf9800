#include "engine/draft_controller.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

namespace nibble::engine {
namespace {

// Of a plain step's time, what may be lost at once before anything was won, and per step; and what may be lost of what
// was won.
constexpr double kCredit = 2, kAllowance = 0.005, kMostWon = 8;
constexpr double kMostForReading = 256;  // plain steps: what may be spent on reading of what was won
constexpr double kMargin = 0.03;         // what drafts must win before they begin; none while they go on
constexpr double kGuess = 0.5;           // of the first token of a draft, before any was verified
constexpr double kGuessWeight = 2;       // verified drafts that this counts for
constexpr double kOthersWeight = 3;      // likewise what is known of other requests, for a new one
constexpr float kFadeOfOne = 0.9f, kFadeOfAll = 0.99f;
constexpr int64_t kPlainSeen = 4;     // plain steps that are measured before the first draft
constexpr double kLeastPrice = 0.02;  // of a plain step: what guesses cost at the least, as times are noisy
constexpr int kMostSincePlain = 64;   // steps with drafts before a plain one is measured; a wrong draft counts as 16
// A guess costs no more than another sequence's token, 1 / decoding of a plain step: that is believed before any was
// measured. What is measured above that and this is some other program's.
constexpr double kMostAbovePrior = 0.5;
constexpr double kFadeOfTimes = 0.95, kSlopeWeight = 4;  // the slope counts for so many times

// The tokens that a bucket's steps have at most.
constexpr std::array<int, 21> kBucketTokens = {0,  1,  2,  3,  4,  5,   6,   7,   8,   12,     16,
                                               24, 32, 48, 64, 96, 128, 192, 256, 384, 1 << 30};

size_t bucket_of(int drafted) {
  return static_cast<size_t>(std::lower_bound(kBucketTokens.begin(), kBucketTokens.end(), drafted) -
                             kBucketTokens.begin());
}

// 0 to 1: 0, then by powers of two up to 33 and more.
size_t match_bucket(int matched) {
  return std::min<size_t>(static_cast<size_t>(std::bit_width(static_cast<unsigned>(std::max(0, matched - 1)))), 6);
}

// Disturbances only make a step longer: guesses must not look cheap beside a plain step that was disturbed.
template <size_t kKept>
double least_of(const std::array<float, kKept>& values, int64_t count) {
  return *std::min_element(values.begin(), values.begin() + std::min<std::ptrdiff_t>(count, kKept));
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

}  // namespace

template <size_t kKept>
void DraftController::Recent<kKept>::add(double value) {
  values[static_cast<size_t>(count++) % kKept] = static_cast<float>(value);
  auto sorted = values;
  const auto kept = static_cast<std::ptrdiff_t>(std::min<int64_t>(count, kKept));
  std::fill(sorted.begin() + kept, sorted.end(), std::numeric_limits<float>::infinity());
  std::sort(sorted.begin(), sorted.end());
  usual = std::accumulate(sorted.begin() + kept / 4, sorted.begin() + (kept - kept / 4), 0.0) /
          static_cast<double>(kept - 2 * (kept / 4));
}

const DraftController::Plain* DraftController::plain(const Step& step) const {
  const auto found = plain_.find(key_of(step));
  return found == plain_.end() ? nullptr : &found->second;
}

double DraftController::price(const Step& step) const {
  const auto found = verifying_.find(sequences_bucket(step.decoding));
  return price(found == verifying_.end() ? nullptr : &found->second, step);
}

// Where no step with as many guesses was seen: between the next smaller and larger ones that were; behind the last,
// with its slope. What was seen few times is held against what a guess costs throughout. A step enqueued late is the
// price of the one before it.
double DraftController::price(const Verifying* verifying, const Step& step) {
  if (step.drafted == 0) return 0;
  const double guesses = step.drafted, each = 1.0 / step.decoding;
  if (verifying == nullptr || verifying->most == 0) return guesses * each;
  const double slope = std::max(0.0, verifying->above + each) / (verifying->shares + each) * each;
  const auto tokens_of = [&](size_t b) { return static_cast<double>(std::min(kBucketTokens[b], verifying->most)); };
  const auto seen_price = [&](size_t b) {
    const auto& seen = verifying->by_drafted[b];
    const auto count = static_cast<double>(std::min<int64_t>(seen.count, std::ssize(seen.values)));
    const double mean = (count * (seen.usual - 1) + kSlopeWeight * slope * tokens_of(b)) / (count + kSlopeWeight);
    return b == 0 ? 0 : std::max(kLeastPrice, mean);
  };
  const auto is_seen = [&](size_t b) { return verifying->by_drafted[b].count > 0; };
  const size_t bucket = bucket_of(step.drafted);
  size_t below = bucket, above = bucket;
  while (below > 0 && !is_seen(below)) --below;
  while (above < kTokenBuckets && !is_seen(above)) ++above;
  double price = seen_price(below);
  if (below != bucket && above < kTokenBuckets) {
    const double from = tokens_of(below), to = tokens_of(above);
    price += (seen_price(above) - price) * std::min(1.0, (guesses - from) / std::max(1.0, to - from));
  } else if (below != bucket) {
    price *= guesses / tokens_of(below);
  }
  return price + (verifying->late.count > 0 ? std::max(0.0, verifying->late.usual - 1) : 0);
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

DraftController::Why DraftController::outlook(const Step& step) const {
  if (!adaptive_) return Why::kPays;
  const Plain* const known = plain(step);
  if (known == nullptr || known->seconds.count < kPlainSeen || known->drafts_since >= kMostSincePlain)
    return Why::kNothing;
  Step least = step;
  least.drafted = 1;
  if (balance_ < price(least) * known->seconds.usual) return Why::kLoses;
  return drafting_ ? Why::kPays : Why::kProbe;
}

// No step's guesses cost more than the account has, were they all wrong; and none has more than twice as many as were
// seen, so that the price is known.
DraftController::Why DraftController::choose(const Step& step, int room, std::span<Candidate> candidates) {
  int all = 0;
  for (Candidate& candidate : candidates) {
    candidate.chosen = adaptive_ ? 0 : std::min(candidate.length, room - all);
    all += candidate.chosen;
  }
  if (!adaptive_) return all > 0 ? Why::kPays : Why::kNothing;
  if (const Why why = outlook(step); why == Why::kNothing || why == Why::kLoses) return why;

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

  const auto found = verifying_.find(sequences_bucket(step.decoding));
  const Verifying* const verifying = found == verifying_.end() ? nullptr : &found->second;
  const int most = std::min({room, static_cast<int>(order_.size()), verifying == nullptr ? 1 : 2 * verifying->most});
  const double affordable = balance_ / plain(step)->seconds.usual;
  double tokens = step.decoding, best = 0;  // tokens per plain step
  int best_drafted = 0;
  Step with = step;
  for (with.drafted = 1; with.drafted <= most; ++with.drafted) {
    tokens += chances_[order_[static_cast<size_t>(with.drafted) - 1]];
    const double costs = price(verifying, with);
    if (costs > affordable) break;
    if (tokens / (1 + costs) <= best) continue;
    best = tokens / (1 + costs);
    best_drafted = with.drafted;
  }
  for (int i = 0; i < best_drafted; ++i) ++candidates[of_[order_[static_cast<size_t>(i)]]].chosen;
  if (best_drafted == 0) return candidates.empty() ? Why::kNothing : Why::kLoses;
  return best >= (drafting_ ? 1 : 1 + kMargin) * step.decoding ? Why::kPays : Why::kProbe;
}

void DraftController::took(const Step& step, const Seconds& seconds, int right) {
  add_times(step, seconds.step, right);
  account(step, seconds.proposing, right);
  drafting_ = balance_ > 0 && (step.why == Why::kPays || (drafting_ && step.why == Why::kNothing));
}

void DraftController::add_times(const Step& step, double seconds, int right) {
  Plain& like = plain_[key_of(step)];
  if (step.drafted == 0 && !step.late) {
    like.seconds.add(seconds);
    like.drafts_since = 0;
    return;
  }
  if (step.drafted > 0) like.drafts_since += right > 0 ? 1 : kMostSincePlain / 4;
  if (like.seconds.count == 0) return;
  Verifying& verifying = verifying_[sequences_bucket(step.decoding)];
  const double share = static_cast<double>(step.drafted) / step.decoding;
  const double most = 1 + share + kMostAbovePrior,
               times = std::clamp(seconds / least_of(like.seconds.values, like.seconds.count), 1 / most, most);
  if (step.drafted == 0) {
    verifying.late.add(times);
    return;
  }
  verifying.by_drafted[bucket_of(step.drafted)].add(times);
  verifying.above = kFadeOfTimes * verifying.above + times - 1;
  verifying.shares = kFadeOfTimes * verifying.shares + share;
  verifying.most = std::max(verifying.most, step.drafted);
}

void DraftController::account(const Step& step, double proposing, int right) {
  const double unit = plain_[key_of(step)].seconds.usual;
  if (!began_ && unit > 0) {
    balance_ = kCredit * unit;
    began_ = true;
  }
  if (balance_ < kCredit * unit) balance_ = std::min(balance_ + kAllowance * unit, kCredit * unit);
  const double won = unit * (static_cast<double>(right) / step.decoding - price(step)) - proposing;
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
