// The tensor-core attention kernels on the device, against double loops: the emulated test's cases at real widths.

#include "backend/cuda/arch/sm121/kernels.h"
#include "backend/cuda/attention/attend_plan.h"
#include "backend/cuda/testing/attend.h"
#include "backend/cuda/arch/sm90/kernels.h"
#include "backend/cuda/testing/card.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace nibble::backend::cuda {
namespace {

class AttendFlash : public CudaTest {
 protected:
  [[nodiscard]] static PlanDevice device() {
    int sms = 0, smem = 0;
    cuda_check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    cuda_check(cudaDeviceGetAttribute(&smem, cudaDevAttrMaxSharedMemoryPerMultiprocessor, 0));
    return {.sms = sms, .sm_smem_bytes = smem};
  }
  [[nodiscard]] static bool on_hopper() {
    int major = 0;
    cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    return major == 9 && sm90_is_built();
  }

  // Runs the step twice; the bits must agree. hopper: on its prefill kernel.
  std::vector<float> run(const AttendFixture& f, bool sinks, bool hopper, bool fp8 = false) {
    AttendShares shares;
    share_tokens(f.rows, shares, hopper ? kSm90PrefillTokens : kPrefillTokens);
    const DecodeShape shape{static_cast<int>(shares.decode.size()), f.shape.kv_heads,
                            static_cast<int>(row_bytes(f.held.type, kHeadDim)), f.window};
    const DecodePlan plan = plan_decode(shape, device());
    const DecodeScratch scratch = decode_scratch(plan.target, f.shape.kv_heads);
    const DeviceArray<float> q(f.q), out(f.q.size()), partials(static_cast<size_t>(scratch.floats));
    const DeviceArray<uint8_t> keys(f.page_bytes(f.keys)), values(f.page_bytes(f.values));
    const DeviceArray<Bf16> on_sinks(f.sinks);
    const DeviceArray<int32_t> row(f.token_row), positions(f.positions), pages(f.pages), decode(shares.decode);
    const DeviceArray<int32_t> finished(std::vector<int32_t>(static_cast<size_t>(scratch.counters), 0));
    const DeviceArray<AttendTile> tiles(shares.prefill);
    AttentionArgs args{.q = q.get(),
                       .out = out.get(),
                       .sinks = sinks ? on_sinks.get() : nullptr,
                       .token_row = row.get(),
                       .positions = positions.get(),
                       .pages = pages.get(),
                       .kv = {keys.get(), values.get(), f.held.type.dtype},
                       .pages_per_row = f.pages_per_row,
                       .heads = f.shape.heads,
                       .kv_heads = f.shape.kv_heads,
                       .window = f.window,
                       .fp8 = fp8,
                       .decode_tokens = decode.get(),
                       .decode_count = shape.tokens,
                       .target = plan.target,
                       .partials = partials.get(),
                       .finished = finished.get(),
                       .tiles = tiles.get(),
                       .tile_count = static_cast<int>(shares.prefill.size()),
                       .ctas = std::min(static_cast<int>(std::ssize(shares.prefill)) * f.shape.kv_heads, 5)};
    const auto launch = [&] {
      if (!shares.decode.empty()) AttendDecode::launch(args, plan, on_);
      if (!shares.prefill.empty()) hopper ? Sm90AttendPrefill::launch(args, on_) : AttendPrefill::launch(args, on_);
    };
    const auto once = [&] {
      cuda_check(cudaMemset(out.get(), 0xff, f.q.size() * sizeof(float)));
      cuda_check(cudaDeviceSynchronize());
      launch();
      return out.host();
    };
    std::vector<float> result = once();
    EXPECT_EQ(result, once()) << "not repeatable";
    const auto tokens = static_cast<int>(f.positions.size());
    for (const GemmInput& form : input_forms(tokens, !hopper)) {
      const std::vector<uint16_t> want = as_input(result, tokens, form);
      const DeviceArray<uint16_t> rounded(want.size());
      args.rounded = form;
      args.rounded.at = rounded.get();
      launch();
      EXPECT_EQ(rounded.host(), want) << "type " << static_cast<int>(form.type);
    }
    return result;
  }

  void check(const AttendFixture& f, bool sinks) {
    check(f, sinks, false);
    const bool prefills =
        std::any_of(f.rows.begin(), f.rows.end(), [](const Row& r) { return r.tokens > kMaxDecodeTokens; });
    if (prefills && f.held.type.dtype == kSm90PrefillPages && on_hopper()) check(f, sinks, true);
  }
  void check_fp8(const AttendFixture& f, bool sinks) {
    const std::vector<float> got = run(f, sinks, false, true);
    const auto dim = static_cast<size_t>(f.shape.head_dim), heads = static_cast<size_t>(f.shape.heads);
    for (size_t t = 0; t < f.positions.size(); ++t)
      for (const int head : {0, static_cast<int>(t) % f.shape.heads, f.shape.heads - 1}) {
        const AttendFixture::WantFp8 want = f.want_fp8(t, head, sinks, kFp8SumError);
        for (size_t d = 0; d < dim; ++d)
          ASSERT_NEAR(got[(t * heads + static_cast<size_t>(head)) * dim + d], want.out[d], want.error[d])
              << "position " << f.positions[t] << " window " << f.window << " head " << head << " dim " << d;
      }
  }
  void check(const AttendFixture& f, bool sinks, bool hopper) {
    SCOPED_TRACE(hopper ? "wgmma" : "mma.sync");
    const std::vector<float> got = run(f, sinks, hopper);
    const auto dim = static_cast<size_t>(f.shape.head_dim), heads = static_cast<size_t>(f.shape.heads);
    for (size_t t = 0; t < f.positions.size(); ++t) {
      const bool decoded = f.rows[static_cast<size_t>(f.token_row[t])].tokens <= kMaxDecodeTokens;
      for (const int head : {0, static_cast<int>(t) % f.shape.heads, f.shape.heads - 1}) {
        const AttendFixture::Want want = f.want(t, head, sinks);
        for (size_t d = 0; d < dim; ++d)
          ASSERT_NEAR(got[(t * heads + static_cast<size_t>(head)) * dim + d], want.out[d],
                      attend_bound(decoded ? kDecodeError : kPrefillError, want, d))
              << "position " << f.positions[t] << " window " << f.window << " head " << head << " dim " << d;
      }
    }
  }
};

constexpr AttendShape kModel{64, 8, 64};
const TestPages* const kBoth[] = {&kBf16Pages, &kE4m3Pages};

TEST_F(AttendFlash, decodes_like_double_at_page_and_window_edges) {
  const std::vector<AttendSequence> edges = {{1, 1},   {2, 1},   {31, 3},  {32, 1},  {33, 2},
                                             {63, 1},  {64, 7},  {65, 1},  {127, 1}, {128, 2},
                                             {129, 3}, {130, 1}, {191, 1}, {257, 8}, {1000, 2}};
  for (const AttendShape shape : {kModel, AttendShape{8, 2, 64}, {6, 2, 64}, {1, 1, 64}})
    for (const int window : {0, 128, 1})
      for (const TestPages* values : kBoth)
        for (const bool sinks : {false, true}) check(AttendFixture(shape, window, edges, 21, *values), sinks);
}

TEST_F(AttendFlash, decodes_one_long_sequence_in_many_chunks) {
  for (const TestPages* values : kBoth) {
    check(AttendFixture(kModel, 0, {{9001, 1}}, 22, *values), true);
    check(AttendFixture(kModel, 0, {{70, 1}, {4097, 2}, {5, 1}, {2048, 4}}, 23, *values), true);
    check(AttendFixture(kModel, 128, {{9001, 1}}, 24, *values), true);
  }
}

TEST_F(AttendFlash, decodes_many_sequences_by_lone_warps) {
  std::vector<AttendSequence> many;
  for (int i = 0; i < 90; ++i) many.push_back({1 + i * 37 % 200 + (i % 40 == 7 ? 4000 : 0), 1 + i % 3 / 2});
  for (const AttendShape shape : {kModel, AttendShape{40, 8, 64}})
    for (const int window : {0, 128})
      for (const TestPages* values : kBoth) check(AttendFixture(shape, window, many, 29, *values), window == 0);
}

TEST_F(AttendFlash, prefills_like_double_for_odd_token_counts_with_and_without_prefix) {
  for (const int tokens : {9, 15, 16, 17, 63, 64, 65, 127, 128, 129})
    for (const int window : {0, 128})
      for (const TestPages* values : kBoth)
        check(AttendFixture(kModel, window, {{tokens, tokens}, {tokens + 77, tokens}}, 25, *values), true);
}

TEST_F(AttendFlash, prefills_behind_a_long_prefix) {  // rings go round many times
  for (const TestPages* values : kBoth) check(AttendFixture(kModel, 0, {{2500, 64}, {4099, 40}}, 28, *values), true);
}

TEST_F(AttendFlash, serves_decode_rows_and_prefill_chunks_in_one_step) {
  for (const int window : {0, 128})
    check(AttendFixture(kModel, window, {{140, 1}, {500, 120}, {66, 2}, {40, 40}, {1000, 1}}, 26), true);
}

// Hopper's kernel makes weights above a base that is set once and rises when they outgrow it.
TEST_F(AttendFlash, prefills_scores_that_outgrow_all_before_them) {
  for (const int window : {0, 128}) {
    AttendFixture f(kModel, window, {{700, 90}, {1000, 24}}, 30);
    for (const int position : {500, 570, 620}) enlarge_keys(f, 0, position);
    enlarge_keys(f, 1, 900);
    check(f, true);
  }
}

TEST_F(AttendFlash, prefills_scores_far_from_zero) {
  for (const float by : {0.5f, -0.5f}) {  // 24, within what the bound of the error allows
    AttendFixture f(kModel, 0, {{700, 90}}, 31);
    move_scores(f, by);
    check(f, false);
  }
}

TEST_F(AttendFlash, in_fp8_is_the_rounded_sum) {
  for (const AttendShape shape : {kModel, AttendShape{6, 2, 64}})
    for (const int window : {0, 128, 1})
      check_fp8(
          {shape, window, {{17, 17}, {65, 65}, {150, 9}, {129, 16}, {500, 120}, {140, 1}, {66, 2}}, 41, kE4m3Pages},
          window != 1);
  check_fp8({kModel, 0, {{4099, 40}, {9001, 1}}, 42, kE4m3Pages}, true);
}

TEST_F(AttendFlash, in_fp8_of_large_scores) {
  for (const float by : {8.0f, 400.0f}) {
    AttendFixture f(kModel, by > 100 ? 128 : 0, {{700, 90}, {70, 3}}, 44, kE4m3Pages);
    for (float& x : f.q) x *= by;
    check_fp8(f, by < 100);
  }
}

TEST_F(AttendFlash, a_huge_sink_leaves_almost_nothing) {
  AttendFixture f(kModel, 0, {{100, 1}, {40, 20}}, 27);
  std::fill(f.sinks.begin(), f.sinks.end(), Bf16::from_float(60));
  check(f, true);
}

TEST_F(AttendFlash, refuses_shapes_and_pages_that_it_does_not_take) {
  const DecodePlan plan = plan_decode({1, 1, 128}, device());
  const auto of = [](AttentionArgs args, KvDtype type) {
    args.kv.type = type;
    return args;
  };
  const auto decode = [&](const AttentionArgs& args) { AttendDecode::launch(args, plan, on_); };
  const AttentionArgs good{.heads = 8, .kv_heads = 1, .decode_count = 1, .target = plan.target};
  EXPECT_THROW(decode(of(good, KvDtype::kF32)), Error);
  AttentionArgs bad = good;
  bad.heads = 9;
  EXPECT_THROW(decode(bad), Error);
  bad = good;
  bad.decode_count = 0;
  EXPECT_THROW(decode(bad), Error);
  EXPECT_THROW(AttendPrefill::launch(good, on_), Error);
  EXPECT_THROW(Sm90AttendPrefill::launch(of(good, KvDtype::kE4m3), on_), Error);
  AttentionArgs fp8 = good;
  fp8.fp8 = true;
  EXPECT_THROW(decode(fp8), Error);
  fp8.tile_count = 1;
  EXPECT_THROW(AttendPrefill::launch(fp8, on_), Error);
  EXPECT_THROW(Sm121AttendPrefill::launch(fp8, on_), Error);
  EXPECT_THROW(Sm90AttendPrefill::launch(good, on_), Error);
}

}  // namespace
}  // namespace nibble::backend::cuda
