// Products of MXFP4 and Q8_0 weights with int8 activations (VPDPBUSD). Weights or activations are biased where the
// instruction wants them unsigned; the bias times the other side's sum is where the integer sums start.
#include "backend/cpu/avx512.h"
#include "backend/cpu/kernels.h"
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

constexpr int kRows = 4;  // rows of weights that are multiplied together
constexpr int kFp4Bias = 12, kQ8Bias = 128;
constexpr float kFp4Unit = 0.5f;  // codes are looked up doubled, as integers

__m512i fp4_table(int bias) {
  const auto b = static_cast<char>(bias);
  const auto at = [&](int doubled) { return static_cast<char>(b + doubled); };
  return _mm512_broadcast_i32x4(_mm_setr_epi8(at(0), at(1), at(2), at(3), at(4), at(6), at(8), at(12), at(0), at(-1),
                                              at(-2), at(-3), at(-4), at(-6), at(-8), at(-12)));
}

// 32 floats as signed bytes and their scale. What is not finite makes the scale so.
struct Quantised {
  __m128i first, second;
  float scale;
};

Quantised quantise(const float* x) {
  const __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
  const float most = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)));
  if (_mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) != 0) {
    return {_mm_setzero_si128(), _mm_setzero_si128(), std::numeric_limits<float>::quiet_NaN()};
  }
  const __m512 inverse = _mm512_set1_ps(most > 0 ? 127.0f / most : 0.0f);
  const auto bytes = [&](__m512 v) __attribute__((always_inline)) {
    return _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(v, inverse)));
  };
  return {bytes(a), bytes(b), most / 127.0f};
}

// ---- Few tokens: a token's row, in the order of the weights' bytes ----

// 128 values of MXFP4: low nibbles' values, high nibbles' values; 64 of Q8_0: `low` only.
struct Fp4Chunk {
  int8_t low[64], high[64];
  int32_t start[16];  // -bias times the sum of a lane's activations
  float scale[16];    // of each lane's block, times kFp4Unit
};
struct Q8Chunk {
  int8_t low[64];
  int32_t start[16];
  float scale[16];
};

int64_t chunks_of(int64_t cols, int64_t chunk) { return (cols + chunk - 1) / chunk; }

int64_t row_size(int64_t cols) {
  return std::max(chunks_of(cols, 128) * int64_t{sizeof(Fp4Chunk)}, chunks_of(cols, 64) * int64_t{sizeof(Q8Chunk)});
}

void prepare_q8(std::span<const float> x, Q8Chunk* chunks) {
  const auto blocks = static_cast<int64_t>(x.size()) / kMxBlock;
  std::memset(chunks, 0, static_cast<size_t>(chunks_of(blocks, 2)) * sizeof(Q8Chunk));
  for (int64_t b = 0; b < blocks; ++b) {
    Q8Chunk& chunk = chunks[b / 2];
    const int64_t at = b % 2;
    const Quantised q = quantise(x.data() + b * kMxBlock);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(chunk.low + at * 32), q.first);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(chunk.low + at * 32 + 16), q.second);
    std::fill_n(chunk.scale + at * 8, 8, q.scale);
  }
  const __m512i bias = _mm512_set1_epi8(static_cast<char>(kQ8Bias));
  for (int64_t c = 0; c < chunks_of(blocks, 2); ++c) {
    const __m512i sum = _mm512_dpbusd_epi32(_mm512_setzero_si512(), bias, _mm512_loadu_si512(chunks[c].low));
    _mm512_storeu_si512(chunks[c].start, _mm512_sub_epi32(_mm512_setzero_si512(), sum));
  }
}

void prepare_fp4(std::span<const float> x, bool interleaved, Fp4Chunk* chunks) {
  const auto blocks = static_cast<int64_t>(x.size()) / kMxBlock;
  std::memset(chunks, 0, static_cast<size_t>(chunks_of(blocks, 4)) * sizeof(Fp4Chunk));
  const __m128i even = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
  for (int64_t b = 0; b < blocks; ++b) {
    Fp4Chunk& chunk = chunks[b / 4];
    const int64_t at = b % 4;
    Quantised q = quantise(x.data() + b * kMxBlock);
    if (interleaved) {  // values 2j, then values 2j + 1
      const __m128i first = _mm_shuffle_epi8(q.first, even), second = _mm_shuffle_epi8(q.second, even);
      q.first = _mm_unpacklo_epi64(first, second);
      q.second = _mm_unpackhi_epi64(first, second);
    }
    _mm_storeu_si128(reinterpret_cast<__m128i*>(chunk.low + at * 16), q.first);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(chunk.high + at * 16), q.second);
    std::fill_n(chunk.scale + at * 4, 4, q.scale * kFp4Unit);
  }
  const __m512i bias = _mm512_set1_epi8(kFp4Bias);
  for (int64_t c = 0; c < chunks_of(blocks, 4); ++c) {
    const __m512i low = _mm512_loadu_si512(chunks[c].low), high = _mm512_loadu_si512(chunks[c].high);
    const __m512i sum = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(_mm512_setzero_si512(), bias, low), bias, high);
    _mm512_storeu_si512(chunks[c].start, _mm512_sub_epi32(_mm512_setzero_si512(), sum));
  }
}

void prepare_row(WeightFormat format, std::span<const float> x, std::byte* out) {
  if (format == WeightFormat::kGgmlQ8) return prepare_q8(x, reinterpret_cast<Q8Chunk*>(out));
  prepare_fp4(x, format == WeightFormat::kMxfp4, reinterpret_cast<Fp4Chunk*>(out));
}

// The scales of a row's blocks as floats, zeros up to a whole vector; of ggml's MXFP4 those from block `from` on.
void load_scales(const WeightRows& w, int row, float* out, int64_t from = 0) {
  const int64_t blocks = w.cols / kMxBlock;
  const uint8_t* values = w.values_of(row);
  if (w.format == WeightFormat::kMxfp4) {
    const uint8_t* scales = w.scales_of(row);
    for (int64_t b = 0; b < blocks; b += 16) {
      const auto mask = static_cast<__mmask16>(blocks - b >= 16 ? 0xffff : (1 << (blocks - b)) - 1);
      const __m512i bits = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, scales + b));
      __m512i value = _mm512_max_epu32(_mm512_slli_epi32(bits, 23), _mm512_set1_epi32(0x00400000));  // 0: 2^-127
      const __mmask16 nan = _mm512_cmpeq_epi32_mask(bits, _mm512_set1_epi32(E8m0::kNan));
      value = _mm512_mask_mov_epi32(value, nan, _mm512_set1_epi32(0x7fc00000));
      _mm512_store_si512(out + b, _mm512_maskz_mov_epi32(mask, value));
    }
    return;
  }
  if (w.format == WeightFormat::kGgmlMxfp4) {
    for (int64_t b = from; b < blocks; ++b) out[b] = kE8m0Values[values[b * 17]];
    std::fill(out + blocks, out + (blocks + 15) / 16 * 16, 0.0f);
    return;
  }
  alignas(64) std::array<uint16_t, 16> halves;
  for (int64_t b = 0; b < blocks; b += 16) {
    halves.fill(0);
    const int64_t count = std::min<int64_t>(16, blocks - b);
    for (int64_t i = 0; i < count; ++i) std::memcpy(&halves[static_cast<size_t>(i)], values + (b + i) * 34, 2);
    _mm512_store_ps(out + b, _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(halves.data()))));
  }
}

// Four blocks' codes; those from `count` on are zeros.
template <bool kGgml>
__m512i load_codes(const uint8_t* values, int64_t block, int64_t count) {
  if constexpr (!kGgml) {
    return _mm512_maskz_loadu_epi8(count >= 4 ? ~0ull : (1ull << (16 * count)) - 1, values + block * 16);
  } else {
    const auto at = [&](int64_t i) __attribute__((always_inline)) {
      return i < count ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(values + (block + i) * 17 + 1))
                       : _mm_setzero_si128();
    };
    const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(at(0)), at(1), 1);
    const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(at(2)), at(3), 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  }
}

// Four blocks of ggml: their codes, and their scales in each block's four lanes.
__m512i load_ggml(const uint8_t* p, __m512* scale) {
  // Lane 4b + i of `order` is bytes 4i.. of block b's codes, counted from p + 1. The last block's end lies past the 64
  // bytes there; from p + 4 on it is where it belongs.
  alignas(64) static constexpr auto kOrder = [] {
    std::array<int8_t, 64> order{};
    for (int i = 0; i < 64; ++i) order[static_cast<size_t>(i)] = static_cast<int8_t>(i / 16 * 17 + i % 16);
    return order;
  }();
  // A block's scale becomes the exponent of a float: byte 2 of its lanes, shifted by 7.
  alignas(64) static constexpr auto kScale = [] {
    std::array<int8_t, 64> order{};
    for (int i = 0; i < 64; ++i) order[static_cast<size_t>(i)] = static_cast<int8_t>(i / 16 * 17);
    return order;
  }();
  const __m512i bits = _mm512_maskz_permutexvar_epi8(0x4444444444444444, _mm512_load_si512(kScale.data()),
                                                     _mm512_loadu_si512(p));
  const __m512i value = _mm512_max_epu32(_mm512_slli_epi32(bits, 7), _mm512_set1_epi32(0x00400000));  // 0: 2^-127
  const __mmask16 nan = _mm512_cmpeq_epi32_mask(bits, _mm512_set1_epi32(int32_t{E8m0::kNan} << 16));
  *scale = _mm512_castsi512_ps(_mm512_mask_mov_epi32(value, nan, _mm512_set1_epi32(0x7fc00000)));
  const __m512i first = _mm512_permutexvar_epi8(_mm512_load_si512(kOrder.data()), _mm512_loadu_si512(p + 1));
  return _mm512_mask_loadu_epi32(first, 0xf000, p + 4);
}

struct RowGroup {
  std::array<const uint8_t*, kRows> values;
  const float* scales;  // [kRows, stride]
  int64_t stride;
  int64_t ahead;  // bytes to the next group
};

template <bool kGgml, int kTokens>
void multiply_fp4(const RowGroup& rows, int64_t blocks, const std::byte* const* x, float* totals) {
  const __m512i table = fp4_table(kFp4Bias), nibble = _mm512_set1_epi8(15);
  const __m512i spread = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
  __m512 sum[kRows][kTokens];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) sum[r][t] = _mm512_setzero_ps();
  }
  const auto step = [&](int64_t block, int64_t count) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const uint8_t* values = rows.values[static_cast<size_t>(r)];
      _mm_prefetch(values + block * (kGgml ? 17 : 16) + rows.ahead, _MM_HINT_T0);
      __m512i codes;
      __m512 scale;
      if (kGgml && count == 4) {
        codes = load_ggml(values + block * 17, &scale);
      } else {
        codes = load_codes<kGgml>(values, block, count);
        const float* scales = rows.scales + r * rows.stride + block;
        scale = _mm512_permutevar_ps(_mm512_broadcast_f32x4(_mm_load_ps(scales)), spread);
      }
      const __m512i low = _mm512_shuffle_epi8(table, _mm512_and_si512(codes, nibble));
      const __m512i high = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(codes, 4), nibble));
#pragma GCC unroll 4
      for (int t = 0; t < kTokens; ++t) {
        const auto& chunk = reinterpret_cast<const Fp4Chunk*>(x[t])[block / 4];
        __m512i dot = _mm512_dpbusd_epi32(_mm512_loadu_si512(chunk.start), low, _mm512_loadu_si512(chunk.low));
        dot = _mm512_dpbusd_epi32(dot, high, _mm512_loadu_si512(chunk.high));
        const __m512 factor = _mm512_mul_ps(scale, _mm512_loadu_ps(chunk.scale));
        sum[r][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), factor, sum[r][t]);
      }
    }
  };
  int64_t block = 0;
  for (; block + 4 <= blocks; block += 4) step(block, 4);
  if (block < blocks) step(block, blocks - block);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) totals[t * kRows + r] = _mm512_reduce_add_ps(sum[r][t]);
  }
}

__m256i load_32(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

template <int kTokens>
void multiply_q8(const RowGroup& rows, int64_t blocks, const std::byte* const* x, float* totals) {
  const __m512i bias = _mm512_set1_epi8(static_cast<char>(kQ8Bias));
  __m512 sum[kRows][kTokens];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) sum[r][t] = _mm512_setzero_ps();
  }
  for (int64_t block = 0; block < blocks; block += 2) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const uint8_t* at = rows.values[static_cast<size_t>(r)] + block * 34;
      _mm_prefetch(at + rows.ahead, _MM_HINT_T0);
      const __m256i second = block + 1 < blocks ? load_32(at + 36) : _mm256_setzero_si256();
      const __m512i codes =
          _mm512_xor_si512(_mm512_inserti64x4(_mm512_castsi256_si512(load_32(at + 2)), second, 1), bias);
      const float* scales = rows.scales + r * rows.stride + block;
      const __m512 scale = _mm512_mask_broadcastss_ps(_mm512_set1_ps(scales[0]), 0xff00, _mm_load_ss(scales + 1));
#pragma GCC unroll 4
      for (int t = 0; t < kTokens; ++t) {
        const auto& chunk = reinterpret_cast<const Q8Chunk*>(x[t])[block / 2];
        const __m512i dot = _mm512_dpbusd_epi32(_mm512_loadu_si512(chunk.start), codes, _mm512_loadu_si512(chunk.low));
        const __m512 factor = _mm512_mul_ps(scale, _mm512_loadu_ps(chunk.scale));
        sum[r][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), factor, sum[r][t]);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) totals[t * kRows + r] = _mm512_reduce_add_ps(sum[r][t]);
  }
}

template <int kTokens>
void multiply_group(const WeightRows& w, const RowGroup& rows, const std::byte* const* x, float* totals) {
  const int64_t blocks = w.cols / kMxBlock;
  switch (w.format) {
    case WeightFormat::kMxfp4: return multiply_fp4<false, kTokens>(rows, blocks, x, totals);
    case WeightFormat::kGgmlMxfp4: return multiply_fp4<true, kTokens>(rows, blocks, x, totals);
    default: return multiply_q8<kTokens>(rows, blocks, x, totals);
  }
}

void multiply_rows(const MultiplyInt8Args& args) {
  const WeightRows& w = args.w;
  const int64_t stride = (w.cols / kMxBlock + 15) / 16 * 16;
  for (int first = 0; first < w.rows; first += kRows) {
    RowGroup rows{.values = {}, .scales = args.scratch, .stride = stride, .ahead = kRows * row_bytes(w.format, w.cols)};
    for (int r = 0; r < kRows; ++r) {
      const int row = std::min(first + r, w.rows - 1);  // the last is repeated, and not stored
      rows.values[static_cast<size_t>(r)] = w.values_of(row);
      load_scales(w, row, args.scratch + r * stride, w.cols / kMxBlock / 4 * 4);  // load_ggml reads the others
    }
    for (int t = 0; t < args.tokens; t += 4) {
      std::array<float, size_t{4} * kRows> totals;
      const std::byte* const* x = args.x.data() + t;
      const int tokens = std::min(args.tokens - t, 4);
      switch (tokens) {
        case 1: multiply_group<1>(w, rows, x, totals.data()); break;
        case 2: multiply_group<2>(w, rows, x, totals.data()); break;
        case 3: multiply_group<3>(w, rows, x, totals.data()); break;
        default: multiply_group<4>(w, rows, x, totals.data());
      }
      for (int i = 0; i < tokens; ++i) {
        for (int r = 0; r < std::min(kRows, w.rows - first); ++r) {
          args.out[(t + i) * kTileRows + first + r] = totals[static_cast<size_t>(i * kRows + r)];
        }
      }
    }
  }
}

// ---- Many tokens: one lane per token ----

// 32 values of kLaneTokens tokens: quad q holds values 4q..4q+3 of every token, each 128 too large.
struct TileBlock {
  uint8_t quads[8][kLaneTokens][4];
  float scale[kLaneTokens];
};

int64_t tile_size(int64_t cols) { return cols / kMxBlock * int64_t{sizeof(TileBlock)}; }

void prepare_tile(std::span<const float* const> x, int64_t cols, std::byte* out) {
  auto* blocks = reinterpret_cast<TileBlock*>(out);
  const __m128i bias = _mm_set1_epi8(static_cast<char>(128));
  for (int64_t b = 0; b < cols / kMxBlock; ++b) {
    TileBlock& block = blocks[b];
    for (size_t t = 0; t < kLaneTokens; ++t) {
      const Quantised q = t < x.size() ? quantise(x[t] + b * kMxBlock) : Quantised{};
      alignas(16) uint8_t bytes[kMxBlock];
      _mm_store_si128(reinterpret_cast<__m128i*>(bytes), _mm_xor_si128(q.first, bias));
      _mm_store_si128(reinterpret_cast<__m128i*>(bytes + 16), _mm_xor_si128(q.second, bias));
      for (size_t quad = 0; quad < 8; ++quad) std::memcpy(block.quads[quad][t], bytes + 4 * quad, 4);
      block.scale[t] = q.scale;
    }
  }
}

// A row of weights as signed bytes in their order, what its blocks' sums start from, and its scales.
struct ByteRows {
  int8_t* values;   // [kRows, cols]
  int32_t* starts;  // [kRows, stride]: -128 times the sum of a block
  float* scales;    // [kRows, stride]
  int64_t cols, stride;
};

template <bool kGgml>
void decode_fp4(const uint8_t* values, int64_t blocks, int8_t* out, int32_t* starts) {
  const __m512i table = fp4_table(0), nibble = _mm512_set1_epi8(15), ones = _mm512_set1_epi8(1);
  const __m512i lower = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11),
                upper = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  for (int64_t b = 0; b < blocks; b += 4) {
    const int64_t count = std::min<int64_t>(4, blocks - b);
    const __m512i codes = load_codes<kGgml>(values, b, count);
    __m512i first = _mm512_shuffle_epi8(table, _mm512_and_si512(codes, nibble));
    __m512i second = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(codes, 4), nibble));
    __m512i sum = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, first), ones, second);
    sum = _mm512_add_epi32(sum, _mm512_shuffle_epi32(sum, _MM_PERM_CDAB));
    sum = _mm512_add_epi32(sum, _mm512_shuffle_epi32(sum, _MM_PERM_BADC));
    sum = _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(sum, 7));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(starts + b),
                     _mm512_castsi512_si128(_mm512_maskz_compress_epi32(0x1111, sum)));
    if constexpr (!kGgml) {
      const __m512i even = first, odd = second;
      first = _mm512_unpacklo_epi8(even, odd);
      second = _mm512_unpackhi_epi8(even, odd);
    }
    const __m512i front = _mm512_permutex2var_epi64(first, lower, second);
    const __m512i back = _mm512_permutex2var_epi64(first, upper, second);
    const auto mask = [&](int64_t have) __attribute__((always_inline)) {
      return have >= 2 ? ~0ull : have == 1 ? 0xffffffffull : 0ull;
    };
    _mm512_mask_storeu_epi8(out + b * kMxBlock, mask(count), front);
    _mm512_mask_storeu_epi8(out + b * kMxBlock + 64, mask(count - 2), back);
  }
}

void decode_q8(const uint8_t* values, int64_t blocks, int8_t* out, int32_t* starts) {
  for (int64_t b = 0; b < blocks; ++b) {
    const __m256i codes = load_32(values + b * 34 + 2);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + b * kMxBlock), codes);
    const __m256i sums = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), codes);
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, _MM_SHUFFLE(1, 0, 3, 2)));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, _MM_SHUFFLE(2, 3, 0, 1)));
    starts[b] = -kQ8Bias * _mm_cvtsi128_si32(sum);
  }
}

// From memory as a float: as an integer g++ takes the way through a general register and port 5.
__m512i broadcast_dword(const void* p) {
  return _mm512_castps_si512(_mm512_broadcastss_ps(_mm_load_ss(static_cast<const float*>(p))));
}

struct BlockRange {
  int64_t begin, end;
};

// Adds the blocks' products to totals [kRows, kTileTokens], of which kTiles * kLaneTokens are used.
template <int kTiles>
void multiply_lanes(const ByteRows& rows, const std::byte* const* x, BlockRange blocks, float* totals) {
  __m512 sum[kRows][kTiles];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int i = 0; i < kTiles; ++i) sum[r][i] = _mm512_load_ps(totals + r * kTileTokens + i * kLaneTokens);
  }
  for (int64_t b = blocks.begin; b < blocks.end; ++b) {
    __m512i dot[kRows][kTiles];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int i = 0; i < kTiles; ++i) dot[r][i] = broadcast_dword(rows.starts + r * rows.stride + b);
    }
#pragma GCC unroll 8
    for (int quad = 0; quad < 8; ++quad) {
      __m512i tokens[kTiles];
#pragma GCC unroll 2
      for (int i = 0; i < kTiles; ++i) {
        tokens[i] = _mm512_load_si512(reinterpret_cast<const TileBlock*>(x[i])[b].quads[quad]);
      }
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const __m512i wide = broadcast_dword(rows.values + r * rows.cols + b * kMxBlock + quad * 4);
#pragma GCC unroll 2
        for (int i = 0; i < kTiles; ++i) dot[r][i] = _mm512_dpbusd_epi32(dot[r][i], tokens[i], wide);
      }
    }
#pragma GCC unroll 2
    for (int i = 0; i < kTiles; ++i) {
      const __m512 scale = _mm512_load_ps(reinterpret_cast<const TileBlock*>(x[i])[b].scale);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(rows.scales[r * rows.stride + b]));
        sum[r][i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[r][i]), factor, sum[r][i]);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int i = 0; i < kTiles; ++i) _mm512_store_ps(totals + r * kTileTokens + i * kLaneTokens, sum[r][i]);
  }
}

void decode_rows(const WeightRows& w, const ByteRows& rows, int count) {
  const int64_t blocks = w.cols / kMxBlock;
  for (int r = 0; r < count; ++r) {
    const int row = std::min(r, w.rows - 1);  // the last is repeated, and not stored
    load_scales(w, row, rows.scales + r * rows.stride);
    int8_t* values = rows.values + r * w.cols;
    int32_t* starts = rows.starts + r * rows.stride;
    if (w.format == WeightFormat::kGgmlQ8) {
      decode_q8(w.values_of(row), blocks, values, starts);
      continue;
    }
    for (int64_t b = 0; b < blocks; ++b) rows.scales[r * rows.stride + b] *= kFp4Unit;
    if (w.format == WeightFormat::kMxfp4) decode_fp4<false>(w.values_of(row), blocks, values, starts);
    if (w.format == WeightFormat::kGgmlMxfp4) decode_fp4<true>(w.values_of(row), blocks, values, starts);
  }
}

// Blocks whose activations, 64 tokens of them, stay in the first cache for all rows.
constexpr int64_t kStripBlocks = 12;

void multiply_tiles(const MultiplyInt8Args& args) {
  const WeightRows& w = args.w;
  const int64_t blocks = w.cols / kMxBlock, stride = (blocks + 15) / 16 * 16;
  const int count = (w.rows + kRows - 1) / kRows * kRows;
  auto* scratch = reinterpret_cast<std::byte*>(args.scratch);
  const ByteRows all{.values = reinterpret_cast<int8_t*>(scratch + 2 * kTileRows * stride * 4),
                     .starts = reinterpret_cast<int32_t*>(scratch + kTileRows * stride * 4),
                     .scales = args.scratch,
                     .cols = w.cols,
                     .stride = stride};
  decode_rows(w, all, count);
  alignas(64) std::array<float, size_t{kTileRows} * kTileTokens> totals{};
  const int tiles = (args.tokens + kLaneTokens - 1) / kLaneTokens;
  for (int64_t strip = 0; strip < blocks; strip += kStripBlocks) {
    const BlockRange range{strip, std::min(strip + kStripBlocks, blocks)};
    for (int r = 0; r < count; r += kRows) {
      const ByteRows rows{.values = all.values + r * w.cols,
                          .starts = all.starts + r * stride,
                          .scales = all.scales + r * stride,
                          .cols = w.cols,
                          .stride = stride};
      float* out = totals.data() + r * kTileTokens;
      int i = 0;
      for (; i + 2 <= tiles; i += 2) multiply_lanes<2>(rows, args.x.data() + i, range, out + i * kLaneTokens);
      if (i < tiles) multiply_lanes<1>(rows, args.x.data() + i, range, out + i * kLaneTokens);
    }
  }
  for (int t = 0; t < args.tokens; ++t) {
    for (int r = 0; r < w.rows; ++r) args.out[t * kTileRows + r] = totals[static_cast<size_t>(r * kTileTokens + t)];
  }
}

}  // namespace

const Int8Kernels& avx512_int8_kernels() {
  static constexpr Int8Kernels kTable{.row_size = row_size,
                                      .prepare_row = prepare_row,
                                      .multiply_rows = multiply_rows,
                                      .tile_size = tile_size,
                                      .prepare_tile = prepare_tile,
                                      .multiply_tiles = multiply_tiles,
                                      .tiles_from = 8};
  return kTable;
}

}  // namespace nibble::backend::cpu
HWY_POP_ATTRIBUTES
