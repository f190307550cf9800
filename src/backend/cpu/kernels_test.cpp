#include "backend/cpu/kernels.h"

#include "base/buffer.h"
#include "base/error.h"
#include "base/mx.h"
#include "base/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

namespace nibble::backend::cpu {
namespace {

constexpr std::array kFormats = {WeightFormat::kBf16,  WeightFormat::kF16,   WeightFormat::kF32,
                                 WeightFormat::kMxfp4, WeightFormat::kMxfp8, WeightFormat::kGgmlMxfp4,
                                 WeightFormat::kGgmlQ8};

// Every table that runs on this CPU; what is missing is printed.
std::vector<Kernels> tables() {
  std::vector<Kernels> all;
  for (const PortableKernels& each : portable_kernels()) {
    if (!each.runs_here) {
      std::printf("not on this CPU: %s\n", std::string(each.kernels.name).c_str());
      continue;
    }
    all.push_back(each.kernels);
    if (each.isa == CpuIsa::kAvx512) {
      const Kernels more = with_avx512(each.kernels);
      if (more.name == each.kernels.name) std::printf("not on this CPU: AVX-512 VBMI and VNNI\n");
      all.push_back(more);
    }
  }
  return all;
}

std::vector<float> random_floats(size_t n, uint64_t seed) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) {
    const Philox4 r = philox(seed, i);
    values[i] = normal_float(r[0], r[1]);
  }
  return values;
}

float f16_at(const uint8_t* p) {
  uint16_t bits = 0;
  std::memcpy(&bits, p, sizeof bits);
  return F16{bits}.to_float();
}

// Random rows in a format, and the values they stand for by the formats' definitions.
struct Sample {
  Sample(WeightFormat format_in, int64_t cols_in, int rows_in, uint64_t seed)
      : format(format_in), cols(cols_in), rows(rows_in), plain(random_floats(static_cast<size_t>(cols * rows), seed)) {
    const int64_t bytes = row_bytes(format, cols) * rows, blocks = cols / kMxBlock * rows;
    values.resize(static_cast<size_t>(bytes));
    if (has_scale_array(format)) scales.resize(static_cast<size_t>(blocks));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint8_t>(philox(seed + 1, i)[0]);
    const auto e8m0 = [&](int64_t b) {
      return static_cast<uint8_t>(118 + philox(seed + 2, static_cast<uint64_t>(b))[0] % 9);
    };
    for (int64_t b = 0; in_blocks(format) && b < blocks; ++b) {
      if (has_scale_array(format)) scales[static_cast<size_t>(b)] = e8m0(b);
      if (format == WeightFormat::kGgmlMxfp4) values[static_cast<size_t>(b * 17)] = e8m0(b);
      if (format == WeightFormat::kGgmlQ8) {
        const F16 scale = F16::from_float(0.01f * (1 + std::abs(plain[static_cast<size_t>(b)])));
        std::memcpy(values.data() + b * 34, &scale.bits, 2);
      }
    }
    for (size_t i = 0; i < plain.size(); ++i) set(i);
  }

  void set(size_t i) {
    const auto block = static_cast<int64_t>(i) / kMxBlock, at = static_cast<int64_t>(i) % kMxBlock;
    uint8_t* p = values.data();
    switch (format) {
      case WeightFormat::kBf16: {
        const Bf16 v = Bf16::from_float(plain[i]);
        std::memcpy(p + 2 * i, &v, 2);
        plain[i] = v.to_float();
        break;
      }
      case WeightFormat::kF16: {
        const F16 v = F16::from_float(plain[i]);
        std::memcpy(p + 2 * i, &v.bits, 2);
        plain[i] = v.to_float();
        break;
      }
      case WeightFormat::kF32: std::memcpy(p + 4 * i, &plain[i], 4); break;
      case WeightFormat::kMxfp4:
        plain[i] = mx_decode(MxFormat::kMxfp4, mx_element_code(MxFormat::kMxfp4, p + block * 16, static_cast<int>(at)),
                             E8m0{scales[static_cast<size_t>(block)]});
        break;
      case WeightFormat::kMxfp8:
        if ((p[i] & 0x7f) == 0x7f) p[i] = 0x12;  // NaN has its own test
        plain[i] = mx_decode(MxFormat::kMxfp8E4m3, p[i], E8m0{scales[static_cast<size_t>(block)]});
        break;
      case WeightFormat::kGgmlMxfp4: {
        const uint8_t byte = p[block * 17 + 1 + at % 16];
        plain[i] =
            mx_decode(MxFormat::kMxfp4, static_cast<uint8_t>(at < 16 ? byte & 15 : byte >> 4), E8m0{p[block * 17]});
        break;
      }
      case WeightFormat::kGgmlQ8:
        plain[i] = f16_at(p + block * 34) * static_cast<int8_t>(p[block * 34 + 2 + at]);
        break;
    }
  }

  [[nodiscard]] WeightRows view() const {
    return {.format = format,
            .values = values.data(),
            .scales = scales.empty() ? nullptr : scales.data(),
            .cols = cols,
            .rows = rows};
  }

  WeightFormat format;
  int64_t cols;
  int rows;
  std::vector<float> plain;  // [rows, cols]
  std::vector<uint8_t> values, scales;
};

std::vector<int64_t> columns(WeightFormat format) {
  if (in_blocks(format)) return {32, 64, 96, 160, 2880, 4096};
  return {1, 7, 16, 31, 33, 48, 95, 2880};
}

// Memory of its own, so that a read past the end is seen, starting with NaN where a test says so.
struct Scratch {
  explicit Scratch(int64_t cols)
      : buffer(static_cast<size_t>(scratch_floats(cols)), std::numeric_limits<float>::quiet_NaN()) {}
  float* aligned() { return buffer.data(); }
  AlignedVector<float> buffer;
};

std::vector<float> multiply(const Kernels& kernels, const Sample& w, const std::vector<std::vector<float>>& x) {
  std::vector<std::vector<float>> arranged = x;
  std::vector<const float*> rows;
  for (size_t t = 0; t < x.size(); ++t) {
    if (kernels.arranges(w.format)) kernels.arrange(w.format, x[t], arranged[t].data());
    rows.push_back(arranged[t].data());
  }
  Scratch scratch(w.cols);
  std::vector<float> out(x.size() * kTileRows, -777.0f);
  kernels.multiply({.w = w.view(), .x = rows, .out = out.data(), .scratch = scratch.aligned()});
  return out;
}

std::vector<std::vector<float>> inputs(int64_t cols, int tokens) {
  std::vector<std::vector<float>> x;
  for (int t = 0; t < tokens; ++t)
    x.push_back(random_floats(static_cast<size_t>(cols), 100 + static_cast<uint64_t>(t)));
  return x;
}

TEST(cpu_kernels, decode_gives_every_formats_values) {
  for (const Kernels& kernels : tables()) {
    for (const WeightFormat format : kFormats) {
      for (const int64_t cols : columns(format)) {
        const Sample w(format, cols, 1, 5);
        std::vector<float> out(static_cast<size_t>(cols));
        kernels.decode(w.view(), out.data());
        EXPECT_EQ(out, w.plain) << kernels.name << " " << name_of(format) << " " << cols;
      }
    }
  }
}

TEST(cpu_kernels, products_match_double_and_ignore_their_neighbours) {
  for (const Kernels& kernels : tables()) {
    for (const WeightFormat format : kFormats) {
      for (const int64_t cols : columns(format)) {
        const int rows = cols == 2880 ? 15 : 6;
        const Sample w(format, cols, rows, 9);
        const auto x = inputs(cols, 17);
        std::vector<std::vector<float>> alone;
        for (const auto& each : x) alone.push_back(multiply(kernels, w, {each}));
        for (const int tokens : {1, 2, 3, 4, 5, 6, 7, 8, 17}) {
          const auto out = multiply(kernels, w, {x.begin(), x.begin() + tokens});
          for (int t = 0; t < tokens; ++t) {
            for (int r = 0; r < kTileRows; ++r) {
              const float got = out[static_cast<size_t>(t * kTileRows + r)];
              if (r >= rows) {
                ASSERT_EQ(got, -777.0f) << "wrote past the rows";
                continue;
              }
              double want = 0, bound = 0;
              for (int64_t c = 0; c < cols; ++c) {
                const double p = double{w.plain[static_cast<size_t>(r * cols + c)]} *
                                 x[static_cast<size_t>(t)][static_cast<size_t>(c)];
                want += p;
                bound += std::abs(p);
              }
              ASSERT_NEAR(got, want, 1e-6 * bound)
                  << kernels.name << " " << name_of(format) << " " << cols << " t" << t;
              ASSERT_EQ(got, alone[static_cast<size_t>(t)][static_cast<size_t>(r)])
                  << kernels.name << " " << name_of(format) << " " << cols << ": " << tokens << " tokens, token " << t;
            }
          }
        }
      }
    }
  }
}

TEST(cpu_kernels, extreme_scales_and_codes_that_are_nan_keep_their_values) {
  for (const Kernels& kernels : tables()) {
    for (const WeightFormat format : {WeightFormat::kMxfp4, WeightFormat::kMxfp8, WeightFormat::kGgmlMxfp4}) {
      for (const int scale : {0, 1, 126, 127, 240, 255}) {
        Sample w(format, 32, 1, 3);
        std::fill(w.scales.begin(), w.scales.end(), static_cast<uint8_t>(scale));
        if (format == WeightFormat::kGgmlMxfp4) w.values[0] = static_cast<uint8_t>(scale);
        for (size_t i = 0; i < 32; ++i) w.set(i);
        std::vector<float> x(32, 0.0f);
        x[3] = 0.5f;
        const float want = w.plain[3] * 0.5f, got = multiply(kernels, w, {x})[0];
        if (scale == 255) {
          EXPECT_TRUE(std::isnan(got)) << kernels.name << " " << name_of(format);
        } else {
          EXPECT_EQ(got, want) << kernels.name << " " << name_of(format) << " " << scale;
        }
      }
    }
    Sample w(WeightFormat::kMxfp8, 32, 1, 3);
    w.values[30] = 0xff;
    EXPECT_TRUE(std::isnan(multiply(kernels, w, inputs(32, 1))[0])) << kernels.name;
    EXPECT_TRUE(std::isnan(multiply(kernels, w, inputs(32, 9))[8 * kTileRows])) << kernels.name;
  }
}

// What int8 activations mean: round(x / scale) to nearest, scale = max|x| / 127 per block.
std::vector<double> rounded(const std::vector<float>& x) {
  std::vector<double> out(x.size());
  for (size_t b = 0; b < x.size(); b += kMxBlock) {
    float most = 0;
    for (size_t i = b; i < b + kMxBlock; ++i) most = std::max(most, std::abs(x[i]));
    const float scale = most / 127.0f, inverse = most > 0 ? 127.0f / most : 0.0f;
    for (size_t i = b; i < b + kMxBlock; ++i) out[i] = double{std::nearbyint(x[i] * inverse)} * scale;
  }
  return out;
}

const Int8Kernels* int8_kernels() {
  for (const Kernels& kernels : tables()) {
    if (kernels.int8 != nullptr) return kernels.int8;
  }
  return nullptr;
}

std::vector<float> multiply_int8(const Int8Kernels& kernels, const Sample& w, const std::vector<std::vector<float>>& x,
                                 bool tiles) {
  std::vector<AlignedVector<std::byte>> prepared;
  std::vector<const std::byte*> pointers;
  for (size_t t = 0; t < x.size(); t += tiles ? kLaneTokens : 1) {
    prepared.emplace_back(static_cast<size_t>(tiles ? kernels.tile_size(w.cols) : kernels.row_size(w.cols)),
                          std::byte{0xff});
    if (tiles) {
      std::vector<const float*> rows;
      for (size_t i = t; i < std::min(x.size(), t + kLaneTokens); ++i) rows.push_back(x[i].data());
      kernels.prepare_tile(rows, w.cols, prepared.back().data());
    } else {
      kernels.prepare_row(w.format, x[t], prepared.back().data());
    }
    pointers.push_back(prepared.back().data());
  }
  Scratch scratch(w.cols);
  std::vector<float> out(x.size() * kTileRows, -777.0f);
  MultiplyInt8Args args{.w = w.view(),
                        .x = pointers,
                        .tokens = static_cast<int>(x.size()),
                        .out = out.data(),
                        .scratch = scratch.aligned()};
  tiles ? kernels.multiply_tiles(args) : kernels.multiply_rows(args);
  return out;
}

TEST(cpu_kernels, int8_products_are_those_of_the_rounded_activations) {
  const Int8Kernels* kernels = int8_kernels();
  if (kernels == nullptr) GTEST_SKIP() << "this CPU has no AVX-512 VNNI";
  for (const WeightFormat format : kFormats) {
    if (!int8_serves(format)) continue;
    for (const int64_t cols : {32, 64, 96, 160, 2880, 4096}) {
      const int rows = cols == 2880 ? 15 : 6;
      const Sample w(format, cols, rows, 9);
      for (const int tokens : {1, 2, 3, 4, 5, 7, 9, 16, 17, 33, 64}) {
        const auto x = inputs(cols, tokens);
        for (const bool tiles : {false, true}) {
          const auto out = multiply_int8(*kernels, w, x, tiles);
          for (int t = 0; t < tokens; ++t) {
            const std::vector<double> q = rounded(x[static_cast<size_t>(t)]);
            for (int r = 0; r < kTileRows; ++r) {
              const float got = out[static_cast<size_t>(t * kTileRows + r)];
              if (r >= rows) {
                ASSERT_EQ(got, -777.0f) << "wrote past the rows";
                continue;
              }
              double want = 0, bound = 0;
              for (int64_t c = 0; c < cols; ++c) {
                const double p = w.plain[static_cast<size_t>(r * cols + c)] * q[static_cast<size_t>(c)];
                want += p;
                bound += std::abs(p);
              }
              ASSERT_NEAR(got, want, 1e-6 * bound + 1e-30)
                  << name_of(format) << " " << cols << (tiles ? " tiles" : " rows") << " token " << t << "/" << tokens;
            }
          }
        }
      }
    }
  }
}

TEST(cpu_kernels, int8_activations_that_are_not_finite_show) {
  const Int8Kernels* kernels = int8_kernels();
  if (kernels == nullptr) GTEST_SKIP() << "this CPU has no AVX-512 VNNI";
  for (const WeightFormat format : {WeightFormat::kMxfp4, WeightFormat::kGgmlMxfp4, WeightFormat::kGgmlQ8}) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      for (const bool tiles : {false, true}) {
        for (const int tokens : {3, 8}) {
          auto x = inputs(96, tokens);
          x[1][70] = bad;
          const auto out = multiply_int8(*kernels, Sample(format, 96, 2, 1), x, tiles);
          EXPECT_TRUE(std::isfinite(out[0])) << name_of(format);
          EXPECT_FALSE(std::isfinite(out[kTileRows])) << name_of(format) << " " << bad << " " << tiles;
        }
      }
    }
    Sample nan_scale(format, 96, 1, 1);
    if (format == WeightFormat::kMxfp4) nan_scale.scales[1] = 255;
    if (format == WeightFormat::kGgmlMxfp4) nan_scale.values[17] = 255;
    if (format == WeightFormat::kGgmlQ8) nan_scale.values[34] = nan_scale.values[35] = 0x7f;
    for (const bool tiles : {false, true}) {
      for (const int tokens : {1, 8}) {
        EXPECT_TRUE(std::isnan(multiply_int8(*kernels, nan_scale, inputs(96, tokens), tiles)[0]));
      }
    }
  }
}

TEST(cpu_kernels, accumulate_adds_every_product_once) {
  for (const Kernels& kernels : tables()) {
    for (const int64_t width : {1, 8, 16, 24, 32, 64, 80}) {
      for (const int rows : {1, 3, 4, 7, 8, 13}) {
        const int depth = 11, from = 2, to = 9;
        const auto a = random_floats(static_cast<size_t>(rows * depth), 1),
                   b = random_floats(static_cast<size_t>(width * depth), 2);
        const auto start = random_floats(static_cast<size_t>(rows * width), 3);
        std::vector<Bf16> half;
        for (const float v : b) half.push_back(Bf16::from_float(v));
        for (const bool bf16 : {false, true}) {
          std::vector<float> c = start;
          kernels.accumulate({.a = a.data(),
                              .a_stride = depth,
                              .rows = rows,
                              .from = from,
                              .to = to,
                              .b = bf16 ? static_cast<const void*>(half.data()) : b.data(),
                              .b_width = width,
                              .b_is_bf16 = bf16,
                              .c = c.data(),
                              .c_stride = width});
          for (int r = 0; r < rows; ++r) {
            for (int64_t n = 0; n < width; ++n) {
              double want = start[static_cast<size_t>(r * width + n)];
              for (int k = from; k < to; ++k) {
                const auto at = static_cast<size_t>(k * width + n);
                want += double{a[static_cast<size_t>(r * depth + k)]} * (bf16 ? half[at].to_float() : b[at]);
              }
              ASSERT_NEAR(c[static_cast<size_t>(r * width + n)], want, 1e-4)
                  << kernels.name << " " << width << " " << rows;
            }
          }
        }
      }
    }
  }
}

// Every code of a page, NaN included, and nothing beyond the rows that are asked for.
TEST(cpu_kernels, widened_pages_are_the_codes_values) {
  const auto same = [](float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); };
  for (const Kernels& kernels : tables()) {
    for (const int64_t cols : {1, 8, 24, 64, 80}) {
      const int rows = 60, from = 2, to = 59;
      std::vector<uint16_t> codes(static_cast<size_t>(rows * cols));
      for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint16_t>(i * 40503);
      const auto* bytes = reinterpret_cast<const uint8_t*>(codes.data());
      std::array<Bf16, kPageTokens> scales;
      for (size_t i = 0; i < scales.size(); ++i) scales[i] = Bf16::from_float(static_cast<float>(i) - 7.3f);
      scales[5] = Bf16::from_float(std::numeric_limits<float>::quiet_NaN());
      for (const KvDtype dtype : {KvDtype::kBf16, KvDtype::kE4m3, KvDtype::kInt8}) {
        for (const bool per_row : {false, true}) {
          if (dtype == KvDtype::kInt8 && !per_row && cols > kPageTokens) continue;
          std::vector<float> out(codes.size(), -1.0f);
          kernels.widen[static_cast<size_t>(dtype)]({.page = {codes.data(), scales.data()},
                                                     .cols = cols,
                                                     .from = from,
                                                     .to = to,
                                                     .scale_per_row = per_row,
                                                     .out = out.data()});
          for (size_t i = 0; i < out.size(); ++i) {
            const size_t r = i / static_cast<size_t>(cols), c = i % static_cast<size_t>(cols);
            float want = -1.0f;
            if (r >= from && r < to) {
              want = dtype == KvDtype::kBf16   ? Bf16{codes[i]}.to_float()
                     : dtype == KvDtype::kE4m3 ? E4m3{bytes[i]}.to_float() / kE4m3Unit
                                               : static_cast<int8_t>(bytes[i]) * scales[per_row ? r : c].to_float();
            }
            ASSERT_TRUE(same(out[i], want)) << kernels.name << " " << name_of(dtype) << " [" << r << ", " << c
                                            << "] of " << cols << ": " << out[i] << ", want " << want;
          }
        }
      }
    }
  }
}

TEST(cpu_kernels, exponentials_and_swiglu_match_double) {
  for (const Kernels& kernels : tables()) {
    for (const size_t n : {1, 5, 16, 33, 64}) {
      std::vector<float> x = random_floats(n, 4), y = x;
      x[0] = -200.0f;
      y[0] = -100.0f;
      const float top = kernels.scale_max(0.5f, y);
      EXPECT_EQ(top, *std::max_element(y.begin(), y.end()));
      const std::vector<float> scaled = y;
      double want = 0;
      const float sum = kernels.exp_sum(top, y);
      for (size_t i = 0; i < n; ++i) {
        EXPECT_NEAR(y[i], std::exp(double{scaled[i]} - top), 1e-6);
        want += std::exp(double{scaled[i]} - top);
      }
      EXPECT_NEAR(sum, want, 1e-5);
      std::vector<float> gate = random_floats(n, 5), up = random_floats(n, 6), u(n);
      gate[n / 2] = 100.0f;
      up[n / 3] = -50.0f;
      gate[n - 1] = -300.0f;
      kernels.swiglu(
          {.gate = gate.data(), .up = up.data(), .limit = 7.0f, .n = static_cast<int64_t>(n), .out = u.data()});
      for (size_t i = 0; i < n; ++i) {
        const double glu = std::min(double{gate[i]}, 7.0), line = std::clamp(double{up[i]}, -7.0, 7.0);
        const double expected = glu / (1 + std::exp(-1.702 * glu)) * (line + 1);
        EXPECT_NEAR(u[i], expected, 1e-5 * std::max(1.0, std::abs(expected))) << kernels.name << " " << i;
      }
      gate[0] = std::numeric_limits<float>::quiet_NaN();
      kernels.swiglu(
          {.gate = gate.data(), .up = up.data(), .limit = 7.0f, .n = static_cast<int64_t>(n), .out = u.data()});
      EXPECT_TRUE(std::isnan(u[0])) << kernels.name;
    }
  }
}

TEST(cpu_kernels, an_instruction_set_that_is_missing_is_refused_by_name) {
  for (const PortableKernels& each : portable_kernels()) {
    if (each.runs_here || each.isa == CpuIsa::kBaseline) {
      EXPECT_FALSE(kernels_for(each.isa).name.empty());
      continue;
    }
    EXPECT_THROW((void)kernels_for(each.isa), Error);
  }
  EXPECT_FALSE(kernels_for(CpuIsa::kAuto).name.empty());
}

}  // namespace
}  // namespace nibble::backend::cpu
