#include "app/options/settings.h"

#include "checkpoint/testing/files.h"

#include <gtest/gtest.h>

namespace nibble::app {
namespace {

TEST(GroupOptions, a_rank_of_a_machine_has_a_card_of_its_own) {
  EXPECT_EQ(card_of({}), "") << "the first that it sees";
  EXPECT_EQ(card_of({{"CUDA_VISIBLE_DEVICES", "2,3"}}), "");
  EXPECT_EQ(card_of({{"LOCAL_RANK", "1"}}), "1");
  EXPECT_EQ(card_of({{"OMPI_COMM_WORLD_LOCAL_RANK", "3"}}), "3");
  EXPECT_EQ(card_of({{"LOCAL_RANK", "1"}, {"CUDA_VISIBLE_DEVICES", "2,3"}}), "3");
  EXPECT_EQ(card_of({{"LOCAL_RANK", "1"}, {"CUDA_VISIBLE_DEVICES", "GPU-8f,GPU-2a"}}), "GPU-2a");
}

TEST(GroupOptions, a_process_that_is_shown_one_card_or_none_keeps_it) {
  EXPECT_EQ(card_of({{"LOCAL_RANK", "1"}, {"CUDA_VISIBLE_DEVICES", "5"}}), "");
  EXPECT_EQ(card_of({{"LOCAL_RANK", "1"}, {"CUDA_VISIBLE_DEVICES", ""}}), "");
}

TEST(GroupOptions, cards_that_are_too_few_are_refused_by_name) {
  test::expect_error([] { (void)card_of({{"LOCAL_RANK", "2"}, {"CUDA_VISIBLE_DEVICES", "2,3"}}); },
                     Code::kInvalidRequest,
                     "environment CUDA_VISIBLE_DEVICES 2,3: want a card for LOCAL_RANK 2, found 2");
  test::expect_error([] { (void)card_of({{"LOCAL_RANK", "x"}}); }, Code::kInvalidRequest, "environment LOCAL_RANK");
  test::expect_error([] { (void)card_of({{"LOCAL_RANK", "2147483647"}}); }, Code::kInvalidRequest,
                     "environment LOCAL_RANK: want a whole number from 0 to 1048576, found 2147483647");
}

TEST(GroupOptions, a_head_is_refused_where_each_process_has_a_card) {
  ModelOptions options;
  options.speculation.method = engine::DraftMethod::kEagle3;
  options.speculative_model = "a head";
  options.run.backend = BackendKind::kCuda;
  EXPECT_NO_THROW(require_speculation(options));
  options.group.count = 2;
  test::expect_error([&] { require_speculation(options); }, Code::kUnsupported,
                     "--speculative eagle3: want one process where cards compute, found --nnodes 2");
  options.run.backend = BackendKind::kCpu;
  EXPECT_NO_THROW(require_speculation(options));
}

TEST(GroupOptions, a_draft_model_is_refused_where_ranks_are_processes_or_cards) {
  ModelOptions options;
  options.speculation.method = engine::DraftMethod::kDraft;
  test::expect_error([&] { require_speculation(options); }, Code::kInvalidRequest,
                     "--speculative draft: want --speculative-model MODEL");
  options.speculative_model = "a model";
  options.run.backend = BackendKind::kCuda;
  EXPECT_NO_THROW(require_speculation(options));
  options.run.ranks.count = 2;
  test::expect_error([&] { require_speculation(options); }, Code::kUnsupported,
                     "--speculative draft: want one card, found --tensor-parallel-size 2");
  options.run.backend = BackendKind::kCpu;
  EXPECT_NO_THROW(require_speculation(options));
  options.group.count = 2;
  test::expect_error([&] { require_speculation(options); }, Code::kUnsupported,
                     "--speculative draft: want one process, found --nnodes 2");
}

}  // namespace
}  // namespace nibble::app
