#include "backend/cost.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

namespace nibble::backend {
namespace {

using enum WeightRole;

int64_t tokens_of(const StepShape& step) {
  int64_t tokens = 0;
  for (const Row& row : step.rows) tokens += row.tokens;
  return tokens;
}

// Keys that the queries of one row see: once each (read), and summed over the queries (computed).
struct Keys {
  double distinct = 0, summed = 0;
};

Keys keys_of(const Row& row, int64_t window) {  // window 0: all
  const int64_t first = row.context - row.tokens;
  Keys keys{.distinct = static_cast<double>(row.context), .summed = 0};
  if (window > 0) keys.distinct = static_cast<double>(std::min<int64_t>(row.context, row.tokens + window - 1));
  // Query i sees min(first + i + 1, window) keys: a rising part, then a flat one.
  const int64_t rising =
      window > 0 ? std::clamp<int64_t>(window - first, 0, row.tokens) : static_cast<int64_t>(row.tokens);
  keys.summed = static_cast<double>(rising) * (static_cast<double>(first) + static_cast<double>(rising + 1) / 2) +
                static_cast<double>(row.tokens - rising) * static_cast<double>(window);
  return keys;
}

}  // namespace

int64_t values_of(WeightRole role, const Dims& d) { return whole_of(role, d).values(); }

double bytes_per_value(WeightFormat format) {
  const WeightBlock& block = block_of(format);
  return static_cast<double>(block.bytes + block.scale_bytes) / static_cast<double>(block.values);
}

StoredFormats StoredFormats::as_shipped() {
  StoredFormats formats;
  formats.of_role.fill(WeightFormat::kBf16);
  for (const WeightRole role : {kGateUp, kDown}) formats.of_role[static_cast<size_t>(role)] = WeightFormat::kMxfp4;
  return formats;
}

StoredFormats StoredFormats::of(std::span<const HostWeight> weights, const DenseFormats& dense) {
  StoredFormats formats = as_shipped();
  for (const HostWeight& w : weights) {
    formats.of_role[static_cast<size_t>(w.role)] = w.format;
    for (const auto& [values, format, recoded] : parts_of(w)) {
      const DTypeInfo& stored = info_of(values->dtype);
      const auto count = static_cast<double>(std::ssize(values->bytes) / stored.bytes * stored.values);
      if (recoded) formats.copied_bytes += static_cast<int64_t>(bytes_per_value(format) * count);
    }
  }
  for (int r = 0; r < kWeightRoles; ++r) {
    const auto format = dense.of(static_cast<WeightRole>(r));
    if (format) formats.of_role[static_cast<size_t>(r)] = *format;
    formats.wide_copies |= dense.q8_copies && format == WeightFormat::kGgmlQ8;
  }
  return formats;
}

double expected_experts(const Dims& dims, int64_t tokens) {
  const double experts = static_cast<double>(dims.experts), topk = static_cast<double>(dims.topk);
  return experts * (1 - std::pow(1 - topk / experts, static_cast<double>(tokens)));
}

template <class Of>
auto CostModel::mean(WeightRole role, Of of) const {
  if (layer_experts.empty() || !has_experts(role)) return of(dims);
  decltype(of(dims)) sum{};
  Dims own = dims;
  for (const int64_t experts : layer_experts) {
    own.experts = experts;
    sum += of(own);
  }
  return sum / static_cast<double>(layer_experts.size());
}

Cost CostModel::of(WeightRole role, const StepShape& step) const {
  return mean(role, [&](const Dims& own) { return of(role, step, own); });
}

double CostModel::bytes_of(WeightRole role) const {
  return mean(role, [&](const Dims& own) { return bytes_of(role, own); });
}

Cost CostModel::of(WeightRole role, const StepShape& step, const Dims& d) const {
  const auto tokens = static_cast<double>(tokens_of(step)), experts = static_cast<double>(d.experts);
  const double used = expected_experts(d, tokens_of(step)) / experts, twice = 2 * values(role, d);
  const auto rows = static_cast<double>(step.logit_rows);
  const double copy = bytes_of_copy(role, d), reading = role == kUnembedding ? rows : tokens;
  const double bytes = copy > 0 && reading > kFewTokens ? copy : bytes_of(role, d);
  switch (role) {
    case kEmbedding: return {bytes * tokens / static_cast<double>(d.vocab), 0};
    case kQ:
    case kK:
    case kV:
    case kO:
    case kRouter: return {bytes, twice * tokens};
    case kGateUp:
    case kDown: return {bytes * used, twice * tokens * static_cast<double>(d.topk) / experts};
    case kGateUpBias:
    case kDownBias: return {bytes * used, 0};
    case kFinalNorm: return {rows > 0 ? bytes : 0, 0};
    case kUnembedding: {
      const bool screened = screened_bytes > 0 && step.logit_rows <= screened_rows;
      return {rows == 0 ? 0 : screened ? static_cast<double>(screened_bytes) : bytes, twice * rows};
    }
    default: return {bytes, 0};
  }
}

Cost CostModel::of(Stage stage, LayerKind kind, const StepShape& step) const {
  Cost cost;
  const auto read = [&](std::initializer_list<WeightRole> roles) {
    for (const WeightRole role : roles) cost += of(role, step);
  };
  switch (stage) {
    case Stage::kEmbed: read({kEmbedding}); break;
    case Stage::kAttnIn: read({kAttnNorm, kQ, kK, kV, kQBias, kKBias, kVBias}); break;
    case Stage::kAttend: {
      read({kSinks});
      const Dims own = shard ? dims_of(dims, *shard) : dims;
      for (const Row& row : step.rows) {
        const Keys keys = keys_of(row, dims.window_of(kind));
        cost.bytes += keys.distinct * static_cast<double>(2 * own.kv_heads * kv_row_bytes());
        cost.flops += keys.summed * static_cast<double>(4 * own.q_width());
      }
      break;
    }
    case Stage::kAttnOut: read({kO, kOBias}); break;
    case Stage::kRoute: read({kMlpNorm, kRouter, kRouterBias}); break;
    case Stage::kMoe: read({kGateUp, kDown, kGateUpBias, kDownBias}); break;
    case Stage::kLogits: read({kFinalNorm, kUnembedding}); break;
  }
  return cost;
}

double CostModel::values(WeightRole role, const Dims& d) const {
  return static_cast<double>(shard ? slice_of(role, d, *shard).values() : values_of(role, d));
}

double CostModel::bytes_of(WeightRole role, const Dims& d) const {
  const int64_t cols = role == kDown && down_cols > 0 ? (shard ? shard->inter.count : d.inter) : 0;
  const double filled = cols > 0 ? static_cast<double>(down_cols) / static_cast<double>(cols) : 1;
  return filled * values(role, d) * bytes_per_value(formats.of_role[static_cast<size_t>(role)]);
}

double CostModel::bytes_of_copy(WeightRole role, const Dims& d) const {
  const bool q8 = formats.of_role[static_cast<size_t>(role)] == WeightFormat::kGgmlQ8;
  return q8 && formats.wide_copies ? values(role, d) * bytes_per_value(WeightFormat::kBf16) : 0;
}

int64_t CostModel::weight_bytes() const {
  double outer = 0, layer = 0;
  const auto held = [this](WeightRole role) { return bytes_of(role) + bytes_of_copy(role, dims); };
  for (const WeightRole role : {kEmbedding, kFinalNorm, kUnembedding}) outer += held(role);
  for (int r = static_cast<int>(kAttnNorm); r <= static_cast<int>(kDownBias); ++r)
    layer += held(static_cast<WeightRole>(r));
  return static_cast<int64_t>(outer + layer * static_cast<double>(dims.layers));
}

int64_t CostModel::expert_bytes(int64_t layers) const {
  double bytes = 0;
  for (int64_t layer = 0; layer < layers; ++layer) {
    Dims own = dims;
    if (!layer_experts.empty()) own.experts = layer_experts[static_cast<size_t>(layer)];
    for (const WeightRole role : {kGateUp, kGateUpBias, kDown, kDownBias}) bytes += bytes_of(role, own);
  }
  return static_cast<int64_t>(bytes);
}

StageCosts CostModel::by_stage(std::span<const LayerKind> layer_kinds, const StepShape& step) const {
  StageCosts costs{};
  for (const Stage stage : {Stage::kEmbed, Stage::kLogits})
    costs[static_cast<size_t>(stage)] = of(stage, LayerKind::kFull, step);
  for (const LayerKind kind : kinds_of(dims)) {
    const auto count = static_cast<double>(std::count(layer_kinds.begin(), layer_kinds.end(), kind));
    for (const Stage stage : {Stage::kAttnIn, Stage::kAttend, Stage::kAttnOut, Stage::kRoute, Stage::kMoe}) {
      const Cost layer = of(stage, kind, step);
      costs[static_cast<size_t>(stage)] += {layer.bytes * count, layer.flops * count};
    }
  }
  return costs;
}

}  // namespace nibble::backend
