// Ranks that push to each other, their kernels run lane by lane on the host: a rank is one or more CTAs of the emulated
// grid, whose lanes wait for the others' words. Words land late and in any order.

#include "backend/cuda/emulation/device.h"

#include "backend/cuda/comm/testing/combine.h"
#include "backend/cuda/comm/push.cuh"
#include "backend/cuda/comm/testing/push.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

namespace nibble::backend::cuda {
namespace {

using enum DeltaValues::Type;

// The ranks' mailboxes and rounds in the host's memory.
struct HostRanks {
  MailboxShape shape;
  std::vector<std::vector<uint64_t>> mailboxes;
  std::vector<PushRounds> rounds;

  HostRanks(int ranks, int64_t words) : shape{.words = words, .ranks = ranks} {
    mailboxes.assign(static_cast<size_t>(ranks), std::vector<uint64_t>(static_cast<size_t>(shape.bytes() / 8) + 1));
    rounds.resize(static_cast<size_t>(ranks));
    begin(kFirstRound);
  }
  ~HostRanks() { ptx::land_stores(); }
  HostRanks(const HostRanks&) = delete;
  HostRanks& operator=(const HostRanks&) = delete;
  [[nodiscard]] PushLink link(int rank) {
    PushLink own{.rounds = &rounds[static_cast<size_t>(rank)], .shape = shape, .rank = rank};
    for (size_t r = 0; r < mailboxes.size(); ++r) own.mailboxes[r] = mailboxes[r].data();
    return own;
  }
  void begin(uint32_t round) {
    for (PushRounds& own : rounds) std::ranges::fill(own.of_cta, round);
  }
  // Rounds of every CTA that a launch may have.
  void expect_round(uint32_t round) const {
    for (const PushRounds& own : rounds)
      for (const uint32_t of_cta : own.of_cta) ASSERT_EQ(of_cta, round);
  }
};

template <DeltaValues::Type kType>
void reduce(const PushReduce::Args& args, const PushShare& share) {
  push_reduce<kType>(args, OwnValues{static_cast<const uint4*>(args.values), reinterpret_cast<const uint4*>(args.rest)},
                     share);
}

template <DeltaValues::Type kType>
void check_rounds(HostRanks& ranks, int64_t words, int rounds, uint64_t seed) {
  const PushMessage message{kType, words};
  const int count = ranks.shape.ranks;
  std::vector<std::vector<uint32_t>> values(static_cast<size_t>(count));
  for (int round = 0; round < rounds; ++round) {  // each rank's, one after the other
    for (int rank = 0; rank < count; ++rank) {
      const auto own = push_words(message, push_values(message, seed + static_cast<uint64_t>(round), rank));
      auto& to = values[static_cast<size_t>(rank)];
      to.insert(to.end(), own.begin(), own.end());
    }
  }
  const std::string wrong =
      emulation::run({.grid = count, .threads = kPushThreads, .seed = seed, .predecessor = {}}, [&] {
        const auto rank = static_cast<int>(blockIdx.x);
        for (int round = 0; round < rounds; ++round) {
          reduce<kType>({.link = ranks.link(rank),
                         .values = values[static_cast<size_t>(rank)].data() + round * words,
                         .words = words},
                        {0, 1});
          __syncthreads();  // a kernel's end
        }
      });
  ASSERT_EQ(wrong, "");
  for (int round = 0; round < rounds; ++round) {
    const auto want = push_sum(message, seed + static_cast<uint64_t>(round), count);
    for (const auto& own : values)
      EXPECT_TRUE(std::equal(want.begin(), want.end(), own.begin() + round * words)) << "round " << round;
  }
}

TEST(push_emulated, all_ranks_get_the_same_sum_round_after_round) {
  for (const int count : {2, 3, 8}) {
    const int rounds = count == 2 ? 3 : 1;
    HostRanks ranks(count, 2 * kSweptWords);
    check_rounds<kF32>(ranks, 28, rounds, 10);
    check_rounds<kBf16>(ranks, 4, rounds, 20);
    ranks.expect_round(static_cast<uint32_t>(1 + 2 * rounds));
  }
}

// Each rank's two parts are one message, and what is added to the residual has the same bits on all ranks.
TEST(push_emulated, two_parts_are_added_to_what_all_have) {
  constexpr int kWords = 44;
  struct alignas(16) Values {
    float v[kWords];
  };
  for (const int count : {2, 3}) {
    HostRanks ranks(count, kSweptWords);
    std::vector<Values> at(static_cast<size_t>(count)), rest = at, into = at;
    const auto value = [](uint64_t what, int i) {
      return uniform_float(philox(what, static_cast<uint64_t>(i))[0]) - 0.5f;
    };
    Values want{};
    for (int i = 0; i < kWords; ++i) {
      for (size_t r = 0; r < at.size(); ++r) {
        at[r].v[i] = value(2 * r, i);
        rest[r].v[i] = value(2 * r + 1, i);
        into[r].v[i] = value(100, i);
        want.v[i] += at[r].v[i] + rest[r].v[i];
      }
      want.v[i] = value(100, i) + want.v[i];
    }
    const std::vector<Values> before = at;
    ASSERT_EQ(emulation::run({.grid = count, .threads = kPushThreads, .predecessor = {}},
                             [&] {
                               const auto rank = static_cast<size_t>(blockIdx.x);
                               reduce<kF32>({.link = ranks.link(static_cast<int>(rank)),
                                             .values = at[rank].v,
                                             .rest = rest[rank].v,
                                             .into = into[rank].v,
                                             .words = kWords},
                                            {0, 1});
                             }),
              "");
    for (size_t r = 0; r < at.size(); ++r)
      for (int i = 0; i < kWords; ++i) {
        ASSERT_EQ(into[r].v[i], want.v[i]) << "rank " << r << ", value " << i;
        ASSERT_EQ(at[r].v[i], before[r].v[i]) << "left alone";
      }
  }
}

TEST(push_emulated, long_and_short_messages_follow_each_other) {
  HostRanks ranks(2, 8 * kSweptWords);
  check_rounds<kF32>(ranks, 8 * kSweptWords, 1, 30);  // two turns of every thread
  check_rounds<kBf16>(ranks, 4, 3, 40);
  check_rounds<kBf16>(ranks, 8 * kSweptWords, 1, 50);
}

TEST(push_emulated, rounds_begin_anew_behind_the_last) {
  HostRanks ranks(2, kSweptWords);
  ranks.begin(kLastRound - 1);
  check_rounds<kF32>(ranks, 16, 4, 60);
  ranks.expect_round(4);
}

// What lay after a message is gone once the sweep has passed: as long as two phases of one sweep each take.
TEST(push_emulated, old_words_do_not_stay) {
  HostRanks ranks(2, kSweptWords);
  check_rounds<kF32>(ranks, kSweptWords, 2, 70);
  check_rounds<kF32>(ranks, 4, 2, 80);
  ptx::land_stores();
  for (const auto& mailbox : ranks.mailboxes) {
    int64_t left = 0;
    for (const uint64_t word : mailbox) left += word != 0 ? 1 : 0;
    EXPECT_EQ(left, 2 * 4) << "the last messages alone";
  }
}

// Launches of another size follow each other: who has a CTA that the last one had not finds its round.
TEST(push_emulated, several_ctas_of_a_rank_share_a_round) {
  const PushMessage message{kF32, 5000};
  HostRanks ranks(2, 20 * kSweptWords);
  for (uint64_t round = 0; round < 4; ++round) {
    const int ctas = std::array{3, 1, 4, 2}[round];
    std::vector<uint32_t> values[2];
    for (int rank = 0; rank < 2; ++rank) values[rank] = push_words(message, push_values(message, round, rank));
    ASSERT_EQ(emulation::run({.grid = 2 * ctas, .threads = kPushThreads, .seed = round + 1, .predecessor = {}},
                             [&] {
                               const auto block = static_cast<int>(blockIdx.x);
                               reduce<kF32>({.link = ranks.link(block / ctas),
                                             .values = values[block / ctas].data(),
                                             .words = message.words},
                                            {block % ctas, ctas});
                             }),
              "");
    for (const auto& own : values) EXPECT_EQ(own, push_sum(message, round, 2));
    ranks.expect_round(static_cast<uint32_t>(round) + 2);
  }
}

TEST(push_emulated, what_makes_the_values_is_combined_on_the_way) {
  constexpr int kRanks = 2, kCtas = 2;
  HostRanks ranks(kRanks, 16 * kSweptWords);
  for (const CombineCase& c : combine_cases()) {
    SCOPED_TRACE(testing::Message() << "form " << static_cast<int>(c.order) << ", " << c.tokens << " tokens");
    PartsOfRanks parts(c, kRanks, 90);
    ASSERT_EQ(emulation::run({.grid = kRanks * kCtas, .threads = kPushThreads, .seed = 7, .predecessor = {}},
                             [&] {
                               const int rank = static_cast<int>(blockIdx.x) / kCtas;
                               const PushShare share{static_cast<int>(blockIdx.x) % kCtas, kCtas};
                               const Combine::Args own = parts.args(rank);
                               const PushReduce::Args args{
                                   .link = ranks.link(rank), .values = own.tiles, .words = parts.words()};
                               using enum SplitSums::Order;
                               if (c.order == kExpertsF32)
                                 return push_reduce<kBf16>(args, OwnCombined<kExpertsF32>{own, 0}, share);
                               if (c.order == kExpertsBf16)
                                 return push_reduce<kBf16>(args, OwnCombined<kExpertsBf16>{own, 0}, share);
                               push_reduce<kBf16>(args, OwnCombined<kTiles>{own, 0}, share);
                             }),
              "");
    parts.expect_sums();
  }
}

TEST(push_emulated, a_row_is_gathered_from_uneven_columns) {
  constexpr int kRows = 3, kWidth = 44;
  constexpr int64_t kFirst[] = {0, 20, 40}, kCount[] = {20, 20, 4};
  HostRanks ranks(3, kSweptWords);
  std::vector<float> own[3], all[3];
  for (int rank = 0; rank < 3; ++rank) {
    own[rank].resize(static_cast<size_t>(kRows * kCount[rank]));
    for (int64_t i = 0; i < kRows * kCount[rank]; ++i)
      own[rank][static_cast<size_t>(i)] =
          static_cast<float>(i / kCount[rank] * kWidth + kFirst[rank] + i % kCount[rank]);
    all[rank].assign(kRows * kWidth, -1);
  }
  ASSERT_EQ(emulation::run({.grid = 3, .threads = kPushThreads, .predecessor = {}},
                           [&] {
                             const auto rank = static_cast<int>(blockIdx.x);
                             PushGather::Args args{.link = ranks.link(rank),
                                                   .own = own[rank].data(),
                                                   .all = all[rank].data(),
                                                   .rows = kRows,
                                                   .width = kWidth};
                             std::copy_n(kFirst, 3, args.first);
                             std::copy_n(kCount, 3, args.count);
                             push_gather(args, {0, 1});
                             __syncthreads();
                             push_barrier(args.link);
                           }),
            "");
  for (const auto& row : all)
    for (size_t i = 0; i < row.size(); ++i) ASSERT_EQ(row[i], static_cast<float>(i));
  ranks.expect_round(3);
}

// Each rank has some candidates of every row: values with ties, rows that are not finite or have no token.
TEST(push_emulated, all_ranks_take_the_first_of_all_candidates) {
  constexpr int kRows = 21, kPitch = 40, kCtas = 2;
  for (const int count : {2, 3, 8}) {
    HostRanks ranks(count, kSweptWords);
    std::vector<std::vector<float>> value(static_cast<size_t>(count), std::vector<float>(kRows * kPitch, 1e9f));
    std::vector<std::vector<int32_t>> token(static_cast<size_t>(count), std::vector<int32_t>(kRows * kPitch, -9));
    std::vector<std::vector<int32_t>> got(static_cast<size_t>(count), std::vector<int32_t>(kRows));
    std::vector<int32_t> want;
    const int parts = count == 3 ? 1 : 37;
    for (int row = 0; row < kRows; ++row) {
      RankedValue best = {-INFINITY, kNoToken};
      for (int rank = 0; rank < count; ++rank)
        for (int part = 0; part < parts; ++part) {
          const auto random = philox(static_cast<uint64_t>(row), static_cast<uint64_t>(rank * kPitch + part));
          RankedValue own = {static_cast<float>(random[0] % 16), rank * 100 + static_cast<int32_t>(random[1] % 100)};
          if (row == 7 || (row == 8 && rank > 0)) own = {-INFINITY, kNoToken};
          if (row == 9 && rank == count - 1 && part == parts - 1) own = {INFINITY, kNotFinite};
          const auto at = static_cast<size_t>(row * kPitch + part);
          value[static_cast<size_t>(rank)][at] = own.value;
          token[static_cast<size_t>(rank)][at] = own.idx;
          if (before(own, best)) best = own;
        }
      want.push_back(best.idx == kNoToken ? kNothingAllowed : best.idx);
    }
    ASSERT_EQ(want[7], kNothingAllowed);
    ASSERT_EQ(want[9], kNotFinite);
    ASSERT_EQ(emulation::run({.grid = kCtas * count, .threads = kPushThreads, .seed = 5, .predecessor = {}},
                             [&] {
                               const auto block = static_cast<int>(blockIdx.x);
                               const auto rank = static_cast<size_t>(block / kCtas);
                               push_pick({.link = ranks.link(block / kCtas),
                                          .value = value[rank].data(),
                                          .token = token[rank].data(),
                                          .tokens = got[rank].data(),
                                          .rows = kRows,
                                          .parts = parts,
                                          .pitch = kPitch},
                                         {block % kCtas, kCtas});
                             }),
              "");
    for (const auto& tokens : got) EXPECT_EQ(tokens, want) << count << " ranks";
    ranks.expect_round(2);
  }
}

// That the others are waited for at all.
TEST(push_emulated, a_rank_alone_waits) {
  HostRanks ranks(2, kSweptWords);
  std::vector<uint32_t> values(4);
  EXPECT_NE(emulation::run({.grid = 1, .threads = kPushThreads, .predecessor = {}},
                           [&] { reduce<kF32>({.link = ranks.link(0), .values = values.data(), .words = 4}, {0, 1}); }),
            "");
}

// Once the host says that a rank has failed, nobody waits for it.
TEST(push_emulated, a_rank_alone_gives_up_when_the_host_says_so) {
  HostRanks ranks(2, kSweptWords);
  std::vector<uint32_t> values(4);
  std::vector<float> own(4), all(8);
  const int given_up = 1;
  PushLink link = ranks.link(0);
  link.given_up = &given_up;
  link.looks_between = 2;
  const PushGather::Args gather{
      .link = link, .own = own.data(), .all = all.data(), .first = {0, 4}, .count = {4, 4}, .rows = 1, .width = 8};
  int32_t token = 3;
  const PushPick::Args pick{
      .link = link, .value = own.data(), .token = &token, .tokens = &token, .rows = 1, .parts = 1, .pitch = 1};
  EXPECT_EQ(emulation::run({.grid = 1, .threads = kPushThreads, .predecessor = {}},
                           [&] {
                             reduce<kF32>({.link = link, .values = values.data(), .words = 4}, {0, 1});
                             push_gather(gather, {0, 1});
                             push_pick(pick, {0, 1});
                             push_barrier(link);
                           }),
            "");
  EXPECT_EQ(ranks.rounds[0].of_cta[0], kFirstRound + 4) << "the rounds go on";
}

}  // namespace
}  // namespace nibble::backend::cuda
