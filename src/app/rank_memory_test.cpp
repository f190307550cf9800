// What each rank of gpt-oss-120b holds, calculated by hand.

#include "app/rank_memory.h"

#include "app/memory_budget.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace nibble::app {
namespace {

using backend::Ranks;

backend::CostModel cost_of(const model::ModelConfig& config) {
  return {config.dims, backend::StoredFormats::as_shipped(), {}};
}

// Attention, unembedding and experts are split; every rank has all of the rest. A bias that only one rank adds still
// takes memory on all: the others hold zeros.
int64_t replicated_bytes(const backend::Dims& d) {
  const int64_t layer = 2 * (2 * d.hidden + d.hidden + d.experts * d.hidden + d.experts);  // norms, o bias, router
  return 2 * (d.vocab * d.hidden + d.hidden) + d.layers * layer;
}

TEST(RankMemory, shares_add_up_to_the_model_and_what_is_replicated) {
  const model::ModelConfig config = model::gpt_oss_120b();
  const backend::CostModel cost = cost_of(config);
  const backend::Dims& d = config.dims;
  for (const bool whole : {false, true}) {
    for (const int count : {1, 2, 4, 8}) {
      const auto ranks = rank_memory(cost, config, {count, whole}, 4096);
      int64_t weights = 0, kv = 0;
      for (const RankMemory& of : ranks) {
        weights += of.weights;
        kv += of.kv;
      }
      const int64_t zeros = whole ? 0 : 2 * d.layers * d.experts * d.hidden;  // of down's bias
      EXPECT_EQ(weights, cost.weight_bytes() + (count - 1) * (replicated_bytes(d) + zeros)) << count << whole;
      EXPECT_EQ(kv, int64_t{2} * 2 * d.kv_width() * (18 * 4096 + 18 * 128));
    }
  }
}

TEST(RankMemory, a_rank_of_eight_has_an_eighth_of_a_token_s_kv_and_of_sixteen_no_less) {
  const model::ModelConfig config = model::gpt_oss_120b();
  const backend::CostModel cost = cost_of(config);
  const auto eight = rank_memory(cost, config, {.count = 8}, 1000),
             sixteen = rank_memory(cost, config, {.count = 16}, 1000);
  EXPECT_EQ(eight[3].kv * 8, rank_memory(cost, config, {}, 1000)[0].kv);
  EXPECT_EQ(sixteen[3].kv, eight[3].kv);
}

TEST(RankMemory, hosts_copy_columns_only) {
  const model::ModelConfig config = model::gpt_oss_120b();
  const backend::CostModel cost = cost_of(config);
  const int64_t down = 36 * int64_t{128} * 2880 * 2880 / 32 * 17, o = 36 * int64_t{2880} * 4096 * 2;
  EXPECT_EQ(bytes_copied(cost, {}), 0);
  EXPECT_EQ(bytes_copied(cost, {.count = 4}), down + o);
  EXPECT_EQ(bytes_copied(cost, {4, true}), o);
  int64_t sum = 0;
  for (const RankMemory& of : rank_memory(cost, config, {.count = 4}, 1)) sum += of.copied;
  EXPECT_EQ(sum, down + o);
}

TEST(RankMemory, kv_tokens_are_what_weights_leave) {
  const model::ModelConfig config = model::gpt_oss_120b();
  const backend::CostModel cost = cost_of(config);
  const RankMemory of = rank_memory(cost, config, {.count = 2}, 1).front();
  const int64_t token = int64_t{2} * 18 * 2 * 4 * 64;  // bf16, full layers, k and v, four heads
  EXPECT_EQ(kv_tokens_beside(cost, config, of, of.weights + 10 * token + 5), 10);
  EXPECT_EQ(kv_tokens_beside(cost, config, of, of.weights - 1), 0);
}

}  // namespace
}  // namespace nibble::app
