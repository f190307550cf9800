// Rounded activations, in blocks and in codes of rows, and the experts' products on dp4a, on the device: against the
// contract's bits and double sums.

#include "backend/cuda/experts/grouped_plan.h"
#include "backend/cuda/testing/round.h"
#include "backend/cuda/quantise/round_blocks.h"
#include "backend/cuda/testing/card.h"

#include <gtest/gtest.h>

namespace nibble::backend::cuda {
namespace {

class RoundBlocks : public CudaTest {};

TEST_F(RoundBlocks, are_the_bits_of_the_contract_wherever_they_come_from) {
  const auto run = [&](const RoundBlocksArgs& args) { any_round_blocks(args, on_); };
  for (const Activations form : kRounded)
    for (const bool from_f32 : {true, false})
      for (const int64_t rows : {1, 3, 129}) {
        check_round<DeviceArray>({.rows = rows, .cols = 2880, .form = form, .from_f32 = from_f32}, run);
        check_round<DeviceArray>({.rows = rows, .cols = 32, .form = form, .from_f32 = from_f32}, run);
      }
  check_round<DeviceArray>({.rows = 136, .cols = 2880, .from_f32 = false, .panels = true}, run);
}

TEST_F(RoundBlocks, leave_every_code_as_it_is_and_know_every_scale) {
  for (const Activations form : kInMxBlocks)
    check_codes<DeviceArray>(form, [&](const RoundBlocksArgs& args) { any_round_blocks(args, on_); });
}

TEST_F(RoundBlocks, experts_on_int8_are_the_plain_product_for_one_to_many_pairs) {
  const auto check = [&](const Int8Case& c) {
    const int64_t pairs = int64_t{c.tokens} * 4;
    check_int8_experts<DeviceArray>(
        c,
        [&](const GroupedUpArgs& args) {
          any_gemv_int8_up(args, plan_gemv_int8(2 * int64_t{args.inter}, pairs, c.experts), on_);
        },
        [&](const GroupedDownArgs& args) {
          any_gemv_int8_down(args, plan_gemv_int8(args.hidden, pairs, c.experts), on_);
        });
  };
  for (const int tokens : {1, 2, 3, 8, 9, 17, 65})
    for (const GemmRouting routing : {GemmRouting::kRandom, GemmRouting::kSameForAll})
      check({.routing = routing, .tokens = tokens, .experts = 7});
  check({.tokens = 5, .experts = 6, .hidden = 2880, .inter = 2880});
  for (const int inter : {1440, 736, 672, 32}) check({.tokens = 5, .experts = 6, .inter = inter});
}

class RoundRows : public CudaTest {
 protected:
  void round(const RoundRowsArgs& args) { any_round_rows(args, on_); }
};

TEST_F(RoundRows, are_the_codes_of_their_blocks_relative_to_the_row) {
  for (const RoundRowsCase& c : kRoundRowsCases)
    check_round_rows<DeviceArray>(c, [&](const RoundRowsArgs& args) { round(args); });
  check_round_rows<DeviceArray>({.tokens = 300, .copies = 4}, [&](const RoundRowsArgs& args) { round(args); });
  check_round_rows<DeviceArray>({.tokens = 300, .copies = 1, .panels = true},
                                [&](const RoundRowsArgs& args) { round(args); });
}

TEST_F(RoundRows, are_nan_where_a_value_is_not_finite) {
  check_round_rows_not_finite<DeviceArray>([&](const RoundRowsArgs& args) { round(args); });
}

}  // namespace
}  // namespace nibble::backend::cuda
