#pragma once
// Decode attention that makes q, k and v of qkv's sums, against rope_sums and decode attention one after the other: the
// same bits. On a device and emulated (around_gemm_testing.h Memory). No CUDA.

#include "backend/cuda/norm_rope/around_gemm_testing.h"
#include "backend/cuda/attention/attend_testing.h"

#include <gtest/gtest.h>

#include <cstring>
#include <utility>
#include <vector>

namespace nibble::backend::cuda {

// Pages as the step before left them: with all bits set where its tokens' keys and values will be.
inline std::vector<uint8_t> pages_before(const AttendFixture& f, const std::vector<float>& whole) {
  std::vector<uint8_t> bytes = f.page_bytes(whole);
  f.forget_step(bytes);
  return bytes;
}

template <template <class> class Memory>
struct StepPages {
  explicit StepPages(const AttendFixture& f) : keys(pages_before(f, f.keys)), values(pages_before(f, f.values)) {}
  Memory<uint8_t> keys, values;
};

// Small: else one key would have all the weight.
inline TestSums small_sums(int splits, int tokens, int rows) {
  TestSums sums(splits, tokens, rows, SplitSums::Order::kTiles);
  for (int s = 0; s < splits; ++s)
    for (int t = 0; t < tokens; ++t)
      for (int r = 0; r < rows; ++r) sums.put(sums.place(s, t, r), 0.4f * sums.at(s, t, r));
  return sums;
}

// Where each token's key and value belong: page * kPageTokens + offset.
inline std::vector<int32_t> slots_of(const AttendFixture& f) {
  std::vector<int32_t> slots;
  for (size_t t = 0; t < f.positions.size(); ++t) {
    const int page = f.token_row[t] * f.pages_per_row + f.positions[t] / kPageTokens;
    slots.push_back(f.pages[static_cast<size_t>(page)] * kPageTokens + f.positions[t] % kPageTokens);
  }
  return slots;
}

// What a step's rope and attention read beside the sums, and where they write.
template <template <class> class Memory>
struct SumsStep {
  const AttendFixture& f;
  int tokens, rows;
  KvDtype type;
  TestSums sums;
  DecodePlan plan;
  DecodeScratch scratch;
  Memory<uint8_t> on_sums;
  Memory<Bf16> bias, sinks;
  Memory<float> cosine, sine, q, out, partials;
  Memory<int32_t> slots, row, positions, pages;
  Memory<int> finished;

  SumsStep(const AttendFixture& of, int splits, const AttendDevice& device)
      : f(of),
        tokens(static_cast<int>(f.positions.size())),
        rows((f.shape.heads + 2 * f.shape.kv_heads) * kHeadDim),
        type(f.held.type.dtype),
        sums(small_sums(splits, tokens, rows)),
        plan(plan_decode({tokens, f.shape.kv_heads, static_cast<int>(row_bytes(f.held.type, kHeadDim)), f.window},
                         device)),
        scratch(decode_scratch(plan.target, f.shape.kv_heads)),
        on_sums(sums.values),
        bias(gemm_bias(rows, 2)),
        sinks(f.sinks),
        cosine(test_floats(int64_t{tokens} * kHeadDim / 2, 3, 1)),
        sine(test_floats(int64_t{tokens} * kHeadDim / 2, 4, 1)),
        q(f.q.size()),
        out(f.q.size()),
        partials(static_cast<size_t>(scratch.floats)),
        slots(slots_of(f)),
        row(f.token_row),
        positions(f.positions),
        pages(f.pages),
        finished(std::vector<int>(static_cast<size_t>(scratch.counters), 0)) {}

  [[nodiscard]] RopeSumsArgs rope(int splits, const StepPages<Memory>& into) const {
    return {.sums = {on_sums.get(), splits, SplitSums::Order::kTiles},
            .bias = bias.get(),
            .q = q.get(),
            .cosine = cosine.get(),
            .sine = sine.get(),
            .kv_slots = slots.get(),
            .kv = {into.keys.get(), into.values.get(), type},
            .tokens = tokens,
            .heads = f.shape.heads,
            .kv_heads = f.shape.kv_heads};
  }
  [[nodiscard]] FlashArgs attend(const StepPages<Memory>& from) const {
    return {.q = q.get(),
            .out = out.get(),
            .sinks = sinks.get(),
            .token_row = row.get(),
            .positions = positions.get(),
            .pages = pages.get(),
            .keys = from.keys.get(),
            .values = from.values.get(),
            .pages_per_row = f.pages_per_row,
            .heads = f.shape.heads,
            .kv_heads = f.shape.kv_heads,
            .window = f.window,
            .decode_count = tokens,
            .target = plan.target,
            .partials = partials.get(),
            .finished = finished.get()};
  }
};

// run.turn(rope); run.decode(args, plan, type, what args.qkv_sums.sums hold).
template <template <class> class Memory, class Run>
void check_decode_of_sums(const AttendFixture& f, int splits, const AttendDevice& device, const Run& run) {
  const SumsStep<Memory> step(f, splits, device);
  SCOPED_TRACE(testing::Message() << f.shape.heads << " heads, " << f.shape.kv_heads << " kv heads, window " << f.window
                                  << ", " << step.tokens << " tokens, " << splits << " splits, type "
                                  << static_cast<int>(step.type));
  ASSERT_TRUE(lone_tokens(f.rows));
  const StepPages<Memory> turned(f), made(f);
  const RopeSumsArgs rope = step.rope(splits, turned);
  if (f.held.type.on.has(BackendKind::kCuda)) check_args(rope);
  run.turn(rope);
  run.decode(step.attend(turned), step.plan, step.type, {});
  const std::vector<float> want = step.out.host();

  const Memory<float> unused_q(f.q.size()), same(f.q.size());
  FlashArgs args = step.attend(made);
  args.q = nullptr;
  args.out = same.get();
  args.qkv_sums = step.rope(splits, made);
  args.qkv_sums.q = unused_q.get();
  run.decode(args, step.plan, step.type, step.sums.values);
  ASSERT_EQ(same.host(), want);
  ASSERT_TRUE(same_bits(made.keys.host(), turned.keys.host())) << "keys";
  ASSERT_TRUE(same_bits(made.values.host(), turned.values.host())) << "values";
  for (const GemmInput& form : input_forms(step.tokens, true)) {
    const std::vector<uint16_t> input = as_input(want, step.tokens, form);
    const Memory<uint16_t> rounded(input.size());
    args.rounded = form;
    args.rounded.at = rounded.get();
    run.decode(args, step.plan, step.type, step.sums.values);
    ASSERT_EQ(rounded.host(), input) << "type " << static_cast<int>(form.type);
  }
}

}  // namespace nibble::backend::cuda
