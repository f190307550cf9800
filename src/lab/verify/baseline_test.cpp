#include "lab/verify/verify.h"

#include "base/error.h"
#include "lab/results/testing/metadata.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <tuple>

#include <unistd.h>

namespace nibble::app {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using Json = nlohmann::ordered_json;

constexpr int64_t kGb = 1'000'000'000;

Json figures() {
  return {{"rows",
           {timed_json({.prompt = 512, .seconds = {1.0, 1.01, 0.99, 1.0}}),
            timed_json({.generate = 32, .batch = 8, .seconds = {2.0, 2.01, 1.99, 2.0}})}},
          {"memory_bytes", {{"host", 3 * kGb}, {"device", 7 * kGb}}},
          {"accuracy", {{"perplexity", 19.0}, {"kl", 1e-3}, {"top1", 0.95}}}};
}

void slow_down(Json& row, double factor) {
  for (Json& s : row["seconds"]) s = s.get<double>() * factor;
}

VerifyChecks checked(const Json& before, const Json& now) {
  VerifyChecks checks;
  checks.begin(VerifyLevel::kRegression);
  check_regression({"kept.json", before}, now, checks);
  return checks;
}

std::string failures(const Json& before, const Json& now) {
  const VerifyChecks checks = checked(before, now);
  std::string names;
  for (const VerifyCheck& check : checks.all())
    if (check.verdict == Verdict::kFail) names += check.name + ";";
  return names;
}

NamedResult baseline() {
  NamedResult result{"kept.json", {{"metadata", whole_metadata()}}};
  result.json.update(figures());
  return result;
}

TEST(VerifyBaseline, an_equal_run_passes) {
  EXPECT_EQ(checked(figures(), figures()).all().size(), 7U);
  EXPECT_EQ(failures(figures(), figures()), "");
}

TEST(VerifyBaseline, what_got_better_passes) {
  Json now = figures();
  slow_down(now["rows"][0], 0.5);
  now["memory_bytes"]["host"] = kGb;
  now["accuracy"] = {{"perplexity", 18}, {"kl", 0}, {"top1", 1}};
  EXPECT_EQ(failures(figures(), now), "");
}

TEST(VerifyBaseline, a_slow_down_beyond_noise_is_flagged) {
  Json now = figures();
  slow_down(now["rows"][1], 1.02);
  EXPECT_EQ(failures(figures(), now), "") << "within 3 %";
  slow_down(now["rows"][1], 1.04);
  EXPECT_EQ(failures(figures(), now), "tg32, batch 8;");
}

TEST(VerifyBaseline, a_slow_down_within_noise_is_told_but_not_flagged) {
  Json before = figures(), now = figures();
  before["rows"][0]["seconds"] = {1.0, 1.3, 0.8, 1.1};
  now["rows"][0]["seconds"] = {1.1, 1.2, 1.3, 0.9};
  const VerifyChecks checks = checked(before, now);
  EXPECT_EQ(checks.all()[0].verdict, Verdict::kPass);
  EXPECT_THAT(checks.all()[0].found, HasSubstr("too noisy to show a loss of 3 %"));
}

TEST(VerifyBaseline, a_row_of_one_repetition_or_without_counterpart_says_nothing) {
  Json before = figures();
  before["rows"][0]["seconds"] = {0.1};
  EXPECT_EQ(failures(before, figures()), "");
  before["rows"].erase(0);
  const VerifyChecks checks = checked(before, figures());
  EXPECT_EQ(checks.all()[1].name, "this run alone: pp512");
  EXPECT_EQ(checks.all()[1].verdict, Verdict::kSkipped);
}

TEST(VerifyBaseline, more_memory_is_flagged) {
  Json now = figures();
  now["memory_bytes"]["host"] = 4 * kGb;
  EXPECT_EQ(failures(figures(), now), "");
  now["memory_bytes"]["host"] = 4 * kGb + 1;
  EXPECT_EQ(failures(figures(), now), "memory of the process;");
  now = figures();
  now["memory_bytes"]["device"] = 8 * kGb + 1;
  EXPECT_EQ(failures(figures(), now), "memory of the card;");
  now["memory_bytes"]["device"] = nullptr;
  EXPECT_EQ(checked(figures(), now).all().size(), 6U);
}

TEST(VerifyBaseline, any_loss_is_flagged) {
  for (const auto& [name, value, failed] : {std::tuple{"perplexity", 19.06, "perplexity;"},
                                            {"kl", 1.1e-3, "KL divergence;"},
                                            {"top1", 0.94, "equal top tokens;"},
                                            {"top1", std::nan(""), "equal top tokens;"}}) {
    Json now = figures();
    now["accuracy"][name] = value;
    EXPECT_EQ(failures(figures(), now), failed);
  }
}

TEST(VerifyBaseline, its_figures_are_a_line) {
  Json now = figures();
  for (Json& row : now["rows"]) row["tokens_per_second"] = {{"mean", 512.0}};
  EXPECT_THAT(figures_text(now),
              StartsWith("pp512 512.0 t/s, tg32, batch 8 512.0 t/s, perplexity of 1024 tokens 19.0000, "));
}

TEST(VerifyBaseline, is_a_result_that_can_be_compared) {
  EXPECT_EQ(compare_results(baseline(), baseline(), Mismatch::kRefuse).rows.size(), 2U);
}

TEST(VerifyBaseline, of_something_else_is_refused_by_name) {
  const auto other = [](const std::function<void(Json&)>& change) {
    Json kept = whole_metadata();
    change(kept);
    return mismatch(kept, whole_metadata());
  };
  EXPECT_EQ(other([](Json& m) { m["build"]["commit"] = "def"; }), "");
  EXPECT_EQ(other([](Json& m) { m["device"]["name"] = "Epyc"; }), R"(device.name: want "Xeon", found "Epyc")");
  EXPECT_EQ(other([](Json& m) { m["device"]["backend"] = "cuda"; }), R"(device.backend: want "cpu", found "cuda")");
  EXPECT_EQ(other([](Json& m) { m["model"]["sha256"] = "01"; }), R"(model.sha256: want "00", found "01")");
  EXPECT_EQ(other([](Json& m) { m["device"]["kernels"] = "avx2, 4 threads"; }),
            R"(device.kernels: want "avx2, 2 threads", found "avx2, 4 threads")");
  EXPECT_EQ(other([](Json& m) { m["settings"]["threads"]["resolved"] = "4"; }), R"(--threads: want "2", found "4")");
  EXPECT_EQ(other([](Json& m) { m["settings"]["fast"] = {{"value", "true"}, {"origin", "command line"}}; }),
            R"(--fast: want null, found "true")");
  EXPECT_EQ(other([](Json& m) { m["settings"]["later"] = {{"value", "0"}, {"origin", "default"}}; }), "");
  EXPECT_EQ(other([](Json& m) { m["settings"]["level"]["value"] = "all"; }), "");
}

TEST(VerifyBaseline, of_made_up_weights_is_of_their_shape_too) {
  const auto dummy = [](const char* name) {
    Json m = whole_metadata();
    m["model"] = {{"name", name}, {"sha256", nullptr}, {"dummy_seed", 1}};
    return m;
  };
  EXPECT_EQ(mismatch(dummy("gpt-oss-20b"), dummy("gpt-oss-20b")), "");
  EXPECT_EQ(mismatch(dummy("gpt-oss-120b"), dummy("gpt-oss-20b")),
            R"(model.name: want "gpt-oss-20b", found "gpt-oss-120b")");
  Json renamed = whole_metadata();
  renamed["model"]["name"] = "elsewhere";
  EXPECT_EQ(mismatch(renamed, whole_metadata()), "") << "files are known by their hash";
}

TEST(VerifyBaseline, of_a_card_does_not_mind_how_many_threads_feed_it) {
  Json kept = whole_metadata(), now = whole_metadata();
  kept["device"]["backend"] = now["device"]["backend"] = "cuda";
  kept["settings"]["threads"] = {{"value", "32"}, {"origin", "default"}};
  EXPECT_EQ(mismatch(kept, now), "");
}

// Each is read wherever level 5 looks for one: a broken one would end every run.
TEST(VerifyBaseline, those_that_come_along_are_whole) {
  const std::filesystem::path folder = std::filesystem::path(NIBBLE_SOURCE_DIR) / "bench/baselines";
  int count = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".json") continue;
    ++count;
    std::ifstream file(entry.path());
    const NamedResult one{entry.path().string(), Json::parse(file)};
    require_baseline(one);  // refuses metadata with gaps
    std::string labels;
    for (const ComparedRow& row : compare_results(one, one, Mismatch::kRefuse).rows) labels += row.name + ";";
    for (const Json& row : one.json["rows"]) EXPECT_GE(row["seconds"].size(), 7U) << one.name;
    EXPECT_EQ(labels, "pp512;tg32, batch 1;tg32, batch 8;") << one.name;
    EXPECT_GT(one.json["memory_bytes"]["host"], 0) << one.name;
    EXPECT_EQ(one.json["memory_bytes"]["device"].is_number(), one.json["metadata"]["device"]["backend"] == "cuda")
        << one.name;
    EXPECT_GT(one.json["accuracy"]["perplexity"], 1) << one.name;
    EXPECT_EQ(mismatch(one.json["metadata"], one.json["metadata"]), "") << one.name;
  }
  EXPECT_GE(count, 3);
}

TEST(VerifyBaseline, what_is_none_is_refused) {
  const auto refused = [](const std::function<void(Json&)>& change) {
    NamedResult kept = baseline();
    change(kept.json);
    EXPECT_THROW(require_baseline(kept), Error) << kept.json;
  };
  refused([](Json& j) { j.erase("metadata"); });
  refused([](Json& j) { j["metadata"].erase("date"); });
  refused([](Json& j) { j.erase("rows"); });
  refused([](Json& j) { j["rows"] = 7; });
  refused([](Json& j) { j["rows"][0]["seconds"] = Json::array(); });
  refused([](Json& j) { j["rows"][0]["seconds"][0] = 0; });
  refused([](Json& j) { j["rows"][0]["prompt"] = 0; });
  refused([](Json& j) { j["rows"][0].erase("batch"); });
  refused([](Json& j) { j["memory_bytes"].erase("host"); });
  refused([](Json& j) { j["accuracy"] = Json::object(); });
}

class BaselineFiles : public testing::Test {
 protected:
  // Each process has a folder of its own: tests run beside each other.
  BaselineFiles()
      : folder_(std::filesystem::path(testing::TempDir()) / ("nibble_baselines_" + std::to_string(getpid()))) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
  }
  ~BaselineFiles() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path keep(const std::string& name, const std::string& device) {
    NamedResult result = baseline();
    result.json["metadata"] = whole_metadata(device);
    std::ofstream(folder_ / name) << result.json.dump();
    return folder_ / name;
  }
  std::filesystem::path folder_;
};

TEST_F(BaselineFiles, the_one_of_this_device_is_found) {
  keep("a.json", "Epyc");
  keep("b.json", "Xeon");
  const BaselineSearch found = find_baseline("", {folder_ / "none", folder_}, whole_metadata());
  ASSERT_TRUE(found.result);
  EXPECT_EQ(found.result->name, folder_ / "b.json");
}

TEST_F(BaselineFiles, none_of_this_device_says_whose_there_is) {
  keep("a.json", "Epyc");
  const BaselineSearch found = find_baseline("", {folder_}, whole_metadata());
  EXPECT_FALSE(found.result);
  EXPECT_THAT(found.why_none, HasSubstr(R"(a.json: device.name: want "Xeon", found "Epyc")"));
}

TEST_F(BaselineFiles, a_named_one_of_another_device_is_refused) {
  const std::filesystem::path file = keep("a.json", "Epyc");
  try {
    static_cast<void>(find_baseline(file, {}, whole_metadata()));
    FAIL() << "not refused";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), StartsWith("--baseline " + file.string() + ": device.name: want"));
  }
  EXPECT_TRUE(find_baseline(file, {}, whole_metadata("Epyc")).result);
}

}  // namespace
}  // namespace nibble::app
