// The grouped experts on the device, against double products.

#include "backend/cuda/kernels/any/grouped.h"

#include "backend/cuda/kernels/any/gemm_testing.h"
#include "backend/cuda/testing.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace nibble::backend::cuda {
namespace {

using layout::RowOrder;

struct Case {
  GemmRouting routing;
  int tokens, experts, tile;
  int hidden = 2880, inter = 2880;
};

class Grouped : public CudaTest {
 protected:
  void check(const Case& c);
  [[nodiscard]] static GemvDevice device() {
    cudaDeviceProp prop{};
    cuda_check(cudaGetDeviceProperties(&prop, 0));
    return {prop.multiProcessorCount, static_cast<int64_t>(prop.sharedMemPerBlockOptin),
            static_cast<int64_t>(prop.sharedMemPerMultiprocessor)};
  }
};

// Every kernel twice, the second time with half the warps: the same bits. Results begin poisoned (DeviceArray).
void Grouped::check(const Case& c) {
  constexpr int kTopk = 4;
  SCOPED_TRACE(testing::Message() << c.tokens << " tokens, " << c.experts << " experts, routing "
                                  << static_cast<int>(c.routing) << ", tiles of " << c.tile);
  const GemmExperts up(c.experts, 2 * c.inter, c.hidden, RowOrder::kGateUp, 11);
  const GemmExperts down(c.experts, c.hidden, c.inter, RowOrder::kPlain, 12);
  const std::vector<uint16_t> x = random_16(false, int64_t{c.tokens} * c.hidden, 13);
  const std::vector<Bf16> up_bias = gemm_bias(c.experts * 2 * c.inter, 14);
  const std::vector<Bf16> down_bias = gemm_bias(c.experts * c.hidden, 15);
  const std::vector<int32_t> ids = routed(c.routing, c.tokens, kTopk, c.experts, 16);
  const PlainGroups groups = plain_groups(ids, c.experts, c.tile);
  const auto pairs = static_cast<int>(ids.size());
  const DeviceArray<uint8_t> on_up(up.packed), on_down(down.packed);
  const DeviceArray<uint16_t> on_x(x);
  const DeviceArray<Bf16> on_up_bias(up_bias), on_down_bias(down_bias);
  const DeviceArray<int32_t> on_pairs(groups.pairs), tile_counts(groups.tile_counts);
  const DeviceArray<ExpertTile> tiles(groups.tiles);
  const MoeGroups on_groups{on_pairs.get(), tiles.get(), tile_counts.get(), kTopk};
  std::vector<uint16_t> first_u;
  std::vector<float> first_y;
  for (const int warps : {0, 8}) {
    const GemvLaunch launch{.device = device(), .stream = on_.stream, .warps = warps};
    const DeviceArray<uint16_t> u(static_cast<size_t>(pairs) * static_cast<size_t>(c.inter));
    const DeviceArray<float> y(static_cast<size_t>(pairs) * static_cast<size_t>(c.hidden));
    grouped_up({.weights = on_up.get(),
                .bias = on_up_bias.get(),
                .x = reinterpret_cast<const F16*>(on_x.get()),
                .groups = on_groups,
                .u = reinterpret_cast<F16*>(u.get()),
                .hidden = c.hidden,
                .inter = c.inter},
               launch);
    grouped_down({.weights = on_down.get(),
                  .bias = on_down_bias.get(),
                  .u = reinterpret_cast<const F16*>(u.get()),
                  .groups = on_groups,
                  .y = y.get(),
                  .hidden = c.hidden,
                  .inter = c.inter},
                 launch);
    if (warps == 0) {
      first_u = u.host();
      first_y = y.host();
    } else {
      ASSERT_EQ(first_u, u.host());
      ASSERT_EQ(first_y, y.host());
    }
  }
  for (int pair = 0; pair < pairs; ++pair) {
    const auto e = static_cast<size_t>(ids[static_cast<size_t>(pair)]);
    for (const int channel : {0, c.inter - 1, pair * 7 % c.inter}) {
      const GatedWant want = gated_want(up.matrices[e], {x.data() + int64_t{pair / kTopk} * c.hidden, false},
                                        up_bias.data() + e * 2 * static_cast<size_t>(c.inter), channel);
      const float value = value_16(first_u[static_cast<size_t>(int64_t{pair} * c.inter + channel)], false);
      ASSERT_LE(std::abs(value - want.value), want.bound) << "pair " << pair << ", channel " << channel;
    }
    for (const int r : {0, c.hidden - 1, pair * 13 % c.hidden}) {
      const GemmSum want = down.matrices[e].dot(r, first_u.data() + int64_t{pair} * c.inter, false);
      const double exact =
          want.value + down_bias[e * static_cast<size_t>(c.hidden) + static_cast<size_t>(r)].to_float();
      ASSERT_LE(std::abs(first_y[static_cast<size_t>(int64_t{pair} * c.hidden + r)] - exact),
                kGemmError * (want.size + 1))
          << "pair " << pair << ", row " << r;
    }
  }
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

}  // namespace
}  // namespace nibble::backend::cuda
