// The loop on the fake backend, step by step: how requests end, what is computed again, what is shared.

#include "engine/loop.h"

#include "engine/testing/hash_backend.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace nibble::engine {
namespace {

using testing::ask;
using testing::expect_alone;
using testing::FakeBackend;
using testing::Heard;
using testing::kPoison;
using testing::kWindow;
using testing::ResidueMask;
using testing::Rig;
using testing::some;

Heard expect_same(Rig& rig, const Request& request) {
  const testing::Alone want = expect_alone(request, kWindow, rig.limits.max_context);
  const Heard heard = rig.run(request);
  EXPECT_EQ(heard.tokens, want.tokens);
  EXPECT_EQ(heard.finished.size(), 1u);
  EXPECT_EQ(heard.finished.at(0).reason, want.reason) << heard.finished.at(0).message;
  EXPECT_FALSE(heard.late);
  return heard;
}

class LoopTest : public ::testing::TestWithParam<bool> {
 protected:
  [[nodiscard]] static EngineLimits limits() {
    return {.max_context = 1024,
            .max_sequences = 8,
            .max_batched_tokens = 96,
            .kv_tokens = 4096,
            .async_scheduling = GetParam()};
  }
};
INSTANTIATE_TEST_SUITE_P(scheduling, LoopTest, ::testing::Values(false, true),
                         [](const auto& each) { return each.param ? "async" : "plain"; });

TEST_P(LoopTest, one_request_gets_what_the_model_says) {
  Rig rig(limits());
  for (const size_t prompt : {1, 2, 63, 64, 65, 96, 97, 127, 128, 129, 192, 500}) {
    const Heard heard = expect_same(rig, ask(some(prompt, static_cast<int32_t>(prompt)), 150));
    EXPECT_EQ(heard.finished[0].prompt_tokens, static_cast<int64_t>(prompt));
    EXPECT_EQ(heard.finished[0].generated_tokens, static_cast<int64_t>(heard.tokens.size()));
  }
}

TEST_P(LoopTest, a_receiver_may_cancel_what_it_is_told_of) {
  Rig rig(limits());
  for (const int after : {1, 4}) {
    Heard heard;
    rig.loop.add(77, ask(some(100), 50), [&](const Event& event) {
      heard(event);
      if (std::ssize(heard.tokens) == after && heard.finished.empty()) rig.loop.cancel(77);
    });
    rig.run();
    EXPECT_EQ(std::ssize(heard.tokens), after);
    ASSERT_EQ(heard.finished.size(), 1u);
    EXPECT_EQ(heard.finished[0].reason, FinishReason::kCancelled);
    EXPECT_EQ(heard.finished[0].generated_tokens, after);
  }
  Request scored = ask(some(100), 0);
  scored.prompt_logprobs = 0;
  Heard heard;
  rig.loop.add(78, scored, [&](const Event& event) {
    heard(event);
    if (heard.prompt_tokens.size() == 99 && heard.finished.empty()) rig.loop.cancel(78);
  });
  rig.run();
  ASSERT_EQ(heard.finished.size(), 1u);
  EXPECT_EQ(heard.finished[0].reason, FinishReason::kCancelled);
}

TEST_P(LoopTest, one_that_is_served_alone_tells_its_tokens_and_how_far_its_prompt_is) {
  Rig rig(limits());
  const Request request = ask(some(250), 20);
  for (const int64_t cached : {0, 249}) {
    std::vector<int32_t> tokens;
    std::vector<int64_t> dones;
    const Finished finished = rig.loop.serve(
        request, [&](const TokenEvent& event) { return tokens.push_back(event.token), true; },
        [&](int64_t done, int64_t total) { return dones.push_back(done), total == 250; });
    EXPECT_EQ(tokens, expect_alone(request, kWindow, 1024).tokens);
    EXPECT_EQ(finished.cached_tokens, cached);
    EXPECT_EQ(dones, cached == 0 ? (std::vector<int64_t>{96, 192, 250}) : std::vector<int64_t>{250});
  }
  const auto go_on = [](const TokenEvent&) { return true; };
  const Finished stopped = rig.loop.serve(ask(some(250, 1), 20), go_on, [](int64_t, int64_t) { return false; });
  EXPECT_EQ(stopped.reason, FinishReason::kCancelled);
  EXPECT_EQ(stopped.generated_tokens, 0);
  const Finished enough = rig.loop.serve(request, [](const TokenEvent&) { return false; });
  EXPECT_EQ(enough.reason, FinishReason::kCancelled);
  EXPECT_EQ(enough.generated_tokens, 1);
}

TEST_P(LoopTest, one_that_is_served_alone_throws_what_made_it_fail) {
  Rig rig(limits());
  const auto code_of = [&](Request request, const Loop::OnToken& on_token) {
    try {
      rig.loop.serve(std::move(request), on_token);
    } catch (const Error& why) {
      return std::pair(why.code(), std::string(why.what()));
    }
    return std::pair(Code::kBusy, std::string("nothing"));
  };
  const auto go_on = [](const TokenEvent&) { return true; };
  EXPECT_EQ(code_of(ask({}, 1), go_on).first, Code::kInvalidRequest);
  EXPECT_EQ(code_of(ask({3, kPoison, 4}, 9), go_on).first, Code::kCorrupt);
  rig.be.calls_to_fault = 2;
  EXPECT_EQ(code_of(ask(some(20), 9), go_on), std::pair(Code::kDevice, std::string("[fake] a fault")));
  const Error full(Code::kIo, "no room for what is printed");
  EXPECT_EQ(code_of(ask(some(20), 9), [&](const TokenEvent&) -> bool { throw full; }).first, Code::kIo);
  EXPECT_TRUE(rig.loop.idle());
  expect_same(rig, ask(some(20), 9));
}

TEST_P(LoopTest, a_long_text_is_scored_with_few_rows_of_logits_in_a_step) {
  EngineLimits few = limits();
  few.max_sequences = 1;
  few.max_logit_rows = 7;
  few.prefix_cache = false;
  Rig rig(few);
  Request request = ask(some(1024), 0);
  request.prompt_logprobs = 0;
  const Heard heard = rig.run(request);
  EXPECT_EQ(heard.logprobs.size(), 1023u);
  EXPECT_EQ(rig.be.steps, (1023 + 6) / 7);
}

TEST_P(LoopTest, prompts_are_computed_beside_decoding_and_change_nothing) {
  Rig rig(limits());
  std::vector<Request> requests;
  std::vector<Heard*> heard;
  for (int i = 0; i < 30; ++i) {
    requests.push_back(ask(some(static_cast<size_t>(1 + i * 13), i), 20 + i));
    requests.back().sampling.presence_penalty = i % 3 == 0 ? 1.0f : 0.0f;
    heard.push_back(&rig.add(requests.back()));
  }
  rig.run();
  for (size_t i = 0; i < requests.size(); ++i)
    EXPECT_EQ(heard[i]->tokens, expect_alone(requests[i], kWindow, 1024).tokens) << i;
  EXPECT_EQ(rig.be.most_rows, 8);
  EXPECT_LT(rig.loop.stats().steps, 400);
}

TEST(loop, the_next_step_is_enqueued_before_the_tokens_of_the_last_are_read) {
  Rig rig({.max_context = 256, .max_sequences = 2, .max_batched_tokens = 64});
  rig.run(ask(some(10), 50));
  EXPECT_EQ(rig.be.fed_back, 49);
  Request penalties = ask(some(10, 3), 50);
  penalties.sampling.presence_penalty = 1;  // needs the host between two tokens
  rig.run(penalties);
  EXPECT_EQ(rig.be.fed_back, 49);
}

TEST(loop, one_that_waits_for_its_tokens_costs_nobody_a_step) {
  Rig rig({.max_context = 256, .max_sequences = 2, .max_batched_tokens = 64});
  Request penalties = ask(some(10, 3), 50);
  penalties.sampling.presence_penalty = 1;
  rig.add(ask(some(10), 50));
  rig.add(penalties);
  rig.run();
  EXPECT_EQ(rig.be.steps, 50);
}

TEST_P(LoopTest, what_was_drawn_before_a_fault_is_delivered) {
  Request request = ask(some(20), 400);
  request.stop_ids = {expect_alone(request, kWindow, 1024).tokens[6]};
  const testing::Alone want = expect_alone(request, kWindow, 1024);
  for (int64_t call = 0; call < 90; ++call) {
    Rig rig(limits());
    rig.be.calls_to_fault = call;
    const Heard heard = rig.run(request);
    if (rig.be.faults == 0 || rig.be.fault_in_wait) continue;
    const auto drawn = std::min(want.tokens.size(), static_cast<size_t>(rig.be.tickets()));
    EXPECT_EQ(heard.tokens.size(), drawn) << call;
    EXPECT_EQ(heard.finished[0].reason, drawn == want.tokens.size() ? want.reason : FinishReason::kFailed) << call;
  }
}

TEST_P(LoopTest, a_stop_id_ends_it_and_is_delivered) {
  Rig rig(limits());
  Request request = ask(some(20), 400);
  request.stop_ids = {7, 11};
  const Heard heard = expect_same(rig, request);
  EXPECT_EQ(heard.finished[0].reason, FinishReason::kStop);
  EXPECT_TRUE(heard.tokens.back() == 7 || heard.tokens.back() == 11);
}

TEST_P(LoopTest, before_min_tokens_no_stop_id_is_drawn) {
  Rig rig(limits());
  Request request = ask(some(20), 400);
  for (int32_t id = 0; id < 30; ++id) request.stop_ids.push_back(id);
  request.min_tokens = 25;
  const Heard heard = expect_same(rig, request);
  EXPECT_EQ(heard.finished[0].reason, FinishReason::kStop);
  EXPECT_GT(heard.tokens.size(), 25u);
  for (size_t i = 0; i < 25; ++i) EXPECT_GE(heard.tokens[i], 30) << i;
}

TEST_P(LoopTest, a_full_context_ends_it) {
  EngineLimits small = limits();
  small.max_context = 100;
  small.kv_tokens = 100;
  Rig rig(small);
  for (const size_t prompt : {20, 98, 99}) {
    const Heard heard = expect_same(rig, ask(some(prompt), 400));
    EXPECT_EQ(heard.finished[0].reason, FinishReason::kContext);
    EXPECT_EQ(heard.tokens.size(), 100 - prompt);
  }
  EXPECT_EQ(expect_same(rig, ask(some(98), 2)).finished[0].reason, FinishReason::kLength);  // both ends at once
  EXPECT_THROW(rig.add(ask(some(100), 1)), Error);                                          // no room for the one
}

TEST_P(LoopTest, a_prompt_as_long_as_the_context_is_scored) {
  EngineLimits small = limits();
  small.max_context = 128;
  small.kv_tokens = 128;
  Rig rig(small);
  Request request = ask(some(128), 0);
  request.prompt_logprobs = 0;
  const Heard heard = rig.run(request);
  EXPECT_EQ(heard.finished.at(0).reason, FinishReason::kLength) << heard.finished[0].message;
  EXPECT_TRUE(std::equal(heard.prompt_tokens.begin(), heard.prompt_tokens.end(), request.prompt.begin() + 1,
                         request.prompt.end()));
  EXPECT_THROW(rig.add(ask(some(129), 0)), Error);
}

TEST_P(LoopTest, the_longest_context_of_the_model_is_no_exception) {
  constexpr int64_t kContext = 131072;
  Rig rig({.max_context = kContext, .max_batched_tokens = 8192, .async_scheduling = GetParam()}, kContext);
  const Heard heard = rig.run(ask(some(kContext - 3), 1000));
  EXPECT_EQ(heard.finished.at(0).reason, FinishReason::kContext);
  EXPECT_EQ(heard.tokens.size(), 3u);
  EXPECT_THROW(rig.add(ask(some(kContext), 1)), Error);
  validate(ask(some(kContext), 0), rig.limits, rig.gpt.config.dims);
}

TEST_P(LoopTest, max_tokens_of_zero_generates_nothing) {
  Rig rig(limits());
  const Heard heard = rig.run(ask(some(20), 0));
  EXPECT_EQ(heard.finished.at(0).reason, FinishReason::kLength);
  EXPECT_TRUE(heard.tokens.empty());
  EXPECT_EQ(rig.be.tokens_computed, 0);
}

TEST_P(LoopTest, cancelling_ends_it_before_another_step) {
  Rig rig(limits());
  Heard& kept = rig.add(ask(some(30), 60));
  Heard& gone = rig.add(ask(some(400, 4), 60));
  Heard& queued = rig.add(ask(some(30, 9), 60));
  for (int i = 0; i < 3; ++i) rig.loop.step();
  EXPECT_TRUE(gone.finished.empty());
  rig.loop.cancel(2);
  EXPECT_EQ(gone.finished.at(0).reason, FinishReason::kCancelled);
  rig.loop.cancel(3);
  rig.loop.cancel(2);
  rig.loop.cancel(77);
  const size_t told = gone.tokens.size();
  rig.run();
  EXPECT_EQ(gone.tokens.size(), told);
  EXPECT_EQ(gone.finished.size(), 1u);
  EXPECT_EQ(queued.finished.at(0).reason, FinishReason::kCancelled);
  EXPECT_EQ(kept.finished.at(0).reason, FinishReason::kLength);
}

TEST_P(LoopTest, the_youngest_is_preempted_when_pages_run_out_and_its_output_stays) {
  EngineLimits tight = limits();
  tight.max_context = 512;
  tight.kv_tokens = 512;
  Rig rig(tight);
  std::vector<Request> requests;
  std::vector<Heard*> heard;
  for (int i = 0; i < 4; ++i) {
    requests.push_back(ask(some(60, i), 300));
    heard.push_back(&rig.add(requests.back()));
  }
  std::vector<size_t> ends;
  for (int i = 0; i < 5000 && !rig.loop.idle(); ++i) {
    rig.loop.step();
    rig.loop.check_integrity();
    for (size_t r = 0; r < heard.size(); ++r)
      if (!heard[r]->finished.empty() && std::find(ends.begin(), ends.end(), r) == ends.end()) ends.push_back(r);
  }
  for (size_t i = 0; i < requests.size(); ++i)
    EXPECT_EQ(heard[i]->tokens, expect_alone(requests[i], kWindow, 512).tokens) << i;
  EXPECT_GT(rig.loop.stats().preemptions, 0);
  EXPECT_EQ(ends, (std::vector<size_t>{0, 1, 2, 3}));
}

TEST_P(LoopTest, who_gave_way_can_be_cancelled_while_it_waits) {
  EngineLimits tight = limits();
  tight.max_context = 512;
  tight.kv_tokens = 512;
  Rig rig(tight);
  Heard& old = rig.add(ask(some(60), 400));
  Heard& late = rig.add(ask(some(60, 2), 400));
  while (rig.loop.stats().preemptions == 0) rig.loop.step();
  const size_t told = late.tokens.size();
  EXPECT_GT(told, 0u);
  rig.loop.cancel(2);
  rig.loop.check_integrity();
  EXPECT_EQ(late.finished.at(0).reason, FinishReason::kCancelled);
  EXPECT_EQ(late.tokens.size(), told);
  rig.run();
  EXPECT_EQ(old.tokens, expect_alone(ask(some(60), 400), kWindow, 512).tokens);
}

TEST_P(LoopTest, a_fault_ends_what_was_in_the_step_and_the_next_request_is_served) {
  for (int64_t call = 0; call < 60; ++call) {
    Rig rig(limits());
    Heard& a = rig.add(ask(some(70), 10));
    Heard& b = rig.add(ask(some(200, 3), 10));
    rig.be.calls_to_fault = call;
    rig.run();
    ASSERT_EQ(rig.be.faults, 1) << call;
    int failed = 0;
    for (const Heard* heard : {&a, &b}) {
      ASSERT_EQ(heard->finished.size(), 1u);
      if (heard->finished[0].reason != FinishReason::kFailed) continue;
      ++failed;
      EXPECT_EQ(heard->finished[0].message, "[fake] a fault");
    }
    EXPECT_GT(failed, 0);
    expect_same(rig, ask(some(200, 3), 10));
  }
}

TEST_P(LoopTest, what_fails_all_leaves_nothing_for_the_next_request) {
  Rig rig(limits());
  expect_same(rig, ask(some(300), 4));
  std::vector<const Heard*> told;
  for (int i = 0; i < 3; ++i) told.push_back(&rig.add(ask(some(300, i), 40)));
  for (int i = 0; i < 4; ++i) rig.loop.step();
  rig.loop.fail_all(std::runtime_error("the host"));
  rig.run();
  for (const Heard* heard : told) {
    ASSERT_EQ(heard->finished.size(), 1u);
    EXPECT_EQ(heard->finished[0].reason, FinishReason::kFailed);
    EXPECT_EQ(heard->finished[0].message, "the host");
  }
  EXPECT_EQ(expect_same(rig, ask(some(300), 4)).finished[0].cached_tokens, 0);
}

TEST_P(LoopTest, nan_fails_its_own_request_only) {
  Rig rig(limits());
  const Request good = ask(some(90), 40);
  std::vector<int32_t> prompt = some(90, 1);
  prompt[80] = kPoison;
  Heard& other = rig.add(good);
  Heard& bad = rig.add(ask(prompt, 40));
  rig.run();
  EXPECT_EQ(other.tokens, expect_alone(good, kWindow, 1024).tokens);
  EXPECT_EQ(bad.finished.at(0).reason, FinishReason::kFailed);
  EXPECT_NE(bad.finished[0].message.find("finite"), std::string::npos);
  const Heard again = rig.run(ask(prompt, 40));
  EXPECT_EQ(again.finished.at(0).cached_tokens, 0);  // nothing of the failed one was kept
}

TEST_P(LoopTest, nan_of_a_cancelled_request_leaves_nothing_in_the_prefix_cache) {
  Rig rig(limits());
  std::vector<int32_t> prompt = some(90, 1);
  prompt[80] = kPoison;
  const Heard& gone = rig.add(ask(prompt, 40));
  rig.loop.step();  // computes the prompt; what it draws is not read yet
  rig.loop.cancel(1);
  rig.run();
  EXPECT_EQ(gone.finished.at(0).reason, FinishReason::kCancelled);
  EXPECT_EQ(rig.run(ask(prompt, 40)).finished.at(0).cached_tokens, 0);
}

// Takes another token where one of some classes is drawn, and ends soon after the 20th.
class Leading final : public TokenMask {
 public:
  bool fill(std::span<uint32_t> mask) override {
    std::fill(mask.begin(), mask.end(), ~0u);
    if (drawn_.size() >= 20) {
      std::fill(mask.begin(), mask.end(), 0u);
      mask[0] = 1u << (drawn_.size() - 20);
    }
    return true;
  }
  void accept(int32_t token) override { drawn_.push_back(token); }
  int32_t take(int32_t drawn) override {
    accept(drawn_.size() < 20 && drawn % 3 == 0 ? drawn / 2 + 1 : drawn);
    return drawn_.back();
  }
  void undo(int tokens) override { drawn_.resize(drawn_.size() - static_cast<size_t>(tokens)); }
  [[nodiscard]] bool cut() const override { return drawn_.size() > 20; }

 private:
  std::vector<int32_t> drawn_;
};

TEST_P(LoopTest, a_token_that_a_mask_puts_in_place_of_the_drawn_one_comes) {
  Rig rig(limits());
  Request request = ask(some(20), 50);
  request.stop_ids = {4};
  request.logprobs = 0;
  request.mask = std::make_shared<Leading>();
  const testing::Alone want = expect_alone(request, kWindow, 1024);
  ASSERT_EQ(want.tokens.size(), 25u);
  request.mask = std::make_shared<Leading>();
  const Heard& heard = rig.run(request);
  EXPECT_EQ(heard.tokens, want.tokens);
  EXPECT_EQ(heard.finished.at(0).reason, FinishReason::kLength);
}

TEST_P(LoopTest, a_mask_is_obeyed_and_one_that_allows_nothing_fails_its_request) {
  struct Nothing final : TokenMask {
    bool fill(std::span<uint32_t> mask) override {
      std::fill(mask.begin(), mask.end(), 0u);
      return true;
    }
    void accept(int32_t) override {}
    void undo(int) override {}
  };
  struct Broken final : TokenMask {
    bool fill(std::span<uint32_t>) override { throw std::runtime_error("no such rule"); }
    void accept(int32_t) override {}
    void undo(int) override {}
  };
  Rig rig(limits());
  Request request = ask(some(20), 50);
  request.mask = std::make_shared<ResidueMask>(3);
  const testing::Alone want = expect_alone(request, kWindow, 1024);
  request.mask = std::make_shared<ResidueMask>(3);
  Heard& masked = rig.add(request);
  request.mask = std::make_shared<Nothing>();
  Heard& nothing = rig.add(request);
  request.mask = std::make_shared<Broken>();
  Heard& broken = rig.add(request);
  rig.run();
  EXPECT_EQ(masked.tokens, want.tokens);
  EXPECT_EQ(nothing.finished.at(0).reason, FinishReason::kFailed);
  EXPECT_NE(nothing.finished[0].message.find("mask that allows a token"), std::string::npos);
  EXPECT_EQ(broken.finished.at(0).message, "no such rule");
}

TEST_P(LoopTest, prompt_logprobs_come_once_each_and_first) {
  Rig rig(limits());
  for (const int64_t max_tokens : {0, 5}) {
    Request request = ask(some(150), max_tokens);
    request.prompt_logprobs = 2;
    request.logprobs = 1;
    for (int again = 0; again < 2; ++again) {  // the second time the prefix cache holds it
      const Heard heard = rig.run(request);
      EXPECT_EQ(heard.prompt_tokens, std::vector<int32_t>(request.prompt.begin() + 1, request.prompt.end()));
      ASSERT_EQ(heard.logprobs.size(), 149 + heard.tokens.size());
      for (size_t i = 0; i < 149; ++i) {
        const testing::State state = testing::state_of(std::span(request.prompt).first(i + 1), kWindow);
        ASSERT_EQ(heard.logprobs[i], static_cast<double>(state.hash % 997)) << i;
      }
      EXPECT_EQ(heard.tokens, expect_alone(request, kWindow, 1024).tokens);
      EXPECT_EQ(heard.finished.at(0).cached_tokens, 0);
    }
  }
}

TEST_P(LoopTest, a_conversation_of_twenty_turns_computes_its_new_tokens_only) {
  EngineLimits roomy = limits();
  roomy.kv_tokens = 4096;
  Rig rig(roomy);
  std::vector<int32_t> history;
  for (int turn = 0; turn < 20; ++turn) {
    const std::vector<int32_t> said = some(static_cast<size_t>(3 + turn * 5 % 31), turn);
    const auto known = static_cast<int64_t>(history.size());
    history.insert(history.end(), said.begin(), said.end());
    const int64_t before = rig.be.tokens_computed;
    Request request = ask(history, 5 + turn * 3 % 29);
    request.stop_ids = {turn};
    const Heard heard = expect_same(rig, request);
    // The last token of the turn before was drawn and maybe never fed.
    EXPECT_GE(heard.finished[0].cached_tokens, known - 1) << turn;
    EXPECT_LE(rig.be.tokens_computed - before, static_cast<int64_t>(said.size() + heard.tokens.size() + 1)) << turn;
    history.insert(history.end(), heard.tokens.begin(), heard.tokens.end());
  }
  EXPECT_GT(history.size(), 500u);
}

// As in Harmony, which drops the analysis before the answer.
TEST_P(LoopTest, a_turn_whose_answer_comes_back_otherwise_computes_its_new_tokens_only) {
  EngineLimits roomy = limits();
  roomy.kv_tokens = 4096;
  Rig rig(roomy);
  std::vector<int32_t> prompt = some(33);
  for (int turn = 1; turn < 20; ++turn) {
    const auto known = std::ssize(prompt);
    for (int32_t t = 0; t < 2 + turn * 5 % 31; ++t) prompt.push_back((t + turn) % 5);
    const int64_t before = rig.be.tokens_computed;
    const Heard heard = expect_same(rig, ask(prompt, 1 + turn * 23 % 150));
    if (turn == 1) continue;
    EXPECT_GE(heard.finished[0].cached_tokens, known) << turn;
    EXPECT_LE(rig.be.tokens_computed - before, std::ssize(prompt) - known + std::ssize(heard.tokens)) << turn;
  }
}

TEST_P(LoopTest, requests_with_the_same_beginning_share_its_pages) {
  Rig rig(limits());
  const std::vector<int32_t> system = some(330);
  std::vector<Heard*> heard;
  std::vector<Request> requests;
  rig.run(ask(system, 1));
  for (int i = 0; i < 8; ++i) {
    std::vector<int32_t> prompt = system;
    const std::vector<int32_t> own = some(20, i);
    prompt.insert(prompt.end(), own.begin(), own.end());
    requests.push_back(ask(prompt, 30));
    heard.push_back(&rig.add(requests.back()));
  }
  for (int i = 0; i < 8; ++i) rig.loop.step();
  EXPECT_EQ(rig.loop.stats().running, 8);
  EXPECT_LE(rig.loop.stats().kv_pages_used, 5 + 8 * 2);
  rig.run();
  for (size_t i = 0; i < heard.size(); ++i) {
    EXPECT_GE(heard[i]->finished.at(0).cached_tokens, 320) << i;
    EXPECT_EQ(heard[i]->tokens, expect_alone(requests[i], kWindow, 1024).tokens);
  }
  EXPECT_GE(rig.loop.stats().prefix_hits, 8 * 320);
}

TEST_P(LoopTest, a_request_may_leave_the_prefix_cache_alone) {
  Rig rig(limits());
  Request apart = ask(some(300), 40);
  apart.prefix_cache = false;
  EXPECT_EQ(expect_same(rig, apart).finished[0].cached_tokens, 0);
  EXPECT_EQ(rig.loop.stats().prefix_queries, 0);
  EXPECT_EQ(expect_same(rig, ask(some(300), 40)).finished[0].cached_tokens, 0);  // nothing was left
  EXPECT_EQ(expect_same(rig, apart).finished[0].cached_tokens, 0);               // nor is anything taken
  EXPECT_GT(expect_same(rig, ask(some(300), 40)).finished[0].cached_tokens, 250);
}

TEST_P(LoopTest, a_request_may_leave_nothing_of_its_own_in_the_prefix_cache) {
  for (const size_t shared : {128, 150, 640}) {
    Rig rig(limits());
    const std::vector<int32_t> longer = some(shared + 200);
    const auto begin = longer.begin();
    expect_same(rig, ask({begin, begin + static_cast<std::ptrdiff_t>(shared) + 1}, 1));
    Request guest = ask(longer, 70);
    guest.leaves_prefix = false;
    const int64_t known = expect_same(rig, guest).finished[0].cached_tokens;
    EXPECT_GE(known, static_cast<int64_t>(shared));
    for (int again = 0; again < 3; ++again)
      EXPECT_EQ(expect_same(rig, guest).finished[0].cached_tokens, static_cast<int64_t>(shared / 64 * 64));
  }
}

TEST_P(LoopTest, without_the_prefix_cache_nothing_is_kept) {
  EngineLimits off = limits();
  off.prefix_cache = false;
  Rig rig(off);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(expect_same(rig, ask(some(300), 40)).finished[0].cached_tokens, 0);
  EXPECT_EQ(rig.loop.stats().kv_pages_used, 0);
}

TEST(loop, requests_that_cannot_be_served_are_refused_by_field) {
  const EngineLimits limits{.max_context = 100};
  const backend::Dims dims = testing::fake_model(kWindow).config.dims;
  const auto refused = [&](auto change) -> std::string {
    Request request = ask(some(20), 10);
    change(request);
    try {
      validate(request, limits, dims);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kInvalidRequest);
      return error.what();
    }
    return "accepted";
  };
  const auto names = [&](auto change, std::string_view field) {
    const std::string message = refused(change);
    EXPECT_NE(message.find(field), std::string::npos) << message;
  };
  EXPECT_EQ(refused([](Request&) {}), "accepted");
  names([](Request& r) { r.prompt.clear(); }, "at least one token");
  names([](Request& r) { r.prompt = some(100); }, "at most 99 tokens");
  names([](Request& r) { r.prompt = some(101), r.max_tokens = r.min_tokens = 0; }, "at most 100 tokens");
  names([](Request& r) { r.prompt[3] = testing::kVocab; }, "prompt token 3");
  names([](Request& r) { r.prompt[4] = -1; }, "prompt token 4");
  names([](Request& r) { r.max_tokens = -1; }, "max_tokens");
  names([](Request& r) { r.min_tokens = 11; }, "min_tokens");
  names([](Request& r) { r.stop_ids = {testing::kVocab}; }, "stop_ids");
  names([](Request& r) { r.logprobs = kMaxLogprobs + 1; }, "logprobs");
  names([](Request& r) { r.prompt_logprobs = -2; }, "prompt_logprobs");
  names([](Request& r) { r.sampling.top_p = 0; }, "top_p");
}

}  // namespace
}  // namespace nibble::engine
