#include "lab/verify/features.h"

#include "base/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace nibble::app {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::string refusal(const std::string& list) {
  try {
    static_cast<void>(product_of(tried_features(list, BackendKind::kCpu)));
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::kInvalidRequest);
    return e.what();
  }
  return "";
}

// Rounds of a machine whose speed changes from one to the next.
std::vector<TrialRates> rounds(double by, const std::vector<double>& machine = {1, 0.5, 0.8}) {
  std::vector<TrialRates> all;
  for (const double speed : machine) {
    const std::vector<double> rate = {100 * speed * by, 101 * speed * by, 99 * speed * by};
    all.push_back({rate, rate, rate, rate});
  }
  return all;
}

FeatureRow tried(const Combination& combination, double by) {
  return {.combination = combination,
          .refused = {},
          .same_as = {},
          .trial = Trial{.wrong = {}, .loss = {}, .bound = {}, .rounds = rounds(by)}};
}

// Two features of two values, with these speeds: first, the second alone, the first alone, both.
FeatureReport report_of(const std::vector<double>& speeds) {
  FeatureReport report;
  report.features = tried_features("kv=bf16/fp8,speculation=off/suffix", BackendKind::kCpu);
  const std::vector<Combination> all = product_of(report.features);
  for (size_t i = 0; i < all.size(); ++i) report.rows.push_back(tried(all[i], speeds[i]));
  report.again = rounds(1).front();
  return report;
}

TEST(tried_features, are_all_values_the_default_first_or_those_that_are_named) {
  const auto all = tried_features("kv,mxfp4-layers=none/all", BackendKind::kCpu);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_THAT(all[0].values, ElementsAre("auto", "bf16", "f32", "fp8", "int8"));
  EXPECT_THAT(all[1].values, ElementsAre("none", "all"));
  for (const BackendKind kind : {BackendKind::kCpu, BackendKind::kCuda, BackendKind::kReference})
    EXPECT_FALSE(tried_features("", kind).empty());
}

TEST(tried_features, are_refused_by_name) {
  EXPECT_THAT(refusal("kvv"), HasSubstr("found kvv"));
  EXPECT_THAT(refusal("kv,"), HasSubstr("found nothing"));
  EXPECT_THAT(refusal("kv=fp9"), HasSubstr("want values of auto, bf16, f32, fp8, int8"));
  EXPECT_THAT(refusal("kv=fp8/fp8"), HasSubstr("fp8 stands there twice"));
  EXPECT_THAT(refusal("kv,kv=fp8"), HasSubstr("kv stands there twice"));
  EXPECT_THAT(refusal("dp"), HasSubstr("found dp"));  // several engines
  EXPECT_THAT(refusal("kernel,activation,kv,isa,sinks,guesses,mxfp4-layers"), HasSubstr("want at most 4096"));
  EXPECT_EQ(refusal("kernel,activation,kv"), "");
}

TEST(product, names_what_differs_from_the_first) {
  const auto all = product_of(tried_features("kv=bf16/fp8,speculation=off/suffix", BackendKind::kCpu));
  ASSERT_EQ(all.size(), 4U);
  EXPECT_EQ(all[0].name, "kv=bf16 speculation=off");
  EXPECT_EQ(all[1].name, "speculation=suffix");
  EXPECT_EQ(all[3].name, "kv=fp8 speculation=suffix");
  EXPECT_EQ(all[3].changed(), 2);
  EXPECT_THAT(all[3].words,
              ElementsAre(FeatureWord{"--kv-cache-dtype", "fp8"}, FeatureWord{"--speculative", "suffix"}));
}

TEST(gain, sees_through_a_machine_that_changes_its_speed) {
  const FeatureGain gain = gain_of(rounds(1), rounds(1.2), 0.5);
  EXPECT_NEAR(gain.score, 1.2, 1e-9);
  EXPECT_EQ(gain.verdict(), "helps");
  EXPECT_EQ(gain_of(rounds(1), rounds(0.9), 0).verdict(), "costs");
  EXPECT_EQ(gain_of(rounds(1), rounds(1), 0).verdict(), "no difference shown");
  EXPECT_EQ(gain_of(rounds(1), rounds(1, {1.3, 0.4, 0.9}), 0).verdict(), "no difference shown");
}

TEST(gain, of_one_round_says_nothing_below_the_drift) {
  const std::vector<TrialRates> base = rounds(1, {1}), other = rounds(1.1, {1});
  EXPECT_EQ(gain_of(base, other, 0.01).verdict(), "helps");
  EXPECT_EQ(gain_of(base, other, 0.2).verdict(), "no difference shown");
}

TEST(report, tells_features_that_mind_each_other_from_those_that_do_not) {
  const std::string apart = feature_report_text(report_of({1, 1.1, 1.2, 1.32}));
  EXPECT_THAT(apart, HasSubstr("+32.0 %: as alone"));
  const std::string minds = feature_report_text(report_of({1, 1.1, 1.2, 1.1}));
  EXPECT_THAT(minds, HasSubstr("+32.0 %: worse than alone"));
  EXPECT_THAT(feature_report_text(report_of({1, 1.1, 1.2, 1.6})), HasSubstr("+32.0 %: better than alone"));
  EXPECT_LT(apart.find("| kv=fp8 |"), apart.find("| speculation=suffix |")) << "the better one first: " << apart;
}

TEST(report, gathers_refusals_by_their_reason) {
  FeatureReport report = report_of({1, 1.1, 1.2, 1.3});
  for (const size_t at : {2, 3}) {
    report.rows[at].trial.reset();
    report.rows[at].refused = "--kv-cache-dtype fp8: not here";
  }
  EXPECT_THAT(feature_report_text(report), HasSubstr("| 2 | kv=fp8 | --kv-cache-dtype fp8: not here |"));
  VerifyChecks checks;
  checks.begin(VerifyLevel::kFeatures);
  for (const FeatureRow& row : report.rows)
    if (row.trial) add_check(row, checks);
  skip_refused(report, checks);
  ASSERT_EQ(checks.all().size(), 3U);
  EXPECT_EQ(checks.all()[2].verdict, Verdict::kSkipped);
  EXPECT_FALSE(checks.failed());
}

TEST(report, of_a_wrong_combination_fails_and_its_speed_is_invalid) {
  FeatureReport report = report_of({1, 1.1, 1.2, 1.3});
  report.rows[1].trial->wrong = "layer 3 route: nan";
  VerifyChecks checks;
  checks.begin(VerifyLevel::kFeatures);
  for (const FeatureRow& row : report.rows)
    if (row.trial) add_check(row, checks);
  skip_refused(report, checks);
  EXPECT_TRUE(checks.failed(VerifyLevel::kFeatures));
  EXPECT_THAT(checks.all()[1].found, HasSubstr("layer 3 route: nan; INVALID"));
  EXPECT_EQ(feature_report_json(report)["combinations"][1]["wrong"], "layer 3 route: nan");
}

TEST(known_loss, adds_distances_and_knows_nothing_of_what_nobody_measured) {
  const nlohmann::json losses = {{"--moe-activation int8", {{"kl", 0.01}, {"top1", 0.95}}},
                                 {"--kv-cache-dtype fp8", {{"kl", 0.04}, {"top1", 0.9}}}};
  backend::RunConfig run;
  const KnownLoss exact = *known_loss(losses, run);
  run.activations = backend::Activations::kInt8;
  run.kv = backend::KvDtype::kE4m3;
  const KnownLoss both = *known_loss(losses, run);
  EXPECT_GT(both.kl, 0.09);  // (0.1 + 0.2)^2, and what exact ways differ by
  EXPECT_LT(both.kl, 0.11);
  EXPECT_NEAR(both.top1, exact.top1 - 0.15, 1e-9);
  run.sinks = false;
  EXPECT_EQ(known_loss(losses, run).has_value(), false);
}

}  // namespace
}  // namespace nibble::app
