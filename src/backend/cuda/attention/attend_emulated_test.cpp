// The attention kernels' own source (attend_decode.cuh, attend_prefill.cuh), run lane by lane on the host.

#include "backend/cuda/emulation/device.h"

#include "backend/cuda/attention/attend_emulated_testing.h"
#include "backend/cuda/attention/attend_prefill.cuh"
#include "backend/cuda/attention/attend_testing.h"
#include "backend/cuda/arch/sm90/attend.cuh"

#include <gtest/gtest.h>

#include <string>

namespace nibble::backend::cuda {
namespace {

constexpr AttendDevice kDevice{.sms = 3, .sm_smem_bytes = 233472};

// A fixture with a place for the result and what the kernels need beside it.
struct Attempt {
  AttendFixture& f;
  std::vector<uint8_t> keys = f.page_bytes(f.keys), values = f.page_bytes(f.values);
  std::vector<float> q = f.q, out = std::vector<float>(f.q.size(), std::nanf(""));
  std::vector<float> partials;
  std::vector<int> finished;
  AttendShares shares;
  GemmInput rounded;  // FlashArgs

  explicit Attempt(AttendFixture& fixture, int tile_tokens = kPrefillTokens) : f(fixture) {
    share_tokens(f.rows, shares, tile_tokens);
  }

  [[nodiscard]] FlashArgs args(bool with_sinks) {
    return {.q = q.data(),
            .out = out.data(),
            .rounded = rounded,
            .sinks = with_sinks ? f.sinks.data() : nullptr,
            .token_row = f.token_row.data(),
            .positions = f.positions.data(),
            .pages = f.pages.data(),
            .keys = keys.data(),
            .values = values.data(),
            .pages_per_row = f.pages_per_row,
            .heads = f.shape.heads,
            .kv_heads = f.shape.kv_heads,
            .window = f.window};
  }

  // What the kernel before writes becomes NaN.
  template <class Kv>
  void forget_step() {
    std::fill(q.begin(), q.end(), std::nanf(""));
    for (size_t t = 0; t < f.positions.size(); ++t)
      for (int head = 0; head < f.shape.kv_heads; ++head) {
        const auto at = static_cast<ptrdiff_t>(f.at(f.token_row[t], f.positions[t], head) * Kv::kBytes);
        std::fill_n(keys.begin() + at, Kv::kRowBytes, uint8_t{0xff});
        std::fill_n(values.begin() + at, Kv::kRowBytes, uint8_t{0xff});
      }
  }

  template <class Kv>
  void decode(bool with_sinks, uint64_t seed) {
    const DecodeShape shape{static_cast<int>(shares.decode.size()), f.shape.kv_heads, Kv::kBytes, f.window};
    const DecodePlan plan = plan_decode(shape, kDevice);
    const DecodeScratch scratch = decode_scratch(plan.target, f.shape.kv_heads);
    partials.assign(static_cast<size_t>(scratch.floats), std::nanf(""));
    finished.assign(static_cast<size_t>(scratch.counters), 0);
    FlashArgs a = args(with_sinks);
    a.decode_tokens = shares.decode.data();
    a.decode_count = shape.tokens;
    a.target = plan.target;
    a.partials = partials.data();
    a.finished = finished.data();
    emulation::Launch launch{.grid = f.shape.kv_heads,
                             .threads = plan.ring.warps * kAttendLanes,
                             .grid_y = plan.grid,
                             .seed = seed,
                             .predecessor = {}};
    launch.predecessor = [&, whole_keys = keys, whole_values = values] {
      std::copy(f.q.begin(), f.q.end(), q.begin());
      std::copy(whole_keys.begin(), whole_keys.end(), keys.begin());
      std::copy(whole_values.begin(), whole_values.end(), values.begin());
    };
    forget_step<Kv>();
    emulate_decode<Kv, DecodeInput::kTurned>(launch, a, plan);
    for (const int count : finished) ASSERT_EQ(count, 0);
  }

  template <class Kv>
  void prefill(bool with_sinks) {
    FlashArgs a = args(with_sinks);
    a.tiles = shares.prefill.data();
    a.tile_count = static_cast<int>(shares.prefill.size());
    using Tile = PrefillTile<Kv>;
    const emulation::Launch launch{
        .grid = a.tile_count, .threads = Tile::kThreads, .grid_y = f.shape.kv_heads, .predecessor = {}};
    ASSERT_EQ(emulation::run(launch, [&] { any_attend_prefill<Tile>(a); }), "");
  }

  void wgmma_prefill(bool with_sinks) {
    FlashArgs a = args(with_sinks);
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
    const auto dim = static_cast<size_t>(f.shape.head_dim), heads = static_cast<size_t>(f.shape.heads);
    for (size_t t = 0; t < f.positions.size(); ++t) {
      const bool decoded = f.rows[static_cast<size_t>(f.token_row[t])].tokens <= kMaxDecodeTokens;
      for (size_t head = 0; head < heads; ++head) {
        const AttendFixture::Want want = f.want(t, static_cast<int>(head), with_sinks);
        for (size_t d = 0; d < dim; ++d)
          ASSERT_NEAR(out[(t * heads + head) * dim + d], want.out[d],
                      attend_bound(decoded ? kDecodeError : kPrefillError, want, d))
              << "position " << f.positions[t] << " window " << f.window << " head " << head << " dim " << d;
      }
    }
  }
};

PageValues values_of(int bytes) { return bytes == 2 ? PageValues::kBf16 : PageValues::kE4m3; }

template <class Kv>
void check_decode(const AttendShape& shape, int window, const std::vector<AttendSequence>& sequences, bool sinks) {
  SCOPED_TRACE(testing::Message() << shape.heads << " heads, window " << window << ", element " << Kv::kBytes << " B");
  AttendFixture f(shape, window, sequences, 21, values_of(Kv::kBytes));
  Attempt run(f);
  ASSERT_TRUE(run.shares.prefill.empty());
  run.decode<Kv>(sinks, 1);
  run.check(sinks);
  const std::vector<float> first = run.out;
  run.decode<Kv>(sinks, 99);  // other delays, the same bits
  ASSERT_EQ(run.out, first);
  run.check_rounded([&] { run.decode<Kv>(sinks, 1); });
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
  AttendFixture f({8, 1, 64}, window, {{context, std::min(context, kMaxDecodeTokens)}}, 24, values_of(Kv::kBytes));
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
  SCOPED_TRACE(testing::Message() << shape.heads << " heads, window " << window << ", element " << Kv::kBytes << " B");
  AttendFixture f(shape, window, sequences, 22, values_of(Kv::kBytes));
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

TEST(attend_emulated, decode_rows_and_prefill_chunks_in_one_step) {
  check_prefill<KvBf16>({8, 1, 64}, 128, {{140, 1}, {200, 20}, {66, 2}, {40, 40}}, true);
  check_prefill<KvE4m3>({8, 1, 64}, 0, {{50, 15}, {140, 1}}, true);
}

// What docs/decisions/0006 says of FP8; exact sums over rounded and over unrounded pages, no kernel.
TEST(attend_emulated, e4m3_pages_move_the_result_by_a_few_percent) {
  const AttendShape shape{8, 1, 64};
  const AttendFixture exact(shape, 0, {{300, 8}}, 31), rounded(shape, 0, {{300, 8}}, 31, PageValues::kE4m3);
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
