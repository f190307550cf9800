// The kernels for many tokens (gemm.cuh, moe_group.cuh), run lane by lane on the host.

#include "backend/cuda/emulation/device.h"

#include "backend/cuda/dense/gemm.cuh"
#include "backend/cuda/dense/gemm_testing.h"
#include "backend/cuda/dense/split_gemm_plan.h"
#include "backend/cuda/norm_rope/around_gemm_testing.h"
#include "backend/cuda/quantise/round.cuh"
#include "backend/cuda/arch/sm90/dense_gemm.cuh"
#include "backend/cuda/arch/sm90/mxfp4_parts.cuh"
#include "backend/cuda/arch/sm90/mxfp4_gemm.cuh"

#include <gtest/gtest.h>

#include <string>
#include <type_traits>

namespace nibble::backend::cuda {
namespace {

using layout::Packing;
using layout::RowOrder;

const float kNan = std::nanf("");

// any_gemm.
struct Any {
  static constexpr bool kPanels = false;
  // A tile is named by its number in kGemmTiles.
  static GemmPlan plan(const GemmShape& shape, int tile) { return plan_gemm_tile(shape, kGemmTiles[tile]); }
  template <Packing kPacking, int kTile>
  using Tile = GemmTile<kPacking, kGemmTiles[kTile]>;
  template <class Tile, RowOrder kOrder>
  static void kernel(const GemmArgs& args) {
    any_gemm<Tile, kOrder>(args);
  }
};
// sm90_mxfp4_gemm.
struct Sm90 {
  static constexpr bool kPanels = true;
  static GemmPlan plan(const GemmShape& shape, int tile) { return plan_sm90_gemm(shape, 3, tile); }
  template <int kTheSlicePairs, int kTheTokens>
  struct Instance : Mxfp4Tile<kTheSlicePairs, kTheTokens> {
    static constexpr int kSharedBytes = mxfp4_shared_bytes(kTheSlicePairs);
  };
  static inline int tile_tokens = 0;  // of the plan
  template <class Tile, RowOrder kOrder>
  static void kernel(const GemmArgs& args) {
    sm90_mxfp4_gemm<Tile::kSlicePairs, kOrder>(args, tile_tokens);
  }
};
// sm90_dense_gemm.
struct Sm90Dense {
  static constexpr bool kPanels = true;
  static GemmPlan plan(const GemmShape& shape, int tile) { return plan_sm90_gemm(shape, 5, tile); }
  template <Packing kPacking, int kTokens>
  using Tile = DenseTile<kTokens>;
  template <class Tile, RowOrder kOrder>
  static void kernel(const GemmArgs& args) {
    sm90_dense_gemm<Tile>(args, DenseWalk(args, Tile::kTokens));
  }
};

template <class Arch, class Tile, RowOrder kOrder>
void run_tile(const GemmArgs& args, const GemmPlan& plan) {
  check_args(args);
  if constexpr (std::is_same_v<Arch, Sm90>) Arch::tile_tokens = plan.tokens;
  ASSERT_LE(plan.tokens, Tile::kTokens);
  ASSERT_EQ(plan.smem_bytes, Tile::kSharedBytes);
  const emulation::Launch launch{.grid = plan.grid_x,
                                 .threads = Tile::kThreads,
                                 .grid_y = static_cast<int>(plan.grid_y),
                                 .seed = 1,
                                 .predecessor = {}};
  ASSERT_EQ(emulation::run(launch, [&] { Arch::template kernel<Tile, kOrder>(args); }), "");
}

template <class Arch, Packing kPacking, int kTokens, RowOrder kOrder>
void run_gemm(const GemmArgs& args, const GemmPlan& plan) {
  if constexpr (std::is_same_v<Arch, Sm90>) {
    if (layout::slice_blocks(args.cols) == 6)
      return run_tile<Arch, Sm90::Instance<3, kMxfp4Tokens>, kOrder>(args, plan);
    run_tile<Arch, Sm90::Instance<4, kMxfp4Tokens>, kOrder>(args, plan);
  } else {
    run_tile<Arch, typename Arch::template Tile<kPacking, kTokens>, kOrder>(args, plan);
  }
}

// The same as one split of sums, rows as they are packed.
template <int kTokens>
void check_sums(GemmArgs args, const GemmMatrix& w, const std::vector<uint16_t>& x, int tile) {
  const auto pitch = static_cast<size_t>(split_pitch(args.tokens, args.rows));
  std::vector<uint16_t> sums(pitch, 0xffff), rest = sums;
  args.bias = nullptr;
  args.parts[0] = args.parts[1] = {};
  args.sums = sums.data();
  run_gemm<Sm90Dense, Packing::kBf16, kTokens, RowOrder::kPlain>(
      args, Sm90Dense::plan({args.rows, args.cols, args.tokens, 1, Packing::kBf16}, tile));
  for (int t = 0; t < args.tokens; ++t)
    for (int r = 0; r < args.rows; ++r) {
      const auto from = static_cast<int>(layout::source_row(args.order, r / 16, r % 16));
      const GemmSum want = w.dot(from, x.data() + t * args.cols, true);
      const auto at = static_cast<size_t>(place_in_sums(args.tokens, t, r));
      ASSERT_LE(std::abs(value_16(sums[at], true) - want.value),
                kGemmError * (want.size + 1) + 0x1p-8 * std::abs(want.value))
          << "token " << t << ", row " << r;
      sums[at] = 0xffff;
    }
  ASSERT_EQ(sums, rest);
}

template <class Arch, Packing kPacking, int kTokens>
void check_dense(int rows, int cols, int tokens, RowOrder order = RowOrder::kPlain, int tile = kTokens,
                 const GemmMatrix::Scales& scales = {}) {
  SCOPED_TRACE(testing::Message() << rows << " x " << cols << ", " << tokens << " tokens, packing "
                                  << static_cast<int>(kPacking));
  const GemmMatrix w(kPacking, rows, cols, order, 5, scales);
  const std::vector<uint16_t> x = random_16(kPacking == Packing::kBf16, int64_t{tokens} * cols, 6);
  constexpr bool kPanels = Arch::kPanels;
  const std::vector<uint16_t> stored = kPanels ? in_panels(x, cols, tokens) : x;
  const std::vector<Bf16> bias = gemm_bias(rows, 7);
  std::vector<float> y(static_cast<size_t>(tokens * rows), kNan);
  GemmArgs args{.packing = kPacking,
                .order = order,
                .weights = w.packed.data(),
                .bias = bias.data(),
                .x = stored.data(),
                .rows = rows,
                .cols = cols,
                .tokens = tokens,
                .x_rows = kPanels ? static_cast<int>(panel_rows(tokens)) : 0};
  // In two parts, as q and k are.
  const int first = rows >= 128 ? rows / 128 * 64 : 0;
  args.parts[0] = {y.data(), 0, first > 0 ? first : rows};
  if (first > 0) args.parts[1] = {y.data() + tokens * first, first, rows - first};
  run_gemm<Arch, kPacking, kTokens, RowOrder::kPlain>(args, Arch::plan({rows, cols, tokens, 1, kPacking}, tile));
  for (int t = 0; t < tokens; ++t)
    for (int r = 0; r < rows; ++r) {
      const GemmSum want = w.dot(r, x.data() + t * cols, kPacking == Packing::kBf16);
      const GemmPart& part = args.parts[first > 0 && r >= first ? 1 : 0];
      const float got = part.to[t * part.rows + r - part.first_row];
      const double exact = want.value + bias[static_cast<size_t>(r)].to_float();
      ASSERT_LE(std::abs(got - exact), kGemmError * (want.size + 1)) << "token " << t << ", row " << r;
    }
  if constexpr (std::is_same_v<Arch, Sm90Dense>) check_sums<kTokens>(args, w, x, tile);
}

TEST(gemm_emulated, dense_is_the_plain_product_in_every_packing) {
  constexpr int kFew = 0, kMany = 1, kWide = 2, kExperts = 3;
  check_dense<Any, Packing::kBf16, kFew>(256, 384, 33, RowOrder::kHeads64);
  check_dense<Any, Packing::kMxfp8, kFew>(144, 384, 9);
  check_dense<Any, Packing::kMxfp4, kFew>(144, 512, 34);
  check_dense<Any, Packing::kBf16, kMany>(64, 512, 64);
  check_dense<Any, Packing::kMxfp8, kMany>(128, 384, 65, RowOrder::kHeads64);
  check_dense<Any, Packing::kMxfp4, kExperts>(208, 384, 17);
  check_dense<Any, Packing::kBf16, kWide>(16, 384, 129);
  check_dense<Any, Packing::kBf16, kWide>(256, 512, 69);
  check_dense<Any, Packing::kMxfp8, kMany>(48, 512, 100);
  check_dense<Any, Packing::kMxfp4, kExperts>(16, 2880, 12);
  for (int tokens = 5; tokens <= 96; tokens += 8) check_dense<Any, Packing::kMxfp4, kExperts>(16, 192, tokens);
}

// Below, at and beyond the scales that are multiplied into weights.
TEST(gemm_emulated, weights_are_exact_whatever_their_scales) {
  for (const uint32_t scale : {1u, 90u, 103u, 104u, 128u, 129u, 160u})
    check_dense<Any, Packing::kMxfp4, 3>(48, 192, 9, RowOrder::kPlain, 3, {scale, 1});
  check_dense<Any, Packing::kMxfp4, 3>(48, 192, 9, RowOrder::kPlain, 3, {96, 40});
  for (const uint32_t scale : {90u, 112u, 113u, 134u, 135u, 150u})
    check_dense<Any, Packing::kMxfp8, 0>(48, 192, 9, RowOrder::kPlain, 0, {scale, 1});
}

TEST(gemm_emulated, dense_on_wgmma_is_the_plain_product) {
  check_dense<Sm90, Packing::kMxfp4, 64>(144, 512, 9);
  check_dense<Sm90, Packing::kMxfp4, 64>(64, 384, 100, RowOrder::kHeads64, 32);
  check_dense<Sm90, Packing::kMxfp4, 160>(48, 512, 129, RowOrder::kPlain, 96);
  check_dense<Sm90, Packing::kMxfp4, 160>(16, 192, 250, RowOrder::kPlain, 128);
}

TEST(gemm_emulated, mxfp4_on_wgmma_is_the_plain_product_in_every_width) {
  for (int width = 8; width <= kMxfp4Tokens; width += 8)
    for (const int tokens : {width - 7, width}) {
      check_dense<Sm90, Packing::kMxfp4, kMxfp4Tokens>(16, 384, tokens);
      check_dense<Sm90, Packing::kMxfp4, kMxfp4Tokens>(16, 512, tokens);
    }
}

TEST(gemm_emulated, dense_bf16_on_wgmma_is_the_plain_product) {
  check_dense<Sm90Dense, Packing::kBf16, 64>(512, 384, 65, RowOrder::kHeads64);
  check_dense<Sm90Dense, Packing::kBf16, 96>(16, 512, 9);
  check_dense<Sm90Dense, Packing::kBf16, 192>(784, 192, 193);
  check_dense<Sm90Dense, Packing::kBf16, kDenseWide>(208, 384, 201);
}

TEST(gemm_emulated, wgmma_holds_weights_exactly_from_its_smallest_scale_to_its_largest) {
  for (const uint32_t scale : {107u, static_cast<uint32_t>(layout::kMaxNarrowScaleCode)})
    check_dense<Sm90, Packing::kMxfp4, 64>(64, 192, 9, RowOrder::kPlain, 64, {scale, 1});
}

// rounded: f16 [places, cols] of values [tokens, cols], by any_group_round_f32; empty: by any_moe_group_tiles.
struct GroupRounded {
  bool by_ranges = false;
  int cols = 0;
  std::vector<float> values;
  std::vector<uint16_t> rounded;
};
PlainGroups run_group(const std::vector<int32_t>& ids, int topk, int experts, int tile_tokens, GroupRounded* round) {
  PlainGroups g;
  g.tile_counts.assign(kTileCounts, -1);
  const auto count = static_cast<int64_t>(ids.size());
  g.pairs.assign(static_cast<size_t>(max_places(count, experts)), -2);
  g.places.assign(ids.size(), -1);
  g.tiles.resize(static_cast<size_t>(max_expert_tiles(count, experts, tile_tokens)));
  std::vector<int32_t> known(ids.size(), -1);
  PlainRanges ranges = plain_ranges(ids, topk, experts);
  const GroupArgs args{.expert_ids = known.data(),
                       .pairs = g.pairs.data(),
                       .places = g.places.data(),
                       .tiles = g.tiles.data(),
                       .tile_counts = g.tile_counts.data(),
                       .tokens = static_cast<int>(count) / topk,
                       .topk = topk,
                       .experts = experts,
                       .tile_tokens = tile_tokens,
                       .ranges = {ranges.starts.data(), ranges.counts.data(), nullptr}};
  check_args(args);
  emulation::Launch launch{.grid = experts, .threads = kGroupThreads, .predecessor = [&] { known = ids; }};
  if (round == nullptr) {
    EXPECT_EQ(emulation::run(launch, [&] { any_moe_group_tiles(args); }), "");
  } else {
    const auto rows = static_cast<int>(g.pairs.size());
    round->rounded.assign(g.pairs.size() * static_cast<size_t>(round->cols), 0xffff);
    const RoundArgs to{.from = round->values.data(),
                       .to = {round->rounded.data(), InputType::kF16, rows},
                       .tokens = args.tokens,
                       .cols = round->cols,
                       .copies = topk};
    launch.grid = args.tokens;
    launch.threads = round_threads(round->cols);
    EXPECT_EQ(emulation::run(launch,
                             [&] {
                               if (round->by_ranges) return any_group_round_ranges_f32(args, to);
                               any_group_round_f32(args, to);
                             }),
              "");
  }
  g.tiles.resize(static_cast<size_t>(g.tile_counts[0]));
  return g;
}

TEST(gemm_emulated, rounds_in_blocks_of_mxfp8_to_codes_and_to_values) {
  const auto run = [](const RoundArgs& args) {
    const emulation::Launch launch{.grid = args.tokens, .threads = round_threads(args.cols), .predecessor = {}};
    ASSERT_EQ(emulation::run(launch, [&] { any_round_f32(args); }), "");
  };
  for (const int cols : {192, 2880, 4096}) check_rounds_mxfp8<HostArray>(2, cols, run);
}

TEST(gemm_emulated, groups_hold_every_pair_once_by_expert_in_rising_order) {
  for (const auto& [tokens, experts, tile] : {std::tuple{1, 8, 32}, {130, 9, 64}, {70, 40, 32}}) {
    for (const GemmRouting routing : {GemmRouting::kRandom, GemmRouting::kSameForAll}) {
      const std::vector<int32_t> ids = routed(routing, tokens, 4, experts, 3);
      const PlainGroups want = plain_groups(ids, experts, tile);
      GroupRounded round{.cols = 320, .values = std::vector<float>(static_cast<size_t>(tokens) * 320), .rounded = {}};
      for (size_t i = 0; i < round.values.size(); ++i) round.values[i] = static_cast<float>(i * 40503 % 65521) / 4096;
      GroupRounded by_ranges = round;
      by_ranges.by_ranges = true;
      for (GroupRounded* by : {static_cast<GroupRounded*>(nullptr), &round, &by_ranges}) {
        const PlainGroups got = run_group(ids, 4, experts, tile, by);
        ASSERT_EQ(got.pairs, want.pairs);
        ASSERT_EQ(got.places, want.places);
        ASSERT_EQ(got.tiles, want.tiles);
        ASSERT_EQ(got.tile_counts, want.tile_counts);
      }
      std::vector<uint16_t> bits;
      for (const float value : round.values) bits.push_back(F16::from_float(value).bits);
      const auto token_at = [&](int64_t place) -> int64_t {
        const int32_t pair = want.pairs[static_cast<size_t>(place)];
        return pair < 0 ? -1 : pair / 4;
      };
      ASSERT_EQ(round.rounded, in_panels(bits, round.cols, static_cast<int>(want.pairs.size()), token_at));
      ASSERT_EQ(by_ranges.rounded, round.rounded);
    }
  }
}

template <class Arch, int kTokens>
void run_moe(const GemmArgs& both, bool at_once) {
  const auto plan = [](const GemmArgs& a) { return Arch::plan({a.rows, a.cols, a.tokens, a.experts}, kTokens); };
  GemmArgs first = both;
  if (!at_once) first.down = {};
  run_gemm<Arch, Packing::kMxfp4, kTokens, RowOrder::kGateUp>(first, plan(first));
  const GemmArgs second = down_alone(both);
  if (!at_once) run_gemm<Arch, Packing::kMxfp4, kTokens, RowOrder::kPlain>(second, plan(second));
}

template <class Arch, int kTokens, int kHidden = 192, int kInter = 256>
void check_moe(GemmRouting routing, int tokens, int experts) {
  constexpr int kTopk = 2;
  SCOPED_TRACE(testing::Message() << tokens << " tokens, " << experts << " experts, routing "
                                  << static_cast<int>(routing));
  const GemmExperts up(experts, 2 * kInter, kHidden, RowOrder::kGateUp, 11);
  const GemmExperts down(experts, kHidden, kInter, RowOrder::kPlain, 12);
  constexpr bool kPanels = Arch::kPanels;
  const std::vector<uint16_t> x = random_16(false, int64_t{tokens} * kHidden, 13);
  const std::vector<Bf16> up_bias = gemm_bias(experts * 2 * kInter, 14), down_bias = gemm_bias(experts * kHidden, 15);
  const std::vector<int32_t> ids = routed(routing, tokens, kTopk, experts, 16);
  const int pairs = tokens * kTopk;
  constexpr int kPlaces = Arch::kPanels ? kTokens : kGemmLeastTokens;  // of a tile
  PlainGroups groups = plain_groups(ids, experts, kPlaces);
  auto tile_count = static_cast<int32_t>(groups.tiles.size());
  groups.tiles.resize(static_cast<size_t>(max_expert_tiles(pairs, experts, kPlaces)));
  const auto rows = static_cast<int>(groups.pairs.size());
  const auto token_at = [&](int64_t place) -> int64_t {
    const int32_t pair = groups.pairs[static_cast<size_t>(place)];
    return pair < 0 ? -1 : pair / kTopk;
  };
  const std::vector<uint16_t> stored = kPanels ? in_panels(x, kHidden, rows, token_at) : x;
  std::vector<uint16_t> u(static_cast<size_t>((kPanels ? rows : pairs) * kInter), 0xffff);
  std::vector<uint16_t> y(static_cast<size_t>(pairs * kHidden), 0xffff);
  const GemmArgs args{.packing = Packing::kMxfp4,
                      .order = RowOrder::kGateUp,
                      .weights = up.packed.data(),
                      .bias = up_bias.data(),
                      .x = stored.data(),
                      .rows = 2 * kInter,
                      .cols = kHidden,
                      .tokens = pairs,
                      .tiles = groups.tiles.data(),
                      .tile_count = &tile_count,
                      .pairs = groups.pairs.data(),
                      .x_share = kPanels ? 1 : kTopk,
                      .experts = experts,
                      .x_rows = kPanels ? rows : 0,
                      .u = u.data(),
                      .down = {down.packed.data(), down_bias.data(), y.data()}};
  run_moe<Arch, kTokens>(args, kPanels && kHidden == kInter);
  const std::vector<uint16_t> got_u = kPanels ? from_panels(u, kInter, rows, groups.places) : u;
  for (int pair = 0; pair < pairs; ++pair) {
    const auto e = static_cast<size_t>(ids[static_cast<size_t>(pair)]);
    for (int c = 0; c < kInter; ++c) {
      const GatedWant want =
          gated_want(up.matrices[e], {x.data() + pair / kTopk * kHidden, false}, up_bias.data() + e * 2 * kInter, c);
      const float got = value_16(got_u[static_cast<size_t>(pair * kInter + c)], false);
      ASSERT_LE(std::abs(got - want.value), want.bound) << "pair " << pair << ", channel " << c << ": " << got;
    }
    for (int r = 0; r < kHidden; ++r) {
      const GemmSum want = down.matrices[e].dot(r, got_u.data() + pair * kInter, false);
      const double exact = want.value + down_bias[e * kHidden + static_cast<size_t>(r)].to_float();
      ASSERT_LE(std::abs(value_16(y[static_cast<size_t>(pair * kHidden + r)], true) - exact),
                kGemmError * (want.size + 2) + 0x1p-8 * std::abs(exact))
          << "pair " << pair << ", row " << r;
    }
  }
}

TEST(gemm_emulated, moe_is_the_plain_product_for_few_and_many_tokens_of_an_expert) {
  check_moe<Any, 3>(GemmRouting::kRandom, 12, 4);
  check_moe<Any, 3>(GemmRouting::kSameForAll, 33, 5);  // the other experts have none
  check_moe<Any, 3>(GemmRouting::kRandom, 40, 3);
  check_moe<Any, 3>(GemmRouting::kSameForAll, 97, 3);
}

TEST(gemm_emulated, moe_on_wgmma_is_the_plain_product) {
  check_moe<Sm90, 64>(GemmRouting::kRandom, 40, 3);
  check_moe<Sm90, 160>(GemmRouting::kSameForAll, 33, 4);
  check_moe<Sm90, 64>(GemmRouting::kSameForAll, 70, 3);  // two tiles of 40
}

TEST(gemm_emulated, both_products_at_once_are_the_plain_ones) {
  check_moe<Sm90, 64, 192, 192>(GemmRouting::kRandom, 40, 3);
  check_moe<Sm90, 64, 256, 256>(GemmRouting::kRandom, 12, 12);  // more tiles than CTAs
  check_moe<Sm90, 160, 192, 192>(GemmRouting::kSameForAll, 1, 4);
  check_moe<Sm90, 160, 576, 576>(GemmRouting::kSameForAll, 20, 4);
}

}  // namespace
}  // namespace nibble::backend::cuda
