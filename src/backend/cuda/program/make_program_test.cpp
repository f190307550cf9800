#include "backend/testing/dims.h"
#include "backend/cuda/program/program.h"

#include "backend/cuda/program/choices.h"
#include "backend/cuda/norm_rope/around_gemm.h"
#include "backend/cuda/arch/sm121/kernels.h"
#include "backend/cuda/arch/sm90/kernels.h"
#include "backend/cuda/attention/attend_plan.h"
#include "backend/cuda/dense/gemm_plan.h"
#include "base/error.h"

#include "backend/cuda/dense/gemv_plan.h"
#include "backend/cuda/experts/experts.h"
#include "backend/cuda/quantise/round_blocks.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace nibble::backend {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::Not;

constexpr Dims kDims = kDims120b;
// Cards as cudaDeviceProp tells of them.
const cuda::DeviceFacts kH200 = {.name = "H200",
                                 .major = 9,
                                 .multiprocessors = 132,
                                 .memory_bytes_per_s = 4.8e12,
                                 .cta_smem_bytes = 232448,
                                 .sm_smem_bytes = 233472};
const cuda::DeviceFacts kGb10 = {
    .name = "GB10", .major = 12, .minor = 1, .multiprocessors = 48, .cta_smem_bytes = 101376, .sm_smem_bytes = 102400};
constexpr WeightFormat kMxfp4 = WeightFormat::kMxfp4, kMxfp8 = WeightFormat::kMxfp8, kQ8 = WeightFormat::kGgmlQ8;
using Attention = AttentionKernel;
using Kv = KvDtype;

std::vector<Row> decode(int count) {
  std::vector<Row> rows;
  for (int32_t r = 0; r < count; ++r) rows.push_back({r, 1, 5000});
  return rows;
}
const std::vector<Row> kPrompt = {{0, 512, 512}};

struct Asked {
  RunConfig options{};
  DenseFormats dense{};
  cuda::Card card = kH200;
  cuda::layout::ModelScales scales{};
};
cuda::Program plan(const std::vector<Row>& rows, const Asked& asked) {
  const BackendConfig config{.dims = kDims, .layer_kinds = {}, .rope_inv_freq = {}, .dense = asked.dense};
  return cuda::make_program({.config = config,
                             .run = asked.options,
                             .step = {.rows = rows, .logit_rows = static_cast<int64_t>(rows.size())},
                             .card = asked.card,
                             .scales = asked.scales});
}

std::vector<std::string> kernels(const cuda::Program& plan, Stage stage) {
  std::vector<std::string> names;
  for (const PlannedKernel& s : plan.nodes)
    if (s.stage == stage) names.push_back(s.kernel);
  return names;
}

std::vector<std::string> kernels(const cuda::Program& plan) {
  std::vector<std::string> names;
  for (const PlannedKernel& s : plan.nodes) names.push_back(s.kernel);
  return names;
}

PlannedKernel find(const cuda::Program& plan, std::string_view kernel) {
  for (const PlannedKernel& s : plan.nodes)
    if (s.kernel == kernel) return s;
  ADD_FAILURE() << "no " << kernel;
  return {};
}
std::string tile(const cuda::Program& plan, std::string_view kernel) { return find(plan, kernel).tile; }

std::vector<int> layers_from(int first, int end) {
  std::vector<int> all;
  for (int layer = first; layer < end; ++layer) all.push_back(layer);
  return all;
}

// Two parts of a delta of few tokens are floats, whoever leaves them.
TEST(make_program, first_layers_leave_their_experts_to_the_host) {
  const cuda::Program few = plan(decode(1), {.options = {.cpu_moe_layers = 12}});
  EXPECT_THAT(kernels(few, Stage::kMoe),
              ElementsAre("any_top_experts_f32", "any_host_rows", "any_host_turn", "moe_up", "gemv<moe_down>"));
  EXPECT_EQ(find(few, "any_host_turn").only, layers_from(0, 12));
  EXPECT_EQ(find(few, "moe_up").only, layers_from(12, 36));
  EXPECT_EQ(tile(few, "any_host_turn"), "the host's threads; 11.6 KB there, 23.0 KB back");
  EXPECT_EQ(find(few, "any_host_turn").cost.bytes,
            find(few, "moe_up").cost.bytes + find(few, "gemv<moe_down>").cost.bytes);
  EXPECT_THAT(kernels(few, Stage::kAttnIn), ElementsAre("any_rope_table_f32", "gemv<qkv, bf16>"));
  EXPECT_THAT(kernels(plan(decode(1), {.options = {.cpu_moe_layers = 99}}), Stage::kMoe),
              ElementsAre("any_top_experts_f32", "any_host_rows", "any_host_turn"));
  EXPECT_THAT(kernels(plan(decode(1), {.options = {.cpu_moe_layers = -1}}), Stage::kMoe),
              ElementsAre("moe_up", "gemv<moe_down>"));
}

// From 9 tokens on the card leaves a row of each expert, the host one of each token: who adds them is told apart.
TEST(make_program, many_tokens_have_a_delta_of_two_forms_beside_the_host) {
  const auto norms = [](int layers) {
    std::vector<std::vector<int>> only;
    for (const cuda::Node& node : plan(kPrompt, {.options = {.cpu_moe_layers = layers}}).nodes)
      if (node.stage == Stage::kAttnIn && node.kernel == "any_norm_sums_f32") only.push_back(node.only);
    return only;
  };
  EXPECT_THAT(norms(0), ElementsAre(std::vector<int>()));
  EXPECT_THAT(norms(12), ElementsAre(layers_from(0, 13), layers_from(13, 36)));
  EXPECT_THAT(norms(35), ElementsAre(layers_from(0, 36)));
  EXPECT_THAT(norms(36), ElementsAre(std::vector<int>()));
}

TEST(make_program, every_stage_has_a_kernel_whoever_multiplies) {
  for (const KernelFamily family :
       {KernelFamily::kAuto, KernelFamily::kStreaming, KernelFamily::kGemm, KernelFamily::kReference}) {
    for (const std::vector<Row>& rows : {decode(1), decode(8), decode(9), kPrompt}) {
      const cuda::Program planned = plan(rows, {.options = {.family = family}});
      for (int s = 0; s < kStages; ++s)
        EXPECT_THAT(kernels(planned, static_cast<Stage>(s)), Not(testing::IsEmpty()))
            << name_of(family) << ' ' << name_of(static_cast<Stage>(s));
    }
  }
}

// What lets their steps share a graph (step_graph.h).
// Where attn_in has the sum of residual and delta, and after the last layer, where nobody else wants it of all tokens.
TEST(make_program, taps_the_boundaries_that_are_asked_for) {
  constexpr int kLayers = static_cast<int>(kDims.layers);
  const std::vector<LayerKind> kinds(kDims.layers, LayerKind::kFull);
  for (const KernelFamily family :
       {KernelFamily::kAuto, KernelFamily::kStreaming, KernelFamily::kGemm, KernelFamily::kReference}) {
    for (const std::vector<Row>& rows : {decode(1), decode(8), decode(9), decode(300), kPrompt}) {
      for (const int64_t logit_rows : {0, 1}) {
        SCOPED_TRACE(fmt::format("{}, {} rows, {} of logits", name_of(family), rows.size(), logit_rows));
        const auto made = [&](std::vector<int> taps) {
          const BackendConfig config{.dims = kDims,
                                     .layer_kinds = {},
                                     .rope_inv_freq = {},
                                     .dense = {},
                                     .own_experts = {},
                                     .taps = std::move(taps)};
          const RunConfig run{.family = family};
          return cuda::make_program(
              {.config = config, .run = run, .step = {.rows = rows, .logit_rows = logit_rows}, .card = kH200});
        };
        const auto launches = [&](const cuda::Program& program, std::string_view kernel) {
          int64_t count = 0;
          for (const PlannedKernel& s : program.nodes)
            if (s.kernel == kernel) count += s.launches * layers_of(s, kinds);
          return count;
        };
        const cuda::Program none = made({}), some = made({0, 2, 18}), last = made({24, 30, kLayers});
        EXPECT_EQ(launches(none, "any_tap_f32"), 0);
        EXPECT_EQ(some.nodes.size(), none.nodes.size() + 1);
        EXPECT_EQ(find(some, "any_tap_f32").only, (std::vector{0, 2, 18}));
        EXPECT_EQ(kernels(some, Stage::kAttnIn).back(), "any_tap_f32") << "behind the sum";
        EXPECT_EQ(launches(last, "any_tap_f32"), 3);
        EXPECT_EQ(kernels(last, Stage::kMoe).back(), "any_tap_f32");
        // The sum is made once, and where there are no logits for the tap alone.
        const auto sums = [&](const cuda::Program& program) { return launches(program, "any_norm_sums_f32"); };
        const bool added = kernels(last, Stage::kMoe)[kernels(last, Stage::kMoe).size() - 2] == "any_norm_sums_f32";
        EXPECT_EQ(sums(last), sums(none) + (added && logit_rows == 0 ? 1 : 0));
        EXPECT_EQ(added && logit_rows == 1,
                  kernels(none, Stage::kLogits).size() > kernels(last, Stage::kLogits).size());
      }
    }
  }
}

TEST(make_program, guesses_are_launched_as_as_many_sequences) {
  const auto said = [](const cuda::Program& program) {
    std::vector<std::string> nodes;
    for (const PlannedKernel& s : program.nodes)
      nodes.push_back(fmt::format("{} {} {} {} {}", s.kernel, s.tile, s.launches, static_cast<int>(s.stage),
                                  s.kind ? static_cast<int>(*s.kind) : -1));
    return nodes;
  };
  for (const cuda::DeviceFacts& card : {kH200, kGb10}) {
    for (const KernelFamily family :
         {KernelFamily::kAuto, KernelFamily::kStreaming, KernelFamily::kGemm, KernelFamily::kReference}) {
      for (const std::vector<int>& lengths : {std::vector<int>{2}, {8}, {8, 1}, {3, 5, 2}, {8, 8, 8, 8}}) {
        std::vector<Row> rows;
        int32_t tokens = 0;
        for (const int32_t length : lengths) {
          rows.push_back({.first_token = tokens, .tokens = length, .context = 5000, .drafted = length - 1});
          tokens += length;
        }
        const BackendConfig config{.dims = kDims, .layer_kinds = {}, .rope_inv_freq = {}, .dense = {}};
        const cuda::Program guessed = cuda::make_program(
            {.config = config, .run = {.family = family}, .step = {.rows = rows, .logit_rows = tokens}, .card = card});
        const cuda::Program plain = plan(decode(tokens), {.options = {.family = family}, .card = card});
        EXPECT_EQ(said(guessed), said(plain)) << name_of(family) << ", " << tokens << " tokens";
        EXPECT_EQ(guessed.shares.decode, plain.shares.decode);
        EXPECT_TRUE(guessed.shares.prefill.empty());
      }
    }
  }
}

TEST(make_program, kernels_share_out_what_their_stage_must_read_and_compute) {
  const std::vector<LayerKind> layers = {LayerKind::kSliding, LayerKind::kFull};
  for (const auto& [family, dense] :
       {std::pair{KernelFamily::kStreaming, DenseFormats{.qkv = kMxfp4, .o = {}, .lm_head = kMxfp8}},
        {KernelFamily::kGemm, DenseFormats{.qkv = kMxfp4, .o = {}, .lm_head = kMxfp8}},
        {KernelFamily::kGemm, DenseFormats{.qkv = kQ8, .o = kQ8, .lm_head = kQ8}},
        {KernelFamily::kGemm, DenseFormats{.qkv = kQ8, .o = kQ8, .lm_head = kQ8, .q8_copies = false}}}) {
    const CostModel model{kDims, StoredFormats::of({}, dense)};
    for (const std::vector<Row>& rows : {decode(3), decode(40), kPrompt, {{0, 1, 5000}, {1, 512, 512}}}) {
      const cuda::Program planned =
          plan(rows, {.options = {.attention = Attention::kFlash, .family = family}, .dense = dense});
      Cost sum;
      for (const PlannedKernel& s : planned.nodes)
        for (int64_t layer = 0; layer < layers_of(s, layers); ++layer) sum += s.cost;
      const Cost want = model.of_step(layers, {.rows = rows, .logit_rows = static_cast<int64_t>(rows.size())});
      EXPECT_NEAR(sum.bytes / want.bytes, 1, 1e-6) << name_of(family);
      EXPECT_NEAR(sum.flops / want.flops, 1, 1e-6) << name_of(family);
    }
  }
}

TEST(make_program, plain_matrices_take_a_row_per_warp_for_one_token_and_tiles_for_many) {
  const RunConfig plain = {.family = KernelFamily::kReference};
  EXPECT_THAT(plan(decode(1), {.options = plain}).nodes[2].tile,
              HasSubstr("q: 1 rows x 1 tokens per warp, 1024 x 1 CTAs"));
  EXPECT_THAT(plan(kPrompt, {.options = plain}).nodes[2].tile,
              HasSubstr("q: 4 rows x 8 tokens per warp, 256 x 64 CTAs"));
}

TEST(make_program, up_to_eight_tokens_take_the_fused_decode_kernels) {
  for (const KernelFamily family : {KernelFamily::kStreaming, KernelFamily::kGemm}) {
    for (const int tokens : {1, 8}) {
      const cuda::Program planned =
          plan(decode(tokens), {.options = {.attention = Attention::kFlash, .family = family}});
      EXPECT_THAT(kernels(planned),
                  ElementsAre("any_embed_f32_bf16", "any_rope_table_f32", "gemv<qkv, bf16>", "any_attend_decode<bf16>",
                              "any_attend_decode<bf16>", "gemv<dense, bf16>", "any_router_f32_bf16", "moe_up",
                              tokens == 1 ? "gemv<moe_down>" : "moe_down", "gemv<dense, bf16>"));
    }
  }
  EXPECT_EQ(tile(plan(decode(1), {.options = {.family = KernelFamily::kStreaming}}), "moe_up"),
            cuda::plan_row_warps(kDims.hidden, cuda::MoeUp::kWish, cuda::plan_device(kH200)).tile);
}

TEST(make_program, o_is_read_in_halves_where_the_architecture_gains_by_it_and_the_sms_are_balanced) {
  const auto halves = [](const cuda::DeviceFacts& card) {
    const cuda::GemvShape o{kDims.hidden, kDims.q_width(), 1, cuda::layout::Packing::kBf16};
    return cuda::o_in_halves(cuda::Card(card).tuned(), o, cuda::plan_device(card));
  };
  const cuda::DeviceFacts rtx4090 = {.name = "RTX 4090",
                                     .major = 8,
                                     .minor = 9,
                                     .multiprocessors = 128,
                                     .cta_smem_bytes = 101376,
                                     .sm_smem_bytes = 102400};
  cuda::DeviceFacts a100 = rtx4090;
  a100.multiprocessors = 108;  // 4 halves at most, as 2 whole tiles
  EXPECT_TRUE(halves(rtx4090));
  EXPECT_FALSE(halves(a100));
  EXPECT_FALSE(halves(kGb10));
  EXPECT_FALSE(halves(kH200));
}

TEST(make_program, rounded_activations_are_kernels_before_each_product_of_the_experts_but_in_decode_steps) {
  const auto moe = [](int tokens, const RunConfig& options) {
    return kernels(plan(decode(tokens), {.options = options}), Stage::kMoe);
  };
  const RunConfig mxfp8 = {.activations = Activations::kMxfp8};
  EXPECT_THAT(moe(1, mxfp8), ElementsAre("moe_up", "gemv<moe_down>"));
  EXPECT_THAT(moe(8, mxfp8), ElementsAre("moe_up", "moe_down"));
  for (const Activations format : {Activations::kMxfp8, Activations::kMxfp6, Activations::kMxfp4}) {
    const std::string name(cuda::RoundBlocks::name(format).name);
    EXPECT_THAT(moe(9, {.family = KernelFamily::kStreaming, .activations = format}),
                ElementsAre(name, "any_moe_group_tiles", "grouped<up>", name, "grouped<down>"));
  }
  EXPECT_EQ(moe(9, mxfp8), moe(9, {})) << "Hopper's GEMMs round many tokens";
  EXPECT_EQ(moe(9, {.activations = Activations::kMxfp6}).front(), "any_round_blocks<mxfp6>") << "which no GEMM takes";
}

TEST(make_program, the_next_layer_adds_what_the_experts_left) {
  const cuda::Program planned = plan(decode(9), {.options = {.family = KernelFamily::kStreaming}});
  for (const PlannedKernel& s : planned.nodes)
    if (s.kernel == "any_norm_sums_f32" && s.stage == Stage::kAttnIn) EXPECT_EQ(s.layers, InLayers::kAfterFirst);
  EXPECT_THAT(kernels(planned, Stage::kAttnIn), testing::Contains("any_norm_sums_f32"));
  EXPECT_EQ(kernels(planned, Stage::kLogits).front(), "any_norm_sums_f32");
  // A fused step's kernels add it themselves.
  EXPECT_THAT(kernels(plan(decode(8), {})), Not(testing::Contains("any_norm_sums_f32")));
}

cuda::ExpertsPlan experts_gemms(bool at_once, bool row_codes = false) {
  cuda::ExpertsPlan gemms{};
  gemms.at_once = at_once;
  gemms.row_codes = row_codes;
  return gemms;
}

TEST(make_program, few_experts_are_one_launch_of_gemms_and_more_of_them_grouped) {
  const auto by_gemm = [](const Dims& dims, int64_t tokens, bool at_once = true) {
    const cuda::Tuned tuned{.gemm_at_once_pairs = 64, .grouped_pairs = 3};
    return cuda::experts_by_gemm(KernelFamily::kAuto, experts_gemms(at_once), dims, tuned, tokens);
  };
  for (const int64_t tokens : {9, 16, 97}) EXPECT_TRUE(by_gemm(kDims, tokens)) << tokens;
  for (const int64_t tokens : {8, 17, 96}) EXPECT_FALSE(by_gemm(kDims, tokens)) << tokens;
  Dims few = kDims;
  few.experts = 32;
  EXPECT_FALSE(by_gemm(few, 8));
  for (const int64_t tokens : {9, 17, 24}) EXPECT_TRUE(by_gemm(few, tokens)) << tokens;
  // Two launches do not gain, and have a limit of their own.
  EXPECT_FALSE(by_gemm(few, 24, false));
  const cuda::Tuned tuned{.grouped_pairs = 3, .grouped_pairs_apart = 8};
  for (const bool at_once : {true, false})
    EXPECT_EQ(cuda::experts_by_gemm(KernelFamily::kAuto, experts_gemms(at_once), kDims, tuned, 97), at_once);
  EXPECT_TRUE(cuda::experts_by_gemm(KernelFamily::kAuto, experts_gemms(false, true), kDims, tuned, 97)) << "FP8 gains";
}

TEST(make_program, nine_tokens_of_marlin_are_launches_of_eight_and_grouped_experts) {
  const cuda::Program planned = plan(decode(9), {.options = {.family = KernelFamily::kStreaming}});
  EXPECT_THAT(kernels(planned, Stage::kMoe), ElementsAre("any_moe_group_tiles", "grouped<up>", "grouped<down>"));
  EXPECT_EQ(find(planned, "gemv<qkv, bf16>").launches, 2);
  EXPECT_EQ(find(planned, "gemv<dense, bf16>").launches, 2);
}

TEST(make_program, nine_to_256_tokens_split_k_on_hopper_and_add_it_up_in_the_next_kernel) {
  for (const int tokens : {9, 64, 256}) {
    const cuda::Program planned = plan(decode(tokens), {});
    EXPECT_THAT(kernels(planned, Stage::kAttnIn),
                ElementsAre("any_rope_table_f32", "any_norm_sums_f32", "sm90_split_gemm"));
    EXPECT_THAT(kernels(planned, Stage::kAttend),
                ElementsAre("any_rope_sums_f32", "any_attend_decode<bf16>", "any_attend_decode<bf16>"));
    EXPECT_THAT(kernels(planned, Stage::kAttnOut), ElementsAre("sm90_split_gemm"));
    EXPECT_THAT(kernels(planned, Stage::kRoute), ElementsAre("sm90_norm_route"));
    EXPECT_EQ(tile(planned, "sm90_norm_route"), cuda::plan_norm_route({tokens, kDims.hidden, kDims.experts}).tile);
    EXPECT_THAT(kernels(plan(decode(tokens), {.card = kGb10}), Stage::kRoute),
                ElementsAre("any_norm_sums_f32", "any_linear_f32_bf16", "any_top_experts_f32"));
  }
  EXPECT_EQ(tile(plan(decode(16), {}), "sm90_split_gemm"),
            cuda::plan_split_gemm({5120, kDims.hidden, 16}, kH200.multiprocessors).tile);
  EXPECT_THAT(kernels(plan(decode(257), {}), Stage::kAttnOut), ElementsAre("sm90_dense_gemm"));
  EXPECT_THAT(kernels(plan(decode(257), {}), Stage::kAttnIn),
              ElementsAre("any_rope_table_f32", "any_norm_sums_f32", "sm90_dense_gemm"));
  EXPECT_THAT(kernels(plan(decode(9), {.card = kGb10}), Stage::kAttnOut), ElementsAre("any_gemm<bf16>"));
  EXPECT_THAT(kernels(plan(decode(9), {.dense = {.qkv = {}, .o = kMxfp4, .lm_head = {}}}), Stage::kAttnOut),
              ElementsAre("sm90_mxfp4_gemm"));
  EXPECT_THAT(tile(plan(decode(9), {.dense = {.qkv = {}, .o = kMxfp4, .lm_head = {}}}), "sm90_mxfp4_gemm"),
              testing::HasSubstr("K in 8"));
  // Attention that does not round leaves it to a kernel of its own.
  EXPECT_THAT(kernels(plan(decode(9), {.options = {.attention = Attention::kReference}}), Stage::kAttnOut),
              ElementsAre("any_round_f32", "sm90_split_gemm"));
}

TEST(make_program, many_tokens_of_gemm_take_wgmma_on_hopper_and_mma_elsewhere) {
  const cuda::Program hopper = plan(kPrompt, {.options = {.family = KernelFamily::kGemm}});
  EXPECT_THAT(kernels(hopper), IsSupersetOf({"sm90_dense_gemm", "sm90_grouped", "any_moe_group_tiles"}));
  EXPECT_EQ(kernels(hopper, Stage::kMoe).back(), "sm90_grouped");  // the next norm adds the experts
  EXPECT_EQ(kernels(hopper, Stage::kLogits).front(), "any_norm_sums_f32");
  const std::optional<cuda::GemmPlan> up =
      cuda::plan_sm90_grouped({2 * kDims.inter, kDims.hidden, 512 * kDims.topk, kDims.experts}, kH200.multiprocessors);
  ASSERT_TRUE(up.has_value());
  EXPECT_EQ(tile(hopper, "sm90_grouped"), up->tile);
  EXPECT_THAT(kernels(plan(decode(256), {.options = {.family = KernelFamily::kGemm}}), Stage::kMoe),
              ElementsAre("any_group_round_f32", "sm90_grouped"));
  const cuda::Program many = plan({{0, 2048, 2048}}, {});
  EXPECT_THAT(kernels(many, Stage::kRoute), ElementsAre("any_route_sums"));
  EXPECT_THAT(kernels(many, Stage::kMoe),
              ElementsAre("any_moe_group_tiles", "any_round_f32", "sm90_mxfp4_gemm<experts>"));
  EXPECT_THAT(kernels(plan({{0, 2048, 2048}}, {.card = kGb10}), Stage::kMoe),
              ElementsAre("any_moe_group_tiles", "any_round_f32", "any_gemm<gate_up>", "any_gemm<mxfp4>"));
  // Two launches where something stands between them.
  const RunConfig mxfp6 = {.family = KernelFamily::kGemm, .activations = Activations::kMxfp6};
  EXPECT_THAT(kernels(plan(decode(256), {.options = mxfp6}), Stage::kMoe),
              ElementsAre("any_group_round_f32", "any_round_blocks<mxfp6>", "sm90_mxfp4_gemm<gate_up>",
                          "any_round_blocks<mxfp6>", "sm90_mxfp4_gemm"));
  const cuda::Program spark = plan(kPrompt, {.options = {.family = KernelFamily::kGemm}, .card = kGb10});
  EXPECT_THAT(kernels(spark), IsSupersetOf({"any_gemm<bf16>", "any_gemm<gate_up>", "any_gemm<mxfp4>"}));
}

TEST(make_program, hopper_multiplies_mxfp8_experts_as_codes_of_rows) {
  const RunConfig mxfp8 = {.activations = Activations::kMxfp8};
  const std::vector<Row> prompt = {{0, 1024, 1024}};
  const RunConfig gemm = {.family = KernelFamily::kGemm, .activations = Activations::kMxfp8};
  for (const auto& [step, options] : {std::pair{decode(256), gemm}, std::pair{prompt, mxfp8}}) {
    const cuda::Program program = plan(step, {.options = options});
    EXPECT_THAT(kernels(program, Stage::kMoe),
                ElementsAre("any_moe_group_tiles", "any_round_rows_e4m3", "sm90_mxfp4_gemm<gate_up, e4m3>",
                            "any_round_rows_e4m3", "sm90_mxfp4_gemm<e4m3>"));
    EXPECT_EQ(program.held(Stage::kMoe, Slot::kExpertHidden).rounded_to, Activations::kMxfp8);
  }
  // Where codes would gain nothing the same kernels run as for exact experts.
  for (const int tokens : {9, 64, 256, 512})
    EXPECT_EQ(kernels(plan(decode(tokens), {.options = mxfp8}), Stage::kMoe),
              kernels(plan(decode(tokens), {}), Stage::kMoe));
  EXPECT_NE(kernels(plan(decode(513), {.options = mxfp8}), Stage::kMoe), kernels(plan(decode(513), {}), Stage::kMoe));
  // --fast means no values that are rounded and multiplied as if they were exact.
  RunConfig fast = mxfp8;
  fast.fast = true;
  const cuda::layout::ModelScales apart{.experts = {120, 103}, .dense = {}};
  EXPECT_EQ(kernels(plan(prompt, {.options = fast, .scales = apart}), Stage::kMoe),
            kernels(plan(prompt, {.scales = apart}), Stage::kMoe));
  // The residual is rounded where its norm is taken.
  EXPECT_THAT(kernels(plan(prompt, {.options = mxfp8}), Stage::kRoute), ElementsAre("any_route_sums"));
  // Scales too far apart for e5m2: values, in f16. Those that f16 does not hold are any_gemm's.
  EXPECT_THAT(
      kernels(plan(prompt, {.options = mxfp8, .scales = {.experts = {120, 104}, .dense = {125, 90}}}), Stage::kMoe),
      testing::Contains("sm90_mxfp4_gemm<gate_up, e4m3>"));
  EXPECT_THAT(kernels(plan(prompt, {.options = mxfp8, .scales = {.experts = {120, 103}, .dense = {}}}), Stage::kMoe),
              IsSupersetOf({"any_round_blocks<mxfp8>", "sm90_mxfp4_gemm<gate_up>", "sm90_mxfp4_gemm"}));
  EXPECT_THAT(kernels(plan(prompt, {.options = mxfp8, .scales = {.experts = {}, .dense = {132, 132}}}), Stage::kMoe),
              IsSupersetOf({"any_round_blocks<mxfp8>", "any_gemm<gate_up>"}));
}

TEST(make_program, block_scaled_experts_take_codes_that_the_norm_and_their_own_epilogue_make) {
  for (const Activations format : {Activations::kMxfp8, Activations::kMxfp6, Activations::kMxfp4})
    for (const int tokens : {512, 513}) {  // either router
      const RunConfig run = {.family = KernelFamily::kGemm, .activations = format};
      const std::vector<Row> prompt = {{0, tokens, tokens}};
      const cuda::Program spark = plan(prompt, {.options = run, .card = kGb10});
      const std::string up_name = fmt::format("sm121_mx_gemm<gate_up, {}>", name_of(format));
      EXPECT_THAT(kernels(spark, Stage::kMoe),
                  ElementsAre("any_moe_group_tiles", up_name, fmt::format("sm121_mx_gemm<down, {}>", name_of(format))));
      EXPECT_EQ(kernels(spark, Stage::kRoute).front(), "any_norm_sums_f32");
      const cuda::GemmPlan up = cuda::plan_mx_gemm({.rows = 2 * kDims.inter,
                                                    .cols = kDims.hidden,
                                                    .tokens = tokens * kDims.topk,
                                                    .experts = kDims.experts,
                                                    .activations = format},
                                                   kGb10);
      EXPECT_EQ(up.tokens, 64);
      EXPECT_EQ(tile(spark, up_name), up.tile);
      EXPECT_EQ(spark.held(Stage::kMoe, Slot::kExpertHidden).type, cuda::Held::Type::kCodes);
      EXPECT_EQ(spark.held(Stage::kMoe, Slot::kExpertHidden).codes, cuda::codes_of(format));
    }
  const RunConfig wide = {
      .family = KernelFamily::kGemm, .activations = Activations::kMxfp8, .moe_tile = MoeTile::k128x128};
  const cuda::Program asked = plan(kPrompt, {.options = wide, .card = kGb10});
  EXPECT_THAT(tile(asked, "sm121_mx_gemm<down, mxfp8>"), HasSubstr("128 rows x 128 tokens"));
  // Few tokens stay with the streaming kernels, which take rounded values.
  EXPECT_THAT(kernels(plan(decode(9), {.options = {.activations = Activations::kMxfp8}, .card = kGb10}), Stage::kMoe),
              ElementsAre("any_round_blocks<mxfp8>", "any_moe_group_tiles", "grouped<up>", "any_round_blocks<mxfp8>",
                          "grouped<down>"));
}

TEST(make_program, dense_layers_take_codes_where_the_card_multiplies_them_and_rounded_values_elsewhere) {
  const RunConfig run = {.family = KernelFamily::kGemm, .dense_activations = Activations::kMxfp8};
  const DenseFormats dense = {.qkv = kMxfp8, .o = kMxfp4, .lm_head = {}};
  const cuda::Program spark = plan(decode(9), {.options = run, .dense = dense, .card = kGb10});
  EXPECT_THAT(kernels(spark, Stage::kAttnIn),
              ElementsAre("any_rope_table_f32", "any_norm_sums_f32", "sm121_mx_gemm<mxfp8>"));
  EXPECT_THAT(kernels(spark, Stage::kAttnOut), ElementsAre("sm121_mx_gemm<mxfp4>"));  // attention stores codes
  for (const cuda::Node& node : spark.nodes) {  // o's result is read in bf16, beside the residual in f32
    if (node.stage != Stage::kRoute || node.kernel != "any_norm_sums_f32") continue;
    EXPECT_EQ(node.moved, 9.0 * 2880 * (2 + 8 + 2));
  }
  EXPECT_EQ(spark.held(Stage::kAttend, Slot::kAttn).at, nullptr);
  EXPECT_THAT(kernels(spark, Stage::kLogits), testing::Contains("any_gemm<bf16>"));  // not named: exact
  EXPECT_EQ(spark.dense_activations, Activations::kMxfp8);
  const cuda::Program all =
      plan(decode(9), {.options = run, .dense = {.qkv = kMxfp4, .o = kMxfp4, .lm_head = kMxfp4}, .card = kGb10});
  EXPECT_THAT(kernels(all, Stage::kLogits), IsSupersetOf({"any_round_f32", "sm121_mx_gemm<mxfp4>"}));
  const cuda::Program hopper = plan(kPrompt, {.options = run, .dense = dense});
  EXPECT_THAT(kernels(hopper, Stage::kAttnIn),
              ElementsAre("any_rope_table_f32", "any_norm_sums_f32", "any_round_blocks<mxfp8>", "any_gemm<mxfp8>"));
  EXPECT_THAT(kernels(hopper, Stage::kAttnOut), ElementsAre("any_round_blocks<mxfp8>", "sm90_mxfp4_gemm"));
  constexpr cuda::Place kInput = cuda::in<&cuda::Arena::gemm, &cuda::GemmArena::x>;
  EXPECT_EQ(hopper.held(Stage::kAttend, Slot::kAttn).at, kInput);
  // Without it all is as it was.
  const RunConfig exact = {.family = KernelFamily::kGemm};
  EXPECT_THAT(kernels(plan(decode(9), {.options = exact, .dense = dense, .card = kGb10})),
              IsSupersetOf({"any_gemm<mxfp8>", "any_gemm<mxfp4>"}));
  // Few tokens are not rounded.
  EXPECT_EQ(kernels(plan(decode(1), {.options = run, .dense = dense, .card = kGb10})),
            kernels(plan(decode(1), {.options = exact, .dense = dense, .card = kGb10})));
}

TEST(make_program, a_tile_of_experts_that_no_kernel_has_is_refused) {
  const RunConfig tiles = {.activations = Activations::kMxfp8, .moe_tile = MoeTile::k64x128};
  RunConfig exact = tiles, streaming = tiles;
  exact.activations = Activations::kBf16;
  streaming.family = KernelFamily::kStreaming;
  EXPECT_NO_THROW(plan(kPrompt, {.options = tiles, .card = kGb10}));
  for (const Asked& asked :
       {Asked{.options = tiles}, {.options = exact, .card = kGb10}, {.options = streaming, .card = kGb10}}) {
    try {
      plan(kPrompt, asked);
      ADD_FAILURE() << asked.card.facts.name;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("--moe-tile 64x128: want a card of compute capability 12"));
      EXPECT_THAT(error.what(), HasSubstr("found " + asked.card.facts.name));
    }
  }
}

TEST(make_program, pages_of_a_type_without_kernels_are_refused_by_name_wherever_they_come_in) {
  alignas(16) static float memory[4] = {};
  alignas(16) static int32_t slots[4] = {};
  cuda::RopeSums::Args rope{.sums = {memory, 1},
                            .bias = reinterpret_cast<const Bf16*>(memory),
                            .q = memory,
                            .cosine = memory,
                            .sine = memory,
                            .kv_slots = slots,
                            .kv = {memory, memory, Kv::kBf16},
                            .tokens = 1,
                            .heads = 1,
                            .kv_heads = 1};
  EXPECT_NO_THROW(cuda::check_args(rope));
  rope.kv.type = Kv::kInt8;
  try {
    cuda::check_args(rope);
    FAIL() << "int8 pages";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "--kv-cache-dtype int8: no kernels of --backend cuda take it");
  }
  EXPECT_FALSE(cuda::flash_serves(64, 8, 64, Kv::kInt8));
  for (const cuda::Arch& arch : cuda::architectures())
    EXPECT_TRUE(arch.prefill.serve == nullptr || !arch.prefill.serve({Kv::kInt8}).has_value());
}

TEST(make_program, requantised_layers_are_named_by_what_they_hold) {
  const DenseFormats dense = {.qkv = kMxfp4, .o = kMxfp8, .lm_head = kMxfp4};
  const cuda::Program one = plan(decode(1), {.options = {.family = KernelFamily::kStreaming}, .dense = dense});
  EXPECT_THAT(kernels(one, Stage::kAttnIn), ElementsAre("any_rope_table_f32", "gemv<qkv, mxfp4>"));
  EXPECT_THAT(kernels(one, Stage::kAttnOut), ElementsAre("gemv<dense, mxfp8>"));
  EXPECT_THAT(kernels(one, Stage::kLogits), ElementsAre("gemv<dense, mxfp4>"));
  const cuda::Program many = plan(kPrompt, {.options = {.family = KernelFamily::kGemm}, .dense = dense});
  EXPECT_THAT(kernels(many, Stage::kAttnIn), testing::Contains("sm90_mxfp4_gemm"));
  EXPECT_THAT(kernels(many, Stage::kAttnOut), ElementsAre("any_gemm<mxfp8>"));
}

TEST(make_program, few_tokens_multiply_q8_0_and_others_its_copy_in_bf16) {
  const DenseFormats q8 = {.qkv = kQ8, .o = kQ8, .lm_head = kQ8};
  for (const cuda::DeviceFacts& card : {kH200, kGb10}) {
    for (const int tokens : {1, 8}) {
      const cuda::Program few = plan(decode(tokens), {.dense = q8, .card = card});
      EXPECT_THAT(kernels(few, Stage::kAttnIn), ElementsAre("any_rope_table_f32", "gemv<qkv, q8_0>"));
      EXPECT_THAT(kernels(few, Stage::kAttnOut), ElementsAre("gemv<dense, q8_0>"));
      EXPECT_THAT(kernels(few, Stage::kLogits), ElementsAre("gemv<dense, q8_0>"));
    }
    for (const std::vector<Row>& rows : {decode(9), decode(256)})
      EXPECT_EQ(kernels(plan(rows, {.dense = q8, .card = card})), kernels(plan(rows, {.card = card})));
    // Logits of few rows behind many tokens.
    const cuda::Program prompt = plan(kPrompt, {.dense = q8, .card = card});
    EXPECT_EQ(find(prompt, "gemv<dense, q8_0>").stage, Stage::kLogits);
  }
}

TEST(make_program, without_its_copy_any_gemm_multiplies_q8_0) {
  const DenseFormats alone = {.qkv = kQ8, .o = kQ8, .lm_head = kQ8, .q8_copies = false};
  for (const cuda::DeviceFacts& card : {kH200, kGb10}) {
    const cuda::Program many = plan(decode(9), {.dense = alone, .card = card});
    for (const Stage stage : {Stage::kAttnIn, Stage::kAttnOut, Stage::kLogits})
      EXPECT_THAT(kernels(many, stage), testing::Contains("any_gemm<q8_0>"));
    EXPECT_EQ(kernels(plan(decode(8), {.dense = alone, .card = card})),
              kernels(plan(decode(8), {.dense = {.qkv = kQ8, .o = kQ8, .lm_head = kQ8}, .card = card})));
    EXPECT_EQ(find(many, "any_gemm<q8_0>").cost.bytes,
              find(plan(decode(8), {.dense = alone, .card = card}), "gemv<qkv, q8_0>").cost.bytes -
                  2.0 * (kDims.hidden + kDims.q_width() + 2 * kDims.kv_width()));  // norm and biases
  }
  EXPECT_FALSE(cuda::widens_q8(kH200));
  EXPECT_TRUE(cuda::widens_q8(kGb10));
}

TEST(make_program, what_a_file_has_in_q8_0_stays_so_where_kernels_read_it) {
  const DenseFormats file = {.qkv = kQ8, .o = kQ8, .lm_head = kQ8};
  BackendConfig config{.dims = kDims, .layer_kinds = {}, .rope_inv_freq = {}, .dense = {}};
  cuda::DeviceFacts large = kH200;
  large.memory_bytes = int64_t{141} << 30;
  const auto taken = [&](const RunConfig& run, const cuda::DeviceFacts& card) {
    const DenseFormats dense = cuda::with_q8(config, run, card, file);
    return std::array{dense.qkv, dense.o, dense.lm_head};
  };
  using Taken = std::array<std::optional<WeightFormat>, 3>;
  cuda::DeviceFacts slow = kGb10;
  slow.memory_bytes_per_s = 273e9;
  EXPECT_EQ(taken({}, slow), (Taken{kQ8, kQ8, kQ8}));  // no room for a screen
  slow.memory_bytes = int64_t{128} << 30;
  EXPECT_EQ(taken({}, slow), (Taken{kQ8, kQ8, std::nullopt}));  // the screen reads bf16
  EXPECT_EQ(taken({.screened_head = ScreenedHead::kOff}, slow), (Taken{kQ8, kQ8, kQ8}));
  EXPECT_EQ(taken({}, large), (Taken{kQ8, kQ8, kQ8}));
  for (const KernelFamily none : {KernelFamily::kStreaming, KernelFamily::kReference})
    EXPECT_EQ(taken({.family = none}, large), Taken{});
  config.dense.keeps_q8 = false;
  EXPECT_EQ(taken({}, large), Taken{});
  config.dense = {};
  EXPECT_EQ(cuda::with_q8(config, {}, large, {.qkv = {}, .o = kQ8, .lm_head = {}}).qkv, std::nullopt);
  config.dense.o = kMxfp4;
  EXPECT_EQ(taken({}, large), (Taken{kQ8, kMxfp4, kQ8}));
  config.dims.experts = 126;  // no step is fused
  EXPECT_EQ(taken({}, large), (Taken{std::nullopt, kMxfp4, std::nullopt}));
}

TEST(make_program, new_tokens_decide_between_decode_and_prefill_attention) {
  const RunConfig flash = {.attention = Attention::kFlash};
  const std::string decodes = "any_attend_decode<bf16>", prefills = "sm90_attend_prefill";
  const auto attend = [&](const std::vector<Row>& rows) {
    return kernels(plan(rows, {.options = flash}), Stage::kAttend);
  };
  EXPECT_THAT(attend(decode(1)), ElementsAre(decodes, decodes));  // both kinds of layers
  EXPECT_THAT(attend(kPrompt), ElementsAre("any_rope_sums_f32", prefills, prefills));
  EXPECT_THAT(attend({{0, 1, 5000}, {1, 512, 512}}),
              ElementsAre("any_rope_sums_f32", decodes, prefills, decodes, prefills));
}

TEST(make_program, wgmma_takes_the_prefill_of_bf16_pages_on_hopper) {
  const auto attend = [](const Asked& asked) { return kernels(plan(kPrompt, asked), Stage::kAttend).back(); };
  const RunConfig flash = {.attention = Attention::kFlash}, e4m3 = {.kv = Kv::kE4m3};
  EXPECT_EQ(attend({.options = flash}), "sm90_attend_prefill");
  EXPECT_EQ(attend({.options = flash, .card = kGb10}), "any_attend_prefill<bf16>");
  EXPECT_EQ(attend({.options = e4m3}), "any_attend_prefill<e4m3>");
}

TEST(make_program, attention_in_fp8_has_its_own_kernels_on_every_card) {
  const RunConfig fp8 = {.kv = Kv::kE4m3, .attention_activations = AttentionActivations::kFp8};
  const auto attend = [&](const std::vector<Row>& rows, const cuda::DeviceFacts& card) {
    return kernels(plan(rows, {.options = fp8, .card = card}), Stage::kAttend);
  };
  const std::string decodes = "any_attend_decode<e4m3, fp8>", plain = "any_attend_prefill_fp8<mma>",
                    scaled = "any_attend_prefill_fp8<mx>";
  EXPECT_THAT(attend(decode(1), kGb10), ElementsAre(decodes, decodes));
  EXPECT_THAT(attend(kPrompt, kGb10), ElementsAre("any_rope_sums_f32", scaled, scaled));
  EXPECT_THAT(attend({{0, 1, 5000}, {1, 512, 512}}, kH200),
              ElementsAre("any_rope_sums_f32", decodes, plain, decodes, plain));
}

TEST(make_program, the_type_of_the_cache_names_the_attention) {
  const auto attend = [](const RunConfig& options) {
    return kernels(plan(decode(1), {.options = options}), Stage::kAttend).at(0);
  };
  EXPECT_EQ(attend({.kv = Kv::kF32}), "any_attend<f32>");
  EXPECT_EQ(attend({.attention = Attention::kReference}), "any_attend<bf16>");
  EXPECT_EQ(attend({.kv = Kv::kE4m3}), "any_attend_decode<e4m3>");
  EXPECT_EQ(attend({.kv = Kv::kE4m3, .attention = Attention::kReference}), "any_attend<e4m3>");
}

TEST(make_program, what_the_backend_refuses_has_no_plan) {
  const auto refused = [](const Asked& asked) {
    try {
      static_cast<void>(plan(decode(1), asked));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kUnsupported);
      return std::string(error.what());
    }
    return std::string("planned");
  };
  using enum Activations;
  EXPECT_THAT(refused({.options = {.activations = kInt8}}),
              HasSubstr("--moe-activation int8: want --backend cpu or reference, found cuda"));
  EXPECT_THAT(refused({.options = {.activations = Activations::kF32}}),
              HasSubstr("--moe-activation f32: want --moe-kernel reference, found auto"));
  for (const Activations format : {kMxfp8, kMxfp6, kMxfp4})
    EXPECT_THAT(refused({.options = {.family = KernelFamily::kReference, .activations = format}}),
                HasSubstr(fmt::format("--moe-activation {}: want --moe-kernel auto, marlin or gemm, found reference",
                                      name_of(format))));
  EXPECT_THAT(
      refused({.options = {.kv = Kv::kF32, .attention = Attention::kFlash}}),
      HasSubstr("flash: want head_dim 64, num_attention_heads of up to 8 times num_key_value_heads and a KV cache "
                "in bf16 or fp8, found head_dim 64, 64 heads, 8 key-value heads, f32"));
  for (const KvType& type : kKvTypes) {  // a new one, too, until cards have kernels for it
    const std::string why = refused({.options = {.kv = type.dtype}});
    EXPECT_EQ(why.find("--kv-cache-dtype " + std::string(type.word)) == std::string::npos,
              type.on.has(BackendKind::kCuda))
        << why;
  }
  EXPECT_THAT(refused({.options = {.family = KernelFamily::kReference},
                       .dense = {.qkv = WeightFormat::kMxfp4, .o = {}, .lm_head = {}}}),
              HasSubstr("--mxfp4-layers, --mxfp8-layers and --q8-layers: want --moe-kernel"));
}

TEST(make_program, shapes_that_some_kernels_do_not_serve_are_known) {
  const auto with = [](int64_t Dims::* field, int64_t value) {
    BackendConfig config{.dims = kDims, .layer_kinds = {}, .rope_inv_freq = {}, .dense = {}};
    config.dims.*field = value;
    return config;
  };
  EXPECT_TRUE(cuda::fused_step(kDims, 8));
  EXPECT_FALSE(cuda::fused_step(kDims, 9));
  for (const auto& [field, value] : {std::pair{&Dims::experts, 126}, {&Dims::topk, 1}, {&Dims::topk, 5}})
    EXPECT_FALSE(cuda::fused_step(with(field, value).dims, 8)) << value;
  EXPECT_EQ(cuda::why_not_packed(with(&Dims::vocab, 201088)), std::nullopt);
  for (const auto& [field, value] : {std::pair{&Dims::vocab, 201089}, {&Dims::hidden, 2888}, {&Dims::head_dim, 80}})
    EXPECT_NE(cuda::why_not_packed(with(field, value)), std::nullopt) << value;
}

TEST(make_program, a_step_without_logits_plans_none) {
  const BackendConfig config{.dims = kDims, .layer_kinds = {}, .rope_inv_freq = {}, .dense = {}};
  for (const KernelFamily family : {KernelFamily::kStreaming, KernelFamily::kReference}) {
    const RunConfig options = {.family = family};
    const cuda::Program planned =
        cuda::make_program({.config = config, .run = options, .step = {.rows = kPrompt}, .card = kH200});
    EXPECT_THAT(kernels(planned, Stage::kLogits), testing::IsEmpty());
  }
}

// What tools/check_spills.py cannot see: shared memory that a launch asks for. It sees that these kernels have no
// other.
TEST(make_program, decode_kernels_fit_the_shared_memory_of_a_block_of_sm121) {
  constexpr int64_t kBlock = 99 * 1024;
  for (const std::optional<WeightFormat> format : {std::optional<WeightFormat>(), {kMxfp8}, {kMxfp4}, {kQ8}}) {
    for (const Kv kv : {Kv::kBf16, Kv::kE4m3}) {
      for (const int tokens : {1, 2, 8, 32}) {
        const cuda::Program planned = plan(
            decode(tokens), {.options = {.kv = kv, .attention = Attention::kFlash, .family = KernelFamily::kStreaming},
                             .dense = {.qkv = format, .o = format, .lm_head = format},
                             .card = kGb10});
        for (const PlannedKernel& s : planned.nodes) {
          EXPECT_LE(s.shared_bytes, kBlock) << s.kernel << ": " << s.tile;
          EXPECT_EQ(s.shared_bytes > 0, s.tile.find(" B shared") != std::string::npos) << s.kernel;
        }
      }
    }
  }
}

}  // namespace
}  // namespace nibble::backend
