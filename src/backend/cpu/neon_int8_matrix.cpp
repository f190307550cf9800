// int8 products of some tokens by SMMLA: eight columns of two rows times those of two tokens.
#include "backend/cpu/neon_int8_lanes.h"

#include <hwy/base.h>

HWY_PUSH_ATTRIBUTES(NIBBLE_I8MM_TARGET)
namespace nibble::backend::cpu::neon {
namespace {

inline uint64x2_t as_eights(uint8x16_t v) { return vreinterpretq_u64_u8(v); }
inline int8x16_t zip_low(int8x16_t a, int8x16_t b) {
  return vreinterpretq_s8_s64(vzip1q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b)));
}
inline int8x16_t zip_high(int8x16_t a, int8x16_t b) {
  return vreinterpretq_s8_s64(vzip2q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b)));
}

struct MatrixPanel {
  static constexpr int kTokens = 8, kPairs = kTokens / 2;
  // A vector holds eight columns of two rows.
  struct Block {
    int8_t values[kTileRows / 4][4][2][16];  // [rows by four, columns by eight, rows by two]
    float scale[kTileRows / 4][2][4];        // of a vector of sums: a row's twice
  };
  // The tokens, and their scales in turns.
  struct Operands {
    int8_t values[4][kPairs][16];
    float scale[kPairs][4];
  };

  template <WeightFormat kFormat>
  static void decode(const FourRows& rows, int64_t block, int row, Block& out) {
    using Form = Blocks<kFormat>;
    const Four at = rows.blocks_at<kFormat>(block);
#pragma GCC unroll 2
    for (int h = 0; h < Form::kRaws; ++h) {
#pragma GCC unroll 2
      for (size_t i = 0; i < 2; ++i) {
        const uint64x2_t a = as_eights(Form::load(at[2 * i], h)), b = as_eights(Form::load(at[2 * i + 1], h));
        const uint64x2_t eights[2] = {vzip1q_u64(a, b), vzip2q_u64(a, b)};
#pragma GCC unroll 2
        for (int e = 0; e < 2; ++e) {
          int8x16_t parts[Form::kParts];
          Form::decode(vreinterpretq_u8_u64(eights[e]), parts);
#pragma GCC unroll 2
          for (int p = 0; p < Form::kParts; ++p) vst1q_s8(out.values[row / 4][2 * (h + p) + e][i], parts[p]);
        }
      }
    }
    const float32x4_t scale = Form::scales(rows.scales_at<kFormat>(block));
    vst1q_f32(out.scale[row / 4][0], vzip1q_f32(scale, scale));
    vst1q_f32(out.scale[row / 4][1], vzip2q_f32(scale, scale));
  }

  // The last token is repeated where there is an odd number of them.
  static void pack(const StripArgs<MatrixPanel>& args) {
    for (int p = 0; 2 * p < args.tokens; ++p) {
      const PreparedRow& even = args.x[2 * p];
      const PreparedRow& odd = args.x[std::min(2 * p + 1, args.tokens - 1)];
      for (int64_t b = 0; b < args.blocks; ++b) {
        const int64_t at = (args.first + b) * kMxBlock;
        Operands& out = args.packed[b];
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
          const int8x16_t x0 = vld1q_s8(even.values + at + 16 * h), x1 = vld1q_s8(odd.values + at + 16 * h);
          vst1q_s8(out.values[2 * h][p], zip_low(x0, x1));
          vst1q_s8(out.values[2 * h + 1][p], zip_high(x0, x1));
        }
        const float32x2_t scale = {even.scales[args.first + b], odd.scales[args.first + b]};
        vst1q_f32(out.scale[p], vcombine_f32(scale, scale));
      }
    }
  }

  // Four rows. A block and eight tokens take 92 instructions, 32 of them SMMLA (g++ 12 -O3).
  template <int kCount>
  static void multiply_four(const StripArgs<MatrixPanel>& args, int row) {
    // A vector of sums: a row's of two tokens, then the next row's.
    float32x4_t sum[kCount][2];
#pragma GCC unroll 4
    for (int p = 0; p < kCount; ++p) {
      const float* const even = args.sums + 2 * p * kTileRows + row;
      const float* const odd = 2 * p + 1 < args.tokens ? even + kTileRows : even;
      sum[p][0] = vzip1q_f32(vld1q_f32(even), vld1q_f32(odd));
      sum[p][1] = vzip2q_f32(vld1q_f32(even), vld1q_f32(odd));
    }
    for (int64_t b = 0; b < args.blocks; ++b) {
      const Block& w = args.w[b];
      const Operands& x = args.packed[b];
      int32x4_t dots[kCount][2];
#pragma GCC unroll 4
      for (int p = 0; p < kCount; ++p) dots[p][0] = dots[p][1] = vdupq_n_s32(0);
#pragma GCC unroll 4
      for (int e = 0; e < 4; ++e) {
        const int8x16_t w0 = vld1q_s8(w.values[row / 4][e][0]), w1 = vld1q_s8(w.values[row / 4][e][1]);
#pragma GCC unroll 4
        for (int p = 0; p < kCount; ++p) {
          const int8x16_t two = vld1q_s8(x.values[e][p]);
          dots[p][0] = vmmlaq_s32(dots[p][0], w0, two);
          dots[p][1] = vmmlaq_s32(dots[p][1], w1, two);
        }
      }
      const float32x4_t scale[2] = {vld1q_f32(w.scale[row / 4][0]), vld1q_f32(w.scale[row / 4][1])};
#pragma GCC unroll 4
      for (int p = 0; p < kCount; ++p) {
        const float32x4_t x_scale = vld1q_f32(x.scale[p]);
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i)
          sum[p][i] = vfmaq_f32(sum[p][i], vcvtq_f32_s32(dots[p][i]), vmulq_f32(scale[i], x_scale));
      }
    }
#pragma GCC unroll 4
    for (int p = 0; p < kCount; ++p) {
      float* const even = args.sums + 2 * p * kTileRows + row;
      vst1q_f32(even, vuzp1q_f32(sum[p][0], sum[p][1]));
      if (2 * p + 1 < args.tokens) vst1q_f32(even + kTileRows, vuzp2q_f32(sum[p][0], sum[p][1]));
    }
  }

  static void multiply(const StripArgs<MatrixPanel>& args) {
    pack(args);
    for (int row = 0; row < args.rows; row += 4)
      with_count<kPairs>((args.tokens + 1) / 2, [&](auto count) { multiply_four<decltype(count)::value>(args, row); });
  }
};

}  // namespace

void multiply_int8_matrix(const MultiplyPreparedArgs& args) { multiply_lanes<MatrixPanel>(args); }

}  // namespace nibble::backend::cpu::neon
HWY_POP_ATTRIBUTES
