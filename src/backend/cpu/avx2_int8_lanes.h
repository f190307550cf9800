#pragma once
// int8 products of some tokens in 256 bits: a lane of a vector per row, so that a row is decoded once for all of them.
#include "backend/cpu/avx2_int8.h"

HWY_PUSH_ATTRIBUTES(NIBBLE_AVX2_TARGET)
namespace nibble::backend::cpu::avx2 {

inline constexpr int kLaneRows = 8;                         // of a vector
inline constexpr int kLaneVectors = kTileRows / kLaneRows;  // of a tile

// A block of a tile's rows: a dword of a vector is four bytes of a row.
template <class Form>
struct LaneWeights {
  static constexpr int kDwords = Form::kRaws == 2 ? 4 : 8;  // of a row's block as it lies
  __m256i parts[kDwords][Form::kParts][kLaneVectors];
  __m256 scale[kLaneVectors];
};

using LaneRows = RowsOfLanes<kLaneRows>;
using RowPointers = LaneRows::Pointers;

// out[d], lane r = dword d of the 16 bytes at row r.
inline void transpose(const RowPointers& rows, int64_t at, __m256i* out) {
  const auto two = [&](size_t r) __attribute__((always_inline)) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load_half(rows[r] + at)), load_half(rows[r + 4] + at), 1);
  };
  const __m256i a = two(0), b = two(1), c = two(2), d = two(3);
  const __m256i ab = _mm256_unpacklo_epi32(a, b), cd = _mm256_unpacklo_epi32(c, d);
  const __m256i ab_high = _mm256_unpackhi_epi32(a, b), cd_high = _mm256_unpackhi_epi32(c, d);
  out[0] = _mm256_unpacklo_epi64(ab, cd);
  out[1] = _mm256_unpackhi_epi64(ab, cd);
  out[2] = _mm256_unpacklo_epi64(ab_high, cd_high);
  out[3] = _mm256_unpackhi_epi64(ab_high, cd_high);
}

// As floats: 0 becomes 0 instead of 2^-127, which changes less than what rounding to 8 bits does, and NaN becomes
// infinity.
inline __m256 e8m0_scales(const RowPointers& rows, int64_t at) {
  const auto byte = [&](size_t r) __attribute__((always_inline)) { return static_cast<int64_t>(rows[r][at]); };
  const int64_t bytes = byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24 | byte(4) << 32 | byte(5) << 40 |
                        byte(6) << 48 | byte(7) << 56;
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes)), 23));
}

inline __m256 f16_scales(const RowPointers& rows, int64_t at) {
  const auto half = [&](size_t r) __attribute__((always_inline)) {
    int16_t bits = 0;
    std::memcpy(&bits, rows[r] + at, sizeof bits);
    return bits;
  };
  return _mm256_cvtph_ps(_mm_setr_epi16(half(0), half(1), half(2), half(3), half(4), half(5), half(6), half(7)));
}

// Rows v * kLaneRows and on of a tile.
template <WeightFormat kFormat, class Form>
void decode_lanes(const LaneRows& rows, int64_t block, size_t v, LaneWeights<Form>& out) {
  constexpr int64_t kBytes = row_bytes(kFormat, kMxBlock);
  constexpr int64_t kFirst = kFormat == WeightFormat::kMxfp4 ? 0 : kFormat == WeightFormat::kGgmlMxfp4 ? 1 : 2;
#pragma GCC unroll 2
  for (int d = 0; d < LaneWeights<Form>::kDwords; d += 4) {
    __m256i raw[4];
    transpose(rows.values, block * kBytes + kFirst + 4 * d, raw);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      __m256i parts[Form::kParts];
      Form::decode(raw[i], parts);
      for (int p = 0; p < Form::kParts; ++p) out.parts[d + i][p][v] = parts[p];
    }
  }
  out.scale[v] = kFormat == WeightFormat::kGgmlQ8      ? f16_scales(rows.values, block * kBytes)
                 : kFormat == WeightFormat::kGgmlMxfp4 ? e8m0_scales(rows.values, block * kBytes)
                                                       : e8m0_scales(rows.scales, block);
}

template <class Form>
struct Strip {
  // Blocks whose decoded weights (20 KB) stay in the first cache while the tokens pass by: a fifth, or a tenth, of 2880
  // columns.
  static constexpr int64_t kMostBlocks = sizeof(LaneWeights<Form>) > 2048 ? 9 : 18;

  const LaneWeights<Form>* w;
  int64_t first, blocks;
  int64_t ahead_bytes;  // to fetch per block
};

// sums [kTokens, kTileRows] += the strip's products; x: the tokens' rows.
template <class Form, int kTokens>
void multiply_strip(const Strip<Form>& strip, const std::byte* const* x, Ahead& ahead, float* sums) {
  for (int64_t b = 0; b < strip.blocks; ++b) {
    const LaneWeights<Form>& w = strip.w[b];
    const int64_t block = strip.first + b, chunk_idx = block / Form::kBlocks, i = block % Form::kBlocks;
    ahead.advance(strip.ahead_bytes);
    const Chunk<Form>* chunks[kTokens];
    __m256i dots[kTokens][kLaneVectors];
#pragma GCC unroll 2
    for (int t = 0; t < kTokens; ++t) {
      chunks[t] = reinterpret_cast<const Chunk<Form>*>(x[t]) + chunk_idx;
      const int32_t* start = chunks[t]->start + Chunk<Form>::end_of(i);
#pragma GCC unroll 4
      for (int v = 0; v < kLaneVectors; ++v)
        dots[t][v] = Form::kBias == 0 ? _mm256_setzero_si256() : broadcast_dword(start);
    }
#pragma GCC unroll 8
    for (int d = 0; d < LaneWeights<Form>::kDwords; ++d) {
#pragma GCC unroll 2
      for (int p = 0; p < Form::kParts; ++p) {
#pragma GCC unroll 2
        for (int t = 0; t < kTokens; ++t) {
          const int8_t* values = &chunks[t]->x[0][0][0] + Chunk<Form>::values_of(i);
          const __m256i four = broadcast_dword(values + p * 32 + d * 4);
#pragma GCC unroll 4
          for (int v = 0; v < kLaneVectors; ++v) dots[t][v] = Form::add(dots[t][v], w.parts[d][p][v], four);
        }
      }
    }
#pragma GCC unroll 2
    for (int t = 0; t < kTokens; ++t) {
      const __m256 x_scale = _mm256_broadcast_ss(chunks[t]->scale + Chunk<Form>::end_of(i));
#pragma GCC unroll 4
      for (int v = 0; v < kLaneVectors; ++v) {
        float* const sum = sums + t * kTileRows + v * kLaneRows;
        const __m256 factor = _mm256_mul_ps(w.scale[v], x_scale);
        const __m256 products = _mm256_cvtepi32_ps(Form::dwords(dots[t][v]));
        _mm256_store_ps(sum, _mm256_fmadd_ps(products, factor, _mm256_load_ps(sum)));
      }
    }
  }
}

// The rows' sums of each token, [tokens, kTileRows], to args.out.
inline void store_lanes(const MultiplyPreparedArgs& args, float* sums) {
  for (int t = 0; t < args.tokens; ++t) {
    float* const row = sums + t * kTileRows;
    for (int v = 0; v < kLaneVectors; ++v)
      _mm256_store_ps(row + v * kLaneRows, infinite_to_nan(_mm256_load_ps(row + v * kLaneRows)));
    std::copy_n(row, args.w.rows, args.out + t * kTileRows);
  }
}

template <WeightFormat kFormat, class Form>
void multiply_lanes(const MultiplyPreparedArgs& args) {
  const WeightRows& w = args.w;
  const std::array<LaneRows, kLaneVectors> rows = {LaneRows(w, 0), LaneRows(w, kLaneRows), LaneRows(w, 2 * kLaneRows),
                                                   LaneRows(w, 3 * kLaneRows)};
  auto* const decoded = reinterpret_cast<LaneWeights<Form>*>(args.scratch);
  Ahead ahead(w, args.next, Ahead::rows_ahead(w, kTileRows));
  alignas(64) std::array<float, size_t{kTileTokens} * kTileRows> sums;
  std::fill_n(sums.begin(), args.tokens * kTileRows, 0.0f);
  const int64_t blocks = w.cols / kMxBlock, passes = (args.tokens + 1) / 2 * blocks;
  const int64_t ahead_bytes = (kTileRows * row_bytes(kFormat, w.cols) + passes - 1) / passes;
  for (int64_t first = 0; first < blocks; first += Strip<Form>::kMostBlocks) {
    const Strip<Form> strip{decoded, first, std::min(Strip<Form>::kMostBlocks, blocks - first), ahead_bytes};
    for (int64_t b = 0; b < strip.blocks; ++b) {
      for (size_t v = 0; v < kLaneVectors; ++v) decode_lanes<kFormat>(rows[v], first + b, v, decoded[b]);
    }
    for (int t = 0; t < args.tokens; t += 2) {
      (t + 1 < args.tokens ? multiply_strip<Form, 2> : multiply_strip<Form, 1>)(strip, args.x.data() + t, ahead,
                                                                                sums.data() + t * kTileRows);
    }
  }
  store_lanes(args, sums.data());
}

}  // namespace nibble::backend::cpu::avx2
HWY_POP_ATTRIBUTES
