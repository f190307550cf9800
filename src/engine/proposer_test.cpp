// Proposers against what they say they do, computed by looking everywhere.

#include "engine/proposer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace nibble::engine {
namespace {

using Tokens = std::vector<int32_t>;

Proposer::Text text_of(const Tokens& tokens, RequestId id = 1, int64_t prompt_tokens = 1, bool shares = true) {
  return {.id = id, .tokens = tokens, .prompt_tokens = prompt_tokens, .shares = shares};
}

// Pieces of what was said, and new tokens; of few kinds, so that much occurs twice.
class Writer {
 public:
  Writer(uint64_t seed, int32_t kinds) : random_(seed), kinds_(kinds) {}
  void go_on(Tokens& text) {
    if (copied_ == 0 && text.size() > 3 && below(8) == 0) {
      from_ = below(text.size());
      copied_ = 1 + below(40);
    }
    if (copied_ > 0) {
      --copied_;
      text.push_back(text[from_++]);
    } else {
      text.push_back(static_cast<int32_t>(below(static_cast<size_t>(kinds_))));
    }
  }

 private:
  size_t below(size_t n) { return random_() % n; }
  std::mt19937_64 random_;
  int32_t kinds_;
  size_t from_ = 0, copied_ = 0;
};

bool ends_alike(const Tokens& text, size_t position, size_t length) {
  return position >= length && std::equal(text.end() - static_cast<int64_t>(length), text.end(),
                                          text.begin() + static_cast<int64_t>(position - length));
}

Tokens copied_from(const Tokens& text, size_t position, int most) {
  Tokens draft;
  for (; std::ssize(draft) < most; ++position)
    draft.push_back(position < text.size() ? text[position] : draft[position - text.size()]);
  return draft;
}

Draft ngram_by_looking(const Tokens& text, int least, int longest, int most) {
  for (auto length = static_cast<size_t>(longest); length >= static_cast<size_t>(least); --length) {
    if (text.size() < length) continue;
    for (size_t p = text.size() - 1; p >= length; --p)
      if (ends_alike(text, p, length))
        return {.tokens = copied_from(text, p, most), .matched = static_cast<int>(length)};
  }
  return {};
}

TEST(ngram, copies_from_where_the_longest_ngram_was_last) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    Writer writer(seed, 30);
    NgramProposer proposer(2, 5);
    Tokens text{1};
    Draft draft;
    for (int i = 0; i < 1200; ++i) {
      writer.go_on(text);
      if (i % 3 != 0) continue;  // several tokens at a time, too
      proposer.propose(text_of(text), 6, draft);
      const Draft want = ngram_by_looking(text, 2, 5, 6);
      ASSERT_EQ(draft.tokens, want.tokens) << i;
      if (!want.tokens.empty()) ASSERT_EQ(draft.matched, want.matched) << i;
    }
  }
}

TEST(ngram, what_repeats_goes_on) {
  NgramProposer proposer(2, 5);
  Draft draft;
  proposer.propose(text_of({9, 4, 5, 6, 4, 5, 6, 4, 5}), 7, draft);
  EXPECT_EQ(draft.tokens, (Tokens{6, 4, 5, 6, 4, 5, 6}));
  proposer.propose(text_of({7, 7, 7}, 2), 3, draft);
  EXPECT_EQ(draft.tokens, (Tokens{7, 7, 7}));
  proposer.propose(text_of({1, 2, 3}, 3), 3, draft);
  EXPECT_TRUE(draft.tokens.empty());
}

// Places behind earlier occurrences of the text's end, newest first, of the longest of kLengths that has any.
std::vector<size_t> places_by_looking(const Tokens& in, const Tokens& text) {
  std::vector<size_t> places;
  for (const int length : SuffixProposer::kLengths) {
    const auto n = static_cast<size_t>(length);
    if (text.size() < n) continue;
    for (size_t p = in.size(); p-- > n && places.size() < SuffixProposer::kMostPlaces;)
      if (std::equal(text.end() - length, text.end(), in.begin() + static_cast<int64_t>(p - n))) places.push_back(p);
    if (!places.empty()) break;
  }
  return places;
}

Tokens suffix_by_looking(const Tokens& past, const Tokens& text, int most, int64_t& matched) {
  struct Place {
    const Tokens* in;
    size_t position;
  };
  std::vector<std::pair<int64_t, Place>> all;
  for (const Tokens* in : {&text, &past}) {
    for (const size_t p : places_by_looking(*in, text)) {
      int64_t n = 0;
      while (n < SuffixProposer::kMostMatched && static_cast<size_t>(n) < std::min(p, text.size()) &&
             (*in)[p - 1 - static_cast<size_t>(n)] == text[text.size() - 1 - static_cast<size_t>(n)])
        ++n;
      all.push_back({n, {in, p}});
    }
  }
  matched = 0;
  for (const auto& [n, place] : all) matched = std::max(matched, n);
  std::erase_if(all, [&](const auto& one) { return one.first < matched; });
  const double first = static_cast<double>(all.size());
  Tokens draft;
  while (std::ssize(draft) < most && !all.empty()) {
    const auto next = [&](const Place& place) {
      const size_t p = place.position + draft.size();
      if (p < place.in->size()) return (*place.in)[p];
      return place.in == &past ? SuffixProposer::kSeparator : draft[p - text.size()];
    };
    std::vector<std::pair<int32_t, int>> counts;  // in the order of first sight
    for (const auto& [n, place] : all) {
      const int32_t token = next(place);
      if (token == SuffixProposer::kSeparator) continue;
      const auto found = std::find_if(counts.begin(), counts.end(), [&](const auto& c) { return c.first == token; });
      if (found == counts.end())
        counts.emplace_back(token, 1);
      else
        ++found->second;
    }
    if (counts.empty()) break;
    const auto best = std::max_element(counts.begin(), counts.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    if (best->second < SuffixProposer::kLeastShare * first) break;
    std::erase_if(all, [&](const auto& one) { return next(one.second) != best->first; });
    draft.push_back(best->first);
  }
  return draft;
}

TEST(suffix, follows_the_longest_match_in_the_text_and_in_past_answers) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(seed);
    Writer writer(seed, 12);
    SuffixProposer proposer;
    Tokens past, text;
    Draft draft;
    int64_t drafted = 0;
    for (RequestId id = 1; id <= 4; ++id) {
      const size_t keep = text.size() / 2;
      text.erase(text.begin(), text.begin() + static_cast<int64_t>(keep));
      if (text.empty()) text.push_back(3);
      const auto prompt = std::ssize(text);
      for (int i = 0; i < 400; ++i) {
        writer.go_on(text);
        if (i % 3 != 0) continue;
        proposer.propose(text_of(text, id, prompt), 6, draft);
        int64_t matched = 0;
        ASSERT_EQ(draft.tokens, suffix_by_looking(past, text, 6, matched)) << id << ' ' << i;
        ASSERT_EQ(draft.matched, matched);
        drafted += std::ssize(draft.tokens);
      }
      proposer.ended(text_of(text, id, prompt));
      past.insert(past.end(), text.begin() + std::max<int64_t>(0, prompt - SuffixProposer::kPromptBeforeAnswer),
                  text.end());
      past.push_back(SuffixProposer::kSeparator);
    }
    EXPECT_GT(drafted, 1000);
  }
}

TEST(suffix, who_shares_nothing_neither_takes_nor_leaves) {
  const Tokens said{5, 6, 7, 8, 9, 10, 11, 12}, asked{1, 5, 6, 7};
  SuffixProposer proposer;
  Draft draft;
  proposer.ended(text_of(said, 1, 1, false));
  proposer.propose(text_of(asked, 2), 4, draft);
  EXPECT_TRUE(draft.tokens.empty());
  proposer.ended(text_of(said, 3));
  proposer.propose(text_of(asked, 4, 1, false), 4, draft);
  EXPECT_TRUE(draft.tokens.empty());
  proposer.propose(text_of(asked, 5), 4, draft);
  EXPECT_EQ(draft.tokens, (Tokens{8, 9, 10, 11}));
}

TEST(token_index, keeps_the_last_tokens_only_and_finds_all_that_is_kept) {
  constexpr std::array kLengths = {3, 1};
  constexpr int64_t kMost = 512;
  std::mt19937_64 random(3);
  TokenIndex index(kLengths, kMost);
  Tokens all;
  std::vector<int64_t> found;
  for (int i = 0; i < 3000; ++i) {
    all.push_back(static_cast<int32_t>(random() % 6));
    index.add(all.back());
    if (i % 7 != 0) continue;
    ASSERT_EQ(index.end(), std::ssize(all));
    ASSERT_EQ(index.begin(), std::max<int64_t>(0, std::ssize(all) - kMost));
    for (size_t which = 0; which < kLengths.size(); ++which) {
      const auto n = static_cast<size_t>(kLengths[which]);
      index.places(all, which, 20, found);
      std::vector<int64_t> want;
      for (auto p = all.size() - 1; p >= static_cast<size_t>(index.begin()) + n && want.size() < 20; --p)
        if (ends_alike(all, p, n)) want.push_back(static_cast<int64_t>(p));
      ASSERT_EQ(found, want) << i << ' ' << n;
    }
  }
  EXPECT_LE(index.bytes(), kMost * 4 * 5);
}

TEST(suffix, what_it_keeps_of_past_answers_is_bounded) {
  SuffixProposer proposer(1 << 10);
  Draft draft;
  const auto answer = [](int32_t k) {
    Tokens tokens{k};
    for (int32_t i = 0; i < 100; ++i) tokens.push_back(1000 + 100 * k + i);
    return tokens;
  };
  for (int32_t k = 0; k < 50; ++k) proposer.ended(text_of(answer(k), static_cast<RequestId>(k)));
  proposer.propose(text_of({1000 + 4900, 1000 + 4901, 1000 + 4902}, 100), 4, draft);
  EXPECT_EQ(draft.tokens, (Tokens{5903, 5904, 5905, 5906}));
  proposer.propose(text_of({1000, 1001, 1002}, 101), 4, draft);
  EXPECT_TRUE(draft.tokens.empty()) << "the oldest are gone";
}

}  // namespace
}  // namespace nibble::engine
