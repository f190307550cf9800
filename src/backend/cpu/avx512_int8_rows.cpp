// int8 products of few tokens: a token's row, in the order of the weights' bytes.
#include "backend/cpu/avx512_int8.h"

HWY_PUSH_ATTRIBUTES(NIBBLE_AVX512_TARGET)
namespace nibble::backend::cpu {
namespace {

// 64 values of Q8_0; of MXFP4 128 in two parts: those of low nibbles, and of high ones. MXFP4's last chunk of fewer
// blocks is the row's last four, with zeros for those that had their turn, so that it is read like every other.
template <int kParts>
struct Chunk {
  static constexpr int64_t kBlocks = 2 * kParts;
  int8_t x[kParts][64];
  int32_t start[16];  // -bias times the sum of a lane's activations
  float scale[16];    // of each lane's block, of MXFP4 times kFp4Unit
};

template <int kParts>
int64_t chunks_of(int64_t blocks) {
  return (blocks + Chunk<kParts>::kBlocks - 1) / Chunk<kParts>::kBlocks;
}

template <int kParts>
void prepare(WeightFormat format, std::span<const float> x, std::byte* out) {
  constexpr int64_t kBlocks = Chunk<kParts>::kBlocks, kLanes = 16 / kBlocks;  // of a block
  const auto blocks = static_cast<int64_t>(x.size()) / kMxBlock;
  auto* const chunks = reinterpret_cast<Chunk<kParts>*>(out);
  std::memset(chunks, 0, static_cast<size_t>(chunks_of<kParts>(blocks)) * sizeof(Chunk<kParts>));
  for (int64_t b = 0; b < blocks; ++b) {
    Chunk<kParts>& chunk = chunks[b / kBlocks];
    const bool of_last_four = kParts == 2 && b / 4 * 4 + 4 > blocks && blocks > 4;
    const int64_t at = of_last_four ? b - (blocks - 4) : b % kBlocks;
    Int8Block q = quantise(x.data() + b * kMxBlock);
    if (format == WeightFormat::kMxfp4) q = even_then_odd(q);
    int8_t* const first = chunk.x[0] + at * 64 / kBlocks;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(first), q.first);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(kParts == 2 ? first + 64 : first + 16), q.second);
    std::fill_n(chunk.scale + at * kLanes, kLanes, kParts == 2 ? q.scale * kFp4Unit : q.scale);
  }
  const __m512i bias = _mm512_set1_epi8(static_cast<char>(kParts == 2 ? kFp4Bias : kQ8Bias));
  for (int64_t c = 0; c < chunks_of<kParts>(blocks); ++c) {
    __m512i sum = _mm512_setzero_si512();
    for (const auto& part : chunks[c].x) sum = _mm512_dpbusd_epi32(sum, bias, _mm512_loadu_si512(part));
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
  int64_t blocks;
  const std::byte* const* x;
  int count;   // of rows that are stored
  float* out;  // [tokens, kTileRows]
  Ahead ahead;
};

float f16_at(const uint8_t* bytes) {
  uint16_t bits = 0;
  std::memcpy(&bits, bytes, sizeof bits);
  return _cvtsh_ss(bits);
}

// The weights of a row from `block` on that meet a chunk. whole: or only the first of Q8_0's two blocks is there.
template <WeightFormat kFormat, int kParts>
__attribute__((always_inline)) inline __m512 load_weights(const RowGroup& rows, size_t r, int64_t block, bool whole,
                                                          __m512i table, __m512i (&parts)[kParts]) {
  const uint8_t* const at = rows.values[r] + block * row_bytes(kFormat, kMxBlock);
  if constexpr (kFormat == WeightFormat::kGgmlQ8) {
    const __m256i second = whole ? load_32(at + 36) : _mm256_setzero_si256();
    parts[0] = _mm512_xor_si512(_mm512_inserti64x4(_mm512_castsi256_si512(load_32(at + 2)), second, 1), table);
    const __m128 last = _mm_set_ss(whole ? f16_at(at + 34) : 0.0f);
    return _mm512_mask_broadcastss_ps(_mm512_set1_ps(f16_at(at)), 0xff00, last);
  } else {
    __m512 scale;
    const __m512i codes =
        kFormat == WeightFormat::kGgmlMxfp4 ? load_ggml(at, &scale) : load_fp4(at, rows.scales[r] + block, &scale);
    parts[0] = low_values(table, codes);
    parts[1] = high_values(table, codes);
    return scale;
  }
}

template <WeightFormat kFormat, int kTokens>
void multiply_group(const RowGroup& rows) {
  constexpr bool kFp4 = kFormat != WeightFormat::kGgmlQ8;
  constexpr int kParts = kFp4 ? 2 : 1;
  constexpr int64_t kBlocks = Chunk<kParts>::kBlocks;
  const int64_t blocks = rows.blocks;
  const std::byte* const* x = rows.x;
  Ahead ahead = rows.ahead;
  const __m512i table = kFp4 ? fp4_table(kFp4Bias) : _mm512_set1_epi8(static_cast<char>(kQ8Bias));
  __m512 sum[kTokens][kInt8Rows];
#pragma GCC unroll 4
  for (int r = 0; r < kInt8Rows; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) sum[t][r] = _mm512_setzero_ps();
  }
  const auto step = [&](int64_t block, bool whole, int64_t chunk_idx) __attribute__((always_inline)) {
    ahead.fetch_next<kBlocks * kInt8Rows * row_bytes(kFormat, kMxBlock), false>();
    __m512i weights[kInt8Rows][kParts];
    __m512 scale[kInt8Rows];
#pragma GCC unroll 4
    for (size_t r = 0; r < kInt8Rows; ++r) scale[r] = load_weights<kFormat>(rows, r, block, whole, table, weights[r]);
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) {  // outside: a token is loaded once for the rows
      const auto& chunk = reinterpret_cast<const Chunk<kParts>*>(x[t])[chunk_idx];
      __m512i values[kParts];
#pragma GCC unroll 2
      for (int p = 0; p < kParts; ++p) values[p] = _mm512_loadu_si512(chunk.x[p]);
      const __m512 x_scale = _mm512_loadu_ps(chunk.scale);
#pragma GCC unroll 4
      for (int r = 0; r < kInt8Rows; ++r) {
        __m512i dot = _mm512_loadu_si512(chunk.start);
#pragma GCC unroll 2
        for (int p = 0; p < kParts; ++p) dot = _mm512_dpbusd_epi32(dot, weights[r][p], values[p]);
        const __m512 factor = _mm512_mul_ps(scale[r], x_scale);
        sum[t][r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), factor, sum[t][r]);
      }
    }
  };
  int64_t block = 0;
  for (; block + kBlocks <= blocks; block += kBlocks) step(block, true, block / kBlocks);
  if (block < blocks) step(kFp4 ? blocks - kBlocks : block, kFp4, block / kBlocks);
#pragma GCC unroll 4
  for (int t = 0; t < kTokens; ++t) store_sums(sum[t], rows.count, rows.out + t * kTileRows);
}

// Bytes of a prepared row before what the lanes read.
int64_t chunk_bytes(int64_t cols) {
  const int64_t blocks = cols / kMxBlock;
  return std::max(chunks_of<2>(blocks) * int64_t{sizeof(Chunk<2>)}, chunks_of<1>(blocks) * int64_t{sizeof(Chunk<1>)});
}

// Rows of MXFP4 of fewer than four blocks, and zeros behind them.
struct ShortRows {
  alignas(64) std::array<std::array<uint8_t, 4 * 17>, kInt8Rows> values{};
  std::array<std::array<uint8_t, 4>, kInt8Rows> scales{};
};

template <WeightFormat kFormat>
void multiply_rows(const MultiplyPreparedArgs& args) {
  const WeightRows& w = args.w;
  const int ahead = Ahead::rows_ahead(w, kInt8Rows);
  const int64_t blocks = w.cols / kMxBlock, bytes = row_bytes(kFormat, w.cols);
  ShortRows short_rows;
  for (int first = 0; first < w.rows; first += kInt8Rows) {
    RowGroup rows{.values = {},
                  .scales = {},
                  .blocks = blocks,
                  .x = nullptr,
                  .count = w.rows - first,
                  .out = nullptr,
                  .ahead = Ahead(w, args.next, first + ahead)};
    for (size_t r = 0; r < kInt8Rows; ++r) {
      const int row = std::min(first + static_cast<int>(r), w.rows - 1);  // the last is repeated, and not stored
      rows.values[r] = w.values + row * bytes;
      if (has_scale_array(kFormat)) rows.scales[r] = w.scales_of(row);
      if (kFormat == WeightFormat::kGgmlQ8 || blocks >= 4) continue;
      rows.blocks = 4;
      std::copy_n(rows.values[r], bytes, short_rows.values[r].data());
      if (has_scale_array(kFormat)) std::copy_n(rows.scales[r], blocks, short_rows.scales[r].data());
      rows.values[r] = short_rows.values[r].data();
      rows.scales[r] = short_rows.scales[r].data();
    }
    for (int t = 0; t < args.tokens; t += 4) {
      rows.x = args.x.data() + t;
      rows.out = args.out + t * kTileRows + first;
      with_count<4>(args.tokens - t, [&](auto count) { multiply_group<kFormat, decltype(count)::value>(rows); });
    }
  }
}

static_assert(kInt8AlikeTokens < 5);
// Tokens from which a lane per row is faster (cpu_bench, 2 threads of an EPYC of 2024).
int lanes_from(WeightFormat format) { return format == WeightFormat::kGgmlQ8 ? 5 : 7; }

}  // namespace

int64_t int8_row_size(int64_t cols) { return chunk_bytes(cols) + int8_lanes_size(cols); }

void prepare_int8_row(WeightFormat format, std::span<const float> x, int64_t tokens, std::byte* out) {
  if (tokens >= lanes_from(format)) prepare_int8_lanes(format, x, out + chunk_bytes(static_cast<int64_t>(x.size())));
  format == WeightFormat::kGgmlQ8 ? prepare<1>(format, x, out) : prepare<2>(format, x, out);
}

CpuIsa multiply_int8_rows(const MultiplyPreparedArgs& args) {
  const WeightRows& w = args.w;
  if (args.tokens >= lanes_from(w.format))
    multiply_int8_lanes(args, chunk_bytes(w.cols));
  else
    with_int8_format(w.format, [&](auto format) { multiply_rows<decltype(format)::value>(args); });
  return CpuIsa::kAvx512;
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
