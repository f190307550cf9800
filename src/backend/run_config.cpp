#include "backend/run_config.h"

#include "base/machine.h"

namespace nibble::backend {

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
