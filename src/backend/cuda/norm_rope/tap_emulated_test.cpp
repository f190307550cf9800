// any_tap_f32, run lane by lane on the host.

#include "backend/cuda/emulation/device.h"

#include "backend/cuda/norm_rope/tap.cuh"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace nibble::backend::cuda {
namespace {

struct TapCase {
  int tokens, hidden, boundaries, column, splits;
};

// float4 wants 16 bytes.
struct Rows {
  explicit Rows(size_t count) : quads((count + 3) / 4) {}
  [[nodiscard]] float* at() { return &quads.data()->x; }
  std::vector<float4> quads;
};

TEST(tap_emulated, writes_the_sum_of_its_terms_to_its_boundary_alone) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 3);
  for (const TapCase& c : {TapCase{1, 2880, 3, 0, 0}, TapCase{3, 2880, 3, 2, 2}, TapCase{9, 192, 1, 0, 1},
                           TapCase{2, 4, 2, 1, 2}, TapCase{1, 1028, 4, 3, 1}}) {
    SCOPED_TRACE(testing::Message() << c.tokens << " x " << c.hidden << ", boundary " << c.column << ", " << c.splits
                                    << " splits");
    const auto count = static_cast<size_t>(c.tokens * c.hidden);
    Rows x(count), sums(2 * count);
    for (size_t i = 0; i < count; ++i) x.at()[i] = normal(random);
    for (size_t i = 0; i < 2 * count; ++i) sums.at()[i] = normal(random);
    const int pitch = c.boundaries * c.hidden;
    Rows out(static_cast<size_t>(c.tokens * pitch));
    constexpr float kUntouched = -7777;
    for (int i = 0; i < c.tokens * pitch; ++i) out.at()[i] = kUntouched;
    const Tap::Args args{.x = x.at(),
                         .sums = {sums.at(), c.splits},
                         .out = out.at() + c.column * c.hidden,
                         .pitch = pitch,
                         .tokens = c.tokens,
                         .hidden = c.hidden};
    check_args(args);
    const emulation::Launch launch{.grid = c.tokens, .threads = kTapThreads, .predecessor = {}};
    ASSERT_EQ(emulation::run(launch, [&] { any_tap_f32(args); }), "");
    for (int t = 0; t < c.tokens; ++t)
      for (int d = 0; d < pitch; ++d) {
        const auto from = static_cast<size_t>(t * c.hidden + d % c.hidden);
        float want = x.at()[from];
        for (int split = 0; split < c.splits; ++split) want += sums.at()[static_cast<size_t>(split) * count + from];
        ASSERT_EQ(out.at()[t * pitch + d], d / c.hidden == c.column ? want : kUntouched) << t << ' ' << d;
      }
  }
}

}  // namespace
}  // namespace nibble::backend::cuda
