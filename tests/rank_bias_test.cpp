// On a rank o's bias is told to one launch of a layer, and that one comes before the sum over ranks: the other ranks'
// are zeros, and after the sum all would add it. The launches only count (launches_test.cpp).

#include "backend/cuda/emulation/launchers.h"
#include "backend/cuda/memory/arena.h"
#include "backend/cuda/program/program.h"
#include "backend/testing/dims.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

namespace nibble::backend::cuda {
namespace {

struct RankCase {
  std::string name;
  RunConfig options;
  int major = 9;
  int32_t tokens = 1;
};

class RankBias : public testing::TestWithParam<RankCase> {};

TEST_P(RankBias, of_o_is_added_once_and_before_the_sum) {
  const RankCase& c = GetParam();
  Dims dims = kDims120b;
  dims.layers = 2;
  dims.experts = 32;
  dims.max_context = 4096;
  const BackendConfig config{.dims = dims,
                             .layer_kinds = {LayerKind::kSliding, LayerKind::kFull},
                             .rope_inv_freq = {},
                             .dense = {},
                             .max_tokens = std::max(c.tokens, 16),
                             .max_rows = 16,
                             .kv_pages = {1, 1},
                             .own_experts = Range{0, dims.experts}};
  const Card card(DeviceFacts{
      .name = "a card", .major = c.major, .multiprocessors = 132, .cta_smem_bytes = 232448, .sm_smem_bytes = 233472});
  std::vector<Row> rows;
  for (int32_t t = 0; t < c.tokens; ++t) rows.push_back({t, 1, 100});

  alignas(16) static const Bf16 o_bias[8] = {}, others[8] = {};
  const auto uses = [] { return std::ranges::count(emulated_biases(), o_bias); };
  emulated_biases().clear();
  std::ptrdiff_t before = -1;
  Exchange exchange{.shape = exchange_shape(2)};
  alignas(16) static uint32_t exchanged[4] = {};
  for (uint32_t*& memory : exchange.memory) memory = exchanged;
  const Reduce reduce{.exchange = exchange, .launch = [&](const DeltaValues& values, const Launch&) {
                        before = uses() + (values.parts != nullptr && values.parts->bias == o_bias ? 1 : 0);
                      }};
  const Program program = make_program(
      {.config = config, .run = c.options, .step = {.rows = rows, .logit_rows = 1}, .card = card, .reduce = &reduce});

  const ArenaNeeds needs = arena_needs(config, c.options, card);
  Carver measure(nullptr);
  static_cast<void>(carve(needs, measure));
  std::vector<std::byte> memory(static_cast<size_t>(measure.bytes()) + 256);
  const auto begin = reinterpret_cast<uintptr_t>(memory.data());
  Carver carver(memory.data() + (256 - begin % 256) % 256);
  Arena at = carve(needs, carver);
  at.both_of_o = at.both_of_experts = exchanged;
  const auto* const bytes = reinterpret_cast<const uint8_t*>(others);
  const StepPointers step;
  const LayerPointers weights{.mlp_norm = others,
                              .qkv = {.packed = bytes},
                              .o = {bytes, bytes, others, o_bias},
                              .router = {.rows = others, .bias = others}};
  std::ptrdiff_t parts = 0;  // told to the launch that combines and sums
  for (const Node& node : program.nodes)
    if (node.stage == Stage::kAttnOut || node.stage == Stage::kRoute) {
      const std::ptrdiff_t earlier = before;
      node.launch({.config = config, .at = at, .step = step, .w = weights, .layer = 1}, {});
      if (earlier < 0 && before >= 0) parts = before - uses();
    }
  EXPECT_EQ(before, 1);
  EXPECT_EQ(uses() + parts, 1);
}

INSTANTIATE_TEST_SUITE_P(, RankBias,
                         testing::Values(RankCase{"plain", {.family = KernelFamily::kReference}, 9, 3},
                                         RankCase{"decode", {}, 9, 1}, RankCase{"halves", {}, 8, 1},
                                         RankCase{"marlin", {.family = KernelFamily::kStreaming}, 9, 8},
                                         RankCase{"split_gemm", {}, 9, 20}, RankCase{"gemm", {}, 9, 300},
                                         RankCase{"neutral_gemm", {}, 12, 20}, RankCase{"prompt", {}, 9, 1500},
                                         RankCase{"neutral_prompt", {}, 8, 1500}),
                         [](const testing::TestParamInfo<RankCase>& one) { return one.param.name; });

}  // namespace
}  // namespace nibble::backend::cuda
