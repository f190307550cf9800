// Several engines behind one door, on fake backends: who gets which request, and that nobody notices. Run under TSan
// too.

#include "engine/replicas.h"

#include "base/error.h"
#include "base/random.h"
#include "engine/pages.h"
#include "engine/testing/hash_backend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <latch>
#include <thread>

namespace nibble::engine {
namespace {

using testing::expect_alone;
using testing::FakeBackend;
using testing::Heard;
using testing::Mailbox;

using testing::kWindow;

std::vector<int32_t> text_of(uint64_t what, size_t tokens) {
  std::vector<int32_t> text;
  for (size_t i = 0; i < tokens; ++i)
    text.push_back(static_cast<int32_t>(philox(what, i)[0] % static_cast<uint32_t>(testing::kPoison)));
  return text;
}

// ---- who gets which ----

Placement::Choice placed(Placement& placement, const Placement::Ask& ask) {
  const Placement::Choice best = placement.choices(ask).front();
  placement.place(best, ask);
  return best;
}

TEST(placement, a_conversation_goes_back_to_the_engine_that_has_read_it) {
  Placement placement(4, 1000);
  std::vector<std::vector<int32_t>> talks;
  std::vector<int> engines;
  for (uint64_t talk = 0; talk < 12; ++talk) talks.push_back(text_of(talk, 300));
  for (int turn = 0; turn < 5; ++turn) {
    for (size_t talk = 0; talk < talks.size(); ++talk) {
      const Placement::Choice on = placed(placement, {.prompt = talks[talk], .max_tokens = 100});
      placement.done(on);
      if (turn == 0) {
        engines.push_back(on.engine);
      } else {
        EXPECT_EQ(on.engine, engines[talk]) << "turn " << turn << " of talk " << talk;
        EXPECT_LT(on.work, 400);
      }
      const std::vector<int32_t> more = text_of(1000 + talk * 10 + static_cast<uint64_t>(turn), 120);
      talks[talk].insert(talks[talk].end(), more.begin(), more.end());
    }
  }
  for (int e = 0; e < 4; ++e) EXPECT_EQ(std::ranges::count(engines, e), 3);
}

// Each engine does so many tokens between two requests, the first that came first.
TEST(placement, strangers_share_the_engines_evenly) {
  struct Queue {
    std::deque<Placement::Choice> waiting;
    int64_t done = 0, total = 0;  // of the first one; of all that were placed
  };
  constexpr int64_t kRequests = 1000, kMeanWork = 470 + 178;
  for (const int64_t engines : {2, 3, 8}) {
    Placement placement(static_cast<int>(engines), 1000);
    std::vector<Queue> queues(static_cast<size_t>(engines));
    for (uint64_t i = 0; i < kRequests; ++i) {
      const auto prompt = text_of(i, 20 + philox(7, i)[0] % 900);
      const auto on = placed(placement, {.prompt = prompt, .max_tokens = philox(7, i)[1] % 400});
      queues[static_cast<size_t>(on.engine)].waiting.push_back(on);
      queues[static_cast<size_t>(on.engine)].total += on.work;
      for (Queue& queue : queues) {
        queue.done += kMeanWork / engines;
        while (!queue.waiting.empty() && queue.done >= queue.waiting.front().work) {
          queue.done -= queue.waiting.front().work;
          placement.done(queue.waiting.front());
          queue.waiting.pop_front();
        }
        if (queue.waiting.empty()) queue.done = 0;
      }
    }
    const auto [least, most] = std::ranges::minmax(queues, {}, &Queue::total);
    EXPECT_LT(static_cast<double>(most.total), 1.1 * static_cast<double>(least.total)) << engines << " engines";
  }
}

TEST(placement, a_prompt_that_all_share_does_not_fill_one_engine) {
  Placement placement(2, 1000);
  const std::vector<int32_t> system = text_of(1, 640);
  std::vector<int> count(2);
  for (uint64_t i = 0; i < 40; ++i) {  // none ends
    std::vector<int32_t> prompt = system;
    const auto question = text_of(100 + i, 50);
    prompt.insert(prompt.end(), question.begin(), question.end());
    ++count[static_cast<size_t>(placed(placement, {.prompt = prompt, .max_tokens = 200}).engine)];
  }
  EXPECT_NEAR(count[0], 20, 2);
}

TEST(placement, the_latest_pages_are_known_and_no_more_than_the_cache_has) {
  Placement placement(2, 10);
  const std::vector<int32_t> first = text_of(1, 6 * 64);
  placement.done(placed(placement, {.prompt = first}));
  EXPECT_EQ(placement.choices({.prompt = first}).front().work, 0);
  EXPECT_EQ(placement.choices({.prompt = first}).front().engine, 0);
  EXPECT_EQ(placement.choices({.prompt = first, .takes = false}).front().work, 6 * 64);
  const std::vector<int32_t> second = text_of(2, 8 * 64);
  placement.place({.engine = 0, .work = 0}, {.prompt = second});  // four of the first one's six pages go
  EXPECT_EQ(placement.choices({.prompt = first}).front().work, 4 * 64) << "a prompt's end is forgotten first";
  placement.place({.engine = 1, .work = 0}, {.prompt = first, .leaves = false});
  EXPECT_EQ(placement.choices({.prompt = first}).front().engine, 0);
}

// ---- and that nobody notices ----

struct ManyEngines {
  ManyEngines(size_t count, const EngineLimits& limits) {
    std::vector<std::unique_ptr<Engine>> engines;
    for (size_t i = 0; i < count; ++i) {
      backends.push_back(std::make_unique<FakeBackend>(gpt, step_limits(limits, gpt.config.dims)));
      engines.push_back(std::make_unique<Engine>(*backends.back(), gpt, limits));
    }
    replicas = std::make_unique<Replicas>(std::move(engines), pages_for(limits.kv_tokens));
  }
  Heard ask(std::vector<int32_t> prompt, int64_t max_tokens) {
    Mailbox box;
    replicas->submit({.prompt = std::move(prompt), .max_tokens = max_tokens}, box.receiver());
    return box.wait_finished();
  }
  model::GptOss gpt = testing::fake_model(kWindow);
  std::vector<std::unique_ptr<FakeBackend>> backends;
  std::unique_ptr<Replicas> replicas;
};

const EngineLimits kEachLimits{
    .max_context = 800, .max_sequences = 6, .max_batched_tokens = 80, .max_waiting = 200, .kv_tokens = 4000};

TEST(replicas, many_threads_get_what_each_would_get_alone) {
  ManyEngines rig(3, kEachLimits);
  std::vector<std::jthread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&rig, t] {
      std::deque<Mailbox> boxes;
      for (uint64_t i = 0; i < 30; ++i) {
        Request request{.prompt = text_of(t * 100 + i, 10 + i * 7 % 150), .max_tokens = 20};
        const RequestId id = rig.replicas->submit(request, boxes.emplace_back().receiver());
        if (i % 5 == 4) rig.replicas->cancel(id);
      }
      for (uint64_t i = 0; i < 30; ++i) {
        const Heard heard = boxes[i].wait_finished();
        ASSERT_EQ(heard.finished.size(), 1u);
        if (heard.finished[0].reason == FinishReason::kCancelled) {
          EXPECT_EQ(i % 5, 4u);
        } else {
          const Request request{.prompt = text_of(t * 100 + i, 10 + i * 7 % 150), .max_tokens = 20};
          EXPECT_EQ(heard.tokens, expect_alone(request, kWindow, 800).tokens);
        }
      }
    });
  }
  threads.clear();
  for (const EngineStats& stats : rig.replicas->each()) EXPECT_GT(stats.steps, 0);
  while (rig.replicas->stats().running > 0) std::this_thread::yield();  // a snapshot is as old as a step
}

TEST(replicas, stats_are_the_sum_of_each) {
  EngineLimits limits = kEachLimits;
  limits.speculation = {.method = DraftMethod::kNgram, .least_lookup = 1, .most_lookup = 1, .adaptive = false};
  ManyEngines rig(2, limits);
  for (uint64_t talk = 0; talk < 8; ++talk) static_cast<void>(rig.ask(text_of(talk, 300), 30));
  while (rig.replicas->stats().running > 0) std::this_thread::yield();
  DraftStats sum;
  for (const EngineStats& stats : rig.replicas->each()) {
    sum.drafts += stats.drafts.drafts;
    sum.tokens += stats.drafts.tokens;
    sum.accepted_at[0] += stats.drafts.accepted_at[0];
  }
  const DraftStats all = rig.replicas->stats().drafts;
  EXPECT_GT(all.tokens, 0);
  EXPECT_EQ(all.drafts, sum.drafts);
  EXPECT_EQ(all.tokens, sum.tokens);
  EXPECT_EQ(all.accepted_at[0], sum.accepted_at[0]);
  EXPECT_EQ(all.places, rig.replicas->each()[0].drafts.places);
}

TEST(replicas, the_second_turn_of_a_conversation_is_read_from_the_cache) {
  ManyEngines rig(3, kEachLimits);
  for (uint64_t talk = 0; talk < 9; ++talk) {
    std::vector<int32_t> prompt = text_of(talk, 200);
    const Heard first = rig.ask(prompt, 30);
    EXPECT_EQ(first.finished[0].cached_tokens, 0);
    prompt.insert(prompt.end(), first.tokens.begin(), first.tokens.end());
    prompt.push_back(3);
    EXPECT_GE(rig.ask(prompt, 30).finished[0].cached_tokens, 128);
  }
  const auto each = rig.replicas->each();
  for (const EngineStats& stats : each) EXPECT_NEAR(static_cast<double>(stats.prompt_tokens), 3 * (200 + 40), 130);
}

TEST(replicas, are_busy_only_when_all_are) {
  EngineLimits limits = kEachLimits;
  limits.max_sequences = 1;
  limits.max_waiting = 1;
  ManyEngines rig(2, limits);
  std::deque<Mailbox> boxes;
  std::vector<RequestId> ids;
  int refused = 0;
  std::latch gate(1);
  const auto submit = [&](const std::vector<int32_t>& prompt) {
    try {
      const auto hold = [&gate, tell = boxes.emplace_back().receiver()](const Event& event) {
        gate.wait();  // so that nothing ends before all were asked
        tell(event);
      };
      ids.push_back(rig.replicas->submit({.prompt = prompt, .max_tokens = 700}, hold));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kBusy);
      boxes.pop_back();
      ++refused;
    }
  };
  // All of one prompt, which the first engine has cached: the others take what it has no room for.
  for (int i = 0; i < 4; ++i) submit(text_of(1, 64));
  EXPECT_EQ(refused, 0);
  submit(text_of(1, 64));
  EXPECT_EQ(refused, 1);
  gate.count_down();
  for (const RequestId id : ids) rig.replicas->cancel(id);
  for (Mailbox& box : boxes) EXPECT_EQ(box.wait_finished().finished.size(), 1u);
  EXPECT_EQ(rig.ask(text_of(9, 70), 5).tokens.size(), 5u);
}

TEST(replicas, what_no_engine_can_serve_is_refused) {
  ManyEngines rig(2, kEachLimits);
  EXPECT_THROW(rig.replicas->submit({.prompt = {}, .max_tokens = 1}, [](const Event&) {}), Error);
}

}  // namespace
}  // namespace nibble::engine
