// Which architecture's kernel takes a shape; and that a new one is added in one place.

#include "backend/cuda/arch/arch.h"

#include "backend/cuda/arch/sm121/kernels.h"
#include "backend/cuda/arch/sm90/kernels.h"
#include "backend/cuda/program/program.h"
#include "backend/cuda/testing/costs.h"
#include "backend/testing/dims.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::backend::cuda {
namespace {

constexpr int kFakeMajor = 99;
const DeviceFacts kHopper = {.name = "H100",
                             .major = 9,
                             .multiprocessors = 132,
                             .cta_smem_bytes = 232448,
                             .sm_smem_bytes = 233472},
                  kFakeCard = {.name = "made up",
                               .major = kFakeMajor,
                               .multiprocessors = 10,
                               .cta_smem_bytes = 101376,
                               .sm_smem_bytes = 102400},
                  kSpark = {.name = "GB10",
                            .major = 12,
                            .minor = 1,
                            .multiprocessors = 48,
                            .cta_smem_bytes = 101376,
                            .sm_smem_bytes = 102400};

std::vector<std::string> names(const Card& card) {
  std::vector<std::string> result;
  for (const Arch& arch : card.arches) result.emplace_back(arch.name);
  return result;
}

TEST(arch, a_card_has_its_own_architecture_before_the_neutral_one) {
  EXPECT_EQ(names(kHopper), (std::vector<std::string>{"sm90", "neutral"}));
  EXPECT_EQ(names(kSpark), (std::vector<std::string>{"sm121", "neutral"}));
  EXPECT_EQ(names(kFakeCard), std::vector<std::string>{"neutral"});
}

TEST(arch, block_scaled_products_take_codes_of_whole_blocks) {
  const auto serves = [](Activations activations, int64_t inter) {
    return sm121().experts_gemm.serve(
        {.hidden = 2880, .inter = inter, .pairs = 8192, .experts = 128, .activations = activations}, kSpark);
  };
  for (const Activations format : {Activations::kMxfp8, Activations::kMxfp6, Activations::kMxfp4})
    EXPECT_TRUE(serves(format, 2880).has_value()) << name_of(format);
  EXPECT_FALSE(serves(Activations::kBf16, 2880).has_value());
  EXPECT_TRUE(serves(Activations::kMxfp8, 32 * 91).has_value());
  EXPECT_FALSE(serves(Activations::kMxfp8, 32 * 91 + 16).has_value());
  const auto dense = [](Activations activations, layout::Packing packing) {
    return sm121()
        .gemm.serve({.rows = 5120, .cols = 2880, .tokens = 300, .packing = packing, .activations = activations}, kSpark)
        .has_value();
  };
  EXPECT_TRUE(dense(Activations::kMxfp8, layout::Packing::kMxfp8));
  EXPECT_TRUE(dense(Activations::kMxfp8, layout::Packing::kMxfp4));
  EXPECT_FALSE(dense(Activations::kMxfp8, layout::Packing::kBf16));
  EXPECT_FALSE(dense(Activations::kBf16, layout::Packing::kMxfp8));
}

TEST(arch, block_scaled_tiles_fit_an_sm_and_grow_with_an_expert_s_pairs) {
  constexpr Activations kMxfp8 = Activations::kMxfp8;
  const auto plan = [](int64_t pairs, int tile = 0) {
    return plan_mx_gemm({.rows = 5760, .cols = 2880, .tokens = pairs, .experts = 128, .activations = kMxfp8}, kSpark,
                        tile);
  };
  EXPECT_EQ(plan(48 * 128).tokens, 64);
  EXPECT_EQ(plan(48 * 128 + 1).tokens, 128);
  EXPECT_EQ(plan(64, 128).tokens, 128);
  for (const int tile : kMxGemmTokens) {
    const GemmPlan wide = plan(32768, tile);
    EXPECT_EQ(wide.grid, kSpark.multiprocessors * mx_ctas(tile));
    EXPECT_LE(mx_ctas(tile) * (wide.smem_bytes + 1024), kSpark.sm_smem_bytes);
    const GemmPlan o =
        plan_mx_gemm({.rows = 2880, .cols = 4096, .tokens = 8192, .experts = 1, .activations = kMxfp8}, kSpark, tile);
    EXPECT_LE(mx_ctas(tile) * (o.smem_bytes + 1024), kSpark.sm_smem_bytes);
  }
  EXPECT_EQ(plan_mx_gemm({.rows = 192, .cols = 192, .tokens = 4, .experts = 4, .activations = kMxfp8}, kSpark).grid,
            2 * 4);
}

TEST(arch, split_gemms_serve_bf16_of_up_to_256_tokens) {
  const auto serves = [](layout::Packing packing, int64_t tokens) {
    return sm90().split_gemm.serve({5120, 2880, tokens, 1, packing}, kHopper).has_value();
  };
  EXPECT_TRUE(serves(layout::Packing::kBf16, 256));
  EXPECT_FALSE(serves(layout::Packing::kBf16, 257));
  EXPECT_FALSE(serves(layout::Packing::kMxfp4, 9));
}

TEST(arch, scales_too_wide_for_f16_are_left_to_the_neutral_kernels) {
  const GemmShape shape{
      .rows = 5120, .cols = 2880, .tokens = 300, .packing = layout::Packing::kMxfp4, .wide_scales = true};
  EXPECT_FALSE(sm90().gemm.serve(shape, kHopper).has_value());
  EXPECT_TRUE(neutral().gemm.serve(shape, kHopper).has_value());
  EXPECT_FALSE(sm90()
                   .experts_gemm
                   .serve({.hidden = 2880, .inter = 2880, .pairs = 4000, .experts = 128, .wide_scales = true}, kHopper)
                   .has_value());
}

TEST(arch, block_scaled_experts_read_a_byte_and_a_32nd_of_each_activation) {
  GemmArgs args{.packing = layout::Packing::kMxfp4,
                .bias = reinterpret_cast<const Bf16*>(16),
                .rows = 5760,
                .cols = 2880,
                .tokens = 400,
                .x_share = 4,
                .experts = 128,
                .u = reinterpret_cast<uint16_t*>(16)};
  constexpr int64_t kMatrix = 5760 * 90 * 17, kRow = 2880 + 96;
  EXPECT_EQ(mx_cost(args, 3).bytes, 3 * (kMatrix + 2 * 5760) + 100 * kRow + 400 * kRow);
  EXPECT_EQ(mx_cost(args, 3).flops, int64_t{2} * 400 * 5760 * 2880);
  args.u = nullptr;
  args.y16 = reinterpret_cast<uint16_t*>(16);
  EXPECT_EQ(mx_cost(args, 3).bytes, 3 * (kMatrix + 2 * 5760) + 100 * kRow + 400 * 2 * 5760);
}

// A new architecture, whole: one GEMM, for bf16. All else falls to the neutral one.
int fake_launches = 0;
Arch fake() {
  return {.name = "fake",
          .runs_on = [](const DeviceFacts& card) { return card.major == kFakeMajor; },
          .gemm = {.serve = [](const GemmShape& s, const DeviceFacts&) -> std::optional<GemmPlan> {
                     if (s.packing != layout::Packing::kBf16) return std::nullopt;
                     return plan_tiles({.kernel = {"fake_gemm"}, .grid = 3, .grid_y = 2}, 1, 7);
                   },
                   .launch =
                       [](const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
                         EXPECT_EQ(plan.tokens, 7);
                         EXPECT_EQ(args.tokens, 300);
                         EXPECT_EQ(args.x_rows, 304);  // panels
                         note_launch({"fake_gemm"}, on);
                         ++fake_launches;
                       },
                   .panels = true},
          .tuned = [](const DeviceFacts&) { return Tuned{.grouped_pairs = 1, .route_tokens = 64}; }};
}

TEST(arch, one_that_nobody_has_measured_takes_what_the_next_one_has) {
  Arch unmeasured = fake();
  unmeasured.tuned = nullptr;
  EXPECT_EQ(Card(kFakeCard, {unmeasured, neutral()}).tuned().grouped_pairs, neutral().tuned(kFakeCard).grouped_pairs);
}

TEST(arch, on_hopper_the_memory_says_up_to_where_experts_are_grouped) {
  DeviceFacts card = kHopper;
  EXPECT_EQ(Card(card).tuned().grouped_pairs, 3) << "unknown";
  card.memory_bytes_per_s = 3.35e12;
  EXPECT_EQ(Card(card).tuned().grouped_pairs, 3);
  card.memory_bytes_per_s = 4.9e12;
  EXPECT_EQ(Card(card).tuned().grouped_pairs, 6);
  EXPECT_EQ(Card(card).tuned().grouped_pairs_apart, 8) << "a rank's two GEMMs";
}

TEST(arch, every_operation_that_serves_has_a_launcher) {
  const auto whole = [](const auto& op) { return (op.serve == nullptr) == (op.launch == nullptr); };
  for (const Arch& arch : architectures()) {
    EXPECT_TRUE(whole(arch.gemm) && whole(arch.split_gemm) && whole(arch.norm_route)) << arch.name;
    EXPECT_TRUE(whole(arch.experts_gemm) && whole(arch.prefill)) << arch.name;
    EXPECT_EQ(arch.peak.of.empty(), arch.peak.launch == nullptr) << arch.name;
  }
}

TEST(arch, a_made_up_one_is_asked_first_and_its_kernel_is_launched) {
  const Card card(kFakeCard, {sm90(), fake(), neutral()});
  ASSERT_EQ(names(card), (std::vector<std::string>{"fake", "neutral"}));
  EXPECT_EQ(card.tuned().grouped_pairs, 1);
  Dims dims = kDims120b;
  dims.layers = 2;
  const BackendConfig config{
      .dims = dims, .layer_kinds = {LayerKind::kSliding, LayerKind::kFull}, .rope_inv_freq = {}, .dense = {}};
  const std::vector<Row> rows = {{0, 300, 300}};
  const Program program =
      make_program({.config = config, .run = {}, .step = {.rows = rows, .logit_rows = 1}, .card = card});
  const auto of = [&](Stage stage, std::string_view kernel) {
    return std::count_if(program.nodes.begin(), program.nodes.end(),
                         [&](const Node& node) { return node.stage == stage && node.kernel == kernel; });
  };
  EXPECT_EQ(of(Stage::kAttnIn, "fake_gemm"), 1);
  EXPECT_EQ(of(Stage::kAttnOut, "fake_gemm"), 1);
  EXPECT_EQ(of(Stage::kMoe, AnyGemm::kGateUp.name), 1);  // the neutral one's
  EXPECT_EQ(program.held(Stage::kAttend, Slot::kAttn).panel_rows, 304);

  Arena at;
  at.gemm.emplace();
  const StepPointers step;
  const LayerPointers weights;
  LaunchCounts counts;
  program.execute(Stage::kAttnOut, {.config = config, .at = at, .step = step, .w = weights, .layer = 1},
                  {.counts = &counts});
  EXPECT_EQ(fake_launches, 1);
  EXPECT_EQ(counts.at("fake_gemm"), 1);
}

}  // namespace
}  // namespace nibble::backend::cuda
