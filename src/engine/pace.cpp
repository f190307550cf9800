#include "engine/pace.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

namespace nibble::engine {
namespace {

// A step with prompts may take this many times as long as decoding alone: streams keep 1 / 3.65 = 27.4 % of their
// speed.
constexpr double kMostStretch = 3.65;
// Or this many times as long as it takes before its first prompt token. If few sequences decode, shorter steps would
// slow prompts by more than they speed up streams (1 / 2 maximises the product of both speeds).
constexpr double kMostFixed = 2;
// Steps with prompts after which decoding alone is measured again: this many for each measurement so far, up to the
// second number.
constexpr int64_t kStepsUnseen = 16, kMostStepsUnseen = 128;
constexpr double kFade = 0.97;                        // per step with prompts
constexpr double kFixedGuess = 1, kRatioGuess = 0.1;  // weights of the guesses, beside 1 for a step
// Steps alternate this much above and below the target. If all steps were alike, they would not show which part of
// their time is fixed and which grows with the tokens.
constexpr double kSwing = 0.4;
// A step that took longer or shorter than expected counts as at most this much off, since other programs disturb many
// steps.
constexpr double kMostSurprise = 1.5;

using Matrix = std::array<std::array<double, 3>, 3>;
using Vector = std::array<double, 3>;

// Solves for the unknowns in `free`; the others are 0. Gauss, with the largest pivot; REQUIRES a positive definite one.
Vector solve(Matrix a, Vector b, const std::array<bool, 3>& free) {
  for (size_t i = 0; i < 3; ++i) {
    if (free[i]) continue;
    for (size_t j = 0; j < 3; ++j) a[i][j] = a[j][i] = 0;
    a[i][i] = 1;
    b[i] = 0;
  }
  for (size_t i = 0; i < 3; ++i) {
    for (size_t r = i + 1; r < 3; ++r) {
      const double times = a[r][i] / a[i][i];
      for (size_t c = i; c < 3; ++c) a[r][c] -= times * a[i][c];
      b[r] -= times * b[i];
    }
  }
  for (size_t i = 3; i-- > 0;) {
    for (size_t c = i + 1; c < 3; ++c) b[i] -= a[i][c] * b[c];
    b[i] /= a[i][i];
  }
  return b;
}

// None of them below 0: the lowest is set to 0 until none is.
Vector solve_positive(const Matrix& a, const Vector& b) {
  std::array<bool, 3> free{true, true, true};
  while (true) {
    const Vector x = solve(a, b, free);
    const auto lowest = std::min_element(x.begin(), x.end());
    if (!(*lowest < 0)) return x;
    free[static_cast<size_t>(lowest - x.begin())] = false;
  }
}

}  // namespace

size_t Pace::bucket_of(int decoding) {
  return std::min<size_t>(std::bit_width(static_cast<unsigned>(std::max(decoding, 0))), kBuckets - 1);
}

// The lower quartile of the last times, since disturbances only make a step longer; 0: unknown.
double Pace::decode_seconds(size_t bucket) const {
  const Decode& of = decodes_[bucket];
  auto sorted = of.seconds;
  std::sort(sorted.begin(), sorted.end());
  return of.count == 0 ? 0 : sorted[static_cast<size_t>(std::min(of.count, std::ssize(sorted)) - 1) / 4];
}

void Pace::took_decoding(size_t bucket, double seconds) {
  Decode& of = decodes_[bucket];
  if (of.count == 0) of.seconds.fill(std::numeric_limits<double>::infinity());
  of.seconds[static_cast<size_t>(of.count++) % of.seconds.size()] = seconds;
  of.prompt_steps_since = 0;
}

void Pace::took(const Work& work, double seconds) {
  seconds = std::max(seconds, 1e-7);
  const size_t bucket = bucket_of(work.decoding);
  // A step that comes answers a requested measurement, whatever it is, so that prompts wait for one step only.
  const int asked = std::exchange(asked_, -1);
  if (asked >= 0 && (work.prompt_tokens > 0 || asked != static_cast<int>(bucket)))
    took_decoding(static_cast<size_t>(asked), seconds);
  if (work.prompt_tokens == 0 && work.drafted > 0) return;
  if (work.prompt_tokens == 0) return took_decoding(bucket, seconds);
  ++decodes_[bucket].prompt_steps_since;
  const double tokens = static_cast<double>(work.prompt_tokens + work.decoding);
  double expected = seconds;
  if (weight_ > 3) {
    expected = std::max(model_.fixed + model_.per_token * tokens + model_.per_key * work.prompt_keys, 1e-7);
    seconds = std::clamp(seconds, expected / kMostSurprise, expected * kMostSurprise);
  }
  const Vector row{1 / expected, tokens / expected, work.prompt_keys / expected};
  for (size_t i = 0; i < 3; ++i) {
    for (size_t j = 0; j < 3; ++j) products_[i][j] = kFade * products_[i][j] + row[i] * row[j];
    sums_[i] = kFade * sums_[i] + row[i] * seconds / expected;
  }
  weight_ = kFade * weight_ + 1;
  seconds_ = kFade * seconds_ + seconds;
  tokens_ = kFade * tokens_ + tokens;
  keys_ = kFade * keys_ + work.prompt_keys;
  fit(decode_seconds(bucket));
}

// Least squares of the relative errors. If the steps were too similar to separate the three parts, guesses stand in:
// the time before the first prompt token is that of decoding alone, and keys cost what they cost in operations.
void Pace::fit(double decode_guess) {
  const double seconds = seconds_ / weight_, tokens = tokens_ / weight_;
  const double keys = std::max(keys_ / weight_, 0.01 * tokens * rule_.keys_per_token);
  const Vector scale{seconds, seconds / tokens, seconds / keys};
  Matrix a;
  Vector b;
  for (size_t i = 0; i < 3; ++i) {
    for (size_t j = 0; j < 3; ++j) a[i][j] = products_[i][j] * scale[i] * scale[j];
    b[i] = sums_[i] * scale[i];
    a[i][i] += 1e-9;
  }
  a[0][0] += kFixedGuess;
  b[0] += kFixedGuess * std::min(decode_guess / seconds, 1.0);
  const double ratio = keys / (tokens * rule_.keys_per_token);
  a[1][1] += kRatioGuess * ratio * ratio;
  a[1][2] -= kRatioGuess * ratio;
  a[2][1] -= kRatioGuess * ratio;
  a[2][2] += kRatioGuess;
  const Vector x = solve_positive(a, b);
  model_ = {.fixed = x[0] * scale[0], .per_token = x[1] * scale[1], .per_key = x[2] * scale[2]};
}

PromptBudget Pace::budget(int decoding) {
  const size_t bucket = bucket_of(decoding);
  const int64_t least = std::max(1, rule_.max_tokens / 256);
  const Decode& alone = decodes_[bucket];
  if (rule_.target_seconds == 0 &&
      (alone.count == 0 || alone.prompt_steps_since >= std::min(kStepsUnseen * alone.count, kMostStepsUnseen))) {
    asked_ = static_cast<int>(bucket);
    return {.most = 0, .least = 0};
  }
  if (weight_ == 0) return {.most = static_cast<double>(4 * least), .per_token = 1, .per_key = 0, .least = least};
  const double target = rule_.target_seconds > 0
                            ? rule_.target_seconds
                            : std::max(kMostStretch * decode_seconds(bucket), kMostFixed * model_.fixed);
  const double room = target - model_.fixed - model_.per_token * decoding;
  const double per_token = std::max(model_.per_token, 1e-12);
  above_ = !above_;
  return {.most = std::max(room, 0.0) * (above_ ? 1 + kSwing : 1 - kSwing),
          .per_token = per_token,
          .per_key = model_.per_key,
          .least = least};
}

}  // namespace nibble::engine
