#include "backend/cpu/plan.h"

#include "backend/cpu/simd.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace nibble::backend {

std::vector<PlannedStage> cpu_plan(const CpuPlanArgs& args) {
  const Dims& d = args.dims;
  int64_t tokens = 0;
  for (const Row& row : args.step.rows) tokens += row.tokens;
  std::vector<PlannedStage> stages;
  const auto matrix = [&](Stage stage, WeightRole role, int64_t rows) {
    const auto format = name_of(args.formats.of_role[static_cast<size_t>(role)]);
    const int64_t many = stage == Stage::kLogits ? args.step.logit_rows : tokens;
    stages.push_back({.stage = stage,
                      .kernel = fmt::format("decode_{} + dot ({})", format, cpu::simd_target()),
                      .tile = fmt::format("{}: {} rows over {} threads, a row decoded once for {} tokens",
                                          name_of(role), rows, args.threads, many)});
  };
  stages.push_back({.stage = Stage::kEmbed, .kernel = "decode_row", .tile = "1 thread"});
  matrix(Stage::kAttnIn, WeightRole::kQ, d.q_width());
  matrix(Stage::kAttnIn, WeightRole::kK, d.kv_width());
  matrix(Stage::kAttnIn, WeightRole::kV, d.kv_width());
  for (const LayerKind kind : {LayerKind::kSliding, LayerKind::kFull}) {
    stages.push_back({.stage = Stage::kAttend,
                      .kind = kind,
                      .kernel = fmt::format("attend ({})", cpu::simd_target()),
                      .tile = fmt::format("{} units (token, kv head) over {} threads, a page of keys at a time",
                                          tokens * d.kv_heads, args.threads)});
  }
  matrix(Stage::kAttnOut, WeightRole::kO, d.hidden);
  matrix(Stage::kRoute, WeightRole::kRouter, d.experts);
  matrix(Stage::kMoe, WeightRole::kGateUp, 2 * d.inter);
  matrix(Stage::kMoe, WeightRole::kDown, d.hidden);
  if (args.step.logit_rows > 0) matrix(Stage::kLogits, WeightRole::kUnembedding, d.vocab);
  return stages;
}

}  // namespace nibble::backend
