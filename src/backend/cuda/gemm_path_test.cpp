// The path on the device, against double products: what it rounds, plans and groups by itself.

#include "backend/cuda/gemm_path.h"
#include "backend/cuda/kernels/any/gemm_testing.h"
#include "backend/cuda/kernels/any/split_gemm_plan.h"
#include "backend/cuda/testing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

namespace nibble::backend::cuda {
namespace {

using layout::Packing;
using layout::RowOrder;

class GemmPathTest : public CudaTest {
 protected:
  void make(int64_t inter = 256) {
    config_.dims = {.hidden = 384, .heads = 8, .kv_heads = 1, .head_dim = 64, .inter = inter, .experts = 6, .topk = 4};
    config_.max_tokens = 130;
    config_.max_rows = 8;
    config_.swiglu_limit = 7;
    Carver measure(nullptr);
    static_cast<void>(GemmPath(config_, measure));
    memory_ = allocate_device(measure.bytes(), "test");
    cuda_check(cudaMemset(memory_.get(), 0xff, static_cast<size_t>(measure.bytes())));
    Carver place(memory_.get());
    path_.emplace(config_, place);
  }
  void check_moe();

  BackendConfig config_;
  DeviceBytes memory_;
  std::optional<GemmPath> path_;
};

// bf16 has 8 bits: a relative error of 2^-9 per activation, of which thousands add up like a random walk.
constexpr double kInputError = 0x1p-8;

TEST_F(GemmPathTest, dense_splits_rows_into_q_k_and_v) {
  make();
  const int tokens = 130, cols = 384, q = 512, k = 64, rows = q + 2 * k;
  for (const Packing packing : {Packing::kBf16, Packing::kMxfp8, Packing::kMxfp4}) {
    const GemmMatrix w(packing, rows, cols, RowOrder::kHeads64, 3);
    const std::vector<float> x = Values(4).floats(int64_t{tokens} * cols);
    const std::vector<Bf16> bias = gemm_bias(rows, 5);
    const DeviceArray<uint8_t> weights(w.packed);
    const DeviceArray<Bf16> on_bias(bias);
    const DeviceArray<float> on_x(x);
    const DeviceArray<float> out[] = {DeviceArray<float>(size_t{tokens} * q), DeviceArray<float>(size_t{tokens} * k),
                                      DeviceArray<float>(size_t{tokens} * k)};
    GemmArgs args{.packing = packing,
                  .order = RowOrder::kHeads64,
                  .weights = weights.get(),
                  .bias = on_bias.get(),
                  .rows = rows,
                  .cols = cols,
                  .tokens = tokens};
    args.parts[0] = {out[0].get(), 0, q};
    args.parts[1] = {out[1].get(), q, k};
    args.parts[2] = {out[2].get(), q + k, k};
    path_->dense(args, on_x.get(), on_);
    for (int part = 0; part < 3; ++part) {
      const std::vector<float> got = out[part].host();
      for (int t = 0; t < tokens; ++t)
        for (int r = 0; r < args.parts[part].rows; r += 7) {
          double want = 0, size = 0;
          const int row = args.parts[part].first_row + r;
          for (int c = 0; c < cols; ++c) {
            const double term = w.at(row, c) * x[static_cast<size_t>(t * cols + c)];
            want += term;
            size += std::abs(term);
          }
          want += bias[static_cast<size_t>(row)].to_float();
          ASSERT_NEAR(got[static_cast<size_t>(t * args.parts[part].rows + r)], want, kInputError * size + 1e-5)
              << "part " << part << ", token " << t << ", row " << r;
        }
    }
  }
}

TEST_F(GemmPathTest, sums_are_the_products_in_the_packed_order_of_rows) {
  make();
  const int cols = 384, rows = 640;
  for (const Packing packing : {Packing::kBf16, Packing::kMxfp8, Packing::kMxfp4})
    for (const int tokens : {1, 9, 130}) {
      const GemmMatrix w(packing, rows, cols, RowOrder::kHeads64, 3);
      const std::vector<float> x = Values(4).floats(int64_t{tokens} * cols);
      const DeviceArray<uint8_t> weights(w.packed);
      const DeviceArray<float> on_x(x);
      const GemmArgs args{.packing = packing, .weights = weights.get(), .rows = rows, .cols = cols, .tokens = tokens};
      path_->round(on_x.get(), args, on_);
      const SplitSums sums = path_->sums(args, on_);
      const bool tiles = sums.order == SplitSums::Order::kTiles;
      const int64_t pitch = tiles ? split_pitch(tokens, rows) : int64_t{tokens} * rows;
      const size_t bytes = tiles ? sizeof(Bf16) : sizeof(float);
      std::vector<uint8_t> got(static_cast<size_t>(sums.splits * pitch) * bytes);
      cuda_check(cudaDeviceSynchronize());
      cuda_check(cudaMemcpy(got.data(), sums.at, got.size(), cudaMemcpyDeviceToHost));
      for (int t = 0; t < tokens; ++t)
        for (int r = 0; r < rows; r += 7) {
          double want = 0, size = 0, value = 0, rounding = 0;
          for (int c = 0; c < cols; ++c) {
            const double term =
                w.at(layout::source_row(RowOrder::kHeads64, r / 16, r % 16), c) * x[static_cast<size_t>(t * cols + c)];
            want += term;
            size += std::abs(term);
          }
          for (int s = 0; s < sums.splits; ++s) {
            const int64_t place = s * pitch + (tiles ? place_in_sums(tokens, t, r) : int64_t{t} * rows + r);
            const uint8_t* const at = got.data() + static_cast<size_t>(place) * bytes;
            Bf16 rounded;
            float sum = 0;
            std::memcpy(tiles ? static_cast<void*>(&rounded) : &sum, at, bytes);
            if (tiles) sum = rounded.to_float();
            value += sum;
            rounding += tiles ? std::abs(sum) * 0x1.02p-8 : 0;
          }
          ASSERT_NEAR(value, want, kInputError * size + rounding + 1e-5) << "token " << t << ", row " << r;
        }
    }
}

struct Expert {
  const GemmMatrix &up, &down;
  const Bf16 *up_bias, *down_bias;
};

// What one expert makes of a token's x; each result with the sum of its terms' sizes.
std::vector<std::pair<double, double>> expert_result(const Expert& e, const float* x) {
  std::vector<double> u;
  for (int c = 0; c < e.down.cols; ++c) {
    double sums[2] = {e.up_bias[2 * c].to_float(), e.up_bias[2 * c + 1].to_float()};
    for (int i = 0; i < 2; ++i)
      for (int n = 0; n < e.up.cols; ++n) sums[i] += e.up.at(2 * c + i, n) * x[n];
    const double gate = std::min(sums[0], 7.0), linear = std::clamp(sums[1], -7.0, 7.0);
    u.push_back(gate / (1 + std::exp(-1.702 * gate)) * (linear + 1));
  }
  std::vector<std::pair<double, double>> results;
  for (int r = 0; r < e.down.rows; ++r) {
    auto& [sum, size] = results.emplace_back(e.down_bias[r].to_float(), 0);
    for (int c = 0; c < e.down.cols; ++c) {
      const double term = e.down.at(r, c) * u[static_cast<size_t>(c)];
      sum += term;
      size += std::abs(term);
    }
  }
  return results;
}

void GemmPathTest::check_moe() {
  const Dims& d = config_.dims;
  const auto hidden = static_cast<int>(d.hidden), inter = static_cast<int>(d.inter), topk = static_cast<int>(d.topk);
  const GemmExperts up(6, 2 * inter, hidden, RowOrder::kGateUp, 11), down(6, hidden, inter, RowOrder::kPlain, 12);
  const std::vector<Bf16> up_bias = gemm_bias(6 * 2 * inter, 13), down_bias = gemm_bias(6 * hidden, 14);
  const DeviceArray<uint8_t> on_up(up.packed), on_down(down.packed);
  const DeviceArray<Bf16> on_up_bias(up_bias), on_down_bias(down_bias);
  const std::pair<int, bool> cases[] = {{1, false}, {9, false}, {130, false}, {9, true}};
  for (const auto& [tokens, wide_scales] : cases) {
    if (wide_scales) path_->with_wide_scales();
    const std::vector<float> x = Values(15).floats(int64_t{tokens} * hidden, 0.25f);
    const std::vector<int32_t> ids = routed(GemmRouting::kRandom, tokens, topk, 6, 16);
    const std::vector<float> weights(ids.size(), 0.25f);
    const DeviceArray<float> on_x(x), on_weights(weights);
    const DeviceArray<int32_t> on_ids(ids);
    const DeviceArray<float> residual(std::vector<float>(static_cast<size_t>(tokens * hidden), 2.5f));
    const ExpertSums experts = path_->moe({.up = on_up.get(),
                                           .down = on_down.get(),
                                           .up_bias = on_up_bias.get(),
                                           .down_bias = on_down_bias.get(),
                                           .x = on_x.get(),
                                           .expert_ids = on_ids.get(),
                                           .expert_weights = on_weights.get(),
                                           .tokens = tokens},
                                          on_);
    any_norm_sums({.x = residual.get(), .sums = {}, .experts = experts, .tokens = tokens, .hidden = hidden}, on_);
    const std::vector<float> got = residual.host();
    for (int t = 0; t < tokens; t += 43) {
      std::vector<double> want(static_cast<size_t>(hidden), 2.5), size(static_cast<size_t>(hidden), 0);
      std::vector<double> rounding(static_cast<size_t>(hidden), 0);  // of the experts' bf16
      for (int k = 0; k < topk; ++k) {
        const auto e = static_cast<size_t>(ids[static_cast<size_t>(t * topk + k)]);
        const auto results =
            expert_result({up.matrices[e], down.matrices[e], &up_bias[e * 2 * static_cast<size_t>(inter)],
                           &down_bias[e * static_cast<size_t>(hidden)]},
                          &x[static_cast<size_t>(t * hidden)]);
        for (size_t r = 0; r < results.size(); ++r) {
          want[r] += 0.25 * results[r].first;
          size[r] += 0.25 * results[r].second;
          rounding[r] += 0.25 * 0x1p-8 * std::abs(results[r].first);
        }
      }
      for (int r = 0; r < hidden; ++r)
        ASSERT_NEAR(got[static_cast<size_t>(t * hidden + r)], want[static_cast<size_t>(r)],
                    4 * kInputError * size[static_cast<size_t>(r)] + rounding[static_cast<size_t>(r)] + 1e-3)
            << tokens << " tokens, token " << t << ", row " << r;
    }
  }
}

TEST_F(GemmPathTest, moe_is_what_a_norm_adds_to_the_residual) {
  make();
  check_moe();
  EXPECT_EQ(counts_[static_cast<size_t>(Kernel::kSm90GemmExperts)], 0);
}

TEST_F(GemmPathTest, moe_of_equal_widths_is_that_too) {
  make(384);
  check_moe();
  const GemmInput input = path_->input(Packing::kBf16, 1);
  EXPECT_EQ(counts_[static_cast<size_t>(Kernel::kSm90GemmExperts)], input.rows > 0 ? 3 : 0) << "one launch on wgmma";
}

}  // namespace
}  // namespace nibble::backend::cuda
