#pragma once
// What the emulated tests of the decode kernels share: random matrices as shipped and packed, exact products, a launch.

#include "backend/cuda/emulation/device.h"

#include "backend/cuda/dense/gemv.cuh"
#include "backend/cuda/quantise/pack.cuh"
#include "backend/cuda/testing/q8.h"
#include "base/mx.h"
#include "base/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

namespace nibble::backend::cuda {

using layout::Packing;
using layout::RowOrder;

inline constexpr PlanDevice kDevice{.sms = 3, .cta_smem_bytes = 232448, .sm_smem_bytes = 233472};
inline const float kNan = std::nanf("");
inline constexpr double kSumError = 0x1p-21;  // of Σ|w||x|; the emulated mma rounds once per 16 products

inline uint32_t draw(uint64_t seed, uint64_t n) { return philox(seed, n)[0]; }
inline float symmetric(uint64_t seed, uint64_t n) { return 2 * uniform_float(draw(seed, n)) - 1; }

struct ScaleRange {
  int low = 115, high = 125;
};

// One matrix as shipped and packed.
struct Matrix {
  Packing packing;
  int64_t rows, cols;
  std::vector<uint8_t> values, scales;
  std::vector<uint8_t> packed;

  Matrix(Packing format, int64_t row_count, int64_t col_count, RowOrder order, uint64_t seed, ScaleRange range = {})
      : packing(format), rows(row_count), cols(col_count) {
    const auto blocks = static_cast<size_t>(rows * cols / 32);
    values.resize(blocks * (packing == Packing::kBf16 ? 64 : packing == Packing::kMxfp8 ? 32 : 16));
    if (packing == Packing::kQ8) {
      values = random_q8_blocks(rows * cols / 32, seed, range.low - 127, range.high - 127);
    } else if (packing == Packing::kBf16) {
      for (size_t i = 0; i < values.size() / 2; ++i) {
        const Bf16 value = Bf16::from_float(symmetric(seed, i));
        values[2 * i] = static_cast<uint8_t>(value.bits);
        values[2 * i + 1] = static_cast<uint8_t>(value.bits >> 8);
      }
    } else {
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<uint8_t>(draw(seed, i));
        if (packing == Packing::kMxfp8 && E4m3{values[i]}.is_nan()) values[i] ^= 1;
      }
      const auto many = static_cast<uint32_t>(range.high - range.low + 1);
      for (size_t i = 0; i < blocks; ++i)
        scales.push_back(static_cast<uint8_t>(static_cast<uint32_t>(range.low) + draw(seed + 1, i) % many));
    }
    pack(order);
  }

  void pack(RowOrder order) {
    packed.assign(static_cast<size_t>(layout::packed_bytes(packing, rows, cols)) + 16, 0xee);
    const PackArgs args{.packing = packing,
                        .values = values.data(),
                        .scales = scales.data(),
                        .packed = packed.data(),
                        .rows = rows,
                        .cols = cols,
                        .order = order};
    const layout::Geometry g = layout::geometry(packing, cols);
    for (int64_t i = 0; packing == Packing::kBf16 && i < rows * cols / 8; ++i) pack_bf16_piece(args, g, i);
    const bool bytes = packing == Packing::kMxfp8 || packing == Packing::kQ8;
    for (int64_t i = 0; bytes && i < rows * cols / 16; ++i) pack_bytes_piece(args, g, i);
    for (int64_t i = 0; packing == Packing::kMxfp4 && i < rows * cols / 32; ++i) pack_mxfp4_piece(args, g, i);
    for (int64_t i = 0; packing != Packing::kBf16 && i < rows * cols / 32; ++i)
      EXPECT_FALSE(bad_scale(packing, pack_scale(args, g, i)));
    EXPECT_TRUE(std::all_of(packed.end() - 16, packed.end(), [](uint8_t b) { return b == 0xee; }));
  }
  [[nodiscard]] double at(int64_t row, int64_t col) const {
    const auto i = static_cast<size_t>(row * cols + col);
    if (packing == Packing::kQ8) return q8_value(values, row * cols + col);
    if (packing == Packing::kBf16)
      return Bf16{static_cast<uint16_t>(values[2 * i] | values[2 * i + 1] << 8)}.to_float();
    const double scale = std::ldexp(1.0, scales[i / 32] - 127);
    if (packing == Packing::kMxfp8) return E4m3{values[i]}.to_float() * scale;
    return E2m1{mx_element_code(MxFormat::kMxfp4, values.data() + i / 32 * 16, static_cast<int>(col % 32))}.to_float() *
           scale;
  }
  // {w · x, Σ |w||x|}, x rounded as the kernel rounds it
  template <class X>
  [[nodiscard]] std::pair<double, double> dot(int64_t row, const X* x) const {
    double sum = 0, size = 0;
    for (int64_t k = 0; k < cols; ++k) {
      double value = 0;
      if constexpr (std::is_same_v<X, float>)
        value = packing == Packing::kBf16 ? double{x[k]} : double{F16::from_float(x[k]).to_float()};
      else
        value = x[k].to_float();
      const double term = at(row, k) * value;
      sum += term;
      size += std::abs(term);
    }
    return {sum, size};
  }
  // Two bf16 lose 2^-17 of an activation.
  [[nodiscard]] double error() const { return packing == Packing::kBf16 ? 0x1p-16 : kSumError; }
};

inline std::vector<float> random_floats(size_t count, uint64_t seed, float size = 4) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = size * symmetric(seed, i);
  return values;
}

inline std::vector<F16> random_f16(size_t count, uint64_t seed) {
  std::vector<F16> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = F16::from_float(4 * symmetric(seed, i));
  return values;
}

inline std::vector<Bf16> random_bf16(size_t count, uint64_t seed) {
  std::vector<Bf16> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = Bf16::from_float(symmetric(seed, i));
  return values;
}

template <class Tile, class Op>
void run_kernel(const typename Op::Args& args, const GemvPlan& plan, emulation::Launch launch) {
  const auto kernel_args = gemv_kernel_args(args, plan);
  launch.grid = static_cast<int>(plan.grid);
  launch.threads = plan.threads;
  ASSERT_EQ(emulation::run(launch, [&] { gemv<Tile, Op>(kernel_args); }), "");
}

template <Packing kPacking, Columns kColumns, class Op>
void run_op(const typename Op::Args& args, const GemvPlan& plan, const emulation::Launch& launch) {
  check_args(args);
  if constexpr (kPacking == Packing::kMxfp4 && kColumns == Columns::kVectors && Op::kChooses)
    if (plan.geometry.missing > 0) return run_kernel<GemvTile<kPacking, 6, kColumns, true>, Op>(args, plan, launch);
  if (plan.geometry.blocks == 6)
    run_kernel<GemvTile<kPacking, 6, kColumns>, Op>(args, plan, launch);
  else
    run_kernel<GemvTile<kPacking, 8, kColumns>, Op>(args, plan, launch);
}

template <template <int> class Op>
void run_rows(const typename Op<1>::Args& args, const GemvPlan& plan, const emulation::Launch& launch) {
  switch (args.packing) {
    case Packing::kBf16: return run_op<Packing::kBf16, Columns::kVectors, Op<2>>(args, plan, launch);
    case Packing::kMxfp8: return run_op<Packing::kMxfp8, Columns::kVectors, Op<2>>(args, plan, launch);
    case Packing::kQ8: return run_op<Packing::kQ8, Columns::kVectors, Op<2>>(args, plan, launch);
    case Packing::kMxfp4: break;
  }
  if (args.tokens == 1) return run_op<Packing::kMxfp4, Columns::kBlocks, Op<1>>(args, plan, launch);
  run_op<Packing::kMxfp4, Columns::kVectors, Op<2>>(args, plan, launch);
}

// The residual gets the parts of its delta and is normed.
struct NormedRows {
  std::vector<float> residual, delta[2], sum, normed;
  std::vector<Bf16> norm;
  static constexpr float kEps = 1e-5f;

  NormedRows(int rows, int64_t cols, int parts) {
    const auto count = static_cast<size_t>(rows * cols);
    residual = random_floats(count, 30, 300);
    sum = residual;
    for (int part = 0; part < parts; ++part) {
      delta[part] = random_floats(count, 31 + 10 * static_cast<uint64_t>(part), 50);
      for (size_t i = 0; i < count; ++i) sum[i] += delta[part][i];
    }
    norm = random_bf16(static_cast<size_t>(cols), 32);
    normed.resize(count);
    for (int t = 0; t < rows; ++t) {
      double squares = 0;
      std::vector<float> x(static_cast<size_t>(cols));
      for (int64_t k = 0; k < cols; ++k) {
        const auto i = static_cast<size_t>(t * cols + k);
        x[static_cast<size_t>(k)] = sum[i];
        squares += std::pow(double{x[static_cast<size_t>(k)]}, 2);
      }
      const double inverse = 1 / std::sqrt(squares / static_cast<double>(cols) + double{kEps});
      for (int64_t k = 0; k < cols; ++k)
        normed[static_cast<size_t>(t * cols + k)] =
            static_cast<float>(x[static_cast<size_t>(k)] * inverse * norm[static_cast<size_t>(k)].to_float());
    }
  }
};

}  // namespace nibble::backend::cuda
