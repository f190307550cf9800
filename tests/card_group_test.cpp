// Cards of several processes, over launchers that only count and a stand-in for NCCL (launches_test.cpp): what ranks
// say to each other and in which order, and how one that goes ends the others. Ranks are threads, each with a group of
// its own over TCP.

#include "backend/cuda/card_group.h"

#include "backend/cuda/comm/comm.h"
#include "backend/cuda/cuda_backend.h"
#include "base/dtype.h"
#include "base/error.h"
#include "cards_testing.h"
#include "checkpoint/testing/files.h"
#include "convert/synth.h"
#include "model/gpt_oss.h"
#include "one_sequence.h"
#include "processes_testing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
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
    const auto end = backend::cuda::make_nccl_comm({.id = id, .rank = rank, .ranks = kRanks});
    const backend::cuda::Comm& comm = *end;
    backend::cuda::LaunchCounts counts;
    backend::cuda::LaunchTrace trace;
    const backend::cuda::Launch on{.counts = &counts, .trace = &trace};
    std::vector<float> floats(1440);
    std::vector<Bf16> halves(1440);
    for (size_t i = 0; i < floats.size(); ++i) {
      floats[i] = static_cast<float>(static_cast<int>(i) * (rank + 1));
      halves[i] = Bf16::from_float(static_cast<float>(i % 32 + static_cast<size_t>(rank)));
    }
    comm.reduce({floats.data(), 1440, DeltaValues::Type::kF32}, on);
    comm.reduce({halves.data(), 1440, DeltaValues::Type::kBf16}, on);
    for (size_t i = 0; i < floats.size(); ++i) {
      ASSERT_EQ(floats[i], static_cast<float>(i * 6));
      ASSERT_EQ(halves[i].to_float(), static_cast<float>(i % 32 * 3 + 3));
    }
    for (const int64_t rows : {int64_t{1}, int64_t{5}}) {
      const auto [first, count] = columns[static_cast<size_t>(rank)];
      std::vector<float> own, all(static_cast<size_t>(rows * kWidth), -1), scratch(all);
      for (int64_t row = 0; row < rows; ++row)
        for (int64_t c = 0; c < count; ++c) own.push_back(static_cast<float>(row * 100 + first + c));
      comm.gather({.own = own.data(),
                   .all = all.data(),
                   .columns = columns,
                   .rows = rows,
                   .width = kWidth,
                   .scratch = scratch.data()},
                  on);
      for (int64_t at = 0; at < rows * kWidth; ++at)
        ASSERT_EQ(all[static_cast<size_t>(at)], static_cast<float>(at / kWidth * 100 + at % kWidth)) << rank;
    }
    comm.require();
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
}

// A group of two, whose rank 0 the test drives; the other follows on a thread.
class Two {
 public:
  explicit Two(RunConfig run = {}) {
    run.ranks = {.count = 2};
    const auto make = [this, run](const backend::BackendConfig& whole, backend::ProcessGroup& of_rank) {
      const auto rank = static_cast<size_t>(of_rank.rank());
      cards_.at(rank).meet(of_rank, fmt::format("card {}", rank));
      auto member = backend::make_cuda_member(whole, run, cards_.at(rank).comm());
      if (rank == 0) first = member.get();
      return member;
    };
    processes_.emplace(
        config_, weights_.weights(), model::StepLimits{.max_tokens = 64, .max_rows = 16, .kv_pages = {64, 64}},
        run.ranks,
        test::Processes::Setup{.make = make,
                               .events =
                                   [this](int rank) {
                                     return backend::GroupEvents{.lost = [this, rank](const std::string&) {
                                       cards_.at(static_cast<size_t>(rank)).give_up();
                                     }};
                                   },
                               .ended =
                                   [this](backend::Member& member) {
                                     for (const auto& [kernel, count] : member.launches())
                                       followed[std::string(kernel)] = count;
                                   },
                               .member_name = "a card"});
  }
  [[nodiscard]] backend::Backend& be() const { return *processes_->be; }
  void fail_other(const std::string& why) { processes_->fail(1, why); }
  // What the other rank ended with; nothing where it ended with the group.
  std::string end() { return processes_->ended().at(1); }
  std::vector<backend::DrawnToken> step(int rows = 2) {
    return be().wait(*model::forward(be(), processes_->gpt, test::first_tokens(rows, greedy_)));
  }

 private:
  const model::ModelConfig config_ = small_model_of_ranks();
  const convert::DummyWeights weights_{config_, 1, nullptr};
  const backend::SamplingParams greedy_{.temperature = 0};
  std::array<CardGroup, 2> cards_;

 public:
  const backend::Backend* first = nullptr;
  std::map<std::string, int64_t> followed;  // the other's launches, once it has ended

 private:
  std::optional<test::Processes> processes_;
};

TEST_F(CardGroups, sum_twice_in_a_layer_and_gather_once_in_graphs_too) {
  for (const bool eager : {false, true}) {
    Two two({.eager = eager});
    for (int i = 0; i < 5; ++i) EXPECT_EQ(two.step().size(), 2u);  // eager, captured, replayed
    EXPECT_EQ(two.first->graph_replays(), eager ? 0 : 3);
    two.be().copy_page({.kind = backend::LayerKind::kFull, .from = 0, .to = 1});
    std::map<std::string, int64_t> counts;
    for (const auto& [kernel, count] : two.first->launches()) counts[std::string(kernel)] = count;
    EXPECT_EQ(counts["ncclDevKernel_AllReduce"], 5 * 2 * 2);
    EXPECT_EQ(counts["ncclDevKernel_SendRecv"], 5);
    for (const auto& [kernel, count] : counts) EXPECT_THAT(kernel, testing::Not(HasSubstr("push"))) << kernel;
    EXPECT_THAT(two.be().modes(), HasSubstr("2 processes of a card each, each: experts"));
    EXPECT_EQ(two.end(), "");
    EXPECT_EQ(two.followed, counts) << "ranks launch the same";
  }
}

TEST_F(CardGroups, let_go_of_a_rank_that_goes) {
  {
    Two two;
    two.step();
    two.fail_other("its card is on fire");
    for (int i = 0; i < 2; ++i) test::expect_error([&] { two.step(); }, Code::kIo, "rank 1 at");
    EXPECT_THAT(two.end(), HasSubstr("its card is on fire"));
  }  // who aborts is a thread of its own, which ends with the ranks
  EXPECT_GE(emulated_nccl().calls["abort"], 1);
}

// This one is in the middle of a call that waits for the other.
TEST_F(CardGroups, let_go_of_a_sum_that_nobody_comes_to) {
  const backend::cuda::NcclId id = backend::cuda::new_nccl_id();
  on_ranks(2, [&](int rank) {
    const auto end = backend::cuda::make_nccl_comm({.id = id, .rank = rank, .ranks = 2});
    const backend::cuda::Comm& comm = *end;
    if (rank == 1) return;
    const int64_t met = emulated_nccl().calls["sum"];
    std::vector<float> values(4);
    const DeltaValues own{values.data(), 4, DeltaValues::Type::kF32};
    backend::cuda::LaunchCounts counts;
    backend::cuda::LaunchTrace trace;
    const backend::cuda::Launch on{.counts = &counts, .trace = &trace};
    std::jthread waits([&] { comm.reduce(own, on); });
    while (emulated_nccl().calls["sum"] == met) std::this_thread::yield();
    comm.give_up();
    comm.give_up();
    waits.join();
    test::expect_error([&] { comm.reduce(own, on); }, Code::kDevice, "cuda: NCCL: a rank has failed");
    test::expect_error([&] { comm.require(); }, Code::kDevice, "cuda: NCCL: a rank has failed");
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
  std::array<std::unique_ptr<backend::cuda::Comm>, 2> comms;
  on_ranks(2, [&](int rank) {
    comms.at(static_cast<size_t>(rank)) = backend::cuda::make_nccl_comm({.id = id, .rank = rank, .ranks = 2});
  });
  const int64_t before = backend::cuda::emulated_cuda().allocated;
  const auto be = backend::make_cuda_member(whole, run, *comms[0]);
  EXPECT_NEAR(static_cast<double>(backend::cuda::emulated_cuda().allocated - before),
              static_cast<double>(needs.kv + needs.activations - backend::cuda::kNcclCardBytes), 4096);
}

}  // namespace
}  // namespace nibble
