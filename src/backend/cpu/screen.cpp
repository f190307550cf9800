#include "backend/cpu/screen.h"

#include "base/mx.h"
#include "base/random.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

namespace nibble::backend::cpu {
namespace {

constexpr int kMostCode = 31, kZeroCode = 32;
constexpr int kDigit = 7, kMostSteps = 63 << kDigit;  // bits of the low digit; most X
constexpr int64_t kTileChunk = 4;                     // tiles that a thread takes at once
constexpr double kMostProduct = 1e30;                 // of |v||w|, or logits by a small temperature leave the floats

constexpr size_t kLanes = 16;  // sums side by side, of which compilers make vectors
static_assert(kLanes == kScreenRows && kLanes <= kMxBlock);
using Lanes = std::array<float, kLanes>;

float sum(const Lanes& lanes) {
  float all = 0;
  for (const float lane : lanes) all += lane;
  return all;
}

// To the nearest, below 2^22: without a call.
float nearest(float x) { return (x + 0x1.8p23f) - 0x1.8p23f; }

float code_of(float value, float inverse) {
  constexpr auto kMost = static_cast<float>(kMostCode);
  return nearest(std::min(std::max(value * inverse, -kMost), kMost));
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
float most_gumbel(uint32_t word) {
  const float odd = static_cast<float>(static_cast<int32_t>((0x1000000 - (word >> 9) * 2) - 1));  // (1 - u) 2^24
  const float log2 = static_cast<float>(std::bit_cast<int32_t>(odd)) * 0x1p-23f - 127;
  return (24 - log2) * 0.6931472f + 4 * kOfNoise;
}

}  // namespace

template <class Visit>
void Screen::each_lane(const Visit& visit) const {
  for (size_t k = 0; k < static_cast<size_t>(cols_); k += kLanes)
    for (size_t j = 0; j < kLanes; ++j) visit(j, k + j);
}

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
  // Of some rows: any mean and rms would do, the bounds hold for all.
  constexpr int64_t kSampled = 1024;
  std::vector<double> sums(cols), squares(cols);
  const int64_t every = (rows_ + kSampled - 1) / kSampled, count = (rows_ + every - 1) / every;
  for (int64_t r = 0; r < rows_; r += every) {
    kernels.decode(matrix.at(r, 1), row_.data());
    for (size_t k = 0; k < cols; ++k) sums[k] += row_[k], squares[k] += double{row_[k]} * row_[k];
  }
  for (size_t k = 0; k < cols; ++k) {
    const double mean = sums[k] / static_cast<double>(count);
    const double rms = std::sqrt(std::max(squares[k] / static_cast<double>(count) - mean * mean, 0.0));
    const bool serves = rms > 1e-20 && rms < 1e20 && std::abs(mean) < 1e20;
    mean_[k] = serves ? static_cast<float>(mean) : 0.0f;
    rms_[k] = serves ? static_cast<float>(rms) : 1.0f;
    inverse_[k] = 1 / rms_[k];
  }
  std::vector<double> longest(static_cast<size_t>(pool.threads()));
  pool.parallel_chunks(rows_ / kScreenRows, kTileChunk, [&](IndexRange range) {
    std::vector<float> own(cols);
    double& most = longest[static_cast<size_t>(range.thread_idx)];
    for (int64_t r = range.begin * kScreenRows; r < range.end * kScreenRows; ++r) {
      kernels.decode(matrix.at(r, 1), own.data());
      const double length = copy_row(r, own);
      most = std::isfinite(length) ? std::max(most, length) : std::numeric_limits<double>::infinity();
    }
  });
  longest_ = *std::ranges::max_element(longest);
}

double Screen::copy_row(int64_t r, std::span<float> row) {
  double squares = 0;
  for (const float w : row) squares += double{w} * w;
  Lanes sums{}, tops{};
  each_lane([&](size_t j, size_t k) {
    const float value = row[k] = (row[k] - mean_[k]) * inverse_[k];
    sums[j] += value * value;
    tops[j] = std::max(tops[j], std::abs(value));
  });
  const float top = *std::ranges::max_element(tops), rms = std::sqrt(sum(sums) / static_cast<float>(cols_));
  // Of three scales the one that loses the least: of the largest value, or of so many rms, beyond which values lose
  // more and all others less.
  float least = std::numeric_limits<float>::infinity(), scale = 1;
  for (const float reach : {top, 4.5f * rms, 3.3f * rms}) {
    if (!(reach > 0 && reach <= top)) continue;
    const float step = reach / kMostCode, inverse = kMostCode / reach;
    Lanes lost{};
    each_lane([&](size_t j, size_t k) {
      const float rest = row[k] - step * code_of(row[k], inverse);
      lost[j] += rest * rest;
    });
    if (sum(lost) < least) least = sum(lost), scale = step;
  }
  Lanes lost{}, kept{};
  const float inverse = 1 / scale;
  each_lane([&](size_t j, size_t k) {
    const float code = code_of(row[k], inverse), rest = row[k] - scale * code;
    lost[j] += rest * rest;
    kept[j] += scale * code * (scale * code);
    row[k] = code;
  });
  const auto at = static_cast<size_t>(r);
  scale_[at] = scale;
  lost_[at] = std::sqrt(sum(lost)) * kRowUp;
  kept_[at] = std::sqrt(sum(kept)) * kRowUp;
  lost_[at] += kOfRows * (lost_[at] + kept_[at]);
  uint8_t* to = codes_.as<uint8_t>() + r / kScreenRows * tile_bytes() + r % kScreenRows * 4;
  const auto code = [&](int64_t k) { return static_cast<int>(row[static_cast<size_t>(k)]) + kZeroCode; };
  for (int64_t k = 0; k < cols_; k += kScreenColumns, to += 3 * kScreenPlane)
    for (int j = 0; j < 3; ++j)
      for (int c = 0; c < 4; ++c)
        to[j * kScreenPlane + c] = static_cast<uint8_t>(code(k + 4 * j + c) | (code(k + 12 + c) >> 2 * j & 3) << 6);
  return std::sqrt(squares);
}

bool Screen::prepare(const Step& step, int t) {
  Token& own = tokens_[static_cast<size_t>(t)];
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
  own.step = most > 0 ? most / kMostSteps : 1.0f;
  std::ranges::fill(own.sums, 0);
  const auto tokens = static_cast<size_t>(step.x.count);
  for (size_t k = 0; k < own.v.size(); ++k) {
    const float x = own.v[k] * rms_[k];
    const auto steps = static_cast<int>(nearest(std::min(std::max(x / own.step, -kMostSteps * 1.0f), kMostSteps * 1.0f)));
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
  // Sums in any order, twice, with what the draw may round.
  own.rounding = static_cast<float>(product * static_cast<double>(cols_ + 64) * 0x1p-23);
  const SamplingParams& p = *step.rows[static_cast<size_t>(t)].params;
  own.temperature = p.temperature < kGreedyBelow ? 0.0f : p.temperature;
  return true;
}

// The values of a tile's rows by the copy, what they may be at most, and the best of them.
void Screen::look(const Step& step, int64_t tile, std::span<Best> best) {
  const auto first = static_cast<size_t>(tile * kScreenRows);
  alignas(64) std::array<int32_t, 2 * kScreenTokens * kScreenRows> sums;
  kernels_.screen({.codes = codes_.as<uint8_t>() + tile * tile_bytes(),
                   .cols = cols_,
                   .x = digits_.data(),
                   .tokens = static_cast<int>(step.x.count),
                   .sums = sums.data()});
  for (size_t t = 0; t < best.size(); ++t) {
    const Token& own = tokens_[t];
    const SampleRow& draw = step.rows[t];
    std::array<uint32_t, kScreenRows> words{};
    Lanes noise{}, values;
    for (size_t j = 0; own.temperature > 0 && j < kLanes; j += 4) {
      const Philox4 four = philox(draw.params->seed, (first + j) / 4, static_cast<uint64_t>(draw.position));
      std::ranges::copy(four, words.begin() + static_cast<int64_t>(j));
    }
    if (own.temperature > 0)
      for (size_t j = 0; j < kLanes; ++j) noise[j] = own.temperature * most_gumbel(words[j]);
    float* const most = step.scratch + t * static_cast<size_t>(rows_) + first;
    const int32_t* const of = sums.data() + t * 2 * kLanes;
    bool any = false;
    for (size_t j = 0; j < kLanes; ++j) {
      const auto high = static_cast<float>(of[j] - kZeroCode * own.sums[0]);
      const auto low = static_cast<float>(of[kLanes + j] - kZeroCode * own.sums[1]);
      values[j] = scale_[first + j] * own.step * (high * (1 << kDigit) + low);
      most[j] = values[j] + noise[j] + above_screened(own, lost_[first + j], kept_[first + j]);
      any |= values[j] + noise[j] > best[t].value;
    }
    float& top = most_[t * static_cast<size_t>(rows_ / kScreenRows) + static_cast<size_t>(tile)];
    top = -std::numeric_limits<float>::infinity();
    for (size_t j = 0; j < kLanes; ++j)
      if (!(most[j] <= top)) top = most[j];
    for (size_t j = 0; any && j < kLanes; ++j) {
      if (values[j] + noise[j] <= best[t].value) continue;
      const float value = own.temperature > 0 ? values[j] + own.temperature * gumbel(words[j]) : values[j];
      if (value > best[t].value) best[t] = {value, static_cast<int32_t>(first + j)};
    }
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
  std::ranges::fill(best_, Best{-std::numeric_limits<float>::infinity(), 0});
  pool_.parallel_ranges(static_cast<int64_t>(tiles), kTileChunk, [&](IndexRange range) {
    const auto best = std::span(best_).subspan(static_cast<size_t>(range.thread_idx) * kScreenTokens, tokens);
    for (int64_t tile = range.begin; tile < range.end; ++tile) look(step, tile, best);
  });
  for (size_t t = 0; t < tokens; ++t) find_least(step, t);
  candidates_.clear();
  const auto reaches = [&](size_t t, float most) { return !(most < tokens_[t].least); };
  for (size_t tile = 0; tile < tiles; ++tile) {
    size_t t = 0;
    while (t < tokens && !reaches(t, most_[t * tiles + tile])) ++t;
    if (t == tokens) continue;
    ++counts_.tiles;
    for (size_t row = tile * kLanes; row < (tile + 1) * kLanes; ++row) {
      bool does = false;
      for (size_t i = t; i < tokens; ++i) does |= reaches(i, step.scratch[i * static_cast<size_t>(rows_) + row]);
      if (does) candidates_.push_back(static_cast<int32_t>(row));
    }
  }
  ++counts_.steps;
  if (std::ssize(candidates_) > rows_ / kManyCandidates) resting_ = kRestingSteps;
  return candidates_;
}

// From the exact product of the best row by the copy: so the gap to a candidate is one bound and not two.
void Screen::find_least(const Step& step, size_t t) {
  Best best = best_[t];
  for (size_t i = t; i < best_.size(); i += kScreenTokens)
    if (best_[i].value > best.value || (best_[i].value == best.value && best_[i].row < best.row)) best = best_[i];
  Token& own = tokens_[t];
  kernels_.decode(step.matrix.at(best.row, 1), row_.data());
  double product = 0;
  for (size_t k = 0; k < row_.size(); ++k) product += double{own.v[k]} * row_[k];
  const auto at = static_cast<size_t>(best.row);
  own.least = least_screened(own, static_cast<float>(product), lost_[at], kept_[at]);
  const SampleRow& draw = step.rows[t];
  if (own.temperature > 0)
    own.least += own.temperature * gumbel(philox(draw.params->seed, at / 4, static_cast<uint64_t>(draw.position))[at % 4]);
}

}  // namespace nibble::backend::cpu
