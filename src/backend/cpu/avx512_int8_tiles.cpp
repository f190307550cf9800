// int8 products of many tokens: a lane of a vector per token.
#include "backend/cpu/avx512_int8.h"

HWY_PUSH_ATTRIBUTES(NIBBLE_AVX512_TARGET)
namespace nibble::backend::cpu {
namespace {

// 32 values of kLaneTokens tokens: quad q holds values 4q..4q+3 of every token, each 128 too large.
struct TileBlock {
  uint8_t quads[8][kLaneTokens][4];
  float scale[kLaneTokens];
};

// A row of weights as signed bytes in their order, what its blocks' sums start from, and its scales.
struct ByteRows {
  int8_t* values;   // [kInt8Rows, cols]
  int32_t* starts;  // [kInt8Rows, stride]: -128 times the sum of a block
  float* scales;    // [kInt8Rows, stride]
  int64_t cols, stride;
};

template <bool kGgml>
void decode_fp4(const uint8_t* values, int64_t blocks, int8_t* out, int32_t* starts) {
  const __m512i table = fp4_table(0), ones = _mm512_set1_epi8(1);
  const __m512i lower = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11),
                upper = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  for (int64_t b = 0; b < blocks; b += 4) {
    const int64_t count = std::min<int64_t>(4, blocks - b);
    const __m512i codes = load_codes<kGgml>(values, b, count);
    __m512i first = low_values(table, codes), second = high_values(table, codes);
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

struct BlockRange {
  int64_t begin, end;
};

// Adds the blocks' products to totals [kInt8Rows, kTileTokens], of which kTiles * kLaneTokens are used.
template <int kTiles>
void multiply_lanes(const ByteRows& rows, const std::byte* const* x, BlockRange blocks, float* totals) {
  __m512 sum[kInt8Rows][kTiles];
#pragma GCC unroll 4
  for (int r = 0; r < kInt8Rows; ++r) {
#pragma GCC unroll 2
    for (int i = 0; i < kTiles; ++i) sum[r][i] = _mm512_load_ps(totals + r * kTileTokens + i * kLaneTokens);
  }
  for (int64_t b = blocks.begin; b < blocks.end; ++b) {
    __m512i dot[kInt8Rows][kTiles];
#pragma GCC unroll 4
    for (int r = 0; r < kInt8Rows; ++r) {
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
      for (int r = 0; r < kInt8Rows; ++r) {
        const __m512i wide = broadcast_dword(rows.values + r * rows.cols + b * kMxBlock + quad * 4);
#pragma GCC unroll 2
        for (int i = 0; i < kTiles; ++i) dot[r][i] = _mm512_dpbusd_epi32(dot[r][i], tokens[i], wide);
      }
    }
#pragma GCC unroll 2
    for (int i = 0; i < kTiles; ++i) {
      const __m512 scale = _mm512_load_ps(reinterpret_cast<const TileBlock*>(x[i])[b].scale);
#pragma GCC unroll 4
      for (int r = 0; r < kInt8Rows; ++r) {
        const __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(rows.scales[r * rows.stride + b]));
        sum[r][i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[r][i]), factor, sum[r][i]);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kInt8Rows; ++r) {
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

// Blocks times tiles whose activations stay in the first cache for all rows.
constexpr int64_t kStripTiles = 48;

}  // namespace

int64_t int8_tile_size(int64_t cols) { return cols / kMxBlock * int64_t{sizeof(TileBlock)}; }

void prepare_int8_tile(WeightFormat, std::span<const float* const> x, int64_t cols, std::byte* out) {
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

void multiply_int8_tiles(const MultiplyInt8Args& args) {
  const WeightRows& w = args.w;
  const int64_t blocks = w.cols / kMxBlock, stride = (blocks + 15) / 16 * 16;
  const int count = (w.rows + kInt8Rows - 1) / kInt8Rows * kInt8Rows;
  auto* scratch = reinterpret_cast<std::byte*>(args.scratch);
  const ByteRows all{.values = reinterpret_cast<int8_t*>(scratch + 2 * kTileRows * stride * 4),
                     .starts = reinterpret_cast<int32_t*>(scratch + kTileRows * stride * 4),
                     .scales = args.scratch,
                     .cols = w.cols,
                     .stride = stride};
  decode_rows(w, all, count);
  alignas(64) std::array<float, size_t{kTileRows} * kTileTokens> totals{};
  const int tiles = (args.tokens + kLaneTokens - 1) / kLaneTokens;
  const int64_t strip_blocks = kStripTiles / tiles;
  for (int64_t strip = 0; strip < blocks; strip += strip_blocks) {
    const BlockRange range{strip, std::min(strip + strip_blocks, blocks)};
    for (int r = 0; r < count; r += kInt8Rows) {
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

}  // namespace nibble::backend::cpu
HWY_POP_ATTRIBUTES
