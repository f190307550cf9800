#pragma once
// Rows of weights, activations and int8 products for tests.

#include "backend/cpu/kernels.h"
#include "base/buffer.h"
#include "base/mx.h"
#include "base/random.h"
#include "base/testing/normal.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

namespace nibble::backend::cpu {

inline std::vector<float> random_floats(size_t n, uint64_t seed) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) {
    const Philox4 r = philox(seed, i);
    values[i] = normal_float(r[0], r[1]);
  }
  return values;
}

inline float f16_at(const uint8_t* p) {
  uint16_t bits = 0;
  std::memcpy(&bits, p, sizeof bits);
  return F16{bits}.to_float();
}

// Random rows in a format, and the values they stand for by the formats' definitions.
struct Sample {
  Sample(WeightFormat format_in, int64_t cols_in, int rows_in, uint64_t seed)
      : format(format_in), cols(cols_in), rows(rows_in), plain(random_floats(static_cast<size_t>(cols * rows), seed)) {
    const int64_t bytes = row_bytes(format, cols) * rows, blocks = cols / kMxBlock * rows;
    values.resize(static_cast<size_t>(bytes));
    if (has_scale_array(format)) scales.resize(static_cast<size_t>(blocks));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint8_t>(philox(seed + 1, i)[0]);
    const auto e8m0 = [&](int64_t b) {
      return static_cast<uint8_t>(118 + philox(seed + 2, static_cast<uint64_t>(b))[0] % 9);
    };
    for (int64_t b = 0; in_blocks(format) && b < blocks; ++b) {
      if (has_scale_array(format)) scales[static_cast<size_t>(b)] = e8m0(b);
      if (format == WeightFormat::kGgmlMxfp4) values[static_cast<size_t>(b * 17)] = e8m0(b);
      if (format == WeightFormat::kGgmlQ8) {
        const F16 scale = F16::from_float(0.01f * (1 + std::abs(plain[static_cast<size_t>(b)])));
        std::memcpy(values.data() + b * 34, &scale.bits, 2);
      }
    }
    for (size_t i = 0; i < plain.size(); ++i) set(i);
  }

  // Given values, rounded to the format.
  Sample(WeightFormat format_in, int64_t cols_in, int rows_in, uint64_t seed, std::vector<float> given)
      : Sample(format_in, cols_in, rows_in, seed) {
    if (format != WeightFormat::kGgmlQ8) {
      plain = std::move(given);
      for (size_t i = 0; i < plain.size(); ++i) set(i);
      return;
    }
    for (size_t b = 0; b < given.size() / kMxBlock; ++b) {
      float most = 0;
      for (size_t i = 0; i < kMxBlock; ++i) most = std::max(most, std::abs(given[b * kMxBlock + i]));
      const F16 scale = F16::from_float(most / 127);
      std::memcpy(values.data() + b * 34, &scale.bits, 2);
      for (size_t i = 0; i < kMxBlock; ++i) {
        const float code = most > 0 ? std::nearbyint(given[b * kMxBlock + i] * 127 / most) : 0;
        values[b * 34 + 2 + i] = static_cast<uint8_t>(static_cast<int8_t>(code));
        set(b * kMxBlock + i);
      }
    }
  }

  void set(size_t i) {
    const auto block = static_cast<int64_t>(i) / kMxBlock, at = static_cast<int64_t>(i) % kMxBlock;
    uint8_t* p = values.data();
    switch (format) {
      case WeightFormat::kBf16: {
        const Bf16 v = Bf16::from_float(plain[i]);
        std::memcpy(p + 2 * i, &v, 2);
        plain[i] = v.to_float();
        break;
      }
      case WeightFormat::kF16: {
        const F16 v = F16::from_float(plain[i]);
        std::memcpy(p + 2 * i, &v.bits, 2);
        plain[i] = v.to_float();
        break;
      }
      case WeightFormat::kF32: std::memcpy(p + 4 * i, &plain[i], 4); break;
      case WeightFormat::kMxfp4:
        plain[i] = mx_decode(MxFormat::kMxfp4, mx_element_code(MxFormat::kMxfp4, p + block * 16, static_cast<int>(at)),
                             E8m0{scales[static_cast<size_t>(block)]});
        break;
      case WeightFormat::kMxfp8:
        if ((p[i] & 0x7f) == 0x7f) p[i] = 0x12;  // NaN has its own test
        plain[i] = mx_decode(MxFormat::kMxfp8E4m3, p[i], E8m0{scales[static_cast<size_t>(block)]});
        break;
      case WeightFormat::kGgmlMxfp4: {
        const uint8_t byte = p[block * 17 + 1 + at % 16];
        plain[i] =
            mx_decode(MxFormat::kMxfp4, static_cast<uint8_t>(at < 16 ? byte & 15 : byte >> 4), E8m0{p[block * 17]});
        break;
      }
      case WeightFormat::kGgmlQ8:
        plain[i] = f16_at(p + block * 34) * static_cast<int8_t>(p[block * 34 + 2 + at]);
        break;
    }
  }

  [[nodiscard]] WeightRows view() const {
    return {.format = format,
            .values = values.data(),
            .scales = scales.empty() ? nullptr : scales.data(),
            .cols = cols,
            .rows = rows};
  }

  WeightFormat format;
  int64_t cols;
  int rows;
  std::vector<float> plain;  // [rows, cols]
  std::vector<uint8_t> values, scales;
};

// Memory of its own, so that a read past the end is seen, starting with NaN where a test says so.
struct Scratch {
  explicit Scratch(int64_t cols)
      : buffer(static_cast<size_t>(scratch_floats(cols)), std::numeric_limits<float>::quiet_NaN()) {}
  float* aligned() { return buffer.data(); }
  AlignedVector<float> buffer;
};

inline std::vector<std::vector<float>> inputs(int64_t cols, int tokens) {
  std::vector<std::vector<float>> x;
  for (int t = 0; t < tokens; ++t)
    x.push_back(random_floats(static_cast<size_t>(cols), 100 + static_cast<uint64_t>(t)));
  return x;
}

// What int8 activations mean: round(x / scale) to nearest, scale = max|x| / 127 per block.
inline std::vector<double> rounded(const std::vector<float>& x) {
  std::vector<double> out(x.size());
  for (size_t b = 0; b < x.size(); b += kMxBlock) {
    float most = 0;
    for (size_t i = b; i < b + kMxBlock; ++i) most = std::max(most, std::abs(x[i]));
    const float scale = most / 127.0f, inverse = most > 0 ? 127.0f / most : 0.0f;
    for (size_t i = b; i < b + kMxBlock; ++i) out[i] = double{std::nearbyint(x[i] * inverse)} * scale;
  }
  return out;
}

// In tiles of a form, or without as rows.
inline std::vector<float> multiply_int8(const Int8Kernels& kernels, const Sample& w,
                                        const std::vector<std::vector<float>>& x, const TokenTiles* tiles) {
  std::vector<AlignedVector<std::byte>> prepared;
  std::vector<const std::byte*> pointers;
  for (size_t t = 0; t < x.size(); t += tiles != nullptr ? kLaneTokens : 1) {
    prepared.emplace_back(static_cast<size_t>(tiles != nullptr ? tiles->size(w.cols) : kernels.row_size(w.cols)),
                          std::byte{0xff});
    if (tiles != nullptr) {
      std::vector<const float*> rows;
      for (size_t i = t; i < std::min(x.size(), t + kLaneTokens); ++i) rows.push_back(x[i].data());
      const int64_t blocks = w.cols / kMxBlock;
      for (const auto& [first, last] : {std::pair{blocks / 3, blocks}, {int64_t{0}, blocks / 3}}) {
        tiles->prepare({.format = w.format,
                        .x = rows,
                        .cols = w.cols,
                        .first = first,
                        .last = last,
                        .out = prepared.back().data()});
      }
    } else {
      kernels.prepare_row(w.format, x[t], static_cast<int64_t>(x.size()), prepared.back().data());
    }
    pointers.push_back(prepared.back().data());
  }
  Scratch scratch(w.cols);
  std::vector<float> out(x.size() * kTileRows, -777.0f);
  MultiplyPreparedArgs args{.w = w.view(),
                            .x = pointers,
                            .tokens = static_cast<int>(x.size()),
                            .out = out.data(),
                            .scratch = scratch.aligned()};
  (tiles != nullptr ? tiles->multiply : kernels.multiply_rows)(args);
  return out;
}

}  // namespace nibble::backend::cpu
