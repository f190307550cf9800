// Float kernels in AVX-512 intrinsics. Every sum of a row and a token is one chain of 16 lanes over the columns in the
// order of `arrange`, however many tokens share the weights: so neighbours change no bit.
#include "backend/cpu/ahead.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/x86.h"
#include "base/dtype.h"
#include "base/mx.h"

#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

HWY_PUSH_ATTRIBUTES(NIBBLE_AVX512_TARGET)
namespace nibble::backend::cpu {
namespace {

constexpr int kRows = 4;         // rows of weights that are multiplied together
constexpr int kFusedTokens = 4;  // most tokens for which weights go from memory to products in registers
constexpr int kDenseTokens = 6;  // tokens of one pass over decoded rows

// 32 weights of a row.
struct Weights {
  __m512 first, second;
};

template <WeightFormat kFormat>
struct BlockReader;

// The values of the 16 codes under every scale: looking a scale's values up spares a multiplication per block.
alignas(64) constexpr auto kFp4Values = [] {
  std::array<std::array<float, 16>, 256> tables{};
  for (size_t scale = 0; scale < 256; ++scale) {
    for (uint8_t code = 0; code < 16; ++code) {
      if (scale == 255) {  // NaN, whatever it scales: arithmetic with it is no constant for clang
        tables[scale][code] = std::numeric_limits<float>::quiet_NaN();
        continue;
      }
      // In double: products of the largest scales are no float, but infinite.
      const double value = double{E2m1{code}.to_float()} * double{kE8m0Values[scale]};
      constexpr auto kMost = double{std::numeric_limits<float>::max()};
      constexpr float kInfinity = std::numeric_limits<float>::infinity();
      tables[scale][code] = value > kMost ? kInfinity : value < -kMost ? -kInfinity : static_cast<float>(value);
    }
  }
  return tables;
}();

// Lane 4b + i of the two halves takes values 2k and 2k + 1 of a block, k = 4i + b: of both formats, so that the same
// weights give the same bits.
struct Fp4 {
  // Byte k holds values 2k and 2k + 1, dword i bytes 4i..4i + 3.
  static Weights decode(const uint8_t* codes, uint8_t scale) {
    return look_up(load(codes), _mm512_set_epi32(24, 24, 24, 24, 16, 16, 16, 16, 8, 8, 8, 8, 0, 0, 0, 0), 4, scale);
  }
  // Byte j holds values j and j + 16: value 2k is of byte 2k mod 16, in dword 2(i mod 2) + b / 2, and 2k + 1 of the
  // next.
  static Weights decode_ggml(const uint8_t* codes, uint8_t scale) {
    const __m512i dwords = _mm512_set_epi32(3, 1, 3, 1, 3, 1, 3, 1, 2, 0, 2, 0, 2, 0, 2, 0);
    const __m512i packed = _mm512_castps_si512(_mm512_permutevar_ps(_mm512_castsi512_ps(load(codes)), dwords));
    return look_up(packed, _mm512_set_epi32(20, 20, 16, 16, 4, 4, 0, 0, 20, 20, 16, 16, 4, 4, 0, 0), 8, scale);
  }

 private:
  static __m512i load(const uint8_t* codes) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  }
  // The codes `low` bits up in each lane, and `more` bits above those.
  static Weights look_up(__m512i packed, __m512i low, int more, uint8_t scale) {
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(more));
    const __m512 table = _mm512_load_ps(kFp4Values[scale].data());
    return {_mm512_permutexvar_ps(_mm512_srlv_epi32(packed, low), table),
            _mm512_permutexvar_ps(_mm512_srlv_epi32(packed, high), table)};
  }
};

template <>
struct BlockReader<WeightFormat::kMxfp4> : RowBytes {
  [[nodiscard]] Weights at(int64_t block) const { return Fp4::decode(values + block * 16, scales[block]); }
};

template <>
struct BlockReader<WeightFormat::kGgmlMxfp4> : RowBytes {
  [[nodiscard]] Weights at(int64_t block) const {
    return Fp4::decode_ggml(values + block * 17 + 1, values[block * 17]);
  }
};

template <>
struct BlockReader<WeightFormat::kGgmlQ8> : RowBytes {
  [[nodiscard]] Weights at(int64_t block) const {
    const uint8_t* p = values + block * 34;
    uint16_t bits = 0;
    std::memcpy(&bits, p, sizeof bits);
    const __m512 scale = _mm512_cvtph_ps(_mm256_set1_epi16(static_cast<int16_t>(bits)));
    const auto half = [&](int at) {
      const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + at));
      return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes)), scale);
    };
    return {half(2), half(18)};
  }
};

template <>
struct BlockReader<WeightFormat::kMxfp8> : RowBytes {
  [[nodiscard]] Weights at(int64_t block) const {
    // The code's bits moved to those of an F16 make a value 2^8 too small, subnormals included.
    const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(values + block * 32));
    const __m512i wide = _mm512_cvtepu8_epi16(codes);
    const __m512i magnitude = _mm512_slli_epi16(_mm512_and_si512(wide, _mm512_set1_epi16(0x7f)), 7);
    const __m512i sign = _mm512_slli_epi16(_mm512_and_si512(wide, _mm512_set1_epi16(0x80)), 8);
    const __mmask32 nan = _mm512_cmpeq_epi16_mask(magnitude, _mm512_set1_epi16(0x7f << 7));
    const __m512i half = _mm512_mask_mov_epi16(_mm512_or_si512(magnitude, sign), nan, _mm512_set1_epi16(0x7e00));
    // Twice: 2^8 times the largest scale is no float.
    const __m512 scale = _mm512_set1_ps(kE8m0Values[scales[block]]), up = _mm512_set1_ps(256.0f);
    const auto scaled = [&](__m256i bits) { return _mm512_mul_ps(_mm512_mul_ps(_mm512_cvtph_ps(bits), up), scale); };
    return {scaled(_mm512_castsi512_si256(half)), scaled(_mm512_extracti64x4_epi64(half, 1))};
  }
};

// Formats without blocks also have rows whose last block is short.
template <>
struct BlockReader<WeightFormat::kBf16> : RowBytes {
  static __m512 wide(__m256i half) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16)); }
  [[nodiscard]] Weights at(int64_t block, uint32_t mask = ~0u) const {
    const __m512i bits = _mm512_maskz_loadu_epi16(mask, values + block * 64);
    return {wide(_mm512_castsi512_si256(bits)), wide(_mm512_extracti64x4_epi64(bits, 1))};
  }
};

template <>
struct BlockReader<WeightFormat::kF16> : RowBytes {
  [[nodiscard]] Weights at(int64_t block, uint32_t mask = ~0u) const {
    const __m512i bits = _mm512_maskz_loadu_epi16(mask, values + block * 64);
    return {_mm512_cvtph_ps(_mm512_castsi512_si256(bits)), _mm512_cvtph_ps(_mm512_extracti64x4_epi64(bits, 1))};
  }
};

template <>
struct BlockReader<WeightFormat::kF32> : RowBytes {
  [[nodiscard]] Weights at(int64_t block, uint32_t mask = ~0u) const {
    const uint8_t* p = values + block * 128;
    return {_mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), p),
            _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> 16), p + 64)};
  }
};

template <WeightFormat kFormat>
std::array<BlockReader<kFormat>, kRows> rows_at(const WeightRows& w, int first) {
  std::array<BlockReader<kFormat>, kRows> rows;
  for (int r = 0; r < kRows; ++r) {
    const int row = std::min(first + r, w.rows - 1);  // the last is repeated, and not stored
    rows[static_cast<size_t>(r)] = {w.values_of(row), has_scale_array(kFormat) ? w.scales_of(row) : nullptr};
  }
  return rows;
}

// The lanes of a last block of n < 32 columns.
uint32_t tail_mask(int64_t n) { return (1u << n) - 1; }

template <int kTokens>
struct Sums {
  __m512 sum[kRows][kTokens];

  // Unrolled, here and below: an index known at run time would move the array from registers to memory.
  Sums() {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 6
      for (int t = 0; t < kTokens; ++t) sum[r][t] = _mm512_setzero_ps();
    }
  }
  // out: [tokens, kTileRows]
  void store(int rows, float* out) const {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 6
      for (int t = 0; t < kTokens; ++t) {
        const float total = _mm512_reduce_add_ps(sum[r][t]);
        if (r < rows) out[t * kTileRows + r] = total;
      }
    }
  }
};

template <WeightFormat kFormat, int kTokens>
void multiply_fused(const MultiplyArgs& args, const float* const* x, float* out) {
  const WeightRows& w = args.w;
  const int64_t blocks = w.cols / kMxBlock;
  for (int first = 0; first < w.rows; first += kRows) {
    const auto rows = rows_at<kFormat>(w, first);
    Ahead ahead(w, args.next, first + Ahead::rows_ahead(w, kRows));
    Sums<kTokens> sums;
    for (int64_t b = 0; b < blocks; ++b) {
      ahead.fetch_next<kRows * kBlockBytes<kFormat>, true>();
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const Weights weights = rows[static_cast<size_t>(r)].at(b);
#pragma GCC unroll 4
        for (int t = 0; t < kTokens; ++t) {
          const float* at = x[t] + b * kMxBlock;
          sums.sum[r][t] = _mm512_fmadd_ps(weights.first, _mm512_loadu_ps(at), sums.sum[r][t]);
          sums.sum[r][t] = _mm512_fmadd_ps(weights.second, _mm512_loadu_ps(at + 16), sums.sum[r][t]);
        }
      }
    }
    if constexpr (!in_blocks(kFormat)) {
      if (const int64_t rest = w.cols % kMxBlock; rest != 0) {
        const uint32_t mask = tail_mask(rest);
        const auto low = static_cast<__mmask16>(mask), high = static_cast<__mmask16>(mask >> 16);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const Weights weights = rows[static_cast<size_t>(r)].at(blocks, mask);
#pragma GCC unroll 4
          for (int t = 0; t < kTokens; ++t) {
            const float* at = x[t] + blocks * kMxBlock;
            sums.sum[r][t] = _mm512_fmadd_ps(weights.first, _mm512_maskz_loadu_ps(low, at), sums.sum[r][t]);
            sums.sum[r][t] = _mm512_fmadd_ps(weights.second, _mm512_maskz_loadu_ps(high, at + 16), sums.sum[r][t]);
          }
        }
      }
    }
    sums.store(w.rows - first, out + first);
  }
}

// w: kRows decoded rows, `stride` floats apart.
struct Decoded {
  const float* w;
  int64_t stride, cols;
  int rows;
};

template <int kTokens>
void multiply_decoded(const Decoded& in, const float* const* x, float* out) {
  Sums<kTokens> sums;
  const auto step = [&](int64_t k, __mmask16 mask)
                        __attribute__((always_inline)) {  // the weights past the columns are zeros
                          __m512 xs[kTokens];
#pragma GCC unroll 6
                          for (int t = 0; t < kTokens; ++t) xs[t] = _mm512_maskz_loadu_ps(mask, x[t] + k);
#pragma GCC unroll 4
                          for (int r = 0; r < kRows; ++r) {
                            const __m512 weights = _mm512_load_ps(in.w + r * in.stride + k);
#pragma GCC unroll 6
                            for (int t = 0; t < kTokens; ++t)
                              sums.sum[r][t] = _mm512_fmadd_ps(weights, xs[t], sums.sum[r][t]);
                          }
                        };
  int64_t k = 0;
  for (; k + 16 <= in.cols; k += 16) step(k, 0xffff);
  if (k < in.cols) step(k, static_cast<__mmask16>(tail_mask(in.cols - k)));
  sums.store(in.rows, out);
}

template <WeightFormat kFormat>
void multiply_many(const MultiplyArgs& args) {
  const WeightRows& w = args.w;
  const int64_t blocks = w.cols / kMxBlock, stride = (w.cols + kMxBlock - 1) / kMxBlock * kMxBlock;
  const auto tokens = static_cast<int>(args.x.size());
  for (int first = 0; first < w.rows; first += kRows) {
    const auto rows = rows_at<kFormat>(w, first);
    for (int r = 0; r < kRows; ++r) {
      const auto store = [&](int64_t b, const Weights& weights) {
        float* out = args.scratch + r * stride + b * kMxBlock;
        _mm512_store_ps(out, weights.first);
        _mm512_store_ps(out + 16, weights.second);
      };
      for (int64_t b = 0; b < blocks; ++b) store(b, rows[static_cast<size_t>(r)].at(b));
      if constexpr (!in_blocks(kFormat)) {
        if (stride != w.cols) store(blocks, rows[static_cast<size_t>(r)].at(blocks, tail_mask(w.cols % kMxBlock)));
      }
    }
    const Decoded decoded{args.scratch, stride, w.cols, w.rows - first};
    for (int t = 0; t < tokens; t += kDenseTokens) {
      const float* const* x = args.x.data() + t;
      float* out = args.out + t * kTileRows + first;
      with_count<kDenseTokens>(tokens - t, [&](auto count) { multiply_decoded<count>(decoded, x, out); });
    }
  }
}

template <WeightFormat kFormat>
void multiply_format(const MultiplyArgs& args) {
  const auto tokens = static_cast<int>(args.x.size());
  if (tokens > 2 * kFusedTokens) return multiply_many<kFormat>(args);
  for (int t = 0; t < tokens; t += kFusedTokens) {  // the second time the rows come from the first cache
    const float* const* x = args.x.data() + t;
    float* out = args.out + t * kTileRows;
    with_count<kFusedTokens>(tokens - t, [&](auto count) { multiply_fused<kFormat, count>(args, x, out); });
  }
}

CpuIsa multiply(const MultiplyArgs& args) {
  with_format(args.w.format, [&](auto format) { multiply_format<format>(args); });
  return CpuIsa::kAvx512;
}

bool arranges(WeightFormat format) { return format == WeightFormat::kMxfp4 || format == WeightFormat::kGgmlMxfp4; }

// To the order of Fp4.
void arrange(WeightFormat /*format*/, std::span<const float> x, float* out) {
  alignas(64) int32_t lanes[16];
  for (int lane = 0; lane < 16; ++lane) lanes[lane] = 2 * (4 * (lane % 4) + lane / 4);
  const __m512i first = _mm512_load_si512(lanes), second = _mm512_add_epi32(first, _mm512_set1_epi32(1));
  for (size_t block = 0; block < x.size(); block += kMxBlock) {
    const __m512 low = _mm512_loadu_ps(x.data() + block), top = _mm512_loadu_ps(x.data() + block + 16);
    _mm512_storeu_ps(out + block, _mm512_permutex2var_ps(low, first, top));
    _mm512_storeu_ps(out + block + 16, _mm512_permutex2var_ps(low, second, top));
  }
}

// e^x of x <= 0: 2^n e^f with |f| <= ln 2 / 2, by the polynomial of Cephes' expf, to two units in the last place.
__m512 exp_of(__m512 x) {
  const auto all = [&](float value) __attribute__((always_inline)) { return _mm512_set1_ps(value); };
  x = _mm512_max_ps(all(-200.0f), x);  // the second where one is NaN: it stays
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, all(1.44269504f)), _MM_FROUND_TO_NEAREST_INT);
  __m512 f = _mm512_fnmadd_ps(n, all(0.693359375f), x);  // ln 2 in two parts
  f = _mm512_fnmadd_ps(n, all(-2.12194440e-4f), f);
  __m512 p = _mm512_fmadd_ps(all(1.9875691500e-4f), f, all(1.3981999507e-3f));
  p = _mm512_fmadd_ps(p, f, all(8.3334519073e-3f));
  p = _mm512_fmadd_ps(p, f, all(4.1665795894e-2f));
  p = _mm512_fmadd_ps(p, f, all(1.6666665459e-1f));
  p = _mm512_fmadd_ps(p, f, all(5.0000001201e-1f));
  p = _mm512_fmadd_ps(p, _mm512_mul_ps(f, f), _mm512_add_ps(f, all(1.0f)));
  return _mm512_scalef_ps(p, n);
}

float exp_sum(float top, std::span<float> x) {
  __m512 sum = _mm512_setzero_ps();
  const auto n = static_cast<int64_t>(x.size());
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m512 e = exp_of(_mm512_sub_ps(_mm512_loadu_ps(x.data() + i), _mm512_set1_ps(top)));
    _mm512_storeu_ps(x.data() + i, e);
    sum = _mm512_add_ps(sum, e);
  }
  if (i < n) {
    const auto mask = static_cast<__mmask16>(tail_mask(n - i));
    const __m512 e = exp_of(_mm512_sub_ps(_mm512_maskz_loadu_ps(mask, x.data() + i), _mm512_set1_ps(top)));
    _mm512_mask_storeu_ps(x.data() + i, mask, e);
    sum = _mm512_mask_add_ps(sum, mask, sum, e);
  }
  return _mm512_reduce_add_ps(sum);
}

}  // namespace

Kernels with_avx512(Kernels portable) {
  if (!__builtin_cpu_supports("avx512vbmi") || !__builtin_cpu_supports("avx512vnni")) return portable;
  portable.name = "avx512 vnni";
  portable.arranges = arranges;
  portable.arrange = arrange;
  portable.multiply = multiply;
  portable.exp_sum = exp_sum;
  portable.int8 = &avx512_int8_kernels();
  portable.screen = screen_avx512;
  return portable;
}

}  // namespace nibble::backend::cpu
HWY_POP_ATTRIBUTES
