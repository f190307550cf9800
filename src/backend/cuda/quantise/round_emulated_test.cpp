// Rounded activations, in blocks and in codes of rows (round_blocks.h), and the experts' products on
// dp4a (gemv_int8.cuh), run lane by lane on the host.

#include "backend/cuda/emulation/device.h"

#include "backend/cuda/experts/gemv_int8.cuh"
#include "backend/cuda/testing/round.h"
#include "backend/cuda/quantise/round_blocks.cuh"

#include <gtest/gtest.h>

namespace nibble::backend::cuda {
namespace {

void round_blocks(const RoundBlocks::Args& args) {
  const int64_t ctas = (args.values / kRoundValues + kRoundThreads - 1) / kRoundThreads;
  const emulation::Launch launch{.grid = static_cast<int>(ctas), .threads = kRoundThreads, .predecessor = {}};
  ASSERT_EQ(emulation::run(launch,
                           [&] {
                             switch (args.form) {
                               case Activations::kInt8: return any_round_blocks_f32<Activations::kInt8>(args);
                               case Activations::kMxfp8: return any_round_blocks_f32<Activations::kMxfp8>(args);
                               case Activations::kMxfp6: return any_round_blocks_f32<Activations::kMxfp6>(args);
                               case Activations::kMxfp4: return any_round_blocks_f32<Activations::kMxfp4>(args);
                               default: ADD_FAILURE() << "not rounded";
                             }
                           }),
            "");
}

TEST(round_blocks_emulated, are_the_bits_of_the_contract_wherever_they_come_from) {
  for (const Activations form : kRounded)
    for (const bool from_f32 : {true, false}) {
      check_round<HostArray>({.rows = 3, .cols = 2880, .form = form, .from_f32 = from_f32}, round_blocks);
      check_round<HostArray>({.rows = 1, .cols = 32, .form = form, .from_f32 = from_f32}, round_blocks);
    }
  check_round<HostArray>({.rows = 16, .cols = 192, .from_f32 = false, .panels = true}, round_blocks);
}

TEST(round_blocks_emulated, leave_every_code_as_it_is_and_know_every_scale) {
  for (const Activations form : kInMxBlocks) check_codes<HostArray>(form, round_blocks);
}

template <class Op>
void multiply(const typename Op::Args& args, int64_t cols, int64_t rows) {
  check_args(args);
  const emulation::Launch launch{.grid = static_cast<int>(rows / layout::kTileRows),
                                 .threads = kInt8Threads,
                                 .grid_y = args.groups.tile_counts[0] + 1,  // the plan's may be too many
                                 .predecessor = {}};
  ASSERT_EQ(emulation::run(launch,
                           [&] {
                             const layout::Slices slices = layout::slices_of(cols);
                             if (slices.missing > 0) return any_gemv_int8<Int8Tile<6, true>, Op>(args);
                             if (slices.blocks == 6) return any_gemv_int8<Int8Tile<6>, Op>(args);
                             any_gemv_int8<Int8Tile<8>, Op>(args);
                           }),
            "");
}

TEST(gemv_int8_emulated, experts_are_the_plain_product_for_one_to_many_pairs) {
  const auto up = [](const GroupedUp::Args& args) { multiply<Int8UpOp>(args, args.hidden, 2 * int64_t{args.inter}); };
  const auto down = [](const GroupedDown::Args& args) { multiply<Int8DownOp>(args, args.inter, args.hidden); };
  for (const int tokens : {1, 2, 5, 9})
    for (const GemmRouting routing : {GemmRouting::kRandom, GemmRouting::kSameForAll})
      check_int8_experts<HostArray>({.routing = routing, .tokens = tokens, .experts = 5}, up, down);
  check_int8_experts<HostArray>({.tokens = 2, .experts = 4, .hidden = 64 * 45, .inter = 192}, up, down);
  for (const int inter : {1440, 736, 672, 640, 64, 32})
    check_int8_experts<HostArray>({.tokens = 2, .experts = 4, .inter = inter}, up, down);
}

void round_rows(const RoundRows::Args& args) {
  const emulation::Launch launch{.grid = args.tokens, .threads = round_rows_threads(args.cols), .predecessor = {}};
  ASSERT_EQ(emulation::run(launch, [&] { any_round_rows_e4m3(args); }), "");
}

TEST(round_rows_emulated, are_the_codes_of_their_blocks_relative_to_the_row) {
  for (const RoundRowsCase& c : kRoundRowsCases) check_round_rows<HostArray>(c, round_rows);
}

TEST(round_rows_emulated, are_nan_where_a_value_is_not_finite) { check_round_rows_not_finite<HostArray>(round_rows); }

// Exact where a block's scale is the row's; at most 2^-18 of the row's largest value is lost elsewhere.
TEST(round_rows_emulated, lose_little_of_what_mxfp8_holds) {
  constexpr int kCols = 2880;
  std::vector<float> values = test_floats(4 * kCols, 77);
  for (size_t i = 0; i < values.size(); ++i) values[i] *= std::ldexp(1.0f, -static_cast<int>(i / kMxBlock % 13));
  const RowCodes rows(values, kCols);
  std::vector<float> mx = values;
  round_activations(Activations::kMxfp8, mx);
  for (int row = 0; row < 4; ++row) {
    float most = 0;
    for (int k = 0; k < kCols; ++k) most = std::max(most, std::abs(mx[static_cast<size_t>(row * kCols + k)]));
    for (int k = 0; k < kCols; ++k)
      ASSERT_LE(std::abs(rows.at(row, k) - mx[static_cast<size_t>(row * kCols + k)]), most * 0x1p-18f) << k;
  }
}

}  // namespace
}  // namespace nibble::backend::cuda
