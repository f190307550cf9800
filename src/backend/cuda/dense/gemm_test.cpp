// The kernels for many tokens on the device, against double products: real widths, edges of tokens and experts.

#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/testing/gemm.h"
#include "backend/cuda/arch/sm90/kernels.h"
#include "backend/cuda/testing/round.h"
#include "backend/cuda/testing/card.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace nibble::backend::cuda {
namespace {

using layout::Packing;
using layout::RowOrder;

// Tokens grouped on the device: where the lists go, and what they have to be.
struct Groups {
  int tokens, experts, tile;
  const std::vector<int32_t>& chosen;
  PlainGroups want = plain_groups(chosen, experts, tile);
  DeviceArray<int32_t> ids{chosen}, pairs{std::vector<int32_t>(want.pairs.size(), -2)}, places{chosen.size()};
  DeviceArray<int32_t> tile_counts{kTileCounts};
  DeviceArray<ExpertTile> tiles{
      static_cast<size_t>(max_expert_tiles(static_cast<int64_t>(chosen.size()), experts, tile))};

  [[nodiscard]] GroupTiles::Args args() const {
    return {.expert_ids = ids.get(),
            .pairs = pairs.get(),
            .places = places.get(),
            .tiles = tiles.get(),
            .tile_counts = tile_counts.get(),
            .tokens = tokens,
            .topk = PlainExperts::kTopk,
            .experts = experts,
            .tile_tokens = tile};
  }
  // The token whose row lies there, or -1.
  [[nodiscard]] int64_t token_at(int64_t place) const {
    const int32_t pair = want.pairs[static_cast<size_t>(place)];
    return pair < 0 ? -1 : pair / PlainExperts::kTopk;
  }
  void expect() const {
    ASSERT_EQ(pairs.host(), want.pairs);
    ASSERT_EQ(places.host(), want.places);
    ASSERT_EQ(tile_counts.host(), want.tile_counts);
    const std::vector<ExpertTile> got = tiles.host();
    ASSERT_TRUE(std::equal(want.tiles.begin(), want.tiles.end(), got.begin()));
  }
};

class Gemm : public CudaTest {
 protected:
  // The plan of sm90_gemm or of any_gemm; sms 0: of this card.
  [[nodiscard]] static GemmPlan plan_of(const GemmShape& shape, bool hopper, int sms, int tile) {
    if (!hopper) return plan_gemm_tile(shape, kGemmTiles[tile]);
    if (sms == 0) cuda_check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    return plan_sm90_gemm(shape, sms, tile);
  }
  // The plan of both products of the experts in one launch: of sm90_grouped, where the tile is its own.
  [[nodiscard]] static GemmPlan plan_at_once(const GemmShape& shape, int sms, int tile) {
    if (tile != kSm90GroupedTokens) return plan_of(shape, true, sms, tile);
    if (sms == 0) cuda_check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    const std::optional<GemmPlan> plan = plan_sm90_grouped(shape, sms);
    EXPECT_TRUE(plan.has_value());
    return plan.value_or(GemmPlan{});
  }
  // Which kernels take this packing here: any_gemm, and sm90_gemm on its card.
  [[nodiscard]] static std::vector<bool> kernels_for(Packing packing) {
    int major = 0;
    cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    const bool taken = packing == Packing::kBf16 || packing == Packing::kMxfp4;
    if (major == 9 && taken && sm90_is_built()) return {false, true};
    return {false};
  }
  [[nodiscard]] static std::vector<int> tiles_of(bool hopper, Packing packing = Packing::kMxfp4) {
    if (hopper && packing == Packing::kBf16) {
      std::vector<int> tiles(std::begin(kDenseTokens), std::end(kDenseTokens));
      tiles.push_back(kDenseWide);
      return tiles;
    }
    if (hopper) return {kMxfp4Narrow, kMxfp4Tokens};
    if (packing == Packing::kBf16) return {0, 1, 2, 5};  // of kGemmTiles
    if (packing == Packing::kMxfp4) return {0, 3, 4};
    return {0, 1};
  }
  void gemm(const GemmArgs& args, const GemmPlan& plan, bool hopper) {
    if (hopper) return Sm90Gemm::launch(args, plan, on_);
    AnyGemm::launch(args, plan, on_);
  }

  struct Dense {
    Packing packing;
    int rows, cols, tokens, tile;
    bool hopper = false;
    RowOrder order = RowOrder::kPlain;
    int sms = 0;  // that the plan counts on; 0: all
  };
  // Every token against some rows: the first and last, and a few that move with the token.
  void check_dense(const Dense& c) {
    SCOPED_TRACE(testing::Message() << c.rows << " x " << c.cols << ", " << c.tokens << " tokens in tiles of " << c.tile
                                    << ", packing " << static_cast<int>(c.packing));
    const GemmMatrix w(c.packing, c.rows, c.cols, c.order, 5);
    const bool bf16 = input_type(c.packing) == InputType::kBf16;
    const std::vector<uint16_t> x = random_16(bf16, int64_t{c.tokens} * c.cols, 6);
    const std::vector<Bf16> bias = gemm_bias(c.rows, 7);
    const DeviceArray<uint8_t> weights(w.packed);
    const DeviceArray<uint16_t> on_x(c.hopper ? in_panels(x, c.cols, c.tokens) : x);
    const DeviceArray<Bf16> on_bias(bias);
    const auto count = static_cast<size_t>(int64_t{c.tokens} * c.rows);
    const DeviceArray<float> y(count);
    GemmArgs args{.packing = c.packing,
                  .order = c.order,
                  .weights = weights.get(),
                  .bias = on_bias.get(),
                  .x = on_x.get(),
                  .rows = c.rows,
                  .cols = c.cols,
                  .tokens = c.tokens,
                  .x_rows = c.hopper ? static_cast<int>(panel_rows(c.tokens)) : 0};
    args.parts[0] = {y.get(), 0, c.rows};
    const GemmPlan plan = plan_of({c.rows, c.cols, c.tokens, 1, c.packing}, c.hopper, c.sms, c.tile);
    gemm(args, plan, c.hopper);
    const std::vector<float> got = y.host();
    gemm(args, plan, c.hopper);
    ASSERT_EQ(got, y.host()) << "not repeatable";
    for (int t = 0; t < c.tokens; ++t)
      for (const int r : {0, c.rows - 1, t * 7 % c.rows, t * 131 % c.rows, (t + 15) % c.rows}) {
        const GemmSum want = w.dot(r, x.data() + int64_t{t} * c.cols, bf16);
        const double exact = want.value + bias[static_cast<size_t>(r)].to_float();
        ASSERT_LE(std::abs(got[static_cast<size_t>(int64_t{t} * c.rows + r)] - exact), kGemmError * (want.size + 1))
            << "token " << t << ", row " << r;
      }
    if (!c.hopper) return;
    const auto pitch = static_cast<size_t>(split_pitch(c.tokens, c.rows));
    const DeviceArray<uint16_t> sums(static_cast<size_t>(plan.splits) * pitch);
    args.bias = nullptr;
    args.parts[0] = {};
    args.sums = sums.get();
    args.splits = plan.splits;
    gemm(args, plan, true);
    const std::vector<uint16_t> got_sums = sums.host();
    gemm(args, plan, true);
    ASSERT_EQ(got_sums, sums.host()) << "not repeatable";
    for (int t = 0; t < c.tokens; ++t)
      for (const int r : {0, c.rows - 1, t * 7 % c.rows, t * 131 % c.rows, (t + 15) % c.rows}) {
        const auto from = static_cast<int>(layout::source_row(c.order, r / 16, r % 16));
        const GemmSum want = w.dot(from, x.data() + int64_t{t} * c.cols, bf16);
        double all = 0, rounding = 0;
        for (size_t s = 0; s < static_cast<size_t>(plan.splits); ++s) {
          const double sum = value_16(got_sums[s * pitch + static_cast<size_t>(place_in_sums(c.tokens, t, r))], true);
          all += sum;
          rounding += std::abs(sum) * 0x1.02p-8;
        }
        ASSERT_LE(std::abs(all - want.value), kGemmError * (want.size + 1) + rounding)
            << plan.splits << " parts, token " << t << ", packed row " << r;
      }
  }

  struct Moe {
    GemmRouting routing;
    int tokens, experts, tile;
    bool hopper = false;
    int hidden = 2880, inter = 2880, sms = 0;
  };
  void check_moe(const Moe& c);
  void check_at_once(const Moe& c);
  void check_codes(const Moe& c);
  double codes_error_ = 0;  // largest of check_codes, of Σ|w||x|
};

TEST_F(Gemm, dense_is_the_plain_product_at_edges_of_tokens) {
  for (const Packing packing : {Packing::kBf16, Packing::kMxfp8, Packing::kMxfp4, Packing::kQ8})
    for (const bool hopper : kernels_for(packing)) {
      for (const int tile : tiles_of(hopper, packing))
        for (const int tokens : {1, 2, 3, 7, 8, 9, 15, 16, 17, 47, 63, 64, 65, 95, 127, 128, 129, 159, 161})
          check_dense({packing, 144, 384, tokens, tile, hopper});
      check_dense({packing, 192, 512, 33, hopper ? 64 : tiles_of(false, packing)[1], hopper, RowOrder::kHeads64});
      if (!hopper || packing != Packing::kBf16) continue;
      for (const int tile : tiles_of(hopper, packing))
        for (const int rows : {16, 256, 272, 784})
          for (const int tokens : {1, 9, 65, 193}) check_dense({packing, rows, 384, tokens, tile, true});
    }
}

TEST_F(Gemm, dense_is_the_plain_product_at_the_model_s_widths) {
  for (const bool hopper : kernels_for(Packing::kBf16)) {
    check_dense({Packing::kBf16, 5120, 2880, 129, hopper ? 128 : 2, hopper, RowOrder::kHeads64});
    check_dense({Packing::kBf16, 2880, 4096, 65, hopper ? 64 : 0, hopper});
    if (!hopper) check_dense({Packing::kBf16, 5120, 2880, 193, 1, false, RowOrder::kHeads64});
    if (hopper) check_dense({Packing::kBf16, 5120, 2880, 386, 192, true, RowOrder::kHeads64});
    check_dense({Packing::kMxfp4, 5120, 2880, 257, hopper ? 160 : 3, hopper, RowOrder::kHeads64});
  }
  check_dense({Packing::kMxfp8, 2880, 4096, 129, 1});
  check_dense({Packing::kQ8, 5120, 2880, 129, 1, false, RowOrder::kHeads64});
}

// A step's experts on the device, their places and results.
struct MoeOnDevice {
  const PlainExperts& plain;
  bool hopper;
  int tile;
  Groups groups{plain.tokens, plain.experts, hopper ? tile : kGemmExperts.tokens, plain.ids};
  int rows = static_cast<int>(groups.want.pairs.size());  // of x and u on hopper
  DeviceArray<uint8_t> up{plain.up.packed}, down{plain.down.packed};
  DeviceArray<Bf16> up_bias{plain.up_bias}, down_bias{plain.down_bias};
  DeviceArray<uint16_t> x{
      hopper ? in_panels(plain.x, plain.hidden, rows, [&](int64_t place) { return groups.token_at(place); }) : plain.x};
  DeviceArray<uint16_t> u{static_cast<size_t>(hopper ? rows : plain.pairs()) * static_cast<size_t>(plain.width())};
  DeviceArray<uint16_t> y{static_cast<size_t>(plain.pairs()) * static_cast<size_t>(plain.hidden)};

  [[nodiscard]] GemmArgs args() const {
    return {.packing = Packing::kMxfp4,
            .order = RowOrder::kGateUp,
            .weights = up.get(),
            .bias = up_bias.get(),
            .x = x.get(),
            .rows = 2 * plain.inter,
            .cols = plain.hidden,
            .tokens = plain.pairs(),
            .tiles = groups.tiles.get(),
            .tile_count = groups.tile_counts.get(),
            .pairs = groups.pairs.get(),
            .x_share = hopper ? 1 : PlainExperts::kTopk,
            .experts = plain.experts,
            .x_rows = hopper ? rows : 0,
            .u = u.get(),
            .down = {down.get(), down_bias.get(), y.get()}};
  }
  [[nodiscard]] GemmShape shape(const GemmArgs& product) const {
    return {product.rows, product.cols, product.tokens, product.experts};
  }
  // [pairs, width]; what no pair has is not in it.
  [[nodiscard]] std::vector<uint16_t> u_by_pair() const {
    return hopper ? from_panels(u.host(), plain.width(), rows, groups.want.places) : u.host();
  }
  void poison(cudaStream_t stream) const {
    cuda_check(cudaMemsetAsync(u.get(), 0xff, u.size() * 2, stream));
    cuda_check(cudaMemsetAsync(y.get(), 0xff, y.size() * 2, stream));
  }
};

void Gemm::check_moe(const Moe& c) {
  SCOPED_TRACE(testing::Message() << c.tokens << " tokens, " << c.experts << " experts, routing "
                                  << static_cast<int>(c.routing) << ", tiles of " << c.tile << ", hopper " << c.hopper);
  const PlainExperts plain{c.tokens, c.experts, c.hidden, c.inter,
                           routed(c.routing, c.tokens, PlainExperts::kTopk, c.experts, 16)};
  const MoeOnDevice moe{plain, c.hopper, c.tile};
  GroupTiles::launch(moe.groups.args(), on_);
  ASSERT_NO_FATAL_FAILURE(moe.groups.expect());
  GemmArgs first = moe.args();
  const GemmArgs second = down_alone(first);
  first.down = {};
  gemm(first, plan_of(moe.shape(first), c.hopper, c.sms, c.tile), c.hopper);
  gemm(second, plan_of(moe.shape(second), c.hopper, c.sms, c.tile), c.hopper);
  std::vector<float> got_y;
  for (const uint16_t bits : moe.y.host()) got_y.push_back(value_16(bits, true));
  plain.expect(moe.u_by_pair(), got_y, 0x1p-8);
}

// One launch against two, bit for bit; three times, and as a graph that runs again and again.
void Gemm::check_at_once(const Moe& c) {
  SCOPED_TRACE(testing::Message() << c.tokens << " tokens, " << c.experts << " experts, routing "
                                  << static_cast<int>(c.routing) << ", tiles of " << c.tile << ", hidden " << c.hidden
                                  << ", " << c.sms << " CTAs");
  const PlainExperts plain{c.tokens, c.experts, c.hidden, c.inter,
                           routed(c.routing, c.tokens, PlainExperts::kTopk, c.experts, 16)};
  const MoeOnDevice moe{plain, true, c.tile};
  GroupTiles::launch(moe.groups.args(), on_);
  const GemmArgs both = moe.args(), second = down_alone(both);
  GemmArgs first = both;
  first.down = {};
  Sm90Gemm::launch(first, plan_of(moe.shape(first), true, c.sms, c.tile), on_);
  Sm90Gemm::launch(second, plan_of(moe.shape(second), true, c.sms, c.tile), on_);
  const std::vector<uint16_t> want_u = moe.u_by_pair(), want_y = moe.y.host();
  const auto at_once = [&] {
    moe.poison(stream_.get());
    GroupTiles::launch(moe.groups.args(), on_);
    Sm90Gemm::launch(both, plan_at_once(moe.shape(both), c.sms, c.tile), on_);
  };
  for (int i = 0; i < 3; ++i) {
    at_once();
    ASSERT_EQ(moe.u_by_pair(), want_u);
    ASSERT_EQ(moe.y.host(), want_y);
  }
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  cuda_check(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < 4; ++i) at_once();
  cuda_check(cudaStreamEndCapture(stream_.get(), &graph));
  cuda_check(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 5; ++i) cuda_check(cudaGraphLaunch(exec, stream_.get()));
  EXPECT_EQ(moe.u_by_pair(), want_u);
  EXPECT_EQ(moe.y.host(), want_y);
  cuda_check(cudaGraphExecDestroy(exec));
  cuda_check(cudaGraphDestroy(graph));
}

TEST_F(Gemm, both_products_of_the_experts_at_once_are_the_same_bits) {
  if (kernels_for(Packing::kMxfp4).size() < 2) GTEST_SKIP() << "no Hopper here";
  using enum GemmRouting;
  for (const int tile : tiles_of(true))
    for (const int tokens : {1, 9, 65, 129})
      for (const GemmRouting routing : {kRandom, kSameForAll})  // few work tiles of few experts; others have none
        for (const int width : {192, 256}) check_at_once({routing, tokens, 7, tile, true, width, width});
  for (const int sms : {2, 7, 8, 0}) {  // more tiles than CTAs, and fewer work tiles
    check_at_once({kRandom, 150, 40, kMxfp4Narrow, true, 192, 192, sms});
    check_at_once({kSameForAll, 900, 4, kMxfp4Tokens, true, 576, 576, sms});
  }
  check_at_once({kRandom, 300, 4, kMxfp4Tokens, true});
}

// A rank's, whose products have two widths; the host takes longer for such matrices than the card.
TEST_F(Gemm, both_products_of_a_rank_s_experts_at_once_are_the_same_bits) {
  if (kernels_for(Packing::kMxfp4).size() < 2) GTEST_SKIP() << "no Hopper here";
  using enum GemmRouting;
  for (const int inter : {672, 384, 32}) {
    check_at_once({kRandom, 130, 8, kMxfp4Narrow, true, 576, inter, 7});
    check_at_once({kSameForAll, 130, 4, kMxfp4Tokens, true, 576, inter});
  }
  check_at_once({kRandom, 40, 4, kMxfp4Narrow, true, 2880, 1440});
}

// sm90_grouped against both launches of sm90_mxfp4_gemm: CTAs with all tiles, with parts of them, without any; experts
// without pairs and with more than a tile.
TEST_F(Gemm, experts_of_few_pairs_at_once_are_the_same_bits) {
  if (kernels_for(Packing::kMxfp4).size() < 2) GTEST_SKIP() << "no Hopper here";
  using enum GemmRouting;
  constexpr int kTile = kSm90GroupedTokens;
  for (const int tokens : {1, 20, 28})
    for (const GemmRouting routing : {kRandom, kSameForAll})
      for (const int width : {384, 512, 576})
        for (const int sms : {1, 5, 0}) check_at_once({routing, tokens, 7, kTile, true, width, width, sms});
  for (const int sms : {7, 0}) check_at_once({kRandom, 150, 40, kTile, true, 384, 384, sms});
  check_at_once({kSameForAll, 12, 128, kTile, true, 384, 384});
  check_at_once({kRandom, 14, 4, kTile, true});
}

// Small, for racecheck: slices of both lengths, parts of a tile, experts without pairs and with more than a tile.
TEST_F(Gemm, five_ctas_take_experts_of_few_pairs) {
  if (kernels_for(Packing::kMxfp4).size() < 2) GTEST_SKIP() << "no Hopper here";
  check_at_once({GemmRouting::kRandom, 9, 7, kSm90GroupedTokens, true, 384, 384, 5});
  check_at_once({GemmRouting::kSameForAll, 27, 7, kSm90GroupedTokens, true, 512, 512, 5});
}

TEST_F(Gemm, moe_is_the_plain_product_for_ragged_empty_and_full_experts) {
  for (const bool hopper : kernels_for(Packing::kMxfp4))
    for (const int tile : hopper ? tiles_of(true) : std::vector{3, 4})
      for (const int tokens : {1, 9, 17, 65, 129})
        for (const GemmRouting routing : {GemmRouting::kRandom, GemmRouting::kSameForAll})
          check_moe({routing, tokens, 7, tile, hopper, 192, 256});
}

TEST_F(Gemm, moe_is_the_plain_product_at_the_model_s_widths) {
  for (const bool hopper : kernels_for(Packing::kMxfp4)) {
    check_moe({GemmRouting::kRandom, 40, 4, hopper ? 64 : 3, hopper});
    check_moe({GemmRouting::kSameForAll, 130, 5, hopper ? 128 : 3, hopper});
    check_moe({GemmRouting::kRandom, 200, 20, hopper ? 64 : 4, hopper});
  }
}

TEST_F(Gemm, moe_is_the_plain_product_at_ranks_widths) {
  for (const bool hopper : kernels_for(Packing::kMxfp4))
    for (const int inter : {1440, 736, 672, 384, 192, 32}) {
      const int hidden = inter < 700 ? 576 : 2880;
      check_moe({GemmRouting::kRandom, 40, 4, hopper ? kMxfp4Narrow : 3, hopper, hidden, inter});
      check_moe({GemmRouting::kSameForAll, 130, 5, hopper ? kMxfp4Tokens : 4, hopper, hidden, inter});
    }
}

// What FP8 sums of up to 2880 k may lose, of Σ|w||x|: docs/decisions/0033.
constexpr double kCodesError = 0x1p-10;

// Experts that multiply codes of rows, of x as the host makes them and of u as the device does.
void Gemm::check_codes(const Moe& c) {
  SCOPED_TRACE(testing::Message() << c.tokens << " tokens, " << c.experts << " experts, routing "
                                  << static_cast<int>(c.routing) << ", tiles of " << c.tile << ", " << c.sms
                                  << " CTAs");
  PlainExperts plain{c.tokens, c.experts, c.hidden, c.inter,
                     routed(c.routing, c.tokens, PlainExperts::kTopk, c.experts, 16)};
  const RowCodes x(floats_of_f16(plain.x), c.hidden);
  plain.x = x.halves();
  const MoeOnDevice moe{plain, true, c.tile};
  GroupTiles::launch(moe.groups.args(), on_);
  const PlacedCodes placed(x, moe.rows, [&](int64_t place) { return moe.groups.token_at(place); });
  const DeviceArray<uint8_t> codes(placed.codes),
      u_codes(static_cast<size_t>(moe.rows) * static_cast<size_t>(plain.width()));
  const DeviceArray<float> scales(placed.scales), u_scales(placed.scales.size());
  GemmArgs first = moe.args();
  GemmArgs second = down_alone(first);
  first.down = {};
  first.x = reinterpret_cast<const uint16_t*>(codes.get());
  first.x_scales = scales.get();
  first.scale_top = second.scale_top = 125;  // GemmMatrix::Scales
  second.x = reinterpret_cast<const uint16_t*>(u_codes.get());
  second.x_scales = u_scales.get();
  const auto plan = [&](const GemmArgs& product) {
    GemmShape shape = moe.shape(product);
    shape.row_codes = true;
    return plan_of(shape, true, c.sms, c.tile);
  };
  const auto run = [&] {
    moe.poison(stream_.get());
    Sm90Gemm::launch(first, plan(first), on_);
    RoundRows::launch({.panels = moe.u.get(),
                       .codes = u_codes.get(),
                       .scales = u_scales.get(),
                       .tokens = moe.rows,
                       .cols = plain.width(),
                       .rows = moe.rows},
                      on_);
    Sm90Gemm::launch(second, plan(second), on_);
  };
  run();
  const std::vector<uint16_t> u = moe.u_by_pair(), y = moe.y.host();
  run();
  ASSERT_EQ(moe.u_by_pair(), u) << "not repeatable";
  ASSERT_EQ(moe.y.host(), y) << "not repeatable";
  const std::vector<uint16_t> rounded = RowCodes(floats_of_f16(u), plain.width()).halves();
  for (int pair = 0; pair < plain.pairs(); ++pair) {
    const auto e = static_cast<size_t>(plain.ids[static_cast<size_t>(pair)]);
    for (int i = pair % 7; i < c.inter; i += 61) {
      const uint16_t* const row = plain.x.data() + int64_t{pair / PlainExperts::kTopk} * c.hidden;
      GemmSum gate = plain.up.matrices[e].dot(2 * i, row, false), up = plain.up.matrices[e].dot(2 * i + 1, row, false);
      gate.size *= kCodesError / kGemmError, up.size *= kCodesError / kGemmError;
      const GatedWant want =
          gated_want(gate, up, plain.up_bias.data() + e * 2 * static_cast<size_t>(c.inter) + 2 * i, 0x1p-11);
      const float got = value_16(u[static_cast<size_t>(int64_t{pair} * plain.width() + i)], false);
      ASSERT_LE(std::abs(got - want.value), want.bound) << "pair " << pair << ", channel " << i << ": " << got;
    }
    for (int r = pair % 7; r < c.hidden; r += 61) {
      const GemmSum sum = plain.down.matrices[e].dot(r, rounded.data() + int64_t{pair} * plain.width(), false);
      const double want =
          sum.value + plain.down_bias[e * static_cast<size_t>(c.hidden) + static_cast<size_t>(r)].to_float();
      const double off = std::abs(value_16(y[static_cast<size_t>(int64_t{pair} * c.hidden + r)], true) - want);
      codes_error_ = std::max(codes_error_, (off - 0x1p-8 * std::abs(want)) / (sum.size + 1));
      ASSERT_LE(off, kCodesError * (sum.size + 1) + 0x1p-8 * std::abs(want)) << "pair " << pair << ", row " << r;
    }
  }
}

TEST_F(Gemm, experts_of_row_codes_are_the_plain_product) {
  if (kernels_for(Packing::kMxfp4).size() < 2) GTEST_SKIP() << "no Hopper here";
  using enum GemmRouting;
  for (const int tile : tiles_of(true))
    for (const int tokens : {1, 9, 17, 65, 129})
      for (const GemmRouting routing : {kRandom, kSameForAll}) check_codes({routing, tokens, 7, tile, true, 192, 256});
  for (const int sms : {7, 8})  // the last wave in work tiles of one warpgroup; of two
    for (const int tokens : {40, 90}) check_codes({kSameForAll, tokens, 5, kMxfp4Tokens, true, 576, 512, sms});
}

// Small, for racecheck.
TEST_F(Gemm, two_ctas_take_work_after_work_of_row_codes) {
  if (kernels_for(Packing::kMxfp4).size() < 2) GTEST_SKIP() << "no Hopper here";
  for (const int tile : tiles_of(true))
    for (int tokens = 5; tokens < tile + 8; tokens += 8)  // of an expert: instructions of every width
      check_codes({GemmRouting::kSameForAll, tokens, 5, tile, true, 576, 512, 2});
}

TEST_F(Gemm, experts_of_row_codes_are_the_plain_product_at_the_model_s_widths) {
  if (kernels_for(Packing::kMxfp4).size() < 2) GTEST_SKIP() << "no Hopper here";
  check_codes({GemmRouting::kRandom, 40, 4, kMxfp4Narrow, true});
  check_codes({GemmRouting::kSameForAll, 130, 5, kMxfp4Tokens, true});
  RecordProperty("codes_error", fmt::format("{:.3g}", codes_error_));
}

TEST_F(Gemm, experts_of_row_codes_are_the_plain_product_at_ranks_widths) {
  if (kernels_for(Packing::kMxfp4).size() < 2) GTEST_SKIP() << "no Hopper here";
  for (const int inter : {1440, 736, 672, 32}) {
    check_codes({GemmRouting::kRandom, 40, 4, kMxfp4Narrow, true, 576, inter});
    check_codes({GemmRouting::kSameForAll, 130, 5, kMxfp4Tokens, true, 576, inter});
  }
}

// Rings go round from work to work, the first slice of each short. Small, for racecheck.
TEST_F(Gemm, two_ctas_take_work_after_work_of_a_short_slice) {
  if (kernels_for(Packing::kMxfp4).size() < 2) GTEST_SKIP() << "no Hopper here";
  for (const int tile : tiles_of(true))
    for (const int inter : {224, 64}) check_moe({GemmRouting::kSameForAll, 21, 5, tile, true, 576, inter, 2});
}

// Not for racecheck: one lane gives the stage of the rows' scales back for its warp (dense/gemv.cuh warp_arrive).
TEST_F(Gemm, short_slices_of_row_codes_take_work_after_work) {
  if (kernels_for(Packing::kMxfp4).size() < 2) GTEST_SKIP() << "no Hopper here";
  for (const int tile : tiles_of(true))
    for (const int inter : {224, 64}) check_codes({GemmRouting::kSameForAll, 21, 5, tile, true, 576, inter, 2});
}

// Rings go round from work to work. Small, for racecheck.
TEST_F(Gemm, two_ctas_take_work_after_work) {
  if (kernels_for(Packing::kBf16).size() < 2) GTEST_SKIP() << "no Hopper here";
  for (const int tile : tiles_of(true, Packing::kBf16))
    for (const int rows : {528, 144})  // more than tokens, and fewer
      check_dense({Packing::kBf16, rows, 384, 2 * tile + 5, tile, true, RowOrder::kPlain, 2});
  for (const int tile : tiles_of(true))
    for (int tokens = 5; tokens < tile + 8; tokens += 8)  // of an expert: instructions of every width
      check_moe({GemmRouting::kSameForAll, tokens, 5, tile, true, 576, 512, 2});
  for (const int sms : {7, 8})  // the last wave in work tiles of one warpgroup; of two
    for (const int tokens : {40, 90})
      check_moe({GemmRouting::kSameForAll, tokens, 5, kMxfp4Tokens, true, 576, 512, sms});
}

// More k than a ring holds. Small, for racecheck.
TEST_F(Gemm, rings_go_round_whatever_the_tokens) {
  for (const int tile : {3, 4}) {
    for (const int tokens : {8, 40, 96}) check_dense({Packing::kMxfp4, 208, 576, tokens, tile});
    check_moe({GemmRouting::kRandom, 60, 7, tile, false, 192, 256});
  }
  for (const int tile : {0, 2, 5}) check_dense({Packing::kBf16, 208, 576, 40, tile});
}

TEST_F(Gemm, groups_thousands_of_tokens) {
  for (const int tokens : {2048, 8192}) {
    const std::vector<int32_t> ids = routed(GemmRouting::kRandom, tokens, 4, 128, 9);
    const Groups groups{tokens, 128, 64, ids};
    GroupTiles::launch(groups.args(), on_);
    groups.expect();
  }
}

TEST_F(Gemm, groups_and_rounds_a_step_s_tokens_at_once) {
  constexpr int kTopk = 4;
  for (const auto& [tokens, experts, cols] : {std::tuple{1, 128, 2880},
                                              {13, 32, 4096},
                                              {97, 32, 2880},
                                              {256, 32, 2880},
                                              {512, 128, 2880},
                                              {2049, 128, 2880},
                                              {9, 5, 192}})
    for (const GemmRouting routing : {GemmRouting::kRandom, GemmRouting::kSameForAll}) {
      SCOPED_TRACE(testing::Message() << tokens << " tokens, " << experts << " experts");
      const std::vector<int32_t> ids = routed(routing, tokens, kTopk, experts, 9);
      const std::vector<float> values = Values(10).floats(int64_t{tokens} * cols, 1);
      const std::vector<Bf16> norm = gemm_bias(cols, 5);
      const std::vector<float> inverse = Values(6).floats(tokens, 1);
      const DeviceArray<float> from(values), on_inverse(inverse);
      const DeviceArray<Bf16> on_norm(norm);
      const Groups groups{tokens, experts, kMxfp4Tokens, ids};
      const auto rows = static_cast<int>(groups.want.pairs.size());
      const DeviceArray<uint16_t> to(
          std::vector<uint16_t>(groups.want.pairs.size() * static_cast<size_t>(cols), 0xffff));
      GroupRound::launch({groups.args(),
                          {.from = from.get(),
                           .to = {to.get(), InputType::kF16, rows},
                           .tokens = tokens,
                           .cols = cols,
                           .inverse = on_inverse.get(),
                           .norm = on_norm.get(),
                           .copies = kTopk}},
                         on_);
      ASSERT_NO_FATAL_FAILURE(groups.expect());
      std::vector<uint16_t> bits;
      const auto width = static_cast<size_t>(cols);
      for (size_t i = 0; i < values.size(); ++i)
        bits.push_back(F16::from_float(values[i] * (inverse[i / width] * norm[i % width].to_float())).bits);
      ASSERT_EQ(to.host(), in_panels(bits, cols, rows, [&](int64_t place) { return groups.token_at(place); }));
    }
}

TEST_F(Gemm, rounds_to_the_type_that_goes_with_the_weights) {
  constexpr int kTokens = 43, kCols = 192, kCopies = 2, kRows = 96;
  const std::vector<float> values = Values(4).floats(kTokens * kCols, 3);
  const DeviceArray<float> from(values);
  for (const InputType type : {InputType::kBf16, InputType::kF16}) {
    const DeviceArray<uint16_t> to(values.size());
    Round::launch({.from = from.get(), .to = {to.get(), type}, .tokens = kTokens, .cols = kCols}, on_);
    const std::vector<uint16_t> got = to.host();
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(got[i], type == InputType::kF16 ? F16::from_float(values[i]).bits : Bf16::from_float(values[i]).bits);
  }
  check_rounds_mxfp8<DeviceArray>(kTokens, kCols, [&](const Round::Args& args) { Round::launch(args, on_); });
  check_rounds_mxfp8<DeviceArray>(3, 4096, [&](const Round::Args& args) { Round::launch(args, on_); });
  const std::vector<Bf16> norm = gemm_bias(kCols, 5);
  const std::vector<float> inverse = Values(6).floats(kTokens, 1);
  const DeviceArray<Bf16> on_norm(norm);
  const DeviceArray<float> on_inverse(inverse);
  const DeviceArray<uint16_t> normed(values.size());
  Round::launch({.from = from.get(),
                 .to = {normed.get(), InputType::kF16},
                 .tokens = kTokens,
                 .cols = kCols,
                 .inverse = on_inverse.get(),
                 .norm = on_norm.get()},
                on_);
  const std::vector<uint16_t> got_normed = normed.host();
  for (size_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(got_normed[i], F16::from_float(values[i] * (inverse[i / kCols] * norm[i % kCols].to_float())).bits);
  std::vector<int32_t> places;  // token t's: 2 t + 1 and 2 t, but 4 rows on
  for (int t = 0; t < kTokens; ++t) places.insert(places.end(), {2 * t + 5, 2 * t + 4});
  const DeviceArray<int32_t> on_places(places);
  for (const InputType type : {InputType::kBf16, InputType::kF16}) {
    const DeviceArray<uint16_t> to(std::vector<uint16_t>(size_t{kRows} * kCols, 0xffff));
    Round::launch({.from = from.get(),
                   .to = {to.get(), type, kRows},
                   .tokens = kTokens,
                   .cols = kCols,
                   .places = on_places.get(),
                   .copies = kCopies},
                  on_);
    std::vector<uint16_t> rounded;
    for (const float value : values)
      rounded.push_back(type == InputType::kF16 ? F16::from_float(value).bits : Bf16::from_float(value).bits);
    ASSERT_EQ(to.host(), in_panels(rounded, kCols, kRows, [](int64_t row) {
                return row >= 4 && row < 4 + kCopies * kTokens ? (row - 4) / 2 : -1;
              }));
  }
}

TEST_F(Gemm, refuses_a_plan_of_another_tile) {
  GemmPlan plan = plan_gemm_tile({128, 384, 9}, kGemmFew);
  plan.rows = kGemmMany.rows;
  alignas(16) static uint8_t bytes[16] = {};
  GemmArgs args{.weights = bytes, .x = reinterpret_cast<const uint16_t*>(bytes), .rows = 128, .cols = 384, .tokens = 9};
  args.parts[0] = {reinterpret_cast<float*>(bytes), 0, 128};
  EXPECT_THROW(AnyGemm::launch(args, plan, on_), Error);
}

}  // namespace
}  // namespace nibble::backend::cuda
