#include "backend/testing/dims.h"
#include "backend/cuda/program/predict.h"

#include "backend/cuda/arch/arch.h"
#include "backend/cuda/comm/sums.h"
#include "base/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace nibble::backend::cuda {
namespace {

using testing::HasSubstr;

constexpr Dims kDims = kDims120b;
const std::vector<LayerKind> kTwoLayers = {LayerKind::kSliding, LayerKind::kFull};

// Numbers that divide well: 1000 GB/s, 100 multiprocessors at 1 GHz, 100 and 200 TFLOP/s.
KnownCard round_card() {
  return {.word = "round",
          .facts = {.name = "Round", .major = 9, .multiprocessors = 100},
          .ghz = 1,
          .read_bytes_per_s = 1e12,
          .read_from = {},
          .flops_per_s = {0, 1e14, 2e14, 0, 0, 0},
          .flops_from = {},
          .link = {}};
}

Node node(Stage stage, std::string kernel, const Cost& cost) {
  Node made;
  made.stage = stage;
  made.kernel = std::move(kernel);
  made.cost = cost;
  return made;
}

StepTime predict(Program program) {
  return predict_step({.program = program, .dims = kDims, .layer_kinds = kTwoLayers, .card = round_card()});
}

// A program of one node in two layers, both of it.
NodeTime time_of(Node made, int64_t tokens = 1) {
  Program program;
  program.tokens = tokens;
  program.nodes.push_back(std::move(made));
  return predict(std::move(program)).nodes.at(0);
}

TEST(predict, a_launch_takes_its_fixed_part_and_its_bytes_in_every_layer) {
  const KernelShare& share = share_of("gemv<qkv, bf16>");
  const NodeTime time = time_of(node(Stage::kAttnIn, "gemv<qkv, bf16>", {.bytes = 1e8, .flops = 0}), 4);
  EXPECT_NEAR(time.us, 2 * (share.step_us + 4 * share.token_us + 100 / share.read), 1e-9);
  EXPECT_EQ(time.launches, 2);
  EXPECT_EQ(time.held, HeldBy::kReads);
  EXPECT_NEAR(time.floor_us, 200, 1e-9);
}

TEST(predict, more_launches_of_a_stage_read_the_weights_again) {
  Node twice = node(Stage::kAttnIn, "gemv<qkv, bf16>", {.bytes = 1e8, .flops = 0});
  twice.launches = 2;
  const KernelShare& share = share_of("gemv<qkv, bf16>");
  EXPECT_NEAR(time_of(twice, 16).us, 2 * 2 * (share.step_us + 8 * share.token_us + 100 / share.read), 1e-9);
}

TEST(predict, a_ring_hides_the_shorter_of_reading_and_taking_in) {
  const KernelShare& share = share_of("gemv<moe_down>");
  ASSERT_EQ(share.feeding, Feeding::kRing);
  const double takes = 1e8 / (100 * 1e9 * share.cycle_bytes) * 1e6;  // 109 us; reads take 100
  ASSERT_GT(takes, 100 / share.read);
  const NodeTime time = time_of(node(Stage::kMoe, "gemv<moe_down>", {.bytes = 1e8, .flops = 0}));
  EXPECT_NEAR(time.us, 2 * (share.step_us + takes), 1e-9);
  EXPECT_EQ(time.held, HeldBy::kInstructions);
}

TEST(predict, warps_that_wait_for_their_own_bytes_hide_only_part) {
  const KernelShare& share = share_of("moe_up");
  ASSERT_EQ(share.feeding, Feeding::kOwn);
  const double takes = 1e8 / (100 * 1e9 * share.cycle_bytes) * 1e6;
  const NodeTime time = time_of(node(Stage::kMoe, "moe_up", {.bytes = 1e8, .flops = 0}));
  EXPECT_NEAR(time.us, 2 * (share.step_us + std::hypot(100 / share.read, takes)), 1e-9);
}

TEST(predict, products_are_held_to_the_peak_of_their_unit) {
  const KernelShare& share = share_of("sm90_dense_gemm");
  const NodeTime time = time_of(node(Stage::kAttnOut, "sm90_dense_gemm", {.bytes = 1e8, .flops = 1e12}));
  const double matrix = 1e12 / (2e14 * share.matrix.share) * 1e6;
  EXPECT_NEAR(time.us, 2 * (share.step_us + std::hypot(100, matrix)), 1e-6);
  EXPECT_EQ(time.held, HeldBy::kMatrix);
  EXPECT_NEAR(time.floor_us, 2 * 1e12 / 2e14 * 1e6, 1e-6);
}

TEST(predict, what_moves_activations_is_told_by_the_steps_tokens) {
  const KernelShare& share = share_of("any_norm_sums_f32");
  const double bytes = share.value_bytes * 4096 * 2880;
  const double us = std::max(bytes / (1e12 * share.read), bytes / (100 * 1e9 * share.cycle_bytes)) * 1e6;
  EXPECT_NEAR(time_of(node(Stage::kRoute, "any_norm_sums_f32", {}), 4096).us, 2 * (share.step_us + us), 1e-6);
}

TEST(predict, a_node_that_counts_what_it_moves_is_told_by_that) {
  const KernelShare& share = share_of("any_rope_sums");
  Node counted = node(Stage::kAttend, "any_rope_sums_f32", {});
  counted.moved = 5e9;
  EXPECT_NEAR(time_of(counted, 4096).us, 2 * (share.step_us + 5e9 / (1e12 * share.read) * 1e6), 1e-6);
}

TEST(predict, a_step_is_the_sum_of_its_launches_and_the_draw) {
  Program program;
  program.tokens = program.logit_rows = 2;
  program.nodes.push_back(node(Stage::kMoe, "moe_up", {.bytes = 1e8, .flops = 1e9}));
  program.nodes.push_back(node(Stage::kLogits, "gemv<dense, bf16>", {.bytes = 1e9, .flops = 0}));
  const StepTime step = predict(program);
  ASSERT_EQ(step.nodes.size(), 3U);
  EXPECT_NEAR(step.nodes[2].us, share_of("any_sample_draw_f32").step_us + 2 * 201088 * 4 / 1e12 * 1e6, 1e-9);
  EXPECT_NEAR(step.us, kBetweenStepsUs + step.nodes[0].us + step.nodes[1].us + step.nodes[2].us, 1e-9);
  EXPECT_NEAR(total(step.costs).bytes, 2e8 + 1e9, 1);
  EXPECT_NEAR(step.floor_us, 1200, 1e-9);
  program.logit_rows = 0;
  EXPECT_EQ(predict(program).nodes.size(), 2U);
}

TEST(predict, launches_cost_more_where_they_cannot_be_chained) {
  Program program;
  program.tokens = 1;
  program.nodes.push_back(node(Stage::kMoe, "moe_up", {.bytes = 1e8, .flops = 0}));
  KnownCard older = round_card();
  older.facts.major = 8;
  const auto us = [&](const KnownCard& card) {
    return predict_step({.program = program, .dims = kDims, .layer_kinds = kTwoLayers, .card = card}).us;
  };
  EXPECT_NEAR(us(older), us(round_card()) + 2 * kUnchainedUs, 1e-9);
}

TEST(predict, the_longest_name_that_fits_tells_the_share) {
  EXPECT_EQ(share_of("any_gemm<bf16>").kernel, "any_gemm<bf16>");
  EXPECT_EQ(share_of("any_gemm<gate_up>").kernel, "any_gemm");
  EXPECT_EQ(share_of("any_round_f32").kernel, "any_round");
  EXPECT_EQ(share_of("any_round_blocks<mxfp8>").kernel, "any_round_blocks");
}

TEST(predict, a_kernel_that_nobody_measured_is_refused_by_name) {
  try {
    static_cast<void>(time_of(node(Stage::kMoe, "a_new_kernel", {})));
    FAIL() << "no share is told";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::kUnsupported);
    EXPECT_THAT(e.what(), HasSubstr("a_new_kernel"));
  }
}

TEST(cards, each_has_facts_and_speeds) {
  for (const KnownCard& card : known_cards()) {
    EXPECT_GT(card.facts.multiprocessors, 0) << card.word;
    EXPECT_GE(card.facts.major, 8) << card.word;
    EXPECT_GT(card.facts.memory_bytes, int64_t{10} << 30) << card.word;
    EXPECT_GT(card.facts.sm_smem_bytes, card.facts.cta_smem_bytes) << card.word;
    EXPECT_GT(card.read_bytes_per_s, 1e11) << card.word;
    EXPECT_GT(card.peak(MatrixUnit::kMma), 1e13) << card.word;
    EXPECT_FALSE(card.read_from.empty() || card.flops_from.empty()) << card.word;
    EXPECT_EQ(card_named(card.word).facts.name, card.facts.name);
  }
  EXPECT_EQ(card_named("gb10").facts.multiprocessors, 48);
  EXPECT_DOUBLE_EQ(card_named("h100").exact_peak(), 977e12);
}

TEST(cards, any_is_an_sm_80_card_if_one_wants) {
  const KnownCard card = as_sm80(card_named("h100"));
  EXPECT_EQ(card.facts.major, 8);
  EXPECT_EQ(card.facts.multiprocessors, 132);
  EXPECT_EQ(card.facts.cta_smem_bytes, card_named("a100").facts.cta_smem_bytes);
  EXPECT_EQ(card.peak(MatrixUnit::kWgmma), 0);
  EXPECT_EQ(as_sm80(card_named("gb10")).facts.cta_smem_bytes, 101376);
}

TEST(cards, an_unknown_one_is_refused_with_those_that_are_known) {
  try {
    static_cast<void>(card_named("gtx-480"));
    FAIL() << "it is not known";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::kInvalidRequest);
    EXPECT_THAT(e.what(), testing::AllOf(HasSubstr("gtx-480"), HasSubstr("gb10"), HasSubstr("rtx-pro-6000")));
  }
}

// Steps on both sides of where kernels take turns.
std::vector<std::vector<Row>> steps() {
  std::vector<std::vector<Row>> all;
  for (const int32_t tokens : {1, 8, 9, 64, 128, 256, 512, 2048, 8192}) {
    all.push_back({{0, tokens, tokens}});
    if (tokens > 512) continue;
    std::vector<Row>& decode = all.emplace_back();
    for (int32_t r = 0; r < tokens; ++r) decode.push_back({r, 1, 100});
  }
  return all;
}

// Kernels that come later have to be told of.
TEST(predict, every_kernel_of_every_cards_programs_has_a_share) {
  using Format = WeightFormat;
  const DenseFormats formats[] = {
      {}, {Format::kMxfp8, Format::kMxfp8, Format::kMxfp8}, {Format::kMxfp4, Format::kMxfp4, Format::kMxfp4}};
  const RunConfig runs[] = {{},
                            {.kv = KvDtype::kE4m3},
                            {.kv = KvDtype::kE4m3, .attention_activations = AttentionActivations::kFp8},
                            {.activations = Activations::kMxfp8, .dense_activations = Activations::kMxfp8},
                            {.activations = Activations::kMxfp6},
                            {.activations = Activations::kMxfp4},
                            {.family = KernelFamily::kStreaming},
                            {.family = KernelFamily::kGemm}};
  const auto expect_shares = [](const KnownCard& card, const DenseFormats& dense, const RunConfig& run) {
    const BackendConfig config{.dims = kDims, .layer_kinds = {}, .rope_inv_freq = {}, .dense = dense};
    for (const std::vector<Row>& rows : steps()) {
      const Program program = make_program({.config = config,
                                            .run = resolved_cuda(config, run),
                                            .step = {.rows = rows, .logit_rows = std::ssize(rows)},
                                            .card = card.facts});
      const StepTime step = predict_step({.program = program, .dims = kDims, .layer_kinds = kTwoLayers, .card = card});
      EXPECT_GT(step.us, step.floor_us) << card.word << ", rows " << rows.size();
    }
  };
  for (const KnownCard& card : known_cards())
    for (const DenseFormats& dense : formats)
      for (const RunConfig& run : runs) expect_shares(card, dense, run);
}

// A message's bytes are told by what a node sends: what comes out is what the link takes for it.
TEST(predict, a_sum_over_ranks_takes_what_its_link_takes) {
  const KnownLink link = link_named("nvlink4");
  const auto time = [&](int ranks, int64_t tokens) {
    const DeltaValues values{.count = tokens * kDims.hidden, .type = DeltaValues::Type::kBf16};
    const SumPlan plan = plan_sum({.values = values, .ranks = ranks, .sms = 132});
    Program program;
    program.nodes.push_back(
        node(Stage::kMoe, std::string(plan.kernel.name), {static_cast<double>(plan.cost.bytes), 0}));
    program.nodes.back().launches = plan.launches;
    const StepTime step = predict_step({.program = program,
                                        .dims = kDims,
                                        .layer_kinds = kTwoLayers,
                                        .card = round_card(),
                                        .between = {.ranks = ranks, .link = link}});
    EXPECT_EQ(step.nodes.at(0).held, HeldBy::kLink);
    EXPECT_EQ(step.nodes[0].launches, 2 * plan.launches);
    EXPECT_EQ(total(step.costs).bytes, 0);
    return step.nodes[0].us / 2;
  };
  EXPECT_NEAR(time(2, 1), sum_us(link, {.ranks = 2, .bytes = 5760}), 1e-6);
  EXPECT_NEAR(time(8, 8), sum_us(link, {.ranks = 8, .bytes = 46080}), 1e-6);
  EXPECT_NEAR(time(2, 2048), sum_us(link, {.ranks = 2, .bytes = 2048 * 5760, .longer = true}), 0.1);
}

TEST(predict, every_kernel_of_ranks_programs_has_a_share) {
  for (const KnownCard& card : known_cards()) {
    for (const Ranks ranks : {Ranks{2, false}, Ranks{8, false}, Ranks{4, true}}) {
      const BackendConfig config =
          cuda_config({.dims = kDims, .layer_kinds = kTwoLayers, .rope_inv_freq = {}, .dense = {}}, ranks);
      const auto reduce = planned_reduce(ranks);
      for (const std::vector<Row>& rows : steps()) {
        const Program program = make_program({.config = config,
                                              .run = resolved_cuda(config, {}),
                                              .step = {.rows = rows, .logit_rows = std::ssize(rows)},
                                              .card = card.facts,
                                              .reduce = &*reduce});
        const StepTime step = predict_step({.program = program,
                                            .dims = config.dims,
                                            .layer_kinds = kTwoLayers,
                                            .card = card,
                                            .between = {.ranks = ranks.count, .link = link_named(card.link)}});
        EXPECT_GT(step.us, step.floor_us) << card.word << ", rows " << rows.size() << ", ranks " << ranks.count;
      }
    }
  }
}

}  // namespace
}  // namespace nibble::backend::cuda
