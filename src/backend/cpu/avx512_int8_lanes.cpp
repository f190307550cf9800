// int8 products of some tokens: a lane of a vector per row, so that a row is decoded once for all of them.
#include "backend/cpu/avx512_lanes.h"

HWY_PUSH_ATTRIBUTES(NIBBLE_AVX512_TARGET)
namespace nibble::backend::cpu {
namespace {

// 32 values of a token in the order of LaneWeights::quads.
struct LaneBlock {
  int8_t quads[8][4];
  int32_t start;  // -bias times their sum
  float scale;    // times kFp4Unit where the weights are MXFP4; of zeros 1
};

// What stands before a row's blocks, in as many bytes as a cache line.
struct alignas(64) LaneHead {
  bool moderate;  // all scales are within 2^±kModerate
};

// Products of two moderate scales, one of them a power of two, are sums of their exponents.
constexpr int kModerate = 60;
constexpr int32_t kOneBits = 0x3f800000;

// Which of w's scales, powers of two, are not moderate.
__mmask16 extreme(__m512 scale) {
  const __m512i least = _mm512_set1_epi32(kOneBits - (kModerate << 23)), range = _mm512_set1_epi32(kModerate << 24);
  return _mm512_cmpgt_epu32_mask(_mm512_sub_epi32(_mm512_castps_si512(scale), least), range);
}

// Tokens that share a pass over the weights. Their sums, integers and factors, both vectors of weights and one of
// activations fill the 32 registers.
constexpr int kGroupTokens = 6;
// Blocks whose decoded weights (28 KB) stay in the first cache while the tokens pass by.
constexpr int64_t kStripBlocks = 24;

struct Strip {
  const LaneWeights* w;  // [blocks, kLaneVectors]
  int64_t first, blocks;
  int64_t ahead_bytes;  // to fetch per block
  bool moderate;        // scales are powers of two within 2^±kModerate
};

// sums [kTokens, kTileRows] += the strip's products; x: the tokens' rows. kModerateScales: of weights and tokens: then
// factors are added from exponents, which the two units that multiply leave to others.
template <int kTokens, bool kModerateScales>
void multiply_strip(const Strip& strip, const std::byte* const* x, Ahead& ahead, float* sums) {
  const LaneBlock* blocks[kTokens];
  __m512 sum[kTokens][kLaneVectors];
#pragma GCC unroll 6
  for (int t = 0; t < kTokens; ++t) {
    blocks[t] = reinterpret_cast<const LaneBlock*>(x[t] + sizeof(LaneHead)) + strip.first;
#pragma GCC unroll 2
    for (int v = 0; v < kLaneVectors; ++v) sum[t][v] = _mm512_load_ps(sums + t * kTileRows + v * kLaneRows);
  }
  for (int64_t b = 0; b < strip.blocks; ++b) {
    const LaneWeights* const w = strip.w + b * kLaneVectors;
    ahead.advance(strip.ahead_bytes);
    __m512i dot[kTokens][kLaneVectors];
#pragma GCC unroll 6
    for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 2
      for (int v = 0; v < kLaneVectors; ++v) dot[t][v] = broadcast_dword(&blocks[t][b].start);
    }
#pragma GCC unroll 8
    for (int q = 0; q < 8; ++q) {
#pragma GCC unroll 6
      for (int t = 0; t < kTokens; ++t) {
        const __m512i quad = broadcast_dword(blocks[t][b].quads[q]);
#pragma GCC unroll 2
        for (int v = 0; v < kLaneVectors; ++v) dot[t][v] = _mm512_dpbusd_epi32(dot[t][v], w[v].quads[q], quad);
      }
    }
#pragma GCC unroll 2
    for (int v = 0; v < kLaneVectors; ++v) {
      const __m512i exponent = _mm512_sub_epi32(_mm512_castps_si512(w[v].scale), _mm512_set1_epi32(kOneBits));
#pragma GCC unroll 6
      for (int t = 0; t < kTokens; ++t) {
        const float* scale = &blocks[t][b].scale;
        const __m512 factor = kModerateScales ? _mm512_castsi512_ps(_mm512_add_epi32(exponent, broadcast_dword(scale)))
                                              : _mm512_mul_ps(w[v].scale, _mm512_set1_ps(*scale));
        sum[t][v] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[t][v]), factor, sum[t][v]);
      }
    }
  }
#pragma GCC unroll 6
  for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 2
    for (int v = 0; v < kLaneVectors; ++v) _mm512_store_ps(sums + t * kTileRows + v * kLaneRows, sum[t][v]);
  }
}

template <WeightFormat kFormat>
void multiply(const MultiplyPreparedArgs& args, int64_t lanes_at) {
  const WeightRows& w = args.w;
  const __m512i table =
      kFormat == WeightFormat::kGgmlQ8 ? _mm512_set1_epi8(static_cast<char>(kQ8Bias)) : fp4_table(kFp4Bias);
  const std::array<LaneRows, kLaneVectors> rows = {LaneRows(w, 0), LaneRows(w, kLaneRows)};
  auto* const decoded = reinterpret_cast<LaneWeights*>(args.scratch);
  Ahead ahead(w, args.next, Ahead::rows_ahead(w, kTileRows));
  alignas(64) std::array<float, size_t{kTileTokens} * kTileRows> sums;
  std::fill_n(sums.begin(), args.tokens * kTileRows, 0.0f);
  std::array<const std::byte*, kTileTokens> x;
  for (size_t t = 0; t < static_cast<size_t>(args.tokens); ++t) x[t] = args.x[t] + lanes_at;
  const int groups = (args.tokens + kGroupTokens - 1) / kGroupTokens;
  const int64_t blocks = w.cols / kMxBlock, tile_bytes = kTileRows * row_bytes(kFormat, w.cols);
  const int64_t ahead_bytes = (tile_bytes + groups * blocks - 1) / (groups * blocks);
  for (int64_t first = 0; first < blocks; first += kStripBlocks) {
    Strip strip{decoded, first, std::min(kStripBlocks, blocks - first), ahead_bytes, false};
    __mmask16 extremes = 0;
    for (int64_t b = 0; b < strip.blocks; ++b) {
      for (size_t v = 0; v < kLaneVectors; ++v) {
        LaneWeights& out = decoded[b * kLaneVectors + static_cast<int64_t>(v)];
        out = decode_lanes<kFormat>(rows[v], first + b, table);
        if constexpr (kFormat != WeightFormat::kGgmlQ8) extremes |= extreme(out.scale);
      }
    }
    strip.moderate = kFormat != WeightFormat::kGgmlQ8 && extremes == 0;
    for (int g = 0, t = 0; g < groups; ++g) {
      const int tokens = (args.tokens - t + groups - g - 1) / (groups - g);
      const bool moderate =
          strip.moderate && std::all_of(x.begin() + t, x.begin() + t + tokens, [](const std::byte* row) {
            return reinterpret_cast<const LaneHead*>(row)->moderate;
          });
      with_count<kGroupTokens>(tokens, [&](auto count) {
        constexpr int kTokens = decltype(count)::value;
        (moderate ? multiply_strip<kTokens, true> : multiply_strip<kTokens, false>)(strip, x.data() + t, ahead,
                                                                                    sums.data() + t * kTileRows);
      });
      t += tokens;
    }
  }
  store_lanes(args, sums.data());
}

}  // namespace

int64_t int8_lanes_size(int64_t cols) {
  return int64_t{sizeof(LaneHead)} + (cols / kMxBlock * int64_t{sizeof(LaneBlock)} + 63) / 64 * 64;
}

void prepare_int8_lanes(WeightFormat format, std::span<const float> x, std::byte* out) {
  const bool q8 = format == WeightFormat::kGgmlQ8;
  auto* blocks = reinterpret_cast<LaneBlock*>(out + sizeof(LaneHead));
  bool moderate = true;
  for (size_t b = 0; b < x.size() / kMxBlock; ++b) {
    Int8Block q = quantise(x.data() + b * kMxBlock);
    if (format == WeightFormat::kMxfp4) q = even_then_odd(q);
    LaneBlock& block = blocks[b];
    _mm_storeu_si128(reinterpret_cast<__m128i*>(block.quads), q.first);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(block.quads + 4), q.second);
    block.start = start_of(q, q8 ? kQ8Bias : kFp4Bias);
    block.scale = q.scale == 0 ? 1.0f : q8 ? q.scale : q.scale * kFp4Unit;
    moderate &= block.scale >= 0x1p-60f && block.scale <= 0x1p60f;  // kModerate; not NaN
  }
  new (out) LaneHead{moderate};
}

void multiply_int8_lanes(const MultiplyPreparedArgs& args, int64_t lanes_at) {
  with_int8_format(args.w.format, [&](auto format) { multiply<decltype(format)::value>(args, lanes_at); });
}

}  // namespace nibble::backend::cpu
HWY_POP_ATTRIBUTES
