// sm121_mx_gemm and the policies (mx_mma.h) on a card: with EmulatedMx on any, with the instruction where card and
// build have it. The kernel, from the one list of mx_gemm_launch.cuh, against double products; the policies against
// exact ones and the codes of base/dtype.h.

#include "backend/cuda/arch/sm121/kernels.h"
#include "backend/cuda/testing/mx_gemm_emulated.h"
#include "backend/cuda/testing/mx_gemm.h"
#include "backend/cuda/testing/mx.h"
#include "backend/cuda/testing/card.h"

#include <gtest/gtest.h>

namespace nibble::backend::cuda {
namespace {

using enum GemmRouting;

constexpr InputType kAllCodes[] = {InputType::kMxfp8, InputType::kMxfp6, InputType::kMxfp4};
constexpr layout::Packing kPackings[] = {layout::Packing::kMxfp8, layout::Packing::kMxfp4};

class MxGemm : public CudaTest {
 protected:
  void check(const MxExpertsCase& c, const MxMatrices& matrices) {
    check_mx_experts<DeviceArray>(c, matrices, [&](const GemmArgs& args, const GemmPlan& plan) {
      (native() ? Sm121MxGemm::launch : emulated_mx_gemm)(args, plan, on_);
    });
  }
  void check(const MxExpertsCase& c) { check(c, {c.hidden, c.inter}); }
  void check(const MxDenseCase& c, const GemmMatrix& w) {
    check_mx_dense<DeviceArray>(c, w, [&](const GemmArgs& args, const GemmPlan& plan) {
      (native() ? Sm121MxGemm::launch : emulated_mx_gemm)(args, plan, on_);
    });
  }
  void check(const MxDenseCase& c) { check(c, mx_dense_matrix(c)); }
  [[nodiscard]] static bool native() {
    static const bool is = open_device(0).major == 12 && cuda_available().yes;
    return is;
  }
};

TEST_F(MxGemm, experts_are_the_plain_products_at_edges_of_tokens) {
  for (const int tile : kMxGemmTokens)
    for (const int tokens : {1, 7, 8, 9, 31, 32, 33, 63, 64, 65, 127, 128, 129})
      for (const GemmRouting routing : {kRandom, kSameForAll})  // some experts have none; one has all
        for (const InputType codes : kAllCodes)
          check(MxExpertsCase{
              .routing = routing, .tokens = tokens, .experts = 7, .tile = tile, .sms = 40, .codes = codes});
}

TEST_F(MxGemm, what_is_no_number_spoils_its_own_token_alone) {
  for (const int tile : kMxGemmTokens)
    for (const InputType codes : kAllCodes)
      check(MxExpertsCase{.tokens = 70, .experts = 4, .tile = tile, .nan_token = 41, .codes = codes});
}

TEST_F(MxGemm, experts_are_the_plain_products_whatever_the_grid) {
  for (const int tile : kMxGemmTokens)
    for (const int sms : {1, 2, 5, 132})
      check(MxExpertsCase{.tokens = 50, .experts = 12, .tile = tile, .hidden = 576, .inter = 384, .sms = sms});
}

TEST_F(MxGemm, experts_are_the_plain_products_at_the_model_s_widths) {
  constexpr int kWidth = 2880;
  const MxMatrices matrices(kWidth, kWidth);
  MxExpertsCase c{.experts = 32, .hidden = kWidth, .inter = kWidth, .sms = 48, .blocks = 1};
  for (const int tile : kMxGemmTokens) {
    c.tile = tile;
    for (const int tokens : {1, 9, 65, 129})
      for (const InputType codes : kAllCodes) {
        if (codes != InputType::kMxfp8 && tokens != 65) continue;
        c.tokens = tokens;
        c.codes = codes;
        check(c, matrices);
      }
    MxExpertsCase same = c, lone = c;
    same.routing = kSameForAll;
    check(same, matrices);
    lone.experts = lone.topk = 1;
    check(lone, matrices);
  }
  c.tokens = 130;
  c.experts = 128;
  c.sms = 132;
  check(c, matrices);
}

TEST_F(MxGemm, dense_layers_are_the_plain_products_at_edges_of_tokens) {
  for (const int tile : kMxGemmTokens)
    for (const layout::Packing packing : kPackings)
      for (const int tokens : {9, 63, 64, 65, 127, 128, 129, 300})
        for (const bool sums : {false, true})
          check(MxDenseCase{.packing = packing,
                            .tokens = tokens,
                            .rows = 144,
                            .tile = tile,
                            .sms = 40,
                            .bias = !sums && tokens % 2 == 0,
                            .sums = sums});
}

TEST_F(MxGemm, dense_layers_are_the_plain_products_at_the_model_s_widths) {
  struct Shape {
    int rows, cols;
  };
  for (const layout::Packing packing : kPackings)
    for (const Shape& shape : {Shape{5120, 2880}, Shape{2880, 4096}}) {
      MxDenseCase c{.packing = packing, .rows = shape.rows, .cols = shape.cols, .sms = 48, .stride = 97};
      const GemmMatrix w = mx_dense_matrix(c);
      for (const int tokens : {9, 65, 129, 300})
        for (const int tile : kMxGemmTokens) {
          c.tokens = tokens;
          c.tile = tile;
          check(c, w);
        }
    }
}

TEST_F(MxGemm, dense_layers_have_every_column_where_it_belongs) {
  for (const int tile : kMxGemmTokens)
    for (const layout::Packing packing : kPackings)
      check(MxDenseCase{
          .packing = packing, .tokens = 384, .cols = 384, .tile = tile, .input = MxDenseCase::Input::kOneHot});
}

TEST_F(MxGemm, dense_layers_take_every_code_and_extreme_scales) {
  for (const layout::Packing packing : kPackings)
    for (const GemmMatrix::Scales& scales : {GemmMatrix::Scales{20, 30}, GemmMatrix::Scales{150, 30}})
      check(MxDenseCase{.packing = packing, .tokens = 65, .scales = scales, .input = MxDenseCase::Input::kCodes});
}

class Mx : public CudaTest {};

void check_probe(const MxProbe& probe) {
  for (int product = 0; product < kMxProductCount; ++product)
    check_mx_product(product, [&](int which, const std::vector<MxFragments>& fragments, const std::vector<float>& d) {
      const DeviceArray<MxFragments> from(fragments);
      const DeviceArray<float> sums(d);
      probe.product(which, from.get(), sums.get(), fragments.size());
      cuda_check(cudaGetLastError());
      return sums.host();
    });
  for (int format = 0; format < kMxPairFormatCount; ++format)
    check_mx_pairs(format, [&](int which, const std::vector<float>& values) {
      const DeviceArray<float> from(values);
      const DeviceArray<uint32_t> pairs(values.size() / 2);
      probe.pairs(which, from.get(), pairs.get(), pairs.size());
      cuda_check(cudaGetLastError());
      return pairs.host();
    });
}

TEST_F(Mx, products_through_f16_are_the_exact_ones) { check_probe(emulated_mx_probe()); }

TEST_F(Mx, the_instruction_gives_the_exact_products_and_codes) {
  const MxProbe probe = native_mx_probe();
  if (probe.product == nullptr) GTEST_SKIP() << "want a build for sm_120a or sm_121a";
  if (const int major = open_device(0).major; major != 12)
    GTEST_SKIP() << "want compute capability 12, found " << major;
  check_probe(probe);
}

}  // namespace
}  // namespace nibble::backend::cuda
