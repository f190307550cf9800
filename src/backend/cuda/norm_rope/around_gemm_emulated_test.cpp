// The kernels around GEMMs and the split GEMM (around_gemm.h, split_gemm_plan.h), run lane by lane on the host.

#include "backend/cuda/emulation/device.h"

#include "backend/cuda/norm_rope/around_gemm_testing.h"
#include "backend/cuda/experts/route_testing.h"
#include "backend/cuda/dense/split_gemm_testing.h"
#include "backend/cuda/norm_rope/norm_sums.cuh"
#include "backend/cuda/norm_rope/rope_sums.cuh"
#include "backend/cuda/experts/route_sums.cuh"
#include "backend/cuda/experts/route_tokens.cuh"
#include "backend/cuda/arch/sm90/dense_gemm.cuh"
#include "backend/cuda/arch/sm90/split_gemm.cuh"
#include "backend/cuda/attention/attend_emulated_testing.h"
#include "backend/cuda/attention/attend_sums_testing.h"

#include <gtest/gtest.h>

namespace nibble::backend::cuda {
namespace {

void emulate(int64_t grid, int threads, const std::function<void()>& kernel) {
  const emulation::Launch launch{.grid = static_cast<int>(grid), .threads = threads, .predecessor = {}};
  ASSERT_EQ(emulation::run(launch, kernel), "");
}

TEST(around_gemm_emulated, norm_adds_the_delta_and_rounds_for_every_reader) {
  const auto run = [](const NormSumsArgs& args) {
    emulate(args.tokens, norm_threads(args.hidden), [&] {
      if (args.experts.at == nullptr) return any_norm_sums_f32<NormDelta::kSplits>(args);
      if (args.experts.type == ExpertSums::Type::kF32) return any_norm_sums_f32<NormDelta::kExpertsF32>(args);
      any_norm_sums_f32<NormDelta::kExpertsBf16>(args);
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
  check_norm<HostArray>({.tokens = 2, .hidden = 384, .topk = 2, .experts = ExpertSums::Type::kF32, .panels = true},
                        run);
  check_norm<HostArray>(
      {.tokens = 2, .hidden = 2880, .splits = 1, .order = SplitSums::Order::kRows, .type = InputType::kMxfp8}, run);
  check_norm<HostArray>({.tokens = 3, .hidden = 192, .splits = 3, .type = InputType::kMxfp8, .normed = false}, run);
  check_norm<HostArray>({.tokens = 2, .hidden = 4096, .topk = 2, .type = InputType::kMxfp8}, run);
  for (const InputType codes : {InputType::kMxfp6, InputType::kMxfp4}) {
    check_norm<HostArray>({.tokens = 2, .hidden = 2880, .splits = 1, .order = SplitSums::Order::kRows, .type = codes},
                          run);
    check_norm<HostArray>({.tokens = 3, .hidden = 192, .topk = 4, .type = codes}, run);
  }
  check_norm<HostArray>({.tokens = 2, .hidden = 192, .splits = 2, .in_mxfp8 = true}, run);
  check_norm<HostArray>({.tokens = 9, .hidden = 192, .topk = 4, .panels = true, .in_mxfp8 = true}, run);
  check_norm<HostArray>({.tokens = 2, .hidden = 2880, .topk = 4, .in_mxfp8 = true}, run);
  check_norm<HostArray>({.tokens = 2, .hidden = 200, .topk = 1, .normed = false, .rounded = false}, run);
}

TEST(around_gemm_emulated, rope_turns_the_sums_and_fills_the_slots_of_every_cache) {
  const auto run = [](const RopeSumsArgs& args) {
    const int64_t items = int64_t{args.tokens} * (args.rows() / kRopeRows);
    emulate((items + kRopeThreads - 1) / kRopeThreads, kRopeThreads, [&] { any_rope_sums_f32(args); });
  };
  check_rope<HostArray>({.tokens = 3, .heads = 4, .kv_heads = 2, .splits = 3}, run);
  check_rope<HostArray>({.tokens = 1,
                         .heads = 8,
                         .kv_heads = 1,
                         .splits = 1,
                         .order = SplitSums::Order::kRows,
                         .type = KvPages::Type::kF32},
                        run);
  check_rope<HostArray>({.tokens = 70, .heads = 1, .kv_heads = 1, .splits = 2, .type = KvPages::Type::kE4m3}, run);
}

TEST(around_gemm_emulated, the_gemm_of_q_k_and_v_turns_its_sums_and_fills_the_slots_of_every_cache) {
  const auto run = [](const GemmArgs& args, const RopeSumsArgs& rope) {
    using Tile = DenseTile<64>;
    const emulation::Launch launch{.grid = 2, .threads = Tile::kThreads, .predecessor = {}};
    ASSERT_EQ(emulation::run(launch, [&] { sm90_dense_gemm<Tile>(args, DenseWalk(args, Tile::kTokens), rope); }), "");
  };
  check_qkv<HostArray>({.tokens = 70, .heads = 4, .kv_heads = 1}, 192, run);
  check_qkv<HostArray>({.tokens = 330, .heads = 3, .kv_heads = 1}, 192, run);  // more than rows
  check_qkv<HostArray>({.tokens = 9, .heads = 8, .kv_heads = 1, .type = KvPages::Type::kF32}, 192, run);
  check_qkv<HostArray>({.tokens = 5, .heads = 1, .kv_heads = 1, .type = KvPages::Type::kE4m3}, 384, run);
}

TEST(around_gemm_emulated, route_chooses_the_largest_logits_whoever_shares_the_step) {
  const auto run = [](const RouteTokensArgs& args) {
    const RoutePlan plan = plan_route({args.tokens, args.hidden, args.experts}, 3);
    emulate(plan.grid(), plan.threads, [&] {
      if (layout::slice_blocks(args.hidden) == 6) {
        any_route_tokens_f32_bf16<6>(args, plan);
      } else {
        any_route_tokens_f32_bf16<8>(args, plan);
      }
    });
  };
  check_route<HostArray>({.tokens = 9, .hidden = 384, .experts = 128, .topk = 4}, run);
  check_route<HostArray>({.tokens = 17, .hidden = 512, .experts = 20, .topk = 2}, run);
  check_route<HostArray>({.tokens = 3, .hidden = 192, .experts = 130, .topk = 1}, run);
  check_route<HostArray>({.tokens = 2, .hidden = 192, .experts = 300, .topk = 32}, run);  // beyond what lanes hold
}

template <class Tile>
void emulate_route_sums(const RouteSumsArgs& args) {
  emulate((args.tokens + Tile::kTokens - 1) / Tile::kTokens, Tile::kThreads, [&] { any_route_sums<Tile>(args); });
}

TEST(around_gemm_emulated, route_of_many_tokens_keeps_what_16_bits_of_x_would_lose) {
  const RouteSumsCase c{.tokens = 37, .hidden = 320, .experts = 33, .topk = 3};  // a step for some warps only
  const auto few = check_route_sums<HostArray>(c, emulate_route_sums<RouteSumsTile<1, 16>>);
  EXPECT_EQ(few, check_route_sums<HostArray>(c, emulate_route_sums<RouteSumsTile<2, 16>>));
  check_route_sums<HostArray>({.tokens = 5, .hidden = 192, .experts = 20}, emulate_route_sums<RouteSumsTile<2, 4>>);
  check_route_sums<HostArray>({.tokens = 3, .hidden = 288, .experts = 128, .topk = 8, .splits = 0},
                              emulate_route_sums<RouteSumsTile<1, 16>>);
}

TEST(around_gemm_emulated, split_gemm_is_the_plain_product) {
  const auto run = [](const SplitGemmArgs& args, const SplitGemmPlan& plan) {
    const auto with = [&]<class Tile>(Tile) {
      ASSERT_EQ(plan.smem_bytes, Tile::kSharedBytes);
      emulate(plan.grid(), Tile::kThreads, [&] { sm90_split_gemm<Tile>(args, plan); });
    };
    if (plan.tokens == 32) return with(SplitTile<32>());
    if (plan.tokens == 64) return with(SplitTile<64>());
    if (plan.tokens == 128) return with(SplitTile<128>());
    with(SplitTile<256>());
  };
  check_split<HostArray>({.rows = 144, .cols = 384, .tokens = 9, .sms = 6}, run);
  check_split<HostArray>({.rows = 16, .cols = 2880, .tokens = 12, .sms = 1}, run);  // around the ring
  check_split<HostArray>({.rows = 64, .cols = 512, .tokens = 33, .sms = 3}, run);
  check_split<HostArray>({.rows = 32, .cols = 192, .tokens = 130, .sms = 132}, run);
}

// The slots of a step's keys and values. Emptied after each CTA: one CTA must fill each, and no other may need it.
class Slots {
 public:
  explicit Slots(const RopeSumsArgs& args)
      : args_(args), held_(2 * static_cast<size_t>(args.tokens * args.kv_heads)), stores_(held_.size()) {
    each([&](size_t, uint8_t* at) { std::fill_n(at, bytes(), kEmpty); });
  }
  void take() {
    each([&](size_t i, uint8_t* at) {
      if (std::all_of(at, at + bytes(), [](uint8_t byte) { return byte == kEmpty; })) return;
      held_[i].assign(at, at + bytes());
      stores_[i]++;
      std::fill_n(at, bytes(), kEmpty);
    });
  }
  void put_back() {
    each([&](size_t i, uint8_t* at) { std::copy(held_[i].begin(), held_[i].end(), at); });
    EXPECT_EQ(stores_, std::vector<int>(stores_.size(), 1)) << "CTAs that stored each key, then each value";
  }

 private:
  static constexpr uint8_t kEmpty = 0xff;
  [[nodiscard]] size_t bytes() const { return kHeadDim * (args_.kv.type == KvPages::Type::kBf16 ? 2 : 1); }
  template <class Visit>
  void each(const Visit& visit) {
    size_t i = 0;
    for (void* pages : {args_.kv.keys, args_.kv.values})
      for (int t = 0; t < args_.tokens; ++t)
        for (int head = 0; head < args_.kv_heads; ++head) {
          const int64_t place = place_in_pages(args_.kv_slots[t], args_.kv_heads, head);
          visit(i++, static_cast<uint8_t*>(pages) + static_cast<size_t>(place) * bytes() / kHeadDim);
        }
  }

  const RopeSumsArgs& args_;
  std::vector<std::vector<uint8_t>> held_;
  std::vector<int> stores_;
};

// Decode attention, and rope_sums before it or within.
struct EmulatedRun {
  void turn(const RopeSumsArgs& args) const {
    const int64_t items = int64_t{args.tokens} * (args.rows() / kRopeRows);
    emulate((items + kRopeThreads - 1) / kRopeThreads, kRopeThreads, [&] { any_rope_sums_f32(args); });
  }
  // The kernel before leaves `sums`.
  void decode(const FlashArgs& args, const DecodePlan& plan, KvPages::Type type,
              const std::vector<uint8_t>& sums) const {
    const bool bf16 = type == KvPages::Type::kBf16;
    emulation::Launch launch{.grid = args.kv_heads, .threads = plan.ring.warps * kAttendLanes, .grid_y = plan.grid};
    if (args.qkv_sums.sums.splits == 0)
      return bf16 ? emulate_decode<KvBf16, DecodeInput::kTurned>(launch, args, plan)
                  : emulate_decode<KvE4m3, DecodeInput::kTurned>(launch, args, plan);
    auto* const at = static_cast<uint8_t*>(const_cast<void*>(args.qkv_sums.sums.at));
    std::fill_n(at, sums.size(), uint8_t{0xff});
    launch.predecessor = [&] { std::copy(sums.begin(), sums.end(), at); };
    Slots slots(args.qkv_sums);
    launch.after_cta = [&] { slots.take(); };
    bf16 ? emulate_decode<KvBf16, DecodeInput::kSums>(launch, args, plan)
         : emulate_decode<KvE4m3, DecodeInput::kSums>(launch, args, plan);
    slots.put_back();
  }
};

void check_of_sums(const AttendShape& shape, int window, const std::vector<AttendSequence>& sequences, int splits) {
  for (const PageValues values : {PageValues::kBf16, PageValues::kE4m3})
    check_decode_of_sums<HostArray>(AttendFixture(shape, window, sequences, 33, values), splits,
                                    {.sms = 3, .sm_smem_bytes = 233472}, EmulatedRun{});
}

TEST(around_gemm_emulated, decode_attention_of_sums_at_page_and_window_edges) {
  std::vector<AttendSequence> edges;
  for (const int context : {1, 2, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 130, 257}) edges.push_back({context, 1});
  for (const int window : {0, 128}) check_of_sums({8, 1, 64}, window, edges, 3);  // lone warps
  check_of_sums({3, 1, 64}, 1, {edges.begin() + 5, edges.end()}, 5);              // of four
  for (const int context : {1, 17, 128, 129}) check_of_sums({6, 2, 64}, 128, {{context, 1}, {40, 1}}, 8);
}

TEST(around_gemm_emulated, decode_attention_of_sums_splits_a_long_sequence_and_stores_its_key_once) {
  check_of_sums({8, 1, 64}, 0, {{2049, 1}}, 3);
  check_of_sums({8, 2, 64}, 0, {{400, 1}, {5, 1}, {705, 1}}, 1);
  std::vector<AttendSequence> many(14, {9, 1});
  many[3] = {700, 1};
  many[9] = {321, 1};
  check_of_sums({8, 1, 64}, 0, many, 2);
}

}  // namespace
}  // namespace nibble::backend::cuda
