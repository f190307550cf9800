#include "backend/cpu/cpu_backend.h"

#include "backend/cpu/attention.h"
#include "backend/cpu/kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>

namespace nibble::backend {

std::vector<PlannedKernel> cpu_plan(const CpuPlanArgs& args) {
  using enum WeightRole;
  const Shard shard = shard_of(args.dims, args.run.ranks, 0);
  const Dims d = dims_of(args.dims, shard);
  int64_t tokens = 0;
  for (const Row& row : args.step.rows) tokens += row.tokens;
  const RunConfig run = resolved_cpu(args.run);
  const cpu::Kernels kernels = cpu::kernels_for(run.isa, run.activations);
  const int threads = threads_of(0, run.ranks, run.threads);
  std::vector<PlannedKernel> stages;
  // `many`: tokens that share a row of weights; of an expert, those that are expected to use it.
  CostModel model{args.dims, args.formats, shard, 0, args.layer_experts};
  set_cpu_screen(model, args.run);
  const auto cost = [&](std::initializer_list<WeightRole> roles) {
    Cost sum;
    for (const WeightRole role : roles) sum += model.of(role, args.step);
    return sum;
  };
  const auto matrix = [&](Stage stage, std::initializer_list<WeightRole> reads, int64_t rows, double many) {
    const WeightRole role = *reads.begin();
    const WeightFormat format = args.formats.of_role[static_cast<size_t>(role)];
    const bool expert = role == kGateUp || role == kDown;
    const Activations activations = expert            ? run.activations
                                    : role == kRouter ? Activations::kF32
                                                      : run.dense_activations;
    const bool int8 = activations == Activations::kInt8 && cpu::int8_serves(format);
    const cpu::TokenTiles* const tiles =
        int8 ? kernels.int8->tiles_for(format, static_cast<int64_t>(std::ceil(many))) : nullptr;
    stages.push_back(
        {.stage = stage,
         .kernel = fmt::format("{}_{}_{} ({})", tiles != nullptr ? "multiply_tiles" : "multiply", int8 ? "int8" : "f32",
                               name_of(format), tiles != nullptr ? tiles->name : kernels.name),
         .tile = fmt::format("{}: {} rows over {} threads, up to {} rows x {} tokens at a time", name_of(role), rows,
                             threads, cpu::kTileRows, std::min<double>(std::ceil(many), cpu::kTileTokens)),
         .cost = cost(reads)});
  };
  const auto every = static_cast<double>(tokens);
  const double routed = every * static_cast<double>(d.topk) / std::max(1.0, expected_experts(d, tokens));
  stages.push_back({.stage = Stage::kEmbed,
                    .kernel = fmt::format("decode ({})", kernels.name),
                    .tile = "1 thread",
                    .cost = cost({kEmbedding})});
  matrix(Stage::kAttnIn, {kQ, kQBias, kAttnNorm}, d.q_width(), every);
  matrix(Stage::kAttnIn, {kK, kKBias}, d.kv_width(), every);
  matrix(Stage::kAttnIn, {kV, kVBias}, d.kv_width(), every);
  // It reads nothing but its own tokens; what it writes, attention's cost counts as read.
  stages.push_back({.stage = Stage::kAttend,
                    .kernel = fmt::format("rope and KV write, {}", name_of(run.kv_type())),
                    .tile = fmt::format("{} tokens over {} threads", tokens, threads)});
  for (const LayerKind kind : kinds_of(d))
    stages.push_back({.stage = Stage::kAttend,
                      .kind = kind,
                      .kernel = fmt::format("attend_{} ({})", name_of(run.kv_type()), kernels.name),
                      .tile = fmt::format(
                          "{} tokens x {} kv heads x ranges of {} keys over {} threads, up to {} tokens share a pass",
                          tokens, d.kv_heads, cpu::kRangePages * kPageTokens, threads, cpu::kAttendTokens),
                      .cost = model.of(Stage::kAttend, kind, args.step)});
  matrix(Stage::kAttnOut, {kO, kOBias}, d.hidden, every);
  matrix(Stage::kRoute, {kRouter, kRouterBias, kMlpNorm}, d.experts, every);
  matrix(Stage::kMoe, {kGateUp, kGateUpBias}, 2 * d.inter, routed);
  matrix(Stage::kMoe, {kDown, kDownBias}, d.hidden, routed);
  const bool screened = model.screened_bytes > 0 && args.step.logit_rows <= model.screened_rows;
  if (args.step.logit_rows > 0 && screened)
    stages.push_back({.stage = Stage::kLogits,
                      .kernel = fmt::format("screen_6bit ({})", kernels.name),
                      .tile = fmt::format("{}: {} rows over {} threads, {} at a time, then those that may win",
                                          name_of(kUnembedding), d.vocab, threads, cpu::kScreenRows),
                      .cost = cost({kUnembedding, kFinalNorm})});
  if (args.step.logit_rows > 0 && !screened)
    matrix(Stage::kLogits, {kUnembedding, kFinalNorm}, d.vocab, static_cast<double>(args.step.logit_rows));
  return stages;
}

}  // namespace nibble::backend
