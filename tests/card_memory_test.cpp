// Which models fit a card without any flag: what `nibble serve` would ask of the backend, on made-up cards.

#include "backend/cost.h"
#include "backend/cuda/card/device_facts.h"
#include "backend/cuda/cuda_backend.h"
#include "base/machine.h"
#include "engine/engine.h"
#include "model/gpt_oss.h"

#include <gtest/gtest.h>

#include <cuda_runtime_api.h>  // the emulated one

#include <algorithm>
#include <string>
#include <vector>

namespace nibble {
namespace {

// A card's memory as CUDA counts it, a little less than what is sold. `used`: by a desktop and by the driver.
struct Card {
  std::string name, arch;
  int multiprocessors = 0;
  int64_t bytes = 0, used = 0;
};
constexpr int64_t kMb = 1'000'000;
constexpr double kShare = 0.92;  // --gpu-memory-utilization
const Card kCards[] = {
    {"A100 40GB", "sm_80", 108, 42'300 * kMb, 500 * kMb},   {"A100 80GB", "sm_80", 108, 85'000 * kMb, 500 * kMb},
    {"RTX 3090", "sm_86", 82, 25'300 * kMb, 1'500 * kMb},   {"RTX 4090", "sm_89", 128, 25'250 * kMb, 1'500 * kMb},
    {"L40S", "sm_89", 142, 47'700 * kMb, 500 * kMb},        {"H100", "sm_90", 132, 85'000 * kMb, 500 * kMb},
    {"RTX 5090", "sm_120", 170, 33'600 * kMb, 1'500 * kMb}, {"RTX PRO 6000", "sm_120", 188, 101'900 * kMb, 1'500 * kMb},
    {"GB10", "sm_121", 48, 128'000 * kMb, 8'000 * kMb}};

// The defaults of `nibble serve`, with a cache of one context.
backend::MemoryNeeds serving(const model::ModelConfig& config, const Card& card, int64_t kv_tokens) {
  const backend::cuda::CardArch arch = backend::cuda::card_arch(card.arch);
  backend::cuda::emulated_cuda() = {.card = {.name = card.name,
                                             .major = arch.major,
                                             .minor = arch.minor,
                                             .multiprocessors = card.multiprocessors,
                                             .memory_bytes = card.bytes,
                                             .cta_smem_bytes = arch.cta_smem_bytes,
                                             .sm_smem_bytes = arch.sm_smem_bytes}};
  const engine::EngineLimits limits = {
      .max_context = config.dims.max_context, .max_sequences = 256, .max_batched_tokens = 2048, .kv_tokens = kv_tokens};
  const backend::BackendConfig wanted = model::backend_config(config, engine::step_limits(limits, config.dims), {});
  backend::MemoryNeeds needs = backend::cuda_memory_needs(wanted, {.threads = 32});
  needs.weights = backend::CostModel{config.dims, backend::StoredFormats::as_shipped()}.weight_bytes();
  return needs;
}
bool fits(const backend::MemoryNeeds& needs, const Card& card) {
  return needs.total() <=
         std::min(static_cast<int64_t>(kShare * static_cast<double>(card.bytes)), card.bytes - card.used);
}

std::vector<std::string> those_that_serve(const model::ModelConfig& config) {
  std::vector<std::string> names;
  for (const Card& card : kCards)
    if (fits(serving(config, card, config.dims.max_context), card)) names.push_back(card.name);
  return names;
}

TEST(CardMemory, gpt_oss_20b_is_served_with_its_whole_context_from_24_gb_on) {
  EXPECT_EQ(those_that_serve(model::gpt_oss_20b()),
            (std::vector<std::string>{"A100 40GB", "A100 80GB", "RTX 3090", "RTX 4090", "L40S", "H100", "RTX 5090",
                                      "RTX PRO 6000", "GB10"}));
  const backend::MemoryNeeds needs = serving(model::gpt_oss_20b(), kCards[2], 131072);
  EXPECT_EQ(needs.weights, 13'761'264'768);
  EXPECT_LT(needs.total(), 21'000 * kMb) << "weights " << needs.weights << ", KV " << needs.kv << ", activations "
                                         << needs.activations << ", graphs " << needs.graphs;
}

TEST(CardMemory, gpt_oss_120b_is_served_with_its_whole_context_from_80_gb_on) {
  EXPECT_EQ(those_that_serve(model::gpt_oss_120b()),
            (std::vector<std::string>{"A100 80GB", "H100", "RTX PRO 6000", "GB10"}));
}

TEST(CardMemory, of_an_integrated_card_is_what_the_system_can_give) {
  backend::cuda::emulated_cuda() = {.card = {.name = "GB10", .major = 12, .minor = 1, .memory_bytes = int64_t{1} << 40},
                                    .free = 1 << 20};
  EXPECT_EQ(backend::cuda_memory().free_bytes, 1 << 20);
  backend::cuda::emulated_cuda().card.integrated = true;
  const auto available = available_memory();
  ASSERT_TRUE(available.has_value());
  const double found = static_cast<double>(backend::cuda_memory().free_bytes), want = static_cast<double>(*available);
  EXPECT_GT(found, 1 << 20);
  EXPECT_NEAR(found / want, 1, 0.5);  // others take and give memory meanwhile
}

}  // namespace
}  // namespace nibble
