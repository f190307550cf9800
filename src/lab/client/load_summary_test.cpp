#include "lab/client/load_summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace nibble::client {
namespace {

using testing::HasSubstr;

// n tokens, the first after `ttft`, each further one `gap` later.
Outcome timed_answer(double sent, double ttft, double gap, int n) {
  Outcome o;
  o.ended = true;
  o.sent = sent;
  o.first = sent + ttft;
  o.last = o.first + gap * (n - 1);
  o.done = o.last + 0.5;
  o.events = o.output_tokens = n;
  o.prompt_tokens = 100;
  o.gaps.assign(static_cast<size_t>(n - 1), static_cast<float>(gap));
  return o;
}

Outcome failed(double sent, double done, Failure failure, int status, const char* message) {
  Outcome o;
  o.ended = true;
  o.sent = sent;
  o.done = done;
  o.failure = failure;
  o.status = status;
  o.message = message;
  o.events = 5;  // which count for nothing
  return o;
}

TEST(LoadSummary, percentiles_are_numpys) {
  const std::vector<double> values = {1, 2, 3, 4};
  EXPECT_DOUBLE_EQ(percentile(values, 50), 2.5);
  EXPECT_DOUBLE_EQ(percentile(values, 90), 3.7);
  EXPECT_DOUBLE_EQ(percentile(values, 100), 4);
  EXPECT_DOUBLE_EQ(percentile(std::vector<double>{7}, 99), 7);
  EXPECT_EQ(percentile({}, 50), 0);
}

TEST(LoadSummary, rates_are_of_what_went_well_over_all_the_time) {
  const std::array runs = {std::vector{
      timed_answer(0, 1, 0.25, 9), timed_answer(1, 2, 0.5, 5), failed(2, 9.5, Failure::kStatus, 429, "full"),
      failed(2, 3, Failure::kStatus, 429, "still full"), failed(2, 3, Failure::kTimeout, 0, "late"), Outcome{}}};
  const LoadSummary s = summary_of(runs);
  EXPECT_EQ(s.ok, 2);
  EXPECT_EQ(s.failed, 3);
  EXPECT_EQ(s.unfinished, 1);
  EXPECT_EQ(s.failures.at("HTTP 429").count, 2);
  EXPECT_EQ(s.failures.at("HTTP 429").first_message, "full");
  EXPECT_EQ(s.failures.at("timeout").count, 1);
  EXPECT_DOUBLE_EQ(s.seconds, 9.5);
  EXPECT_DOUBLE_EQ(s.output_rate(), 14 / 9.5);
  EXPECT_DOUBLE_EQ(s.total_rate(), 214 / 9.5);
  EXPECT_DOUBLE_EQ(s.ttft.p50, 1.5);
  EXPECT_DOUBLE_EQ(s.tpot.mean, 0.375);
  EXPECT_EQ(s.itl.count, 12U);
  EXPECT_DOUBLE_EQ(s.e2e.p50, 3.5);
  EXPECT_TRUE(s.counted_by_server);
}

TEST(LoadSummary, one_event_says_nothing_of_the_time_between_tokens) {
  Outcome o = timed_answer(0, 1, 0, 1);
  o.output_tokens = 50;
  const std::array runs = {std::vector{o}};
  const LoadSummary s = summary_of(runs);
  EXPECT_EQ(s.tpot.count, 0U);
  EXPECT_EQ(s.output_tokens, 50);
  EXPECT_THAT(latency_table(std::array{s}), HasSubstr("TPOT        |        — |"));
}

TEST(LoadSummary, repetitions_have_rates_of_their_own) {
  const std::array runs = {std::vector{timed_answer(0, 1, 0.25, 9)}, std::vector{timed_answer(0, 1, 0.5, 9)}};
  const LoadSummary s = summary_of(runs);
  ASSERT_EQ(s.output_rates.size(), 2U);
  EXPECT_DOUBLE_EQ(s.output_rates[0], 9 / 3.5);
  EXPECT_DOUBLE_EQ(s.output_rates[1], 9 / 5.5);
  EXPECT_DOUBLE_EQ(s.output_rate(), 2.0);
}

TEST(LoadSummary, each_turn_has_its_own_time_to_the_first_token) {
  std::vector<Outcome> outcomes = {timed_answer(0, 1, 0.1, 2), timed_answer(5, 3, 0.1, 2), timed_answer(0, 2, 0.1, 2),
                                   failed(5, 6, Failure::kNoCall, 200, "none")};
  outcomes[1].turn = outcomes[3].turn = 1;
  outcomes[1].prompt_tokens = 250;
  const std::array runs = {outcomes};
  const LoadSummary s = summary_of(runs);
  ASSERT_EQ(s.turns.size(), 2U);
  EXPECT_EQ(s.turns[0].ttft.count, 2U);
  EXPECT_DOUBLE_EQ(s.turns[0].ttft.mean, 1.5);
  EXPECT_EQ(s.turns[0].prompt_tokens, 200);
  EXPECT_DOUBLE_EQ(s.turns[1].ttft.p99, 3);
  EXPECT_EQ(json_of(s)["turns"][1]["prompt_tokens"], 250);
  EXPECT_THAT(turn_table(std::array{s}), HasSubstr("|         0/s |    2 |     1 |           250 |"));
  const std::array single = {std::vector{timed_answer(0, 1, 0.1, 2)}};
  EXPECT_TRUE(summary_of(single).turns.empty());
  EXPECT_EQ(turn_table(std::array{summary_of(single)}), "");
}

TEST(LoadSummary, of_nothing_is_zero) {
  const LoadSummary s = summary_of({});
  EXPECT_EQ(s.output_rate(), 0);
  EXPECT_EQ(failure_table(std::array{s}), "");
  EXPECT_THAT(throughput_table(std::array{s}), HasSubstr("—"));
}

}  // namespace
}  // namespace nibble::client
