#include "backend/cuda/card/device_facts.h"

#include "backend/cuda/arch/arch.h"
#include "base/error.h"

#include <gtest/gtest.h>

namespace nibble::backend::cuda {
namespace {

const DeviceFacts kH100 = {.name = "H100",
                           .major = 9,
                           .multiprocessors = 132,
                           .memory_bytes = int64_t{80} << 30,
                           .cta_smem_bytes = 232448,
                           .sm_smem_bytes = 233472};

TEST(arch_mask, a_name_that_is_none_is_refused_with_those_that_are) {
  EXPECT_EQ(card_arch("sm_121").code(), 121);
  EXPECT_EQ(card_arch("sm_80").code(), 80);
  for (const char* const name : {"80", "sm_75", "sm_90a", "SM_80"}) {
    try {
      static_cast<void>(card_arch(name));
      FAIL() << name;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Code::kInvalidRequest);
      EXPECT_EQ(std::string(e.what()),
                std::string("want sm_80, sm_86, sm_89, sm_90, sm_100, sm_120, sm_121, found ") + name);
    }
  }
}

TEST(arch_mask, a_card_taken_for_an_older_one_has_its_kernels_and_its_shared_memory) {
  const DeviceFacts a100 = taken_for(kH100, card_arch("sm_80"));
  EXPECT_EQ(a100.name, "H100 as sm_80");
  EXPECT_EQ(a100.multiprocessors, 132);
  EXPECT_EQ(a100.memory_bytes, kH100.memory_bytes);
  EXPECT_EQ(a100.cta_smem_bytes, 166912);  // cudaDeviceProp's of an A100
  EXPECT_EQ(a100.sm_smem_bytes, 167936);
  EXPECT_EQ(Card(a100).arches.size(), 1U);
  EXPECT_EQ(Card(a100).arches.front().name, "neutral");
  EXPECT_EQ(taken_for(a100, card_arch("sm_90")).cta_smem_bytes, 166912);  // never more than there is
}

TEST(arch_mask, hoppers_kernels_are_not_in_code_for_older_cards) {
  const auto first = [](int code) {
    DeviceFacts card = kH100;
    card.code = code;
    return Card(card).arches.front().name;
  };
  EXPECT_EQ(first(0), "sm90");
  EXPECT_EQ(first(90), "sm90");
  EXPECT_EQ(first(80), "neutral");
}

}  // namespace
}  // namespace nibble::backend::cuda
