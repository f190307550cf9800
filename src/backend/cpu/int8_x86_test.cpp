// x86's forms of int8 products: AVX2's, AVX-VNNI's, AVX-512's, AMX's, and AMX's kernel over tiles that do what Intel's
// manual says.
#include "backend/cpu/amx_bf16.h"
#include "backend/cpu/amx.h"
#include "backend/cpu/testing/int8.h"
#include "backend/cpu/testing/kernels.h"
#include "base/dtype.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace nibble::backend::cpu {
namespace {

// Intel SDM, TILELOADD, TILESTORED, TILEZERO and TDPBF16PS, of the shapes that the kernel configures.
class EmulatedTiles {
 public:
  EmulatedTiles() { EXPECT_EQ(kShapes.palette, 1); }

  template <int kTile>
  void load(const void* from, int64_t stride) {
    tiles_[kTile] = {};
    for (int64_t r = 0; r < kShapes.rows[kTile]; ++r) {
      std::memcpy(tiles_[kTile][static_cast<size_t>(r)].data(), static_cast<const std::byte*>(from) + r * stride,
                  kShapes.row_bytes[kTile]);
    }
  }
  template <int kTile>
  void store(void* to, int64_t stride) {
    for (int64_t r = 0; r < kShapes.rows[kTile]; ++r) {
      std::memcpy(static_cast<std::byte*>(to) + r * stride, tiles_[kTile][static_cast<size_t>(r)].data(),
                  kShapes.row_bytes[kTile]);
    }
  }
  template <int kTile>
  void zero() {
    tiles_[kTile] = {};
  }
  template <int kSums, int kX, int kW>
  void multiply_bf16() {
    // What the manual raises #UD for.
    static_assert(kSums != kX && kSums != kW && kX != kW);
    static_assert(kShapes.rows[kSums] == kShapes.rows[kX] && kShapes.row_bytes[kSums] == kShapes.row_bytes[kW] &&
                  kShapes.row_bytes[kX] == 4 * kShapes.rows[kW]);
    static_assert(kShapes.rows[kSums] <= 16 && kShapes.rows[kW] <= 16 && kShapes.row_bytes[kSums] <= 64);
    for (size_t m = 0; m < kShapes.rows[kSums]; ++m) {
      for (size_t n = 0; n < kShapes.row_bytes[kSums] / 4u; ++n) {
        std::array<float, 2> sums{};  // of even and odd values
        for (size_t k = 0; k < kShapes.rows[kW]; ++k)
          for (size_t i = 0; i < 2; ++i)
            sums[i] += bf16(tiles_[kX][m].data() + 4 * k + 2 * i) * bf16(tiles_[kW][k].data() + 4 * n + 2 * i);
        float sum = 0;
        std::memcpy(&sum, tiles_[kSums][m].data() + 4 * n, 4);
        sum += sums[0] + sums[1];
        std::memcpy(tiles_[kSums][m].data() + 4 * n, &sum, 4);
      }
    }
  }

 private:
  // Subnormals count as zero.
  static float bf16(const int8_t* bytes) {
    Bf16 code;
    std::memcpy(&code.bits, bytes, sizeof code.bits);
    const float value = code.to_float();
    return std::fpclassify(value) == FP_SUBNORMAL ? 0.0f : value;
  }

  static constexpr const TileConfig& kShapes = kTileShapes;
  std::array<std::array<std::array<int8_t, 64>, 16>, 8> tiles_{};
};

// With AVX-512 but without its VBMI and VNNI, what AVX2 has.
const Int8Kernels* beyond_avx2(CpuIsa isa) {
  const Int8Kernels* const found = int8_of(isa);
  return found == int8_of(CpuIsa::kAvx2) ? nullptr : found;
}

INSTANTIATE_TEST_SUITE_P(
    Each, Int8Products,
    testing::Values(Int8Form{"avx2", "AVX2", [] { return int8_of(CpuIsa::kAvx2); }},
                    Int8Form{"avxvnni", "AVX-VNNI", [] { return int8_of(CpuIsa::kAvxVnni); }},
                    Int8Form{"avx512", "AVX-512 with VBMI and VNNI", [] { return beyond_avx2(CpuIsa::kAvx512); }},
                    Int8Form{"emulated_amx", "AVX-512 with VBMI and VNNI",
                             []() -> const Int8Kernels* {
                               return beyond_avx2(CpuIsa::kAvx512) == nullptr ? nullptr : &amx_kernels<EmulatedTiles>();
                             }},
                    Int8Form{"amx", "AMX for bf16", [] { return int8_of(CpuIsa::kAmx); }}),
    form_name);

// Attention's, of what bf16 holds exactly: all that is left is the order of sums.
TEST(paired_products, match_double_in_tiles_and_emulated) {
  std::vector<const PairedProducts*> forms;
  for (const IsaKernels& each : kernels_here()) {
    if (each.isa == CpuIsa::kAmx) forms.push_back(each.kernels.int8->paired);
    if (each.isa == CpuIsa::kAvx512 && each.kernels.int8 != nullptr)
      forms.push_back(amx_kernels<EmulatedTiles>().paired);
  }
  if (forms.empty()) GTEST_SKIP() << "this CPU has no AVX-512 with VBMI and VNNI";
  constexpr size_t kWide = kPageTokens;
  const auto exact = [](size_t n, uint64_t seed) {
    std::vector<float> values = random_floats(n, seed);
    for (float& value : values) value = Bf16::from_float(value).to_float();
    return values;
  };
  std::array<std::vector<float>, 2> plain{exact(kWide * kWide, 1), exact(kWide * kWide, 2)};
  for (const PairedProducts* form : forms) {
    std::array<Buffer, 2> pairs;
    for (size_t p = 0; p < 2; ++p) {
      std::vector<Bf16> page;
      for (const float value : plain[p]) page.push_back(Bf16::from_float(value));
      for (const size_t row : {size_t{0}, kWide - 1})  // none of these is read
        std::fill_n(page.begin() + static_cast<int64_t>(row * kWide), kWide, Bf16::from_float(NAN));
      pairs[p] = Buffer(int64_t{kPageTokens} * kPageTokens * 2);
      form->pair_rows({.page = page.data(), .from = 1, .to = kPageTokens - 1, .out = pairs[p].as<std::byte>()});
    }
    const std::array<const void*, 2> pages{pairs[0].as<std::byte>(), pairs[1].as<std::byte>()};
    const auto at = [&](size_t p, size_t k, size_t n) {
      return k == 0 || k == kWide - 1 ? 0.0 : double{plain[p][k * kWide + n]};
    };
    for (const int rows : {1, 15, 16}) {
      const std::vector<float> a = exact(16 * 2 * kWide, 3);
      std::vector<float> scores(16 * 2 * kWide), values(16 * kWide, 7.0f);
      form->scores({.a = a.data(),
                    .a_stride = 2 * kPageTokens,
                    .rows = rows,
                    .pages = pages,
                    .c = scores.data(),
                    .c_stride = 2 * kPageTokens});
      form->values({.a = a.data(),
                    .a_stride = 2 * kPageTokens,
                    .rows = rows,
                    .pages = pages,
                    .c = values.data(),
                    .c_stride = kPageTokens});
      for (size_t r = 0; r < 16; ++r) {
        for (size_t n = 0; n < kWide; ++n) {
          double both = 0;
          for (size_t p = 0; p < 2; ++p) {
            double score = 0;
            for (size_t k = 0; k < kWide; ++k) {
              score += a[r * 2 * kWide + k] * at(p, k, n);
              both += a[r * 2 * kWide + p * kWide + k] * at(p, k, n);
            }
            if (r < static_cast<size_t>(rows)) ASSERT_NEAR(scores[(r * 2 + p) * kWide + n], score, 1e-4);
          }
          ASSERT_NEAR(values[r * kWide + n], r < static_cast<size_t>(rows) ? both : 7.0, 1e-4) << r << " " << n;
        }
      }
    }
  }
}

}  // namespace
}  // namespace nibble::backend::cpu
