// The kernels for many tokens (gemm.cuh, moe_group.cuh), run lane by lane on the host.

#include "backend/cuda/emulation/device.h"

#include "backend/cuda/dense/gemm.cuh"
#include "backend/cuda/testing/gemm.h"
#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/testing/around_gemm.h"
#include "backend/cuda/quantise/round.cuh"
#include "backend/cuda/testing/round.h"
#include "backend/cuda/arch/sm90/dense_gemm.cuh"
#include "backend/cuda/arch/sm90/grouped.cuh"
#include "backend/cuda/arch/sm90/mxfp4_parts.cuh"
#include "backend/cuda/arch/sm90/mxfp4_gemm.cuh"

#include <gtest/gtest.h>

#include <algorithm>
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
  template <int kTheSliceBlockPairs, int kTheTokens, Mxfp4Input kTheInput, bool kTheShort = false>
  struct Instance : Mxfp4Tile<kTheSliceBlockPairs, kTheTokens, kTheInput, kTheShort> {
    static constexpr int kSharedBytes = mxfp4_shared_bytes(kTheSliceBlockPairs, kTheInput);
  };
  static inline int tile_tokens = 0;  // of the plan
  template <class Tile, RowOrder kOrder>
  static void kernel(const GemmArgs& args) {
    sm90_mxfp4_gemm<Tile::kSliceBlockPairs, kOrder, Tile::kInput, Tile::kShort>(args, tile_tokens);
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
    const auto run = args.places.sends() ? sm90_dense_gemm<Tile, true> : sm90_dense_gemm<Tile, false>;
    run(args, DenseWalk(args, Tile::kTokens));
  }
};

// sm90_grouped, which does both products.
struct Sm90Both {
  static constexpr bool kPanels = true;
  static inline int sms = 3;
  static GemmPlan plan(const GemmShape& shape, int tile) {
    const std::optional<GemmPlan> plan = plan_sm90_grouped(shape, sms);
    EXPECT_TRUE(plan.has_value() && plan->tokens == tile);
    return plan.value_or(GemmPlan{});
  }
};
template <int kSliceBlockPairs>
void run_grouped(const GemmArgs& args, const GemmPlan& plan) {
  check_args(args);
  const emulation::Launch launch{.grid = static_cast<int>(plan.grid),
                                 .threads = Sm90GroupedTile<kSliceBlockPairs>::kThreads,
                                 .seed = 1,
                                 .predecessor = {}};
  ASSERT_EQ(emulation::run(launch, [&] { sm90_grouped<kSliceBlockPairs>(args); }), "");
}

template <class Arch, class Tile, RowOrder kOrder>
void run_tile(const GemmArgs& args, const GemmPlan& plan) {
  check_args(args);
  if constexpr (std::is_same_v<Arch, Sm90>) Arch::tile_tokens = plan.tokens;
  ASSERT_LE(plan.tokens, Tile::kTokens);
  ASSERT_EQ(plan.smem_bytes, Tile::kSharedBytes);
  const emulation::Launch launch{.grid = static_cast<int>(plan.grid),
                                 .threads = Tile::kThreads,
                                 .grid_y = static_cast<int>(plan.grid_y),
                                 .seed = 1,
                                 .predecessor = {}};
  ASSERT_EQ(emulation::run(launch, [&] { Arch::template kernel<Tile, kOrder>(args); }), "");
}

template <RowOrder kOrder, Mxfp4Input kInput>
void run_mxfp4(const GemmArgs& args, const GemmPlan& plan) {
  const layout::Slices slices = layout::slices_of(args.cols);
  const bool other_width = args.down.weights != nullptr && args.rows != 2 * args.cols;
  if constexpr (kOrder == RowOrder::kPlain || kInput == Mxfp4Input::kF16)
    if (slices.missing > 0 || other_width)
      return run_tile<Sm90, Sm90::Instance<3, kMxfp4Tokens, kInput, true>, kOrder>(args, plan);
  if (slices.blocks == 6) return run_tile<Sm90, Sm90::Instance<3, kMxfp4Tokens, kInput>, kOrder>(args, plan);
  run_tile<Sm90, Sm90::Instance<4, kMxfp4Tokens, kInput>, kOrder>(args, plan);
}

template <class Arch, Packing kPacking, int kTokens, RowOrder kOrder>
void run_gemm(const GemmArgs& args, const GemmPlan& plan) {
  if constexpr (std::is_same_v<Arch, Sm90Both>) {
    if (layout::slices_of(args.cols).blocks == 6) return run_grouped<3>(args, plan);
    run_grouped<4>(args, plan);
  } else if constexpr (std::is_same_v<Arch, Sm90>) {
    run_mxfp4<kOrder, Mxfp4Input::kF16>(args, plan);
  } else {
    run_tile<Arch, typename Arch::template Tile<kPacking, kTokens>, kOrder>(args, plan);
  }
}

// Products as one split of sums, rows as they are packed; of plain rows with the bias. Then as a message of a rank of
// two: what the other one adds up lies in that one's box; and as the part of the second of two that exchange theirs.
template <int kTokens>
void check_sums(GemmArgs args, const GemmMatrix& w, const std::vector<uint16_t>& x, int tile) {
  const auto pitch = static_cast<size_t>(split_pitch(args.tokens, args.rows));
  std::vector<uint16_t> sums(pitch, 0xffff), rest = sums;
  if (args.order != RowOrder::kPlain) args.bias = nullptr;
  args.parts[0] = args.parts[1] = {};
  args.sums = sums.data();
  const GemmPlan plan = Sm90Dense::plan({args.rows, args.cols, args.tokens, 1, Packing::kBf16}, tile);
  run_gemm<Sm90Dense, Packing::kBf16, kTokens, RowOrder::kPlain>(args, plan);
  const std::vector<uint16_t> whole = sums;
  for (int t = 0; t < args.tokens; ++t)
    for (int r = 0; r < args.rows; ++r) {
      const auto from = static_cast<int>(layout::source_row(args.order, r / 16, r % 16));
      const GemmSum want = w.dot(from, x.data() + t * args.cols, true);
      const auto at = static_cast<size_t>(place_in_sums(args.tokens, t, r));
      const double exact = want.value + (args.bias == nullptr ? 0 : args.bias[r].to_float());
      ASSERT_LE(std::abs(value_16(sums[at], true) - exact), kGemmError * (want.size + 1) + 0x1p-8 * std::abs(exact))
          << "token " << t << ", row " << r;
      sums[at] = 0xffff;
    }
  ASSERT_EQ(sums, rest);
  const ShareShape shape{.chunks = (chunks_of(static_cast<int64_t>(pitch / 2)) + 1) / 2 * 2};
  std::vector<uint64_t> box(static_cast<size_t>(shape.bytes() / 8));
  args.places = {.boxes = {nullptr, box.data()}, .shape = shape};
  run_gemm<Sm90Dense, Packing::kBf16, kTokens, RowOrder::kPlain>(args, plan);
  for (size_t at = 0; at < pitch; ++at) {
    if (whole[at] == 0xffff) continue;
    const bool others = static_cast<int64_t>(at) / (2 * kChunkWords) % 2 == 1;
    ASSERT_EQ(sums[at], others ? 0xffff : whole[at]) << at;
    const auto* const sent = reinterpret_cast<const uint16_t*>(
        box.data() + shape.first_part(0, static_cast<int64_t>(at) / (2 * kChunkWords)));
    if (others) ASSERT_EQ(sent[at % (2 * kChunkWords)], whole[at]) << at;
  }
  std::vector<uint16_t> cards[2];
  Exchange exchange{.shape = {.words = static_cast<int64_t>(pitch / 2)}, .rank = 1};
  for (int card = 0; card < 2; ++card) {
    cards[card].assign(static_cast<size_t>(exchange.shape.bytes() / 2), 0xffff);
    exchange.memory[card] = reinterpret_cast<uint32_t*>(cards[card].data());
  }
  args.places = PartPlaces::exchanged(exchange, 1, exchange.shape.words);
  run_gemm<Sm90Dense, Packing::kBf16, kTokens, RowOrder::kPlain>(args, plan);
  rest.assign(cards[0].size(), 0xffff);
  std::ranges::copy(whole, rest.end() - static_cast<std::ptrdiff_t>(pitch));
  for (const auto& card : cards) ASSERT_EQ(card, rest);
}

// The parts of K that a plan has, and all of K at once, as bf16 sums.
template <int kTokens>
void check_parts(GemmArgs args, const GemmMatrix& w, const std::vector<uint16_t>& x, const GemmPlan& plan) {
  const auto pitch = static_cast<size_t>(split_pitch(args.tokens, args.rows));
  args.bias = nullptr;
  args.parts[0] = args.parts[1] = {};
  for (const int splits : {1, plan.splits}) {
    std::vector<uint16_t> sums(static_cast<size_t>(splits) * pitch + 8, 0xffff);
    args.sums = sums.data();
    args.splits = splits;
    run_gemm<Sm90, Packing::kMxfp4, kTokens, RowOrder::kPlain>(args, plan);
    for (int t = 0; t < args.tokens; ++t)
      for (int r = 0; r < args.rows; ++r) {
        const auto from = static_cast<int>(layout::source_row(args.order, r / 16, r % 16));
        const GemmSum want = w.dot(from, x.data() + t * args.cols, false);
        const auto place = static_cast<size_t>(place_in_sums(args.tokens, t, r));
        double all = 0, rounding = 0;
        for (int s = 0; s < splits; ++s) {
          const double sum = value_16(sums[static_cast<size_t>(s) * pitch + place], true);
          all += sum;
          rounding += std::abs(sum) * 0x1.02p-8;
        }
        ASSERT_LE(std::abs(all - want.value), kGemmError * (want.size + 1) + rounding)
            << splits << " parts, token " << t << ", row " << r;
      }
    for (size_t at = sums.size() - 8; at < sums.size(); ++at) ASSERT_EQ(sums[at], 0xffff);
  }
}

template <class Arch, Packing kPacking, int kTokens>
void check_dense(int rows, int cols, int tokens, RowOrder order = RowOrder::kPlain, int tile = kTokens,
                 const GemmMatrix::Scales& scales = {}) {
  SCOPED_TRACE(testing::Message() << rows << " x " << cols << ", " << tokens << " tokens, packing "
                                  << static_cast<int>(kPacking));
  const GemmMatrix w(kPacking, rows, cols, order, 5, scales);
  constexpr bool kBf16 = input_type(kPacking) == InputType::kBf16;
  const std::vector<uint16_t> x = random_16(kBf16, int64_t{tokens} * cols, 6);
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
      const GemmSum want = w.dot(r, x.data() + t * cols, kBf16);
      const GemmPart& part = args.parts[first > 0 && r >= first ? 1 : 0];
      const float got = part.to[t * part.rows + r - part.first_row];
      const double exact = want.value + bias[static_cast<size_t>(r)].to_float();
      ASSERT_LE(std::abs(got - exact), kGemmError * (want.size + 1)) << "token " << t << ", row " << r;
    }
  if constexpr (std::is_same_v<Arch, Sm90Dense>) check_sums<kTokens>(args, w, x, tile);
  if constexpr (std::is_same_v<Arch, Sm90>)
    check_parts<kTokens>(args, w, x, Arch::plan({rows, cols, tokens, 1, kPacking}, tile));
}

TEST(gemm_emulated, dense_is_the_plain_product_in_every_packing) {
  constexpr int kFew = 0, kMany = 1, kWide = 2, kExperts = 3, kTall = 4, kWideTall = 5;
  check_dense<Any, Packing::kBf16, kFew>(256, 384, 33, RowOrder::kHeads64);
  check_dense<Any, Packing::kMxfp8, kFew>(144, 384, 9);
  check_dense<Any, Packing::kMxfp4, kFew>(144, 512, 34);
  check_dense<Any, Packing::kBf16, kMany>(64, 512, 64);
  check_dense<Any, Packing::kMxfp8, kMany>(128, 384, 65, RowOrder::kHeads64);
  check_dense<Any, Packing::kMxfp4, kExperts>(208, 384, 17);
  check_dense<Any, Packing::kBf16, kWide>(16, 384, 129);
  check_dense<Any, Packing::kBf16, kWide>(256, 512, 69);
  check_dense<Any, Packing::kBf16, kWideTall>(16, 384, 129);
  check_dense<Any, Packing::kBf16, kWideTall>(320, 512, 69, RowOrder::kHeads64);
  check_dense<Any, Packing::kMxfp8, kMany>(48, 512, 100);
  check_dense<Any, Packing::kQ8, kFew>(144, 384, 9);
  check_dense<Any, Packing::kQ8, kFew>(256, 2880, 33, RowOrder::kHeads64);
  check_dense<Any, Packing::kQ8, kMany>(128, 512, 65);
  check_dense<Any, Packing::kMxfp4, kExperts>(16, 2880, 12);
  check_dense<Any, Packing::kMxfp4, kTall>(208, 384, 97);
  check_dense<Any, Packing::kMxfp4, kTall>(16, 2880, 20);
  for (int tokens = 5; tokens <= 96; tokens += 8) check_dense<Any, Packing::kMxfp4, kExperts>(16, 192, tokens);
}

// So a card without room for the copy in bf16 computes what others do.
TEST(gemm_emulated, q8_0_gives_the_bits_of_its_copy_in_bf16) {
  constexpr int kRows = 128, kCols = 512, kTokens = 21;
  const GemmMatrix q8(Packing::kQ8, kRows, kCols, RowOrder::kPlain, 5, {100, 40});
  GemmMatrix copy(Packing::kBf16, kRows, kCols, RowOrder::kPlain, 5);
  for (int64_t i = 0; i < kRows * kCols; ++i)
    copy.elements[static_cast<size_t>(i)] = Bf16::from_float(static_cast<float>(q8.at(i / kCols, i % kCols))).bits;
  copy.pack(RowOrder::kPlain);
  const std::vector<uint16_t> x = random_16(true, int64_t{kTokens} * kCols, 6);
  std::vector<float> y[2] = {std::vector<float>(kTokens * kRows, kNan), std::vector<float>(kTokens * kRows, kNan)};
  for (const GemmMatrix* const w : std::initializer_list<const GemmMatrix*>{&q8, &copy}) {
    GemmArgs args{.packing = w->packing,
                  .weights = w->packed.data(),
                  .x = x.data(),
                  .rows = kRows,
                  .cols = kCols,
                  .tokens = kTokens};
    args.parts[0] = {y[w == &copy ? 1 : 0].data(), 0, kRows};
    const GemmPlan plan = Any::plan({kRows, kCols, kTokens, 1, w->packing}, 0);
    if (w == &copy)
      run_gemm<Any, Packing::kBf16, 0, RowOrder::kPlain>(args, plan);
    else
      run_gemm<Any, Packing::kQ8, 0, RowOrder::kPlain>(args, plan);
  }
  EXPECT_EQ(y[0], y[1]);
}

// More k than the ring holds, however many stages fewer tokens leave room for.
TEST(gemm_emulated, rings_go_round_whatever_the_tokens) {
  for (int tokens = 8; tokens <= 96; tokens += 8) {
    check_dense<Any, Packing::kMxfp4, 3>(16, 576, tokens);
    check_dense<Any, Packing::kMxfp4, 4>(16, 576, tokens);
  }
  for (const int tokens : {9, 33}) {
    check_dense<Any, Packing::kBf16, 0>(16, 576, tokens);
    check_dense<Any, Packing::kBf16, 1>(16, 576, tokens);
    check_dense<Any, Packing::kMxfp8, 1>(16, 576, tokens);
    check_dense<Any, Packing::kQ8, 1>(16, 576, tokens);
  }
}

// Below, at and beyond the scales that are multiplied into weights.
TEST(gemm_emulated, weights_are_exact_whatever_their_scales) {
  for (const uint32_t scale : {1u, 90u, 103u, 104u, 128u, 129u, 160u})
    check_dense<Any, Packing::kMxfp4, 3>(48, 192, 9, RowOrder::kPlain, 3, {scale, 1});
  check_dense<Any, Packing::kMxfp4, 3>(48, 192, 9, RowOrder::kPlain, 3, {96, 40});
  check_dense<Any, Packing::kMxfp4, 4>(48, 192, 9, RowOrder::kPlain, 4, {96, 40});
  for (const uint32_t scale : {90u, 112u, 113u, 134u, 135u, 150u})
    check_dense<Any, Packing::kMxfp8, 0>(48, 192, 9, RowOrder::kPlain, 0, {scale, 1});
}

TEST(gemm_emulated, dense_on_wgmma_is_the_plain_product) {
  check_dense<Sm90, Packing::kMxfp4, 64>(144, 512, 9);
  check_dense<Sm90, Packing::kMxfp4, 64>(64, 384, 100, RowOrder::kHeads64, 32);
  check_dense<Sm90, Packing::kMxfp4, 160>(48, 512, 129, RowOrder::kPlain, 96);
  check_dense<Sm90, Packing::kMxfp4, 160>(16, 192, 250, RowOrder::kPlain, 128);
  check_dense<Sm90, Packing::kMxfp4, 160>(16, 2880, 140, RowOrder::kPlain, 72);  // 3 parts of 5 slices, 2 tiles
  check_dense<Sm90, Packing::kMxfp4, 64>(128, 2048, 33, RowOrder::kHeads64);     // 8 slices of 4 pairs
}

TEST(gemm_emulated, parts_of_k_depend_on_the_shape_and_the_card_alone) {
  for (const int tokens : {9, 64, 200, 256}) {
    EXPECT_EQ(plan_sm90_gemm({5120, 2880, tokens, 1, Packing::kMxfp4}, 132).splits, 4);
    EXPECT_EQ(plan_sm90_gemm({2880, 4096, tokens, 1, Packing::kMxfp4}, 132).splits, 8);
  }
  EXPECT_EQ(plan_sm90_gemm({5120, 2880, 257, 1, Packing::kMxfp4}, 132).splits, 1);
  EXPECT_EQ(plan_sm90_gemm({201088, 2880, 64, 1, Packing::kMxfp4}, 132).splits, 1);
  EXPECT_EQ(plan_sm90_gemm({64, 192, 64, 1, Packing::kMxfp4}, 132).splits, 1) << "no more than slices";
  EXPECT_EQ(plan_sm90_gemm({64, 640, 64, 1, Packing::kMxfp4}, 132).splits, 1) << "the first slice is short";
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
  int cols = 0;
  std::vector<float> values;
  std::vector<float> inverse = {};  // with norm
  std::vector<Bf16> norm = {};
  std::vector<uint16_t> rounded;
};
PlainGroups run_group(const std::vector<int32_t>& ids, int topk, int experts, int tile_tokens, GroupRounded* round,
                      const OwnExperts& own = {}) {
  PlainGroups g;
  g.tile_counts.assign(kTileCounts, -1);
  const auto count = static_cast<int64_t>(ids.size());
  g.pairs.assign(static_cast<size_t>(max_places(count, experts)), -2);
  g.places.assign(ids.size(), -1);
  g.tiles.resize(static_cast<size_t>(max_expert_tiles(count, experts, tile_tokens)));
  std::vector<int32_t> known(ids.size(), -1);
  const GroupTiles::Args args{.expert_ids = known.data(),
                              .pairs = g.pairs.data(),
                              .places = g.places.data(),
                              .tiles = g.tiles.data(),
                              .tile_counts = g.tile_counts.data(),
                              .tokens = static_cast<int>(count) / topk,
                              .topk = topk,
                              .experts = experts,
                              .tile_tokens = tile_tokens,
                              .own = own};
  check_args(args);
  emulation::Launch launch{.grid = experts, .threads = kGroupThreads, .predecessor = [&] { known = ids; }};
  if (round == nullptr) {
    EXPECT_EQ(emulation::run(launch, [&] { any_moe_group_tiles(args); }), "");
  } else {
    const auto rows = static_cast<int>(g.pairs.size());
    round->rounded.assign(g.pairs.size() * static_cast<size_t>(round->cols), 0xffff);
    const Round::Args to{.from = round->values.data(),
                         .to = {round->rounded.data(), InputType::kF16, rows},
                         .tokens = args.tokens,
                         .cols = round->cols,
                         .inverse = round->norm.empty() ? nullptr : round->inverse.data(),
                         .norm = round->norm.empty() ? nullptr : round->norm.data(),
                         .copies = topk};
    launch.grid = args.tokens;
    launch.threads = round_threads(round->cols);
    EXPECT_EQ(emulation::run(launch, [&] { any_group_round_f32(args, to); }), "");
  }
  g.tiles.resize(static_cast<size_t>(g.tile_counts[0]));
  return g;
}

TEST(gemm_emulated, rounds_in_blocks_of_mxfp8_to_codes_and_to_values) {
  const auto run = [](const Round::Args& args) {
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
      const int cols = tokens == 1 ? 4096 : 320;
      const auto width = static_cast<size_t>(cols);
      GroupRounded round{.cols = cols,
                         .values = std::vector<float>(static_cast<size_t>(tokens) * width),
                         .inverse = std::vector<float>(static_cast<size_t>(tokens)),
                         .norm = routing == GemmRouting::kRandom ? gemm_bias(cols, 7) : std::vector<Bf16>{},
                         .rounded = {}};
      for (size_t i = 0; i < round.values.size(); ++i) round.values[i] = static_cast<float>(i * 40503 % 65521) / 4096;
      for (size_t t = 0; t < round.inverse.size(); ++t) round.inverse[t] = 1.0f / static_cast<float>(t + 3);
      for (GroupRounded* by : {static_cast<GroupRounded*>(nullptr), &round}) {
        const PlainGroups got = run_group(ids, 4, experts, tile, by);
        ASSERT_EQ(got.pairs, want.pairs);
        ASSERT_EQ(got.places, want.places);
        ASSERT_EQ(got.tiles, want.tiles);
        ASSERT_EQ(got.tile_counts, want.tile_counts);
      }
      std::vector<uint16_t> bits;
      for (size_t i = 0; i < round.values.size(); ++i) {
        const float scale = round.norm.empty() ? 1.0f : round.inverse[i / width] * round.norm[i % width].to_float();
        bits.push_back(F16::from_float(round.values[i] * scale).bits);
      }
      const auto token_at = [&](int64_t place) -> int64_t {
        const int32_t pair = want.pairs[static_cast<size_t>(place)];
        return pair < 0 ? -1 : pair / 4;
      };
      ASSERT_EQ(round.rounded, in_panels(bits, round.cols, static_cast<int>(want.pairs.size()), token_at));
    }
  }
}

// Those of some experts of a step: three of 16, and experts that nobody chose.
TEST(gemm_emulated, groups_of_a_rank_hold_the_pairs_of_its_experts) {
  constexpr int kExperts = 16, kCols = 320, kTile = 32;
  for (const int tokens : {1, 70}) {
    for (const OwnExperts& own : {OwnExperts{5, 3}, OwnExperts{0, 8}, OwnExperts{14, 2}}) {
      const std::vector<int32_t> ids =
          routed(tokens == 1 ? GemmRouting::kSameForAll : GemmRouting::kRandom, tokens, 4, kExperts, 3);
      const PlainGroups want = plain_groups(own_numbers(ids, own), own.count, kTile);
      GroupRounded round{
          .cols = kCols, .values = std::vector<float>(static_cast<size_t>(tokens) * kCols, 1.5f), .rounded = {}};
      for (GroupRounded* by : {static_cast<GroupRounded*>(nullptr), &round}) {
        const PlainGroups got = run_group(ids, 4, own.count, kTile, by, own);
        ASSERT_EQ(got.pairs, want.pairs);
        ASSERT_EQ(got.places, want.places);
        ASSERT_EQ(got.tiles, want.tiles);
        ASSERT_EQ(got.tile_counts, want.tile_counts);
      }
      const std::vector<uint16_t> bits(round.values.size(), F16::from_float(1.5f).bits);
      const auto token_at = [&](int64_t place) -> int64_t {
        const int32_t pair = want.pairs[static_cast<size_t>(place)];
        return pair < 0 ? -1 : pair / 4;
      };
      const std::vector<uint16_t> panels = in_panels(bits, kCols, static_cast<int>(want.pairs.size()), token_at);
      ASSERT_EQ(round.rounded, panels);
      std::vector<uint16_t> again(panels.size(), 0xffff);
      const Round::Args args{.from = round.values.data(),
                             .to = {again.data(), InputType::kF16, static_cast<int>(want.pairs.size())},
                             .tokens = tokens,
                             .cols = kCols,
                             .places = want.places.data(),
                             .copies = 4};
      const emulation::Launch launch{.grid = tokens, .threads = round_threads(kCols), .predecessor = {}};
      ASSERT_EQ(emulation::run(launch, [&] { any_round_f32(args); }), "");
      ASSERT_EQ(again, panels);
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
void check_moe(GemmRouting routing, int tokens, int all_experts, const OwnExperts& own = {}) {
  constexpr int kTopk = 2, kWidth = layout::block_pair_width(kInter);
  const int experts = own.of(all_experts);
  SCOPED_TRACE(testing::Message() << tokens << " tokens, " << experts << " experts, routing "
                                  << static_cast<int>(routing));
  const GemmExperts up(experts, 2 * kInter, kHidden, RowOrder::kGateUp, 11);
  const GemmExperts down(experts, kHidden, kWidth, RowOrder::kPlain, 12);
  constexpr bool kPanels = Arch::kPanels;
  const std::vector<uint16_t> x = random_16(false, int64_t{tokens} * kHidden, 13);
  const std::vector<Bf16> up_bias = gemm_bias(experts * 2 * kInter, 14), down_bias = gemm_bias(experts * kHidden, 15);
  const std::vector<int32_t> ids = own_numbers(routed(routing, tokens, kTopk, all_experts, 16), own);
  const int pairs = tokens * kTopk;
  constexpr int kPlaces = Arch::kPanels ? kTokens : kGemmFew.tokens;  // of a tile
  PlainGroups groups = plain_groups(ids, experts, kPlaces);
  auto tile_count = static_cast<int32_t>(groups.tiles.size());
  groups.tiles.resize(static_cast<size_t>(max_expert_tiles(pairs, experts, kPlaces)));
  const auto rows = static_cast<int>(groups.pairs.size());
  const auto token_at = [&](int64_t place) -> int64_t {
    const int32_t pair = groups.pairs[static_cast<size_t>(place)];
    return pair < 0 ? -1 : pair / kTopk;
  };
  const std::vector<uint16_t> stored = kPanels ? in_panels(x, kHidden, rows, token_at) : x;
  std::vector<uint16_t> u(static_cast<size_t>((kPanels ? rows : pairs) * kWidth), 0xffff);
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
  const bool at_once = std::is_same_v<Arch, Sm90Both> || (kPanels && sm90_experts_at_once(kHidden, kInter));
  if (!at_once || std::is_same_v<Arch, Sm90>) run_moe<Arch, kTokens>(args, false);
  if (at_once) {
    const std::vector<uint16_t> two_u = u, two_y = y;
    std::ranges::fill(u, 0xffff);
    std::ranges::fill(y, 0xffff);
    run_moe<Arch, kTokens>(args, true);
    if (std::is_same_v<Arch, Sm90>) {
      ASSERT_EQ(u, two_u) << "of two launches";
      ASSERT_EQ(y, two_y);
    }
  }
  std::vector<int32_t> places = groups.places;
  for (int32_t& place : places) place = std::max(place, 0);  // of another rank's nothing is looked at
  const std::vector<uint16_t> got_u = kPanels ? from_panels(u, kWidth, rows, places) : u;
  for (int pair = 0; pair < pairs; ++pair) {
    if (ids[static_cast<size_t>(pair)] < 0) {
      for (int r = 0; r < kHidden; ++r)
        ASSERT_EQ(y[static_cast<size_t>(pair * kHidden + r)], 0xffff) << "another rank's";
      continue;
    }
    const auto e = static_cast<size_t>(ids[static_cast<size_t>(pair)]);
    for (int c = 0; c < kInter; ++c) {
      const GatedWant want =
          gated_want(up.matrices[e], {x.data() + pair / kTopk * kHidden, false}, up_bias.data() + e * 2 * kInter, c);
      const float got = value_16(got_u[static_cast<size_t>(pair * kWidth + c)], false);
      ASSERT_LE(std::abs(got - want.value), want.bound) << "pair " << pair << ", channel " << c << ": " << got;
    }
    for (int c = kInter; c < kWidth; ++c) ASSERT_EQ(got_u[static_cast<size_t>(pair * kWidth + c)], 0) << "filled up";
    for (int r = 0; r < kHidden; ++r) {
      const GemmSum want = down.matrices[e].dot(r, got_u.data() + pair * kWidth, false);
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
  check_moe<Any, 4>(GemmRouting::kRandom, 40, 3);
  check_moe<Any, 4>(GemmRouting::kRandom, 60, 14);  // in turn
}

TEST(gemm_emulated, moe_of_a_rank_multiplies_its_experts_alone) {
  check_moe<Any, 3>(GemmRouting::kRandom, 12, 8, {2, 3});
  check_moe<Any, 3>(GemmRouting::kSameForAll, 12, 8, {4, 4});  // it has no pair
  check_moe<Sm90, 64>(GemmRouting::kRandom, 12, 8, {2, 3});
  check_moe<Sm90, 64>(GemmRouting::kSameForAll, 12, 8, {4, 4});
  check_moe<Sm90, 64, 192, 192>(GemmRouting::kRandom, 12, 8, {0, 4});
  check_moe<Sm90, 64, 192, 192>(GemmRouting::kSameForAll, 12, 8, {4, 4});
}

TEST(gemm_emulated, moe_on_wgmma_is_the_plain_product) {
  check_moe<Sm90, 64>(GemmRouting::kRandom, 40, 3);
  check_moe<Sm90, 160>(GemmRouting::kSameForAll, 33, 4);
  check_moe<Sm90, 64>(GemmRouting::kSameForAll, 70, 3);  // two tiles of 40
}

// Inner widths of ranks: pairs of blocks whose first slice is short, by one pair and by two, and a block that fills up
// a pair.
TEST(gemm_emulated, moe_of_a_ranks_width_is_the_plain_product) {
  check_moe<Any, 3, 192, 320>(GemmRouting::kRandom, 12, 4);
  check_moe<Any, 4, 192, 64>(GemmRouting::kRandom, 40, 3);
  check_moe<Any, 3, 192, 1440>(GemmRouting::kRandom, 5, 2);
  check_moe<Any, 4, 192, 224>(GemmRouting::kRandom, 40, 3);
  check_moe<Any, 3, 192, 32>(GemmRouting::kRandom, 12, 4);
  check_moe<Sm90, 64, 192, 1440>(GemmRouting::kSameForAll, 17, 2);
  check_moe<Sm90, 64, 192, 736>(GemmRouting::kRandom, 9, 3);
  check_moe<Sm90, 160, 192, 672>(GemmRouting::kRandom, 33, 3);
  check_moe<Sm90, 160, 192, 32>(GemmRouting::kSameForAll, 130, 3);
  check_moe<Sm90, 64, 192, 704>(GemmRouting::kRandom, 40, 3);
  check_moe<Sm90, 160, 192, 320>(GemmRouting::kSameForAll, 130, 3);
  check_moe<Sm90, 160, 192, 256 + 384>(GemmRouting::kRandom, 33, 4);
  check_moe<Sm90, 64, 192, 64>(GemmRouting::kRandom, 12, 12);
  check_moe<Sm90, 160, 384, 64>(GemmRouting::kSameForAll, 66, 12);
  check_moe<Sm90, 64, 192, 1472>(GemmRouting::kSameForAll, 17, 2);
  check_moe<Sm90, 64, 576, 320>(GemmRouting::kRandom, 12, 12);  // more tiles than CTAs
}

TEST(gemm_emulated, both_products_at_once_are_the_plain_ones) {
  check_moe<Sm90, 64, 192, 192>(GemmRouting::kRandom, 40, 3);
  check_moe<Sm90, 64, 256, 256>(GemmRouting::kRandom, 12, 12);  // more tiles than CTAs
  check_moe<Sm90, 160, 192, 192>(GemmRouting::kSameForAll, 1, 4);
  check_moe<Sm90, 160, 576, 576>(GemmRouting::kSameForAll, 20, 4);
}

// Tiles of which two or three lie in a CTA's shared memory at a time, and of which one does; CTAs with all groups of
// rows, with parts of a tile that leave warpgroups without any, and without any.
TEST(gemm_emulated, grouped_on_wgmma_is_the_plain_product) {
  const auto check = [](int sms, const auto& moe) {
    Sm90Both::sms = sms;
    moe();
  };
  constexpr int kTokens = kSm90GroupedTokens;
  check(1, [] { check_moe<Sm90Both, kTokens, 512, 512>(GemmRouting::kRandom, 12, 5); });
  check(3, [] { check_moe<Sm90Both, kTokens, 384, 384>(GemmRouting::kSameForAll, 1, 4); });
  check(3, [] { check_moe<Sm90Both, kTokens, 384, 384>(GemmRouting::kRandom, 40, 6); });
  check(7, [] { check_moe<Sm90Both, kTokens, 576, 576>(GemmRouting::kSameForAll, 30, 4); });  // two tiles an expert
  check(40, [] { check_moe<Sm90Both, kTokens, 384, 384>(GemmRouting::kSameForAll, 20, 4); });
}

TEST(gemm_emulated, grouped_on_wgmma_of_a_rank_multiplies_its_experts_alone) {
  Sm90Both::sms = 5;
  check_moe<Sm90Both, kSm90GroupedTokens, 384, 384>(GemmRouting::kRandom, 12, 8, {0, 4});
  check_moe<Sm90Both, kSm90GroupedTokens, 384, 384>(GemmRouting::kSameForAll, 12, 8, {4, 4});  // it has no pair
}

// Experts that multiply codes of rows: gate_up, its u rounded again, down.
struct CodesCase {
  GemmRouting routing = GemmRouting::kRandom;
  int tokens = 1, experts = 1, tile = kMxfp4Tokens, hidden = 192, inter = 256, sms = 3;
  GemmMatrix::Scales scales{115, 11};
};
void check_codes(const CodesCase& c) {
  constexpr int kTopk = 2;
  const int width = layout::block_pair_width(c.inter);
  SCOPED_TRACE(testing::Message() << c.tokens << " tokens, " << c.experts << " experts, routing "
                                  << static_cast<int>(c.routing) << ", scales from " << c.scales.lowest);
  const GemmExperts up(c.experts, 2 * c.inter, c.hidden, RowOrder::kGateUp, 11, c.scales);
  const GemmExperts down(c.experts, c.hidden, width, RowOrder::kPlain, 12, c.scales);
  std::vector<float> values = floats_of_f16(random_16(false, int64_t{c.tokens} * c.hidden, 13));
  for (size_t i = 0; i < values.size(); ++i) values[i] *= std::ldexp(1.0f, -static_cast<int>(i / kMxBlock % 3));
  const RowCodes x(values, c.hidden);
  const std::vector<uint16_t> halves = x.halves();
  const std::vector<Bf16> up_bias = gemm_bias(c.experts * 2 * c.inter, 14),
                          down_bias = gemm_bias(c.experts * c.hidden, 15);
  const std::vector<int32_t> ids = routed(c.routing, c.tokens, kTopk, c.experts, 16);
  const int pairs = c.tokens * kTopk;
  PlainGroups groups = plain_groups(ids, c.experts, c.tile);
  auto tile_count = static_cast<int32_t>(groups.tiles.size());
  groups.tiles.resize(static_cast<size_t>(max_expert_tiles(pairs, c.experts, c.tile)));
  const auto rows = static_cast<int>(groups.pairs.size());
  const auto pair_at = [&](int64_t place) -> int64_t { return std::max(groups.pairs[static_cast<size_t>(place)], -1); };
  const PlacedCodes placed(x, rows, [&](int64_t place) { return pair_at(place) < 0 ? -1 : pair_at(place) / kTopk; });
  std::vector<uint16_t> u(static_cast<size_t>(rows * width), 0xffff);
  std::vector<uint16_t> y(static_cast<size_t>(pairs * c.hidden), 0xffff);
  GemmArgs args{.packing = Packing::kMxfp4,
                .order = RowOrder::kGateUp,
                .weights = up.packed.data(),
                .bias = up_bias.data(),
                .x = reinterpret_cast<const uint16_t*>(placed.codes.data()),
                .rows = 2 * c.inter,
                .cols = c.hidden,
                .tokens = pairs,
                .tiles = groups.tiles.data(),
                .tile_count = &tile_count,
                .pairs = groups.pairs.data(),
                .experts = c.experts,
                .x_rows = rows,
                .x_scales = placed.scales.data(),
                .scale_top = static_cast<int>(c.scales.lowest + c.scales.count) - 1,
                .u = u.data()};
  const auto plan = [&](const GemmArgs& a) {
    GemmShape shape{a.rows, a.cols, a.tokens, a.experts};
    shape.row_codes = true;
    return plan_sm90_gemm(shape, c.sms, c.tile);
  };
  run_mxfp4<RowOrder::kGateUp, Mxfp4Input::kRowCodes>(args, plan(args));
  const std::vector<uint16_t> got_u = from_panels(u, width, rows, groups.places);
  const RowCodes u_codes(floats_of_f16(got_u), width);
  const std::vector<uint16_t> u_halves = u_codes.halves();
  const PlacedCodes placed_u(u_codes, rows, pair_at);
  args.down = {down.packed.data(), down_bias.data(), y.data()};
  GemmArgs second = down_alone(args);
  second.x = reinterpret_cast<const uint16_t*>(placed_u.codes.data());
  second.x_scales = placed_u.scales.data();
  run_mxfp4<RowOrder::kPlain, Mxfp4Input::kRowCodes>(second, plan(second));
  for (int pair = 0; pair < pairs; ++pair) {
    const auto e = static_cast<size_t>(ids[static_cast<size_t>(pair)]);
    for (int i = 0; i < c.inter; ++i) {
      const GatedWant want = gated_want(up.matrices[e], {halves.data() + pair / kTopk * c.hidden, false},
                                        up_bias.data() + e * 2 * static_cast<size_t>(c.inter), i);
      const float got = value_16(got_u[static_cast<size_t>(pair * width + i)], false);
      ASSERT_LE(std::abs(got - want.value), want.bound) << "pair " << pair << ", channel " << i << ": " << got;
    }
    for (int i = c.inter; i < width; ++i) ASSERT_EQ(got_u[static_cast<size_t>(pair * width + i)], 0) << "filled up";
    for (int r = 0; r < c.hidden; ++r) {
      const GemmSum want = down.matrices[e].dot(r, u_halves.data() + pair * width, false);
      const double exact =
          want.value + down_bias[e * static_cast<size_t>(c.hidden) + static_cast<size_t>(r)].to_float();
      ASSERT_LE(std::abs(value_16(y[static_cast<size_t>(pair * c.hidden + r)], true) - exact),
                kGemmError * (want.size + 2) + 0x1p-8 * std::abs(exact))
          << "pair " << pair << ", row " << r;
    }
  }
}

TEST(gemm_emulated, experts_of_row_codes_are_the_plain_product) {
  using enum GemmRouting;
  check_codes({.routing = kRandom, .tokens = 40, .experts = 3, .tile = kMxfp4Narrow});
  check_codes({.routing = kSameForAll, .tokens = 33, .experts = 4});
  check_codes({.routing = kSameForAll, .tokens = 70, .experts = 3, .tile = kMxfp4Narrow});      // two tiles of 40
  check_codes({.routing = kRandom, .tokens = 12, .experts = 12, .hidden = 256, .inter = 192});  // more tiles than CTAs
  check_codes({.routing = kSameForAll, .tokens = 9, .experts = 2, .hidden = 576, .inter = 192});
  check_codes({.routing = kRandom, .tokens = 3, .experts = 4, .sms = 1});
  for (const int inter : {32, 64, 224, 320, 640, 672, 736, 1440})
    for (const int tile : {kMxfp4Narrow, kMxfp4Tokens})
      check_codes({.routing = kRandom, .tokens = inter < 500 ? 70 : 9, .experts = 3, .tile = tile, .inter = inter});
}

TEST(gemm_emulated, experts_of_row_codes_are_the_plain_product_in_every_width) {
  for (int width = 8; width <= kMxfp4Tokens; width += 8) {
    const int tokens = width % 16 == 0 ? width : width - 7;
    check_codes({.routing = GemmRouting::kSameForAll, .tokens = tokens, .experts = 2, .inter = 192});
  }
}

// All scales that e5m2 holds under a largest one; each alone.
TEST(gemm_emulated, row_codes_meet_every_weight_exactly_from_its_smallest_scale_to_its_largest) {
  constexpr uint32_t kLargest = layout::kMaxNarrowScaleCode, kCount = layout::kByteScales;
  for (const uint32_t top : {kLargest, 126u, 118u})
    check_codes({.tokens = 5, .experts = 2, .inter = 192, .scales = {top + 1 - kCount, kCount}});
  for (const uint32_t scale : {2u, 17u, 100u, kLargest})
    check_codes({.tokens = 1, .experts = 2, .inter = 192, .scales = {scale, 1}});
}

}  // namespace
}  // namespace nibble::backend::cuda
