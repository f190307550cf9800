#include "backend/cuda/cuda_backend.h"

#include "base/machine.h"

#include <gtest/gtest.h>

namespace nibble::backend::cuda {
namespace {

// A Spark after a download: 8 GB lie idle, 110 GB can be had, most of them pages of the model's files.
constexpr std::string_view kMeminfo =
    "MemTotal:       125513284 kB\nMemFree:         7812500 kB\nMemAvailable:   107421875 kB\nBuffers:          204800 "
    "kB\nCached:         99800000 kB\nHugePages_Total:       0\n";
constexpr CudaMemory kDriver = {.free_bytes = 8'000'000'000, .total_bytes = 128'525'602'816};

TEST(card_memory, an_integrated_card_has_what_the_system_can_give) {
  const auto available = meminfo_bytes(kMeminfo, "MemAvailable");
  const CudaMemory spark = usable_memory(kDriver, true, available);
  EXPECT_EQ(spark.free_bytes, 110'000'000'000);
  EXPECT_EQ(spark.total_bytes, kDriver.total_bytes);
  EXPECT_EQ(usable_memory(kDriver, true, int64_t{1} << 40).free_bytes, kDriver.total_bytes);
}

TEST(card_memory, the_driver_knows_a_card_with_memory_of_its_own) {
  EXPECT_EQ(usable_memory(kDriver, false, meminfo_bytes(kMeminfo, "MemAvailable")).free_bytes, kDriver.free_bytes);
}

TEST(card_memory, a_system_that_does_not_say_leaves_the_drivers_answer) {
  EXPECT_EQ(usable_memory(kDriver, true, std::nullopt).free_bytes, kDriver.free_bytes);
}

}  // namespace
}  // namespace nibble::backend::cuda
