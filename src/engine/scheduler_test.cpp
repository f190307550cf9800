#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

namespace nibble::engine {
namespace {

using Flight = Scheduler::Flight;

struct House {
  explicit House(Scheduler::Limits limits, int32_t pages = 100)
      : pool({pages, pages}), cache(pool, 128, PrefixCache::Mode::kOn), scheduler(limits, cache) {}

  Sequence& add(int64_t prompt, int64_t max_tokens = 50) {
    Request request{.max_tokens = max_tokens};
    for (int64_t i = 0; i < prompt; ++i)
      request.prompt.push_back(static_cast<int32_t>(i + 1000 * (sequences.size() + 1)));
    sequences.push_back(
        std::make_unique<Sequence>(sequences.size() + 1, std::move(request), Receiver(), Sequence::Time()));
    scheduler.add(*sequences.back());
    return *sequences.back();
  }
  // (id, tokens) of the next batch, which is enqueued and read.
  std::vector<std::pair<RequestId, int>> step() {
    const Batch& batch = scheduler.schedule(Flight::kNone);
    scheduler.enqueued(batch);
    std::vector<std::pair<RequestId, int>> rows;
    for (const Batch::Row& row : batch.rows) {
      rows.emplace_back(row.sequence->id, row.count);
      EXPECT_EQ(std::count(scheduler.running().begin(), scheduler.running().end(), row.sequence), 1);
      if (!row.draws) continue;
      row.sequence->tokens.push_back(7);
      row.sequence->pending = 0;
    }
    return rows;
  }

  PagePool pool;
  PrefixCache cache;
  Scheduler scheduler;
  std::vector<std::unique_ptr<Sequence>> sequences;
};

using Rows = std::vector<std::pair<RequestId, int>>;
constexpr Scheduler::Limits kLimits{.max_context = 1000, .max_sequences = 4, .max_tokens = 100, .max_logit_rows = 4};

TEST(scheduler, decoding_comes_first_and_prompts_fill_the_rest) {
  House house(kLimits);
  house.add(30);
  house.add(250);
  EXPECT_EQ(house.step(), (Rows{{1, 30}, {2, 70}}));
  EXPECT_EQ(house.step(), (Rows{{1, 1}, {2, 99}}));
  EXPECT_EQ(house.step(), (Rows{{1, 1}, {2, 81}}));
  EXPECT_EQ(house.step(), (Rows{{1, 1}, {2, 1}}));
  house.add(500);
  EXPECT_EQ(house.step(), (Rows{{1, 1}, {2, 1}, {3, 98}}));
}

TEST(scheduler, the_queue_is_served_in_order_up_to_the_limit) {
  House house(kLimits);
  for (int i = 0; i < 6; ++i) house.add(10);
  EXPECT_EQ(house.step(), (Rows{{1, 10}, {2, 10}, {3, 10}, {4, 10}}));
  EXPECT_EQ(house.scheduler.waiting().size(), 2u);
  house.scheduler.remove(*house.sequences[1]);
  EXPECT_EQ(house.step(), (Rows{{1, 1}, {3, 1}, {4, 1}, {5, 10}}));
}

TEST(scheduler, a_row_of_logits_is_planned_for_every_draw) {
  House house({.max_context = 1000, .max_sequences = 4, .max_tokens = 100, .max_logit_rows = 2});
  for (int i = 0; i < 3; ++i) house.add(10);
  EXPECT_EQ(house.step(), (Rows{{1, 10}, {2, 10}}));
}

TEST(scheduler, a_token_in_flight_can_be_computed_before_it_is_known) {
  House house(kLimits);
  Sequence& s = house.add(10, 3);
  house.scheduler.enqueued(house.scheduler.schedule(Flight::kNone));
  EXPECT_EQ(s.pending, 1);
  const Batch& next = house.scheduler.schedule(Flight::kStep);
  ASSERT_EQ(next.rows.size(), 1u);
  EXPECT_EQ(next.rows[0].from, 10);
  EXPECT_TRUE(next.rows[0].draws);
}

TEST(scheduler, nothing_is_planned_past_max_tokens_or_the_context) {
  House house(kLimits);
  Sequence& s = house.add(10, 1);
  house.scheduler.enqueued(house.scheduler.schedule(Flight::kNone));
  EXPECT_TRUE(house.scheduler.schedule(Flight::kStep).rows.empty());
  house.scheduler.remove(s);
  Sequence& full = house.add(999, 5);  // one more fills the context, and none follows it
  while (full.pending == 0) house.scheduler.enqueued(house.scheduler.schedule(Flight::kNone));
  EXPECT_EQ(full.computed, 999);
  EXPECT_TRUE(house.scheduler.schedule(Flight::kStep).rows.empty());
}

TEST(scheduler, what_depends_on_the_last_token_waits_for_it) {
  House house(kLimits);
  Sequence& s = house.add(10);
  s.request.sampling.presence_penalty = 1;
  house.scheduler.enqueued(house.scheduler.schedule(Flight::kNone));
  EXPECT_TRUE(house.scheduler.wants_tokens());
  EXPECT_TRUE(house.scheduler.schedule(Flight::kStep).rows.empty());
}

TEST(scheduler, the_youngest_gives_way_and_comes_back_first) {
  House house({.max_context = 640, .max_sequences = 4, .max_tokens = 100, .max_logit_rows = 4}, 10);
  house.add(60, 600);
  house.add(60, 600);
  house.add(60, 600);
  Sequence& late = house.add(60, 600);
  int64_t most = 0;
  for (int i = 0; i < 500; ++i) {
    house.step();
    most = std::max(most, late.computed);
  }
  EXPECT_GT(most, 60);
  EXPECT_EQ(late.computed, 0);
  EXPECT_GT(house.scheduler.preemptions(), 0);
  ASSERT_EQ(house.scheduler.running().size(), 1u);
  EXPECT_EQ(house.scheduler.running()[0]->id, 1u);
  ASSERT_EQ(house.scheduler.waiting().size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(house.scheduler.waiting()[i]->id, i + 2);
}

TEST(scheduler, who_gives_way_leaves_the_batch) {
  House house({.max_context = 320, .max_sequences = 4, .max_tokens = 100, .max_logit_rows = 4}, 5);
  Sequence& old = house.add(60, 200);
  Sequence& late = house.add(60, 200);
  while (late.tokens.size() < 100) house.step();
  old.tokens.resize(old.tokens.size() + 150, 3);  // is behind: planned after those that decode
  while (house.scheduler.preemptions() == 0) {
    EXPECT_LE(old.computed, 192);
    house.step();
  }
  EXPECT_EQ(late.computed, 0);
  EXPECT_TRUE(late.pages.nodes.empty());
}

TEST(scheduler, nobody_gives_way_while_a_step_is_in_flight) {
  House house({.max_context = 192, .max_sequences = 4, .max_tokens = 200, .max_logit_rows = 4}, 3);
  Sequence& old = house.add(64, 100);
  house.add(100, 100);
  EXPECT_EQ(house.step(), (Rows{{1, 64}}));  // the second would not leave a page for the first to grow
  while (old.tokens.size() < 129) house.step();
  EXPECT_EQ(house.scheduler.preemptions(), 0);
  House tight({.max_context = 192, .max_sequences = 4, .max_tokens = 200, .max_logit_rows = 4}, 4);
  Sequence& first = tight.add(60, 100);
  tight.add(100, 100);
  EXPECT_EQ(tight.step(), (Rows{{1, 60}, {2, 100}}));
  while (first.tokens.size() < 128) tight.step();
  tight.step();
  const Batch& batch = tight.scheduler.schedule(Flight::kStep);
  EXPECT_TRUE(batch.starved);
  EXPECT_EQ(tight.scheduler.preemptions(), 0);
  EXPECT_FALSE(tight.scheduler.schedule(Flight::kNone).starved);
  EXPECT_EQ(tight.scheduler.preemptions(), 1);
}

TEST(scheduler, who_stands_behind_one_that_does_not_fit_comes_when_that_one_leaves) {
  House house({.max_context = 256, .max_sequences = 4, .max_tokens = 200, .max_logit_rows = 4}, 4);
  house.add(64, 100);
  Sequence& large = house.add(129, 100);
  house.add(10);
  EXPECT_EQ(house.step(), (Rows{{1, 64}}));
  house.scheduler.remove(large);
  EXPECT_EQ(house.step(), (Rows{{1, 1}, {3, 10}}));
}

TEST(scheduler, prompt_logprobs_take_the_rows_that_are_left) {
  House house({.max_context = 1000, .max_sequences = 8, .max_tokens = 100, .max_logit_rows = 8});
  house.add(5);
  house.step();
  Sequence& s = house.add(20);
  s.request.prompt_logprobs = 0;
  EXPECT_EQ(house.step(), (Rows{{1, 1}, {2, 7}}));
  EXPECT_EQ(house.step(), (Rows{{1, 1}, {2, 7}}));
  EXPECT_EQ(s.scored, 14);
  EXPECT_EQ(house.step(), (Rows{{1, 1}, {2, 6}}));
  EXPECT_EQ(s.scored, 19);
  EXPECT_EQ(s.output().size(), 1u);
}

}  // namespace
}  // namespace nibble::engine
