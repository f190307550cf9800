#include "backend/cpu/screen.h"

#include "base/mx.h"
#include "base/random.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

namespace nibble::backend::cpu {
namespace {

constexpr int kMostCode = 31, kZeroCode = 32;
constexpr int kDigit = 7, kMostSteps = 63 << kDigit;  // bits of the low digit; most X
constexpr int64_t kTileChunk = 4;                     // tiles that a thread takes at once
constexpr float kLeast = 1e-30f, kNone = -std::numeric_limits<float>::infinity();
constexpr double kMostProduct = 1e30;  // of |v||w|, or logits by a small temperature leave the floats

// Four lanes at a time, in an instruction set that all processors of a build have.
using Four [[gnu::vector_size(16)]] = float;
using FourInts [[gnu::vector_size(16)]] = int32_t;
constexpr size_t kLanes = kScreenRows;
constexpr uint32_t kAllLanes = (1u << kLanes) - 1;

template <class Vector = Four>
Vector load(const void* p) {
  Vector v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
void store(Four v, float* p) { std::memcpy(p, &v, sizeof v); }
Four largest(Four a, Four b) { return a < b ? b : a; }
float sum_of(Four v) { return (v[0] + v[1]) + (v[2] + v[3]); }
float top_of(Four v) { return std::max(std::max(v[0], v[1]), std::max(v[2], v[3])); }

// To the nearest, below 2^22: without a call.
template <class T>
T nearest(T x) {
  return (x + 0x1.8p23f) - 0x1.8p23f;
}

Four code_of(Four value, float inverse) {
  constexpr auto kMost = static_cast<float>(kMostCode);
  value = value * inverse;
  value = value < -kMost ? Four{} - kMost : value;
  return nearest(value > kMost ? Four{} + kMost : value);
}

// What a block has once int8 products have rounded it.
void round_block(std::span<float> x) {
  float most = 0;
  for (const float each : x) most = std::max(most, std::abs(each));
  const float inverse = most > 0 ? 127.0f / most : 0.0f, scale = most / 127.0f;
  for (float& each : x) each = std::nearbyint(each * inverse) * scale;
}

// No less than gumbel(), and hardly more. -log(-log(u)) <= -log(1 - u), and a float's bits, read as a line between
// powers of two, are no more than its logarithm.
Four most_gumbel(FourInts words) {
  const Four odd = __builtin_convertvector(0xffffff - ((words >> 9) & 0x7fffff) * 2, Four);  // (1 - u) 2^24
  const Four log2 = __builtin_convertvector(load<FourInts>(&odd), Four) * 0x1p-23f - 127.0f;
  return (24.0f - log2) * 0.6931472f + 4 * kOfNoise;
}

}  // namespace

bool Screen::serves(WeightFormat format, int64_t rows, int64_t cols) {
  using enum WeightFormat;
  const bool wide = format == kBf16 || format == kF16 || format == kF32 || format == kGgmlQ8;
  return wide && rows > 0 && rows % kScreenRows == 0 && cols > 0 && cols % kMxBlock == 0;
}

Screen::Screen(const Matrix& matrix, const Kernels& kernels, ThreadPool& pool)
    : kernels_(kernels),
      pool_(pool),
      rows_(matrix.rows()),
      cols_(matrix.cols()),
      codes_(rows_ * cols_ * 3 / 4),
      tokens_(kScreenTokens),
      row_(static_cast<size_t>(cols_)),
      digits_(static_cast<size_t>(cols_ * 2 * kScreenTokens)),
      most_(static_cast<size_t>(rows_ / kScreenRows * kScreenTokens)),
      best_(static_cast<size_t>(pool.threads() * kScreenTokens)) {
  const auto rows = static_cast<size_t>(rows_), cols = static_cast<size_t>(cols_);
  for (std::vector<float>* each : {&mean_, &rms_, &inverse_}) each->resize(cols);
  for (std::vector<float>* each : {&scale_, &lost_, &kept_}) each->resize(rows);
  for (Token& token : tokens_) token.v.resize(cols);
  candidates_.reserve(rows);
  // Mean and rms are those of some rows: any would do, the bounds hold for all.
  constexpr int64_t kSampled = 1024;
  std::vector<double> sums(cols), squares(cols);
  const int64_t every = (rows_ + kSampled - 1) / kSampled, count = (rows_ + every - 1) / every;
  for (int64_t r = 0; r < rows_; r += every) {
    kernels.decode(matrix.at(r, 1), row_.data());
    for (size_t k = 0; k < cols; ++k) sums[k] += row_[k], squares[k] += double{row_[k]} * row_[k];
  }
  // A column of one value has no rms; a small one, or it would have the largest x'.
  const double all = std::accumulate(squares.begin(), squares.end(), 0.0) / static_cast<double>(count * cols_);
  const double least = std::max(std::sqrt(all) / 1000, 1e-20);
  for (size_t k = 0; k < cols; ++k) {
    const double mean = sums[k] / static_cast<double>(count);
    const double rms = std::sqrt(std::max(squares[k] / static_cast<double>(count) - mean * mean, 0.0));
    const bool serves = least < 1e20;
    mean_[k] = serves ? static_cast<float>(mean) : 0.0f;
    rms_[k] = serves ? static_cast<float>(std::max(rms, least)) : 1.0f;
    inverse_[k] = 1 / rms_[k];
  }
  std::vector<float> longest(static_cast<size_t>(pool.threads()));
  pool.parallel_chunks(rows_ / kScreenRows, kTileChunk, [&](IndexRange range) {
    std::vector<float> own(cols);
    float& most = longest[static_cast<size_t>(range.thread_idx)];
    for (int64_t r = range.begin * kScreenRows; r < range.end * kScreenRows; ++r) {
      kernels.decode(matrix.at(r, 1), own.data());
      const float length = copy_row(r, own);
      most = std::isfinite(length) ? std::max(most, length) : std::numeric_limits<float>::infinity();
    }
  });
  longest_ = *std::ranges::max_element(longest) * kRowUp;
}

float Screen::copy_row(int64_t r, std::span<float> row) {
  Four squares{}, normed{}, tops{};
  for (size_t k = 0; k < row.size(); k += 4) {
    const Four w = load(&row[k]), value = (w - load(&mean_[k])) * load(&inverse_[k]);
    squares += w * w;
    normed += value * value;
    tops = largest(tops, largest(value, -value));
    store(value, &row[k]);
  }
  const float top = top_of(tops), rms = std::sqrt(sum_of(normed) / static_cast<float>(cols_));
  // The scale is that of three which loses the least: it reaches the largest value, or so many rms, beyond which values
  // lose more and all others less.
  float least = std::numeric_limits<float>::infinity(), scale = 1;
  for (const float reach : {top, 4.5f * rms, 3.3f * rms}) {
    if (!(reach > 0 && reach <= top)) continue;
    const float step = reach / kMostCode, inverse = kMostCode / reach;
    Four lost{};
    for (size_t k = 0; k < row.size(); k += 4) {
      const Four value = load(&row[k]), rest = value - step * code_of(value, inverse);
      lost += rest * rest;
    }
    if (sum_of(lost) < least) least = sum_of(lost), scale = step;
  }
  Four lost{}, kept{};
  for (size_t k = 0; k < row.size(); k += 4) {
    const Four value = load(&row[k]), code = code_of(value, 1 / scale), q = scale * code, rest = value - q;
    lost += rest * rest;
    kept += q * q;
    store(code, &row[k]);
  }
  const auto at = static_cast<size_t>(r);
  scale_[at] = scale;
  kept_[at] = std::sqrt(sum_of(kept)) * kRowUp;
  lost_[at] = std::sqrt(sum_of(lost)) * kRowUp;
  lost_[at] += kOfRows * (lost_[at] + kept_[at]);
  uint8_t* to = codes_.as<uint8_t>() + r / kScreenRows * tile_bytes() + r % kScreenRows * 4;
  for (size_t k = 0; k < row.size(); k += kScreenColumns, to += 3 * kScreenPlane) {
    std::array<int32_t, kScreenColumns> codes;
    for (size_t j = 0; j < codes.size(); ++j) codes[j] = static_cast<int32_t>(row[k + j]) + kZeroCode;
    for (size_t j = 0; j < 3; ++j)
      for (size_t c = 0; c < 4; ++c)
        to[j * kScreenPlane + c] = static_cast<uint8_t>(codes[4 * j + c] | (codes[12 + c] >> 2 * j & 3) << 6);
  }
  return lost_[at] < std::numeric_limits<float>::infinity() ? std::sqrt(sum_of(squares)) : lost_[at];
}

bool Screen::choose_rows(const SampleRow& draw, Token& own) const {
  own.changed = changed_tokens(draw);
  std::erase_if(own.changed, [&](int32_t id) { return !mask_allows(draw.mask, id); });
  own.others.assign(draw.mask.begin(), draw.mask.end());
  if (own.others.empty() && !own.changed.empty()) own.others.assign(static_cast<size_t>(rows_ + 31) / 32, ~0u);
  for (const int32_t id : own.changed) own.others[static_cast<size_t>(id / 32)] &= ~(1u << id % 32);
  return std::ssize(own.changed) <= rows_ / kManyCandidates;
}

bool Screen::prepare(const Step& step, int t) {
  Token& own = tokens_[static_cast<size_t>(t)];
  if (!choose_rows(step.rows[static_cast<size_t>(t)], own)) return false;
  std::ranges::copy(step.x[t], own.v.begin());
  if (step.int8)
    for (int64_t k = 0; k < cols_; k += kMxBlock)
      round_block(std::span(own.v).subspan(static_cast<size_t>(k), kMxBlock));
  double squares = 0, normed = 0, common = 0, missed = 0;
  float most = 0;
  for (size_t k = 0; k < own.v.size(); ++k) {
    const float v = own.v[k], x = v * rms_[k];
    squares += double{v} * v;
    normed += double{x} * x;
    common += double{v} * mean_[k];
    most = std::max(most, std::abs(x));
  }
  const double length = std::sqrt(normed), product = std::sqrt(squares) * longest_;
  if (!(length < kMostProduct && product < kMostProduct)) return false;
  own.step = most > kLeast ? most / kMostSteps : 1.0f;
  std::ranges::fill(own.sums, 0);
  const auto tokens = static_cast<size_t>(step.x.count);
  for (size_t k = 0; k < own.v.size(); ++k) {
    const float x = own.v[k] * rms_[k];
    const auto steps =
        static_cast<int>(nearest(std::min(std::max(x / own.step, -kMostSteps * 1.0f), kMostSteps * 1.0f)));
    const double miss = x - double{own.step} * steps;
    missed += miss * miss;
    const int high = (steps + (1 << (kDigit - 1))) >> kDigit, low = steps - (high << kDigit);
    int8_t* const to = digits_.data() + (k / 4 * tokens + static_cast<size_t>(t)) * 8 + k % 4;
    to[0] = static_cast<int8_t>(high), to[4] = static_cast<int8_t>(low);
    own.sums[0] += high, own.sums[1] += low;
  }
  own.common = static_cast<float>(common);
  own.length = static_cast<float>(length) * kRowUp;
  own.missed = static_cast<float>(std::sqrt(missed)) * kRowUp + kOfRows * own.length;
  // Sums in any order, twice, with what the draw may round; and what leaves the floats below.
  own.rounding = static_cast<float>(product * static_cast<double>(cols_ + 64) * 0x1p-23) + kLeast;
  const SamplingParams& p = *step.rows[static_cast<size_t>(t)].params;
  own.temperature = p.temperature < kGreedyBelow ? 0.0f : p.temperature;
  return true;
}

// What a tile's rows may be at most, and the best of them by the copy.
void Screen::look(const Step& step, int64_t tile, std::span<TokenLogit> best) {
  const auto first = static_cast<size_t>(tile * kScreenRows), tiles = static_cast<size_t>(rows_ / kScreenRows);
  std::array<uint32_t, kScreenTokens> rows;  // of each token, a bit each
  uint32_t any = 0;
  for (size_t t = 0; t < best.size(); ++t) {
    const std::vector<uint32_t>& others = tokens_[t].others;
    rows[t] = others.empty() ? kAllLanes : others[first / 32] >> first % 32 & kAllLanes;
    any |= rows[t];
    most_[t * tiles + static_cast<size_t>(tile)] = kNone;
  }
  if (any == 0) return;  // nor are their codes read
  alignas(64) std::array<int32_t, 2 * kScreenTokens * kScreenRows> sums;
  kernels_.screen({.codes = codes_.as<uint8_t>() + tile * tile_bytes(),
                   .cols = cols_,
                   .x = digits_.data(),
                   .tokens = static_cast<int>(step.x.count),
                   .sums = sums.data()});
  for (size_t t = 0; t < best.size(); ++t) {
    const Token& own = tokens_[t];
    const SampleRow& draw = step.rows[t];
    float* const most = step.scratch + t * static_cast<size_t>(rows_) + first;
    const int32_t* const of = sums.data() + t * 2 * kLanes;
    Four tops = Four{} - std::numeric_limits<float>::infinity();
    for (size_t j = 0; j < kLanes; j += 4) {
      const FourInts high = load<FourInts>(of + j) - kZeroCode * own.sums[0];
      const FourInts low = load<FourInts>(of + kLanes + j) - kZeroCode * own.sums[1];
      const Four digits = __builtin_convertvector(high, Four) * (1 << kDigit) + __builtin_convertvector(low, Four);
      Four value = load(&scale_[first + j]) * (own.step * digits);
      if (own.temperature > 0) {
        const Philox4 words = philox(draw.params->seed, (first + j) / 4, static_cast<uint64_t>(draw.position));
        value += own.temperature * most_gumbel(load<FourInts>(words.data()));
      }
      if (rows[t] != kAllLanes)
        for (size_t i = 0; i < 4; ++i)
          if ((rows[t] >> (j + i) & 1) == 0) value[i] = kNone;
      if (top_of(value) > best[t].logit)
        for (size_t i = 0; i < 4; ++i)
          if (value[i] > best[t].logit) best[t] = {value[i], static_cast<int32_t>(first + j + i)};
      value += above_screened(own, load(&lost_[first + j]), load(&kept_[first + j]));
      store(value, most + j);
      tops = largest(tops, value);
    }
    most_[t * tiles + static_cast<size_t>(tile)] = top_of(tops);
  }
}

std::span<const int32_t> Screen::candidates(const Step& step) {
  if (resting_ > 0) {
    --resting_;
    return {};
  }
  const auto tokens = static_cast<size_t>(step.x.count), tiles = static_cast<size_t>(rows_ / kScreenRows);
  for (int t = 0; t < step.x.count; ++t)
    if (!prepare(step, t)) return {};
  std::ranges::fill(best_, TokenLogit{kNone, 0});
  pool_.parallel_ranges(static_cast<int64_t>(tiles), kTileChunk, [&](IndexRange range) {
    const auto best = std::span(best_).subspan(static_cast<size_t>(range.thread_idx) * kScreenTokens, tokens);
    for (int64_t tile = range.begin; tile < range.end; ++tile) look(step, tile, best);
  });
  for (size_t t = 0; t < tokens; ++t)
    if (!find_least(step, t)) return {};
  candidates_.clear();
  const auto reaches = [&](size_t t, float most) { return !(most < tokens_[t].least); };
  for (size_t tile = 0; tile < tiles; ++tile) {
    size_t t = 0;
    while (t < tokens && !reaches(t, most_[t * tiles + tile])) ++t;
    if (t == tokens) continue;
    for (size_t row = tile * kLanes; row < (tile + 1) * kLanes; ++row) {
      bool does = false;
      for (size_t i = t; i < tokens; ++i) does |= reaches(i, step.scratch[i * static_cast<size_t>(rows_) + row]);
      if (does) candidates_.push_back(static_cast<int32_t>(row));
    }
  }
  const auto found = std::ssize(candidates_);
  for (size_t t = 0; t < tokens; ++t)
    candidates_.insert(candidates_.end(), tokens_[t].changed.begin(), tokens_[t].changed.end());
  if (std::ssize(candidates_) > found) sort_unique(candidates_);
  for (size_t i = 0; i < candidates_.size(); ++i)
    counts_.tiles += i == 0 || candidates_[i] / kScreenRows != candidates_[i - 1] / kScreenRows;
  ++counts_.steps;
  if (std::ssize(candidates_) > rows_ / kManyCandidates) resting_ = kRestingSteps;
  return candidates_;
}

// From the exact product of the best row by the copy: so the gap to a candidate is one bound and not two.
bool Screen::find_least(const Step& step, size_t t) {
  TokenLogit best = best_[t];
  for (size_t i = t; i < best_.size(); i += kScreenTokens)
    if (best_[i].logit > best.logit) best = best_[i];
  Token& own = tokens_[t];
  if (best.logit == kNone) {  // only changed rows may win
    own.least = -kNone;
    return !own.changed.empty();
  }
  kernels_.decode(step.matrix.at(best.id, 1), row_.data());
  double product = 0;
  for (size_t k = 0; k < row_.size(); ++k) product += double{own.v[k]} * row_[k];
  const auto at = static_cast<size_t>(best.id);
  own.least = least_screened(own, static_cast<float>(product), lost_[at], kept_[at]);
  const SampleRow& draw = step.rows[t];
  if (own.temperature > 0)
    own.least +=
        own.temperature * gumbel(philox(draw.params->seed, at / 4, static_cast<uint64_t>(draw.position))[at % 4]);
  return true;
}

}  // namespace nibble::backend::cpu
