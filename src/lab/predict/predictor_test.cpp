// Predictions compared with measurements (bench/results).
#include "lab/predict/predictor.h"

#include "base/error.h"
#include "model/gpt_oss.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::app {
namespace {

// A row of a results file: what ran, and how fast.
struct MeasuredRow {
  std::string model;
  backend::DenseFormats dense;
  PredictShape shape;
  double tokens_per_second = 0;
};

backend::DenseFormats all(backend::WeightFormat format) { return {format, format, format}; }

// "tg64", "tg32 @ d4096", "pp2048". A sequence that generates n tokens is n / 2 deep on average.
PredictShape shape_of(const std::string& test, int batch) {
  const size_t at = test.find(" @ d");
  const int64_t depth = at == std::string::npos ? 0 : std::stoll(test.substr(at + 4));
  const int64_t tokens = std::stoll(test.substr(2));
  if (test.starts_with("pp")) return {.prompt = tokens, .depth = depth};
  return {.batch = batch, .depth = depth + tokens / 2};
}

std::vector<MeasuredRow> measured(const std::string& name) {
  std::ifstream file(std::string(NIBBLE_SOURCE_DIR) + "/bench/results/" + name);
  std::vector<MeasuredRow> rows;
  const nlohmann::json results = nlohmann::json::parse(file);
  for (const nlohmann::json& run : results["runs"]) {
    const auto command = run["command"].get<std::string>();
    const bool mxfp4 = command.find("--mxfp4-layers all") != std::string::npos;
    const size_t model = command.find("-m ") + 3;
    for (const nlohmann::json& row : run["rows"]) {
      if (row.contains("other_kernels_since")) continue;
      rows.push_back({command.substr(model, command.find(' ', model) - model),
                      mxfp4 ? all(backend::WeightFormat::kMxfp4) : backend::DenseFormats{},
                      shape_of(row["test"].get<std::string>(), row["batch"].get<int>()),
                      row["tokens_per_s"].get<double>()});
    }
  }
  return rows;
}

ModelOptions options() {
  ModelOptions options;
  options.run.backend = BackendKind::kCuda;
  options.run.max_num_batched_tokens = 8192;  // as bench
  return options;
}

PredictedRow predict(const MeasuredRow& row, std::string_view card) {
  const model::ModelConfig config = model::preset(row.model);
  ModelOptions as_bench = options();
  as_bench.run.screened_head = backend::ScreenedHead::kOff;  // the rows are older
  return Predictor{as_bench, config, row.dense, backend::cuda::card_named(card)}.row(row.shape);
}

// Also prints the comparison, for docs/predict.md.
void expect_within(const std::string& file, std::string_view card, double share) {
  const std::vector<MeasuredRow> rows = measured(file);
  EXPECT_GE(rows.size(), 15U) << file;
  for (const MeasuredRow& row : rows) {
    const double predicted = predict(row, card).tokens_per_second();
    const double off = predicted / row.tokens_per_second - 1;
    std::fputs(
        fmt::format("{} {:<12} {:<5} {:<24} measured {:>8.1f} predicted {:>8.1f} {:>+6.1f} %\n", card, row.model,
                    row.dense.qkv ? "mxfp4" : "exact", row.shape.name(), row.tokens_per_second, predicted, 100 * off)
            .c_str(),
        stdout);
    EXPECT_LE(std::abs(off), share) << row.model << " " << row.shape.name();
  }
}

TEST(predictor, an_h100_is_as_it_was_measured) { expect_within("2026-11-23-h100-120b.json", "h100", 0.10); }

// No number in the table (kernel_share.cpp) comes from an H200.
TEST(predictor, an_h200_follows_from_an_h100) {
  expect_within("2026-11-23-h200-120b.json", "h200", 0.10);
  expect_within("2026-11-26-h200-120b.json", "h200", 0.10);
}

TEST(predictor, a_prompt_goes_in_steps_of_which_the_last_one_draws) {
  const model::ModelConfig config = model::gpt_oss_20b();
  ModelOptions in_two = options();
  in_two.run.max_num_batched_tokens = 1024;
  const backend::cuda::KnownCard card = backend::cuda::card_named("h100");
  const PredictedRow two = Predictor{in_two, config, {}, card}.row({.prompt = 2048});
  const ModelOptions whole = options();
  const PredictedRow one = Predictor{whole, config, {}, card}.row({.prompt = 2048});
  const auto launches = [](const PredictedRow& row, std::string_view kernel) {
    int64_t count = 0;
    for (const backend::cuda::NodeTime& node : row.nodes) count += node.kernel == kernel ? node.launches : 0;
    return count;
  };
  EXPECT_EQ(launches(one, "sm90_mxfp4_gemm<experts>"), 24);
  EXPECT_EQ(launches(two, "sm90_mxfp4_gemm<experts>"), 48);
  EXPECT_EQ(launches(two, "any_screen"), 1);
  EXPECT_GT(two.seconds, one.seconds);
  EXPECT_EQ(two.nodes.size(), one.nodes.size());  // a line per kernel, whatever the steps
  const Predictor predictor{whole, config, {}, card};
  const double halves =
      predictor.row({.prompt = 1024}).seconds + predictor.row({.prompt = 1024, .depth = 1024}).seconds;
  EXPECT_NEAR(two.seconds, halves, 500e-6);  // and one draw more
  EXPECT_LT(two.seconds, halves);
}

// docs/cards.md. tests/card_memory_test.cpp asks the same of the server's budget.
TEST(predictor, nearly_every_card_has_room_for_the_whole_context_of_20b_and_the_large_ones_for_that_of_120b) {
  const ModelOptions as_bench = options();
  const model::ModelConfig small = model::gpt_oss_20b(), large = model::gpt_oss_120b();
  constexpr std::string_view kLarge[] = {"gb10", "h100", "h200", "a100", "rtx-pro-6000"};
  for (const backend::cuda::KnownCard& card : backend::cuda::known_cards()) {
    const auto has_room = [&](const model::ModelConfig& config) {
      const PredictedRow row = Predictor{as_bench, config, {}, card}.row({.depth = 131071});
      return row.fits() && row.host_layers == 0;
    };
    EXPECT_EQ(has_room(small), card.word != "3060") << card.word;
    EXPECT_EQ(has_room(large), std::ranges::find(kLarge, card.word) != std::end(kLarge)) << card.word;
  }
}

// bench/results/2026-12-01-h200-experts-on-the-host.json.
TEST(predictor, an_h200_whose_experts_are_on_the_host_is_predicted_within_15_percent) {
  ModelOptions few = options();
  const model::ModelConfig large = model::gpt_oss_120b();
  const auto rate = [&](int layers, double read, const PredictShape& shape) {
    few.run.cpu_moe_layers = layers;
    return Predictor{few, large, {}, backend::cuda::card_named("h200"), {read, 55e9}}.row(shape).tokens_per_second();
  };
  EXPECT_NEAR(rate(34, 97e9, {.depth = 32}) / 48.66, 1, 0.15);
  EXPECT_NEAR(rate(34, 97e9, {.prompt = 2048}) / 1597, 1, 0.15);
  EXPECT_NEAR(rate(27, 101e9, {.prompt = 2048}) / 2047, 1, 0.15);
  EXPECT_NEAR(rate(27, 101e9, {.prompt = 8192}) / 7842, 1, 0.15);
}

TEST(predictor, a_card_may_be_taken_for_sm_80) {
  const ModelOptions as_bench = options();
  const model::ModelConfig config = model::gpt_oss_120b();
  const backend::cuda::KnownCard h100 = backend::cuda::card_named("h100"), as_sm80 = backend::cuda::as_sm80(h100);
  const PredictedRow row = Predictor{as_bench, config, {}, as_sm80}.row({.prompt = 2048});
  EXPECT_TRUE(std::ranges::none_of(row.nodes, [](const auto& node) { return node.kernel.starts_with("sm90_"); }));
  EXPECT_GT(row.seconds, (Predictor{as_bench, config, {}, h100}.row({.prompt = 2048}).seconds));
}

TEST(predictor, a_depth_beyond_the_context_is_refused) {
  const ModelOptions as_bench = options();
  const model::ModelConfig config = model::gpt_oss_20b();
  const Predictor predictor{as_bench, config, {}, backend::cuda::card_named("h100")};
  EXPECT_NO_THROW(static_cast<void>(predictor.row({.depth = 131071})));
  try {
    static_cast<void>(predictor.row({.depth = 131072}));
    FAIL() << "it is one too deep";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::kInvalidRequest);
    EXPECT_NE(std::string(e.what()).find("(-d)"), std::string::npos) << e.what();
  }
}

using backend::Stage;
using backend::cuda::HeldBy;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

PredictedRow made_row() {
  return {.shape = {.batch = 2, .depth = 64},
          .seconds = 0.02,
          .limit_seconds = 0.01,
          .nodes = {{Stage::kMoe, "moe_up", 36, 9000, 3000, HeldBy::kInstructions},
                    {Stage::kMoe, "any_gemm<mxfp8>", 36, 11000, 10000, HeldBy::kMatrix}},
          .needs = {.weights = 5'000'000'000},
          .room = {.bytes = 4'000'000'000, .where = "the card has 4 GB"}};
}

nlohmann::ordered_json made() {
  return {{"model", "a-model"},
          {"device", "a card"},
          {"multiprocessors", 48},
          {"memory_bytes", 4'000'000'000},
          {"ranks", 1},
          {"kernels", "neutral"},
          {"kv_cache", "bf16"},
          {"step_tokens", 8192},
          {"tables", {{{"weights", "exact"}, {"weight_bytes", 5'000'000'000}, {"rows", {json_of(made_row())}}}}},
          {"assumptions", {"memory: the card has 4 GB"}}};
}

std::vector<std::string> assumptions_on(std::string_view card) {
  return assumptions(made(), backend::cuda::card_named(card), {});
}

TEST(predict_report, rates_count_the_tokens_of_all_sequences) {
  const PredictedRow row = made_row();
  EXPECT_DOUBLE_EQ(row.tokens_per_second(), 100);
  EXPECT_DOUBLE_EQ(row.limit_tokens_per_second(), 200);
  EXPECT_DOUBLE_EQ(row.of_limit(), 0.5);
  EXPECT_FALSE(row.fits());
  EXPECT_EQ((PredictShape{.prompt = 2048}).tokens(), 2048);
  EXPECT_EQ((PredictShape{.prompt = 2048, .depth = 10}).name(), "pp2048 @ d10");
}

TEST(predict_report, the_table_names_the_kernel_that_is_farthest_from_its_floor) {
  const std::string text = predict_markdown(made());
  EXPECT_THAT(text, HasSubstr("| tg @ d64, batch 2"));
  EXPECT_THAT(text, HasSubstr("100.0"));
  EXPECT_THAT(text, HasSubstr("moe_up 30 % (instructions)"));  // 6 of 20 ms
  EXPECT_THAT(text, HasSubstr("too much"));
  EXPECT_THAT(text, HasSubstr("the card has 4 GB"));
}

TEST(predict_report, tells_what_was_measured_where_and_what_is_assumed) {
  const std::vector<std::string> lines = assumptions_on("gb10");
  EXPECT_THAT(lines, Contains(HasSubstr("nothing here was measured on this card")));
  EXPECT_THAT(lines, Contains(HasSubstr("any_gemm<mxfp8>: assumed: as bf16")));
  EXPECT_THAT(lines, Contains(testing::AllOf(HasSubstr("shares of an H100"), HasSubstr("moe_up"))));
  EXPECT_THAT(assumptions_on("h100"), Not(Contains(HasSubstr("nothing here was measured"))));
}

TEST(predict_report, json_has_what_the_table_has) {
  const nlohmann::ordered_json row = json_of(made_row());
  EXPECT_EQ(row["tokens_per_second"], 100);
  EXPECT_EQ(row["fits"], false);
  EXPECT_EQ(row["kernels"][1]["held_by"], "matrix units");
}

}  // namespace
}  // namespace nibble::app
