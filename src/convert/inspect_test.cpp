#include "convert/inspect.h"

#include "backend/cost.h"

#include <gtest/gtest.h>

#include <vector>

namespace nibble::convert {

using model::gpt_oss_120b;
using model::gpt_oss_20b;
using model::tiny;
namespace {

TEST(inspect, totals_are_the_published_checkpoints) {
  EXPECT_EQ(numbers_of(gpt_oss_120b()).total.bytes, 65'248'815'744);
  EXPECT_EQ(numbers_of(gpt_oss_20b()).total.bytes, 13'761'264'768);
  EXPECT_EQ(numbers_of(gpt_oss_120b()).total.tensors, 687);
  EXPECT_EQ(numbers_of(gpt_oss_20b()).total.tensors, 459);
}

TEST(inspect, parameters_are_the_published_ones) {
  const ModelNumbers large = numbers_of(gpt_oss_120b()), small = numbers_of(gpt_oss_20b());
  EXPECT_NEAR(static_cast<double>(large.total.parameters), 116.83e9, 5e6);
  EXPECT_NEAR(static_cast<double>(small.total.parameters), 20.91e9, 5e6);
  EXPECT_NEAR(static_cast<double>(large.active_parameters), 5.13e9, 5e6);
  EXPECT_NEAR(static_cast<double>(small.active_parameters), 3.61e9, 5e6);
}

TEST(inspect, classes_add_up) {
  const ModelNumbers n = numbers_of(gpt_oss_20b());
  ClassNumbers sum;
  for (const ClassNumbers& c : n.classes) {
    sum.tensors += c.tensors;
    sum.bytes += c.bytes;
    sum.parameters += c.parameters;
  }
  EXPECT_EQ(sum.tensors, n.total.tensors);
  EXPECT_EQ(sum.bytes, n.total.bytes);
  EXPECT_EQ(sum.parameters, n.total.parameters);
  EXPECT_EQ(n.of(WeightClass::kExperts).tensors, 24 * 4);
  EXPECT_EQ(n.of(WeightClass::kExperts).bytes, 24 * 32 * int64_t{13'219'200});
  EXPECT_EQ(n.of(WeightClass::kEmbedding).bytes, 201088 * int64_t{2880} * 2);
  EXPECT_EQ(name_of(WeightClass::kExpertBias), "expert biases");
}

TEST(inspect, the_cost_table_reads_the_same_bytes) {
  for (const ModelConfig& config : {gpt_oss_20b(), gpt_oss_120b(), tiny()}) {
    const backend::CostModel cost{config.dims, backend::StoredFormats::as_shipped()};
    const std::vector<backend::Row> rows = {{.first_token = 0, .tokens = 1, .context = 0}};  // no keys seen
    const backend::Cost step = cost.of_step(config.layer_kinds, {.rows = rows, .logit_rows = 1});
    const ModelNumbers n = numbers_of(config);
    EXPECT_NEAR(step.bytes, static_cast<double>(n.decode.total()), 1);
    EXPECT_EQ(cost.weight_bytes(), n.total.bytes);
  }
}

TEST(inspect, bytes_per_decoded_token_are_those_of_the_tables) {
  const ModelNumbers large = numbers_of(gpt_oss_120b()), small = numbers_of(gpt_oss_20b());
  EXPECT_EQ(large.bytes_per_expert, 13'236'480);
  EXPECT_NEAR(static_cast<double>(large.decode.experts), 1.906e9, 5e5);
  EXPECT_NEAR(static_cast<double>(large.decode.attention), 1.911e9, 5e5);
  EXPECT_NEAR(static_cast<double>(large.decode.unembedding), 1.158e9, 5e5);
  EXPECT_NEAR(static_cast<double>(large.decode.rest), 0.028e9, 5e5);
  EXPECT_NEAR(static_cast<double>(large.decode.total()), 5.003e9, 5e5);
  EXPECT_NEAR(static_cast<double>(small.decode.total()), 3.708e9, 5e5);
}

TEST(inspect, kv_bytes_are_those_of_the_tables) {
  EXPECT_EQ(numbers_of(gpt_oss_120b()).kv_bytes_per_token, 36'864);
  EXPECT_EQ(numbers_of(gpt_oss_20b()).kv_bytes_per_token, 24'576);
  EXPECT_EQ(kv_bytes(gpt_oss_120b(), 128), 36 * 128 * 2048);
  EXPECT_EQ(kv_bytes(gpt_oss_120b(), 129), 36 * 128 * 2048 + 18 * 2048);
  EXPECT_NEAR(static_cast<double>(kv_bytes(gpt_oss_120b(), 2048)), 80e6, 5e5);
  EXPECT_NEAR(static_cast<double>(kv_bytes(gpt_oss_120b(), 8192)), 307e6, 5e5);
  EXPECT_NEAR(static_cast<double>(kv_bytes(gpt_oss_120b(), 32768)), 1.21e9, 5e6);
  EXPECT_NEAR(static_cast<double>(kv_bytes(gpt_oss_120b(), 131072)), 4.84e9, 5e6);
  EXPECT_EQ(kv_bytes(gpt_oss_120b(), 0), 0);
  EXPECT_EQ(kv_bytes(gpt_oss_120b(), 100), 100 * 73'728);
}

}  // namespace
}  // namespace nibble::convert
