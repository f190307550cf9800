#include "backend/run_config.h"

#include "base/error.h"
#include "base/machine.h"

#include <fmt/format.h>

#include <algorithm>

namespace nibble::backend {
namespace {

std::string layers_in(const DenseFormats& dense, WeightFormat format) {
  std::string layers;
  for (const auto& [name, held] : {std::pair{"qkv", dense.qkv}, {"o", dense.o}, {"lm_head", dense.lm_head}})
    if (held == format) layers += fmt::format("{}{}", layers.empty() ? "" : ",", name);
  return layers;
}

std::string yes_or_no(bool yes) { return yes ? "true" : "false"; }

}  // namespace

std::vector<RunSetting> settings_of(const RunConfig& c) {
  using enum BackendKind;
  const std::string mxfp4 = layers_in(c.dense, WeightFormat::kMxfp4), mxfp8 = layers_in(c.dense, WeightFormat::kMxfp8);
  const std::optional<double> share = c.gpu_memory_utilization;
  std::vector<RunSetting> settings = {
      {"--backend", std::string(name_of(c.backend)), c.backend != kAuto},
      {"--threads", fmt::format("{}", c.threads), c.threads > 0},
      {"--tensor-parallel-size", fmt::format("{}", c.ranks.count), c.ranks.count > 1},
      {"--enable-expert-parallel", yes_or_no(c.ranks.whole_experts), c.ranks.whole_experts},
      {"--kv-cache-dtype", std::string(c.kv ? type_of(*c.kv).word : "auto"), c.kv.has_value(), type_of(c.kv_type()).on,
       true},
      {"--moe-activation", std::string(name_of(c.activations)), c.activations != Activations::kAuto,
       type_of(c.activations).on, true},
      {"--dense-activation", std::string(name_of(c.dense_activations)), c.dense_activations != Activations::kAuto},
      {"--attention-activation", std::string(name_of(c.attention_activations)),
       c.attention_activations != AttentionActivations::kAuto},
      {"--fast", yes_or_no(c.fast), c.fast, {kCpu, kCuda}},
      {"--cpu-isa", std::string(name_of(c.isa)), c.isa != CpuIsa::kAuto, {kCpu}},
      {"--no-mmap", yes_or_no(c.copy_weights), c.copy_weights, {kCpu}},
      {"--moe-kernel", std::string(name_of(c.family)), c.family != KernelFamily::kAuto, {kCuda}},
      {"--moe-tile", std::string(name_of(c.moe_tile)), c.moe_tile != MoeTile::kAuto, {kCuda}},
      {"--enforce-eager", yes_or_no(c.eager), c.eager, {kCuda}},
      {"--attention-backend", std::string(name_of(c.attention)), c.attention != AttentionKernel::kAuto, {kCuda}},
      {"--gpu-memory-utilization", share ? fmt::format("{}", *share) : "", share.has_value(), {kCuda}},
      {"--attention-sinks", c.sinks ? "on" : "off", !c.sinks},
      {"--mxfp4-layers", mxfp4, !mxfp4.empty()},
      {"--mxfp8-layers", mxfp8, !mxfp8.empty()},
      {"--max-model-len", fmt::format("{}", c.max_model_len), c.max_model_len > 0},
      {"--max-num-batched-tokens", fmt::format("{}", c.max_num_batched_tokens), c.max_num_batched_tokens > 0}};
  return settings;
}

std::optional<RunSetting> misfit(const RunConfig& config, BackendSet backends) {
  const std::vector<RunSetting> settings = settings_of(config);
  const auto it = std::ranges::find_if(settings, [&](const RunSetting& s) { return s.given && !s.on.meets(backends); });
  return it == settings.end() ? std::nullopt : std::optional(*it);
}

void validate(const RunConfig& config, BackendSet backends, std::string_view why) {
  if (in_mx_blocks(config.dense_activations) && !config.dense.any())
    throw Error(Code::kUnsupported,
                "--dense-activation {}: want --mxfp4-layers or --mxfp8-layers, whose inputs it rounds, found neither",
                name_of(config.dense_activations));
  if (config.fp8_attention() && config.kv_type() != KvDtype::kE4m3)
    throw Error(Code::kUnsupported, "--attention-activation fp8: want --kv-cache-dtype fp8, found {}",
                type_of(config.kv_type()).word);
  const std::optional<RunSetting> wrong = misfit(config, backends);
  if (!wrong) return;
  if (wrong->on.empty()) throw Error(Code::kUnsupported, "{}: no backend has kernels for it", wrong->asked());
  std::string names;
  for (const BackendKind kind : kBackends)
    if (wrong->on.has(kind)) names += fmt::format("{}{}", names.empty() ? "" : " or ", name_of(kind));
  throw Error(Code::kUnsupported, "{}: want --backend {}, found {}", wrong->asked(), names,
              why.empty() ? name_of(config.backend) : why);
}

RunConfig with_defaults(RunConfig config) {
  const bool card = config.backend == BackendKind::kCuda;
  if (config.threads == 0) config.threads = available_processors();
  config.kv = config.kv_type();
  if (config.attention_activations == AttentionActivations::kAuto)
    config.attention_activations = AttentionActivations::kBf16;
  if (config.max_num_batched_tokens == 0) config.max_num_batched_tokens = card ? kCardStepTokens : kHostStepTokens;
  if (card && !config.gpu_memory_utilization) config.gpu_memory_utilization = kGpuMemoryUtilization;
  return config;
}

}  // namespace nibble::backend
