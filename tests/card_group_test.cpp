// Cards of several processes, over launchers that only count and a stand-in for NCCL (launches_test.cpp): what ranks
// say to each other and in which order, and how one that goes ends the others. Ranks are threads, each with a group of
// its own over TCP.

#include "backend/cuda/card_group.h"

#include "backend/cuda/comm/nccl_ranks.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/ranks/group_testing.h"
#include "backend/ranks/process_ranks.h"
#include "backend/ranks/step_ranks.h"
#include "base/dtype.h"
#include "base/error.h"
#include "cards_testing.h"
#include "checkpoint/testing/files.h"
#include "convert/synth.h"
#include "model/gpt_oss.h"
#include "one_sequence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <nccl.h>  // the emulated one

namespace nibble {
namespace {

using backend::Ranks;
using backend::RunConfig;
using backend::cuda::CardGroup;
using backend::cuda::DeltaValues;
using backend::cuda::emulated_nccl;
using test::kCard;
using test::small_model_of_ranks;
using testing::HasSubstr;

// Runs body(rank) for each rank at once.
void on_ranks(int ranks, const std::function<void(int)>& body) {
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(body, rank);
}

class CardGroups : public testing::Test {
 protected:
  void SetUp() override {
    backend::cuda::emulated_cuda() = {.card = kCard};
    backend::cuda::set_emulated_nccl({});
  }
};

TEST_F(CardGroups, add_up_and_gather_by_nccl) {
  constexpr int kRanks = 3;
  const backend::cuda::NcclId id = backend::cuda::new_nccl_id();
  const std::vector<backend::Range> columns = {{0, 8}, {8, 8}, {16, 4}};
  constexpr int64_t kWidth = 20;
  on_ranks(kRanks, [&](int rank) {
    constexpr std::array kCards = {0};
    const backend::cuda::NcclRanks ranks({.id = id, .ranks = kRanks, .first = rank}, kCards);
    backend::cuda::LaunchCounts counts;
    backend::cuda::LaunchTrace trace;
    const backend::cuda::Launch on{.counts = &counts, .trace = &trace};
    std::vector<float> floats(1440);
    std::vector<Bf16> halves(1440);
    for (size_t i = 0; i < floats.size(); ++i) {
      floats[i] = static_cast<float>(static_cast<int>(i) * (rank + 1));
      halves[i] = Bf16::from_float(static_cast<float>(i % 32 + static_cast<size_t>(rank)));
    }
    ranks.all_reduce(rank, {floats.data(), 1440, DeltaValues::Type::kF32}, on);
    ranks.all_reduce(rank, {halves.data(), 1440, DeltaValues::Type::kBf16}, on);
    for (size_t i = 0; i < floats.size(); ++i) {
      ASSERT_EQ(floats[i], static_cast<float>(i * 6));
      ASSERT_EQ(halves[i].to_float(), static_cast<float>(i % 32 * 3 + 3));
    }
    for (const int64_t rows : {int64_t{1}, int64_t{5}}) {
      const auto [first, count] = columns[static_cast<size_t>(rank)];
      std::vector<float> own, all(static_cast<size_t>(rows * kWidth), -1), scratch(all);
      for (int64_t row = 0; row < rows; ++row)
        for (int64_t c = 0; c < count; ++c) own.push_back(static_cast<float>(row * 100 + first + c));
      ranks.gather(rank,
                   {.own = own.data(),
                    .all = all.data(),
                    .columns = columns,
                    .rows = rows,
                    .width = kWidth,
                    .scratch = scratch.data()},
                   on);
      for (int64_t at = 0; at < rows * kWidth; ++at)
        ASSERT_EQ(all[static_cast<size_t>(at)], static_cast<float>(at / kWidth * 100 + at % kWidth)) << rank;
    }
    ranks.require();
    EXPECT_EQ(counts.at(backend::cuda::nccl_reduce_kernel().name), 2);
    EXPECT_EQ(counts.at(backend::cuda::nccl_gather_kernel().name), 2);
  });
  EXPECT_EQ(emulated_nccl().calls["join"], kRanks);
  EXPECT_EQ(emulated_nccl().calls["destroy"], kRanks);
}

TEST_F(CardGroups, know_their_cards) {
  EXPECT_EQ(backend::cuda::kind_of_card(), "sm_90, 132 multiprocessors");
  EXPECT_EQ(backend::cuda::id_of_card(), "GPU-00000000-0000-0000-0000-000000000000");
  EXPECT_EQ(backend::cuda::nccl_version(), "NCCL 2.28.3");
  const std::vector<std::byte> id(7);
  test::expect_error([&] { const CardGroup group({.ranks = 2, .id = id}); }, Code::kCorrupt, "want 128 bytes, found 7");
}

// A group of two, whose rank 0 the test drives; the other follows on a thread.
class Two {
 public:
  explicit Two(const RunConfig& run = {}) : run_(run) {
    const backend::GroupPlace place = backend::place_of(2);
    run_.ranks = {.count = 2};
    other_ = std::jthread([this, place] { follow(place); });
    group = std::make_unique<backend::ProcessGroup>(backend::at_rank(place, 0), events_of(0));
    const backend::BackendConfig whole =
        model::backend_config(config_, {.max_tokens = 64, .max_rows = 16, .kv_pages = {64, 64}});
    backend::tell_room(*group, whole);
    const std::vector<std::byte> id = backend::cuda::new_card_group_id();
    backend::hand_out_id(*group, "card 0", id);
    cards_[0] = std::make_unique<CardGroup>(CardGroup::Place{.rank = 0, .ranks = 2, .id = id});
    auto member = backend::make_cuda_backend(whole, run_, {.group = cards_[0].get()});
    first = member.get();
    be = backend::make_step_ranks(whole, run_.ranks, *group, std::move(member));
    gpt = model::load(*be, config_, weights_.weights());
  }
  // What the other rank ended with; nothing where it ended with the group.
  std::string end() {
    be.reset();
    group.reset();
    other_ = {};
    return error_;
  }
  std::vector<backend::Drawn> step(int rows = 2) {
    return be->wait(*model::forward(*be, gpt, test::first_tokens(rows, greedy_)));
  }

 private:
  backend::GroupEvents events_of(size_t rank) {
    return {.lost = [this, rank](const std::string&) { cards_.at(rank)->give_up(); }};
  }
  void follow(const backend::GroupPlace& place) {
    try {
      backend::ProcessGroup of_rank(backend::at_rank(place, 1), events_of(1));
      others = &of_rank;
      const backend::StepRoom room = backend::receive_room(of_rank);
      const auto whole = model::backend_config(config_, {room.max_tokens, room.max_rows, room.kv_pages});
      const auto id = backend::receive_id(of_rank, "card 1");
      cards_[1] = std::make_unique<CardGroup>(CardGroup::Place{.rank = 1, .ranks = 2, .id = id});
      const auto own = backend::make_cuda_backend(whole, run_, {.group = cards_[1].get()});
      const std::span weights = weights_.weights();
      std::vector<backend::HostWeight> parts(weights.begin(), weights.end());
      const backend::Shard shard = backend::shard_of(whole.dims, run_.ranks, 1);
      for (backend::HostWeight& part : parts) part.slice = backend::slice_of(part.role, whole.dims, shard);
      const model::GptOss of_rank_1 = model::load(*own, config_, parts);
      backend::follow_steps(of_rank, whole, *own, of_rank_1.weights);
      for (const auto& [kernel, count] : own->launches()) followed[std::string(kernel)] = count;
    } catch (const Error& error) {
      error_ = error.what();
    }
  }

  const model::ModelConfig config_ = small_model_of_ranks();
  const convert::DummyWeights weights_{config_, 1, nullptr};
  const backend::SamplingParams greedy_{.temperature = 0};
  RunConfig run_;
  std::array<std::unique_ptr<CardGroup>, 2> cards_;
  std::string error_;
  std::jthread other_;  // ends with the group

 public:
  std::unique_ptr<backend::ProcessGroup> group;
  std::atomic<backend::ProcessGroup*> others = nullptr;
  std::unique_ptr<backend::Backend> be;
  const backend::CudaBackend* first = nullptr;
  model::GptOss gpt;
  std::map<std::string, int64_t> followed;  // the other's launches, once it has ended
};

TEST_F(CardGroups, sum_twice_in_a_layer_and_gather_once_in_graphs_too) {
  for (const bool eager : {false, true}) {
    Two two({.eager = eager});
    for (int i = 0; i < 5; ++i) EXPECT_EQ(two.step().size(), 2u);  // eager, captured, replayed
    EXPECT_EQ(two.first->graph_replays(), eager ? 0 : 3);
    two.be->copy_page({.kind = backend::LayerKind::kFull, .from = 0, .to = 1});
    std::map<std::string, int64_t> counts;
    for (const auto& [kernel, count] : two.first->launches()) counts[std::string(kernel)] = count;
    EXPECT_EQ(counts["ncclDevKernel_AllReduce"], 5 * 2 * 2);
    EXPECT_EQ(counts["ncclDevKernel_SendRecv"], 5);
    for (const auto& [kernel, count] : counts) EXPECT_THAT(kernel, testing::Not(HasSubstr("push"))) << kernel;
    EXPECT_THAT(two.be->modes(), HasSubstr("2 processes of a card each, each: experts"));
    EXPECT_EQ(two.end(), "");
    EXPECT_EQ(two.followed, counts) << "ranks launch the same";
  }
}

TEST_F(CardGroups, let_go_of_a_rank_that_goes) {
  {
    Two two;
    two.step();
    two.others.load()->fail("its card is on fire");
    for (int i = 0; i < 2; ++i) test::expect_error([&] { two.step(); }, Code::kIo, "rank 1 at");
    EXPECT_THAT(two.end(), HasSubstr("its card is on fire"));
  }  // who aborts is a thread of its own, which ends with the ranks
  EXPECT_GE(emulated_nccl().calls["abort"], 1);
}

// This one is in the middle of a call that waits for the other.
TEST_F(CardGroups, let_go_of_a_sum_that_nobody_comes_to) {
  const backend::cuda::NcclId id = backend::cuda::new_nccl_id();
  on_ranks(2, [&](int rank) {
    constexpr std::array kCards = {0};
    const backend::cuda::NcclRanks ranks({.id = id, .ranks = 2, .first = rank}, kCards);
    if (rank == 1) return;
    const int64_t met = emulated_nccl().calls["sum"];
    std::vector<float> values(4);
    const DeltaValues own{values.data(), 4, DeltaValues::Type::kF32};
    backend::cuda::LaunchCounts counts;
    backend::cuda::LaunchTrace trace;
    const backend::cuda::Launch on{.counts = &counts, .trace = &trace};
    std::jthread waits([&] { ranks.all_reduce(0, own, on); });
    while (emulated_nccl().calls["sum"] == met) std::this_thread::yield();
    ranks.give_up();
    ranks.give_up();
    waits.join();
    test::expect_error([&] { ranks.all_reduce(0, own, on); }, Code::kDevice, "cuda: NCCL: a rank has failed");
    test::expect_error([&] { ranks.require(); }, Code::kDevice, "cuda: NCCL: a rank has failed");
  });
  EXPECT_EQ(emulated_nccl().calls["abort"], 1);
}

TEST_F(CardGroups, end_where_nccl_has_met_an_error) {
  Two two;
  two.step();
  backend::cuda::set_emulated_nccl({.sums_until_error = 0});
  test::expect_error([&] { two.step(3), two.step(3); }, Code::kIo, "cuda: NCCL: a sum over ranks: remote error");
  EXPECT_NE(two.end(), "");
}

TEST_F(CardGroups, take_the_memory_that_the_budget_says) {
  const model::ModelConfig config = small_model_of_ranks();
  const backend::BackendConfig whole =
      model::backend_config(config, {.max_tokens = 64, .max_rows = 16, .kv_pages = {64, 64}});
  const RunConfig run{.ranks = {.count = 2}};
  const backend::MemoryNeeds needs = backend::cuda_memory_needs(whole, run, backend::RanksIn::kSeveralProcesses);
  const backend::cuda::NcclId id = backend::cuda::new_nccl_id();
  std::array<std::unique_ptr<CardGroup>, 2> cards;
  on_ranks(2, [&](int rank) {
    cards.at(static_cast<size_t>(rank)) = std::make_unique<CardGroup>(
        CardGroup::Place{.rank = rank, .ranks = 2, .id = std::as_bytes(std::span(id.bytes))});
  });
  const int64_t before = backend::cuda::emulated_cuda().allocated;
  const auto be = backend::make_cuda_backend(whole, run, {.group = cards[0].get()});
  EXPECT_NEAR(static_cast<double>(backend::cuda::emulated_cuda().allocated - before),
              static_cast<double>(needs.kv + needs.activations - backend::cuda::kNcclCardBytes), 4096);
}

}  // namespace
}  // namespace nibble
