#include "app/setup/memory_budget.h"

#include "app/setup/loaded_model.h"
#include "base/error.h"
#include "model/gpt_oss.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>

namespace nibble::app {
namespace {

using backend::MemoryNeeds;
using testing::HasSubstr;

MemoryNeeds per_token(int64_t tokens) { return {.weights = 1000, .kv = 10 * tokens}; }

TEST(memory_budget, finds_the_largest_that_fits) {
  const auto largest = [](int64_t bytes, int64_t most) {
    return largest_that_fits({.bytes = bytes, .where = {}}, most, per_token);
  };
  EXPECT_EQ(largest(1500, 1000), 50);
  EXPECT_EQ(largest(1509, 1000), 50);
  EXPECT_EQ(largest(1500, 50), 50);
  EXPECT_EQ(largest(1500, 49), 49);
  EXPECT_EQ(largest(1010, 1000), 1);
  EXPECT_EQ(largest(1009, 1000), std::nullopt);
  EXPECT_EQ(largest(1'000'000, 0), std::nullopt);
}

TEST(memory_budget, a_cache_of_no_given_size_takes_what_fits) {
  const auto tokens = [](int64_t bytes, int64_t least, int64_t most) {
    return kv_tokens_that_fit({.bytes = bytes, .where = {}}, least, most, per_token);
  };
  EXPECT_EQ(tokens(3200, 100, 1000), 210);  // of 3100 bytes, 1000 for weights
  EXPECT_EQ(tokens(3200, 100, 200), 200);
  EXPECT_EQ(tokens(3200, 210, 1000), 210);
  EXPECT_EQ(tokens(3200, 500, 1000), 500);  // refused later, with what would fit
  EXPECT_EQ(tokens(1'000'000, 500, 100), 500);
}

TEST(memory_budget, the_fewest_layers_are_left_to_the_host) {
  const auto least = [](int64_t bytes) {
    return least_host_layers({.bytes = bytes, .where = {}}, 4,
                             [](int64_t layers) { return MemoryNeeds{.weights = 1000 - 200 * layers}; });
  };
  EXPECT_EQ(least(1000), 0);
  EXPECT_EQ(least(999), 1);
  EXPECT_EQ(least(600), 2);
  EXPECT_EQ(least(200), 4);
  EXPECT_EQ(least(199), std::nullopt);
}

TEST(memory_budget, a_card_is_spared_the_experts_of_the_host) {
  const model::ModelConfig config = model::gpt_oss_120b();
  const backend::CostModel cost{config.dims, backend::StoredFormats::as_shipped()};
  const auto be = model::backend_config(config, {.max_tokens = 64, .max_rows = 1, .kv_pages = {64, 64}});
  ModelOptions options;
  options.run.backend = BackendKind::kCuda;
  const MemoryNeeds whole = budget_on(int64_t{8} << 30, options, be, cost).needs;
  EXPECT_EQ(whole.weights, cost.weight_bytes());
  options.run.cpu_moe_layers = 3;
  const int64_t matrices = int64_t{128} * 2880 * 3 * 2880 / 32 * 17, biases = int64_t{128} * 3 * 2880 * 2;
  EXPECT_EQ(budget_on(int64_t{8} << 30, options, be, cost).needs.weights, whole.weights - 3 * (matrices + biases));
  EXPECT_EQ(
      describe_host_layers(options, cost, config.layer_kinds),
      "experts of 3 of 36 layers on the host: 5.08 GB of its memory; a token reads 159 MB there, 4.84 GB on the card");
  options.run.expert_copy_tokens = 600;
  EXPECT_THAT(describe_host_layers(options, cost, config.layer_kinds),
              HasSubstr("; steps of 600 tokens and more copy them to the card"));
}

TEST(memory_budget, refuses_with_the_parts_and_what_would_fit) {
  const MemoryLimit limit{.bytes = 3'000'000'000, .where = "this machine has 3.00 GB available"};
  EXPECT_NO_THROW(require_fit({.weights = 3'000'000'000}, limit, {}));
  const std::vector<std::string> advice = {"-b 4", "-d 100"};
  try {
    require_fit({.weights = 3'100'000'000, .kv = 1}, limit, advice);
    FAIL() << "it does not fit";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::kOutOfMemory);
    EXPECT_THAT(e.what(), HasSubstr("weights 3.1"));
    EXPECT_THAT(e.what(), HasSubstr("this machine has 3.00 GB available, 100 MB too little"));
    EXPECT_THAT(e.what(), HasSubstr("would fit: -b 4 or -d 100"));
  }
}

TEST(memory_budget, a_card_gives_its_share_or_what_is_free) {
  EXPECT_EQ(device_limit(90, 100, 0.5).bytes, 50);
  EXPECT_EQ(device_limit(40, 100, 0.5).bytes, 40);
  EXPECT_THAT(device_limit(90, 100, 0.5).where, HasSubstr("--gpu-memory-utilization 0.50 gives 50 B"));
  EXPECT_THAT(device_limit(40, 100, 0.5).where, HasSubstr("40 B free of 100 B"));
}

TEST(memory_budget, the_utilization_that_would_fit_is_named) {
  EXPECT_EQ(utilization_that_fits({.kv = 451}, 900, 1000), 0.46);
  EXPECT_EQ(utilization_that_fits({.kv = 450}, 900, 1000), 0.45);
  EXPECT_EQ(utilization_that_fits({.kv = 901}, 900, 1000), std::nullopt);
}

TEST(memory_budget, mapped_weights_are_not_the_backends) {
  const model::ModelConfig config = model::gpt_oss_20b();
  const backend::CostModel cost{config.dims, backend::StoredFormats::as_shipped()};
  auto be = model::backend_config(config, {.max_tokens = 256, .max_rows = 1, .kv_pages = {64, 64}});
  ModelOptions options;
  EXPECT_EQ(budget_of(options, be, cost).needs.weights, 0);
  EXPECT_EQ(budget_of(options, be, cost).needs.kv, 24 * 4096 * 2 * 512 * 2);
  options.run.kv = backend::KvDtype::kE4m3;
  EXPECT_EQ(budget_of(options, be, cost).needs.kv, 24 * 4096 * 2 * 512);
  options.run.kv = backend::KvDtype::kInt8;
  EXPECT_EQ(budget_of(options, be, cost).needs.kv, 24 * 4096 * 2 * (512 + 8 * 2));
  for (const backend::KvType& type : backend::kKvTypes) {  // the table is what counts, whatever is in it
    options.run.kv = type.dtype;
    EXPECT_EQ(budget_of(options, be, cost).needs.kv, 24 * 4096 * 2 * 8 * backend::row_bytes(type, 64));
  }
  EXPECT_EQ(dummy_bytes(options, config), 0);
  options.load_format = LoadFormat::kDummy;
  EXPECT_EQ(dummy_bytes(options, config), 13'761'264'768);
  be.dense.lm_head = backend::WeightFormat::kMxfp8;  // a copy is made
  const backend::CostModel quantised{config.dims, backend::StoredFormats::of({}, be.dense)};
  EXPECT_EQ(budget_of(options, be, quantised).needs.weights, 201088 * int64_t{2880} * 33 / 32);
}

TEST(memory_budget, a_context_that_does_not_fit_is_refused_with_one_that_does) {
  const model::ModelConfig config = model::gpt_oss_20b();
  const backend::CostModel cost{config.dims, backend::StoredFormats::as_shipped()};
  const auto be = model::backend_config(config, {.max_tokens = 256, .max_rows = 1, .kv_pages = {1 << 24, 1 << 24}});
  try {
    static_cast<void>(check_budget({}, be, cost));
    FAIL() << "52 TB fit";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::kOutOfMemory);
    EXPECT_THAT(e.what(), HasSubstr("would fit: --max-model-len "));
  }
}

// With as many pages as the model's, and smaller steps.
TEST(memory_budget, a_draft_model_counts) {
  const model::ModelConfig config = model::gpt_oss_120b();
  ModelOptions options;
  options.model = "gpt-oss-120b";
  options.load_format = LoadFormat::kDummy;
  options.run.backend = BackendKind::kCpu;
  options.run.dense.qkv = backend::WeightFormat::kMxfp8;
  const auto budget = [&](const ModelOptions& of, const model::ModelConfig& model, const model::StepLimits& limits) {
    const backend::CostModel cost{model.dims, stored_formats(of, {})};
    return budget_of(of, model::backend_config(model, limits, of.run.dense), cost).needs;
  };
  const model::StepLimits limits{.max_tokens = 2048, .max_rows = 256, .kv_pages = {100, 1000}};
  const MemoryNeeds alone = budget(options, config, limits);
  const MemoryNeeds draft =
      budget(options, model::gpt_oss_20b(), {.max_tokens = 512, .max_rows = 64, .kv_pages = {100, 1000}});
  options.speculation.method = engine::DraftMethod::kDraft;
  options.speculative_model = "gpt-oss-20b";
  const MemoryNeeds both = budget(options, config, limits);
  EXPECT_EQ(both.weights, alone.weights + draft.weights);
  EXPECT_EQ(both.kv, alone.kv + draft.kv);
  EXPECT_EQ(both.activations, alone.activations + draft.activations);
  EXPECT_GT(draft.weights, 0) << "requantised layers";
  EXPECT_GT(draft.kv, 1000 * backend::kPageTokens * 12 * 2 * 8 * 64 * 2);
  EXPECT_EQ(times(2, {both, {}}).needs.total(), 2 * both.total());
}

// What each rank of gpt-oss-120b holds, calculated by hand.

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
