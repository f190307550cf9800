// int8 products of some tokens: a lane of a vector per row, so that a row is decoded once for all of them.
#include "backend/cpu/avx512_lanes.h"

HWY_PUSH_ATTRIBUTES(NIBBLE_AVX512_TARGET)
namespace nibble::backend::cpu {
namespace {

// 32 values of a token in the order of LaneWeights::quads.
struct LaneBlock {
  int8_t quads[8][4];
  int32_t start;  // -bias times their sum
  float scale;    // times kFp4Unit where the weights are MXFP4
};

template <WeightFormat kFormat>
void multiply(const MultiplyInt8Args& args, int64_t lanes_at) {
  const WeightRows& w = args.w;
  const __m512i table =
      kFormat == WeightFormat::kGgmlQ8 ? _mm512_set1_epi8(static_cast<char>(kQ8Bias)) : fp4_table(kFp4Bias);
  const LaneRows rows(w);
  Ahead ahead(w, args.next, 0, kTileRows);
  alignas(64) std::array<float, size_t{kTileTokens} * kTileRows> sums;
  std::fill_n(sums.begin(), args.tokens * kTileRows, 0.0f);
  const int64_t block_bytes = row_bytes(kFormat, kMxBlock);
  for (int64_t b = 0; b < w.cols / kMxBlock; ++b) {
    ahead.fetch((b + 1) * kTileRows * block_bytes);
    const LaneWeights weights = decode_lanes<kFormat>(rows, b, table);
    for (int t = 0; t < args.tokens; ++t) {
      const LaneBlock& x = reinterpret_cast<const LaneBlock*>(args.x[static_cast<size_t>(t)] + lanes_at)[b];
      __m512i dot = broadcast_dword(&x.start);
#pragma GCC unroll 8
      for (int q = 0; q < 8; ++q) dot = _mm512_dpbusd_epi32(dot, weights.quads[q], broadcast_dword(x.quads[q]));
      float* const sum = sums.data() + t * kTileRows;
      const __m512 factor = _mm512_mul_ps(weights.scale, _mm512_set1_ps(x.scale));
      _mm512_store_ps(sum, _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), factor, _mm512_load_ps(sum)));
    }
  }
  store_lanes(args, sums.data());
}

}  // namespace

int64_t int8_lanes_size(int64_t cols) { return (cols / kMxBlock * int64_t{sizeof(LaneBlock)} + 63) / 64 * 64; }

void prepare_int8_lanes(WeightFormat format, std::span<const float> x, std::byte* out) {
  const bool q8 = format == WeightFormat::kGgmlQ8;
  auto* blocks = reinterpret_cast<LaneBlock*>(out);
  for (size_t b = 0; b < x.size() / kMxBlock; ++b) {
    Quantised q = quantise(x.data() + b * kMxBlock);
    if (format == WeightFormat::kMxfp4) q = even_then_odd(q);
    LaneBlock& block = blocks[b];
    _mm_storeu_si128(reinterpret_cast<__m128i*>(block.quads), q.first);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(block.quads + 4), q.second);
    int32_t sum = 0;
    for (const auto& quad : block.quads) sum += quad[0] + quad[1] + quad[2] + quad[3];
    block.start = -(q8 ? kQ8Bias : kFp4Bias) * sum;
    block.scale = q8 ? q.scale : q.scale * kFp4Unit;
  }
}

void multiply_int8_lanes(const MultiplyInt8Args& args, int64_t lanes_at) {
  switch (args.w.format) {
    case WeightFormat::kMxfp4: return multiply<WeightFormat::kMxfp4>(args, lanes_at);
    case WeightFormat::kGgmlMxfp4: return multiply<WeightFormat::kGgmlMxfp4>(args, lanes_at);
    default: return multiply<WeightFormat::kGgmlQ8>(args, lanes_at);
  }
}

}  // namespace nibble::backend::cpu
HWY_POP_ATTRIBUTES
