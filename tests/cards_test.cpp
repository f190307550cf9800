// The backend of several cards, over launchers that only count (launches_test.cpp): each rank's calls are for its own
// card, on its own thread; what they share; what is refused; how a failure ends them.

#include "backend/cuda/comm/sums.h"
#include "backend/cuda/emulation/launchers.h"
#include "backend/cuda/card_member.h"
#include "base/error.h"
#include "cards_testing.h"
#include "checkpoint/testing/files.h"
#include "convert/synth.h"
#include "model/gpt_oss.h"
#include "one_sequence.h"

#include <gtest/gtest.h>

#include <cuda_runtime_api.h>  // the emulated one

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace nibble {
namespace {

using backend::Ranks;
using backend::RunConfig;
using test::kCard;
using test::small_model_of_ranks;

class Cards : public testing::Test {
 protected:
  void SetUp() override { backend::cuda::emulated_cuda() = {.card = kCard, .cards = 4}; }

  std::unique_ptr<backend::Backend> make(const RunConfig& run, std::vector<int> devices = {}) {
    auto be = backend::make_cuda_backend(backend_, run, {.devices = std::move(devices)});
    gpt_ = model::load(*be, config_, weights_.weights());
    return be;
  }

  model::Step decode_step(int rows) const { return test::first_tokens(rows, greedy_); }
  std::vector<backend::DrawnToken> run(backend::Backend& be, int rows = 2) { return run(be, decode_step(rows)); }
  std::vector<backend::DrawnToken> run(backend::Backend& be, const model::Step& step) {
    return be.wait(*model::forward(be, gpt_, step));
  }

  const model::ModelConfig config_ = small_model_of_ranks();
  const backend::BackendConfig backend_ =
      model::backend_config(config_, {.max_tokens = 64, .max_rows = 16, .kv_pages = {64, 64}});
  const convert::DummyWeights weights_{config_, 1, nullptr};
  const backend::SamplingParams greedy_{.temperature = 0};
  model::GptOss gpt_;
};

int64_t strayed() { return backend::cuda::emulated_cuda().strayed; }

TEST_F(Cards, are_each_used_by_their_ranks_thread_alone) {
  for (const int ranks : {1, 2, 4}) {
    for (const bool eager : {false, true}) {
      const std::vector<int> devices = ranks == 1 ? std::vector{3} : std::vector<int>();
      backend::cuda::emulated_cuda() = {.card = kCard, .cards = 4};
      auto be = make({.ranks = {.count = ranks}, .eager = eager}, devices);
      for (int i = 0; i < 4; ++i) EXPECT_EQ(run(*be).size(), 2u);
      EXPECT_EQ(be->graph_replays(), eager ? 0 : 2);
      be->copy_page({.kind = backend::LayerKind::kFull, .from = 0, .to = 1});
      model::Step walked = decode_step(3);
      walked.sample_rows.clear();
      model::forward(*be, gpt_, walked);
      const backend::SlotData logits = be->peek(backend::Slot::kLogits);
      EXPECT_EQ(logits.shape, (Shape{3, config_.dims.vocab})) << "of all ranks";
      EXPECT_EQ(strayed(), 0) << ranks << " ranks";
      for (int card = 0; card < 4; ++card)
        EXPECT_EQ(backend::cuda::emulated_cuda().events.at(static_cast<size_t>(card)) > 0,
                  ranks == 1 ? card == 3 : card < ranks)
            << "card " << card << " of " << ranks << " ranks";
      be.reset();
      EXPECT_EQ(strayed(), 0) << ranks << " ranks, when they end";
    }
  }
}

std::map<std::string, int64_t> launches_of(const backend::Backend& be) {
  std::map<std::string, int64_t> counts;
  for (const auto& [kernel, count] : be.launches()) counts[std::string(kernel)] = count;
  return counts;
}

TEST_F(Cards, add_up_twice_in_a_layer_and_pick_once) {
  const auto be = make({.ranks = {.count = 2}});
  for (int i = 0; i < 5; ++i) run(*be);  // eager, captured, replayed
  std::map<std::string, int64_t> counts = launches_of(*be);
  EXPECT_EQ(counts["any_push_reduce<f32>"], 5 * 2 * config_.dims.layers);
  EXPECT_EQ(counts["any_push_pick"], 5);
  EXPECT_EQ(counts["any_push_gather"] + counts["any_sample_pick"], 0);
  EXPECT_EQ(counts["any_sample_draw_f32"], 5);
  EXPECT_EQ(counts["any_embed_f32_bf16"] + counts["any_rope_table_f32"], 10) << "loading them is no launch";
}

// Sums of a filter and log-probabilities are of a whole row; a mask and a bias are a token's own.
TEST_F(Cards, gather_logits_where_a_draw_needs_them_all) {
  const std::vector<uint32_t> mask(static_cast<size_t>(config_.dims.vocab / 32), ~0u);
  backend::SamplingParams top_p = greedy_, biased = greedy_;
  top_p.temperature = 1;
  top_p.top_p = 0.5f;
  biased.logit_bias = {{3, 1.0f}};
  const auto gathers = [&](const auto& change) {
    const auto be = make({.ranks = {.count = 2}});
    model::Step step = decode_step(2);
    change(step.sample_rows[1]);
    run(*be, step);
    std::map<std::string, int64_t> counts = launches_of(*be);
    EXPECT_EQ(counts["any_push_gather"] + counts["any_push_pick"], 1);
    EXPECT_EQ(counts["any_push_gather"], counts["any_sample_pick"]);
    return counts["any_push_gather"];
  };
  EXPECT_EQ(gathers([&](backend::SampleRow& row) { row.params = &top_p; }), 1);
  EXPECT_EQ(gathers([](backend::SampleRow& row) { row.logprobs = 0; }), 1);
  EXPECT_EQ(gathers([&](backend::SampleRow& row) { row.mask = mask; }), 0);
  EXPECT_EQ(gathers([&](backend::SampleRow& row) { row.params = &biased; }), 0);
}

TEST_F(Cards, alone_neither_add_up_nor_gather) {
  const auto be = make({});
  run(*be);
  for (const auto& [kernel, count] : launches_of(*be)) EXPECT_EQ(kernel.find("push"), std::string::npos) << kernel;
}

TEST_F(Cards, take_the_memory_that_the_budget_says_each) {
  for (const int ranks : {2, 4}) {
    backend::cuda::emulated_cuda() = {.card = kCard, .cards = 4};
    const RunConfig run{.ranks = {.count = ranks}};
    const backend::MemoryNeeds needs = backend::cuda_memory_needs(backend_, run);
    const auto be = backend::make_cuda_backend(backend_, run);
    EXPECT_NEAR(static_cast<double>(backend::cuda::emulated_cuda().allocated), ranks * (needs.kv + needs.activations),
                ranks * 4096)
        << ranks << " ranks";
  }
}

TEST_F(Cards, say_how_many_they_are) {
  EXPECT_EQ(make({.ranks = {.count = 2}})->modes(),
            "2 cards, each: experts auto, activations bf16, attention flash, CUDA graphs on, kernels of sm90, then "
            "neutral");
  EXPECT_TRUE(make({.ranks = {.count = 2}}, {1, 1})->modes().starts_with("2 ranks on 1 card, each: "));
}

TEST_F(Cards, that_are_too_few_or_apart_are_refused) {
  test::expect_error([&] { make({.ranks = {.count = 3}}); }, Code::kInvalidRequest, "want a number that divides");
  backend::cuda::emulated_cuda().cards = 2;
  test::expect_error([&] { make({.ranks = {.count = 4}}); }, Code::kUnsupported,
                     "cuda: --tensor-parallel-size 4: want 4 cards, found 2");
  backend::cuda::emulated_cuda().peers = false;
  test::expect_error([&] { make({.ranks = {.count = 2}}); }, Code::kUnsupported,
                     "want cards that reach each other's memory, found that card 0 cannot card 1's");
}

TEST_F(Cards, end_together_when_one_fails) {
  const auto be = make({.ranks = {.count = 2}});
  run(*be);
  const backend::Ticket ticket = *model::forward(*be, gpt_, decode_step(2));
  backend::cuda::emulated_cuda().failed_card = 1;
  const std::string_view says = "rank 1 of 2, on card 1, failed, and all end with it: cuda: ";
  test::expect_error([&] { static_cast<void>(be->wait(ticket)); }, Code::kDevice, says);
  backend::cuda::emulated_cuda().failed_card = -1;
  test::expect_error([&] { run(*be); }, Code::kDevice, says);
}

TEST_F(Cards, fail_together_while_a_step_is_prepared) {
  const auto be = make({.ranks = {.count = 2}});
  for (int i = 0; i < 3; ++i) run(*be);
  backend::cuda::emulated_cuda().failed_card = 0;
  const std::string_view says = "rank 0 of 2, on card 0, failed";
  for (int i = 0; i < 2; ++i)
    test::expect_error([&] { model::forward(*be, gpt_, decode_step(2)); }, Code::kDevice, says);
}

TEST_F(Cards, have_no_room_is_said_of_a_rank_as_it_is) {
  backend::cuda::emulated_cuda().card.memory_bytes = int64_t{1} << 30;
  const backend::BackendConfig large =
      model::backend_config(config_, {.max_tokens = 64, .max_rows = 16, .kv_pages = {1 << 20, 1 << 20}});
  test::expect_error([&] { static_cast<void>(backend::make_cuda_backend(large, {.ranks = {.count = 2}})); },
                     Code::kOutOfMemory, "activations and KV pages: want ");
  EXPECT_EQ(strayed(), 0);
}

}  // namespace
}  // namespace nibble
