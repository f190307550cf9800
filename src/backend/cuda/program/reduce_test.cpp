// That ranks which share a step meet in one place: the delta. A made-up collective is added by one field of
// ProgramArgs; no kernel knows of it.

#include "backend/testing/dims.h"
#include "backend/cuda/program/program.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace nibble::backend::cuda {
namespace {

const Dims kShape = [] {
  Dims of_20b = kDims120b;
  of_20b.layers = 2;
  of_20b.experts = 32;
  of_20b.max_context = 4096;
  return of_20b;
}();

struct ReduceCase {
  std::string name;
  RunConfig options;
  int major = 9;
  int32_t tokens = 1;
  Range own = {0, kShape.experts};

  [[nodiscard]] BackendConfig config() const {
    return {.dims = kShape,
            .layer_kinds = {LayerKind::kSliding, LayerKind::kFull},
            .rope_inv_freq = {},
            .dense = {},
            .own_experts = own};
  }
  [[nodiscard]] DeviceFacts card() const {
    return {
        .name = "a card", .major = major, .multiprocessors = 132, .cta_smem_bytes = 232448, .sm_smem_bytes = 233472};
  }
  [[nodiscard]] std::vector<Row> rows() const {
    std::vector<Row> all;
    for (int32_t t = 0; t < tokens; ++t) all.push_back({t, 1, 100});
    return all;
  }
};

class ReduceDelta : public testing::TestWithParam<ReduceCase> {};

// Two ranks with the same delta: all that the next stage reads is doubled, and nothing after it.
TEST_P(ReduceDelta, adds_every_value_that_the_next_stage_reads) {
  const ReduceCase& c = GetParam();
  const BackendConfig config = c.config();
  const Card card(c.card());
  const std::vector<Row> step_rows = c.rows();
  int64_t reduced = 0;
  const Reduce twice{.launch = [&](const DeltaValues& values, const Launch&) {
    if (values.parts != nullptr) EXPECT_EQ(values.parts->tiles, values.at) << "combined where they are added up";
    reduced += values.count;
    if (values.sent == DeltaValues::Sending::kToAll) return;  // who reads them adds them up
    if (values.into != nullptr) {
      EXPECT_EQ(values.type, DeltaValues::Type::kF32);
      const auto* const own = static_cast<const float*>(values.at);
      for (int64_t i = 0; i < values.count; ++i)
        values.into[i] += 2 * (own[i] + (values.rest == nullptr ? 0.0f : values.rest[i]));
      return;
    }
    if (values.type == DeltaValues::Type::kF32) {
      auto* const own = static_cast<float*>(values.at);
      for (int64_t i = 0; i < values.count; ++i) own[i] += own[i];
      return;
    }
    auto* const own = static_cast<Bf16*>(values.at);
    for (int64_t i = 0; i < values.count; ++i) own[i] = Bf16::from_float(2 * own[i].to_float());
  }};
  const Program program = make_program({.config = config,
                                        .run = c.options,
                                        .step = {.rows = step_rows, .logit_rows = 1},
                                        .card = card,
                                        .reduce = &twice});

  // Ones wherever a delta may lie.
  const auto room = static_cast<size_t>(2 * (c.tokens + 8) * kShape.hidden);
  std::vector<float> rows(room, 1), sums(room, 1), combined(room, 1), residual(room, 1);
  Arena at{};
  at.delta = rows.data();
  at.gemm.emplace().y = sums.data();
  at.residual = residual.data();
  at.packed.emplace().combined = reinterpret_cast<uint16_t*>(combined.data());
  const StepPointers step;
  const LayerPointers weights;
  LaunchCounts counts;
  for (const Stage stage : {Stage::kAttnOut, Stage::kMoe}) {
    const Node* last = nullptr;
    for (const Node& node : program.nodes)
      if (node.stage == stage) last = &node;
    ASSERT_NE(last, nullptr);
    ASSERT_TRUE(way_of(last->kernel)) << last->kernel << " behind all that makes the delta";
    reduced = 0;
    last->launch({.config = config, .at = at, .step = step, .w = weights, .layer = 1}, {.counts = &counts});
    // A row per token, whatever made it; of a fused step in as many parts as are held.
    const int64_t held = program.held(stage, Slot::kDelta).splits * c.tokens;
    EXPECT_GE(reduced, held * kShape.hidden);
    EXPECT_LE(reduced, (held + 7) * kShape.hidden) << "places of up to seven tokens more";
    const int64_t bytes = reduced * (last->kernel.ends_with("<f32>") ? 4 : 2);
    EXPECT_NE(last->tile.find(fmt::format("{} B of each of 2 ranks", bytes)), std::string::npos) << last->tile;
    int64_t doubled = 0;  // floats, or pairs of bf16
    for (const std::vector<float>* values : {&rows, &sums, &combined, &residual})
      for (const float value : *values) doubled += value == 1 ? 0 : 1;
    const int64_t all = way_of(last->kernel) == SumWay::kExchange ? 0 : reduced;
    EXPECT_TRUE(doubled == all || doubled == all / 2) << doubled << " of " << all;
    for (std::vector<float>* values : {&rows, &sums, &combined, &residual}) values->assign(room, 1);
  }
}

INSTANTIATE_TEST_SUITE_P(
    , ReduceDelta,
    testing::Values(ReduceCase{"plain", {.family = KernelFamily::kReference}, 9, 3},
                    ReduceCase{"decode", {.family = KernelFamily::kStreaming}, 9, 1},
                    ReduceCase{"grouped", {.family = KernelFamily::kStreaming}, 9, 20},
                    ReduceCase{"split_gemm", {}, 9, 20}, ReduceCase{"gemm", {.family = KernelFamily::kGemm}, 9, 300},
                    ReduceCase{"neutral_gemm", {.family = KernelFamily::kGemm}, 12, 20},
                    ReduceCase{"whole_experts", {}, 9, 2, {8, 8}},
                    ReduceCase{"whole_experts_grouped", {.family = KernelFamily::kStreaming}, 8, 20, {24, 8}},
                    ReduceCase{"prompt", {}, 12, 1500, {0, 16}}),
    [](const testing::TestParamInfo<ReduceCase>& one) { return one.param.name; });

enum class Sum { kNone, kPeers, kNccl };

// The program of one of two ranks of gpt-oss-120b's shape on an H100.
std::vector<std::string> kernels_of(Stage stage, bool whole_experts, const std::vector<Row>& rows,
                                    Sum sum = Sum::kPeers) {
  Dims dims = kDims120b;
  dims.layers = 2;
  const Shard shard = cuda_shard(shard_of(dims, {2, whole_experts}, 1));
  const BackendConfig config = config_of({.dims = dims, .layer_kinds = {}, .rope_inv_freq = {}, .dense = {}}, shard);
  const Card card(DeviceFacts{
      .name = "a card", .major = 9, .multiprocessors = 132, .cta_smem_bytes = 232448, .sm_smem_bytes = 233472});
  const Reduce plan{.by_nccl = sum == Sum::kNccl, .launch = nullptr};
  const Program program = make_program({.config = config,
                                        .run = {},
                                        .step = {.rows = rows, .logit_rows = 1},
                                        .card = card,
                                        .reduce = sum == Sum::kNone ? nullptr : &plan});
  std::vector<std::string> kernels;
  for (const Node& node : program.nodes)
    if (node.stage == stage) kernels.push_back(node.kernel);
  return kernels;
}

TEST(RankProgram, leaves_a_row_per_token_to_the_sum) {
  using testing::ElementsAre;
  const std::vector<Row> one = {{0, 1, 100}}, prompt = {{0, 600, 600}}, few = {{0, 200, 200}};
  std::vector<Row> many;
  for (int32_t t = 0; t < 20; ++t) many.push_back({t, 1, 100});
  for (const bool whole : {false, true}) {
    EXPECT_THAT(kernels_of(Stage::kAttnOut, whole, one), ElementsAre("gemv<dense, bf16>", "any_push_reduce<f32>"));
    EXPECT_THAT(kernels_of(Stage::kAttnOut, whole, many), ElementsAre("sm90_split_gemm", "any_push_combine<sums>"));
    EXPECT_THAT(kernels_of(Stage::kAttnOut, whole, prompt), ElementsAre("sm90_dense_gemm", "any_push_barrier"));
    EXPECT_THAT(kernels_of(Stage::kAttnOut, whole, few),
                ElementsAre("sm90_split_gemm", "any_combine_f32", "any_push_barrier"));
    EXPECT_THAT(kernels_of(Stage::kRoute, whole, prompt), ElementsAre("any_route_sums"));
    EXPECT_THAT(kernels_of(Stage::kMoe, whole, many),
                ElementsAre("any_moe_group_tiles", "grouped<up>", "grouped<down>", "any_push_combine<experts f32>"));
  }
  EXPECT_THAT(kernels_of(Stage::kMoe, false, one), ElementsAre("moe_up", "gemv<moe_down>", "any_push_reduce<f32>"));
  EXPECT_THAT(kernels_of(Stage::kMoe, true, one), ElementsAre("moe_up", "moe_down", "any_push_reduce<f32>"))
      << "a part may have none of the rank's experts";
  EXPECT_THAT(kernels_of(Stage::kMoe, false, one, Sum::kNone), ElementsAre("moe_up", "gemv<moe_down>"));
  const std::vector<Row> long_prompt = {{0, 2000, 2000}};
  EXPECT_THAT(kernels_of(Stage::kAttnOut, false, long_prompt), ElementsAre("sm90_dense_gemm", "any_push_barrier"));
  EXPECT_THAT(kernels_of(Stage::kMoe, false, long_prompt),
              ElementsAre("any_moe_group_tiles", "any_round_f32", "sm90_mxfp4_gemm<experts>", "any_combine_f32",
                          "any_push_barrier"));
  const std::vector<Row> longest = {{0, 9000, 9000}};
  EXPECT_THAT(kernels_of(Stage::kAttnOut, false, longest),
              ElementsAre("sm90_dense_gemm", "any_combine_f32", "any_share_reduce<bf16>"))
      << "more than a box holds";
  EXPECT_THAT(kernels_of(Stage::kAttnOut, false, many, Sum::kNccl),
              ElementsAre("sm90_split_gemm", "any_combine_f32", "ncclDevKernel_AllReduce"));
  EXPECT_THAT(kernels_of(Stage::kAttnOut, false, long_prompt, Sum::kNccl),
              ElementsAre("sm90_dense_gemm", "any_combine_f32", "ncclDevKernel_AllReduce"));
}

}  // namespace
}  // namespace nibble::backend::cuda
