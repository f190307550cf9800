#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace nibble::engine {
namespace {

using Flight = Scheduler::Flight;

struct House {
  explicit House(Scheduler::Limits limits, int32_t pages = 100)
      : pool({pages, pages}),
        cache(pool, backend::Dims{.sliding_window = 128}, PrefixCache::Mode::kOn),
        scheduler(limits, cache) {}

  Sequence& add(int64_t prompt, int64_t max_tokens = 50, int64_t priority = 0) {
    Request request{.max_tokens = max_tokens};
    request.priority = priority;
    for (int64_t i = 0; i < prompt; ++i)
      request.prompt.push_back(static_cast<int32_t>(i + 1000 * (sequences.size() + 1)));
    sequences.push_back(
        std::make_unique<Sequence>(sequences.size() + 1, std::move(request), Receiver(), Sequence::Time()));
    scheduler.add(*sequences.back());
    return *sequences.back();
  }
  // (id, tokens) of the next batch, which is enqueued and read.
  std::vector<std::pair<RequestId, int>> step(int64_t prompt_tokens = Scheduler::kNoLimit) {
    const Batch& batch = scheduler.schedule(Flight::kNone, prompt_tokens);
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

  // Who has all its tokens leaves.
  void end_done() {
    for (std::unique_ptr<Sequence>& s : sequences) {
      if (!s || std::ssize(s->output()) < s->request.max_tokens) continue;
      scheduler.remove(*s);
      cache.release(s->settled(), s->pages);
      s.reset();
    }
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

TEST(scheduler, prompts_get_no_more_than_is_allowed) {
  House house(kLimits);
  house.add(10);
  house.step();
  house.add(900);
  EXPECT_EQ(house.step(40), (Rows{{1, 1}, {2, 40}}));
  EXPECT_EQ(house.step(1), (Rows{{1, 1}, {2, 1}}));
  house.add(20);
  EXPECT_EQ(house.step(40), (Rows{{1, 1}, {3, 20}, {2, 20}}));
  house.add(500);
  EXPECT_EQ(house.step(40), (Rows{{1, 1}, {3, 1}, {4, 30}, {2, 10}}));
}

TEST(scheduler, a_token_deep_in_its_text_counts_for_several) {
  Scheduler::Limits limits = kLimits;
  limits.keys_per_token = 50;
  House house(limits);
  house.add(900);
  EXPECT_EQ(house.step(40), (Rows{{1, 40}}));
  EXPECT_EQ(house.step(45), (Rows{{1, 25}}));  // each counts 1 + 40 / 50
  EXPECT_EQ(house.scheduler.schedule(Flight::kNone, 1).rows[0].count, 1) << "never nothing";
  for (int i = 0; i < 4; ++i) house.step();
  house.add(20);
  EXPECT_EQ(house.step(40), (Rows{{2, 20}, {1, 2}}));  // each counts 1 + 465 / 50, and what is begun is counted
}

TEST(scheduler, a_batch_says_what_it_holds) {
  Scheduler::Limits limits = kLimits;
  limits.keys_per_token = 50;
  House house(limits);
  house.add(10);
  house.step();
  house.add(300);
  EXPECT_EQ(house.scheduler.unread(), 300);
  house.step();
  EXPECT_EQ(house.scheduler.unread(), 201 + 201 * 99 / 50);
  const Batch& batch = house.scheduler.schedule(Flight::kNone, 60);
  EXPECT_EQ(batch.decoding, 1);
  EXPECT_EQ(batch.rows[1].count, 21);  // after 99, so that each counts 2.98
  EXPECT_EQ(batch.prompt_tokens, 62);
}

TEST(scheduler, the_queue_is_served_in_order_up_to_the_limit) {
  House house(kLimits);
  for (int i = 0; i < 6; ++i) house.add(10);
  EXPECT_EQ(house.step(), (Rows{{1, 10}, {2, 10}, {3, 10}, {4, 10}}));
  EXPECT_EQ(house.scheduler.waiting().size(), 2u);
  house.scheduler.remove(*house.sequences[1]);
  EXPECT_EQ(house.step(), (Rows{{1, 1}, {3, 1}, {4, 1}, {5, 10}}));
}

TEST(scheduler, a_row_of_logits_is_scheduled_for_every_draw) {
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

TEST(scheduler, nothing_is_scheduled_past_max_tokens_or_the_context) {
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
  old.tokens.resize(old.tokens.size() + 150, 3);  // is behind: scheduled after those that decode
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

TEST(scheduler, a_short_prompt_is_read_beside_long_ones) {
  House house(kLimits);
  house.add(900);
  house.add(800);
  EXPECT_EQ(house.step(), (Rows{{2, 75}, {1, 25}}));
  house.add(10);
  EXPECT_EQ(house.step(), (Rows{{3, 10}, {2, 65}, {1, 25}}));
}

TEST(scheduler, the_first_gets_a_quarter_and_what_is_over) {
  House house(kLimits);
  Sequence& first = house.add(700);
  house.step();
  for (int step = 1; first.computed < 620; ++step) {  // somebody shorter all the time
    Sequence& other = house.add(90);
    EXPECT_EQ(house.step(), (Rows{{other.id, 75}, {1, 25}}));
    house.scheduler.remove(other);
    house.cache.release({}, other.pages);
    ASSERT_LE(step, 21);
  }
}

TEST(scheduler, what_the_cache_has_of_a_prompt_makes_it_short) {
  House house({.max_context = 1000, .max_sequences = 4, .max_tokens = 100, .max_logit_rows = 4});
  Sequence& before = house.add(500, 1);
  while (before.pending == 0 && before.output().empty()) house.step();
  house.scheduler.remove(before);
  house.cache.release(before.settled(), before.pages);
  house.add(400);
  house.step();
  Sequence& next = house.add(20);
  house.scheduler.remove(next);
  next.tokens.insert(next.tokens.begin(), before.tokens.begin(), before.tokens.begin() + 500);
  next.prompt_count = 520;
  house.scheduler.add(next);
  EXPECT_EQ(house.step(), (Rows{{next.id, 20}, {2, 80}}));
}

TEST(scheduler, so_many_prompts_are_read_in_parts) {
  House house(
      {.max_context = 1000, .max_sequences = 6, .max_tokens = 100, .max_logit_rows = 6, .max_partial_prompts = 2});
  house.add(900);
  house.step();
  house.add(700);
  EXPECT_EQ(house.step(), (Rows{{2, 75}, {1, 25}}));
  house.add(500);
  EXPECT_EQ(house.step(), (Rows{{2, 75}, {1, 25}}));
  house.add(60);  // read at once
  EXPECT_EQ(house.step(), (Rows{{4, 60}, {2, 15}, {1, 25}}));
}

TEST(scheduler, long_prompts_have_bounds_of_their_own) {
  House house({.max_context = 1000,
               .max_sequences = 6,
               .max_tokens = 100,
               .max_logit_rows = 6,
               .max_long_partial_prompts = 1,
               .long_prompt_tokens = 40});
  house.add(900);
  EXPECT_EQ(house.step(), (Rows{{1, 40}}));
  house.add(500);
  EXPECT_EQ(house.step(), (Rows{{1, 40}}));
  house.add(35);
  EXPECT_EQ(house.step(), (Rows{{3, 35}, {1, 40}}));
}

TEST(scheduler, a_lower_number_goes_first) {
  House house({.max_context = 1000, .max_sequences = 2, .max_tokens = 100, .max_logit_rows = 2});
  house.add(10, 50, 5);
  house.add(60, 50, 5);
  house.add(90, 50, -1);
  EXPECT_EQ(house.step(), (Rows{{3, 90}, {1, 10}}));
  EXPECT_EQ(house.scheduler.waiting().front()->id, 2u);
}

TEST(scheduler, the_highest_number_gives_way) {
  House house({.max_context = 640, .max_sequences = 4, .max_tokens = 200, .max_logit_rows = 4}, 10);
  house.add(60, 600, 2);
  house.add(60, 600, 1);
  for (int i = 0; i < 500; ++i) house.step();
  EXPECT_GT(house.scheduler.preemptions(), 0);
  ASSERT_EQ(house.scheduler.running().size(), 1u);
  EXPECT_EQ(house.scheduler.running()[0]->id, 2u);
}

TEST(scheduler, who_does_not_fit_may_be_passed_by_as_many_as_run_at_a_time) {
  House house({.max_context = 256, .max_sequences = 3, .max_tokens = 300, .max_logit_rows = 3}, 5);
  Sequence& runs = house.add(64, 150);
  house.step();
  Sequence& large = house.add(200, 50);
  for (int passes = 0; passes < 3; ++passes) {
    Sequence& small = house.add(10, 5);
    EXPECT_EQ(house.step(), (Rows{{1, 1}, {small.id, 10}}));
    house.scheduler.remove(small);
    house.cache.release({}, small.pages);
  }
  house.add(10, 5);
  EXPECT_EQ(house.step(), (Rows{{1, 1}}));
  house.scheduler.remove(runs);
  house.cache.release({}, runs.pages);
  EXPECT_EQ(house.step(), (Rows{{6, 10}, {large.id, 200}}));
}

TEST(scheduler, who_stands_behind_one_that_does_not_fit_comes_when_that_one_leaves) {
  House house({.max_context = 256, .max_sequences = 1, .max_tokens = 200, .max_logit_rows = 4}, 4);
  Sequence& runs = house.add(64, 100);
  Sequence& large = house.add(129, 100);
  house.add(10);
  EXPECT_EQ(house.step(), (Rows{{1, 64}}));
  house.scheduler.remove(large);
  house.scheduler.remove(runs);
  house.cache.release({}, runs.pages);
  EXPECT_EQ(house.step(), (Rows{{3, 10}}));
}

// Arrivals without end, more than can be done, shorter ones among them all the time: each is done within as many steps
// for itself and for each that is there when it comes as the longest alone would take with a token a step.
void nobody_starves(uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  House house({.max_context = 192,
               .max_sequences = static_cast<int>(1 + below(6)),
               .max_tokens = static_cast<int>(8 + below(80)),
               .max_logit_rows = 8,
               .max_partial_prompts = static_cast<int>(1 + below(4)),
               .max_long_partial_prompts = static_cast<int>(1 + below(4)),
               .long_prompt_tokens = below(2) * 20},
              static_cast<int32_t>(3 + below(10)));
  const int64_t most_generated = below(2) == 0 ? 2 : 40;
  std::vector<int64_t> due;
  int64_t now = 0;
  for (; now < 3000 || !house.scheduler.running().empty() || !house.scheduler.waiting().empty(); ++now) {
    while (now < 3000 && house.scheduler.waiting().size() < 12) {
      house.add(below(20) == 0 ? 60 + below(70) : 1 + below(30), 1 + below(most_generated));
      due.push_back(now + 170 * std::ssize(house.scheduler.waiting()) + 170 * std::ssize(house.scheduler.running()));
    }
    house.step(below(3) == 0 ? 1 + below(9) : Scheduler::kNoLimit);
    house.end_done();
    for (size_t i = 0; i < due.size(); ++i)
      ASSERT_TRUE(!house.sequences[i] || now <= due[i]) << "sequence " << i + 1 << " waits for too long";
  }
}

TEST(scheduler, nobody_starves_whatever_comes) {
  for (uint64_t seed = 1; seed <= 40 && !HasFailure(); ++seed) nobody_starves(seed);
}

// Whatever long prompts are there: where there are pages and a seat, a short one is read in the step after it came.
TEST(scheduler, a_short_prompt_never_waits_for_long_ones) {
  std::mt19937_64 random(3);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  House house({.max_context = 4000, .max_sequences = 64, .max_tokens = 200, .max_logit_rows = 64}, 4000);
  for (int step = 0; step < 3000; ++step) {
    if (below(60) == 0) house.add(300 + below(3000), 1 + below(20));
    Sequence* const small = below(2) == 0 ? &house.add(1 + below(30), 1 + below(20)) : nullptr;
    house.step();
    ASSERT_TRUE(small == nullptr || small->computed == small->prompt_count) << step;
    house.end_done();
  }
  EXPECT_EQ(house.scheduler.preemptions(), 0);
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
