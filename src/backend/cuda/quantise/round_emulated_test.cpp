// Rounded activations, in blocks and in codes of rows (round_blocks.h), run lane by lane on the host.

#include "backend/cuda/emulation/device.h"

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
                               case Activations::kMxfp8: return any_round_blocks<Activations::kMxfp8>(args);
                               case Activations::kMxfp6: return any_round_blocks<Activations::kMxfp6>(args);
                               case Activations::kMxfp4: return any_round_blocks<Activations::kMxfp4>(args);
                               default: ADD_FAILURE() << "not rounded";
                             }
                           }),
            "");
}

TEST(round_blocks_emulated, are_the_bits_of_the_contract) {
  for (const Activations form : kInMxBlocks) {
    check_round<HostArray>({.rows = 3, .cols = 2880, .form = form}, round_blocks);
    check_round<HostArray>({.rows = 1, .cols = 32, .form = form}, round_blocks);
  }
  check_round<HostArray>({.rows = 16, .cols = 192, .panels = true}, round_blocks);
}

TEST(round_blocks_emulated, leave_every_code_as_it_is_and_know_every_scale) {
  for (const Activations form : kInMxBlocks) check_codes<HostArray>(form, round_blocks);
}

void round_rows(const RoundRows::Args& args) {
  const bool panels = args.panels != nullptr;
  const emulation::Launch launch{.grid = static_cast<int>(ceil_div(args.tokens, RoundRows::rows_at_once(panels))),
                                 .threads = round_rows_threads(args.cols),
                                 .predecessor = {}};
  const auto run = panels ? any_round_rows_e4m3<true> : any_round_rows_e4m3<false>;
  ASSERT_EQ(emulation::run(launch, [&] { run(args); }), "");
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
