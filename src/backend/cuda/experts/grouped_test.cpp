// The grouped experts on the device, against double products.

#include "backend/cuda/experts/experts.h"

#include "backend/cuda/testing/gemm.h"
#include "backend/cuda/testing/card.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace nibble::backend::cuda {
namespace {

struct Case {
  GemmRouting routing;
  int tokens, experts, tile;
  int hidden = 2880, inter = 2880;
};

class Grouped : public CudaTest {
 protected:
  void check(const Case& c);
  [[nodiscard]] static PlanDevice device() {
    cudaDeviceProp prop{};
    cuda_check(cudaGetDeviceProperties(&prop, 0));
    return {prop.multiProcessorCount, static_cast<int64_t>(prop.sharedMemPerBlockOptin),
            static_cast<int64_t>(prop.sharedMemPerMultiprocessor)};
  }
};

// Every kernel twice, the second time with half the warps: the same bits. Results begin poisoned (DeviceArray).
void Grouped::check(const Case& c) {
  SCOPED_TRACE(testing::Message() << c.tokens << " tokens, " << c.experts << " experts, routing "
                                  << static_cast<int>(c.routing) << ", tiles of " << c.tile);
  const PlainExperts plain{c.tokens, c.experts, c.hidden, c.inter,
                           routed(c.routing, c.tokens, PlainExperts::kTopk, c.experts, 16)};
  const PlainGroups groups = plain_groups(plain.ids, c.experts, c.tile);
  const auto pairs = static_cast<size_t>(plain.pairs());
  const DeviceArray<uint8_t> on_up(plain.up.packed), on_down(plain.down.packed);
  const DeviceArray<uint16_t> on_x(plain.x);
  const DeviceArray<Bf16> on_up_bias(plain.up_bias), on_down_bias(plain.down_bias);
  const DeviceArray<int32_t> on_pairs(groups.pairs), tile_counts(groups.tile_counts);
  const DeviceArray<ExpertTile> tiles(groups.tiles);
  const MoeGroups on_groups{on_pairs.get(), tiles.get(), tile_counts.get(), PlainExperts::kTopk};
  std::vector<uint16_t> first_u;
  std::vector<float> first_y;
  for (const int warps : {0, 8}) {
    const auto plan = [&](int64_t cols) {
      return plan_row_warps(cols, {kGrouped.rows, kGrouped.stages, warps}, device());
    };
    const DeviceArray<uint16_t> u(pairs * static_cast<size_t>(plain.width()));
    const DeviceArray<float> y(pairs * static_cast<size_t>(c.hidden));
    GroupedUp::launch({.weights = on_up.get(),
                       .bias = on_up_bias.get(),
                       .x = reinterpret_cast<const F16*>(on_x.get()),
                       .groups = on_groups,
                       .u = reinterpret_cast<F16*>(u.get()),
                       .hidden = c.hidden,
                       .inter = c.inter},
                      plan(c.hidden), on_);
    GroupedDown::launch({.weights = on_down.get(),
                         .bias = on_down_bias.get(),
                         .u = reinterpret_cast<const F16*>(u.get()),
                         .groups = on_groups,
                         .y = y.get(),
                         .hidden = c.hidden,
                         .inter = plain.width()},
                        plan(plain.width()), on_);
    if (warps == 0) {
      first_u = u.host();
      first_y = y.host();
    } else {
      ASSERT_EQ(first_u, u.host());
      ASSERT_EQ(first_y, y.host());
    }
  }
  plain.expect(first_u, first_y, 0);
}

TEST_F(Grouped, experts_are_the_plain_product_for_ragged_empty_and_full_experts) {
  for (const int tile : {8, 16, 24})
    for (const int tokens : {1, 9, 17, 65, 129, 512})
      for (const GemmRouting routing : {GemmRouting::kRandom, GemmRouting::kSameForAll})
        check({routing, tokens, 7, tile, 192, 256});
}

TEST_F(Grouped, experts_are_the_plain_product_at_the_model_s_widths) {
  check({GemmRouting::kRandom, 41, 5, 24});
  check({GemmRouting::kSameForAll, 33, 4, 8});
}

TEST_F(Grouped, experts_are_the_plain_product_at_ranks_widths) {
  for (const int inter : {1440, 736, 672, 384, 192, 32})
    for (const int tile : {8, 24}) check({GemmRouting::kRandom, 41, 5, tile, inter < 700 ? 576 : 2880, inter});
}

}  // namespace
}  // namespace nibble::backend::cuda
