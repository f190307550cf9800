#include "backend/run_config.h"

#include "base/error.h"

#include <gtest/gtest.h>

#include <string>

namespace nibble::backend {
namespace {

using enum BackendKind;

std::string refusal(const RunConfig& config, BackendSet backends, std::string_view why = "") {
  try {
    validate(config, backends, why);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kUnsupported);
    return error.what();
  }
  return "";
}

TEST(run_config, what_is_left_open_fits_every_backend) {
  for (const BackendKind kind : kBackends) EXPECT_EQ(refusal({.backend = kind}, {kind}), "");
}

TEST(run_config, a_setting_is_refused_by_a_backend_that_has_it_not) {
  const struct {
    RunConfig config;
    BackendSet on;
    std::string_view says;
  } cases[] = {
      {{.attention = AttentionKernel::kFlash}, {kCuda}, "--attention-backend: want --backend cuda, found "},
      {{.family = KernelFamily::kStreaming}, {kCuda}, "--moe-kernel: want --backend cuda, found "},
      {{.eager = true}, {kCuda}, "--enforce-eager: want --backend cuda, found "},
      {{.gpu_memory_utilization = 0.5}, {kCuda}, "--gpu-memory-utilization: want --backend cuda, found "},
      {{.isa = CpuIsa::kBaseline}, {kCpu}, "--cpu-isa: want --backend cpu, found "},
      {{.copy_weights = true}, {kCpu}, "--no-mmap: want --backend cpu, found "},
      {{.kv = KvDtype::kInt8}, {kCpu, kReference}, "--kv-cache-dtype int8: want --backend cpu or reference, found "},
      {{.activations = Activations::kF32}, {kCpu}, "--moe-activation f32: want --backend cpu, found "},
      {{.activations = Activations::kMxfp8}, kEveryBackend, ""},
      {{.activations = Activations::kMxfp6}, kEveryBackend, ""},
      {{.activations = Activations::kMxfp4}, kEveryBackend, ""},
      {{.ranks = {.count = 2}}, kEveryBackend, ""},
      {{.ranks = {.whole_experts = true}}, kEveryBackend, ""},
      {{.fast = true}, {kCpu, kCuda}, "--fast: want --backend cpu or cuda, found "},
      {{.activations = Activations::kBf16}, kEveryBackend, ""},
      {{.sinks = false}, kEveryBackend, ""}};
  for (const auto& [config, on, says] : cases) {
    for (const BackendKind kind : kBackends) {
      RunConfig with = config;
      with.backend = kind;
      const std::string want = on.has(kind) ? "" : fmt::format("{}{}", says, name_of(kind));
      EXPECT_EQ(refusal(with, {kind}), want);
    }
    EXPECT_EQ(refusal(config, kEveryBackend), "") << "of several, one is enough";
  }
  EXPECT_EQ(refusal({.family = KernelFamily::kGemm}, {kCpu}, "backend cpu: no card"),
            "--moe-kernel: want --backend cuda, found backend cpu: no card");
}

TEST(run_config, attention_in_fp8_wants_a_cache_in_fp8) {
  const auto said = [](std::optional<KvDtype> kv) -> std::string {
    try {
      validate({.kv = kv, .attention_activations = AttentionActivations::kFp8}, kEveryBackend);
      return "";
    } catch (const Error& e) {
      return e.what();
    }
  };
  EXPECT_EQ(said({}), "--attention-activation fp8: want --kv-cache-dtype fp8, found bf16");
  EXPECT_EQ(said(KvDtype::kInt8), "--attention-activation fp8: want --kv-cache-dtype fp8, found int8");
  EXPECT_EQ(said(KvDtype::kE4m3), "");
}

TEST(run_config, every_setting_has_one_line_and_says_whether_it_was_given) {
  RunConfig all{.backend = kCuda,
                .threads = 3,
                .kv = KvDtype::kE4m3,
                .attention = AttentionKernel::kFlash,
                .family = KernelFamily::kGemm,
                .activations = Activations::kMxfp8,
                .isa = CpuIsa::kAvx2,
                .eager = true,
                .sinks = false,
                .copy_weights = true,
                .dense = {.qkv = WeightFormat::kMxfp4, .o = WeightFormat::kMxfp8, .lm_head = WeightFormat::kMxfp4},
                .fast = true,
                .max_model_len = 100,
                .max_num_batched_tokens = 8,
                .gpu_memory_utilization = 0.5};
  std::string given;
  for (const RunSetting& s : settings_of(all)) given += std::string(s.flag) + " " + s.value + (s.given ? "\n" : " ?\n");
  EXPECT_EQ(
      given,
      "--backend cuda\n--threads 3\n--tensor-parallel-size 1 ?\n--enable-expert-parallel false ?\n--kv-cache-dtype fp8\n--moe-activation mxfp8\n--dense-activation auto ?\n--attention-activation auto ?\n--fast true\n--cpu-isa avx2\n--no-mmap "
      "true\n--moe-kernel gemm\n--moe-tile auto ?\n--enforce-eager true\n--attention-backend flash\n--gpu-memory-utilization 0.5\n"
      "--attention-sinks off\n--mxfp4-layers qkv,lm_head\n--mxfp8-layers o\n--max-model-len 100\n"
      "--max-num-batched-tokens 8\n");
  for (const RunSetting& s : settings_of({})) EXPECT_FALSE(s.given) << s.flag;
}

TEST(run_config, defaults_depend_on_the_backend) {
  const RunConfig card = with_defaults({.backend = kCuda}), host = with_defaults({.backend = kCpu});
  EXPECT_EQ(card.max_num_batched_tokens, kCardStepTokens);
  EXPECT_EQ(host.max_num_batched_tokens, kHostStepTokens);
  EXPECT_EQ(card.gpu_memory_utilization, kGpuMemoryUtilization);
  EXPECT_FALSE(host.gpu_memory_utilization.has_value());
  EXPECT_EQ(host.kv, KvDtype::kBf16);
  EXPECT_EQ(host.attention_activations, AttentionActivations::kBf16);
  EXPECT_GT(host.threads, 0);
}

}  // namespace
}  // namespace nibble::backend
