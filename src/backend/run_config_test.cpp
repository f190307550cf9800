#include "backend/run_config.h"

#include <gtest/gtest.h>

namespace nibble::backend {
namespace {

using enum BackendKind;

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
