// Codes of rows (round_rows.h) on the device.

#include "backend/cuda/quantise/round_rows.h"
#include "backend/cuda/quantise/round_rows_testing.h"
#include "backend/cuda/testing.h"

#include <gtest/gtest.h>

namespace nibble::backend::cuda {
namespace {

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
