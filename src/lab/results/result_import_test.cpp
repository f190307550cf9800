#include "lab/results/result_import.h"

#include "lab/results/result_testing.h"
#include "base/error.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace nibble::app {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Json = nlohmann::ordered_json;

// As llama-bench's README shows them, of fields that are read here and some that are not.
Json llama_bench_row(int prompt, int generate, int depth, std::vector<double> samples_ns) {
  return {{"build_commit", "8cf427ff"},
          {"build_number", 5163},
          {"cpu_info", "AMD EPYC"},
          {"gpu_info", "NVIDIA H100 80GB HBM3"},
          {"backends", "CUDA"},
          {"model_filename", "models/gpt-oss-20b-mxfp4.gguf"},
          {"model_type", "gpt-oss 20B"},
          {"n_batch", 2048},
          {"n_prompt", prompt},
          {"n_gen", generate},
          {"n_depth", depth},
          {"test_time", "2026-11-20T11:58:50Z"},
          {"avg_ns", samples_ns.front()},
          {"samples_ns", std::move(samples_ns)}};
}

// Of llama-benchy's published schema.
Json benchy_run(int concurrency, int context, Json throughputs) {
  Json run = {{"concurrency", concurrency},
              {"context_size", context},
              {"prompt_size", 2048},
              {"response_size", 32},
              {"is_context_prefill_phase", false}};
  run.update(throughputs);
  return run;
}
Json metric(std::vector<double> values) { return {{"mean", values.front()}, {"std", 0.1}, {"values", values}}; }
Json benchy(bool caches, Json runs) {
  return {{"version", "0.3.1"},   {"timestamp", "2026-11-20 17:11:19Z"}, {"latency_mode", "generation"},
          {"latency_ms", 2.5},    {"model", "openai/gpt-oss-20b"},       {"prefix_caching_enabled", caches},
          {"max_concurrency", 4}, {"benchmarks", std::move(runs)}};
}

// "pp512 @ d4096, batch 1: 2 2.5" in tokens per second.
std::vector<std::string> rows_of(const NamedResult& result) {
  std::vector<std::string> rows;
  for (const Json& row : result.json["rows"]) {
    std::string text = fmt::format("{}, batch {}:", row["test"].get<std::string>(), row["batch"].get<int>());
    const double tokens =
        row["prompt"] > 0 ? row["prompt"].get<double>() : row["generate"].get<double>() * row["batch"].get<double>();
    for (const Json& s : row["seconds"]) text += fmt::format(" {:g}", tokens / s.get<double>());
    rows.push_back(text);
  }
  return rows;
}

TEST(ResultImport, llama_bench_rows_are_prompts_and_generation_behind_a_depth) {
  const Json rows = {llama_bench_row(512, 0, 0, {1e9, 5e8}), llama_bench_row(0, 128, 4096, {2e9}),
                     llama_bench_row(512, 128, 0, {3e9})};
  const auto result = import_result("a.json", rows.dump());
  ASSERT_TRUE(result);
  EXPECT_EQ(result->program, "llama-bench");
  EXPECT_THAT(rows_of(*result), ElementsAre("pp512, batch 1: 512 1024", "tg128 @ d4096, batch 1: 64"));
  EXPECT_THAT(result->no_counterpart, ElementsAre(HasSubstr("pp512+tg128: a prompt and its answer")));
  EXPECT_EQ(result->json["metadata"]["device"]["name"], "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(result->json["metadata"]["model"]["name"], "gpt-oss-20b-mxfp4.gguf");
}

TEST(ResultImport, llama_bench_on_a_cpu_names_it) {
  Json row = llama_bench_row(512, 0, 0, {1e9});
  row["backends"] = "CPU";
  EXPECT_EQ(import_result("a", Json::array({row}).dump())->json["metadata"]["device"]["name"], "AMD EPYC");
}

TEST(ResultImport, llama_bench_may_write_a_line_a_row) {
  const std::string lines =
      llama_bench_row(512, 0, 0, {1e9}).dump() + "\n" + llama_bench_row(0, 128, 0, {1e9}).dump() + "\n";
  EXPECT_THAT(rows_of(*import_result("a.jsonl", lines)), ElementsAre("pp512, batch 1: 512", "tg128, batch 1: 128"));
}

TEST(ResultImport, llama_bench_of_before_depths) {
  Json row = llama_bench_row(512, 0, 0, {1e9});
  row.erase("n_depth");
  row.erase("samples_ns");
  EXPECT_THAT(rows_of(*import_result("a", Json::array({row}).dump())), ElementsAre("pp512, batch 1: 512"));
}

TEST(ResultImport, rows_that_differ_in_a_setting_alone_do_not_stand_for_each_other) {
  const Json rows = {llama_bench_row(512, 0, 0, {1e9}), llama_bench_row(512, 0, 0, {2e9})};
  const auto result = import_result("a", rows.dump());
  EXPECT_THAT(rows_of(*result), ElementsAre("pp512, batch 1: 512"));
  EXPECT_THAT(result->no_counterpart, ElementsAre(HasSubstr("pp512: a second one")));
}

TEST(ResultImport, benchy_generates_behind_context_and_prompt) {
  const Json both = {{"pp_throughput", metric({4000, 4100})}, {"tg_throughput", metric({50, 51})}};
  EXPECT_THAT(rows_of(*import_result("a", benchy(true, {benchy_run(1, 4096, both)}).dump())),
              ElementsAre("pp2048 @ d4096, batch 1: 4000 4100", "tg32 @ d6144, batch 1: 50 51"));
  EXPECT_THAT(rows_of(*import_result("a", benchy(false, {benchy_run(1, 4096, both)}).dump())),
              ElementsAre("pp6144, batch 1: 4000 4100", "tg32 @ d6144, batch 1: 50 51"))
      << "without a prefix cache the context is read again";
}

TEST(ResultImport, benchy_prompts_of_several_requests_have_no_counterpart) {
  const Json both = {{"pp_throughput", metric({9000})}, {"tg_throughput", metric({160})}};
  Json context = benchy_run(1, 4096, both);
  context["is_context_prefill_phase"] = true;
  const auto result = import_result("a", benchy(true, {benchy_run(4, 0, both), context}).dump());
  EXPECT_THAT(rows_of(*result), ElementsAre("tg32 @ d2048, batch 4: 160"));
  EXPECT_THAT(result->no_counterpart, ElementsAre(HasSubstr("pp2048 (c4): prompts of several"),
                                                  HasSubstr("ctx_pp2048 @ d4096: the context's own"),
                                                  HasSubstr("ctx_tg32 @ d4096: the context's own")));
}

TEST(ResultImport, benchy_may_not_have_measured_a_throughput) {
  const Json runs = {benchy_run(1, 0, {{"pp_throughput", nullptr}, {"tg_throughput", metric({50})}})};
  EXPECT_THAT(rows_of(*import_result("a", benchy(true, runs).dump())), ElementsAre("tg32 @ d2048, batch 1: 50"));
}

TEST(ResultImport, what_is_nobodys_is_left_alone) {
  for (const char* text : {"", "{", "[]", "7", "{}", "[7]", R"({"rows":[]})", R"([{"n_prompt":1}])", "{}\n{}", "\n\n"})
    EXPECT_FALSE(import_result("a", text)) << text;
}

TEST(ResultImport, broken_rows_are_refused_by_the_files_name) {
  Json row = llama_bench_row(512, 0, 0, {1e9});
  row["n_prompt"] = "many";
  Json samples = llama_bench_row(512, 0, 0, {1e9});
  samples["samples_ns"] = {"slow"};
  const Json broken_benchy = benchy(true, {{{"concurrency", 1}}});
  for (const Json& json : {Json::array({row}), Json::array({samples}), broken_benchy}) {
    try {
      static_cast<void>(import_result("x.json", json.dump()));
      ADD_FAILURE() << json;
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), HasSubstr("x.json: it is not as llama-bench"));
    }
  }
}

NamedResult ours(const std::string& device) {
  return {
      "ours.json",
      {{"metadata", whole_metadata(device)},
       {"rows",
        {{{"test", "pp512"}, {"prompt", 512}, {"generate", 0}, {"depth", 0}, {"batch", 1}, {"seconds", {0.5, 0.5}}}}}}};
}

TEST(ResultImport, is_compared_with_ours) {
  const Json rows = {llama_bench_row(512, 0, 0, {1e9, 1e9}), llama_bench_row(0, 128, 0, {2e9})};
  const NamedResult theirs = *import_result("theirs.json", rows.dump());
  const ResultComparison c = compare_results(theirs, ours("NVIDIA H100 80GB HBM3"), Mismatch::kRefuse);
  ASSERT_EQ(c.rows.size(), 1U);
  EXPECT_NEAR(c.rows[0].change.relative, 1, 1e-9);
  EXPECT_EQ(c.rows[0].verdict(), "faster");
  EXPECT_EQ(c.differences[0], "program: llama-bench, nibble");
  EXPECT_THAT(c.unmatched, ElementsAre("theirs.json alone: tg128, batch 1"));
}

TEST(ResultImport, of_another_device_is_refused_unless_told) {
  const NamedResult theirs = *import_result("theirs.json", Json::array({llama_bench_row(512, 0, 0, {1e9})}).dump());
  EXPECT_THROW(static_cast<void>(compare_results(theirs, ours("Xeon"), Mismatch::kRefuse)), Error);
  EXPECT_EQ(compare_results(theirs, ours("Xeon"), Mismatch::kAllow).rows.size(), 1U);
}

TEST(ResultImport, nonsense_rates_are_refused) {
  const Json runs = {benchy_run(1, 0, {{"tg_throughput", metric({0})}})};
  const NamedResult theirs = *import_result("theirs.json", benchy(true, runs).dump());
  EXPECT_THROW(static_cast<void>(compare_results(theirs, ours("Xeon"), Mismatch::kAllow)), Error);
}

}  // namespace
}  // namespace nibble::app
