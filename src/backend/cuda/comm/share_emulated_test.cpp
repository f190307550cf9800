// Ranks that add up by shares, the kernel run lane by lane on the host, as push_emulated_test.cpp does: stores land
// late and in any order, releases after what was stored before.

#include "backend/cuda/emulation/device.h"

#include "backend/cuda/comm/testing/combine.h"
#include "backend/cuda/comm/testing/push.h"
#include "backend/cuda/comm/share.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

namespace nibble::backend::cuda {
namespace {

using enum DeltaValues::Type;

struct ShareRanks {
  ShareShape shape;
  std::vector<std::vector<uint64_t>> boxes;
  std::vector<ShareRounds> rounds;

  ShareRanks(int ranks, int64_t chunks) : shape{.chunks = chunks, .ranks = ranks} {
    boxes.assign(static_cast<size_t>(ranks), std::vector<uint64_t>(static_cast<size_t>(shape.bytes() / 8)));
    rounds.resize(static_cast<size_t>(ranks));
    for (ShareRounds& own : rounds) std::ranges::fill(own.of_cta, uint64_t{1});
  }
  ~ShareRanks() { ptx::land_stores(); }
  ShareRanks(const ShareRanks&) = delete;
  ShareRanks& operator=(const ShareRanks&) = delete;
  // Of every CTA that a launch may have.
  void expect_round(uint64_t round) const {
    for (const ShareRounds& own : rounds)
      for (const uint64_t of_cta : own.of_cta) ASSERT_EQ(of_cta, round);
  }
  [[nodiscard]] ShareLink link(int rank) {
    ShareLink own{.rounds = &rounds[static_cast<size_t>(rank)], .shape = shape, .rank = rank};
    for (size_t r = 0; r < boxes.size(); ++r) own.boxes[r] = boxes[r].data();
    return own;
  }
  [[nodiscard]] PartPlaces places(int rank) {
    PartPlaces own{.shape = shape, .rank = rank};
    for (size_t r = 0; r < boxes.size(); ++r) own.boxes[r] = boxes[r].data();
    return own;
  }
};

struct alignas(16) Vector {
  uint32_t words[4];
};

template <DeltaValues::Type kType>
void reduce(const ShareReduce::Args& args, const PushShare& share) {
  share_reduce<kType>(args, share);
}

// Rounds one after the other, as kernels of a stream; each rank's launch is so many CTAs.
template <DeltaValues::Type kType>
void check_rounds(ShareRanks& ranks, int64_t words, int ctas, int rounds) {
  const PushMessage message{kType, words};
  const int count = ranks.shape.ranks;
  for (int round = 0; round < rounds; ++round) {
    const auto seed = static_cast<uint64_t>(round);
    std::vector<std::vector<Vector>> values(static_cast<size_t>(count));
    for (int rank = 0; rank < count; ++rank) {
      const std::vector<uint32_t> own = push_words(message, push_values(message, seed, rank));
      values[static_cast<size_t>(rank)].resize(own.size() / 4);
      std::memcpy(values[static_cast<size_t>(rank)].data(), own.data(), 4 * own.size());
    }
    ASSERT_EQ(emulation::run({.grid = count * ctas, .threads = kPushThreads, .seed = seed + 1, .predecessor = {}},
                             [&] {
                               const auto block = static_cast<int>(blockIdx.x);
                               reduce<kType>({.link = ranks.link(block / ctas),
                                              .values = values[static_cast<size_t>(block / ctas)].data(),
                                              .words = words},
                                             {block % ctas, ctas});
                             }),
              "");
    const std::vector<uint32_t> want = push_sum(message, seed, count);
    for (const auto& own : values)
      EXPECT_EQ(std::memcmp(own.data(), want.data(), 4 * want.size()), 0) << "round " << round;
  }
}

TEST(share_emulated, all_ranks_get_the_same_sum_round_after_round) {
  ShareRanks ranks(2, 4);
  check_rounds<kF32>(ranks, 4 * kChunkWords, 1, 2);
  check_rounds<kBf16>(ranks, 3 * kChunkWords - 20, 2, 2);  // a short last chunk, and a rank with more of them
  ranks.expect_round(5);
}
TEST(share_emulated, three_ranks_of_which_one_has_nothing_to_add) {
  ShareRanks ranks(3, 3);
  check_rounds<kF32>(ranks, kChunkWords + 4, 1, 2);
}
TEST(share_emulated, eight_ranks) {
  ShareRanks ranks(8, 8);
  check_rounds<kBf16>(ranks, kChunkWords + 8, 1, 1);
}

// Whoever makes the parts sends them: launches of all ranks, of which each has ended when its rank's sum begins. Twice,
// so that boxes are used again.
TEST(share_emulated, parts_are_sent_as_they_are_combined) {
  constexpr int kRanks = 2, kCtas = 2;
  for (CombineCase c : combine_cases()) {
    while (split_pitch(c.tokens, c.hidden) / 2 <= kChunkWords) c.tokens *= 2;
    SCOPED_TRACE(testing::Message() << "form " << static_cast<int>(c.order) << ", " << c.tokens << " tokens");
    ShareRanks ranks(kRanks, 4);
    for (const uint64_t seed : {90, 91}) {
      PartsOfRanks parts(c, kRanks, seed);
      for (int rank = 0; rank < kRanks; ++rank) {
        Combine::Args args = parts.args(rank);
        args.places = ranks.places(rank);
        ASSERT_EQ(emulation::run(combine_launch(args), [&] { combine(args); }), "");
      }
      ASSERT_EQ(
          emulation::run(
              {.grid = kRanks * kCtas, .threads = kPushThreads, .seed = 7, .predecessor = {}},
              [&] {
                const int rank = static_cast<int>(blockIdx.x) / kCtas;
                share_reduce<kBf16, true>(
                    {.link = ranks.link(rank), .values = parts.args(rank).tiles, .words = parts.words(), .sent = true},
                    {static_cast<int>(blockIdx.x) % kCtas, kCtas});
              }),
          "");
      ptx::land_stores();
      parts.expect_sums();
    }
    ranks.expect_round(3);
  }
}

// Two ranks' parts lie on both cards, as any_combine alone makes them; a layer's other sum is left alone.
TEST(share_emulated, parts_are_exchanged_as_they_are_combined) {
  for (const CombineCase& c : combine_cases()) {
    SCOPED_TRACE(testing::Message() << "form " << static_cast<int>(c.order) << ", " << c.tokens << " tokens");
    PartsOfRanks parts(c, 2, 92);
    const auto words = static_cast<size_t>(parts.words());
    Exchange exchange{.shape = {.words = parts.words() + 4}};
    std::vector<Vector> cards[2];
    for (int card = 0; card < 2; ++card) {
      cards[card].assign(static_cast<size_t>(exchange.shape.bytes() / 16), {{~0u, ~0u, ~0u, ~0u}});
      exchange.memory[card] = cards[card].front().words;
    }
    for (int rank = 0; rank < 2; ++rank) {
      Combine::Args args = parts.args(rank);
      exchange.rank = rank;
      for (const bool alone : {false, true}) {
        args.places = alone ? PartPlaces{} : PartPlaces::exchanged(exchange, 1, parts.words());
        ASSERT_EQ(emulation::run(combine_launch(args), [&] { combine(args); }), "");
      }
    }
    for (int card = 0; card < 2; ++card) {
      const uint32_t* const both = exchange.both(card, 1);
      const auto* const first = reinterpret_cast<const uint16_t*>(both);
      for (int rank = 0; rank < 2; ++rank)
        for (int t = 0; t < c.tokens; ++t)
          for (int d = 0; d < c.hidden; ++d) {
            const auto at = static_cast<size_t>(place_in_sums(c.tokens, t, d));
            ASSERT_EQ(first[2 * words * static_cast<size_t>(rank) + at], parts.args(rank).tiles[at])
                << "card " << card << ", rank " << rank << ", token " << t << ", dim " << d;
          }
      for (const uint32_t* other = exchange.memory[card]; other < both; ++other) ASSERT_EQ(*other, ~0u);
    }
  }
}

// That the others are waited for at all.
TEST(share_emulated, a_rank_alone_waits) {
  ShareRanks ranks(2, 2);
  std::vector<Vector> values(1);
  EXPECT_NE(emulation::run({.grid = 1, .threads = kPushThreads, .predecessor = {}},
                           [&] { reduce<kF32>({.link = ranks.link(0), .values = values.data(), .words = 4}, {0, 1}); }),
            "");
}

// Once the host says that a rank has failed, nobody waits for it, and nobody writes to where it did not say.
TEST(share_emulated, a_rank_alone_gives_up_when_the_host_says_so) {
  ShareRanks ranks(2, 2);
  std::vector<Vector> values(static_cast<size_t>(kChunkWords / 2));
  const int given_up = 1;
  ShareLink link = ranks.link(0);
  link.given_up = &given_up;
  link.looks_between = 2;
  EXPECT_EQ(
      emulation::run({.grid = 1, .threads = kPushThreads, .predecessor = {}},
                     [&] { reduce<kF32>({.link = link, .values = values.data(), .words = 2 * kChunkWords}, {0, 1}); }),
      "");
  EXPECT_EQ(ranks.rounds[0].of_cta[0], 2u) << "the rounds go on";
}

}  // namespace
}  // namespace nibble::backend::cuda
