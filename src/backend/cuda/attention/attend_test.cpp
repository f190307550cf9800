// Attention over pages against double loops: window edges, sinks, scattered and released pages.

#include "backend/cuda/attention/attend_plan.h"
#include "backend/cuda/testing/attend.h"
#include "backend/cuda/testing/card.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

namespace nibble::backend::cuda {
namespace {

class AttendTest : public CudaTest {};

enum class Sinks { kNone, kUsual, kHuge };

const std::vector<AttendSequence> kSequences = {{1, 1},   {2, 1},   {31, 3},  {32, 1},  {33, 2},
                                                {63, 1},  {64, 7},  {65, 1},  {127, 1}, {128, 2},
                                                {129, 3}, {130, 1}, {191, 1}, {257, 4}, {1000, 2}};

std::vector<float> run(const AttendFixture& f, Sinks sinks, const Launch& on) {
  const DeviceArray<float> q(f.q), out(f.q.size());
  const DeviceArray<uint8_t> keys(f.page_bytes(f.keys)), values(f.page_bytes(f.values));
  const DeviceArray<Bf16> on_sinks(f.sinks);
  const DeviceArray<int32_t> row(f.token_row), positions(f.positions), pages(f.pages);
  Attend::launch({.q = q.get(),
                  .out = out.get(),
                  .sinks = sinks == Sinks::kNone ? nullptr : on_sinks.get(),
                  .token_row = row.get(),
                  .positions = positions.get(),
                  .pages = pages.get(),
                  .kv = {.keys = keys.get(), .values = values.get(), .type = f.held.type.dtype},
                  .pages_per_row = f.pages_per_row,
                  .heads = f.shape.heads,
                  .kv_heads = f.shape.kv_heads,
                  .window = f.window,
                  .head_dim = f.shape.head_dim,
                  .decode_count = static_cast<int>(f.positions.size())},
                 on);
  return out.host();
}

TEST_F(AttendTest, matches_double_at_window_edges_with_and_without_sinks) {
  for (const AttendShape shape : {AttendShape{64, 8, 64}, {8, 1, 32}, {4, 2, 128}, {6, 3, 8}}) {
    for (const int window : {0, 128, 1}) {
      for (const Sinks sinks : {Sinks::kNone, Sinks::kUsual, Sinks::kHuge}) {
        for (const TestPages* pages : kCardPages) {
          AttendFixture f(shape, window, kSequences, 21, *pages);
          if (sinks == Sinks::kHuge) std::fill(f.sinks.begin(), f.sinks.end(), Bf16::from_float(60));
          const std::vector<float> got = run(f, sinks, on_);
          ASSERT_EQ(got, run(f, sinks, on_)) << "not repeatable";
          const auto dim = static_cast<size_t>(shape.head_dim), heads = static_cast<size_t>(shape.heads);
          for (size_t t = 0; t < f.positions.size(); ++t) {
            for (const int head : {0, static_cast<int>(t) % shape.heads, shape.heads - 1}) {
              const std::vector<double> want = f.want(t, head, sinks != Sinks::kNone).out;
              for (size_t d = 0; d < dim; ++d)
                ASSERT_NEAR(got[(t * heads + static_cast<size_t>(head)) * dim + d], want[d], 3e-6)
                    << "position " << f.positions[t] << " window " << window << " head " << head << " of "
                    << shape.heads << " dim " << d;
            }
          }
        }
      }
    }
  }
}

TEST_F(AttendTest, refuses_a_head_dim_that_its_loads_do_not_divide) {
  EXPECT_THROW(Attend::launch({.kv = {}, .heads = 1, .kv_heads = 1, .head_dim = 12, .decode_count = 1}, on_), Error);
}

}  // namespace
}  // namespace nibble::backend::cuda
