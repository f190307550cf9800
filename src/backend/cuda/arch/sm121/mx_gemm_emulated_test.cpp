// sm121_mx_gemm, ScalarMx and EmulatedMx, run lane by lane on the host: against double products, exact ones and the
// codes of base/dtype.h.

#include "backend/cuda/emulation/device.h"

#include "backend/cuda/testing/emulated_mx.cuh"
#include "backend/cuda/arch/sm121/mx_gemm.cuh"
#include "backend/cuda/testing/mx_gemm.h"
#include "backend/cuda/testing/mx_probe.cuh"
#include "backend/cuda/testing/mx.h"
#include "backend/cuda/emulation/scalar_mx.h"
#include "backend/cuda/testing/around_gemm.h"

#include <gtest/gtest.h>

namespace nibble::backend::cuda {
namespace {

template <class Mma, class Tile, MxResults kResults>
void run_tile(const GemmArgs& args, const GemmPlan& plan) {
  ASSERT_EQ(plan.smem_bytes, mx_shared_bytes(Tile::kCodes, Tile::kTokens, args.cols));
  const emulation::Launch launch{.grid = static_cast<int>(plan.grid), .threads = kMxThreads, .predecessor = {}};
  const std::string error = emulation::run(launch, [&] { sm121_mx_gemm<Mma, Tile, kResults>(args); });
  ASSERT_EQ(error, "");
}

template <class Mma, layout::Packing kPacking, InputType kCodes, MxResults kResults>
void run_tokens(const GemmArgs& args, const GemmPlan& plan) {
  if (plan.tokens == 64) return run_tile<Mma, MxTile<kPacking, kCodes, 64>, kResults>(args, plan);
  run_tile<Mma, MxTile<kPacking, kCodes, 128>, kResults>(args, plan);
}

template <class Mma, InputType kCodes>
void run_experts(const GemmArgs& args, const GemmPlan& plan) {
  if (args.u != nullptr) return run_tokens<Mma, layout::Packing::kMxfp4, kCodes, MxResults::kGated>(args, plan);
  run_tokens<Mma, layout::Packing::kMxfp4, kCodes, MxResults::kRows16>(args, plan);
}

template <class Mma>
void check(const MxExpertsCase& c) {
  check_mx_experts<HostArray>(c, {c.hidden, c.inter}, [](const GemmArgs& args, const GemmPlan& plan) {
    if (args.codes == InputType::kMxfp8) return run_experts<Mma, InputType::kMxfp8>(args, plan);
    if (args.codes == InputType::kMxfp6) return run_experts<Mma, InputType::kMxfp6>(args, plan);
    run_experts<Mma, InputType::kMxfp4>(args, plan);
  });
}

template <class Mma>
void check(const MxDenseCase& c) {
  check_mx_dense<HostArray>(c, mx_dense_matrix(c), [](const GemmArgs& args, const GemmPlan& plan) {
    if (args.packing == layout::Packing::kMxfp8)
      return run_tokens<Mma, layout::Packing::kMxfp8, InputType::kMxfp8, MxResults::kRows>(args, plan);
    run_tokens<Mma, layout::Packing::kMxfp4, InputType::kMxfp8, MxResults::kRows>(args, plan);
  });
}

constexpr InputType kAllCodes[] = {InputType::kMxfp8, InputType::kMxfp6, InputType::kMxfp4};
constexpr layout::Packing kPackings[] = {layout::Packing::kMxfp8, layout::Packing::kMxfp4};

TEST(mx_gemm_emulated, experts_are_the_plain_products_for_few_and_many_tokens) {
  using enum GemmRouting;
  for (const InputType codes : kAllCodes) {
    check<ScalarMx>({.tokens = 1, .experts = 4, .codes = codes});
    check<ScalarMx>({.tokens = 12, .experts = 6, .codes = codes});
    check<ScalarMx>(
        {.routing = kSameForAll, .tokens = 65, .experts = 3, .tile = 128, .inter = 192, .topk = 1, .codes = codes});
  }
  check<ScalarMx>({.routing = kSameForAll, .tokens = 33, .experts = 5, .topk = 2});  // some experts have none
  check<ScalarMx>({.routing = kSameForAll, .tokens = 65, .experts = 3, .inter = 192, .topk = 1});  // two tiles of 40
  check<ScalarMx>({.routing = kSameForAll, .tokens = 100, .experts = 3, .tile = 128, .inter = 192, .topk = 1});
}

TEST(mx_gemm_emulated, rows_beyond_the_last_block_are_left_out) {
  check<ScalarMx>({.tokens = 9, .experts = 4, .hidden = 576, .inter = 192, .topk = 2, .sms = 1});  // 36 row tiles
  check<ScalarMx>({.tokens = 3, .experts = 4, .hidden = 512, .inter = 384, .topk = 1, .sms = 40});
  for (const InputType codes : kAllCodes)  // a rank's: the first slice of down is short, and a block is filled up
    check<ScalarMx>({.tokens = 3, .experts = 3, .inter = 224, .topk = 1, .codes = codes});
  for (const int inter : {32, 64, 672}) check<ScalarMx>({.tokens = 2, .experts = 3, .inter = inter, .topk = 1});
}

TEST(mx_gemm_emulated, what_is_no_number_spoils_its_own_token_alone) {
  for (const InputType codes : kAllCodes)
    check<ScalarMx>({.tokens = 9, .experts = 4, .inter = 192, .topk = 2, .nan_token = 4, .codes = codes});
}

TEST(mx_gemm_emulated, products_through_f16_are_the_plain_ones) {
  for (const InputType codes : kAllCodes) check<EmulatedMx>({.tokens = 12, .experts = 6, .codes = codes});
  check<EmulatedMx>(
      {.routing = GemmRouting::kSameForAll, .tokens = 70, .experts = 3, .tile = 128, .inter = 192, .topk = 1});
}

TEST(mx_gemm_emulated, dense_layers_are_the_plain_products_at_edges_of_tokens_and_rows) {
  for (const layout::Packing packing : kPackings) {
    for (const int tokens : {9, 63, 65}) check<ScalarMx>({.packing = packing, .tokens = tokens, .rows = 144});
    check<ScalarMx>({.packing = packing, .tokens = 129, .rows = 160, .tile = 128, .sms = 1, .bias = true});
    check<ScalarMx>({.packing = packing, .tokens = 9, .rows = 128, .cols = 2880, .stride = 5});
    check<ScalarMx>({.packing = packing, .tokens = 11, .rows = 128, .cols = 4096, .tile = 128, .stride = 7});
    check<EmulatedMx>({.packing = packing, .tokens = 70, .rows = 272, .tile = 128, .bias = true});
  }
}

TEST(mx_gemm_emulated, dense_layers_leave_sums_where_their_readers_find_them) {
  for (const layout::Packing packing : kPackings) {
    for (const int tokens : {9, 63, 65})
      check<ScalarMx>({.packing = packing, .tokens = tokens, .rows = 144, .sums = true});
    check<ScalarMx>({.packing = packing, .tokens = 133, .rows = 160, .tile = 128, .sms = 1, .sums = true});
  }
}

TEST(mx_gemm_emulated, dense_layers_have_every_column_where_it_belongs) {
  for (const layout::Packing packing : kPackings)
    check<ScalarMx>({.packing = packing, .tokens = 192, .rows = 128, .input = MxDenseCase::Input::kOneHot});
}

TEST(mx_gemm_emulated, dense_layers_take_every_code_and_extreme_scales) {
  for (const layout::Packing packing : kPackings)
    for (const GemmMatrix::Scales& scales : {GemmMatrix::Scales{20, 30}, GemmMatrix::Scales{150, 30}}) {
      const MxDenseCase c{
          .packing = packing, .tokens = 33, .rows = 128, .scales = scales, .input = MxDenseCase::Input::kCodes};
      check<ScalarMx>(c);
      check<EmulatedMx>(c);
    }
}

template <class Mma, int kProduct = 0>
void run_product(int product, const MxFragments* fragments, float* d, int count) {
  if constexpr (kProduct < kMxProductCount) {
    if (product != kProduct) return run_product<Mma, kProduct + 1>(product, fragments, d, count);
    ASSERT_EQ(emulation::run({.grid = count}, [&] { mx_probe_product<Mma, kProduct>(fragments, d); }), "");
  }
}
template <class Mma, int kFormat = 0>
void run_pairs(int format, const float* values, uint32_t* pairs, int count) {
  if constexpr (kFormat < kMxPairFormatCount) {
    if (format != kFormat) return run_pairs<Mma, kFormat + 1>(format, values, pairs, count);
    ASSERT_EQ(emulation::run({.grid = count / layout::kWarpLanes},
                             [&] { mx_probe_pairs<Mma, kMxPairFormats[kFormat]>(values, pairs); }),
              "");
  }
}

template <class Mma>
void check_products() {
  for (int product = 0; product < kMxProductCount; ++product)
    check_mx_product(product, [](int which, const std::vector<MxFragments>& fragments, const std::vector<float>& d) {
      std::vector<float> sums = d;
      run_product<Mma>(which, fragments.data(), sums.data(), static_cast<int>(fragments.size()));
      return sums;
    });
}

TEST(mx_emulated, scalar_products_are_the_exact_ones) { check_products<ScalarMx>(); }
TEST(mx_emulated, products_through_f16_are_the_exact_ones) { check_products<EmulatedMx>(); }

TEST(mx_emulated, pairs_of_codes_are_those_of_the_formats) {
  for (int format = 0; format < kMxPairFormatCount; ++format)
    check_mx_pairs(format, [](int which, const std::vector<float>& values) {
      std::vector<uint32_t> pairs(values.size() / 2);
      run_pairs<EmulatedMx>(which, values.data(), pairs.data(), static_cast<int>(pairs.size()));
      return pairs;
    });
}

TEST(mx_emulated, scaling_rounds_once) {
  for (const float p : {1.0f, 448.0f * 448.0f * 32.0f, 0x1p-25f, 3.0f * 0x1p-24f, -1.75f})
    for (uint32_t a = 0; a < 255; ++a)
      for (uint32_t b = 0; b < 255; ++b) {
        const auto want = static_cast<float>(std::ldexp(double{p}, static_cast<int>(a + b) - 254));
        ASSERT_EQ(mx_scaled(p, a, b), want) << p << ", scales " << a << ", " << b;
      }
  EXPECT_TRUE(std::isnan(mx_scaled(1, 255, 0)) && std::isnan(mx_scaled(1, 0, 255)));
}

}  // namespace
}  // namespace nibble::backend::cuda
