// int8 products of few tokens on Arm: a row of weights goes by in the order of its bytes, by SDOT.
#include "backend/cpu/ahead.h"
#include "backend/cpu/neon_int8.h"

#include <hwy/base.h>

HWY_PUSH_ATTRIBUTES(NIBBLE_DOTPROD_TARGET)
namespace nibble::backend::cpu::neon {
namespace {

// Sums of a block's products: four, of eight each.
__attribute__((always_inline)) inline int32x4_t dot(const int8x16_t* w, const int8_t* x) {
  return vdotq_s32(vdotq_s32(vdupq_n_s32(0), w[0], vld1q_s8(x)), w[1], vld1q_s8(x + 16));
}

template <WeightFormat kFormat>
__attribute__((always_inline)) inline void decode_block(const uint8_t* block, int8x16_t (&w)[2]) {
  using Form = Blocks<kFormat>;
#pragma GCC unroll 2
  for (int h = 0; h < Form::kRaws; ++h) Form::decode(Form::load(block, h), w + h);
}

struct Row {
  const uint8_t* values;
  const uint8_t* scales;  // of OpenAI's MXFP4
  int64_t blocks;
};

// out[t] = row · x[t], kTileRows apart. Instructions of a step of four blocks and one token, as g++ 12 -O3 makes them:
// 58 for 68 bytes of MXFP4, 63 of ggml's, 57 for 136 of Q8_0.
template <WeightFormat kFormat, int kTokens>
void multiply_row(const Row& row, const PreparedRow* x, Ahead& ahead, float* out) {
  using Form = Blocks<kFormat>;
  float32x4_t sum[kTokens];
#pragma GCC unroll 4
  for (int t = 0; t < kTokens; ++t) sum[t] = vdupq_n_f32(0);
  int64_t b = 0;
  for (; b + 4 <= row.blocks; b += 4) {
    if constexpr (Form::kFp4)
      ahead.fetch_line<4 * Form::kBytes, true>();
    else
      ahead.fetch_next<4 * Form::kBytes, false>();
    int32x4_t dots[kTokens][4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      int8x16_t w[2];
      decode_block<kFormat>(row.values + (b + i) * Form::kBytes, w);
#pragma GCC unroll 4
      for (int t = 0; t < kTokens; ++t) dots[t][i] = dot(w, x[t].values + (b + i) * kMxBlock);
    }
    const float32x4_t scale = Form::row_scales(row.values + b * Form::kBytes, row.scales + b);
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) {
      const int32x4_t all = vpaddq_s32(vpaddq_s32(dots[t][0], dots[t][1]), vpaddq_s32(dots[t][2], dots[t][3]));
      sum[t] = vfmaq_f32(sum[t], vcvtq_f32_s32(all), vmulq_f32(scale, vld1q_f32(x[t].scales + b)));
    }
  }
  for (; b < row.blocks; ++b) {
    const uint8_t* const block = row.values + b * Form::kBytes;
    int8x16_t w[2];
    decode_block<kFormat>(block, w);
    const float scale = Form::scale(kFormat == WeightFormat::kMxfp4 ? row.scales + b : block);
    for (int t = 0; t < kTokens; ++t)
      sum[t] = vfmaq_n_f32(sum[t], vcvtq_f32_s32(dot(w, x[t].values + b * kMxBlock)), scale * x[t].scales[b]);
  }
  for (int t = 0; t < kTokens; ++t) {
    const float32x4_t total = vdupq_n_f32(vaddvq_f32(sum[t]));
    out[t * kTileRows] = vgetq_lane_f32(infinite_to_nan(total), 0);
  }
}

template <WeightFormat kFormat>
void multiply_rows(const MultiplyPreparedArgs& args) {
  const WeightRows& w = args.w;
  std::array<PreparedRow, kMostRowTokens> x;
  for (size_t t = 0; t < static_cast<size_t>(args.tokens); ++t) x[t] = PreparedRow(args.x[t], w.cols);
  Ahead ahead(w, args.next, Ahead::rows_ahead(w, 1));
  for (int r = 0; r < w.rows; ++r) {
    const Row row{.values = w.values_of(r),
                  .scales = has_scale_array(kFormat) ? w.scales_of(r) : w.values,
                  .blocks = w.cols / kMxBlock};
    with_count<kMostRowTokens>(args.tokens, [&](auto count) {
      multiply_row<kFormat, decltype(count)::value>(row, x.data(), ahead, args.out + r);
    });
  }
}

}  // namespace

void multiply_int8_rows(const MultiplyPreparedArgs& args) {
  with_int8_format(args.w.format, [&](auto format) { multiply_rows<decltype(format)::value>(args); });
}

}  // namespace nibble::backend::cpu::neon
HWY_POP_ATTRIBUTES
