// Rounded activations, in blocks and in codes of rows, on the device: against the contract's bits.

#include "backend/cuda/testing/round.h"
#include "backend/cuda/quantise/round_blocks.h"
#include "backend/cuda/testing/card.h"

#include <gtest/gtest.h>

namespace nibble::backend::cuda {
namespace {

class RoundBlocksTest : public CudaTest {};

TEST_F(RoundBlocksTest, are_the_bits_of_the_contract) {
  const auto run = [&](const RoundBlocks::Args& args) { RoundBlocks::launch(args, on_); };
  for (const Activations form : kInMxBlocks)
    for (const int64_t rows : {1, 3, 129}) {
      check_round<DeviceArray>({.rows = rows, .cols = 2880, .form = form}, run);
      check_round<DeviceArray>({.rows = rows, .cols = 32, .form = form}, run);
    }
  check_round<DeviceArray>({.rows = 136, .cols = 2880, .panels = true}, run);
}

TEST_F(RoundBlocksTest, leave_every_code_as_it_is_and_know_every_scale) {
  for (const Activations form : kInMxBlocks)
    check_codes<DeviceArray>(form, [&](const RoundBlocks::Args& args) { RoundBlocks::launch(args, on_); });
}

class RoundRowsTest : public CudaTest {
 protected:
  void round(const RoundRows::Args& args) { RoundRows::launch(args, on_); }
};

TEST_F(RoundRowsTest, are_the_codes_of_their_blocks_relative_to_the_row) {
  for (const RoundRowsCase& c : kRoundRowsCases)
    check_round_rows<DeviceArray>(c, [&](const RoundRows::Args& args) { round(args); });
  check_round_rows<DeviceArray>({.tokens = 300, .copies = 4}, [&](const RoundRows::Args& args) { round(args); });
  check_round_rows<DeviceArray>({.tokens = 300, .copies = 1, .panels = true},
                                [&](const RoundRows::Args& args) { round(args); });
}

TEST_F(RoundRowsTest, are_nan_where_a_value_is_not_finite) {
  check_round_rows_not_finite<DeviceArray>([&](const RoundRows::Args& args) { round(args); });
}

}  // namespace
}  // namespace nibble::backend::cuda
