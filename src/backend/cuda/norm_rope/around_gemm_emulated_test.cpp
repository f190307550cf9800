// The kernels around GEMMs and the split GEMM (around_gemm.h, gemm_plan.h), run lane by lane on the host.

#include "backend/cuda/emulation/device.h"

#include "backend/cuda/testing/around_gemm.h"
#include "backend/cuda/testing/route.h"
#include "backend/cuda/testing/split_gemm.h"
#include "backend/cuda/comm/testing/combine.h"
#include "backend/cuda/norm_rope/norm_sums.cuh"
#include "backend/cuda/norm_rope/rope_sums.cuh"
#include "backend/cuda/experts/route_sums.cuh"
#include "backend/cuda/arch/sm90/norm_route.cuh"
#include "backend/cuda/arch/sm90/split_gemm.cuh"
#include "backend/cuda/testing/attend.h"
#include "backend/cuda/norm_rope/any_rope_kv.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

namespace nibble::backend::cuda {
namespace {

void emulate(int64_t grid, int threads, const std::function<void()>& kernel) {
  const emulation::Launch launch{.grid = static_cast<int>(grid), .threads = threads, .predecessor = {}};
  ASSERT_EQ(emulation::run(launch, kernel), "");
}

TEST(around_gemm_emulated, norm_adds_the_delta_and_rounds_for_every_reader) {
  const auto run = [](const NormSums::Args& args) {
    emulate(args.tokens, norm_threads(args.hidden), [&] {
      if (!args.sums.of_experts()) return any_norm_sums_f32<SplitSums::Order::kTiles>(args);
      if (args.sums.order == SplitSums::Order::kExpertsF32)
        return any_norm_sums_f32<SplitSums::Order::kExpertsF32>(args);
      any_norm_sums_f32<SplitSums::Order::kExpertsBf16>(args);
    });
  };
  check_norm<HostArray>({.tokens = 2, .hidden = 2880, .splits = 5, .type = InputType::kF16}, run);
  check_norm<HostArray>({.tokens = 9, .hidden = 192, .splits = 0, .panels = true}, run);
  check_norm<HostArray>(
      {.tokens = 3, .hidden = 4096, .splits = 1, .order = SplitSums::Order::kRows, .type = InputType::kBf16}, run);
  check_norm<HostArray>({.tokens = 2, .hidden = 384, .splits = 8, .rounded = false}, run);
  check_norm<HostArray>({.tokens = 11, .hidden = 192, .splits = 2, .panels = true}, run);
  check_norm<HostArray>({.tokens = 9, .hidden = 192, .splits = 1, .order = SplitSums::Order::kRows, .panels = true},
                        run);
  check_norm<HostArray>({.tokens = 2, .hidden = 384, .splits = 3, .normed = false, .rounded = false}, run);
  check_norm<HostArray>({.tokens = 3, .hidden = 2880, .topk = 4, .panels = true, .normed = false}, run);
  check_norm<HostArray>({.tokens = 2, .hidden = 192, .topk = 6, .type = InputType::kBf16}, run);
  check_norm<HostArray>(
      {.tokens = 2, .hidden = 384, .topk = 2, .experts = SplitSums::Order::kExpertsF32, .panels = true}, run);
  check_norm<HostArray>(
      {.tokens = 2, .hidden = 2880, .splits = 1, .order = SplitSums::Order::kRows, .type = InputType::kMxfp8}, run);
  check_norm<HostArray>({.tokens = 3, .hidden = 192, .splits = 3, .type = InputType::kMxfp8, .normed = false}, run);
  check_norm<HostArray>({.tokens = 2, .hidden = 4096, .topk = 2, .type = InputType::kMxfp8}, run);
  for (const InputType codes : {InputType::kMxfp6, InputType::kMxfp4}) {
    check_norm<HostArray>({.tokens = 2, .hidden = 2880, .splits = 1, .order = SplitSums::Order::kRows, .type = codes},
                          run);
    check_norm<HostArray>({.tokens = 3, .hidden = 192, .topk = 4, .type = codes}, run);
  }
  check_norm<HostArray>({.tokens = 2, .hidden = 200, .topk = 1, .normed = false, .rounded = false}, run);
}

// A rank's part of a token: NormCase's delta without x, of its experts.
void check_combine(const NormCase& c, const OwnExperts& own) {
  SCOPED_TRACE(testing::Message() << c.tokens << " tokens, hidden " << c.hidden << ", " << c.splits << " splits, top "
                                  << c.topk << ", own from " << own.first);
  NormInput in(c);
  std::fill(in.x.begin(), in.x.end(), 0.0f);
  std::vector<int32_t> ids;
  for (int pair = 0; pair < c.tokens * c.topk; ++pair) ids.push_back(pair * 5 % 8);
  const auto width = static_cast<size_t>(c.hidden);
  for (size_t pair = 0; pair < ids.size(); ++pair) {
    if (own.number_of(ids[pair]) >= 0) continue;  // others' rows hold what nobody may read
    for (size_t d = 0; d < width; ++d) in.y16[pair * width + d] = Bf16{0x7fff}, in.y[pair * width + d] = std::nanf("");
  }
  std::vector<uint16_t> tiles(static_cast<size_t>(split_pitch(c.tokens, c.hidden)), 0x7fff);
  const void* const experts = in.of_bf16() ? static_cast<const void*>(in.y16.data()) : in.y.data();
  const Combine::Args args{.sums = in.sums_at(in.sums.values.data(), experts, in.weights.data()),
                           .bias = c.splits > 0 ? in.bias.data() : nullptr,
                           .ids = ids.data(),
                           .own = own,
                           .tiles = tiles.data(),
                           .tokens = c.tokens,
                           .hidden = c.hidden};
  check_args(args);
  ASSERT_EQ(emulation::run(combine_launch(args), [&] { combine(args); }), "");
  for (size_t pair = 0; pair < ids.size(); ++pair)
    if (own.number_of(ids[pair]) < 0) std::fill_n(in.y.begin() + static_cast<int64_t>(pair * width), width, 0.0f);
  for (int t = 0; t < c.tokens; ++t)
    for (int d = 0; d < c.hidden; ++d) {
      const auto [want, size] = in.residual(static_cast<size_t>(t), static_cast<size_t>(d));
      const float got = Bf16{tiles[static_cast<size_t>(place_in_sums(c.tokens, t, d))]}.to_float();
      ASSERT_NEAR(got, want, 0x1p-21 * (size + 1) + 0x1p-8 * std::abs(want)) << "token " << t << ", dim " << d;
    }
}

TEST(around_gemm_emulated, combine_makes_a_row_per_token_of_a_rank) {
  check_combine({.tokens = 11, .hidden = 2880, .splits = 5}, {});
  check_combine({.tokens = 2, .hidden = 192, .splits = 1}, {});
  for (const OwnExperts& own : {OwnExperts{}, OwnExperts{2, 3}, OwnExperts{6, 2}}) {
    check_combine({.tokens = 9, .hidden = 192, .topk = 4}, own);
    check_combine({.tokens = 3, .hidden = 2880, .topk = 4, .experts = SplitSums::Order::kExpertsF32}, own);
  }
}

void emulate_rope_sums(const RopeSums::Args& args) {
  emulate(rope_ctas(args), kRopeThreads, [&] { any_rope_sums_f32(args); });
}

TEST(around_gemm_emulated, rope_rotates_the_sums_and_fills_the_slots_of_every_cache) {
  const auto run = emulate_rope_sums;
  check_rope<HostArray>({.tokens = 3, .heads = 4, .kv_heads = 2, .splits = 3}, run);
  check_rope<HostArray>(
      {.tokens = 1, .heads = 8, .kv_heads = 1, .splits = 1, .order = SplitSums::Order::kRows, .type = KvDtype::kF32},
      run);
  check_rope<HostArray>({.tokens = 70, .heads = 1, .kv_heads = 1, .splits = 2, .type = KvDtype::kE4m3}, run);
  for (const int splits : {1, kMaxSplits}) check_rope<HostArray>({.tokens = 9, .kv_heads = 1, .splits = splits}, run);
  for (const TestPages* pages : kCardPages)
    for (const int heads : {2, 3, 8})
      check_rope<HostArray>({.tokens = 37, .heads = heads, .kv_heads = 2, .type = pages->type.dtype}, run);
}

template <class Tile>
void emulate_route_sums(const RouteSums::Args& args) {
  emulate((args.tokens + Tile::kTokens - 1) / Tile::kTokens, Tile::kThreads, [&] { any_route_sums<Tile>(args); });
}

TEST(around_gemm_emulated, route_of_many_tokens_keeps_what_16_bits_of_x_would_lose) {
  const RouteSumsCase c{.tokens = 69, .hidden = 352, .experts = 33, .topk = 3};  // half a step after the last whole one
  const auto few = check_route_sums<HostArray>(c, emulate_route_sums<RouteSumsFew<16, 0>>);
  EXPECT_EQ(few, (check_route_sums<HostArray>(c, emulate_route_sums<RouteSumsMany<16, 0>>)));
  RouteSumsCase tiles = c;
  tiles.order = SplitSums::Order::kTiles;
  const auto few_of_tiles = check_route_sums<HostArray>(tiles, emulate_route_sums<RouteSumsFew<16, 1>>);
  EXPECT_EQ(few_of_tiles, (check_route_sums<HostArray>(tiles, emulate_route_sums<RouteSumsMany<16, 1>>)));
  check_route_sums<HostArray>({.tokens = 5, .hidden = 192, .experts = 20}, emulate_route_sums<RouteSumsMany<4, 0>>);
  EXPECT_EQ(few_of_tiles, check_route_sums<HostArray>(tiles, emulate_route_sums<RouteSumsAny<16>>));
  tiles.splits = 2;  // of two ranks
  const auto few_of_two = check_route_sums<HostArray>(tiles, emulate_route_sums<RouteSumsFew<16, 2>>);
  EXPECT_EQ(few_of_two, (check_route_sums<HostArray>(tiles, emulate_route_sums<RouteSumsMany<16, 2>>)));
  EXPECT_EQ(few_of_two, check_route_sums<HostArray>(tiles, emulate_route_sums<RouteSumsAny<16>>));
  check_route_sums<HostArray>({.tokens = 35, .hidden = 64, .experts = 32}, emulate_route_sums<RouteSumsFew<4, 0>>);
  for (const int experts : {128, 33})
    check_route_sums<HostArray>(
        {.tokens = 35, .hidden = 64, .experts = experts, .equals = true, .nan_token = 3, .nan_expert = 11},
        emulate_route_sums<RouteSumsFew<16, 0>>);
  check_route_sums<HostArray>({.tokens = 3, .hidden = 288, .experts = 128, .topk = 32, .splits = 0},
                              emulate_route_sums<RouteSumsFew<16, 0>>);
}

template <class Tile>
void emulate_norm_route(const NormRouteArgs& args, const Plan& plan) {
  const NormRouteShared<Tile> shared(smem, args.norm.hidden, args.experts);
  ASSERT_EQ(shared.end(), static_cast<uint32_t>(plan.smem_bytes));
  const emulation::Launch launch{
      .grid = static_cast<int>(plan.grid), .threads = plan.threads, .cluster = kNormRouteCtas, .predecessor = {}};
  ASSERT_EQ(emulation::run(launch, [&] { sm90_norm_route<Tile>(args); }), "");
}

TEST(around_gemm_emulated, norm_route_norms_and_chooses_in_a_cluster) {
  const auto run = [](const NormRouteArgs& args, const Plan& plan) {
    switch (norm_route_tokens(args.norm.tokens)) {
      case 8: return emulate_norm_route<NormRouteTile<8>>(args, plan);
      case 16: return emulate_norm_route<NormRouteTile<16>>(args, plan);
      default: return emulate_norm_route<NormRouteTile<32>>(args, plan);
    }
  };
  check_norm_route<HostArray>({.tokens = 5, .hidden = 2880, .splits = 5}, {.experts = 128, .topk = 4}, run);
  check_norm_route<HostArray>({.tokens = 9, .hidden = 576, .splits = 1, .type = InputType::kBf16},
                              {.experts = 20, .topk = 2}, run);
  check_norm_route<HostArray>({.tokens = 3, .hidden = 4096, .splits = 8, .rounded = false}, {.experts = 36, .topk = 32},
                              run);
  check_norm_route<HostArray>({.tokens = 8, .hidden = 512, .splits = 1, .order = SplitSums::Order::kRows},
                              {.experts = 4, .topk = 1}, run);
  for (const int tokens : {65, 133})  // of clusters of 16 and of 32; the last ones are not full
    for (const int experts : {20, 128})
      check_norm_route<HostArray>({.tokens = tokens, .hidden = 576, .splits = 2}, {.experts = experts, .topk = 4}, run);
}

TEST(around_gemm_emulated, split_gemm_is_the_plain_product) {
  const auto run = [](const SplitGemmArgs& args, const SplitGemmPlan& plan) {
    const auto with = [&]<class Tile>(Tile) {
      ASSERT_EQ(plan.smem_bytes, Tile::kSharedBytes);
      emulate(static_cast<int>(plan.grid), Tile::kThreads, [&] { sm90_split_gemm<Tile>(args, plan.cut); });
    };
    if (plan.cut.tokens == 32) return with(SplitTile<32>());
    if (plan.cut.tokens == 64) return with(SplitTile<64>());
    if (plan.cut.tokens == 128) return with(SplitTile<128>());
    with(SplitTile<256>());
  };
  check_split<HostArray>({.rows = 144, .cols = 384, .tokens = 9, .sms = 6}, run);
  check_split<HostArray>({.rows = 16, .cols = 2880, .tokens = 12, .sms = 1}, run);  // around the ring
  check_split<HostArray>({.rows = 64, .cols = 512, .tokens = 33, .sms = 3}, run);
  check_split<HostArray>({.rows = 32, .cols = 192, .tokens = 130, .sms = 132}, run);
}

// Rows of f32 pages as a type's pages hold them.
std::vector<uint8_t> held_as(const TestPages& pages, const std::vector<uint8_t>& f32, int head_dim) {
  const auto dim = static_cast<size_t>(head_dim), rows = f32.size() / dim / sizeof(float);
  std::vector<uint8_t> bytes(rows * static_cast<size_t>(row_bytes(pages.type, head_dim)));
  std::vector<float> row(dim);
  for (size_t i = 0; i < rows; ++i) {
    std::memcpy(row.data(), f32.data() + i * dim * sizeof(float), dim * sizeof(float));
    pages.encode(row, bytes.data() + pages.codes_at(i, head_dim));
  }
  return bytes;
}
// All bits of rows that no token has, in both.
void forget_rest(const TestPages& pages, std::vector<uint8_t>& bytes, const std::vector<uint8_t>& f32, int head_dim) {
  const auto dim = static_cast<size_t>(head_dim);
  for (size_t i = 0; i < f32.size() / dim / sizeof(float); ++i) {
    float first = 0;
    std::memcpy(&first, f32.data() + i * dim * sizeof(float), sizeof(float));
    if (!std::isnan(first)) continue;
    std::memset(bytes.data() + pages.codes_at(i, head_dim), 0xff,
                static_cast<size_t>(code_bytes(pages.type, head_dim)));
  }
}

struct TwoPages {
  std::vector<uint8_t> keys, values;
  explicit TwoPages(size_t bytes) : keys(bytes, 0xff), values(bytes, 0xff) {}
  [[nodiscard]] KvPages of(KvDtype type) { return {keys.data(), values.data(), type}; }
};

// write(pages): keys and values into `rows` rows of heads.
template <class Write>
void check_held(const TestPages& pages, int rows, int head_dim, const Write& write) {
  SCOPED_TRACE(testing::Message() << "pages of " << pages.type.name << ", heads of " << head_dim);
  TwoPages exact(static_cast<size_t>(rows * head_dim) * sizeof(float)),
      held(static_cast<size_t>(rows) * static_cast<size_t>(row_bytes(pages.type, head_dim)));
  write(exact.of(KvDtype::kF32));
  write(held.of(pages.type.dtype));
  for (const auto& [got, f32] : {std::pair{&held.keys, &exact.keys}, {&held.values, &exact.values}}) {
    std::vector<uint8_t> want = held_as(pages, *f32, head_dim);
    forget_rest(pages, want, *f32, head_dim);
    ASSERT_EQ(*got, want);
    ASSERT_TRUE(std::ranges::any_of(want, [](uint8_t byte) { return byte != 0xff; }));
  }
}

TEST(around_gemm_emulated, rope_fills_the_slots_of_pages_as_they_are_held) {
  const RopeCase c{.tokens = 5, .heads = 4, .kv_heads = 2, .splits = 3};
  const RopeFixture<HostArray> f(c);
  const TestSums sums(c.splits, c.tokens, static_cast<int>(f.bias().size()), c.order);
  const HostArray<uint8_t> on_sums(sums.values);
  for (const TestPages* pages : kCardPages)
    check_held(*pages, (c.tokens / kPageTokens + 2) * c.kv_heads * kPageTokens, kHeadDim, [&](const KvPages& to) {
      RopeSums::Args args = f.args({on_sums.get(), c.splits, c.order});
      args.kv = to;
      emulate_rope_sums(args);
    });
}

TEST(around_gemm_emulated, the_general_rope_fills_the_slots_of_every_type) {
  constexpr int kTokens = 3, kHeads = 2, kKvHeads = 2;
  const std::vector<int32_t> positions = {0, 7, 12345}, slots = {70, 1, 127};
  for (const int dim : {64, 32, 96, 128}) {
    std::vector<float> inv_freq, q(static_cast<size_t>(kTokens * kHeads * dim), 1.0f);
    for (int d = 0; d < dim / 2; ++d)
      inv_freq.push_back(std::pow(1000.0f, -2.0f * static_cast<float>(d) / static_cast<float>(dim)));
    const std::vector<float> k = test_floats(int64_t{kTokens} * kKvHeads * dim, 5, 2),
                             v = test_floats(int64_t{kTokens} * kKvHeads * dim, 6, 2);
    const auto write = [&](const KvPages& to) {
      std::vector<float> own = q;
      const RopeKv::Args args{.q = own.data(),
                              .k = k.data(),
                              .v = v.data(),
                              .positions = positions.data(),
                              .kv_slots = slots.data(),
                              .rope_inv_freq = inv_freq.data(),
                              .kv = to,
                              .tokens = kTokens,
                              .heads = kHeads,
                              .kv_heads = kKvHeads,
                              .head_dim = dim};
      emulate(kTokens, kRopeKvThreads,
              [&] { with_page_type(to.type, [&]<KvDtype kType>() { any_rope_kv<PageRow<kType>>(args); }); });
      for (int t = 0; t < kTokens && to.type == KvDtype::kF32; ++t)  // what all others are held against
        for (int head = 0; head < kKvHeads; ++head)
          for (int d = 0; d < dim; ++d) {
            const int from = (t * kKvHeads + head) * dim, half = d % (dim / 2);
            const double angle =
                double{static_cast<float>(positions[static_cast<size_t>(t)]) * inv_freq[static_cast<size_t>(half)]};
            const double x1 = k[static_cast<size_t>(from + half)], x2 = k[static_cast<size_t>(from + half + dim / 2)];
            const double want =
                d < dim / 2 ? x1 * std::cos(angle) - x2 * std::sin(angle) : x2 * std::cos(angle) + x1 * std::sin(angle);
            const int slot = slots[static_cast<size_t>(t)];
            const int at = ((slot / kPageTokens * kKvHeads + head) * kPageTokens + slot % kPageTokens) * dim + d;
            ASSERT_NEAR(static_cast<const float*>(to.keys)[at], want, 1e-5) << "token " << t << " dim " << d;
            ASSERT_EQ(static_cast<const float*>(to.values)[at], v[static_cast<size_t>(from + d)]);
          }
    };
    for (const TestPages* pages : kCardPages) check_held(*pages, 2 * kKvHeads * kPageTokens, dim, write);
  }
}

}  // namespace
}  // namespace nibble::backend::cuda
