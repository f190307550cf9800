#include "app/predict_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace nibble::app {
namespace {

using backend::Stage;
using backend::cuda::HeldBy;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

Prediction made(std::string_view card) {
  PredictedRow row{.shape = {.batch = 2, .depth = 64},
                   .seconds = 0.02,
                   .limit_seconds = 0.01,
                   .nodes = {{Stage::kMoe, "moe_up", 36, 9000, 3000, HeldBy::kInstructions},
                             {Stage::kMoe, "any_gemm<mxfp8>", 36, 11000, 10000, HeldBy::kMatrix}},
                   .needs = {.weights = 5'000'000'000},
                   .room = {.bytes = 4'000'000'000, .where = "the card has 4 GB"}};
  return {.model = "a-model",
          .card = backend::cuda::card_named(card),
          .kernels = "neutral",
          .kv_cache = "bf16",
          .step_tokens = 8192,
          .tables = {{"exact", 5'000'000'000, {row}}}};
}

TEST(predict_report, rates_count_the_tokens_of_all_sequences) {
  const Prediction prediction = made("gb10");
  const PredictedRow& row = prediction.tables[0].rows[0];
  EXPECT_DOUBLE_EQ(row.tokens_per_second(), 100);
  EXPECT_DOUBLE_EQ(row.limit_tokens_per_second(), 200);
  EXPECT_DOUBLE_EQ(row.of_limit(), 0.5);
  EXPECT_FALSE(row.fits());
  EXPECT_EQ(row.farthest().kernel, "moe_up");
  EXPECT_EQ((PredictShape{.prompt = 2048}).tokens(), 2048);
  EXPECT_EQ((PredictShape{.prompt = 2048, .depth = 10}).name(), "pp2048 @ d10");
}

TEST(predict_report, the_table_names_the_kernel_that_is_farthest_from_its_floor) {
  const std::string text = predict_markdown(made("gb10"));
  EXPECT_THAT(text, HasSubstr("| tg @ d64, batch 2"));
  EXPECT_THAT(text, HasSubstr("100.0"));
  EXPECT_THAT(text, HasSubstr("moe_up 30 % (instructions)"));  // 6 of 20 ms
  EXPECT_THAT(text, HasSubstr("too much"));
  EXPECT_THAT(text, HasSubstr("the card has 4 GB"));
}

TEST(predict_report, tells_what_was_measured_where_and_what_is_assumed) {
  const std::vector<std::string> lines = assumptions(made("gb10"));
  EXPECT_THAT(lines, Contains(HasSubstr("nothing here was measured on this card")));
  EXPECT_THAT(lines, Contains(HasSubstr("any_gemm<mxfp8>: assumed: as bf16")));
  EXPECT_THAT(lines, Contains(testing::AllOf(HasSubstr("shares of an H100"), HasSubstr("moe_up"))));
  EXPECT_THAT(assumptions(made("h100")), Not(Contains(HasSubstr("nothing here was measured"))));
}

TEST(predict_report, json_has_what_the_table_has) {
  const nlohmann::ordered_json json = predict_json(made("gb10"));
  EXPECT_EQ(json["card"], "gb10");
  const auto& row = json["tables"][0]["rows"][0];
  EXPECT_EQ(row["tokens_per_second"], 100);
  EXPECT_EQ(row["fits"], false);
  EXPECT_EQ(row["kernels"][1]["held_by"], "matrix units");
  EXPECT_EQ(json["assumptions"].size(), assumptions(made("gb10")).size());
}

}  // namespace
}  // namespace nibble::app
