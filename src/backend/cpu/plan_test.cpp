// The kernels that the plan names, by settings. That they run is tests' and `nibble verify`'s to show.
#include "backend/cpu/cpu_backend.h"

#include "backend/cpu/kernels.h"
#include "backend/testing/dims.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::backend {
namespace {

// Words in kernel names that show a larger instruction set than `isa`.
std::vector<std::string> beyond(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kBaseline: return {"avx", "amx", "dotprod", "i8mm", "sdot", "smmla"};
    case CpuIsa::kAvx2:
    case CpuIsa::kAvxVnni: return {"avx512", "amx"};
    case CpuIsa::kAvx512: return {"amx"};
    case CpuIsa::kDotProd: return {"i8mm", "smmla"};
    default: return {};
  }
}

struct PathRule {
  Stage stage;
  std::string must;  // how it begins, after "multiply_" or "multiply_tiles_"
};

// A kernel's name without the way its work is divided.
std::string product_of(const std::string& kernel) {
  for (const std::string_view head : {"multiply_tiles_", "multiply_"})
    if (kernel.starts_with(head)) return kernel.substr(head.size());
  return kernel;
}

// REQUIRES a resolved run with MXFP4 experts and dense layers that come in bf16.
std::vector<PathRule> rules_of(const RunConfig& run) {
  const auto product = [](Activations activations, WeightFormat format) {
    const bool int8 = activations == Activations::kInt8 && cpu::int8_serves(format);
    return fmt::format("{}_{}", int8 ? "int8" : "f32", name_of(format));
  };
  const auto dense = [&](const std::optional<WeightFormat>& held) {
    return product(run.dense_activations, held.value_or(WeightFormat::kBf16));
  };
  return {{Stage::kAttnIn, dense(run.dense.qkv)},
          {Stage::kAttend, fmt::format("attend_{}", name_of(run.kv_type()))},
          {Stage::kAttnOut, dense(run.dense.o)},
          {Stage::kRoute, "f32_bf16"},
          {Stage::kMoe, product(run.activations, WeightFormat::kMxfp4)},
          {Stage::kLogits, dense(run.dense.lm_head)}};
}

// What is wrong with the plan; empty: nothing.
std::string wrong_in_plan(const std::vector<PlannedKernel>& plan, const RunConfig& run) {
  for (const PathRule& rule : rules_of(run)) {
    bool ran = false;
    for (const PlannedKernel& stage : plan) {
      const bool told_of = stage.kernel.starts_with("multiply") || stage.kernel.starts_with("attend_");
      if (stage.stage != rule.stage || !told_of) continue;  // stages that only move values have no product
      ran = true;
      if (!product_of(stage.kernel).starts_with(rule.must))
        return fmt::format("{}: want {}, found {}", name_of(rule.stage), rule.must, stage.kernel);
    }
    if (!ran) return fmt::format("{}: want {}, found nothing", name_of(rule.stage), rule.must);
  }
  for (const PlannedKernel& stage : plan)
    for (const std::string& word : beyond(run.isa))
      if (stage.kernel.find(word) != std::string::npos)
        return fmt::format("{}: must not run {}", name_of(stage.stage), stage.kernel);
  return {};
}

void expect_kernels(const RunConfig& run) {
  const std::array row = {Row{.tokens = 48, .context = 48}};
  const auto plan = cpu_plan({.dims = kDims120b,
                              .formats = StoredFormats::of({}, run.dense),
                              .step = {.rows = row, .logit_rows = 48},
                              .run = run});
  EXPECT_EQ(wrong_in_plan(plan, resolved_cpu(run)), "")
      << name_of(run.isa) << ", " << name_of(run.activations) << ", " << name_of(run.kv_type());
}

TEST(CpuPlan, names_the_kernels_of_each_instruction_set_and_setting) {
  for (const auto& here : cpu::kernels_here()) {
    RunConfig exact;
    exact.backend = BackendKind::kCpu;
    exact.isa = here.isa;
    exact.kv = KvDtype::kBf16;
    exact.activations = Activations::kF32;
    expect_kernels(exact);
    for (const Activations activations :
         {Activations::kInt8, Activations::kMxfp8, Activations::kMxfp6, Activations::kMxfp4}) {
      if (activations == Activations::kInt8 && cpu::kernels_for(here.isa).int8 == nullptr) continue;
      RunConfig run = exact;
      run.activations = activations;
      expect_kernels(run);
    }
    for (const KvType& kv : kKvTypes) {
      if (!kv.on.has(BackendKind::kCpu)) continue;
      RunConfig run = exact;
      run.kv = kv.dtype;
      expect_kernels(run);
    }
    RunConfig dense = exact;
    dense.dense.qkv = dense.dense.o = dense.dense.lm_head = WeightFormat::kMxfp4;
    expect_kernels(dense);
  }
}

TEST(CpuPlan, of_other_settings_is_told_apart) {
  RunConfig run;
  run.backend = BackendKind::kCpu;
  run.kv = KvDtype::kBf16;
  run.activations = Activations::kF32;
  const std::array row = {Row{.tokens = 48, .context = 48}};
  const auto plan = cpu_plan({.dims = kDims120b,
                              .formats = StoredFormats::of({}, run.dense),
                              .step = {.rows = row, .logit_rows = 48},
                              .run = run});
  run.kv = KvDtype::kE4m3;
  EXPECT_NE(wrong_in_plan(plan, resolved_cpu(run)), "");
}

// What the bytes of the copy are, and which steps read it.
TEST(CpuPlan, names_the_screen_of_few_logits) {
  RunConfig run;
  run.backend = BackendKind::kCpu;
  const std::array row = {Row{.tokens = 1, .context = 48}};
  const int64_t bytes = cpu_screened_bytes(kDims120b, WeightFormat::kBf16, run);
  if (bytes == 0) GTEST_SKIP() << "this CPU has no screen, or too little memory";
  const auto logits = [&](int64_t rows) {
    return cpu_plan({.dims = kDims120b,
                     .formats = StoredFormats::of({}, run.dense),
                     .step = {.rows = row, .logit_rows = rows},
                     .run = run})
        .back();
  };
  EXPECT_TRUE(logits(1).kernel.starts_with("screen_6bit"));
  EXPECT_NEAR(logits(4).cost.bytes, static_cast<double>(bytes), 2.0 * kDims120b.hidden) << "and the norm's";
  EXPECT_FALSE(logits(5).kernel.starts_with("screen_6bit"));
  run.screened_head = ScreenedHead::kOff;
  EXPECT_FALSE(logits(1).kernel.starts_with("screen_6bit"));
  EXPECT_EQ(cpu_screened_bytes(kDims120b, WeightFormat::kBf16, run), 0);
  run.screened_head = ScreenedHead::kAuto;
  EXPECT_EQ(cpu_screened_bytes(kDims120b, WeightFormat::kMxfp8, run), 0);
  EXPECT_EQ(cpu_screened_bytes(kDims120b, WeightFormat::kGgmlQ8, run), bytes);
  run.ranks.count = 2;
  EXPECT_EQ(cpu_screened_bytes(kDims120b, WeightFormat::kBf16, run), 0);
}

}  // namespace
}  // namespace nibble::backend
