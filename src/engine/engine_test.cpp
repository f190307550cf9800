// The engine with its thread, on the fake backend: many callers at once. Run under TSan too.

#include "engine/engine.h"

#include "base/error.h"
#include "engine/pages.h"
#include "engine/testing/hash_backend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <latch>
#include <thread>

namespace nibble::engine {
namespace {

using testing::expect_alone;
using testing::FakeBackend;
using testing::Heard;
using testing::Mailbox;

using testing::kWindow;

Request numbered(int32_t what, int64_t max_tokens) {
  Request request{.max_tokens = max_tokens, .sampling = {.seed = static_cast<uint64_t>(what)}};
  for (int32_t i = 0; i < 5 + what % 150; ++i) request.prompt.push_back((i * 7 + what / 3) % 37);
  return request;
}

struct OneEngine {
  explicit OneEngine(EngineLimits of)
      : limits(of), be(gpt, step_limits(of, gpt.config.dims)), engine(std::make_unique<Engine>(be, gpt, of)) {}
  EngineLimits limits;
  model::GptOss gpt = testing::fake_model(kWindow);
  FakeBackend be;
  std::unique_ptr<Engine> engine;
};

TEST(engine, many_threads_get_what_each_would_get_alone) {
  OneEngine rig({.max_context = 400, .max_sequences = 6, .max_batched_tokens = 80, .kv_tokens = 1200});
  constexpr int kThreads = 4, kEach = 40;
  std::vector<std::jthread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&rig, t] {
      std::vector<std::unique_ptr<Mailbox>> boxes;
      for (int i = 0; i < kEach; ++i) {
        boxes.push_back(std::make_unique<Mailbox>());
        const RequestId id = rig.engine->submit(numbered(t * kEach + i, 30), boxes.back()->receiver());
        if (i % 5 == 4) rig.engine->cancel(id);
        if (i % 7 == 6) static_cast<void>(rig.engine->stats());
      }
      for (int i = 0; i < kEach; ++i) {
        const Heard heard = boxes[static_cast<size_t>(i)]->wait_finished();
        const testing::Alone want = expect_alone(numbered(t * kEach + i, 30), kWindow, 400);
        EXPECT_EQ(heard.finished.size(), 1u);
        if (heard.finished[0].reason == FinishReason::kCancelled)
          EXPECT_EQ(i % 5, 4);
        else
          EXPECT_EQ(heard.tokens, want.tokens);
      }
    });
  }
  threads.clear();
  const EngineStats stats = rig.engine->stats();
  EXPECT_EQ(stats.kv_pages, pages_for(1200));
}

TEST(engine, a_burst_fills_slots_and_queue_and_one_more_is_refused) {
  constexpr int kSlots = 4, kWaiting = 3;
  OneEngine rig({.max_context = 400, .max_sequences = kSlots, .max_batched_tokens = 80, .max_waiting = kWaiting});
  std::latch burst_is_over(1);
  Mailbox first, boxes[kSlots + kWaiting - 1], refused;
  rig.engine->submit(numbered(100, 200), [&, heard = first.receiver()](const Event& event) {
    burst_is_over.wait();  // the engine's thread, so that nobody else gets a slot
    heard(event);
  });
  for (Mailbox& box : boxes) rig.engine->submit(numbered(100, 30), box.receiver());
  try {
    rig.engine->submit(numbered(5, 3), refused.receiver());
    ADD_FAILURE() << "want a refusal";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kBusy);
    EXPECT_STREQ(error.what(), "want at most 7 requests running and waiting, found 8 with this one: try again later");
  }
  burst_is_over.count_down();
  for (Mailbox& box : boxes) EXPECT_EQ(box.wait_finished().tokens.size(), 30u);
  EXPECT_EQ(first.wait_finished().tokens.size(), 200u);
  EXPECT_TRUE(refused.now().finished.empty());
  Mailbox again[kSlots + kWaiting];  // there is room for all at once
  for (Mailbox& box : again) rig.engine->submit(numbered(5, 3), box.receiver());
  for (Mailbox& box : again) EXPECT_EQ(box.wait_finished().tokens.size(), 3u);
}

TEST(engine, a_request_that_cannot_be_served_is_refused_before_any_event) {
  OneEngine rig({.max_context = 100});
  Mailbox box;
  EXPECT_THROW(rig.engine->submit({.prompt = {}, .max_tokens = 5}, box.receiver()), Error);
  EXPECT_THROW(rig.engine->submit(numbered(149, 5), box.receiver()), Error);
  Mailbox served;
  rig.engine->submit(numbered(1, 5), served.receiver());
  served.wait_finished();
  EXPECT_TRUE(box.now().finished.empty());
}

TEST(engine, limits_out_of_range_are_refused_by_their_flags) {
  const backend::Dims dims = testing::fake_model(kWindow).config.dims;
  const auto names = [&](const EngineLimits& limits, std::string_view field) {
    try {
      static_cast<void>(step_limits(limits, dims));
      ADD_FAILURE() << field;
    } catch (const Error& error) {
      EXPECT_NE(std::string_view(error.what()).find(field), std::string_view::npos) << error.what();
    }
  };
  names({.max_context = 0}, "--max-model-len: want 1 to 4096, the model's context, found 0");
  names({.max_context = 5000}, "--max-model-len: want 1 to 4096");
  names({.max_context = 10, .max_sequences = 0}, "--max-num-seqs: want 1 to 1024, found 0");
  names({.max_context = 10, .max_batched_tokens = 0}, "--max-num-batched-tokens: want 1 to 1048576, found 0");
  names({.max_context = 10, .max_waiting = 0}, "--max-waiting: want at least 1, found 0");
  names({.max_context = 100, .kv_tokens = 99},
        "--kv-tokens: want at least 100, so that one sequence of --max-model-len fits, found 99");
  names({.max_context = 100, .kv_tokens = int64_t{1} << 31}, "--kv-tokens: want at most 1073741824, found 2147483648");
}

TEST(engine, a_receiver_may_cancel_and_submit) {
  OneEngine rig({.max_context = 400, .max_sequences = 2, .max_batched_tokens = 64});
  Mailbox first, second;
  std::atomic<RequestId> id = 0;
  const Receiver inner = first.receiver(), follow = second.receiver();
  id = rig.engine->submit(numbered(3, 390), [&](const Event& event) {
    inner(event);
    if (std::holds_alternative<Finished>(event)) rig.engine->submit(numbered(4, 4), follow);
    while (id == 0) std::this_thread::yield();  // submit has not returned yet
    rig.engine->cancel(id);
  });
  EXPECT_EQ(first.wait_finished().finished[0].reason, FinishReason::kCancelled);
  EXPECT_EQ(second.wait_finished().tokens.size(), 4u);
}

TEST(engine, cancelling_stops_the_work) {
  OneEngine rig({.max_context = 4000, .max_sequences = 2, .max_batched_tokens = 64});
  Mailbox box;
  std::latch cancelled(1);
  const Receiver inner = box.receiver();
  int events = 0;
  const RequestId id = rig.engine->submit(numbered(3, 3900), [&](const Event& event) {
    inner(event);
    if (++events == 10) cancelled.wait();  // holds the engine, which is faster than this test's thread
  });
  box.wait_tokens(10);
  rig.engine->cancel(id);
  cancelled.count_down();
  const Heard heard = box.wait_finished();
  EXPECT_EQ(heard.finished[0].reason, FinishReason::kCancelled);
  EXPECT_LT(heard.tokens.size(), 3900u);
}

TEST(engine, its_end_cancels_what_runs_and_what_waits) {
  std::vector<std::unique_ptr<Mailbox>> boxes;
  {
    OneEngine rig({.max_context = 4000, .max_sequences = 2, .max_batched_tokens = 64});
    for (int i = 0; i < 40; ++i) {
      boxes.push_back(std::make_unique<Mailbox>());
      rig.engine->submit(numbered(i, 3500), boxes.back()->receiver());
    }
    boxes[0]->wait_tokens(3);
    rig.engine.reset();
  }
  for (const auto& box : boxes) {
    const Heard heard = box->now();
    ASSERT_EQ(heard.finished.size(), 1u);
    EXPECT_FALSE(heard.late);
  }
  EXPECT_EQ(boxes.back()->now().finished[0].reason, FinishReason::kCancelled);
}

TEST(engine, times_and_counts_are_told) {
  OneEngine rig({.max_context = 400, .max_sequences = 2, .max_batched_tokens = 64});
  Mailbox box;
  rig.engine->submit(numbered(100, 20), box.receiver());
  const Finished end = box.wait_finished().finished[0];
  EXPECT_EQ(end.prompt_tokens, 105);
  EXPECT_EQ(end.generated_tokens, 20);
  EXPECT_GE(end.queue_seconds, 0);
  EXPECT_GT(end.prefill_seconds, 0);
  EXPECT_GT(end.decode_seconds, 0);
  rig.engine.reset();
}

TEST(engine, a_step_that_does_not_end_shows_in_the_stats) {
  OneEngine rig({.max_context = 400, .max_sequences = 2, .max_batched_tokens = 64});
  EXPECT_EQ(rig.engine->stats().turn_seconds, 0);
  std::latch free(1);
  rig.be.times = [&free](std::span<const backend::Row>) {
    free.wait();
    return 0.0;
  };
  Mailbox box;
  rig.engine->submit(numbered(1, 3), box.receiver());
  double before = 0;
  for (int grown = 0; grown < 3; before = std::max(before, rig.engine->stats().turn_seconds))
    grown += rig.engine->stats().turn_seconds > before ? 1 : 0;
  free.count_down();
  box.wait_finished();
  while (rig.engine->stats().turn_seconds > 0) std::this_thread::yield();  // it waits for requests again
}

TEST(engine, who_is_told_of_an_end_finds_it_in_the_stats) {
  OneEngine rig({.max_context = 400, .max_sequences = 2, .max_batched_tokens = 64});
  Mailbox box;
  EngineStats then;
  rig.engine->submit(numbered(100, 20), [&, heard = box.receiver()](const Event& event) {
    if (std::holds_alternative<Finished>(event)) then = rig.engine->stats();
    heard(event);
  });
  box.wait_finished();
  EXPECT_EQ(then.generated_tokens, 20);
  EXPECT_EQ(then.running, 0);
}

}  // namespace
}  // namespace nibble::engine
