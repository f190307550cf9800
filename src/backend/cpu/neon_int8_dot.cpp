// int8 products of some tokens by SDOT: a lane of a vector per row.
#include "backend/cpu/neon_int8_lanes.h"

#include <hwy/base.h>

HWY_PUSH_ATTRIBUTES(NIBBLE_DOTPROD_TARGET)
namespace nibble::backend::cpu::neon {
namespace {

struct DotPanel {
  static constexpr int kTokens = 4;
  // A vector holds four columns of four rows.
  struct Block {
    int8_t values[kTileRows / 8][8][2][16];  // [rows by eight, columns by four, rows by four]
    float scale[kTileRows];
  };
  // Tokens side by side.
  struct Operands {
    int8_t values[2][kTokens][16];
    float scale[kTokens];
  };

  template <WeightFormat kFormat>
  static void decode(const FourRows& rows, int64_t block, int row, Block& out) {
    using Form = Blocks<kFormat>;
    const Four at = rows.blocks_at<kFormat>(block);
#pragma GCC unroll 2
    for (int h = 0; h < Form::kRaws; ++h) {
      const auto raw = [&](size_t r) { return vreinterpretq_u32_u8(Form::load(at[r], h)); };
      const uint32x4_t a = raw(0), b = raw(1), c = raw(2), d = raw(3);
      const uint64x2_t ab = vreinterpretq_u64_u32(vtrn1q_u32(a, b)), ab_odd = vreinterpretq_u64_u32(vtrn2q_u32(a, b));
      const uint64x2_t cd = vreinterpretq_u64_u32(vtrn1q_u32(c, d)), cd_odd = vreinterpretq_u64_u32(vtrn2q_u32(c, d));
      const uint64x2_t fours[4] = {vtrn1q_u64(ab, cd), vtrn1q_u64(ab_odd, cd_odd), vtrn2q_u64(ab, cd),
                                   vtrn2q_u64(ab_odd, cd_odd)};
#pragma GCC unroll 4
      for (int q = 0; q < 4; ++q) {
        int8x16_t parts[Form::kParts];
        Form::decode(vreinterpretq_u8_u64(fours[q]), parts);
#pragma GCC unroll 2
        for (int p = 0; p < Form::kParts; ++p) vst1q_s8(out.values[row / 8][4 * (h + p) + q][row / 4 % 2], parts[p]);
      }
    }
    vst1q_f32(out.scale + row, Form::scales(rows.scales_at<kFormat>(block)));
  }

  static void pack(const StripArgs<DotPanel>& args) {
    for (int t = 0; t < args.tokens; ++t) {
      const PreparedRow& x = args.x[t];
      for (int64_t b = 0; b < args.blocks; ++b) {
        const int8_t* const values = x.values + (args.first + b) * kMxBlock;
        Operands& out = args.packed[b];
        vst1q_s8(out.values[0][t], vld1q_s8(values));
        vst1q_s8(out.values[1][t], vld1q_s8(values + 16));
        out.scale[t] = x.scales[args.first + b];
      }
    }
  }

  // dots[t][i] += the columns that lane kLane of each x has.
  template <int kCount, int kLane>
  __attribute__((always_inline)) static void add(const int8_t (&w)[2][16], const int8x16_t* x, int32x4_t (*dots)[2]) {
    const int8x16_t w0 = vld1q_s8(w[0]), w1 = vld1q_s8(w[1]);
#pragma GCC unroll 4
    for (int t = 0; t < kCount; ++t) {
      dots[t][0] = vdotq_laneq_s32(dots[t][0], w0, x[t], kLane);
      dots[t][1] = vdotq_laneq_s32(dots[t][1], w1, x[t], kLane);
    }
  }

  // Eight rows. A block and four tokens take 146 instructions, 64 of them SDOT (g++ 12 -O3).
  template <int kCount>
  static void multiply_eight(const StripArgs<DotPanel>& args, int row) {
    float32x4_t sum[kCount][2];
#pragma GCC unroll 4
    for (int t = 0; t < kCount; ++t) {
      sum[t][0] = vld1q_f32(args.sums + t * kTileRows + row);
      sum[t][1] = vld1q_f32(args.sums + t * kTileRows + row + 4);
    }
    for (int64_t b = 0; b < args.blocks; ++b) {
      const auto& w = args.w[b].values[row / 8];
      const Operands& packed = args.packed[b];
      int32x4_t dots[kCount][2];
#pragma GCC unroll 4
      for (int t = 0; t < kCount; ++t) dots[t][0] = dots[t][1] = vdupq_n_s32(0);
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        int8x16_t x[kCount];
#pragma GCC unroll 4
        for (int t = 0; t < kCount; ++t) x[t] = vld1q_s8(packed.values[h][t]);
        add<kCount, 0>(w[4 * h], x, dots);
        add<kCount, 1>(w[4 * h + 1], x, dots);
        add<kCount, 2>(w[4 * h + 2], x, dots);
        add<kCount, 3>(w[4 * h + 3], x, dots);
      }
      const float32x4_t scale[2] = {vld1q_f32(args.w[b].scale + row), vld1q_f32(args.w[b].scale + row + 4)};
#pragma GCC unroll 4
      for (int t = 0; t < kCount; ++t) {
        const float x_scale = packed.scale[t];
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i)
          sum[t][i] = vfmaq_f32(sum[t][i], vcvtq_f32_s32(dots[t][i]), vmulq_n_f32(scale[i], x_scale));
      }
    }
#pragma GCC unroll 4
    for (int t = 0; t < kCount; ++t) {
      vst1q_f32(args.sums + t * kTileRows + row, sum[t][0]);
      vst1q_f32(args.sums + t * kTileRows + row + 4, sum[t][1]);
    }
  }

  static void multiply(const StripArgs<DotPanel>& args) {
    pack(args);
    for (int row = 0; row < args.rows; row += 8)
      with_count<kTokens>(args.tokens, [&](auto count) { multiply_eight<decltype(count)::value>(args, row); });
  }
};

}  // namespace

void multiply_int8_dot(const MultiplyPreparedArgs& args) { multiply_lanes<DotPanel>(args); }

}  // namespace nibble::backend::cpu::neon
HWY_POP_ATTRIBUTES
