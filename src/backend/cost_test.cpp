#include "backend/cost.h"

#include "backend/measure.h"

#include <gtest/gtest.h>

#include <vector>

namespace nibble::backend {
namespace {

constexpr Dims kDims = {.layers = 2,
                        .hidden = 64,
                        .heads = 4,
                        .kv_heads = 2,
                        .head_dim = 16,
                        .inter = 32,
                        .experts = 8,
                        .topk = 2,
                        .vocab = 100,
                        .sliding_window = 128,
                        .max_context = 4096};
const CostModel kModel{kDims, StoredFormats::as_shipped()};

Cost attend(LayerKind kind, Row row) {
  const std::vector<Row> rows = {row};
  Cost cost = kModel.of(Stage::kAttend, kind, {.rows = rows});
  cost.bytes -= 2 * 4;  // the sinks
  return cost;
}

TEST(cost, one_token_uses_topk_experts_and_many_use_all) {
  EXPECT_DOUBLE_EQ(expected_experts(kDims, 1), 2);
  EXPECT_DOUBLE_EQ(expected_experts(kDims, 2), 2 + 2 * 6.0 / 8);
  EXPECT_NEAR(expected_experts(kDims, 1000), 8, 1e-9);
}

TEST(cost, a_query_sees_all_keys_before_it_or_its_window) {
  const double kv = 2 * 32 * 2, flops = 4 * 64;
  const Cost full = attend(LayerKind::kFull, {.tokens = 1, .context = 1000});
  EXPECT_DOUBLE_EQ(full.bytes, 1000 * kv);
  EXPECT_DOUBLE_EQ(full.flops, 1000 * flops);
  const Cost sliding = attend(LayerKind::kSliding, {.tokens = 1, .context = 1000});
  EXPECT_DOUBLE_EQ(sliding.bytes, 128 * kv);
  EXPECT_DOUBLE_EQ(sliding.flops, 128 * flops);
}

TEST(cost, columns_of_down_that_are_filled_up_are_read_and_held) {
  CostModel filled = kModel;
  filled.down_cols = 2 * kDims.inter;
  const std::vector<Row> rows = {{.tokens = 3, .context = 300}};
  const StepShape step{.rows = rows};
  const Cost own = kModel.of(WeightRole::kDown, step), more = filled.of(WeightRole::kDown, step);
  EXPECT_DOUBLE_EQ(more.bytes, 2 * own.bytes);
  EXPECT_DOUBLE_EQ(more.flops, own.flops);
  EXPECT_EQ(filled.weight_bytes() - kModel.weight_bytes(), kDims.layers * 8 * 64 * 32 * 17 / 32);
  EXPECT_DOUBLE_EQ(filled.bytes_of(WeightRole::kGateUp), kModel.bytes_of(WeightRole::kGateUp));
}

TEST(cost, where_layers_differ_each_counts_with_its_own_experts_and_window) {
  Dims wide = kDims;
  wide.wide_window = 500;
  CostModel differ{wide, kModel.formats};
  differ.layer_experts.assign(static_cast<size_t>(kDims.layers), 8);
  std::vector<LayerKind> kinds(static_cast<size_t>(kDims.layers), LayerKind::kFull);
  EXPECT_EQ(differ.weight_bytes(), kModel.weight_bytes());
  differ.layer_experts.back() = 4;
  kinds.back() = LayerKind::kWide;
  const std::vector<Row> rows = {{.tokens = 3, .context = 1000}};
  const StepShape step{.rows = rows};
  Dims few = kDims;
  few.experts = 4;
  const CostModel small{few, kModel.formats};
  const auto layers = static_cast<double>(kDims.layers);
  for (const WeightRole role : {WeightRole::kGateUp, WeightRole::kDown, WeightRole::kDownBias}) {
    const Cost own = kModel.of(role, step), less = small.of(role, step), mean = differ.of(role, step);
    EXPECT_LT(less.bytes, own.bytes);
    EXPECT_DOUBLE_EQ(layers * mean.bytes, (layers - 1) * own.bytes + less.bytes);
    EXPECT_NEAR(mean.flops, own.flops, 1e-6 * own.flops);
    EXPECT_DOUBLE_EQ(layers * differ.bytes_of(role), (layers - 0.5) * kModel.bytes_of(role));
  }
  EXPECT_DOUBLE_EQ(differ.of(WeightRole::kRouter, step).bytes, kModel.of(WeightRole::kRouter, step).bytes);
  const Cost full = kModel.of(Stage::kAttend, LayerKind::kFull, step),
             attends = differ.of(Stage::kAttend, LayerKind::kWide, step);
  EXPECT_DOUBLE_EQ(full.bytes - attends.bytes, (1000 - 502) * 2 * 32 * 2);
  EXPECT_DOUBLE_EQ(differ.by_stage(kinds, step)[static_cast<size_t>(Stage::kAttend)].bytes,
                   (layers - 1) * full.bytes + attends.bytes);
}

TEST(cost, ranks_share_what_is_split_and_each_reads_the_rest) {
  const std::vector<Row> rows = {{.tokens = 3, .context = 300}};
  const StepShape step{.rows = rows, .logit_rows = 1};
  for (const bool whole : {false, true}) {
    Cost gate_up, o, router, logits;
    std::vector<Cost> attends;
    for (int rank = 0; rank < 2; ++rank) {
      const CostModel own{kDims, kModel.formats, shard_of(kDims, {2, whole}, rank)};
      gate_up += own.of(WeightRole::kGateUp, step);
      o += own.of(WeightRole::kO, step);
      router += own.of(WeightRole::kRouter, step);
      logits += own.of(WeightRole::kUnembedding, step);
      attends.push_back(own.of(Stage::kAttend, LayerKind::kFull, step));
    }
    for (const auto& [sum, role] :
         {std::pair{gate_up, WeightRole::kGateUp}, {o, WeightRole::kO}, {logits, WeightRole::kUnembedding}}) {
      EXPECT_DOUBLE_EQ(sum.bytes, kModel.of(role, step).bytes) << name_of(role);
      EXPECT_DOUBLE_EQ(sum.flops, kModel.of(role, step).flops) << name_of(role);
    }
    EXPECT_DOUBLE_EQ(router.bytes, 2 * kModel.of(WeightRole::kRouter, step).bytes);
    const Cost attend = kModel.of(Stage::kAttend, LayerKind::kFull, step);
    EXPECT_DOUBLE_EQ(attends[0].bytes + attends[1].bytes, attend.bytes);
    EXPECT_DOUBLE_EQ(attends[1].flops * 2, attend.flops);
  }
}

TEST(cost, keys_of_a_prompt_sum_up_query_by_query) {
  for (const Row row : {Row{0, 300, 300}, Row{0, 100, 1000}, Row{0, 50, 100}, Row{0, 1, 128}, Row{0, 1, 129}}) {
    for (const LayerKind kind : {LayerKind::kFull, LayerKind::kSliding}) {
      const int64_t window = kind == LayerKind::kSliding ? 128 : 1 << 20;
      double summed = 0;
      int64_t lowest = row.context;
      for (int64_t position = row.context - row.tokens; position < row.context; ++position) {
        const int64_t first = std::max<int64_t>(0, position - window + 1);
        summed += static_cast<double>(position - first + 1);
        lowest = std::min(lowest, first);
      }
      const Cost cost = attend(kind, row);
      EXPECT_DOUBLE_EQ(cost.flops, summed * 4 * 64) << row.tokens << " of " << row.context;
      EXPECT_DOUBLE_EQ(cost.bytes, static_cast<double>(row.context - lowest) * 2 * 32 * 2);
    }
  }
}

TEST(cost, requantised_layers_are_read_as_what_they_became) {
  const std::vector<Row> rows = {{.tokens = 1, .context = 1}};
  const StepShape step{.rows = rows, .logit_rows = 1};
  const double before = kModel.of(Stage::kLogits, LayerKind::kFull, step).bytes;
  EXPECT_DOUBLE_EQ(before, 2 * 64 + 2 * 6400);
  DenseFormats dense;
  dense.lm_head = WeightFormat::kMxfp4;
  const CostModel quantised{kDims, StoredFormats::of({}, dense)};
  EXPECT_DOUBLE_EQ(quantised.of(Stage::kLogits, LayerKind::kFull, step).bytes, 2 * 64 + 6400 * 17.0 / 32);
  EXPECT_DOUBLE_EQ(quantised.of(Stage::kAttnOut, LayerKind::kFull, step).bytes,
                   kModel.of(Stage::kAttnOut, LayerKind::kFull, step).bytes);
}

TEST(cost, q8_0_of_a_card_has_a_copy_in_bf16_which_more_than_8_tokens_read) {
  constexpr double kQ8 = 34.0 / 32;
  DenseFormats dense;
  dense.lm_head = WeightFormat::kGgmlQ8;
  const CostModel model{kDims, StoredFormats::of({}, dense)};
  const std::vector<Row> prompt = {{.tokens = 20, .context = 20}};
  for (const int rows : {1, 8, 9}) {
    const StepShape step{.rows = prompt, .logit_rows = rows};
    EXPECT_DOUBLE_EQ(model.of(Stage::kLogits, LayerKind::kFull, step).bytes, 2 * 64 + (rows > 8 ? 2 : kQ8) * 6400);
  }
  EXPECT_EQ(model.weight_bytes() - kModel.weight_bytes(), static_cast<int64_t>(kQ8 * 6400));
  dense.q8_copies = false;
  const CostModel alone{kDims, StoredFormats::of({}, dense)};
  EXPECT_DOUBLE_EQ(alone.of(WeightRole::kUnembedding, {.rows = prompt, .logit_rows = 9}).bytes, kQ8 * 6400);
  EXPECT_EQ(kModel.weight_bytes() - alone.weight_bytes(), static_cast<int64_t>((2 - kQ8) * 6400));
  dense = {.qkv = {}, .o = WeightFormat::kGgmlQ8, .lm_head = {}};
  const CostModel of_o{kDims, StoredFormats::of({}, dense)};
  const double wide = kModel.of(WeightRole::kO, {.rows = prompt}).bytes;
  EXPECT_DOUBLE_EQ(of_o.of(WeightRole::kO, {.rows = prompt}).bytes, wide);
  const std::vector<Row> one = {{.tokens = 1, .context = 20}};
  EXPECT_DOUBLE_EQ(of_o.of(WeightRole::kO, {.rows = one}).bytes, wide * kQ8 / 2);
}

TEST(cost, a_step_is_its_stages_times_their_layers) {
  const std::vector<Row> rows = {{0, 1, 500}, {1, 1, 20}};
  const StepShape step{.rows = rows, .logit_rows = 2};
  const std::vector<LayerKind> kinds = {LayerKind::kSliding, LayerKind::kFull, LayerKind::kFull};
  Cost sum = kModel.of(Stage::kEmbed, LayerKind::kFull, step);
  sum += kModel.of(Stage::kLogits, LayerKind::kFull, step);
  for (const LayerKind kind : kinds)
    for (int s = static_cast<int>(Stage::kAttnIn); s <= static_cast<int>(Stage::kMoe); ++s)
      sum += kModel.of(static_cast<Stage>(s), kind, step);
  const Cost cost = kModel.of_step(kinds, step);
  EXPECT_DOUBLE_EQ(cost.bytes, sum.bytes);
  EXPECT_DOUBLE_EQ(cost.flops, sum.flops);
}

TEST(cost, no_logits_are_free) {
  const std::vector<Row> rows = {{.tokens = 4, .context = 4}};
  EXPECT_EQ(kModel.of(Stage::kLogits, LayerKind::kFull, {.rows = rows}).bytes, 0);
}

TEST(measure, the_ideal_is_the_longer_of_reading_and_computing_in_each_stage) {
  const DevicePeaks peaks{
      .device = "d", .read_bytes_per_s = 100, .matrix = {{"f32", true, 10}, {"bf16", true, 50}, {"int8", false, 1000}}};
  EXPECT_EQ(peaks.exact_peak()->type, "bf16");
  EXPECT_DOUBLE_EQ(peaks.ideal_seconds({Cost{.bytes = 200, .flops = 50}, {.bytes = 200, .flops = 500}}), 2 + 10);
}

}  // namespace
}  // namespace nibble::backend
