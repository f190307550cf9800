// any_tap_f32, run lane by lane on the host.

#include "backend/cuda/emulation/device.h"

#include "backend/cuda/norm_rope/tap.cuh"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace nibble::backend::cuda {
namespace {

struct TapCase {
  int tokens, hidden, boundaries, column, terms;
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
  for (const TapCase& c : {TapCase{1, 2880, 3, 0, 1}, TapCase{3, 2880, 3, 2, 3}, TapCase{9, 192, 1, 0, 2},
                           TapCase{2, 4, 2, 1, 3}, TapCase{1, 1028, 4, 3, 2}}) {
    SCOPED_TRACE(testing::Message() << c.tokens << " x " << c.hidden << ", boundary " << c.column << ", " << c.terms
                                    << " terms");
    const auto count = static_cast<size_t>(c.tokens * c.hidden);
    std::vector<Rows> terms(3, Rows(count));
    for (Rows& term : terms)
      for (size_t i = 0; i < count; ++i) term.at()[i] = normal(random);
    const int pitch = c.boundaries * c.hidden;
    Rows out(static_cast<size_t>(c.tokens * pitch));
    constexpr float kUntouched = -7777;
    for (int i = 0; i < c.tokens * pitch; ++i) out.at()[i] = kUntouched;
    const Tap::Args args{.x = terms[0].at(),
                         .delta = c.terms > 1 ? terms[1].at() : nullptr,
                         .rest = c.terms > 2 ? terms[2].at() : nullptr,
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
        float want = terms[0].at()[from];
        for (int term = 1; term < c.terms; ++term) want += terms[static_cast<size_t>(term)].at()[from];
        ASSERT_EQ(out.at()[t * pitch + d], d / c.hidden == c.column ? want : kUntouched) << t << ' ' << d;
      }
  }
}

}  // namespace
}  // namespace nibble::backend::cuda
