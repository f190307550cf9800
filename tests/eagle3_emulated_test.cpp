// A head on a card that is not there: its host code as it is, its kernels lane by lane.

#include "backend/cuda/eagle3/row_window.h"
#include "checkpoint/testing/files.h"
#include "eagle3_testing.h"

#include <cuda_runtime_api.h>  // the emulated one

namespace nibble::test {
namespace {

class Eagle3OnNoCard : public testing::Test {
 protected:
  void SetUp() override {
    backend::cuda::emulated_cuda() = {.card = {.name = "H100",
                                               .major = 9,
                                               .minor = 0,
                                               .multiprocessors = 8,
                                               .memory_bytes = int64_t{1} << 30,
                                               .cta_smem_bytes = 232448,
                                               .sm_smem_bytes = 233472,
                                               .integrated = false}};
  }
  // A replayed graph does nothing there.
  const Eagle3Setup setup_{.rows = 1000, .sequences = 5, .graphs = false};
};

class Eagle3Emulated : public Eagle3OnNoCard, public testing::WithParamInterface<const char*> {};

TEST_P(Eagle3Emulated, computes_what_the_host_does) { check_eagle3_golden(GetParam(), setup_); }

INSTANTIATE_TEST_SUITE_P(Published, Eagle3Emulated, testing::ValuesIn(kEagle3Variants),
                         [](const auto& tested) { return std::string(tested.param); });

// A window and what is fed back normed; two layers; mask tokens, with a window.
class Eagle3EmulatedTraffic : public Eagle3Emulated {};
TEST_P(Eagle3EmulatedTraffic, several_sequences_read_and_draft_together) {
  const Eagle3Target target;
  const model::eagle3::Head head(target.load(kEagle3Data / GetParam()));
  const std::unique_ptr<Eagle3Runner> runner = make_eagle3_runner(head.weights(), setup_);
  check_eagle3_traffic(head, *runner, {.rounds = 2, .most_rows = 2, .drafts = {1, 8, 6}});
}

TEST_P(Eagle3EmulatedTraffic, what_is_unread_comes_with_the_draft) {
  const Eagle3Target target;
  const model::eagle3::Head head(target.load(kEagle3Data / GetParam()));
  const std::unique_ptr<Eagle3Runner> runner = make_eagle3_runner(head.weights(), setup_);
  check_eagle3_traffic(head, *runner, {.rounds = 2, .most_rows = 3, .drafts = {1, 5, 3}, .unread = true});
}

TEST_P(Eagle3EmulatedTraffic, who_finds_none_drafts_nothing) {
  const Eagle3Target target;
  const model::eagle3::Head head(target.load(kEagle3Data / GetParam()));
  check_eagle3_room(head, setup_);
}

TEST_P(Eagle3EmulatedTraffic, prompts_take_several_passes) {
  const Eagle3Target target;
  const model::eagle3::Head head(target.load(kEagle3Data / GetParam()));
  const std::unique_ptr<Eagle3Runner> runner = make_eagle3_runner(head.weights(), setup_);
  check_eagle3_traffic(head, *runner, {.sequences = 2, .rounds = 1, .most_rows = 90, .drafts = {2}});
}

INSTANTIATE_TEST_SUITE_P(Published, Eagle3EmulatedTraffic,
                         testing::Values("fc_norm", "two_layers", "p_eagle_speculators"),
                         [](const auto& tested) { return std::string(tested.param); });

// More rows and guesses together than a pass has; the second sequence alone has more rows.
TEST_F(Eagle3OnNoCard, guesses_made_at_once_take_several_passes) {
  const Eagle3Target target;
  const model::eagle3::Head head(target.load(kEagle3Data / "p_eagle_speculators"));
  const std::unique_ptr<Eagle3Runner> runner = make_eagle3_runner(head.weights(), setup_);
  check_eagle3_traffic(head, *runner,
                       {.sequences = 4, .rounds = 1, .most_rows = 3, .drafts = {20, 1, 30}, .unread = true});
  const std::unique_ptr<Eagle3Runner> other = make_eagle3_runner(head.weights(), setup_);
  check_eagle3_traffic(head, *other, {.sequences = 2, .rounds = 1, .most_rows = 80, .drafts = {9}, .unread = true});
}

TEST(Eagle3Window, reaches_back_by_positions_not_rows) {
  using backend::cuda::first_row_seen;
  const std::vector<int64_t> positions = {3, 4, 9, 10};
  EXPECT_EQ(first_row_seen(positions, 10, 2), 2);
  EXPECT_EQ(first_row_seen(positions, 10, 5), 2);
  EXPECT_EQ(first_row_seen(positions, 10, 7), 1);
  EXPECT_EQ(first_row_seen(positions, 10, 100), 0);
  EXPECT_EQ(first_row_seen(positions, 4, 1), 1);
  // Rows of a draft: row 4 is at position 11.
  EXPECT_EQ(first_row_seen(positions, 12, 3), 3);
  EXPECT_EQ(first_row_seen(positions, 12, 2), 4);
  EXPECT_EQ(first_row_seen(positions, 15, 3), 6);
}

TEST(Eagle3Shapes, a_head_that_the_kernels_do_not_take_is_refused) {
  const Eagle3Target target;
  const auto refused = [&](auto change, const std::string& says) {
    backend::HeadWeights head = target.load(kEagle3Data / "plain");
    change(head);
    expect_error([&] { static_cast<void>(make_eagle3_runner(head, {.rows = 64})); }, Code::kUnsupported, says);
  };
  refused([](backend::HeadWeights& head) { head.dims.hidden = 36; },
          "a head's hidden_size: want a multiple of 8 up to 8192, found 36");
  refused([](backend::HeadWeights& head) { head.dims.head_dim = 256; },
          "a head's head_dim: want a multiple of 8 up to 128, found 256");
  refused([](backend::HeadWeights& head) { head.logit_scale = -1; }, "a head's logit_scale: want one above 0");
}

}  // namespace
}  // namespace nibble::test
