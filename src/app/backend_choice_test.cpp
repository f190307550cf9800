#include "app/backend_choice.h"

#include <gtest/gtest.h>

namespace nibble::app {
namespace {

CardFacts card(int64_t needs, int64_t room) {
  return {.name = "H200",
          .why_not = {},
          .needs = {.weights = needs},
          .room = {.bytes = room, .where = "the card has 8.00 GB free of 24.0 GB"}};
}

TEST(backend_choice, takes_a_card_that_has_room) {
  for (const int64_t room : {14'000'000'000, 140'000'000'000}) {
    const BackendChoice choice = choose_backend(card(14'000'000'000, room), "");
    EXPECT_EQ(choice.backend, BackendKind::kCuda);
    EXPECT_EQ(choice.why, "backend cuda: H200 has room for the model");
  }
}

TEST(backend_choice, says_what_is_wanted_where_the_card_has_too_little) {
  const BackendChoice choice = choose_backend(card(14'000'000'000, 8'000'000'000), "");
  EXPECT_EQ(choice.backend, BackendKind::kCpu);
  EXPECT_EQ(choice.why,
            "backend cpu: too little memory on the card, H200: want 14 GB: weights 14 GB; the card has 8.00 GB free "
            "of 24.0 GB");
}

TEST(backend_choice, says_why_there_is_no_card) {
  CardFacts none = card(1, 2);
  none.why_not = "want a GPU, found none";
  const BackendChoice choice = choose_backend(none, "");
  EXPECT_EQ(choice.backend, BackendKind::kCpu);
  EXPECT_EQ(choice.why, "backend cpu: want a GPU, found none");
}

TEST(backend_choice, says_nothing_where_no_card_is_expected) {
  CardFacts none = card(1, 2);
  none.why_not = "this program is built without CUDA";
  none.expected = false;
  const BackendChoice choice = choose_backend(none, "");
  EXPECT_EQ(choice.backend, BackendKind::kCpu);
  EXPECT_EQ(choice.why, "");
}

TEST(backend_choice, a_flag_of_the_cpu_decides) {
  const BackendChoice choice = choose_backend(card(1, 2), "--cpu-isa");
  EXPECT_EQ(choice.backend, BackendKind::kCpu);
  EXPECT_EQ(choice.why, "backend cpu: --cpu-isa is not for cards");
}

TEST(backend_choice, what_was_asked_for_stays) {
  for (const BackendKind kind : {BackendKind::kCpu, BackendKind::kCuda, BackendKind::kReference}) {
    ModelOptions options;  // of no model: nothing is read
    options.backend = kind;
    EXPECT_EQ(with_backend(options, 100).backend, kind);
    EXPECT_EQ(with_backend(options, 100).backend_why, "");
  }
}

TEST(backend_choice, nothing_is_read_where_a_flag_decides) {
  ModelOptions options;
  options.cpu_isa = backend::CpuIsa::kBaseline;
  EXPECT_EQ(with_backend(options, 100).backend_why, "backend cpu: --cpu-isa is not for cards");
}

}  // namespace
}  // namespace nibble::app
