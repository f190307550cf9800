#pragma once
// What a policy (mx_mma.h) must do, on whatever runs it: cases, and exact results. No CUDA.

#include "backend/cuda/testing/mx_probe.h"
#include "base/random.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace nibble::backend::cuda {

// The allowed share of Σ|ab| and of d: a few roundings of f32 sums, whatever their order.
inline constexpr double kMxError = 0x1p-21;

struct MxCase {
  const MxProduct& what;
  MxFragments fragments{};
  explicit MxCase(const MxProduct& product) : what(product) { all_scales(127); }

  void all_scales(uint32_t code) {
    for (MxOperands& own : fragments.lane) own.scale_a = own.scale_b = 0x01010101u * code;
  }
  void put_a(int row, int k, uint8_t code) {
    const layout::MxPlace at = layout::mx_a_place(what.shape, {row, k});
    mx_put_code(what, what.a, fragments.lane[at.lane].a[at.reg], at, code);
  }
  void put_b(int k, int col, uint8_t code) {
    const layout::MxPlace at = layout::mx_b_place(what.shape, {col, k});
    mx_put_code(what, what.b, fragments.lane[at.lane].b[at.reg], at, code);
  }
  // Scales a row in every block of k. Bytes that nobody may read are others.
  void scale_row(int row, uint8_t code) {
    uint32_t& word = fragments.lane[layout::scale_lane_a(row)].scale_a;
    for (int block = 0; block < what.shape.k / kMxBlock; ++block) put_byte(word, what.byte_a + block, code);
  }
  void scale_col(int col, uint8_t code) {
    uint32_t& word = fragments.lane[layout::scale_lane_b(col)].scale_b;
    for (int block = 0; block < what.shape.k / kMxBlock; ++block) put_byte(word, what.byte_b + block, code);
  }
  static void put_byte(uint32_t& word, int byte, uint32_t code) {
    word = (word & ~(0xffu << 8 * byte)) | code << 8 * byte;
  }
};

[[nodiscard]] inline int mx_codes(MxFormat format) { return 1 << mx_element_bits(format); }
[[nodiscard]] inline bool mx_finite(MxFormat format, int code) {
  return std::isfinite(mx_decode_element(format, static_cast<uint8_t>(code)));
}
[[nodiscard]] inline uint8_t mx_finite_code(MxFormat format, uint32_t draw) {
  auto code = static_cast<int>(draw % static_cast<uint32_t>(mx_codes(format)));
  while (!mx_finite(format, code)) code /= 2;
  return static_cast<uint8_t>(code);
}
[[nodiscard]] inline uint8_t mx_one(MxFormat format) { return mx_encode_element(format, 1.0f); }

inline MxCase random_mx(const MxProduct& what, uint64_t seed, uint32_t first_scale, uint32_t scales) {
  MxCase c(what);
  uint64_t n = 0;
  const auto draw = [&] { return philox(seed, n++)[0]; };
  for (int k = 0; k < what.shape.k; ++k) {
    for (int row = 0; row < 16; ++row) c.put_a(row, k, mx_finite_code(what.a, draw()));
    for (int col = 0; col < 8; ++col) c.put_b(k, col, mx_finite_code(what.b, draw()));
  }
  // All bytes of all lanes: the wrong one would be seen.
  for (MxOperands& own : c.fragments.lane)
    for (int byte = 0; byte < 4; ++byte) {
      MxCase::put_byte(own.scale_a, byte, first_scale + draw() % scales);
      MxCase::put_byte(own.scale_b, byte, first_scale + draw() % scales);
    }
  return c;
}

// Random codes and scales; every element alone against random ones; every code of A against every code of B; scales up
// to both ends and NaN.
inline std::vector<MxCase> mx_cases(const MxProduct& what) {
  std::vector<MxCase> cases;
  for (uint64_t seed = 0; seed < 40; ++seed) cases.push_back(random_mx(what, 100 + seed, 115, 24));
  for (int k = 0; k < what.shape.k; ++k)
    for (int line = 0; line < 16; ++line) {
      MxCase a = random_mx(what, 200, 121, 12), b = a;
      for (MxOperands& own : a.fragments.lane) own.a[0] = own.a[1] = own.a[2] = own.a[3] = 0;
      a.put_a(line, k, mx_one(what.a));
      cases.push_back(a);
      if (line >= 8) continue;
      for (MxOperands& own : b.fragments.lane) own.b[0] = own.b[1] = 0;
      b.put_b(k, line, mx_one(what.b));
      cases.push_back(b);
    }
  for (int from_a = 0; from_a < mx_codes(what.a); from_a += 16)
    for (int from_b = 0; from_b < mx_codes(what.b); from_b += 8) {
      MxCase& c = cases.emplace_back(what);
      const int k = (from_a / 16 * 5 + from_b / 8 * 3) % what.shape.k;
      for (int row = 0; row < 16; ++row) c.put_a(row, k, static_cast<uint8_t>(from_a + row));
      for (int col = 0; col < 8; ++col) c.put_b(k, col, static_cast<uint8_t>(from_b + col));
    }
  constexpr uint8_t kScales[] = {0, 1, 2, 63, 100, 120, 126, 127, 128, 129, 150, 191, 205, 252, 253, 254, 255};
  for (const uint8_t scale : kScales)
    for (int turn = 0; turn < 3; ++turn) {
      MxCase c = random_mx(what, 300 + scale, 127, 1);
      for (int row = 0; row < 16; ++row) c.scale_row(row, turn == 1 ? kScales[row] : scale);
      for (int col = 0; col < 8; ++col) c.scale_col(col, turn == 0 ? kScales[2 * col + 1] : scale);
      cases.push_back(c);
    }
  return cases;
}

// d of each fragments before: random, 0 for every other.
inline std::vector<float> mx_before(size_t fragments) {
  std::vector<float> d(fragments * 128);
  for (size_t i = 0; i < d.size(); ++i) d[i] = i / 128 % 2 == 0 ? 0 : 20 * uniform_float(philox(77, i)[0]) - 10;
  return d;
}

template <class Run>
void check_mx_product(int product, const Run& run) {
  const MxProduct& what = kMxProducts[product];
  SCOPED_TRACE(testing::Message() << "product " << product << ", k " << what.shape.k);
  const std::vector<MxCase> cases = mx_cases(what);
  std::vector<MxFragments> fragments;
  for (const MxCase& c : cases) fragments.push_back(c.fragments);
  const std::vector<float> before = mx_before(cases.size());
  const std::vector<float> got = run(product, fragments, before);
  ASSERT_EQ(got.size(), before.size());
  for (size_t n = 0; n < cases.size(); ++n)
    for (int lane = 0; lane < layout::kWarpLanes; ++lane)
      for (int i = 0; i < 4; ++i) {
        const size_t at = n * 128 + static_cast<size_t>(lane * 4 + i);
        const MxSum sum = mx_sum(what, fragments[n], lane, i);
        const double want = sum.value + before[at];
        if (std::isnan(want)) {
          ASSERT_TRUE(std::isnan(got[at])) << "case " << n << ", lane " << lane << ", " << i;
          continue;
        }
        constexpr double kMost = std::numeric_limits<float>::max();
        if (sum.size + std::abs(before[at]) > kMost) {  // parts of it are infinite in f32, of either sign
          if (std::abs(want) > kMost)
            ASSERT_FALSE(std::isfinite(got[at])) << "case " << n << ", lane " << lane << ", " << i;
          continue;
        }
        ASSERT_LE(std::abs(got[at] - want), kMxError * (sum.size + std::abs(before[at])) + 0x1p-148)
            << "case " << n << ", lane " << lane << ", " << i << ": want " << want << ", got " << got[at];
      }
}

// Every upper half of a float, with lower halves beside each place where rounding turns.
inline std::vector<float> mx_pair_values() {
  std::vector<float> values;
  for (uint32_t upper = 0; upper < 0x10000u; ++upper)
    for (const uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      values.push_back(std::bit_cast<float>(upper << 16 | lower));
  return values;
}

template <class Run>
void check_mx_pairs(int format, const Run& run) {
  const MxFormat of = kMxPairFormats[format];
  const std::vector<float> values = mx_pair_values();
  const std::vector<uint32_t> got = run(format, values);
  const int high = of == MxFormat::kMxfp4 ? 4 : 8;
  for (size_t i = 0; i < got.size(); ++i) {
    const uint32_t want = mx_encode_element(of, values[2 * i]) | uint32_t{mx_encode_element(of, values[2 * i + 1])}
                                                                     << high;
    ASSERT_EQ(got[i], want) << "format " << format << ": " << values[2 * i] << ", " << values[2 * i + 1];
  }
}

}  // namespace nibble::backend::cuda
