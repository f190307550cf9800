// Experts' rounded activations (round_blocks.h) and their products on dp4a (gemv_int8.h), run lane by lane on the host.

#include "backend/cuda/emulation/device.h"

#include "backend/cuda/experts/gemv_int8.cuh"
#include "backend/cuda/quantise/round_blocks.cuh"
#include "backend/cuda/quantise/round_blocks_testing.h"

#include <gtest/gtest.h>

namespace nibble::backend::cuda {
namespace {

void round_blocks(const RoundBlocksArgs& args) {
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
  const auto up = [](const GroupedUpArgs& args) { multiply<Int8Up>(args, args.hidden, 2 * int64_t{args.inter}); };
  const auto down = [](const GroupedDownArgs& args) { multiply<Int8Down>(args, args.inter, args.hidden); };
  for (const int tokens : {1, 2, 5, 9})
    for (const GemmRouting routing : {GemmRouting::kRandom, GemmRouting::kSameForAll})
      check_int8_experts<HostArray>({.routing = routing, .tokens = tokens, .experts = 5}, up, down);
  check_int8_experts<HostArray>({.tokens = 2, .experts = 4, .hidden = 64 * 45, .inter = 192}, up, down);
  for (const int inter : {1440, 736, 672, 640, 64, 32})
    check_int8_experts<HostArray>({.tokens = 2, .experts = 4, .inter = inter}, up, down);
}

}  // namespace
}  // namespace nibble::backend::cuda
