#include "app/memory_budget.h"

#include "base/error.h"
#include "model/gpt_oss.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
    EXPECT_THAT(e.what(), HasSubstr("this machine has 3.00 GB available"));
    EXPECT_THAT(e.what(), HasSubstr("would fit: -b 4 or -d 100"));
  }
}

TEST(memory_budget, mapped_weights_give_way_and_dummy_ones_do_not) {
  const model::ModelConfig config = model::gpt_oss_20b();
  const backend::CostModel cost{config.dims, backend::StoredFormats::as_shipped()};
  const auto be = model::backend_config(config, {.max_tokens = 256, .max_rows = 1, .kv_pages = {64, 64}});
  ModelOptions options;
  EXPECT_EQ(memory_needs(options, be, cost).weights, 0);
  EXPECT_EQ(memory_needs(options, be, cost).kv, 24 * 4096 * 2 * 512 * 2);
  options.load_format = LoadFormat::kDummy;
  EXPECT_EQ(memory_needs(options, be, cost).weights, 13'761'264'768);
}

}  // namespace
}  // namespace nibble::app
