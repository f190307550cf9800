// Float products in AVX2's intrinsics. Every sum of a row and a token is one chain of 8 lanes over the columns in the
// order of `arrange`, however many tokens share the weights: so neighbours change no bit. In formats of blocks its
// links are blocks: each is summed as the codes' integers times the tokens' values, then scaled.
#include "backend/cpu/ahead.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/x86.h"
#include "base/dtype.h"

#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstring>

HWY_PUSH_ATTRIBUTES(NIBBLE_AVX2_TARGET)
namespace nibble::backend::cpu {
namespace {

constexpr int kVectors = kMxBlock / 8;           // of 32 columns
constexpr int kFusedTokens = 4;                  // most tokens for which weights stay in registers
constexpr int kDenseRows = 4, kDenseTokens = 3;  // of one pass over decoded rows: 12 sums, 3 inputs, a weight
constexpr int kStripBlocks = 6, kStrip = kStripBlocks * kMxBlock;  // columns whose decoded rows stay in the first cache

struct Weights {
  __m256 v[kVectors];
};

constexpr auto kHalfScales = [] {  // of codes that are doubled
  std::array<float, 256> values{};
  for (size_t i = 0; i < 255; ++i) values[i] = kE8m0Values[i] * 0.5f;
  values[255] = kE8m0Values[255];
  return values;
}();

// 32 bytes in the order of the columns.
Weights widen(const void* bytes) {
  Weights w;
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) {
    const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(static_cast<const uint8_t*>(bytes) + 8 * i));
    w.v[i] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight));
  }
  return w;
}

// Codes of 4 bits as their doubled values: the even columns', then the odd ones', in both formats, so that the same
// weights give the same bits. By way of memory, which spares moving halves of registers.
struct Fp4 {
  // Byte j holds columns 2j and 2j + 1.
  static Weights decode(const uint8_t* codes) {
    return look_up(_mm256_srlv_epi32(load(codes), _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4)));
  }
  // Byte j holds columns j and j + 16.
  static Weights decode_ggml(const uint8_t* codes) {
    const __m256i order = _mm256_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 0, 2, 4, 6, 8, 10, 12, 14,  //
                                           1, 3, 5, 7, 9, 11, 13, 15, 1, 3, 5, 7, 9, 11, 13, 15);
    return look_up(_mm256_srlv_epi64(_mm256_shuffle_epi8(load(codes), order), _mm256_setr_epi64x(0, 4, 0, 4)));
  }

 private:
  static __m256i load(const uint8_t* codes) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  }
  // The values of the low nibbles.
  static Weights look_up(__m256i codes) {
    const __m256i table = _mm256_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12,  //
                                           0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    alignas(32) int8_t bytes[kMxBlock];
    _mm256_store_si256(reinterpret_cast<__m256i*>(bytes),
                       _mm256_shuffle_epi8(table, _mm256_and_si256(codes, _mm256_set1_epi8(15))));
    return widen(bytes);
  }
};

template <WeightFormat kFormat>
struct BlockReader;

template <>
struct BlockReader<WeightFormat::kMxfp4> : RowBytes {
  [[nodiscard]] Weights at(int64_t block) const { return Fp4::decode(values + block * 16); }
  [[nodiscard]] __m256 scale(int64_t block) const { return _mm256_broadcast_ss(&kHalfScales[scales[block]]); }
};

template <>
struct BlockReader<WeightFormat::kGgmlMxfp4> : RowBytes {
  [[nodiscard]] Weights at(int64_t block) const { return Fp4::decode_ggml(values + block * 17 + 1); }
  [[nodiscard]] __m256 scale(int64_t block) const { return _mm256_broadcast_ss(&kHalfScales[values[block * 17]]); }
};

template <>
struct BlockReader<WeightFormat::kGgmlQ8> : RowBytes {
  [[nodiscard]] Weights at(int64_t block) const { return widen(values + block * 34 + 2); }
  [[nodiscard]] __m256 scale(int64_t block) const {
    int16_t bits = 0;
    std::memcpy(&bits, values + block * 34, sizeof bits);
    return _mm256_cvtph_ps(_mm_set1_epi16(bits));
  }
};

template <>
struct BlockReader<WeightFormat::kMxfp8> : RowBytes {
  // The code's bits moved to those of an F16 make a value 2^8 too small, subnormals included; NaN's what would be 480.
  [[nodiscard]] Weights at(int64_t block) const {
    const __m256 nan = _mm256_set1_ps(480.0f / 256), sign = _mm256_set1_ps(-0.0f), up = _mm256_set1_ps(256.0f);
    Weights w;
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) {
      const auto* codes = reinterpret_cast<const __m128i*>(values + block * 32 + 8 * i);
      const __m128i bits = _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_loadl_epi64(codes)), 7);
      const __m256 v = _mm256_cvtph_ps(_mm_and_si128(bits, _mm_set1_epi16(static_cast<int16_t>(0xbfff))));
      w.v[i] = _mm256_mul_ps(_mm256_or_ps(v, _mm256_cmp_ps(_mm256_andnot_ps(sign, v), nan, _CMP_EQ_OQ)), up);
    }
    return w;
  }
  [[nodiscard]] __m256 scale(int64_t block) const { return _mm256_broadcast_ss(&kE8m0Values[scales[block]]); }
};

// Formats without blocks: rows may have a last one that is short, which at() does not see.
template <>
struct BlockReader<WeightFormat::kBf16> : RowBytes {
  [[nodiscard]] Weights at(int64_t block) const {
    Weights w;
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) {
      const __m128i bits16 = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values + block * 64 + 16 * i));
      w.v[i] = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits16), 16));
    }
    return w;
  }
  static float value(const uint8_t* p) { return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(bits(p) << 16))); }
  static int bits(const uint8_t* p) { return p[0] | p[1] << 8; }
};

template <>
struct BlockReader<WeightFormat::kF16> : RowBytes {
  [[nodiscard]] Weights at(int64_t block) const {
    Weights w;
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i)
      w.v[i] = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values + block * 64 + 16 * i)));
    return w;
  }
  static float value(const uint8_t* p) { return _cvtsh_ss(static_cast<uint16_t>(p[0] | p[1] << 8)); }
};

template <>
struct BlockReader<WeightFormat::kF32> : RowBytes {
  [[nodiscard]] Weights at(int64_t block) const {
    Weights w;
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i)
      w.v[i] = _mm256_loadu_ps(reinterpret_cast<const float*>(values + block * 128 + 32 * i));
    return w;
  }
  static float value(const uint8_t* p) {
    float v = 0;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
};

template <WeightFormat kFormat>
BlockReader<kFormat> row_at(const WeightRows& w, int row) {
  row = std::min(row, w.rows - 1);  // the last is repeated, and not stored
  return {w.values_of(row), has_scale_array(kFormat) ? w.scales_of(row) : nullptr};
}

// The columns of a last short block and zeros, in their order.
template <WeightFormat kFormat>
void decode_tail(const BlockReader<kFormat>& row, int64_t cols, float* out) {
  const int64_t first = cols / kMxBlock * kMxBlock;
  constexpr int kBytes = kBlockBytes<kFormat> / kMxBlock;
  for (int64_t i = 0; i < kMxBlock; ++i)
    out[i] = first + i < cols ? BlockReader<kFormat>::value(row.values + (first + i) * kBytes) : 0.0f;
}
void copy_tail(const float* x, int64_t cols, float* out) {
  const int64_t first = cols / kMxBlock * kMxBlock;
  std::fill(std::copy(x + first, x + cols, out), out + kMxBlock, 0.0f);
}

float total(__m256 sum) {
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

// sum + w · x, a link of the chain.
template <bool kScaled>
__attribute__((always_inline)) inline __m256 link(const Weights& w, const float* x, __m256 scale, __m256 sum) {
  __m256 block = kScaled ? _mm256_mul_ps(w.v[0], _mm256_loadu_ps(x)) : _mm256_fmadd_ps(w.v[0], _mm256_loadu_ps(x), sum);
#pragma GCC unroll 4
  for (int i = 1; i < kVectors; ++i) block = _mm256_fmadd_ps(w.v[i], _mm256_loadu_ps(x + 8 * i), block);
  return kScaled ? _mm256_fmadd_ps(block, scale, sum) : block;
}

template <WeightFormat kFormat, int kTokens>
void multiply_fused(const MultiplyArgs& args, const float* const* x, float* out) {
  constexpr bool kScaled = in_blocks(kFormat);
  constexpr int kRows = kTokens == 1 ? 4 : 2;
  const WeightRows& w = args.w;
  const int64_t blocks = w.cols / kMxBlock;
  alignas(32) float x_tail[kTokens][kMxBlock], w_tail[kMxBlock];
  const bool tail = w.cols % kMxBlock != 0;
  for (int t = 0; tail && t < kTokens; ++t) copy_tail(x[t], w.cols, x_tail[t]);
  for (int first = 0; first < w.rows; first += kRows) {
    BlockReader<kFormat> rows[kRows];
    for (int r = 0; r < kRows; ++r) rows[r] = row_at<kFormat>(w, first + r);
    Ahead ahead(w, args.next, first + Ahead::rows_ahead(w, kRows));
    __m256 sums[kRows][kTokens];
#pragma GCC unroll 4
    for (auto& of_row : sums)
#pragma GCC unroll 4
      for (__m256& sum : of_row) sum = _mm256_setzero_ps();
    for (int64_t b = 0; b < blocks; ++b) {
      ahead.fetch_next<kRows * kBlockBytes<kFormat>, true>();
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const Weights weights = rows[r].at(b);
        __m256 scale = _mm256_setzero_ps();
        if constexpr (kScaled) scale = rows[r].scale(b);
#pragma GCC unroll 4
        for (int t = 0; t < kTokens; ++t) sums[r][t] = link<kScaled>(weights, x[t] + b * kMxBlock, scale, sums[r][t]);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      if constexpr (!kScaled) {
        if (tail) {
          decode_tail(rows[r], w.cols, w_tail);
          Weights weights;
          for (int i = 0; i < kVectors; ++i) weights.v[i] = _mm256_load_ps(w_tail + 8 * i);
#pragma GCC unroll 4
          for (int t = 0; t < kTokens; ++t) sums[r][t] = link<false>(weights, x_tail[t], sums[r][t], sums[r][t]);
        }
      }
#pragma GCC unroll 4
      for (int t = 0; t < kTokens; ++t)
        if (first + r < w.rows) out[t * kTileRows + first + r] = total(sums[r][t]);
    }
  }
}

// Some columns of a tile's rows, decoded, and the sums so far of kDenseRows of them.
struct Strip {
  const float* w;       // [kDenseRows, kStrip]
  const float* scales;  // [kDenseRows, kStripBlocks]
  int blocks;
  float* sums;  // [tokens, kTileRows, 8]
};

template <bool kScaled, int kTokens>
void multiply_strip(const Strip& in, const float* const* x) {
  __m256 sums[kDenseRows][kTokens];
  const auto each = [&](auto body) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int r = 0; r < kDenseRows; ++r)
#pragma GCC unroll 3
      for (int t = 0; t < kTokens; ++t) body(r, t, in.sums + (t * kTileRows + r) * 8);
  };
  if constexpr (!kScaled)
    each([&](int r, int t, const float* sum) __attribute__((always_inline)) { sums[r][t] = _mm256_load_ps(sum); });
  for (int b = 0; b < in.blocks; ++b) {
    if constexpr (kScaled)
      each([&](int r, int t, const float*) __attribute__((always_inline)) { sums[r][t] = _mm256_setzero_ps(); });
#pragma GCC unroll 4
    for (int k = b * kMxBlock; k < (b + 1) * kMxBlock; k += 8) {
      __m256 xs[kTokens];
#pragma GCC unroll 3
      for (int t = 0; t < kTokens; ++t) xs[t] = _mm256_loadu_ps(x[t] + k);
#pragma GCC unroll 4
      for (int r = 0; r < kDenseRows; ++r) {
        const __m256 weights = _mm256_load_ps(in.w + r * kStrip + k);
#pragma GCC unroll 3
        for (int t = 0; t < kTokens; ++t) sums[r][t] = _mm256_fmadd_ps(weights, xs[t], sums[r][t]);
      }
    }
    if constexpr (kScaled) {
      each([&](int r, int t, float* sum) __attribute__((always_inline)) {
        const __m256 scale = _mm256_broadcast_ss(in.scales + r * kStripBlocks + b);
        _mm256_store_ps(sum, _mm256_fmadd_ps(sums[r][t], scale, _mm256_load_ps(sum)));
      });
    }
  }
  if constexpr (!kScaled)
    each([&](int r, int t, float* sum) __attribute__((always_inline)) { _mm256_store_ps(sum, sums[r][t]); });
}

// Scratch of many tokens.
struct Dense {
  float w[kTileRows][kStrip];
  float scales[kTileRows][kStripBlocks];
  float sums[kTileTokens][kTileRows][8];
  float x_tail[kTileTokens][kMxBlock];
};
static_assert(sizeof(Dense) <= kLeastScratch * sizeof(float));

template <bool kScaled>
void multiply_strips(Dense& dense, int rows, int blocks, std::span<const float* const> x) {
  const auto tokens = static_cast<int>(x.size());
  for (int t = 0; t < tokens; t += kDenseTokens) {  // the rows stay in the first cache, too
    for (int first = 0; first < rows; first += kDenseRows) {
      const Strip strip{dense.w[first], dense.scales[first], blocks, dense.sums[t][first]};
      with_count<kDenseTokens>(tokens - t, [&](auto count) { multiply_strip<kScaled, count>(strip, x.data() + t); });
    }
  }
}

template <WeightFormat kFormat>
void multiply_many(const MultiplyArgs& args) {
  constexpr bool kScaled = in_blocks(kFormat);
  const WeightRows& w = args.w;
  Dense& dense = *reinterpret_cast<Dense*>(args.scratch);
  const size_t tokens = args.x.size();
  std::fill_n(&dense.sums[0][0][0], tokens * kTileRows * 8, 0.0f);
  std::array<const float*, kTileTokens> x;  // the first are set
  const int64_t blocks = w.cols / kMxBlock;
  for (int64_t first = 0; first < blocks; first += kStripBlocks) {
    const auto count = static_cast<int>(std::min<int64_t>(kStripBlocks, blocks - first));
    for (int r = 0; r < w.rows; ++r) {
      const auto row = row_at<kFormat>(w, r);
      for (int b = 0; b < count; ++b) {
        const Weights weights = row.at(first + b);
        for (int i = 0; i < kVectors; ++i) _mm256_store_ps(dense.w[r] + b * kMxBlock + 8 * i, weights.v[i]);
        if constexpr (kScaled) dense.scales[r][b] = _mm256_cvtss_f32(row.scale(first + b));
      }
    }
    for (size_t t = 0; t < tokens; ++t) x[t] = args.x[t] + first * kMxBlock;
    multiply_strips<kScaled>(dense, w.rows, count, std::span(x).first(tokens));
  }
  if constexpr (!kScaled) {
    if (w.cols % kMxBlock != 0) {
      for (int r = 0; r < w.rows; ++r) decode_tail(row_at<kFormat>(w, r), w.cols, dense.w[r]);
      for (size_t t = 0; t < tokens; ++t) {
        copy_tail(args.x[t], w.cols, dense.x_tail[t]);
        x[t] = dense.x_tail[t];
      }
      multiply_strips<false>(dense, w.rows, 1, std::span(x).first(tokens));
    }
  }
  for (size_t t = 0; t < tokens; ++t)
    for (int r = 0; r < w.rows; ++r)
      args.out[t * kTileRows + static_cast<size_t>(r)] = total(_mm256_load_ps(dense.sums[t][r]));
}

template <WeightFormat kFormat>
void multiply_format(const MultiplyArgs& args) {
  const auto tokens = static_cast<int>(args.x.size());
  // Measured on a Xeon of 2023: from so many tokens on, decoding rows once pays.
  constexpr int kManyFrom = in_blocks(kFormat) ? 17 : 7;
  if (tokens >= kManyFrom) return multiply_many<kFormat>(args);
  for (int t = 0; t < tokens; t += kFusedTokens) {  // the next time the rows come from a cache
    const float* const* x = args.x.data() + t;
    float* out = args.out + t * kTileRows;
    with_count<kFusedTokens>(tokens - t, [&](auto count) { multiply_fused<kFormat, count>(args, x, out); });
  }
}

CpuIsa multiply(const MultiplyArgs& args) {
  with_format(args.w.format, [&](auto format) { multiply_format<format>(args); });
  return CpuIsa::kAvx2;
}

bool arranges(WeightFormat format) { return format == WeightFormat::kMxfp4 || format == WeightFormat::kGgmlMxfp4; }

// To the order of Fp4.
void arrange(WeightFormat /*format*/, std::span<const float> x, float* out) {
  for (size_t i = 0; i < x.size(); i += kMxBlock) {
    for (size_t at = 0; at < kMxBlock / 2; at += 8) {
      const __m256 a = _mm256_loadu_ps(x.data() + i + 2 * at), b = _mm256_loadu_ps(x.data() + i + 2 * at + 8);
      const auto apart = [&](__m256 v) __attribute__((always_inline)) {  // quarters of a, b, a, b to a, a, b, b
        return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(v), 0b11011000));
      };
      _mm256_storeu_ps(out + i + at, apart(_mm256_shuffle_ps(a, b, 0b10001000)));
      _mm256_storeu_ps(out + i + kMxBlock / 2 + at, apart(_mm256_shuffle_ps(a, b, 0b11011101)));
    }
  }
}

}  // namespace

Kernels with_avx2_floats(Kernels portable) {
  portable.arranges = arranges;
  portable.arrange = arrange;
  portable.multiply = multiply;
  return portable;
}

}  // namespace nibble::backend::cpu
HWY_POP_ATTRIBUTES
