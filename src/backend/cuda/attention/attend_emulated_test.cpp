// The attention kernels' own source (attend_decode.cuh, attend_prefill.cuh), run lane by lane on the host.

#include "backend/cuda/emulation/device.h"

#include "backend/cuda/attention/attend_decode.cuh"
#include "backend/cuda/arch/sm121/mx_mma.h"
#include "backend/cuda/attention/any_attend.cuh"
#include "backend/cuda/attention/attend_fp8.cuh"
#include "backend/cuda/attention/attend_prefill.cuh"
#include "backend/cuda/testing/attend.h"
#include "backend/cuda/arch/sm90/attend.cuh"
#include "backend/cuda/emulation/scalar_mx.h"

#include <gtest/gtest.h>

#include <string>
#include <type_traits>

namespace nibble::backend::cuda {
namespace {

// The decode kernel of a plan.
template <class Kv>
void emulate_decode(const emulation::Launch& launch, const AttentionArgs& args, const DecodePlan& plan) {
  const auto run = [&](auto tile) {
    ASSERT_EQ(plan.smem_bytes, decltype(tile)::kSharedBytes);
    ASSERT_EQ(emulation::run(launch, [&] { any_attend_decode<decltype(tile)>(args); }), "");
  };
  constexpr DecodeRing kLarge = kDecodeRing, kSmall = kSmallDecodeRing, kLone = kLoneDecodeRing;
  if (plan.ring == kLarge)
    run(DecodeTile<Kv, kLarge.warps, kLarge.stages>{});
  else if (plan.ring == kSmall)
    run(DecodeTile<Kv, kSmall.warps, kSmall.stages>{});
  else
    run(DecodeTile<Kv, kLone.warps, kLone.stages>{});
}

using KvBf16 = PageRow<KvDtype::kBf16>;
using KvE4m3 = PageRow<KvDtype::kE4m3>;

constexpr PlanDevice kDevice{.sms = 3, .sm_smem_bytes = 233472};

// A fixture with a place for the result and what the kernels need beside it.
struct Attempt {
  AttendFixture& f;
  std::vector<uint8_t> keys = f.page_bytes(f.keys), values = f.page_bytes(f.values);
  std::vector<float> q = f.q, out = std::vector<float>(f.q.size(), std::nanf(""));
  std::vector<float> partials;
  std::vector<int> finished;
  AttendShares shares;
  GemmInput rounded;  // AttentionArgs

  explicit Attempt(AttendFixture& fixture, int tile_tokens = kPrefillTokens) : f(fixture) {
    share_tokens(f.rows, shares, tile_tokens);
  }

  [[nodiscard]] AttentionArgs args(bool with_sinks) {
    return {.q = q.data(),
            .out = out.data(),
            .rounded = rounded,
            .sinks = with_sinks ? f.sinks.data() : nullptr,
            .token_row = f.token_row.data(),
            .positions = f.positions.data(),
            .pages = f.pages.data(),
            .kv = {keys.data(), values.data(), f.held.type.dtype},
            .pages_per_row = f.pages_per_row,
            .heads = f.shape.heads,
            .kv_heads = f.shape.kv_heads,
            .window = f.window};
  }

  template <class Kv>
  void decode(bool with_sinks, uint64_t seed) {
    const DecodeShape shape{static_cast<int>(shares.decode.size()), f.shape.kv_heads, rows_bytes<Kv>(1), f.window};
    const DecodePlan plan = plan_decode(shape, kDevice);
    const DecodeScratch scratch = decode_scratch(plan.target, f.shape.kv_heads);
    partials.assign(static_cast<size_t>(scratch.floats), std::nanf(""));
    finished.assign(static_cast<size_t>(scratch.counters), 0);
    AttentionArgs a = args(with_sinks);
    a.decode_tokens = shares.decode.data();
    a.decode_count = shape.tokens;
    a.target = plan.target;
    a.partials = partials.data();
    a.finished = finished.data();
    emulation::Launch launch{.grid = f.shape.kv_heads,
                             .threads = plan.ring.warps * kAttendLanes,
                             .grid_y = static_cast<int>(plan.grid_y),
                             .seed = seed,
                             .predecessor = {}};
    launch.predecessor = [&, whole_keys = keys, whole_values = values] {
      std::copy(f.q.begin(), f.q.end(), q.begin());
      std::copy(whole_keys.begin(), whole_keys.end(), keys.begin());
      std::copy(whole_values.begin(), whole_values.end(), values.begin());
    };
    std::fill(q.begin(), q.end(), std::nanf(""));
    f.forget_step(keys);
    f.forget_step(values);
    emulate_decode<Kv>(launch, a, plan);
    for (const int count : finished) ASSERT_EQ(count, 0);
  }

  void plain(bool with_sinks) {
    AttentionArgs a = args(with_sinks);
    a.head_dim = f.shape.head_dim;
    const emulation::Launch launch{.grid = f.shape.heads,
                                   .threads = kAttendWarps * kWarpLanes,
                                   .grid_y = static_cast<int>(f.positions.size()),
                                   .predecessor = {}};
    with_page_type(f.held.type.dtype, [&]<KvDtype kType>() {
      ASSERT_EQ(emulation::run(launch, [&] { any_attend<PageRow<kType>, 4>(a); }), "");
    });
  }

  template <class Tile, class Body>
  void tiles(bool with_sinks, const Body& body) {
    AttentionArgs a = args(with_sinks);
    a.tiles = shares.prefill.data();
    a.tile_count = static_cast<int>(shares.prefill.size());
    const emulation::Launch launch{
        .grid = a.tile_count, .threads = Tile::kThreads, .grid_y = f.shape.kv_heads, .predecessor = {}};
    ASSERT_EQ(emulation::run(launch, [&] { body(a); }), "");
  }
  template <class Kv>
  void prefill(bool with_sinks) {
    using Tile = PrefillTile<Kv>;
    tiles<Tile>(with_sinks, [](const AttentionArgs& a) { any_attend_prefill<Tile>(a); });
  }
  template <class Products>
  void prefill_fp8(bool with_sinks) {
    using Tile = Fp8Tile<Products>;
    tiles<Tile>(with_sinks, [](const AttentionArgs& a) { any_attend_prefill_fp8<Tile>(a); });
  }

  void wgmma_prefill(bool with_sinks) {
    AttentionArgs a = args(with_sinks);
    a.tiles = shares.prefill.data();
    a.tile_count = static_cast<int>(shares.prefill.size());
    using Tile = WgmmaAttend;
    const emulation::Launch launch{
        .grid = std::min(a.tile_count * a.kv_heads, 3), .threads = Tile::kThreads, .predecessor = {}};
    ASSERT_EQ(emulation::run(launch, [&] { sm90_attend_prefill<Tile>(a); }), "");
  }

  // `launch` again, for a GEMM.
  void check_rounded(const std::function<void()>& launch, bool with_codes = true) {
    const auto tokens = static_cast<int>(f.positions.size());
    for (const GemmInput& form : input_forms(tokens, with_codes)) {
      const std::vector<uint16_t> want = as_input(out, tokens, form);
      std::vector<uint16_t> got(want.size(), 0xffff);
      rounded = form;
      rounded.at = got.data();
      launch();
      ASSERT_EQ(got, want) << "type " << static_cast<int>(form.type);
    }
    rounded = {};
  }

  void check(bool with_sinks) const {
    check(with_sinks, [](bool decoded, const AttendFixture::Want& want, size_t d) {
      return attend_bound(decoded ? kDecodeError : kPrefillError, want, d);
    });
  }
  template <class Bound>
  void check(bool with_sinks, const Bound& bound) const {
    const auto dim = static_cast<size_t>(f.shape.head_dim), heads = static_cast<size_t>(f.shape.heads);
    for (size_t t = 0; t < f.positions.size(); ++t) {
      const bool decoded = f.rows[static_cast<size_t>(f.token_row[t])].tokens <= kMaxDecodeTokens;
      for (size_t head = 0; head < heads; ++head) {
        const AttendFixture::Want want = f.want(t, static_cast<int>(head), with_sinks);
        for (size_t d = 0; d < dim; ++d)
          ASSERT_NEAR(out[(t * heads + head) * dim + d], want.out[d], bound(decoded, want, d))
              << "position " << f.positions[t] << " window " << f.window << " head " << head << " dim " << d;
      }
    }
  }
};

// What a step in FP8 gives, whatever the kernel.
void check_fp8(const AttendFixture& f, const std::vector<float>& out, bool with_sinks) {
  const auto dim = static_cast<size_t>(f.shape.head_dim), heads = static_cast<size_t>(f.shape.heads);
  for (size_t t = 0; t < f.positions.size(); ++t) {
    for (size_t head = 0; head < heads; ++head) {
      const AttendFixture::WantFp8 want = f.want_fp8(t, static_cast<int>(head), with_sinks, 0x1p-22);
      for (size_t d = 0; d < dim; ++d)
        ASSERT_NEAR(out[(t * heads + head) * dim + d], want.out[d], want.error[d])
            << "position " << f.positions[t] << " window " << f.window << " head " << head << " dim " << d;
    }
  }
}

template <class Kv>
const TestPages& pages_of() {
  return std::is_same_v<Kv, KvBf16> ? kBf16Pages : std::is_same_v<Kv, PageRow<KvDtype::kF32>> ? kF32Pages : kE4m3Pages;
}

template <class Kv>
void check_decode(const AttendShape& shape, int window, const std::vector<AttendSequence>& sequences, bool sinks) {
  SCOPED_TRACE(testing::Message() << shape.heads << " heads, window " << window << ", pages of "
                                  << pages_of<Kv>().type.name);
  AttendFixture f(shape, window, sequences, 21, pages_of<Kv>());
  Attempt run(f);
  ASSERT_TRUE(run.shares.prefill.empty());
  run.decode<Kv>(sinks, 1);
  run.check(sinks);
  const std::vector<float> first = run.out;
  run.decode<Kv>(sinks, 99);  // other delays, the same bits
  ASSERT_EQ(run.out, first);
  run.check_rounded([&] { run.decode<Kv>(sinks, 1); });
}

TEST(attend_emulated, the_plain_kernel_is_the_sum_over_pages_of_every_type) {
  for (const TestPages* pages : kCardPages)
    for (const AttendShape& shape : {AttendShape{4, 1, 64}, {2, 2, 8}, {2, 1, 128}}) {
      SCOPED_TRACE(testing::Message() << "pages of " << pages->type.name << ", heads of " << shape.head_dim);
      AttendFixture f(shape, 128, {{1, 1}, {65, 2}, {200, 9}}, 23, *pages);
      Attempt run(f);
      run.plain(shape.kv_heads == 1);
      run.check(shape.kv_heads == 1, [](bool, const AttendFixture::Want&, size_t) { return 3e-6; });
    }
}

TEST(attend_emulated, decode_is_the_exact_sum_at_page_and_window_edges) {
  const std::vector<AttendSequence> edges = {{1, 1},  {2, 1},   {31, 3},  {33, 2},  {64, 1},
                                             {65, 1}, {127, 1}, {129, 3}, {130, 1}, {257, 2}};
  for (const int window : {0, 128, 1}) check_decode<KvBf16>({8, 1, 64}, window, edges, true);
  check_decode<KvE4m3>({8, 2, 64}, 128, edges, false);
  check_decode<KvBf16>({6, 2, 64}, 128, {{200, 1}, {12, 1}}, false);
}

TEST(attend_emulated, decode_splits_a_long_sequence_and_adds_its_chunks) {
  check_decode<KvBf16>({8, 1, 64}, 0, {{2049, 1}}, true);
  check_decode<KvE4m3>({8, 1, 64}, 0, {{1337, 1}, {70, 1}}, true);
  check_decode<KvBf16>({8, 2, 64}, 0, {{400, 1}, {5, 2}, {700, 3}}, false);
}

TEST(attend_emulated, decode_by_lone_warps_splits_a_long_sequence_among_many_short_ones) {
  std::vector<AttendSequence> many(14, {9, 1});
  many[3] = {700, 1};
  many[9] = {333, 2};
  check_decode<KvBf16>({8, 1, 64}, 0, many, true);
  check_decode<KvE4m3>({6, 2, 64}, 0, many, false);
}

// The emulator's kernel before ends when the first CTA waits for it: the newest token goes first.
template <class Kv>
void check_newest_first(int context, int window) {
  AttendFixture f({8, 1, 64}, window, {{context, std::min(context, kMaxDecodeTokens)}}, 24, pages_of<Kv>());
  Attempt run(f);
  std::reverse(run.shares.decode.begin(), run.shares.decode.end());
  run.decode<Kv>(true, 1);
  run.check(true);
}

TEST(attend_emulated, decode_reads_what_the_kernel_before_writes_behind_the_wait) {
  for (const int context : {1, 8, 66, 200})
    for (const int window : {0, 128}) {
      check_newest_first<KvBf16>(context, window);
      check_newest_first<KvE4m3>(context, window);
    }
}

TEST(attend_emulated, decode_with_more_tokens_than_lanes) {
  std::vector<AttendSequence> many;
  for (int i = 0; i < 40; ++i) many.push_back({1 + i * 7 % 70, 1});
  check_decode<KvBf16>({1, 1, 64}, 128, many, true);
}

template <class Kv>
void check_prefill(const AttendShape& shape, int window, const std::vector<AttendSequence>& sequences, bool sinks) {
  SCOPED_TRACE(testing::Message() << shape.heads << " heads, window " << window << ", pages of "
                                  << pages_of<Kv>().type.name);
  AttendFixture f(shape, window, sequences, 22, pages_of<Kv>());
  Attempt run(f);
  const auto launch = [&] {
    if (!run.shares.decode.empty()) run.decode<Kv>(sinks, 1);
    run.prefill<Kv>(sinks);
  };
  launch();
  run.check(sinks);
  run.check_rounded(launch);
}

TEST(attend_emulated, prefill_is_the_sum_at_page_and_window_edges_with_and_without_prefix) {
  for (const int window : {0, 128, 1}) {
    check_prefill<KvBf16>({8, 1, 64}, window, {{17, 17}, {65, 65}, {150, 9}}, true);
    check_prefill<KvE4m3>({4, 2, 64}, window, {{33, 20}, {129, 16}}, window == 0);
  }
  check_prefill<KvBf16>({8, 1, 64}, 128, {{400, 30}}, false);
}

TEST(attend_emulated, prefill_on_wgmma_is_the_sum_at_page_and_window_edges_with_and_without_prefix) {
  for (const int window : {0, 128, 1}) {
    AttendFixture f({8, 1, 64}, window, {{17, 17}, {70, 70}, {400, 9}, {220, 24}}, 22);
    Attempt run(f, kSm90PrefillTokens);
    run.wgmma_prefill(window != 1);
    run.check(window != 1);
    run.check_rounded([&] { run.wgmma_prefill(window != 1); }, false);
  }
  AttendFixture f({4, 2, 64}, 128, {{300, 50}}, 22);
  Attempt run(f, kSm90PrefillTokens);
  run.wgmma_prefill(true);
  run.check(true);
}

TEST(attend_emulated, prefill_on_wgmma_where_tiles_meet_pages) {
  for (const int window : {0, 128, 25}) {
    AttendFixture f({8, 1, 64}, window, {{87, 24}, {88, 24}, {89, 25}, {128, 40}, {193, 10}, {64, 64}}, 28);
    Attempt run(f, kSm90PrefillTokens);
    run.wgmma_prefill(true);
    run.check(true);
  }
}

// Scores of any size: weights are made above a base that is set once and rises when they outgrow it.
TEST(attend_emulated, prefill_on_wgmma_of_scores_far_from_zero) {
  for (const float by : {3.0f, -3.0f})
    for (const int window : {0, 128}) {
      AttendFixture f({8, 1, 64}, window, {{150, 60}, {300, 24}}, 29);
      move_scores(f, by);
      Attempt run(f, kSm90PrefillTokens);
      run.wgmma_prefill(false);
      run.check(false, [](bool, const AttendFixture::Want& want, size_t d) { return 0x1p-5 * want.size[d]; });
    }
}

TEST(attend_emulated, prefill_on_wgmma_of_scores_that_outgrow_their_base) {
  AttendFixture f({8, 1, 64}, 0, {{300, 60}}, 30);
  enlarge_keys(f, 0, 77);
  enlarge_keys(f, 0, 20);
  Attempt run(f, kSm90PrefillTokens);
  run.wgmma_prefill(true);
  run.check(true);
  int alone = 0;  // queries whose largest score leaves the next far behind
  for (size_t t = 0; t < f.positions.size(); ++t)
    for (int head = 0; head < f.shape.heads; ++head) {
      const AttendFixture::Want want = f.want(t, head, true);
      for (const int position : {77, 20}) {
        const float* const value = &f.values[f.at(0, position, 0)];
        bool is_value = true;
        for (size_t d = 0; d < 64; ++d) is_value = is_value && std::abs(want.out[d] - double{value[d]}) < 1e-12;
        if (!is_value) continue;
        ++alone;
        for (size_t d = 0; d < 64; ++d)
          ASSERT_NEAR(run.out[(t * 8 + static_cast<size_t>(head)) * 64 + d], value[d], 0x1p-8 * std::abs(value[d]))
              << "token " << t << " head " << head;
      }
    }
  EXPECT_GT(alone, 100);
}

TEST(attend_emulated, prefill_on_wgmma_leaves_the_same_bits_however_a_prompt_is_cut) {
  for (const int window : {0, 128}) {
    AttendFixture f({8, 1, 64}, window, {{260, 90}}, 31);
    if (window == 0) enlarge_keys(f, 0, 77);
    Attempt run(f, kSm90PrefillTokens);
    run.wgmma_prefill(true);
    for (const int tokens : {11, 7}) {
      Attempt cut(f, tokens);
      cut.wgmma_prefill(true);
      ASSERT_EQ(cut.out, run.out) << tokens << " tokens to a tile";
    }
  }
}

template <class Products>
void check_prefill_fp8(AttendFixture f, bool sinks) {
  SCOPED_TRACE(testing::Message() << f.shape.heads << " heads, window " << f.window);
  Attempt run(f);
  const auto launch = [&] {
    if (!run.shares.decode.empty()) run.decode<Fp8Row>(sinks, 1);
    if (!run.shares.prefill.empty()) run.prefill_fp8<Products>(sinks);
  };
  launch();
  check_fp8(f, run.out, sinks);
  run.check_rounded(launch);
}

TEST(attend_emulated, prefill_in_fp8_is_the_rounded_sum_at_page_and_window_edges_with_and_without_prefix) {
  for (const int window : {0, 128, 1})
    check_prefill_fp8<PlainFp8>({{8, 1, 64}, window, {{17, 17}, {65, 65}, {150, 9}, {129, 16}}, 41, kE4m3Pages}, true);
  check_prefill_fp8<PlainFp8>({{4, 2, 64}, 128, {{33, 20}, {300, 30}}, 42, kE4m3Pages}, false);
}

TEST(attend_emulated, prefill_in_fp8_with_block_scaled_products_is_the_same) {
  check_prefill_fp8<ScaledFp8<ScalarMx>>({{8, 1, 64}, 0, {{17, 17}, {150, 9}}, 41, kE4m3Pages}, true);
  AttendFixture f({8, 2, 64}, 128, {{200, 40}}, 43, kE4m3Pages);
  Attempt plain(f), scaled(f);
  plain.prefill_fp8<PlainFp8>(true);
  scaled.prefill_fp8<ScaledFp8<ScalarMx>>(true);
  for (size_t i = 0; i < plain.out.size(); ++i) ASSERT_NEAR(plain.out[i], scaled.out[i], 1e-5) << i;
}

// Tops that rise far, weights that one key has alone, queries that E4M3 does not reach.
TEST(attend_emulated, prefill_in_fp8_of_large_scores) {
  for (const float by : {8.0f, 400.0f}) {
    AttendFixture f({8, 1, 64}, by > 100 ? 128 : 0, {{200, 40}, {70, 3}}, 44, kE4m3Pages);
    for (float& x : f.q) x *= by;
    check_prefill_fp8<PlainFp8>(f, by < 100);
  }
}

TEST(attend_emulated, decode_in_fp8_is_the_rounded_sum) {
  const std::vector<AttendSequence> edges = {{1, 1}, {33, 2}, {64, 1}, {65, 1}, {129, 3}, {257, 2}};
  for (const int window : {0, 128, 1})
    check_prefill_fp8<PlainFp8>({{8, 1, 64}, window, edges, 45, kE4m3Pages}, window != 1);
  check_prefill_fp8<PlainFp8>({{6, 2, 64}, 0, {{1337, 1}, {70, 1}}, 46, kE4m3Pages}, true);  // chunks
  std::vector<AttendSequence> many(14, {9, 1});                                              // lone warps
  many[3] = {700, 1};
  check_prefill_fp8<PlainFp8>({{8, 1, 64}, 0, many, 47, kE4m3Pages}, true);
}

TEST(attend_emulated, decode_rows_and_prefill_chunks_in_one_step_in_fp8) {
  check_prefill_fp8<PlainFp8>({{8, 1, 64}, 128, {{140, 1}, {200, 20}, {66, 2}}, 48, kE4m3Pages}, true);
}

TEST(attend_emulated, decode_rows_and_prefill_chunks_in_one_step) {
  check_prefill<KvBf16>({8, 1, 64}, 128, {{140, 1}, {200, 20}, {66, 2}, {40, 40}}, true);
  check_prefill<KvE4m3>({8, 1, 64}, 0, {{50, 15}, {140, 1}}, true);
}

// What docs/decisions/0006 says of FP8; exact sums over rounded and over unrounded pages, no kernel.
TEST(attend_emulated, e4m3_pages_move_the_result_by_a_few_percent) {
  const AttendShape shape{8, 1, 64};
  const AttendFixture exact(shape, 0, {{300, 8}}, 31), rounded(shape, 0, {{300, 8}}, 31, kE4m3Pages);
  double difference = 0, size = 0;
  for (size_t t = 0; t < exact.positions.size(); ++t)
    for (int head = 0; head < shape.heads; ++head) {
      const AttendFixture::Want a = exact.want(t, head, true), b = rounded.want(t, head, true);
      for (size_t d = 0; d < a.out.size(); ++d) {
        difference += (a.out[d] - b.out[d]) * (a.out[d] - b.out[d]);
        size += a.out[d] * a.out[d];
      }
    }
  EXPECT_LT(std::sqrt(difference / size), 0.06);
  EXPECT_GT(std::sqrt(difference / size), 0.01);
}

// The general kernel: every type, rows of any length.
template <class Kv>
void check_any(const AttendShape& shape, int window, const std::vector<AttendSequence>& sequences) {
  SCOPED_TRACE(testing::Message() << shape.heads << " heads of " << shape.head_dim << ", window " << window
                                  << ", pages of " << pages_of<Kv>().type.name);
  AttendFixture f(shape, window, sequences, 25, pages_of<Kv>());
  std::vector<uint8_t> keys = f.page_bytes(f.keys), values = f.page_bytes(f.values);
  std::vector<float> out(f.q.size(), std::nanf(""));
  const auto tokens = static_cast<int>(f.positions.size());
  const AttentionArgs args{.q = f.q.data(),
                           .out = out.data(),
                           .sinks = f.sinks.data(),
                           .token_row = f.token_row.data(),
                           .positions = f.positions.data(),
                           .pages = f.pages.data(),
                           .kv = {keys.data(), values.data(), f.held.type.dtype},
                           .pages_per_row = f.pages_per_row,
                           .heads = shape.heads,
                           .kv_heads = shape.kv_heads,
                           .window = window,
                           .head_dim = shape.head_dim,
                           .decode_count = tokens};
  const emulation::Launch launch{
      .grid = shape.heads, .threads = kAttendWarps * kWarpLanes, .grid_y = tokens, .predecessor = {}};
  ASSERT_EQ(emulation::run(launch,
                           [&] {
                             if (shape.head_dim <= 32) return any_attend<Kv, 1>(args);
                             shape.head_dim <= 64 ? any_attend<Kv, 2>(args) : any_attend<Kv, 4>(args);
                           }),
            "");
  for (int t = 0; t < tokens; ++t)
    for (int head = 0; head < shape.heads; ++head) {
      const AttendFixture::Want want = f.want(static_cast<size_t>(t), head, true);
      for (int d = 0; d < shape.head_dim; ++d)
        ASSERT_NEAR(out[static_cast<size_t>((t * shape.heads + head) * shape.head_dim + d)],
                    want.out[static_cast<size_t>(d)], attend_bound(0x1p-18, want, static_cast<size_t>(d)))
            << "token " << t << " head " << head << " dim " << d;
    }
}

TEST(attend_emulated, the_general_kernel_takes_pages_of_every_type) {
  const std::vector<AttendSequence> rows = {{1, 1}, {70, 3}, {130, 12}};
  for (const int window : {0, 128}) {
    check_any<KvBf16>({4, 2, 64}, window, rows);
    check_any<KvE4m3>({4, 2, 64}, window, rows);
    check_any<PageRow<KvDtype::kF32>>({4, 2, 64}, window, rows);
  }
  check_any<KvE4m3>({2, 1, 24}, 0, {{80, 2}});
  check_any<KvBf16>({2, 1, 80}, 0, {{80, 2}});
}

TEST(attend_emulated, a_huge_sink_leaves_almost_nothing) {
  AttendFixture f({8, 1, 64}, 0, {{100, 1}, {40, 20}}, 23);
  std::fill(f.sinks.begin(), f.sinks.end(), Bf16::from_float(60));
  Attempt run(f);
  run.decode<KvBf16>(true, 1);
  run.prefill<KvBf16>(true);
  run.check(true);
}

}  // namespace
}  // namespace nibble::backend::cuda
