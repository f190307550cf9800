// Ranks that sum and gather on cards. Two of them share a card as two streams; on cards of their own where there are
// two, else that test says so and is skipped.

#include "backend/cuda/comm/comm.h"
#include "backend/cuda/card_group.h"
#include "backend/cuda/comm/testing/push.h"
#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/norm_rope/around_gemm.h"
#include "backend/cuda/sampling/sample.h"
#include "backend/cuda/program/step_graph.h"
#include "backend/cuda/testing/card.h"
#include "base/error.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

namespace nibble::backend::cuda {
namespace {

using enum DeltaValues::Type;

// Ranks on these cards, with a stream each.
class RanksOnCards {
 public:
  explicit RanksOnCards(std::vector<int> cards) : cards_(std::move(cards)), memory_(cards_) {
    each([&](size_t rank) {
      streams_.push_back(make_stream());
      ends_.push_back(memory_.of(static_cast<int>(rank)));
      on_.push_back({.stream = streams_.back().get()});
    });
  }
  ~RanksOnCards() { cudaSetDevice(0); }
  RanksOnCards(const RanksOnCards&) = delete;
  RanksOnCards& operator=(const RanksOnCards&) = delete;

  [[nodiscard]] int count() const { return static_cast<int>(cards_.size()); }
  [[nodiscard]] bool share_a_card() const { return std::ranges::count(cards_, cards_[0]) == std::ssize(cards_); }
  [[nodiscard]] const PeerComm& end(size_t rank) const { return ends_[rank]; }
  [[nodiscard]] const Launch& on(size_t rank) const { return on_[rank]; }
  [[nodiscard]] cudaStream_t stream(size_t rank) const { return streams_[rank].get(); }

  // With the rank's card current.
  void each(const std::function<void(size_t)>& body) const {
    for (size_t rank = 0; rank < cards_.size(); ++rank) {
      cuda_check(cudaSetDevice(cards_[rank]));
      body(rank);
    }
  }
  void wait() const {
    each([&](size_t rank) { cuda_check(cudaStreamSynchronize(stream(rank))); });
  }

 private:
  std::vector<int> cards_;
  CommMemory memory_;
  std::vector<Stream> streams_;
  std::vector<PeerComm> ends_;
  std::vector<Launch> on_;
};

// So many rounds of a message, one after the other in memory: as the ranks have them, and what their sums are.
struct Rounds {
  PushMessage message;
  int count = 1;
  std::vector<std::vector<uint32_t>> values;  // by rank
  std::vector<uint32_t> sums;

  Rounds(const PushMessage& of, int rounds, int ranks) : message(of), count(rounds) {
    values.resize(static_cast<size_t>(ranks));
    for (int round = 0; round < rounds; ++round) {
      for (int rank = 0; rank < ranks; ++rank)
        add(values[static_cast<size_t>(rank)], push_words(of, push_values(of, static_cast<uint64_t>(round), rank)));
      add(sums, push_sum(of, static_cast<uint64_t>(round), ranks));
    }
  }
  static void add(std::vector<uint32_t>& to, const std::vector<uint32_t>& more) {
    to.insert(to.end(), more.begin(), more.end());
  }
  [[nodiscard]] DeltaValues of_round(uint32_t* at, int round) const {
    return {at + round * message.words, message.type == kF32 ? message.words : 2 * message.words, message.type};
  }
};

class CommTest : public CudaTest {
 protected:
  // On the cards, rounds enqueued one after the other for all ranks. Every rank has the sums, bit for bit: a push adds
  // in the order of the ranks, and two values have one sum in any order.
  static void check_rounds(const RanksOnCards& ranks, const Rounds& rounds, SumWay way = SumWay::kPush) {
    std::vector<DeviceArray<uint32_t>> values(static_cast<size_t>(ranks.count()));
    ranks.each([&](size_t rank) { values[rank] = DeviceArray<uint32_t>(rounds.values[rank]); });
    for (int round = 0; round < rounds.count; ++round)
      ranks.each([&](size_t rank) {
        LaunchCounts counts;
        Launch on = ranks.on(rank);
        on.counts = &counts;
        const DeltaValues own = rounds.of_round(values[rank].get(), round);
        ranks.end(rank).reduce_by(way, own, on);
        const SumPlan plan = ranks.end(rank).reduce_plan(own);
        if (plan.way == way) EXPECT_EQ(counts, (LaunchCounts{{plan.kernel.name, plan.launches}}));
      });
    ranks.wait();
    ranks.each([&](size_t rank) { EXPECT_TRUE(values[rank].host() == rounds.sums) << "rank " << rank; });
  }

  static void check_sizes(const RanksOnCards& ranks, SumWay way = SumWay::kPush) {
    for (const int tokens : {1, 8, 64, 256, 2048}) {  // 5.8 KB, 46 KB, 369 KB, 1.5 MB, 11.8 MB
      const int64_t words = int64_t{tokens} * 1440;
      for (const DeltaValues::Type type : {kF32, kBf16})
        check_rounds(ranks, Rounds({type, words}, tokens > 256 ? 2 : 4, ranks.count()), way);
    }
  }

  // A million rounds in graphs: the message of each round of a graph is another, and a graph has an odd number of them,
  // so that each comes in both phases.
  static void check_a_million_rounds(const RanksOnCards& ranks) {
    constexpr int kRounds = 201, kReplays = 1'000'000 / kRounds + 1;
    const Rounds rounds({kF32, 1440}, kRounds, ranks.count());
    const size_t count = rounds.sums.size();
    std::vector<DeviceArray<uint32_t>> begin(static_cast<size_t>(ranks.count())), values(begin.size());
    ranks.each([&](size_t rank) {
      begin[rank] = DeviceArray<uint32_t>(rounds.values[rank]);
      values[rank] = DeviceArray<uint32_t>(count);
    });
    const auto enqueue = [&](size_t rank) {
      cuda_check(cudaMemcpyAsync(values[rank].get(), begin[rank].get(), 4 * count, cudaMemcpyDeviceToDevice,
                                 ranks.stream(rank)));
      for (int round = 0; round < kRounds; ++round) {
        Launch on = ranks.on(rank);
        on.chained = round > 0;  // the first follows a copy
        ranks.end(rank).reduce(rounds.of_round(values[rank].get(), round), on);
      }
    };
    const std::vector<GraphExec> graphs = captured(ranks, enqueue);
    const PinnedBytes host = allocate_pinned(static_cast<int64_t>(4 * count), "test");
    for (int replay = 0; replay < kReplays; ++replay) {
      launch_all(ranks, graphs);
      ranks.each([&](size_t rank) {
        cuda_check(
            cudaMemcpyAsync(host.get(), values[rank].get(), 4 * count, cudaMemcpyDeviceToHost, ranks.stream(rank)));
        cuda_check(cudaStreamSynchronize(ranks.stream(rank)));
        ASSERT_EQ(std::memcmp(host.get(), rounds.sums.data(), 4 * count), 0)
            << "rank " << rank << ", replay " << replay;
      });
      if (HasFatalFailure()) return;
    }
  }

  // Sums by shares and by push one after the other in a graph of each rank, enqueued by one thread, rank by rank.
  static void check_ways_in_a_graph(const RanksOnCards& ranks) {
    constexpr int kRounds = 24, kReplays = 20;
    const Rounds rounds({kBf16, 256 * 1440}, kRounds, ranks.count());
    const size_t count = rounds.sums.size();
    std::vector<DeviceArray<uint32_t>> begin(static_cast<size_t>(ranks.count())), values(begin.size());
    ranks.each([&](size_t rank) {
      begin[rank] = DeviceArray<uint32_t>(rounds.values[rank]);
      values[rank] = DeviceArray<uint32_t>(count);
    });
    const std::vector<GraphExec> graphs = captured(ranks, [&](size_t rank) {
      cuda_check(cudaMemcpyAsync(values[rank].get(), begin[rank].get(), 4 * count, cudaMemcpyDeviceToDevice,
                                 ranks.stream(rank)));
      for (int round = 0; round < kRounds; ++round) {
        Launch on = ranks.on(rank);
        on.chained = round > 0;
        ranks.end(rank).reduce_by(round % 3 == 1 ? SumWay::kShares : SumWay::kPush,
                                  rounds.of_round(values[rank].get(), round), on);
      }
    });
    for (int replay = 0; replay < kReplays; ++replay) {
      launch_all(ranks, graphs);
      ranks.each([&](size_t rank) { ASSERT_TRUE(values[rank].host() == rounds.sums) << "rank " << rank; });
      if (HasFatalFailure()) return;
    }
  }

  static void launch_all(const RanksOnCards& ranks, const std::vector<GraphExec>& graphs) {
    for (size_t i = 0; i < graphs.size(); ++i) {
      if (graphs.size() > 1) cuda_check(cudaSetDevice(static_cast<int>(i)));
      cuda_check(cudaGraphLaunch(graphs[i].get(), ranks.stream(i)));
    }
    ranks.wait();
  }

  // Of ranks on one card one graph, in which they are branches; else one each.
  static std::vector<GraphExec> captured(const RanksOnCards& ranks, const std::function<void(size_t)>& enqueue) {
    std::vector<GraphExec> graphs;
    if (ranks.share_a_card()) {
      const Event fork = make_event(), join = make_event();
      cuda_check(cudaStreamBeginCapture(ranks.stream(0), cudaStreamCaptureModeThreadLocal));
      cuda_check(cudaEventRecord(fork.get(), ranks.stream(0)));
      ranks.each([&](size_t rank) {
        if (rank > 0) cuda_check(cudaStreamWaitEvent(ranks.stream(rank), fork.get(), 0));
        enqueue(rank);
        if (rank == 0) return;
        cuda_check(cudaEventRecord(join.get(), ranks.stream(rank)));
        cuda_check(cudaStreamWaitEvent(ranks.stream(0), join.get(), 0));
      });
      graphs.push_back(ended(ranks.stream(0)));
      return graphs;
    }
    ranks.each([&](size_t rank) {
      cuda_check(cudaStreamBeginCapture(ranks.stream(rank), cudaStreamCaptureModeThreadLocal));
      enqueue(rank);
      graphs.push_back(ended(ranks.stream(rank)));
    });
    return graphs;
  }
  static GraphExec ended(cudaStream_t stream) {
    cudaGraph_t graph = nullptr;
    cuda_check(cudaStreamEndCapture(stream, &graph));
    cudaGraphExec_t executable = nullptr;
    const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
    cudaGraphDestroy(graph);
    cuda_check(status);
    return GraphExec(executable);
  }

  // Of all logits: more rows than a round takes.
  static void check_gather(const RanksOnCards& ranks, int64_t rows = 23, int64_t width = 201088) {
    const int64_t share = width / ranks.count();
    std::vector<Range> columns;
    for (int rank = 0; rank < ranks.count(); ++rank) columns.push_back({rank * share, share});
    std::vector<float> want(static_cast<size_t>(rows * width));
    for (size_t i = 0; i < want.size(); ++i) want[i] = static_cast<float>(i);
    std::vector<DeviceArray<float>> own(columns.size()), all(columns.size());
    ranks.each([&](size_t rank) {
      std::vector<float> part;
      for (int64_t row = 0; row < rows; ++row) {
        const auto first = want.begin() + row * width + columns[rank].first;
        part.insert(part.end(), first, first + share);
      }
      own[rank] = DeviceArray<float>(part);
      all[rank] = DeviceArray<float>(want.size());
    });
    ranks.each([&](size_t rank) {
      ranks.end(rank).gather({own[rank].get(), all[rank].get(), columns, rows, width}, ranks.on(rank));
      ranks.end(rank).barrier(ranks.on(rank));
    });
    ranks.wait();
    ranks.each([&](size_t rank) { EXPECT_EQ(all[rank].host(), want); });
  }

  // A sum that combines on the way, or of parts that any_combine has sent, has the bits of one after any_combine.
  static void check_combined(const RanksOnCards& ranks, int tokens, SplitSums::Order order,
                             bool whole_experts = false) {
    constexpr int kHidden = 2880, kTopk = 4, kExperts = 8;
    const int splits = tokens < 1000 ? 3 : 1;
    const auto tiles = static_cast<size_t>(split_pitch(tokens, kHidden));
    const auto pairs = static_cast<size_t>(tokens * kTopk);
    using Sending = DeltaValues::Sending;
    const Sending sent = sent_as_made(ranks.count(), static_cast<int64_t>(2 * tiles));
    std::vector<int32_t> ids;
    for (size_t pair = 0; pair < pairs; ++pair) ids.push_back(static_cast<int32_t>(pair * 5 % kExperts));
    struct Rank {
      DeviceArray<uint16_t> sums, combined, tiles;
      DeviceArray<float> f32, weights;
      DeviceArray<Bf16> bf16, bias;
      DeviceArray<int32_t> ids;
      DeviceArray<uint16_t> both[kExchangedSums];
      Combine::Args args;
    };
    std::vector<Rank> all(static_cast<size_t>(ranks.count()));
    ranks.each([&](size_t r) {
      Rank& own = all[r];
      const auto floats = [&](size_t count) {
        return push_values({kF32, static_cast<int64_t>(count)}, 5, static_cast<int>(r));
      };
      const auto bf16s = [&](size_t count) {
        std::vector<Bf16> values;
        for (const float value : floats(count)) values.push_back(Bf16::from_float(value));
        return values;
      };
      own.combined = DeviceArray<uint16_t>(tiles);
      own.tiles = DeviceArray<uint16_t>(tiles);
      for (DeviceArray<uint16_t>& both : own.both)
        if (sent == Sending::kToAll) both = DeviceArray<uint16_t>(2 * tiles);
      own.args = {.tokens = tokens, .hidden = kHidden};
      if (order == SplitSums::Order::kTiles) {
        std::vector<uint16_t> sums;
        for (const Bf16 value : bf16s(static_cast<size_t>(splits) * tiles)) sums.push_back(value.bits);
        own.sums = DeviceArray<uint16_t>(sums);
        own.bias = DeviceArray<Bf16>(bf16s(kHidden));
        own.args.sums = {own.sums.get(), splits, order};
        own.args.bias = own.bias.get();
        return;
      }
      const bool f32 = order == SplitSums::Order::kExpertsF32;
      if (f32) own.f32 = DeviceArray<float>(floats(pairs * kHidden));
      if (!f32) own.bf16 = DeviceArray<Bf16>(bf16s(pairs * kHidden));
      own.weights = DeviceArray<float>(push_values({kF32, static_cast<int64_t>(pairs)}, 6, 0));
      own.ids = DeviceArray<int32_t>(ids);
      own.args.sums = {f32 ? static_cast<const void*>(own.f32.get()) : own.bf16.get(), kTopk, order, own.weights.get()};
      own.args.ids = own.ids.get();
      const int share = kExperts / ranks.count();
      if (whole_experts) own.args.own = {share * static_cast<int>(r), share};
    });
    ranks.each([&](size_t r) {
      Combine::Args args = all[r].args;
      args.tiles = all[r].combined.get();
      Combine::launch(args, ranks.on(r));
      ranks.end(r).reduce({args.tiles, static_cast<int64_t>(tiles), kBf16}, ranks.on(r));
      args.tiles = all[r].tiles.get();
      DeltaValues values{.at = args.tiles, .count = static_cast<int64_t>(tiles), .type = kBf16};
      if (sent == Sending::kNot) {
        values.parts = &args;
        return ranks.end(r).reduce(values, ranks.on(r));
      }
      args.places = ranks.end(r).places();
      values.sent = Sending::kToOwners;
      Combine::launch(args, ranks.on(r));
      ranks.end(r).reduce(values, ranks.on(r));
      if (sent != Sending::kToAll) return;
      const Exchange& exchange = ranks.end(r).exchange();
      values.sent = Sending::kToAll;
      for (int sum = 0; sum < kExchangedSums; ++sum) {
        args.places = PartPlaces::exchanged(exchange, sum, values.words());
        Combine::launch(args, ranks.on(r));
        ranks.end(r).reduce(values, ranks.on(r));
        cuda_check(cudaMemcpyAsync(all[r].both[sum].get(), exchange.both(static_cast<int>(r), sum), 4 * tiles,
                                   cudaMemcpyDeviceToDevice, ranks.stream(r)));
      }
    });
    ranks.wait();
    ranks.each([&](size_t r) {
      const std::vector<uint16_t> want = all[r].combined.host(), got = all[r].tiles.host();
      int64_t others = 0;
      for (int t = 0; t < tokens; ++t)
        for (int d = 0; d < kHidden; ++d) {
          const auto at = static_cast<size_t>(place_in_sums(tokens, t, d));
          others += want[at] != got[at] ? 1 : 0;
        }
      EXPECT_EQ(others, 0) << "rank " << r << ", " << tokens << " tokens, form " << static_cast<int>(order);
      for (const DeviceArray<uint16_t>& exchanged : all[r].both) {
        if (exchanged.size() == 0) continue;
        const std::vector<uint16_t> both = exchanged.host();
        for (int t = 0; t < tokens; ++t)
          for (int d = 0; d < kHidden; ++d) {
            const auto at = static_cast<size_t>(place_in_sums(tokens, t, d));
            const Bf16 sum = Bf16::from_float(Bf16{both[at]}.to_float() + Bf16{both[tiles + at]}.to_float());
            others += want[at] != sum.bits ? 1 : 0;
          }
        EXPECT_EQ(others, 0) << "exchanged: rank " << r << ", " << tokens << " tokens";
      }
    });
  }
  static void check_combined(const RanksOnCards& ranks) {
    for (const int tokens : {9, 33, 256})
      for (const SplitSums::Order order :
           {SplitSums::Order::kTiles, SplitSums::Order::kExpertsF32, SplitSums::Order::kExpertsBf16})
        check_combined(ranks, tokens, order);
    check_combined(ranks, 33, SplitSums::Order::kExpertsF32, true);
    check_combined(ranks, 601, SplitSums::Order::kExpertsBf16, true);
    for (const SplitSums::Order order : {SplitSums::Order::kTiles, SplitSums::Order::kExpertsBf16})
      check_combined(ranks, 2048, order);  // by shares
  }

  // Ranks that draw from their columns draw what one draws from all: greedy, at a temperature, with a mask, a bias,
  // ties across ranks, a logit that is no number, and a row that may have no token.
  void check_draws(const RanksOnCards& ranks, int rows, int vocab) {
    std::vector<SampleRowParams> params;
    std::vector<float> logits(static_cast<size_t>(rows) * static_cast<size_t>(vocab));
    for (size_t i = 0; i < logits.size(); i += 4) {
      const Philox4 four = philox(17, i);
      for (size_t j = i; j < std::min(logits.size(), i + 4); ++j)
        logits[j] = std::floor(64 * uniform_float(four[j - i])) / 8;  // many alike
    }
    std::vector<uint32_t> masks(2 * static_cast<size_t>(mask_words(vocab)), 0x0f0f3355u);
    std::fill(masks.begin() + static_cast<std::ptrdiff_t>(mask_words(vocab)), masks.end(), 0u);
    for (int row = 0; row < rows; ++row)
      params.push_back({.seed = static_cast<uint64_t>(row),
                        .position = 77,
                        .numbers = words_of({.temperature = row % 3 == 0 ? 0.0f : 0.7f}),
                        .first_shift = 0,
                        .shifts = row % 5 == 4 ? 2 : 0,
                        .mask = row == 2 || row == 3 ? 0
                                : row == 5           ? 1
                                                     : -1});
    if (rows > 6) logits[static_cast<size_t>(6 * vocab + vocab - 1)] = NAN;
    const std::vector<LogitShift> shifts = {{.token = vocab - 2, .first_bias = 0, .biases = 1},
                                            {.token = 1, .first_bias = 1, .biases = 1}};
    const std::vector<float> biases = {100, 99};
    const auto draw = [&](const Range& columns, int32_t* tokens, DeviceArray<float>& value, DeviceArray<int32_t>& token,
                          const Launch& on) {
      std::vector<float> part;
      for (int row = 0; row < rows; ++row) {
        const auto first = logits.begin() + row * vocab + columns.first;
        part.insert(part.end(), first, first + columns.count);
      }
      const auto count = static_cast<size_t>(rows);
      value = DeviceArray<float>(count * kSampleParts);
      token = DeviceArray<int32_t>(count * kSampleParts);
      const DeviceArray<float> own(part), on_biases(biases);
      const DeviceArray<SampleRowParams> on_params(params);
      const DeviceArray<LogitShift> on_shifts(shifts);
      const DeviceArray<uint32_t> on_masks(masks);
      Sample::launch({.logits = own.get(),
                      .params = on_params.get(),
                      .shifts = on_shifts.get(),
                      .biases = on_biases.get(),
                      .masks = on_masks.get(),
                      .tokens = tokens,
                      .part_value = value.get(),
                      .part_token = token.get(),
                      .rows = rows,
                      .vocab = static_cast<int>(columns.count),
                      .first = static_cast<int>(columns.first),
                      .mask_vocab = vocab,
                      .most_shifts = 2,
                      .masked = true},
                     on);
      cuda_check(cudaStreamSynchronize(on.stream));
    };
    const size_t count = static_cast<size_t>(rows);
    std::vector<DeviceArray<float>> value(static_cast<size_t>(ranks.count()));
    std::vector<DeviceArray<int32_t>> token(value.size()), tokens(value.size());
    cuda_check(cudaSetDevice(0));
    const DeviceArray<int32_t> want(count);
    draw({0, vocab}, want.get(), value[0], token[0], ranks.on(0));
    const int64_t share = vocab / ranks.count();
    ranks.each([&](size_t rank) {
      draw({static_cast<int64_t>(rank) * share, share}, nullptr, value[rank], token[rank], ranks.on(rank));
      tokens[rank] = DeviceArray<int32_t>(count);
    });
    ranks.each([&](size_t rank) {
      ranks.end(rank).pick({.value = value[rank].get(),
                            .token = token[rank].get(),
                            .tokens = tokens[rank].get(),
                            .rows = rows,
                            .parts = sample_parts(rows),
                            .pitch = kSampleParts},
                           ranks.on(rank));
    });
    ranks.wait();
    cuda_check(cudaSetDevice(0));
    const std::vector<int32_t> one = want.host();
    ranks.each([&](size_t rank) { EXPECT_EQ(tokens[rank].host(), one) << rows << " rows"; });
    if (rows > 6) {
      EXPECT_EQ(one[5], kNothingAllowed);
      EXPECT_EQ(one[6], kNotFinite);
    }
  }

  static bool two_cards() {
    int cards = 0;
    cuda_check(cudaGetDeviceCount(&cards));
    return cards >= 2;
  }
};

TEST_F(CommTest, ranks_of_one_card_get_the_sum_at_every_size) {
  check_sizes(RanksOnCards({0, 0}));
  check_rounds(RanksOnCards({0, 0, 0, 0}), Rounds({kF32, 11520}, 20, 4));
}
TEST_F(CommTest, ranks_of_one_card_get_a_million_sums_in_graphs) { check_a_million_rounds(RanksOnCards({0, 0})); }
TEST_F(CommTest, ranks_of_one_card_gather_their_columns) { check_gather(RanksOnCards({0, 0})); }

TEST_F(CommTest, ranks_of_one_card_combine_while_they_add_up) {
  check_combined(RanksOnCards({0, 0}));
  check_combined(RanksOnCards({0, 0, 0, 0}), 80, SplitSums::Order::kExpertsBf16, true);
}
TEST_F(CommTest, ranks_of_one_card_draw_what_one_draws) {
  const RanksOnCards ranks({0, 0});
  for (const int rows : {1, 8, 300}) check_draws(ranks, rows, 20096);
  check_draws(RanksOnCards({0, 0, 0, 0}), 33, 20096);
}

TEST_F(CommTest, ranks_of_one_card_get_the_sum_by_shares) {
  check_sizes(RanksOnCards({0, 0}), SumWay::kShares);
  check_rounds(RanksOnCards({0, 0, 0}), Rounds({kBf16, 100004}, 20, 3), SumWay::kShares);
  check_rounds(RanksOnCards({0, 0}), Rounds({kF32, share_shape(2).words() + 4}, 1, 2), SumWay::kShares);  // in two
}
TEST_F(CommTest, ranks_of_one_card_get_sums_by_shares_in_graphs) { check_ways_in_a_graph(RanksOnCards({0, 0})); }

TEST_F(CommTest, a_rank_whose_other_never_comes_is_let_go) {
  const std::vector<int> cards = {0, 0};
  const CommMemory memory(cards);
  const DeviceArray<float> values(2 * kChunkWords);
  for (const SumWay way : {SumWay::kPush, SumWay::kShares})
    memory.of(0).reduce_by(way, {values.get(), 2 * kChunkWords, kF32}, on_);
  memory.give_up();
  cuda_check(cudaStreamSynchronize(stream_.get()));
}

TEST_F(CommTest, two_cards_get_the_sum_at_every_size) {
  if (!two_cards()) GTEST_SKIP() << "want two cards";
  check_sizes(RanksOnCards({0, 1}));
  check_sizes(RanksOnCards({0, 1}), SumWay::kShares);
}
TEST_F(CommTest, two_cards_get_sums_by_shares_in_graphs) {
  if (!two_cards()) GTEST_SKIP() << "want two cards";
  check_ways_in_a_graph(RanksOnCards({0, 1}));
}
TEST_F(CommTest, two_cards_get_a_million_sums_in_graphs) {
  if (!two_cards()) GTEST_SKIP() << "want two cards";
  check_a_million_rounds(RanksOnCards({0, 1}));
}
TEST_F(CommTest, two_cards_gather_their_columns) {
  if (!two_cards()) GTEST_SKIP() << "want two cards";
  check_gather(RanksOnCards({0, 1}));
}
TEST_F(CommTest, two_cards_combine_while_they_add_up) {
  if (!two_cards()) GTEST_SKIP() << "want two cards";
  check_combined(RanksOnCards({0, 1}));
}
TEST_F(CommTest, two_cards_draw_what_one_draws) {
  if (!two_cards()) GTEST_SKIP() << "want two cards";
  for (const int rows : {1, 8, 300}) check_draws(RanksOnCards({0, 1}), rows, 201088);
}

// Small enough for compute-sanitizer.
using SmallCommTest = CommTest;
TEST_F(SmallCommTest, ranks_of_one_card_push_share_gather_draw_and_meet) {
  const RanksOnCards ranks({0, 0});
  for (const DeltaValues::Type type : {kF32, kBf16}) {
    check_rounds(ranks, Rounds({type, 1440}, 3, 2));
    check_rounds(ranks, Rounds({type, 3 * kChunkWords - 20}, 3, 2), SumWay::kShares);
  }
  for (const SplitSums::Order order :
       {SplitSums::Order::kTiles, SplitSums::Order::kExpertsF32, SplitSums::Order::kExpertsBf16})
    check_combined(ranks, 9, order);
  check_gather(ranks, 3, 1024);
  check_draws(ranks, 8, 1024);
}

// NCCL, where the build and the system have it: ranks of several processes, here threads.
class NcclTest : public CommTest {
 protected:
  void SetUp() override {
    CommTest::SetUp();
    if (IsSkipped()) return;
    try {
      static_cast<void>(nccl_version());
    } catch (const Error& none) {
      GTEST_SKIP() << none.what();
    }
  }
  // body(rank, its end) for two ranks at once, a card each.
  static void on_two_cards(const std::function<void(int, const Comm&)>& body) {
    const NcclId id = new_nccl_id();
    const auto process = [&](int rank) {
      cuda_check(cudaSetDevice(rank));
      body(rank, *make_nccl_comm({.id = id, .rank = rank, .ranks = 2, .card = rank}));
    };
    std::thread other(process, 1);
    process(0);
    other.join();
  }
  static void check_sum(int rank, const Comm& comm, const PushMessage& message, uint64_t round) {
    const DeviceArray<uint32_t> values(push_words(message, push_values(message, round, rank)));
    const Stream stream = make_stream();
    const int64_t count = message.type == kF32 ? message.words : 2 * message.words;
    comm.reduce({values.get(), count, message.type}, {.stream = stream.get()});
    cuda_check(cudaStreamSynchronize(stream.get()));
    EXPECT_TRUE(values.host() == push_sum(message, round, 2)) << "rank " << rank << ", " << message.words << " words";
  }
};

TEST_F(NcclTest, one_rank_keeps_its_values) {
  const auto comm = make_nccl_comm({.id = new_nccl_id()});
  const PushMessage message{kF32, 1440};
  const std::vector<uint32_t> words = push_words(message, push_values(message, 0, 0));
  const DeviceArray<uint32_t> values(words);
  comm->reduce({values.get(), 1440, kF32}, on_);
  EXPECT_TRUE(values.host() == words);
  EXPECT_EQ(counts_.at(nccl_reduce_kernel().name), 1);
}
TEST_F(NcclTest, two_cards_get_the_sum_at_every_size) {
  if (!two_cards()) GTEST_SKIP() << "want two cards";
  on_two_cards([](int rank, const Comm& comm) {
    for (const int tokens : {1, 8, 64, 256, 2048})
      for (const DeltaValues::Type type : {kF32, kBf16})
        for (const uint64_t round : {0, 1}) check_sum(rank, comm, {type, int64_t{tokens} * 1440}, round);
    check_sum(rank, comm, {kF32, 17 << 20}, 0);  // in two calls
  });
}
TEST_F(NcclTest, a_rank_whose_other_never_comes_is_let_go) {
  if (!two_cards()) GTEST_SKIP() << "want two cards";
  on_two_cards([](int rank, const Comm& comm) {
    if (rank == 1) return comm.give_up();
    const DeviceArray<float> values(4096);
    const Stream stream = make_stream();
    comm.reduce({values.get(), 4096, kF32}, {.stream = stream.get()});
    comm.give_up();
    cuda_check(cudaStreamSynchronize(stream.get()));
    EXPECT_THROW(comm.reduce({values.get(), 4096, kF32}, {.stream = stream.get()}), Error);
  });
}

}  // namespace
}  // namespace nibble::backend::cuda
