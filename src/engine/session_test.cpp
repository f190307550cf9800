// One sequence on the fake backend: what it reuses, how requests end.

#include "engine/session.h"

#include "engine/testing.h"

#include <gtest/gtest.h>

namespace nibble::engine {
namespace {

constexpr int64_t kWindow = 16;
constexpr SessionLimits kLimits{.max_context = 100, .chunk_tokens = 7};

struct Rig {
  explicit Rig(const SessionLimits& of = kLimits)
      : limits(of), gpt(testing::fake_model(kWindow)), be(gpt, step_limits(of)), session(be, gpt, of) {}

  // Returns the tokens; they are those of the request alone.
  std::vector<int32_t> run(const Request& request) {
    std::vector<int32_t> tokens;
    finished = session.generate(request, [&](int32_t token) { return tokens.push_back(token), true; });
    const testing::Alone alone = testing::expect_alone(request, kWindow, limits.max_context);
    EXPECT_EQ(tokens, alone.tokens);
    EXPECT_EQ(finished.reason, alone.reason);
    EXPECT_EQ(finished.generated_tokens, std::ssize(tokens));
    return tokens;
  }

  SessionLimits limits;
  model::GptOss gpt;
  testing::FakeBackend be;
  Session session;
  Finished finished;
};

Request ask(int tokens, int64_t max_tokens) {
  Request request{.max_tokens = max_tokens};
  for (int i = 0; i < tokens; ++i) request.prompt.push_back(i * 7 % 37);
  return request;
}

TEST(session, computes_what_is_new_and_always_the_last_token_of_a_prompt) {
  Rig rig;
  const std::vector<int32_t> drawn = rig.run(ask(30, 5));
  EXPECT_EQ(rig.finished.cached_tokens, 0);
  rig.run(ask(30, 5));
  EXPECT_EQ(rig.finished.cached_tokens, 29);
  Request longer = ask(30, 5);
  longer.prompt.insert(longer.prompt.end(), drawn.begin(), drawn.end());
  rig.run(longer);
  EXPECT_EQ(rig.finished.cached_tokens, 34);  // the last one drawn was not computed
  longer.prompt[10] = 38;
  rig.run(longer);
  EXPECT_EQ(rig.finished.cached_tokens, 10);
  rig.run(ask(5, 0));
  EXPECT_EQ(rig.finished.cached_tokens, 4);
}

TEST(session, a_full_context_a_stop_and_a_limit_end_it) {
  for (const int prompt : {1, 63, 64, 98, 99}) {
    Rig rig;
    EXPECT_EQ(std::ssize(rig.run(ask(prompt, 1000))), 100 - prompt);
    EXPECT_EQ(rig.finished.reason, FinishReason::kContext);
  }
  Rig rig;
  Request stopped = ask(20, 50);
  stopped.stop_ids = {rig.run(ask(20, 50))[3]};
  EXPECT_LE(rig.run(stopped).size(), 4u);
  EXPECT_EQ(rig.finished.reason, FinishReason::kStop);
  EXPECT_THROW(rig.run(ask(100, 1)), Error);  // no room for the one
  EXPECT_THROW(rig.run(ask(101, 0)), Error);
}

TEST(session, a_text_as_long_as_the_context_is_scored) {
  Rig rig({.max_context = 100, .chunk_tokens = 7, .max_logit_rows = 7});
  int64_t scored = 0;
  rig.session.score(ask(100, 0).prompt, [&](int64_t first, const backend::SlotData&) { scored = first; });
  EXPECT_EQ(scored, 98);  // the last chunk
  EXPECT_THROW(rig.session.score(ask(101, 0).prompt, [](int64_t, const backend::SlotData&) {}), Error);
}

TEST(session, who_listens_may_cancel_and_go_on_from_there) {
  Rig rig;
  Finished finished = rig.session.generate(ask(30, 5), [](int32_t) { return false; });
  EXPECT_EQ(std::pair(finished.reason, finished.generated_tokens), std::pair(FinishReason::kCancelled, int64_t{1}));
  finished = rig.session.generate(ask(20, 5), [](int32_t) { return true; }, [](int64_t, int64_t) { return false; });
  EXPECT_EQ(std::pair(finished.reason, finished.generated_tokens), std::pair(FinishReason::kCancelled, int64_t{0}));
  rig.run(ask(40, 5));
}

}  // namespace
}  // namespace nibble::engine
