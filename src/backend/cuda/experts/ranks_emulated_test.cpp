// What ranks that share a step make of its experts, run lane by lane on the host: each has the weights that its upload
// cuts out of the model's, and its kernels' parts add up to what one card makes of the whole.

#include "backend/cuda/testing/gemv_emulated.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/testing/gemm.h"
#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/experts/grouped.cuh"
#include "backend/cuda/experts/moe_down.cuh"
#include "backend/cuda/experts/moe_up.cuh"
#include "backend/cuda/comm/testing/combine.h"
#include "backend/shards.h"
#include "backend/sliced_weight.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace nibble::backend::cuda {
namespace {

struct Case {
  const char* name;
  Dims dims;
  Ranks ranks;
  int tokens;
};

std::span<const std::byte> bytes_of(const auto& values) { return std::as_bytes(std::span(values)); }

std::vector<uint8_t> random_bytes(int64_t count, uint64_t seed, ScaleRange range = {0, 255}) {
  std::vector<uint8_t> bytes;
  for (int64_t i = 0; i < count; ++i)
    bytes.push_back(
        static_cast<uint8_t>(static_cast<uint32_t>(range.low) +
                             draw(seed, static_cast<uint64_t>(i)) % static_cast<uint32_t>(range.high - range.low + 1)));
  return bytes;
}

// A layer's experts as a checkpoint ships them, and a step's choices.
struct Model {
  Dims d;
  std::vector<uint8_t> up, up_scales, down, down_scales;
  std::vector<Bf16> up_bias, down_bias;

  explicit Model(const Dims& dims)
      : d(dims),
        up(random_bytes(d.experts * d.inter * d.hidden, 1)),
        up_scales(random_bytes(d.experts * 2 * d.inter * d.hidden / 32, 2, {115, 121})),
        down(random_bytes(d.experts * d.inter * d.hidden / 2, 3)),
        down_scales(random_bytes(d.experts * d.inter * d.hidden / 32, 4, {115, 125})),
        up_bias(random_bf16(static_cast<size_t>(d.experts * 2 * d.inter), 5)),
        down_bias(random_bf16(static_cast<size_t>(d.experts * d.hidden), 6)) {}

  [[nodiscard]] std::vector<HostWeight> weights() const {
    using enum WeightRole;
    const auto mxfp4 = [](WeightRole role, const std::vector<uint8_t>& codes, const std::vector<uint8_t>& scales,
                          const Shape& shape) {
      Shape of_codes = shape;
      of_codes.push_back(16);
      return HostWeight{.role = role,
                        .format = WeightFormat::kMxfp4,
                        .values = {.shape = of_codes, .bytes = bytes_of(codes)},
                        .scales = {.shape = shape, .bytes = bytes_of(scales)}};
    };
    return {
        mxfp4(kGateUp, up, up_scales, {d.experts, 2 * d.inter, d.hidden / 32}),
        {.role = kGateUpBias, .values = {.shape = {d.experts, 2 * d.inter}, .bytes = bytes_of(up_bias)}, .scales = {}},
        mxfp4(kDown, down, down_scales, {d.experts, d.hidden, d.inter / 32}),
        {.role = kDownBias, .values = {.shape = {d.experts, d.hidden}, .bytes = bytes_of(down_bias)}, .scales = {}}};
  }
};

// What a rank's card holds of it.
struct Rank {
  Shard shard;  // as cards hold it
  OwnExperts own;
  std::vector<uint8_t> up, down;
  std::vector<Bf16> up_bias, down_bias;
  int inter;

  Rank(const Model& model, const Ranks& ranks, int rank)
      : shard(cuda_shard(shard_of(model.d, ranks, rank))), inter(static_cast<int>(shard.inter.count)) {
    const Shard true_shard = shard_of(model.d, ranks, rank);
    if (ranks.whole_experts) own = {static_cast<int>(shard.experts.first), static_cast<int>(shard.experts.count)};
    const int64_t experts = shard.experts.count, hidden = model.d.hidden;
    for (HostWeight w : model.weights()) {
      w.slice = slice_of(w.role, model.d, true_shard);
      const bool gate_up = w.role == WeightRole::kGateUp || w.role == WeightRole::kGateUpBias;
      const Extent filled{gate_up ? 2 * shard.inter.count : hidden,
                          w.role == WeightRole::kDown ? width() : w.slice->cols.count};
      const SlicedWeight part = sliced(w, filled);
      if (w.role == WeightRole::kGateUp)
        up = packed(part.weight, experts * 2 * shard.inter.count, hidden, RowOrder::kGateUp);
      if (w.role == WeightRole::kDown) down = packed(part.weight, experts * hidden, width(), RowOrder::kPlain);
      if (w.role == WeightRole::kGateUpBias) up_bias = bf16(part.weight);
      if (w.role == WeightRole::kDownBias) down_bias = bf16(part.weight);
    }
  }
  [[nodiscard]] int width() const { return layout::block_pair_width(inter); }  // of u
  static std::vector<Bf16> bf16(const HostWeight& w) {
    std::vector<Bf16> values(w.values.bytes.size() / 2);
    std::memcpy(values.data(), w.values.bytes.data(), w.values.bytes.size());
    return values;
  }
  static std::vector<uint8_t> packed(const HostWeight& w, int64_t rows, int64_t cols, RowOrder order) {
    EXPECT_EQ(std::ssize(w.values.bytes), rows * cols / 2);
    std::vector<uint8_t> to(static_cast<size_t>(layout::packed_bytes(Packing::kMxfp4, rows, cols)));
    const PackArgs args{.packing = Packing::kMxfp4,
                        .values = reinterpret_cast<const uint8_t*>(w.values.bytes.data()),
                        .scales = reinterpret_cast<const uint8_t*>(w.scales.bytes.data()),
                        .packed = to.data(),
                        .rows = rows,
                        .cols = cols,
                        .order = order};
    const layout::Geometry g = layout::geometry(Packing::kMxfp4, cols);
    for (int64_t i = 0; i < rows * cols / 32; ++i) {
      pack_mxfp4_piece(args, g, i);
      EXPECT_FALSE(bad_scale(Packing::kMxfp4, pack_scale(args, g, i)));
    }
    return to;
  }
};

// What all ranks are given.
struct Step {
  int tokens, topk, experts, hidden;
  std::vector<float> logits, weights;
  std::vector<int32_t> ids;
  std::vector<F16> x;

  Step(const Dims& d, int of_tokens)
      : tokens(of_tokens),
        topk(static_cast<int>(d.topk)),
        experts(static_cast<int>(d.experts)),
        hidden(static_cast<int>(d.hidden)),
        logits(random_floats(static_cast<size_t>(tokens * experts), 8)),
        x(random_f16(static_cast<size_t>(tokens * hidden), 9)) {
    for (int t = 0; t < tokens; ++t) {
      std::vector<int32_t> order(static_cast<size_t>(experts));
      for (int e = 0; e < experts; ++e) order[static_cast<size_t>(e)] = e;
      const float* own = logits.data() + t * experts;
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return own[a] > own[b]; });
      double sum = 0;
      for (int k = 0; k < topk; ++k) sum += std::exp(double{own[order[static_cast<size_t>(k)]]} - own[order[0]]);
      for (int k = 0; k < topk; ++k) {
        ids.push_back(order[static_cast<size_t>(k)]);
        weights.push_back(
            static_cast<float>(std::exp(double{own[order[static_cast<size_t>(k)]]} - own[order[0]]) / sum));
      }
    }
  }
  [[nodiscard]] int pairs() const { return tokens * topk; }
  [[nodiscard]] ExpertChoice choice(const OwnExperts& own) const {
    return {.logits = logits.data(), .experts = experts, .topk = topk, .own = own};
  }
};

struct Made {
  std::vector<F16> u;    // [pairs, width]; what nobody wrote is NaN
  std::vector<float> y;  // [tokens, hidden]
};

void emulate(int grid, int threads, const std::function<void()>& kernel) {
  const emulation::Launch launch{.grid = grid, .threads = threads, .predecessor = {}};
  ASSERT_EQ(emulation::run(launch, kernel), "");
}

Made nothing_yet(const Step& step, int width) {
  return {std::vector<F16>(static_cast<size_t>(step.pairs() * width), F16::from_float(kNan)),
          std::vector<float>(static_cast<size_t>(step.tokens * step.hidden), kNan)};
}

void run_up(const Rank& rank, const Step& step, Made& made) {
  const MoeUp::Args args{.weights = rank.up.data(),
                         .bias = rank.up_bias.data(),
                         .x = step.x.data(),
                         .choice = step.choice(rank.own),
                         .u = made.u.data(),
                         .hidden = step.hidden,
                         .inter = rank.inter,
                         .tokens = step.tokens};
  check_args(args);
  const RowWarpsPlan plan = plan_row_warps(step.hidden, MoeUp::kWish, kDevice);
  emulate(static_cast<int>(plan.grid), plan.threads, [&] {
    if (layout::slice_blocks(step.hidden) == 6) return moe_up<RowTile<6, kRunStages>>(args);
    moe_up<RowTile<8, kRunStages>>(args);
  });
}

// A step of up to eight tokens.
Made by_decode(const Rank& rank, const Step& step) {
  Made made = nothing_yet(step, rank.width());
  run_up(rank, step, made);
  std::vector<float> sums(static_cast<size_t>(step.pairs() * step.hidden), kNan);
  std::vector<int> finished(static_cast<size_t>(step.hidden / layout::kTileRows), 0);
  const MoeDown::Args args{.weights = rank.down.data(),
                           .bias = rank.down_bias.data(),
                           .u = made.u.data(),
                           .choice = step.choice(rank.own),
                           .y = made.y.data(),
                           .sums = sums.data(),
                           .finished = finished.data(),
                           .hidden = step.hidden,
                           .inter = rank.width(),
                           .tokens = step.tokens};
  check_args(args);
  const RowWarpsPlan plan = plan_row_warps(rank.width(), MoeDown::kWish, kDevice);
  emulate(static_cast<int>(plan.grid), plan.threads, [&] {
    const layout::Slices slices = layout::slices_of(rank.width());
    if (slices.missing > 0) return moe_down<RowTile<6, kRowStages, true>>(args, plan.rows);
    if (slices.blocks == 6) return moe_down<RowTile<6>>(args, plan.rows);
    moe_down<RowTile<8>>(args, plan.rows);
  });
  EXPECT_EQ(finished, std::vector<int>(finished.size(), 0));
  return made;
}

// What experts of up to eight pairs make.
Made by_few_pairs(const Rank& rank, const Step& step) {
  Made made = nothing_yet(step, rank.width());
  run_up(rank, step, made);
  std::vector<float> rest(made.y.size(), kNan);
  const GemvMoeDown::Args args{.weights = rank.down.data(),
                               .bias = rank.down_bias.data(),
                               .u = made.u.data(),
                               .choice = step.choice(rank.own),
                               .y = {made.y.data(), rest.data()},
                               .hidden = step.hidden,
                               .inter = rank.width(),
                               .tokens = step.tokens,
                               .parts = 2};
  run_op<Packing::kMxfp4, Columns::kVectors, MoeDownOp>(args, plan_gemv({step.hidden, rank.width(), 2}, kDevice),
                                                        {.predecessor = {}});
  for (size_t i = 0; i < rest.size(); ++i) made.y[i] += rest[i];
  return made;
}

template <class Op>
void run_grouped(const typename Op::Args& args, int64_t cols) {
  check_args(args);
  const RowWarpsPlan plan = plan_row_warps(cols, kGrouped, kDevice);
  emulate(static_cast<int>(plan.grid), plan.threads, [&] {
    const layout::Slices slices = layout::slices_of(cols);
    if (slices.missing > 0) return grouped<RowTile<6, kGrouped.stages, true>, Op>(args, plan.rows);
    if (slices.blocks == 6) return grouped<RowTile<6, kGrouped.stages>, Op>(args, plan.rows);
    grouped<RowTile<8, kGrouped.stages>, Op>(args, plan.rows);
  });
}

// More tokens: by expert, then a row per token, in bf16.
Made by_groups(const Rank& rank, const Step& step) {
  Made made = nothing_yet(step, rank.width());
  PlainGroups sorted = plain_groups(own_numbers(step.ids, rank.own), rank.own.of(step.experts),
                                    grouped_tokens(step.hidden, rank.width(), kDevice));
  sorted.tiles.resize(sorted.tiles.size() + 1);  // room, where there is none
  std::vector<float> y(static_cast<size_t>(step.pairs() * step.hidden), kNan);
  const MoeGroups groups{sorted.pairs.data(), sorted.tiles.data(), sorted.tile_counts.data(), step.topk};
  run_grouped<GroupedUpOp>({.weights = rank.up.data(),
                            .bias = rank.up_bias.data(),
                            .x = step.x.data(),
                            .groups = groups,
                            .u = made.u.data(),
                            .hidden = step.hidden,
                            .inter = rank.inter},
                           step.hidden);
  run_grouped<GroupedDownOp>({.weights = rank.down.data(),
                              .bias = rank.down_bias.data(),
                              .u = made.u.data(),
                              .groups = groups,
                              .y = y.data(),
                              .hidden = step.hidden,
                              .inter = rank.width()},
                             rank.width());
  std::vector<uint16_t> combined(static_cast<size_t>(split_pitch(step.tokens, step.hidden)), 0xffff);
  const SplitSums sums{y.data(), step.topk, SplitSums::Order::kExpertsF32, step.weights.data()};
  const Combine::Args combined_args{.sums = sums,
                                    .ids = step.ids.data(),
                                    .own = rank.own,
                                    .tiles = combined.data(),
                                    .tokens = step.tokens,
                                    .hidden = step.hidden};
  check_args(combined_args);
  EXPECT_EQ(emulation::run(combine_launch(combined_args), [&] { combine(combined_args); }), "");
  for (int t = 0; t < step.tokens; ++t)
    for (int r = 0; r < step.hidden; ++r)
      made.y[static_cast<size_t>(t * step.hidden + r)] =
          Bf16{combined[static_cast<size_t>(place_in_sums(step.tokens, t, r))]}.to_float();
  return made;
}

// The hidden channels of all ranks are the whole's, bit for bit, and what is filled up is zero.
void expect_u(const Made& part, const Rank& rank, const Shard& true_shard, const Made& whole, const Step& step,
              int whole_width) {
  for (int pair = 0; pair < step.pairs(); ++pair)
    for (int c = 0; c < rank.width(); ++c) {
      const bool own = rank.own.number_of(step.ids[static_cast<size_t>(pair)]) >= 0;
      const F16 got = part.u[static_cast<size_t>(pair * rank.width() + c)];
      if (!own) {
        ASSERT_TRUE(std::isnan(got.to_float())) << "pair " << pair << " is another rank's";
      } else if (c >= true_shard.inter.count) {
        ASSERT_EQ(got.to_float(), 0) << "pair " << pair << ", filled up at " << c;
      } else {
        ASSERT_EQ(got.bits, whole.u[static_cast<size_t>(pair * whole_width + true_shard.inter.first + c)].bits)
            << "pair " << pair << ", channel " << c;
      }
    }
}

template <class Run>
void check_ranks(const Case& test, const Run& run, double rounding) {
  SCOPED_TRACE(testing::Message() << test.name << ", " << test.ranks.count << " ranks, " << test.tokens << " tokens");
  const Model model(test.dims);
  const Step step(test.dims, test.tokens);
  const Rank alone(model, {}, 0);
  const Made whole = run(alone, step);
  std::vector<double> sum(whole.y.size()), size(whole.y.size(), 1);
  for (int r = 0; r < test.ranks.count; ++r) {
    const Rank rank(model, test.ranks, r);
    const Made part = run(rank, step);
    expect_u(part, rank, shard_of(test.dims, test.ranks, r), whole, step, alone.width());
    for (size_t i = 0; i < sum.size(); ++i) {
      sum[i] += part.y[i];
      size[i] += std::abs(part.y[i]);
    }
  }
  for (size_t i = 0; i < sum.size(); ++i)
    ASSERT_NEAR(sum[i], whole.y[i], (rounding + 64 * kSumError) * (size[i] + std::abs(whole.y[i])))
        << "token " << i / static_cast<size_t>(step.hidden) << ", row " << i % static_cast<size_t>(step.hidden);
}

Dims dims_with(int64_t hidden, int64_t inter, int64_t experts, int64_t topk = 4) {
  Dims d;
  d.hidden = hidden;
  d.heads = d.kv_heads = 8;
  d.head_dim = 64;
  d.vocab = 512;
  d.inter = inter;
  d.experts = experts;
  d.topk = topk;
  return d;
}

std::vector<Case> cases(int tokens) {
  return {{"nibble-tiny", dims_with(256, 192, 8), {2}, tokens},
          {"an odd number of blocks", dims_with(192, 480, 8), {2}, tokens},
          {"23, 23, 23 and 21 blocks in small", dims_with(192, 352, 8), {4}, tokens},
          {"the last of eight has half", dims_with(192, 480, 8), {8}, tokens},
          {"ranks without a block", dims_with(192, 192, 8), {8}, tokens},
          {"whole experts", dims_with(192, 192, 8), {2, true}, tokens},
          {"whole experts of four ranks", dims_with(256, 192, 16), {4, true}, tokens},
          {"an expert each", dims_with(192, 192, 8, 2), {8, true}, tokens}};
}

TEST(ranks_emulated, parts_of_decode_kernels_add_up) {
  for (const Case& test : cases(1))
    if (test.ranks.whole_experts) check_ranks(test, by_decode, 0);
  for (const Case& test : cases(5)) check_ranks(test, by_decode, 0);
}

TEST(ranks_emulated, parts_of_decode_kernels_for_few_pairs_add_up) {
  const std::vector<Case> all = cases(2);
  for (size_t i = 0; i < 3; ++i) check_ranks(all[i], by_few_pairs, 0);  // not with whole experts
}

TEST(ranks_emulated, parts_of_grouped_kernels_add_up_with_a_row_per_token) {
  for (const Case& test : cases(9)) check_ranks(test, by_groups, 0x1p-8);
}

// Widths of gpt-oss-120b's shards, of few experts and rows.
TEST(ranks_emulated, parts_of_the_real_widths_add_up) {
  for (const int ranks : {2, 4, 8}) check_ranks({"2880", dims_with(192, 2880, 4, 2), {ranks}, 1}, by_decode, 0);
  check_ranks({"2880", dims_with(192, 2880, 4, 2), {2}, 9}, by_groups, 0x1p-8);
}

// A step none of whose tokens chose an expert of the rank's.
TEST(ranks_emulated, a_rank_that_nobody_chose_adds_zeros) {
  const Model model(dims_with(192, 192, 8));
  Step step(model.d, 3);
  Rank rank(model, {2, true}, 1);
  const auto choose_low = [&] {
    for (size_t i = 0; i < step.logits.size(); ++i) step.logits[i] = static_cast<float>(-static_cast<int>(i % 8));
    for (size_t i = 0; i < step.ids.size(); ++i) step.ids[i] = static_cast<int32_t>(i % 4);
  };
  choose_low();
  for (const Made& made : {by_decode(rank, step), by_groups(rank, step)})
    EXPECT_EQ(made.y, std::vector<float>(made.y.size(), 0));
}

// o's columns are those of the rank's heads; the first rank has its bias.
TEST(ranks_emulated, parts_of_o_add_up) {
  constexpr int kHidden = 80, kTokens = 3;
  for (const int64_t heads : {16, 32})
    for (const int ranks : {2, 4})
      for (const Packing packing : {Packing::kBf16, Packing::kMxfp8, Packing::kMxfp4}) {
        const int64_t cols = heads * kGemvHeadDim, own = cols / ranks;
        const Matrix whole(packing, kHidden, cols, RowOrder::kPlain, 50);
        const std::vector<float> x = random_floats(static_cast<size_t>(kTokens * cols), 51);
        const std::vector<Bf16> bias = random_bf16(kHidden, 52), zeros(kHidden);
        std::vector<double> sum(static_cast<size_t>(kTokens * kHidden));
        for (int rank = 0; rank < ranks; ++rank) {
          Matrix part(packing, kHidden, own, RowOrder::kPlain, 0);
          const int64_t of_block = std::ssize(whole.values) / (kHidden * cols / 32);
          for (int64_t row = 0; row < kHidden; ++row) {
            const int64_t from = (row * cols + rank * own) / 32, to = row * own / 32, blocks = own / 32;
            std::copy_n(whole.values.begin() + from * of_block, blocks * of_block, part.values.begin() + to * of_block);
            if (packing != Packing::kBf16) std::copy_n(whole.scales.begin() + from, blocks, part.scales.begin() + to);
          }
          part.pack(RowOrder::kPlain);
          std::vector<float> own_x, y(sum.size(), kNan);
          for (int t = 0; t < kTokens; ++t)
            own_x.insert(own_x.end(), x.begin() + t * cols + rank * own, x.begin() + t * cols + (rank + 1) * own);
          const GemvDense::Args args{.packing = packing,
                                     .weights = part.packed.data(),
                                     .bias = (rank == 0 ? bias : zeros).data(),
                                     .in = {.x = own_x.data()},
                                     .y = y.data(),
                                     .rows = kHidden,
                                     .cols = static_cast<int>(own),
                                     .tokens = kTokens};
          run_rows<DenseOp>(args, plan_gemv(GemvDense::shape_of(args), kDevice), {.predecessor = {}});
          for (size_t i = 0; i < sum.size(); ++i) sum[i] += y[i];
        }
        for (int t = 0; t < kTokens; ++t)
          for (int r = 0; r < kHidden; ++r) {
            const auto [want, size] = whole.dot(r, x.data() + t * cols);
            ASSERT_NEAR(sum[static_cast<size_t>(t * kHidden + r)], want + bias[static_cast<size_t>(r)].to_float(),
                        whole.error() * (size + 1));
          }
      }
}

}  // namespace
}  // namespace nibble::backend::cuda
