#pragma once
// What the tests of the kernels for many tokens share: random matrices packed as layout/packed.h says, routings, and
// plain double products. No CUDA.

#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/layout/mx_b_n8k64.h"
#include "backend/cuda/layout/wgmma_b.h"
#include "base/dtype.h"
#include "base/mx.h"
#include "base/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace nibble::backend::cuda {

inline uint32_t gemm_draw(uint64_t seed, uint64_t n) { return philox(seed, n)[0]; }
inline float gemm_symmetric(uint64_t seed, uint64_t n) { return 2 * uniform_float(gemm_draw(seed, n)) - 1; }

// The f32 sums' error, of Σ|w||x|; the last term of a sum is a few thousand times as large.
inline constexpr double kGemmError = 0x1p-20;

struct GemmSum {
  double value = 0, size = 0;  // Σ w x, Σ |w||x|
};

inline float value_16(uint16_t bits, bool bf16) { return bf16 ? Bf16{bits}.to_float() : F16{bits}.to_float(); }

// Bf16 bits, element codes or bytes of Q8_0 by row and column, with a scale per 32 columns.
struct GemmMatrix {
  layout::Packing packing;
  int64_t rows, cols;
  std::vector<uint16_t> elements;
  std::vector<uint8_t> scales, packed;

  struct Scales {
    uint32_t lowest = 115, count = 11;  // codes
  };
  GemmMatrix(layout::Packing the_packing, int64_t row_count, int64_t col_count, layout::RowOrder order, uint64_t seed,
             const Scales& range = {115, 11})
      : packing(the_packing), rows(row_count), cols(col_count) {
    for (uint64_t i = 0; i < static_cast<uint64_t>(rows * cols); ++i) elements.push_back(element(seed, i));
    for (uint64_t i = 0; i < static_cast<uint64_t>(rows * cols / 32); ++i)
      scales.push_back(static_cast<uint8_t>(range.lowest + gemm_draw(seed + 1, i) % range.count));
    pack(order);
  }

  [[nodiscard]] uint16_t element(uint64_t seed, uint64_t i) const {
    if (packing == layout::Packing::kBf16) return Bf16::from_float(gemm_symmetric(seed, i)).bits;
    const uint32_t bits = gemm_draw(seed, i);
    if (packing == layout::Packing::kMxfp4) return static_cast<uint16_t>(bits & 15u);
    if (packing == layout::Packing::kQ8) return static_cast<uint16_t>(bits & 255u);  // a value and layout::kQ8Zero
    return E4m3::from_float(gemm_symmetric(seed, i) * 8).bits;
  }
  [[nodiscard]] double at(int64_t row, int64_t col) const {
    const auto i = static_cast<size_t>(row * cols + col);
    if (packing == layout::Packing::kBf16) return Bf16{elements[i]}.to_float();
    if (packing == layout::Packing::kQ8)  // as any_gemm rounds it
      return Bf16::from_float(q8_scale(i / 32).to_float() * static_cast<float>(elements[i] - layout::kQ8Zero))
          .to_float();
    const double scale = std::ldexp(1.0, scales[i / 32] - 127);
    const auto code = static_cast<uint8_t>(elements[i]);
    return scale * (packing == layout::Packing::kMxfp4 ? E2m1{code}.to_float() : E4m3{code}.to_float());
  }
  [[nodiscard]] F16 q8_scale(size_t block) const {
    return F16::from_float(std::ldexp(1 + uniform_float(gemm_draw(77, block)), scales[block] - 127));
  }
  [[nodiscard]] GemmSum dot(int64_t row, const uint16_t* x, bool bf16) const {
    GemmSum sum;
    for (int64_t k = 0; k < cols; ++k) {
      const double value = value_16(x[k], bf16);
      sum.value += at(row, k) * value;
      sum.size += std::abs(at(row, k) * value);
    }
    return sum;
  }

  // Straight from the layout's words: element by element.
  void pack(layout::RowOrder order) {
    const layout::Geometry g = layout::geometry(packing, cols);
    packed.assign(static_cast<size_t>(layout::packed_bytes(packing, rows, cols)), 0);
    for (int64_t tile = 0; tile < rows / layout::kTileRows; ++tile)
      for (int pair = 0; pair < cols / 64; ++pair) {
        uint8_t* to = packed.data() + layout::block_pair_offset(packing, g, tile, pair);
        const int own = layout::block_pair_in_slice(g, pair);
        for (int lane = 0; lane < layout::kWarpLanes; ++lane)
          for (int step = 0; step < 4; ++step) pack_step(to, {order, tile, pair, own}, lane, step);
        for (int row = 0; row < layout::kTileRows && packing != layout::Packing::kBf16; ++row)
          for (int block = 0; block < 2; ++block) {
            const uint8_t scale =
                scales[static_cast<size_t>((layout::source_row(order, tile, row) * cols) / 32 + 2 * pair + block)];
            if (packing == layout::Packing::kMxfp8) to[layout::mxfp8_scale_offset(row, block)] = scale;
            if (packing == layout::Packing::kQ8) {
              const F16 own_scale =
                  q8_scale(static_cast<size_t>(layout::source_row(order, tile, row) * cols / 32 + 2 * pair + block));
              std::memcpy(to + layout::q8_scale_offset(row, block), &own_scale.bits, 2);
            }
            if (packing == layout::Packing::kMxfp4)
              to[layout::scale_offset(g.blocks, row, 2 * own + block)] =
                  static_cast<uint8_t>(scale + layout::kScaleBias);
          }
      }
  }

 private:
  struct Place {
    layout::RowOrder order;
    int64_t tile;
    int pair, own;
  };
  void pack_step(uint8_t* to, const Place& p, int lane, int step) const {
    layout::E2m1Pairs halves{};
    for (int reg = 0; reg < 4; ++reg)
      for (int half = 0; half < 2; ++half) {
        const layout::BlockPairElement e = layout::block_pair_element(lane, step, reg, half);
        const uint16_t value =
            elements[static_cast<size_t>(layout::source_row(p.order, p.tile, e.row) * cols + p.pair * 64 + e.k)];
        if (packing == layout::Packing::kBf16)
          std::memcpy(to + step * layout::kStepBytes + lane * 16 + reg * 4 + half * 2, &value, 2);
        if (packing == layout::Packing::kMxfp8 || packing == layout::Packing::kQ8)
          to[step / 2 * layout::kStepBytes + lane * 16 + step % 2 * 8 + reg * 2 + half] = static_cast<uint8_t>(value);
        halves.pair[reg] |= layout::half_of_code(value & 15u) << (16 * half);
      }
    if (packing != layout::Packing::kMxfp4) return;
    const uint32_t word = layout::word_of_pairs(halves);
    std::memcpy(to + layout::code_offset(p.own, lane) + step * 4, &word, 4);
  }
};

// One MXFP4 matrix per expert.
struct GemmExperts {
  std::vector<GemmMatrix> matrices;
  std::vector<uint8_t> packed;
  GemmExperts(int experts, int rows, int cols, layout::RowOrder order, uint64_t seed,
              const GemmMatrix::Scales& scales = {115, 11}) {
    for (int e = 0; e < experts; ++e) {
      matrices.emplace_back(layout::Packing::kMxfp4, rows, cols, order, seed + 100 * static_cast<uint64_t>(e), scales);
      packed.insert(packed.end(), matrices.back().packed.begin(), matrices.back().packed.end());
    }
  }
};

inline std::vector<uint16_t> random_16(bool bf16, int64_t count, uint64_t seed) {
  std::vector<uint16_t> values;
  for (uint64_t i = 0; i < static_cast<uint64_t>(count); ++i) {
    const float value = 4 * gemm_symmetric(seed, i);
    values.push_back(bf16 ? Bf16::from_float(value).bits : F16::from_float(value).bits);
  }
  return values;
}

// A matrix in panels, as wgmma wants activations: row r is source(r) of x, or nothing (NaN) where that is negative.
template <class Source>
std::vector<uint16_t> in_panels(const std::vector<uint16_t>& x, int64_t cols, int64_t rows, const Source& source) {
  std::vector<uint16_t> panels(static_cast<size_t>(rows * cols), 0xffff);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t k = 0; k < cols && source(row) >= 0; ++k)
      panels[static_cast<size_t>(layout::place_in_panels(rows, row, k))] =
          x[static_cast<size_t>(source(row) * cols + k)];
  return panels;
}
inline int64_t panel_rows(int64_t tokens) {
  return (tokens + layout::kAtomRows - 1) / layout::kAtomRows * layout::kAtomRows;
}
// Panels of `tokens` rows, one after the other.
inline std::vector<uint16_t> in_panels(const std::vector<uint16_t>& x, int64_t cols, int64_t tokens) {
  return in_panels(x, cols, panel_rows(tokens), [&](int64_t row) { return row < tokens ? row : -1; });
}
// Row-major again: row r is row places[r] of `rows` rows.
inline std::vector<uint16_t> from_panels(const std::vector<uint16_t>& panels, int64_t cols, int64_t rows,
                                         const std::vector<int32_t>& places) {
  std::vector<uint16_t> x;
  for (const int32_t place : places)
    for (int64_t k = 0; k < cols; ++k)
      x.push_back(panels[static_cast<size_t>(layout::place_in_panels(rows, place, k))]);
  return x;
}

// [rows, cols] in blocks, rounded as the backends round; what is padding has all bits set.
inline std::vector<uint8_t> to_mx_rows(const std::vector<float>& values, int cols, InputType type = InputType::kMxfp8) {
  const ActivationType::Blocks format = *type_of(activations_of(type)).blocks;
  const MxFormat element = format.element;
  const auto row_bytes = static_cast<size_t>(layout::mx_row_bytes(element, cols));
  std::vector<uint8_t> rows(values.size() / static_cast<size_t>(cols) * row_bytes, 0xff);
  std::vector<uint8_t> codes(kMxBlock), scale(1);
  for (size_t i = 0; i < values.size(); ++i) {
    const auto k = static_cast<int>(i % static_cast<size_t>(cols));
    uint8_t* const own = rows.data() + i / static_cast<size_t>(cols) * row_bytes;
    if (k % kMxBlock == 0) {
      codes.assign(static_cast<size_t>(mx_block_bytes(element)), 0);
      mx_quantize(std::span(values).subspan(i, kMxBlock), format.rule, {element, codes, scale});
      own[layout::mx_scale_offset(element, cols, k / kMxBlock)] = scale[0];
    }
    uint8_t& byte = own[layout::mx_code_offset(element, k)];
    const int shift = layout::mx_code_shift(element, k), mask = layout::mx_code_bits(element) == 4 ? 15 : 255;
    byte =
        static_cast<uint8_t>((byte & ~(mask << shift)) | mx_element_code(element, codes.data(), k % kMxBlock) << shift);
  }
  return rows;
}
// The code of k in a row.
inline uint8_t mx_row_code(const uint8_t* row, MxFormat element, int k) {
  const int mask = layout::mx_code_bits(element) == 4 ? 15 : 255;
  return static_cast<uint8_t>(row[layout::mx_code_offset(element, k)] >> layout::mx_code_shift(element, k) & mask);
}
inline std::vector<float> from_mx_rows(const std::vector<uint8_t>& rows, int cols, InputType type = InputType::kMxfp8) {
  const MxFormat element = element_of(type);
  const auto row_bytes = static_cast<size_t>(layout::mx_row_bytes(element, cols));
  std::vector<float> values;
  for (size_t row = 0; row < rows.size() / row_bytes; ++row)
    for (int k = 0; k < cols; ++k) {
      const uint8_t* own = rows.data() + row * row_bytes;
      values.push_back(mx_decode(element, mx_row_code(own, element, k),
                                 {own[layout::mx_scale_offset(element, cols, k / kMxBlock)]}));
    }
  return values;
}

// Round::Args in codes of MXFP8, and in the values of them as f16.
template <template <class> class Memory, class Run>
void check_rounds_mxfp8(int tokens, int cols, const Run& run) {
  SCOPED_TRACE(testing::Message() << tokens << " tokens, " << cols << " columns");
  std::vector<float> values;
  for (int64_t i = 0; i < int64_t{tokens} * cols; ++i)
    values.push_back(gemm_symmetric(31, static_cast<uint64_t>(i)) * (i / kMxBlock % 5 == 1 ? 0x1p-6f : 9.0f));
  const Memory<float> from(values);
  const std::vector<uint8_t> rows = to_mx_rows(values, cols);
  std::vector<uint16_t> want(rows.size() / 2);
  std::memcpy(want.data(), rows.data(), rows.size());
  const Memory<uint16_t> codes(want.size());
  run(Round::Args{.from = from.get(), .to = {codes.get(), InputType::kMxfp8}, .tokens = tokens, .cols = cols});
  ASSERT_EQ(codes.host(), want);
}

inline std::vector<Bf16> gemm_bias(int count, uint64_t seed) {
  std::vector<Bf16> values;
  for (int i = 0; i < count; ++i) values.push_back(Bf16::from_float(gemm_symmetric(seed, static_cast<uint64_t>(i))));
  return values;
}

// kSameForAll: one expert takes a pair of every token, others have none.
enum class GemmRouting { kRandom, kSameForAll };
inline std::vector<int32_t> routed(GemmRouting routing, int tokens, int topk, int experts, uint64_t seed) {
  std::vector<int32_t> ids;
  for (int t = 0; t < tokens; ++t) {
    const auto from =
        static_cast<uint32_t>(routing == GemmRouting::kSameForAll ? 1 : gemm_draw(seed, static_cast<uint64_t>(t)));
    for (uint32_t k = 0; k < static_cast<uint32_t>(topk); ++k)
      ids.push_back(static_cast<int32_t>((from + k) % static_cast<uint32_t>(experts)));
  }
  return ids;
}

// Lists as the device's: places one expert after the other, tiles by falling size; pairs beyond the last place
// are -2. ids: the experts' own numbers, -1 of another rank's.
inline std::vector<int32_t> own_numbers(std::vector<int32_t> ids, const OwnExperts& own) {
  for (int32_t& id : ids) id = own.number_of(id);
  return ids;
}
struct PlainGroups {
  std::vector<int32_t> pairs, places;
  std::vector<ExpertTile> tiles;
  std::vector<int32_t> tile_counts = std::vector<int32_t>(kTileCounts);
};
inline PlainGroups plain_groups(const std::vector<int32_t>& ids, int experts, int tile_tokens) {
  PlainGroups groups;
  groups.places.resize(ids.size(), -1);
  for (int e = 0; e < experts; ++e) {
    const auto first = static_cast<int>(groups.pairs.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] != e) continue;
      groups.places[i] = static_cast<int32_t>(groups.pairs.size());
      groups.pairs.push_back(static_cast<int32_t>(i));
    }
    const int count = static_cast<int>(groups.pairs.size()) - first;
    while (groups.pairs.size() % kGroupAlign != 0) groups.pairs.push_back(-1);
    for (int from = 0; from < count; from += even_tile(count, tile_tokens))
      groups.tiles.push_back({e, first + from, std::min(even_tile(count, tile_tokens), count - from)});
  }
  const auto size_of = [&](const ExpertTile& tile) {  // of its expert's first tile
    return even_tile(static_cast<int>(std::count(ids.begin(), ids.end(), tile.expert)), tile_tokens);
  };
  std::stable_sort(groups.tiles.begin(), groups.tiles.end(),
                   [&](const ExpertTile& a, const ExpertTile& b) { return size_of(a) > size_of(b); });
  for (const ExpertTile& tile : groups.tiles)
    for (int i = 0; i < kTileCounts && size_of(tile) > 8 * i; ++i) ++groups.tile_counts[static_cast<size_t>(i)];
  groups.pairs.resize(static_cast<size_t>(max_places(static_cast<int64_t>(ids.size()), experts)), -2);
  return groups;
}

// A row of activations.
struct GemmRow {
  const uint16_t* x;
  bool bf16;
};

// swiglu of rows 2c and 2c + 1 and how far a 16-bit result may lie from it.
struct GatedWant {
  double value = 0, bound = 0;
};
inline GatedWant gated_want(const GemmSum& gate_sum, const GemmSum& up_sum, const Bf16* two_biases, double rounding) {
  const double gate = std::min(gate_sum.value + two_biases[0].to_float(), 7.0);
  const double up = std::clamp(up_sum.value + two_biases[1].to_float(), -7.0, 7.0);
  const double value = gate / (1 + std::exp(-1.702 * gate)) * (up + 1);
  return {value, rounding * std::abs(value) + 0x1p-24 + 10 * kGemmError * (gate_sum.size + up_sum.size + 2)};
}
inline GatedWant gated_want(const GemmMatrix& w, const GemmRow& row, const Bf16* bias, int c) {
  return gated_want(w.dot(2 * c, row.x, row.bf16), w.dot(2 * c + 1, row.x, row.bf16), bias + 2 * c,
                    row.bf16 ? 0x1p-8 : 0x1p-11);
}

// The experts of a step: random weights, inputs and choices, and what double products make of them.
struct PlainExperts {
  static constexpr int kTopk = 4;
  int tokens, experts, hidden, inter;
  std::vector<int32_t> ids;
  GemmExperts up{experts, 2 * inter, hidden, layout::RowOrder::kGateUp, 11};
  GemmExperts down{experts, hidden, layout::block_pair_width(inter), layout::RowOrder::kPlain, 12};
  std::vector<uint16_t> x = random_16(false, int64_t{tokens} * hidden, 13);
  std::vector<Bf16> up_bias = gemm_bias(experts * 2 * inter, 14), down_bias = gemm_bias(experts * hidden, 15);

  [[nodiscard]] int pairs() const { return tokens * kTopk; }
  [[nodiscard]] int width() const { return layout::block_pair_width(inter); }  // of u
  // Some channels of every pair. u [pairs, width] f16; y [pairs, hidden], computed from this u and rounded to
  // `rounding`.
  void expect(const std::vector<uint16_t>& u, const std::vector<float>& y, double rounding) const {
    for (int pair = 0; pair < pairs(); ++pair) {
      const auto e = static_cast<size_t>(ids[static_cast<size_t>(pair)]);
      for (const int channel : {0, inter - 1, pair * 7 % inter}) {
        const GatedWant want = gated_want(up.matrices[e], {x.data() + int64_t{pair / kTopk} * hidden, false},
                                          up_bias.data() + e * 2 * static_cast<size_t>(inter), channel);
        const float got = value_16(u[static_cast<size_t>(int64_t{pair} * width() + channel)], false);
        ASSERT_LE(std::abs(got - want.value), want.bound) << "pair " << pair << ", channel " << channel << ": " << got;
      }
      for (int channel = inter; channel < width(); ++channel)
        ASSERT_EQ(u[static_cast<size_t>(int64_t{pair} * width() + channel)], 0) << "pair " << pair << ", filled up";
      for (const int r : {0, hidden - 1, pair * 13 % hidden}) {
        const GemmSum sum = down.matrices[e].dot(r, u.data() + int64_t{pair} * width(), false);
        const double want = sum.value + down_bias[e * static_cast<size_t>(hidden) + static_cast<size_t>(r)].to_float();
        ASSERT_LE(std::abs(y[static_cast<size_t>(int64_t{pair} * hidden + r)] - want),
                  kGemmError * (sum.size + 1) + rounding * std::abs(want))
            << "pair " << pair << ", row " << r;
      }
    }
  }
};

}  // namespace nibble::backend::cuda
