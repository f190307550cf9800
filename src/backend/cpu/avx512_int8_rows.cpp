// int8 products of few tokens: a token's row, in the order of the weights' bytes.
#include "backend/cpu/avx512_int8.h"

HWY_PUSH_ATTRIBUTES(NIBBLE_AVX512_TARGET)
namespace nibble::backend::cpu {
namespace {

// 128 values of MXFP4: low nibbles' values, high nibbles' values; 64 of Q8_0: `low` only. A last chunk of fewer blocks
// is the row's last four, with zeros for those that had their turn, so that it is read like every other.
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

void prepare_q8(std::span<const float> x, Q8Chunk* chunks) {
  const auto blocks = static_cast<int64_t>(x.size()) / kMxBlock;
  std::memset(chunks, 0, static_cast<size_t>(chunks_of(blocks, 2)) * sizeof(Q8Chunk));
  for (int64_t b = 0; b < blocks; ++b) {
    Q8Chunk& chunk = chunks[b / 2];
    const int64_t at = b % 2;
    const Int8Block q = quantise(x.data() + b * kMxBlock);
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
  for (int64_t b = 0; b < blocks; ++b) {
    Fp4Chunk& chunk = chunks[b / 4];
    const int64_t at = b / 4 * 4 + 4 > blocks && blocks > 4 ? b - (blocks - 4) : b % 4;
    Int8Block q = quantise(x.data() + b * kMxBlock);
    if (interleaved) q = even_then_odd(q);
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

// A block's scale in byte 2 of its lanes becomes the exponent of a float. So 2^-127 becomes 0, which changes less than
// what rounding to 8 bits does, and NaN becomes infinity, which whole_sum() makes NaN again.
__m512 exponents(__m512i bytes) { return _mm512_castsi512_ps(_mm512_slli_epi32(bytes, 7)); }

// Four blocks of ggml: their codes, and their scales in each block's four lanes. Two loads, since each of them takes
// two lines' time: the last block's end lies past the first.
__m512i load_ggml(const uint8_t* p, __m512* scale) {
  // Lane 4b + i of `kCodes` is bytes 4i.. of block b's codes.
  alignas(64) static constexpr auto kCodes = [] {
    std::array<int8_t, 64> order{};
    for (int i = 0; i < 64; ++i) order[static_cast<size_t>(i)] = static_cast<int8_t>((i / 16 * 17 + 1 + i % 16) % 64);
    return order;
  }();
  alignas(64) static constexpr auto kScale = [] {
    std::array<int8_t, 64> order{};
    for (int i = 0; i < 64; ++i) order[static_cast<size_t>(i)] = static_cast<int8_t>(i / 16 * 17);
    return order;
  }();
  __m512i blocks = _mm512_loadu_si512(p);
  asm("" : "+v"(blocks));  // or g++ 12 loads it for each of the permutations
  *scale = exponents(_mm512_maskz_permutexvar_epi8(0x4444444444444444, _mm512_load_si512(kScale.data()), blocks));
  const __m128i last = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 52));
  return _mm512_inserti32x4(_mm512_permutexvar_epi8(_mm512_load_si512(kCodes.data()), blocks), last, 3);
}

// Four blocks of OpenAI's, whose scales lie apart.
__m512i load_fp4(const uint8_t* codes, const uint8_t* scales, __m512* scale) {
  alignas(64) static constexpr auto kScale = [] {
    std::array<uint8_t, 64> order{};
    for (int i = 0; i < 64; ++i) order[static_cast<size_t>(i)] = static_cast<uint8_t>(i % 4 == 2 ? i / 16 : 0x80);
    return order;
  }();
  *scale = exponents(_mm512_shuffle_epi8(broadcast_dword(scales), _mm512_load_si512(kScale.data())));
  return _mm512_loadu_si512(codes);
}

// out[r] = the sum of the lanes of sum[r], of `rows` of them. What is infinite becomes NaN: no later clamp may hide
// damaged weights.
__attribute__((always_inline)) inline void store_sums(const __m512 (&sum)[kInt8Rows], int rows, float* out) {
  const __m512 quarters = neighbours(neighbours(sum[0], sum[1]), neighbours(sum[2], sum[3]));
  const __m256 halves = _mm256_add_ps(_mm512_castps512_ps256(quarters), _mm512_extractf32x8_ps(quarters, 1));
  const __m128 total = _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1));
  const auto mask = static_cast<__mmask8>(rows >= kInt8Rows ? 0xf : (1 << rows) - 1);
  _mm_mask_storeu_ps(out, mask, _mm_add_ps(total, _mm_sub_ps(total, total)));
}

struct RowGroup {
  std::array<const uint8_t*, kInt8Rows> values;
  std::array<const uint8_t*, kInt8Rows> scales;  // of OpenAI's MXFP4
  const float* decoded;                          // scales of MXFP4 rows of fewer than four blocks: [kInt8Rows, stride]
  int64_t stride, blocks;
  const std::byte* const* x;
  int count;   // of rows that are stored
  float* out;  // [tokens, kTileRows]
  Ahead ahead;
};

template <bool kGgml, int kTokens>
void multiply_fp4(const RowGroup& rows) {
  const int64_t blocks = rows.blocks;
  const std::byte* const* x = rows.x;
  Ahead ahead = rows.ahead;
  const __m512i table = fp4_table(kFp4Bias);
  const __m512i spread = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
  __m512 sum[kTokens][kInt8Rows];
#pragma GCC unroll 4
  for (int r = 0; r < kInt8Rows; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) sum[t][r] = _mm512_setzero_ps();
  }
  const auto step = [&](int64_t block, int64_t count, int64_t chunk_idx) __attribute__((always_inline)) {
    constexpr int kStepBytes = 4 * kInt8Rows * (kGgml ? 17 : 16);
    ahead.fetch_next<kStepBytes, false>();
    __m512i low[kInt8Rows], high[kInt8Rows];
    __m512 scale[kInt8Rows];
#pragma GCC unroll 4
    for (int r = 0; r < kInt8Rows; ++r) {
      const uint8_t* values = rows.values[static_cast<size_t>(r)];
      __m512i codes;
      if (count < 4) {
        codes = load_codes<kGgml>(values, block, count);
        const float* scales = rows.decoded + r * rows.stride;
        scale[r] = _mm512_permutevar_ps(_mm512_broadcast_f32x4(_mm_loadu_ps(scales)), spread);
      } else if (kGgml) {
        codes = load_ggml(values + block * 17, &scale[r]);
      } else {
        codes = load_fp4(values + block * 16, rows.scales[static_cast<size_t>(r)] + block, &scale[r]);
      }
      low[r] = low_values(table, codes);
      high[r] = high_values(table, codes);
    }
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) {  // outside: a token is loaded once for the rows
      const auto& chunk = reinterpret_cast<const Fp4Chunk*>(x[t])[chunk_idx];
      const __m512i x_low = _mm512_loadu_si512(chunk.low), x_high = _mm512_loadu_si512(chunk.high);
      const __m512 x_scale = _mm512_loadu_ps(chunk.scale);
#pragma GCC unroll 4
      for (int r = 0; r < kInt8Rows; ++r) {
        __m512i dot = _mm512_dpbusd_epi32(_mm512_loadu_si512(chunk.start), low[r], x_low);
        dot = _mm512_dpbusd_epi32(dot, high[r], x_high);
        const __m512 factor = _mm512_mul_ps(scale[r], x_scale);
        sum[t][r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), factor, sum[t][r]);
      }
    }
  };
  int64_t block = 0;
  for (; block + 4 <= blocks; block += 4) step(block, 4, block / 4);
  if (blocks < 4) {
    step(0, blocks, 0);
  } else if (block < blocks) {
    step(blocks - 4, 4, block / 4);
  }
#pragma GCC unroll 4
  for (int t = 0; t < kTokens; ++t) store_sums(sum[t], rows.count, rows.out + t * kTileRows);
}

float f16_at(const uint8_t* bytes) {
  uint16_t bits = 0;
  std::memcpy(&bits, bytes, sizeof bits);
  return _cvtsh_ss(bits);
}

template <int kTokens>
void multiply_q8(const RowGroup& rows) {
  const int64_t blocks = rows.blocks;
  const std::byte* const* x = rows.x;
  Ahead ahead = rows.ahead;
  const __m512i bias = _mm512_set1_epi8(static_cast<char>(kQ8Bias));
  __m512 sum[kTokens][kInt8Rows];
#pragma GCC unroll 4
  for (int r = 0; r < kInt8Rows; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) sum[t][r] = _mm512_setzero_ps();
  }
  const auto step = [&](int64_t block, bool both) __attribute__((always_inline)) {
    ahead.fetch_next<2 * kInt8Rows * 34, false>();
    __m512i codes[kInt8Rows];
    __m512 scale[kInt8Rows];
#pragma GCC unroll 4
    for (int r = 0; r < kInt8Rows; ++r) {
      const uint8_t* at = rows.values[static_cast<size_t>(r)] + block * 34;
      const __m256i second = both ? load_32(at + 36) : _mm256_setzero_si256();
      codes[r] = _mm512_xor_si512(_mm512_inserti64x4(_mm512_castsi256_si512(load_32(at + 2)), second, 1), bias);
      const __m128 last = _mm_set_ss(both ? f16_at(at + 34) : 0.0f);
      scale[r] = _mm512_mask_broadcastss_ps(_mm512_set1_ps(f16_at(at)), 0xff00, last);
    }
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) {
      const auto& chunk = reinterpret_cast<const Q8Chunk*>(x[t])[block / 2];
      const __m512i x_low = _mm512_loadu_si512(chunk.low), x_start = _mm512_loadu_si512(chunk.start);
      const __m512 x_scale = _mm512_loadu_ps(chunk.scale);
#pragma GCC unroll 4
      for (int r = 0; r < kInt8Rows; ++r) {
        const __m512i dot = _mm512_dpbusd_epi32(x_start, codes[r], x_low);
        const __m512 factor = _mm512_mul_ps(scale[r], x_scale);
        sum[t][r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), factor, sum[t][r]);
      }
    }
  };
  int64_t block = 0;
  for (; block + 2 <= blocks; block += 2) step(block, true);
  if (block < blocks) step(block, false);
#pragma GCC unroll 4
  for (int t = 0; t < kTokens; ++t) store_sums(sum[t], rows.count, rows.out + t * kTileRows);
}

template <int kTokens>
void multiply_group(WeightFormat format, const RowGroup& rows) {
  switch (format) {
    case WeightFormat::kMxfp4: return multiply_fp4<false, kTokens>(rows);
    case WeightFormat::kGgmlMxfp4: return multiply_fp4<true, kTokens>(rows);
    default: return multiply_q8<kTokens>(rows);
  }
}

// Bytes of a prepared row before what the lanes read.
int64_t chunk_bytes(int64_t cols) {
  return std::max(chunks_of(cols, 128) * int64_t{sizeof(Fp4Chunk)}, chunks_of(cols, 64) * int64_t{sizeof(Q8Chunk)});
}

static_assert(kInt8AlikeTokens < 5);
// Tokens from which a lane per row is faster (cpu_bench, 2 threads of an EPYC of 2024).
int lanes_from(WeightFormat format) { return format == WeightFormat::kGgmlQ8 ? 5 : 7; }

}  // namespace

int64_t int8_row_size(int64_t cols) { return chunk_bytes(cols) + int8_lanes_size(cols); }

void prepare_int8_row(WeightFormat format, std::span<const float> x, int64_t tokens, std::byte* out) {
  if (tokens >= lanes_from(format)) prepare_int8_lanes(format, x, out + chunk_bytes(static_cast<int64_t>(x.size())));
  if (format == WeightFormat::kGgmlQ8) return prepare_q8(x, reinterpret_cast<Q8Chunk*>(out));
  prepare_fp4(x, format == WeightFormat::kMxfp4, reinterpret_cast<Fp4Chunk*>(out));
}

void multiply_int8_rows(const MultiplyPreparedArgs& args) {
  const WeightRows& w = args.w;
  if (args.tokens >= lanes_from(w.format)) return multiply_int8_lanes(args, chunk_bytes(w.cols));
  const int64_t stride = (w.cols / kMxBlock + 15) / 16 * 16;
  const int ahead = Ahead::rows_ahead(w, kInt8Rows);
  const int64_t bytes = row_bytes(w.format, w.cols);
  for (int first = 0; first < w.rows; first += kInt8Rows) {
    RowGroup rows{.values = {},
                  .scales = {},
                  .decoded = args.scratch,
                  .stride = stride,
                  .blocks = w.cols / kMxBlock,
                  .x = nullptr,
                  .count = w.rows - first,
                  .out = nullptr,
                  .ahead = Ahead(w, args.next, first + ahead)};
    for (int r = 0; r < kInt8Rows; ++r) {
      const int row = std::min(first + r, w.rows - 1);  // the last is repeated, and not stored
      rows.values[static_cast<size_t>(r)] = w.values + row * bytes;
      if (has_scale_array(w.format)) rows.scales[static_cast<size_t>(r)] = w.scales_of(row);
      if (w.format != WeightFormat::kGgmlQ8 && rows.blocks < 4) load_scales(w, row, args.scratch + r * stride);
    }
    for (int t = 0; t < args.tokens; t += 4) {
      rows.x = args.x.data() + t;
      rows.out = args.out + t * kTileRows + first;
      switch (args.tokens - t) {
        case 1: multiply_group<1>(w.format, rows); break;
        case 2: multiply_group<2>(w.format, rows); break;
        case 3: multiply_group<3>(w.format, rows); break;
        default: multiply_group<4>(w.format, rows);
      }
    }
  }
}

const Int8Kernels& avx512_int8_kernels() {
  static constexpr Int8Kernels kTable{.row_size = int8_row_size,
                                      .prepare_row = prepare_int8_row,
                                      .multiply_rows = multiply_int8_rows,
                                      .alike_tokens = kInt8AlikeTokens,
                                      .tiles = {&kInt8TokenTiles}};
  return kTable;
}

}  // namespace nibble::backend::cpu
HWY_POP_ATTRIBUTES
