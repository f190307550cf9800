// The decode kernels of the experts, run lane by lane on the host (gemv_emulated_test.cpp says what that shows).

#include "backend/cuda/testing/gemv_emulated.h"
#include "backend/cuda/testing/gemm.h"
#include "backend/cuda/experts/grouped.cuh"
#include "backend/cuda/experts/moe_down.cuh"
#include "backend/cuda/experts/moe_up.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

namespace nibble::backend::cuda {
namespace {

struct MoeCase {
  const char* name;
  int tokens, topk;
  std::vector<int32_t> ids;
  int hidden = 192, inter = 256;
  int parts = 1;
  [[nodiscard]] int routes() const { return tokens * topk; }
  [[nodiscard]] int width() const { return layout::block_pair_width(inter); }  // of u
};

struct Moe {
  int experts = 0;
  std::vector<Matrix> matrices;
  std::vector<uint8_t> packed;

  Moe(const std::vector<int32_t>& ids, int64_t rows, int64_t cols, RowOrder order) {
    experts = (*std::max_element(ids.begin(), ids.end()) / 4 + 1) * 4;
    for (int e = 0; e < experts; ++e) {
      matrices.emplace_back(Packing::kMxfp4, rows, cols, order, 100 + 10 * static_cast<uint64_t>(e));
      packed.insert(packed.end(), matrices.back().packed.begin(), matrices.back().packed.end() - 16);
    }
  }
};

// Logits whose choice is `ids`, in their order, with these weights.
struct Chosen {
  std::vector<float> logits, weights;

  Chosen(const MoeCase& test, int experts) {
    logits.resize(static_cast<size_t>(test.tokens * experts), -10);
    for (int t = 0; t < test.tokens; ++t) {
      double sum = 0;
      for (int k = 0; k < test.topk; ++k) {
        const float logit = 2 - 0.25f * static_cast<float>(k);
        logits[static_cast<size_t>(t * experts + test.ids[static_cast<size_t>(t * test.topk + k)])] = logit;
        sum += std::exp(logit);
      }
      for (int k = 0; k < test.topk; ++k)
        weights.push_back(static_cast<float>(std::exp(2 - 0.25f * static_cast<float>(k)) / sum));
    }
  }
};

double want_u(const Matrix& w, const std::vector<Bf16>& bias, size_t first_bias, int channel, const F16* x,
              double* size) {
  const auto [gate_sum, gate_size] = w.dot(2 * channel, x);
  const auto [up_sum, up_size] = w.dot(2 * channel + 1, x);
  const double gate = std::min(gate_sum + bias[first_bias].to_float(), 7.0);
  const double up = std::clamp(up_sum + bias[first_bias + 1].to_float(), -7.0, 7.0);
  *size = gate_size + up_size;
  return gate / (1 + std::exp(-1.702 * gate)) * (up + 1);
}

void expect_u(const MoeCase& test, const Moe& moe, const std::vector<Bf16>& bias, const std::vector<F16>& x,
              const std::vector<F16>& u) {
  for (int pair = 0; pair < test.routes(); ++pair)
    for (int c = 0; c < test.inter; ++c) {
      const int e = test.ids[static_cast<size_t>(pair)];
      double size = 0;
      const double want =
          want_u(moe.matrices[static_cast<size_t>(e)], bias, static_cast<size_t>(e * 2 * test.inter + 2 * c), c,
                 x.data() + pair / test.topk * test.hidden, &size);
      const float got = u[static_cast<size_t>(pair * test.width() + c)].to_float();
      ASSERT_LE(std::abs(got - want), 0x1p-11 * std::abs(want) + 0x1p-24 + 10 * kSumError * size)
          << "pair " << pair << ", channel " << c << ": " << got << ' ' << want;
    }
  for (int pair = 0; pair < test.routes(); ++pair)
    for (int c = test.inter; c < test.width(); ++c)
      ASSERT_EQ(u[static_cast<size_t>(pair * test.width() + c)].bits, 0) << "filled up";
}

void check_up(const MoeCase& test) {
  SCOPED_TRACE(test.name);
  const Moe moe(test.ids, 2 * test.inter, test.hidden, RowOrder::kGateUp);
  const Chosen chosen(test, moe.experts);
  const std::vector<Bf16> bias = random_bf16(static_cast<size_t>(moe.experts * 2 * test.inter), 8);
  const std::vector<F16> want_x = random_f16(static_cast<size_t>(test.tokens * test.hidden), 9);
  std::vector<F16> x(want_x.size(), F16::from_float(kNan));
  std::vector<float> logits(chosen.logits.size(), kNan), weights(test.ids.size(), kNan);
  std::vector<int32_t> ids(test.ids.size(), -1);
  std::vector<F16> u(static_cast<size_t>(test.routes() * test.width()), F16::from_float(kNan));
  const MoeUp::Args args{.weights = moe.packed.data(),
                         .bias = bias.data(),
                         .x = x.data(),
                         .choice = {.logits = logits.data(),
                                    .expert_ids = ids.data(),
                                    .expert_weights = weights.data(),
                                    .experts = moe.experts,
                                    .topk = test.topk},
                         .u = u.data(),
                         .hidden = test.hidden,
                         .inter = test.inter,
                         .tokens = test.tokens};
  const RowWarpsPlan plan = plan_row_warps(test.hidden, MoeUp::kWish, kDevice);
  const emulation::Launch launch{.grid = static_cast<int>(plan.grid), .threads = plan.threads, .predecessor = [&] {
                                   x = want_x;
                                   logits = chosen.logits;
                                 }};
  check_args(args);
  ASSERT_EQ(emulation::run(launch,
                           [&] {
                             if (layout::slice_blocks(test.hidden) == 6) return moe_up<RowTile<6, kRunStages>>(args);
                             moe_up<RowTile<8, kRunStages>>(args);
                           }),
            "");
  EXPECT_EQ(ids, test.ids);
  for (size_t i = 0; i < weights.size(); ++i) EXPECT_NEAR(weights[i], chosen.weights[i], 1e-6);
  expect_u(test, moe, bias, want_x, u);
}

void expect_down(const MoeCase& test, const Moe& moe, const std::vector<float>& weights, const std::vector<Bf16>& bias,
                 const std::vector<F16>& u, const std::vector<float>& y) {
  for (int t = 0; t < test.tokens; ++t)
    for (int r = 0; r < test.hidden; ++r) {
      double want = 0, size = 2;
      for (int pair = t * test.topk; pair < (t + 1) * test.topk; ++pair) {
        const int e = test.ids[static_cast<size_t>(pair)];
        const auto [sum, abs_sum] = moe.matrices[static_cast<size_t>(e)].dot(r, u.data() + pair * test.inter);
        want += weights[static_cast<size_t>(pair)] * (sum + bias[static_cast<size_t>(e * test.hidden + r)].to_float());
        size += abs_sum;
      }
      const float got = y[static_cast<size_t>(t * test.hidden + r)];
      ASSERT_LE(std::abs(got - want), 2 * kSumError * size)
          << "token " << t << ", row " << r << ": " << got << ' ' << want;
    }
}

// What the two forms of down are given; u is there when the kernel before has ended.
struct DownInputs {
  Moe moe;
  Chosen chosen;
  std::vector<Bf16> bias;
  std::vector<F16> want_u, u;
  std::vector<float> y;

  explicit DownInputs(const MoeCase& test)
      : moe(test.ids, test.hidden, test.inter, RowOrder::kPlain),
        chosen(test, moe.experts),
        bias(random_bf16(static_cast<size_t>(moe.experts * test.hidden), 8)),
        want_u(random_f16(static_cast<size_t>(test.routes() * test.inter), 9)),
        u(want_u.size(), F16::from_float(kNan)),
        y(static_cast<size_t>(test.tokens * test.hidden), kNan) {}
  [[nodiscard]] ExpertChoice choice(const MoeCase& test) const {
    return {.logits = chosen.logits.data(), .experts = moe.experts, .topk = test.topk};
  }
};

void check_gemv_down(const MoeCase& test) {
  SCOPED_TRACE(testing::Message() << test.name << ", " << test.parts << " parts");
  DownInputs in(test);
  std::vector<float> second(in.y.size(), test.parts == 1 ? 0.0f : kNan);
  const GemvMoeDown::Args args{.weights = in.moe.packed.data(),
                               .bias = in.bias.data(),
                               .u = in.u.data(),
                               .choice = in.choice(test),
                               .y = {in.y.data(), second.data()},
                               .hidden = test.hidden,
                               .inter = test.inter,
                               .tokens = test.tokens,
                               .parts = test.parts};
  run_op<Packing::kMxfp4, Columns::kVectors, MoeDownOp>(args, plan_gemv({test.hidden, test.inter, test.parts}, kDevice),
                                                        {.predecessor = [&] { in.u = in.want_u; }});
  for (size_t i = 0; i < second.size(); ++i) in.y[i] += second[i];
  expect_down(test, in.moe, in.chosen.weights, in.bias, in.want_u, in.y);
}

void check_down(const MoeCase& test, const PlanDevice& device = kDevice) {
  SCOPED_TRACE(test.name);
  DownInputs in(test);
  std::vector<float> sums(static_cast<size_t>(test.routes() * test.hidden), kNan);
  std::vector<int> finished(static_cast<size_t>(test.hidden / layout::kTileRows), 0);
  const MoeDown::Args args{.weights = in.moe.packed.data(),
                           .bias = in.bias.data(),
                           .u = in.u.data(),
                           .choice = in.choice(test),
                           .y = in.y.data(),
                           .sums = sums.data(),
                           .finished = finished.data(),
                           .hidden = test.hidden,
                           .inter = test.inter,
                           .tokens = test.tokens};
  check_args(args);
  const RowWarpsPlan plan = plan_row_warps(test.inter, MoeDown::kWish, device);
  const emulation::Launch launch{
      .grid = static_cast<int>(plan.grid), .threads = plan.threads, .predecessor = [&] { in.u = in.want_u; }};
  ASSERT_EQ(emulation::run(launch,
                           [&] {
                             const layout::Slices slices = layout::slices_of(test.inter);
                             if (slices.missing > 0) return moe_down<RowTile<6, kRowStages, true>>(args, plan.rows);
                             if (slices.blocks == 6) return moe_down<RowTile<6>>(args, plan.rows);
                             moe_down<RowTile<8>>(args, plan.rows);
                           }),
            "");
  EXPECT_EQ(finished, std::vector<int>(finished.size(), 0)) << "for the next launch";
  expect_down(test, in.moe, in.chosen.weights, in.bias, in.want_u, in.y);
}

template <class Op>
void run_grouped(const typename Op::Args& args, int64_t cols, const PlanDevice& device, emulation::Launch launch) {
  check_args(args);
  const RowWarpsPlan plan = plan_row_warps(cols, kGrouped, device);
  launch.grid = static_cast<int>(plan.grid);
  launch.threads = plan.threads;
  const auto run = [&](auto tile) {
    ASSERT_EQ(emulation::run(launch, [&] { grouped<decltype(tile), Op>(args, plan.rows); }), "");
  };
  const layout::Slices slices = layout::slices_of(cols);
  if (slices.missing > 0) return run(RowTile<6, kGrouped.stages, true>{});
  slices.blocks == 6 ? run(RowTile<6, kGrouped.stages>{}) : run(RowTile<8, kGrouped.stages>{});
}

void check_grouped(const MoeCase& test, const PlanDevice& device = kDevice, std::vector<float>* result = nullptr) {
  SCOPED_TRACE(test.name);
  const Moe up(test.ids, 2 * test.inter, test.hidden, RowOrder::kGateUp);
  const Moe down(test.ids, test.hidden, test.width(), RowOrder::kPlain);
  const PlainGroups groups = plain_groups(test.ids, up.experts, grouped_tokens(test.hidden, test.width(), device));
  const std::vector<Bf16> bias = random_bf16(static_cast<size_t>(up.experts * 2 * test.inter), 8);
  const std::vector<Bf16> down_bias = random_bf16(static_cast<size_t>(up.experts * test.hidden), 10);
  const std::vector<F16> x = random_f16(static_cast<size_t>(test.tokens * test.hidden), 9);
  std::vector<F16> u(static_cast<size_t>(test.routes() * test.width()), F16::from_float(kNan));
  std::vector<float> y(static_cast<size_t>(test.routes() * test.hidden), kNan);
  std::vector<int32_t> counts(kTileCounts, 1 << 20);
  const MoeGroups device_groups{groups.pairs.data(), groups.tiles.data(), counts.data(), test.topk};
  const emulation::Launch launch{.predecessor = [&] { counts = groups.tile_counts; }};
  run_grouped<GroupedUpOp>({.weights = up.packed.data(),
                            .bias = bias.data(),
                            .x = x.data(),
                            .groups = device_groups,
                            .u = u.data(),
                            .hidden = test.hidden,
                            .inter = test.inter},
                           test.hidden, device, launch);
  expect_u(test, up, bias, x, u);
  run_grouped<GroupedDownOp>({.weights = down.packed.data(),
                              .bias = down_bias.data(),
                              .u = u.data(),
                              .groups = device_groups,
                              .y = y.data(),
                              .hidden = test.hidden,
                              .inter = test.width()},
                             test.width(), device, {});
  for (int pair = 0; pair < test.routes(); ++pair)
    for (int r = 0; r < test.hidden; ++r) {
      const int e = test.ids[static_cast<size_t>(pair)];
      const auto [sum, size] = down.matrices[static_cast<size_t>(e)].dot(r, u.data() + pair * test.width());
      ASSERT_NEAR(y[static_cast<size_t>(pair * test.hidden + r)],
                  sum + down_bias[static_cast<size_t>(e * test.hidden + r)].to_float(), kSumError * (size + 4));
    }
  if (result != nullptr) *result = y;
}

std::vector<int32_t> random_ids(int tokens, int topk, int experts, uint64_t seed) {
  std::vector<int32_t> ids;
  for (int t = 0; t < tokens; ++t) {
    std::vector<int32_t> own;
    for (uint64_t n = 0; static_cast<int>(own.size()) < topk; ++n) {
      const auto e = static_cast<int32_t>(draw(seed + static_cast<uint64_t>(t), n) % static_cast<uint32_t>(experts));
      if (std::find(own.begin(), own.end(), e) == own.end()) own.push_back(e);
    }
    ids.insert(ids.end(), own.begin(), own.end());
  }
  return ids;
}

// One expert per token: some experts have none, the others fill tiles of every size, whole and nearly empty.
std::vector<int32_t> lopsided_ids() {
  constexpr int kCounts[] = {0, 41, 1, 0, 8, 9, 0, 16, 17, 24, 26, 33};
  std::vector<int32_t> by_expert;
  for (size_t e = 0; e < std::size(kCounts); ++e)
    by_expert.insert(by_expert.end(), static_cast<size_t>(kCounts[e]), static_cast<int32_t>(e));
  std::vector<int32_t> ids;
  for (size_t i = 0; i < by_expert.size(); ++i) ids.push_back(by_expert[i * 37 % by_expert.size()]);
  return ids;
}

std::vector<MoeCase> moe_cases() {
  std::vector<int32_t> all_distinct(32);
  for (int i = 0; i < 32; ++i) all_distinct[static_cast<size_t>(i)] = 31 - i;
  std::vector<int32_t> same;
  for (int t = 0; t < 8; ++t)
    for (const int32_t e : {2, 0, 3, 1}) same.push_back((e + t) % 4);
  return {{"one token", 1, 4, {3, 0, 2, 5}},
          {"one token, one expert", 1, 1, {1}},
          {"two tokens that share one", 2, 4, {3, 0, 2, 5, 1, 2, 4, 6}},
          {"three tokens", 3, 4, random_ids(3, 4, 6, 20)},
          {"eight tokens on the same four experts in other orders", 8, 4, same},
          {"eight tokens, all experts distinct", 8, 4, all_distinct},
          {"eight tokens, random", 8, 4, random_ids(8, 4, 12, 40)},
          {"five tokens, two each", 5, 2, random_ids(5, 2, 4, 60)}};
}

// Inner widths in pairs of blocks whose first slice is short, by one pair and by two.
constexpr int kRanksInter[] = {1472, 704, 640, 64};

TEST(gemv_emulated, moe_up_is_the_plain_product_and_swiglu) {
  for (MoeCase test : moe_cases()) {
    test.inter = 64;
    check_up(test);
  }
  check_up({"real width", 1, 2, {1, 0}, 2880, 192});
  // A warp has 3 to none of 45 slices and fewer.
  check_up({"row tiles cut", 2, 2, {1, 0, 0, 2}, 2880, 32});
  check_up({"row tiles cut, one expert", 2, 1, {1, 1}, 2880, 32});
  check_up({"fewer slices than warps", 1, 1, {1}, 576, 32});
  for (const int inter : {1440, 32}) check_up({"a rank's", 3, 4, random_ids(3, 4, 6, 20), 192, inter});
  check_up({"more experts than lanes", 2, 4, {40, 7, 33, 1, 2, 39, 8, 0}, 192, 64});
}

// Every slice once, in runs that differ by one slice at most, whose first is where its warp is told.
TEST(gemv_emulated, runs_are_equal_and_follow_each_other) {
  for (const int warps : {4, 8, 16})
    for (const auto& [tiles, slices] :
         {std::pair{11, 15}, {6, 15}, {5, 1}, {0, 15}, {2, 8}, {1, 3}, {87, 15}, {240, 16}}) {
      std::vector<int> warp_of(static_cast<size_t>(tiles * slices), -1);
      const auto deal = [&, t = tiles, s = slices] {
        const Runs runs(t, s);
        const auto warp = static_cast<int>(threadIdx.x) / layout::kWarpLanes;
        if (threadIdx.x % layout::kWarpLanes != 0) return;
        EXPECT_EQ(runs.tile * s + runs.slice, runs.first(warp));
        EXPECT_LT(runs.slice, s);
        const int own = runs.end(warp) - runs.first(warp);
        EXPECT_TRUE(own == t * s / warps || own == t * s / warps + 1) << own;
        for (int i = runs.first(warp); i < runs.end(warp); ++i) warp_of[static_cast<size_t>(i)] = warp;
      };
      ASSERT_EQ(emulation::run({.grid = 1, .threads = warps * layout::kWarpLanes}, deal), "");
      EXPECT_TRUE(std::is_sorted(warp_of.begin(), warp_of.end()));
      EXPECT_TRUE(std::all_of(warp_of.begin(), warp_of.end(), [](int warp) { return warp >= 0; }));
    }
}

TEST(gemv_emulated, moe_down_is_the_weighted_sum) {
  for (MoeCase test : moe_cases()) {
    test.hidden = 80;
    check_down(test);
  }
  check_down({"real width", 3, 4, random_ids(3, 4, 6, 20), 32, 2880});
  for (const int inter : kRanksInter) check_down({"a rank's", 3, 4, random_ids(3, 4, 6, 20), 32, inter});
  check_down({"more row tiles than lanes for a warp", 2, 1, {0, 1}, 16 * 540, 192});
  const PlanDevice small{.sms = 2, .cta_smem_bytes = 101376, .sm_smem_bytes = 102400};
  ASSERT_EQ(plan_row_warps(2880, MoeDown::kWish, small).rows, 8);
  check_down({"room for the activations of one expert", 3, 4, random_ids(3, 4, 6, 20), 32, 2880}, small);
}

TEST(gemv_emulated, moe_down_of_few_pairs_is_the_weighted_sum) {
  for (MoeCase test : moe_cases()) {
    if (test.routes() > kGemvTokens) continue;
    test.hidden = 80;
    const auto distinct = static_cast<int>(std::set<int32_t>(test.ids.begin(), test.ids.end()).size());
    for (test.parts = 1; test.parts <= std::min(2, distinct) && test.parts <= test.topk; ++test.parts)
      check_gemv_down(test);
  }
  check_gemv_down({"real width", 2, 2, {1, 0, 0, 2}, 32, 2880, 2});
  for (const int inter : kRanksInter) check_gemv_down({"a rank's", 2, 2, {1, 0, 0, 2}, 32, inter, 2});
}

TEST(gemv_emulated, grouped_moe_serves_any_number_of_tokens) {
  check_grouped({"twenty tokens", 20, 4, random_ids(20, 4, 6, 70), 192, 192});
  check_grouped({"one expert takes all nine", 9, 1, std::vector<int32_t>(9, 1), 192, 256});
  check_grouped({"one expert takes all 70, in tiles of 24, 24 and 22", 70, 1, std::vector<int32_t>(70, 1), 192, 192});
  for (const int tokens : {8, 16, 17, 24, 25})
    check_grouped({"one expert takes all", tokens, 1, std::vector<int32_t>(static_cast<size_t>(tokens), 2), 192, 192});
  for (const int inter : kRanksInter) check_grouped({"a rank's", 20, 4, random_ids(20, 4, 6, 70), 192, inter});
  check_grouped({"a rank's, in three columns", 23, 1, std::vector<int32_t>(23, 1), 192, 704});
  check_grouped({"one row tile for many warps", 2, 1, {0, 5}, 192, 192});
  const PlanDevice small{.sms = 2, .cta_smem_bytes = 101376, .sm_smem_bytes = 102400};
  ASSERT_EQ(grouped_tokens(2880, 2880, small), 8);
  check_grouped({"little shared memory", 11, 1, std::vector<int32_t>(11, 2), 192, 2880}, small);
}

TEST(gemv_emulated, grouped_moe_gives_a_pair_the_same_bits_in_tiles_of_any_size) {
  const std::vector<int32_t> ids = lopsided_ids();
  const MoeCase test{"tiles of every size", static_cast<int>(ids.size()), 1, ids, 192, 192};
  const PlanDevice narrow{.sms = 5, .cta_smem_bytes = 24000, .sm_smem_bytes = 25000};
  ASSERT_EQ(grouped_tokens(192, 192, kDevice), 24);
  ASSERT_EQ(grouped_tokens(192, 192, narrow), 8);
  std::vector<float> wide_y, narrow_y;
  check_grouped(test, kDevice, &wide_y);
  check_grouped(test, narrow, &narrow_y);
  EXPECT_EQ(wide_y, narrow_y);
}

TEST(gemv_emulated, ties_and_nans_among_logits_choose_distinct_experts) {
  const float inf = INFINITY;
  const std::vector<float> logits = {1, 1,    1,    1,    1,    kNan, kNan, kNan, kNan, kNan, kNan, kNan,
                                     3, kNan, kNan, kNan, -inf, -inf, -inf, kNan, -inf, kNan, kNan, kNan};
  const std::vector<std::set<int32_t>> want = {{0, 1, 2}, {4, 0, 1}, {0, 1, 2}};
  std::vector<int32_t> ids(9, -1);
  std::vector<float> weights(9, kNan);
  const ExpertChoice choice{logits.data(), ids.data(), weights.data(), 8, 3};
  const emulation::Launch launch{};
  ASSERT_EQ(emulation::run(launch,
                           [&] {
                             const RouteShared shared{ptx::shared_address(smem), ptx::shared_address(smem) + 16};
                             if (threadIdx.x == 0) ptx::mbarrier_init(shared.chosen, 3);
                             __syncwarp();
                             for (int t = 0; t < 3; ++t) {
                               Choice chosen(choice, t, static_cast<int>(threadIdx.x));
                               while (chosen.picked < choice.topk) chosen.pick();
                               chosen.publish(shared);
                             }
                           }),
            "");
  for (int t = 0; t < 3; ++t)
    EXPECT_EQ(std::set<int32_t>(ids.begin() + 3 * t, ids.begin() + 3 * t + 3), want[static_cast<size_t>(t)]) << t;
  EXPECT_EQ(ids[0], 0);
  EXPECT_EQ(ids[3], 4);
  EXPECT_FLOAT_EQ(weights[1], 1.0f / 3);
}

}  // namespace
}  // namespace nibble::backend::cuda
