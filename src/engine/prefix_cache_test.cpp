#include "engine/prefix_cache.h"
#include "engine/testing/integrity.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace nibble::engine {
namespace {

constexpr int64_t kSlidingWindow = 128;
constexpr backend::Dims kDims{.sliding_window = kSlidingWindow};

std::vector<int32_t> text(size_t count, int32_t seed = 0) {
  std::vector<int32_t> tokens(count);
  for (size_t i = 0; i < count; ++i) tokens[i] = static_cast<int32_t>(i * 31 + static_cast<size_t>(seed) * 1000);
  return tokens;
}

std::vector<int32_t> joined(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct Kept {
  explicit Kept(int32_t sliding = 100, int32_t full = 100) : Kept(kDims, {sliding, full}) {}
  Kept(const backend::Dims& dims, const std::array<int32_t, backend::kLayerKinds>& pages)
      : pool(pages), cache(pool, dims, PrefixCache::Mode::kOn) {}

  int64_t resume(const std::vector<int32_t>& tokens, SequencePages& pages) {
    copies.clear();
    return cache.resume(tokens, pages, copies);
  }
  // As a sequence that computes all tokens in steps of `chunk`, and is left running.
  SequencePages computed(const std::vector<int32_t>& tokens, size_t chunk = 64) {
    SequencePages pages;
    auto at = static_cast<size_t>(resume(tokens, pages));
    while (at < tokens.size()) {
      at = std::min(tokens.size(), at + chunk);
      for (const LayerKind kind : cache.kinds()) {
        while (static_cast<int64_t>(pages.ids[kind].size()) < pages_for(static_cast<int64_t>(at))) {
          pages.ids[kind].push_back(cache.take(kind));
          EXPECT_GE(pages.ids[kind].back(), 0);
        }
      }
      cache.insert(std::span(tokens).first(at), pages);
      cache.slide(static_cast<int64_t>(at), pages);
    }
    return pages;
  }
  void finished(const std::vector<int32_t>& tokens, size_t chunk = 64) {
    SequencePages pages = computed(tokens, chunk);
    cache.release(tokens, pages);
    check();
  }
  int64_t resumed(const std::vector<int32_t>& tokens) {
    SequencePages pages;
    const int64_t length = resume(tokens, pages);
    cache.release(std::span(tokens).first(static_cast<size_t>(length)), pages);
    return length;
  }
  // REQUIRES that no sequence holds a page.
  void check() {
    PerKind<std::vector<int>> holders;
    for (const LayerKind kind : cache.kinds()) holders[kind].assign(static_cast<size_t>(pool.total(kind)), 0);
    cache.check_integrity(holders);
    for (const LayerKind kind : cache.kinds()) {
      const auto held = std::count(holders[kind].begin(), holders[kind].end(), 1);
      EXPECT_EQ(held + pool.free_pages(kind), pool.total(kind));
      EXPECT_LE(*std::max_element(holders[kind].begin(), holders[kind].end()), 1);
    }
  }

  PagePool pool;
  PrefixCache cache;
  PrefixCache::Copies copies;  // of the last resume
};

TEST(prefix_cache, a_finished_sequence_is_found_to_its_last_token) {
  for (const size_t count : {1, 63, 64, 65, 127, 128, 129, 191, 192, 200, 1000}) {
    Kept kept;
    kept.finished(text(count));
    EXPECT_EQ(kept.resumed(joined(text(count), text(10, 7))), static_cast<int64_t>(count));
    EXPECT_EQ(kept.resumed(text(count)), static_cast<int64_t>(count));
    EXPECT_EQ(kept.resumed(joined(text(10, 7), text(count))), 0);
  }
}

TEST(prefix_cache, every_length_resumes_while_there_is_room) {
  Kept kept;
  kept.finished(text(700));
  for (size_t length = 1; length <= 700; length += 9) {
    const std::vector<int32_t> other = joined(text(length), text(200, 3));
    EXPECT_EQ(kept.resumed(other), static_cast<int64_t>(length));
  }
}

TEST(prefix_cache, resuming_gives_all_full_pages_and_the_sliding_ones_of_the_window) {
  Kept kept;
  kept.finished(text(420));
  SequencePages pages;
  ASSERT_EQ(kept.resume(joined(text(420), text(5, 1)), pages), 420);
  ASSERT_EQ(pages.ids[LayerKind::kFull].size(), 7u);
  ASSERT_EQ(pages.ids[LayerKind::kSliding].size(), 7u);
  for (size_t p = 0; p < 7; ++p) {
    EXPECT_GE(pages.ids[LayerKind::kFull][p], 0);
    EXPECT_EQ(pages.ids[LayerKind::kSliding][p] >= 0, p >= 4) << p;  // positions 293 and later: page 4 holds 256 to 319
  }
  EXPECT_EQ(pages.first_seen[LayerKind::kSliding], 4);
}

constexpr backend::Dims kWide{.sliding_window = kSlidingWindow, .wide_window = 320};

TEST(prefix_cache, each_window_keeps_its_own_pages) {
  Kept kept(kWide, {100, 100, 12});
  const std::vector<int32_t> all = text(640), longer = joined(text(640), text(5, 1));
  kept.finished(all);
  SequencePages pages;
  ASSERT_EQ(kept.resume(longer, pages), 640);
  for (size_t p = 0; p < 10; ++p) {
    EXPECT_GE(pages.ids[LayerKind::kFull][p], 0);
    EXPECT_EQ(pages.ids[LayerKind::kSliding][p] >= 0, p >= 8) << p;  // from position 513 on
    EXPECT_EQ(pages.ids[LayerKind::kWide][p] >= 0, p >= 5) << p;     // from 321 on
  }
  EXPECT_EQ(kept.cache.available(LayerKind::kWide), 7);
  kept.cache.release(all, pages);
  kept.check();
  std::vector<int32_t> taken;  // two are free and five cold
  for (int i = 0; i < 7; ++i) taken.push_back(kept.cache.take(LayerKind::kWide));
  EXPECT_EQ(kept.resumed(longer), 640);
  EXPECT_EQ(kept.resumed(joined(text(400), text(99, 9))), 0);  // its sliding pages are there
  taken.push_back(kept.cache.take(LayerKind::kWide));
  EXPECT_EQ(kept.resumed(longer), 0);
  for (const int32_t page : taken) kept.pool.give_back(LayerKind::kWide, page);
  kept.check();
}

TEST(prefix_cache, a_tail_goes_to_one_sequence_whole) {
  Kept kept;
  kept.finished(text(100));
  const std::vector<int32_t> longer = joined(text(100), text(40, 1));
  SequencePages first, second;
  EXPECT_EQ(kept.resume(longer, first), 100);
  EXPECT_TRUE(kept.copies.empty());
  EXPECT_EQ(kept.resume(longer, second), 64);
  EXPECT_EQ(first.ids[LayerKind::kFull][0], second.ids[LayerKind::kFull][0]);
  kept.cache.release(std::span(longer).first(100), first);
  kept.cache.release({}, second);
  EXPECT_EQ(kept.resumed(longer), 100);
  kept.check();
}

TEST(prefix_cache, who_shares_the_beginning_of_a_page_gets_a_copy) {
  Kept kept;
  kept.finished(text(200));  // three pages and a tail
  for (const size_t shared : {1, 63, 65, 100, 127, 150, 193, 199}) {
    SequencePages pages;
    EXPECT_EQ(kept.resume(joined(text(shared), text(90, 3)), pages), static_cast<int64_t>(shared));
    ASSERT_EQ(kept.copies.size(), 2u) << shared;
    for (const backend::PageCopy& copy : kept.copies) {
      EXPECT_NE(copy.from, copy.to);
      EXPECT_EQ(pages.ids[copy.kind].back(), copy.to);
    }
    EXPECT_EQ(pages.nodes.size(), shared / 64);
    EXPECT_EQ(pages.ids[LayerKind::kFull].size(), shared / 64 + 1);
    kept.cache.release({}, pages);
    kept.check();
  }
  EXPECT_EQ(kept.resumed(text(200)), 200);  // what was copied from stays as it was
}

TEST(prefix_cache, the_page_that_shares_most_is_copied) {
  Kept kept;
  kept.finished(joined(text(70), text(100, 1)));
  kept.finished(joined(text(90), text(100, 2)));
  kept.finished(joined(text(80), text(30, 3)));  // a tail
  SequencePages pages;
  EXPECT_EQ(kept.resume(joined(text(85), text(100, 4)), pages), 85);
  EXPECT_EQ(kept.resumed(joined(text(82), text(100, 5))), 82);
  kept.cache.release({}, pages);
  kept.check();
}

TEST(prefix_cache, without_a_page_for_a_copy_it_goes_on_from_the_whole_ones) {
  for (const auto& [sliding, full] : {std::pair{100, 2}, {2, 100}}) {
    Kept kept(sliding, full);
    kept.finished(text(128));
    const std::vector<int32_t> other = joined(text(100), text(20, 3));
    SequencePages pages;
    EXPECT_EQ(kept.resume(other, pages), 64);
    EXPECT_TRUE(kept.copies.empty());
    EXPECT_EQ(pages.first_seen[LayerKind::kSliding], 0);
    EXPECT_GE(pages.ids[LayerKind::kSliding][0], 0);
    kept.cache.release({}, pages);
    kept.check();
  }
}

TEST(prefix_cache, a_copy_that_cannot_be_costs_no_window) {
  Kept kept(4, 4);
  kept.finished(text(256));
  SequencePages pages;
  EXPECT_EQ(kept.resume(joined(text(255), text(20, 3)), pages), 192);  // sees a page more than the copy would
  EXPECT_GE(pages.ids[LayerKind::kSliding][1], 0);
  kept.cache.release({}, pages);
  kept.check();
}

TEST(prefix_cache, two_that_computed_the_same_end_up_with_the_same_pages) {
  Kept kept;
  SequencePages a = kept.computed(text(30)), b = kept.computed(text(30));  // neither has a page to share yet
  const auto go_on = [&](SequencePages& pages) {
    for (const LayerKind kind : kept.cache.kinds())
      while (pages.ids[kind].size() < 3) pages.ids[kind].push_back(kept.cache.take(kind));
    kept.cache.insert(text(150), pages);
  };
  go_on(a);
  const int64_t before = kept.pool.free_pages(LayerKind::kFull);
  go_on(b);
  EXPECT_EQ(kept.pool.free_pages(LayerKind::kFull), before);  // two taken, two given back, the tail kept
  EXPECT_EQ(a.nodes, b.nodes);
  EXPECT_EQ(a.ids[LayerKind::kFull][1], b.ids[LayerKind::kFull][1]);
  EXPECT_NE(a.ids[LayerKind::kFull][2], b.ids[LayerKind::kFull][2]);
  kept.cache.release(text(150), a);
  kept.cache.release(text(150), b);
  kept.check();
}

TEST(prefix_cache, the_longest_unused_goes_first_and_what_is_in_use_stays) {
  Kept kept(100, 9);
  kept.finished(text(192, 1));
  kept.finished(text(192, 2));
  SequencePages used;
  ASSERT_EQ(kept.resume(text(192, 1), used), 192);
  EXPECT_EQ(kept.cache.available(LayerKind::kFull), 6);
  std::vector<int32_t> taken;
  for (int i = 0; i < 4; ++i) taken.push_back(kept.cache.take(LayerKind::kFull));
  EXPECT_EQ(kept.resumed(text(192, 2)), 128);  // its last page went, its first two are left
  for (int i = 0; i < 2; ++i) taken.push_back(kept.cache.take(LayerKind::kFull));
  EXPECT_EQ(kept.cache.take(LayerKind::kFull), -1);
  EXPECT_EQ(kept.resumed(text(192, 2)), 0);
  EXPECT_EQ(kept.resumed(text(192, 1)), 192);
  for (const int32_t page : taken) kept.pool.give_back(LayerKind::kFull, page);
  kept.cache.release(text(192, 1), used);
  kept.check();
}

TEST(prefix_cache, sliding_pages_inside_a_text_go_before_those_at_its_end) {
  Kept kept(12, 100);
  kept.finished(text(640, 1));  // ten pages; eight of them inside
  for (int i = 0; i < 10; ++i) kept.pool.give_back(LayerKind::kSliding, kept.cache.take(LayerKind::kSliding));
  std::vector<int32_t> taken;
  for (int i = 0; i < 10; ++i) taken.push_back(kept.cache.take(LayerKind::kSliding));
  EXPECT_EQ(kept.resumed(text(640, 1)), 640);
  EXPECT_EQ(kept.resumed(joined(text(400, 1), text(99, 9))), 0);
  taken.push_back(kept.cache.take(LayerKind::kSliding));
  EXPECT_EQ(kept.resumed(text(640, 1)), 0);
  for (const int32_t page : taken) kept.pool.give_back(LayerKind::kSliding, page);
  kept.check();
}

TEST(prefix_cache, of_a_long_last_step_too_the_window_goes_last) {
  Kept kept(12);
  const std::vector<int32_t> tokens = text(640);
  SequencePages pages;
  for (const LayerKind kind : kept.cache.kinds())
    for (int page = 0; page < 10; ++page) pages.ids[kind].push_back(kept.cache.take(kind));
  kept.cache.release(tokens, pages);
  std::vector<int32_t> others(10);  // two were free
  for (int32_t& page : others) page = kept.cache.take(LayerKind::kSliding);
  EXPECT_EQ(kept.resumed(joined(tokens, text(5, 9))), 640);
  for (const int32_t page : others) kept.pool.give_back(LayerKind::kSliding, page);
  kept.check();
}

TEST(prefix_cache, sliding_pages_before_the_end_of_a_prompt_stay_as_long_as_those_of_a_turn) {
  Kept kept(12, 100);
  SequencePages pages;
  pages.resume_lengths[1] = 200;
  const std::vector<int32_t> all = text(640, 1);
  for (size_t at = 64; at <= 640; at += 64) {
    for (const LayerKind kind : kept.cache.kinds()) pages.ids[kind].push_back(kept.cache.take(kind));
    kept.cache.insert(std::span(all).first(at), pages);
    kept.cache.slide(static_cast<int64_t>(at), pages);
  }
  kept.cache.release(all, pages);
  std::vector<int32_t> taken;
  for (int i = 0; i < 6; ++i) taken.push_back(kept.cache.take(LayerKind::kSliding));
  EXPECT_EQ(kept.resumed(joined(text(200, 1), text(99, 9))), 200);
  EXPECT_EQ(kept.resumed(joined(text(400, 1), text(99, 9))), 256);
  EXPECT_EQ(kept.resumed(all), 640);
  for (const int32_t page : taken) kept.pool.give_back(LayerKind::kSliding, page);
}

TEST(prefix_cache, what_lost_its_window_is_found_again_once_it_is_recomputed) {
  Kept kept(12, 100);
  kept.finished(text(640, 1));
  std::vector<int32_t> taken;
  for (int i = 0; i < 12; ++i) taken.push_back(kept.cache.take(LayerKind::kSliding));
  EXPECT_EQ(kept.resumed(text(640, 1)), 0);
  for (const int32_t page : taken) kept.pool.give_back(LayerKind::kSliding, page);
  const int64_t before = kept.pool.free_pages(LayerKind::kFull);
  kept.finished(text(640, 1));
  EXPECT_EQ(kept.pool.free_pages(LayerKind::kFull), before);  // the pages it computed again were its twins
  EXPECT_EQ(kept.resumed(text(640, 1)), 640);
}

TEST(prefix_cache, a_text_behind_its_window_gives_its_sliding_pages_up) {
  for (const auto mode : {PrefixCache::Mode::kOff, PrefixCache::Mode::kOn}) {
    PagePool pool({5, 100});
    PrefixCache cache(pool, kDims, mode);
    SequencePages pages;
    const std::vector<int32_t> all = text(3000);
    for (size_t at = 0; at < all.size(); ++at) {
      for (const LayerKind kind : cache.kinds()) {
        if (static_cast<int64_t>(pages.ids[kind].size()) < pages_for(static_cast<int64_t>(at) + 1)) {
          pages.ids[kind].push_back(cache.take(kind));
          ASSERT_GE(pages.ids[kind].back(), 0) << at;
        }
      }
      for (size_t p = 0; p < pages.ids[LayerKind::kSliding].size(); ++p) {
        const bool seen = static_cast<int64_t>(p * 64 + 63) > static_cast<int64_t>(at) - kSlidingWindow;
        ASSERT_EQ(pages.ids[LayerKind::kSliding][p] >= 0, seen) << at << " page " << p;
      }
      cache.insert(std::span(all).first(at + 1), pages);
      cache.slide(static_cast<int64_t>(at) + 1, pages);
    }
    cache.release(all, pages);
  }
}

TEST(prefix_cache, clear_forgets_all_but_what_is_in_use) {
  Kept kept;
  kept.finished(text(500, 1));
  SequencePages used = kept.computed(text(300, 2));
  kept.cache.clear();
  EXPECT_EQ(kept.resumed(text(500, 1)), 0);
  EXPECT_EQ(kept.pool.free_pages(LayerKind::kFull), 100 - 5);
  EXPECT_EQ(kept.pool.free_pages(LayerKind::kSliding), 100 - 3);
  kept.cache.release(text(300, 2), used);
  EXPECT_EQ(kept.resumed(text(300, 2)), 300);
}

TEST(prefix_cache, the_tails_of_one_page_are_bounded) {
  Kept kept;
  for (int32_t i = 0; i < 40; ++i) kept.finished(text(20, i));
  EXPECT_EQ(kept.pool.free_pages(LayerKind::kFull), 100 - 16);
  EXPECT_EQ(kept.resumed(text(20, 0)), 0);
  EXPECT_EQ(kept.resumed(text(20, 39)), 20);
  for (int32_t i = 0; i < 40; ++i) kept.finished(text(20, 5));  // the same again takes no second page
  EXPECT_EQ(kept.pool.free_pages(LayerKind::kFull), 100 - 16);
}

// Who applies the events knows what the tree keeps: of texts of whole pages every page that is not free.
void expect_events_of_what_is_kept(Kept kept) {
  kept.cache.note_events();
  PerKind<std::map<uint64_t, KvEvent>> told;
  uint64_t state = 5;
  const auto below = [&](uint64_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % n;
  };
  const auto hear = [&] {
    for (const KvEvent& event : kept.cache.take_events()) {
      std::map<uint64_t, KvEvent>& blocks = told[event.kind];
      EXPECT_NE(event.block, 0U);
      if (event.what == KvEvent::What::kRemoved) {
        EXPECT_EQ(blocks.erase(event.block), 1U);
        continue;
      }
      EXPECT_TRUE(blocks.emplace(event.block, event).second) << "stored twice";
      EXPECT_TRUE(event.parent == 0 || told[LayerKind::kFull].contains(event.parent));
    }
  };
  for (int round = 0; round < 400; ++round) {
    const auto base = static_cast<int32_t>(below(3));
    const size_t shared = 64 * below(6), own = 64 * (1 + below(5));
    const auto tokens = joined(text(shared, base), text(own, static_cast<int32_t>(10 + below(4))));
    kept.finished(tokens, 64 * (1 + below(3)));
    hear();
    for (const LayerKind kind : kept.cache.kinds())
      ASSERT_EQ(std::ssize(told[kind]), kept.pool.total(kind) - kept.pool.free_pages(kind));
    uint64_t parent = 0;  // the text just left is there to its end
    for (size_t at = 0; at < tokens.size(); at += 64) {
      const auto& blocks = told[LayerKind::kFull];
      const auto found = std::find_if(blocks.begin(), blocks.end(), [&](const auto& entry) {
        return entry.second.parent == parent && std::equal(entry.second.tokens.begin(), entry.second.tokens.end(),
                                                           tokens.begin() + static_cast<long>(at));
      });
      ASSERT_NE(found, blocks.end());
      parent = found->first;
    }
  }
  kept.cache.clear();
  hear();
  for (const LayerKind kind : kept.cache.kinds()) EXPECT_TRUE(told[kind].empty());
}

TEST(prefix_cache, events_tell_what_is_kept) {
  expect_events_of_what_is_kept(Kept(12, 24));
  expect_events_of_what_is_kept(Kept(kWide, {12, 24, 16}));
}

}  // namespace
}  // namespace nibble::engine
