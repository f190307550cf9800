#include "app/group_options.h"

#include "checkpoint/testing.h"

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
}

}  // namespace
}  // namespace nibble::app
