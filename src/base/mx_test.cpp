#include "base/mx.h"
#include "base/mmap_file.h"
#include "base/random.h"
#include "base/testing/normal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace nibble {
namespace {

constexpr MxFormat kFormats[] = {MxFormat::kMxfp4, MxFormat::kMxfp8E4m3, MxFormat::kMxfp8E5m2, MxFormat::kMxfp6E2m3,
                                 MxFormat::kMxfp6E3m2};
constexpr MxScaleRule kRules[] = {MxScaleRule::kOcpFloor, MxScaleRule::kCeil, MxScaleRule::kRoundLlama};

struct Quantized {
  MxFormat format;
  std::vector<uint8_t> elements, scales;
  [[nodiscard]] MxConstBlocks blocks() const { return {format, elements, scales}; }
};

Quantized quantize(const std::vector<float>& values, MxFormat format, MxScaleRule rule) {
  const size_t blocks = values.size() / kMxBlock;
  Quantized q{format, std::vector<uint8_t>(blocks * static_cast<size_t>(mx_block_bytes(format)), 0xA5),
              std::vector<uint8_t>(blocks, 0xA5)};
  mx_quantize(values, rule, {format, q.elements, q.scales});
  return q;
}

std::vector<float> dequantize(const Quantized& q) {
  std::vector<float> values(q.scales.size() * kMxBlock, -77.0f);
  mx_dequantize(q.blocks(), values);
  return values;
}

std::vector<float> normal_values(size_t count, uint64_t seed) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    const Philox4 r = philox(seed, i);
    values[i] = normal_float(r[0], r[1]);
  }
  return values;
}

// The element's value from the format's definition, in double.
double element_value(MxFormat format, int code) {
  struct Fields {
    int exponent_bits, mantissa_bits;
  };
  const std::map<MxFormat, Fields> fields = {{MxFormat::kMxfp4, {2, 1}},
                                             {MxFormat::kMxfp8E4m3, {4, 3}},
                                             {MxFormat::kMxfp8E5m2, {5, 2}},
                                             {MxFormat::kMxfp6E2m3, {2, 3}},
                                             {MxFormat::kMxfp6E3m2, {3, 2}}};
  const auto [e_bits, m_bits] = fields.at(format);
  const int exponent = (code >> m_bits) & ((1 << e_bits) - 1), mantissa = code & ((1 << m_bits) - 1);
  const int bias = (1 << (e_bits - 1)) - 1;
  double value = exponent == 0 ? std::ldexp(mantissa, 1 - bias - m_bits)
                               : std::ldexp((1 << m_bits) + mantissa, exponent - bias - m_bits);
  if (format == MxFormat::kMxfp8E4m3 && (code & 0x7f) == 0x7f) value = NAN;
  if (format == MxFormat::kMxfp8E5m2 && exponent == 31) value = mantissa == 0 ? HUGE_VAL : NAN;
  return (code >> (e_bits + m_bits)) == 0 ? value : -value;
}

TEST(mx, every_code_under_every_scale_decodes_to_its_definition) {
  for (const MxFormat format : kFormats) {
    for (int scale = 0; scale < 256; ++scale) {
      for (int code = 0; code < 1 << mx_element_bits(format); ++code) {
        const float got = mx_decode(format, static_cast<uint8_t>(code), E8m0{static_cast<uint8_t>(scale)});
        const double value = scale == 255 ? NAN : std::ldexp(element_value(format, code), scale - 127);
        const auto want = static_cast<float>(value);  // beyond float's range: infinity
        if (std::isnan(want)) {
          EXPECT_TRUE(std::isnan(got)) << code << " scale " << scale;
        } else {
          EXPECT_EQ(got, want) << code << " scale " << scale;
          EXPECT_TRUE(std::isinf(want) || want == value) << "not exact: " << code << " scale " << scale;
        }
      }
    }
  }
}

TEST(mx, every_code_under_every_scale_survives_a_round_trip) {
  for (const MxFormat format : kFormats) {
    const uint8_t max_code = mx_encode_element(format, mx_max_element(format));
    for (int scale = 0; scale < 255; ++scale) {
      const E8m0 e8m0{static_cast<uint8_t>(scale)};
      if (std::isinf(mx_decode(format, max_code, e8m0))) continue;
      std::vector<float> values;  // the largest element leads each block, so that the rules must find the same scale
      std::vector<uint8_t> codes;
      for (int code = 0; code < 1 << mx_element_bits(format) || values.size() % kMxBlock != 0;) {
        const bool lead = values.size() % kMxBlock == 0, in_range = code < 1 << mx_element_bits(format);
        const auto next = lead || !in_range ? max_code : static_cast<uint8_t>(code);
        if (!lead) ++code;
        if (!std::isfinite(mx_decode_element(format, next))) continue;
        codes.push_back(next);
        values.push_back(mx_decode(format, next, e8m0));
      }
      for (const MxScaleRule rule : {MxScaleRule::kOcpFloor, MxScaleRule::kCeil}) {
        const Quantized q = quantize(values, format, rule);
        for (size_t i = 0; i < values.size(); ++i) {
          ASSERT_EQ(q.scales[i / kMxBlock], scale);
          const auto bytes = static_cast<size_t>(mx_block_bytes(format));
          const uint8_t* block = q.elements.data() + i / kMxBlock * bytes;
          ASSERT_EQ(mx_element_code(format, block, static_cast<int>(i % kMxBlock)), codes[i]) << "scale " << scale;
        }
        ASSERT_EQ(dequantize(q), values);
      }
    }
  }
}

TEST(mx, layouts_are_the_documented_ones) {
  std::vector<float> values(kMxBlock, 0.0f);
  values[0] = 6;     // e2m1 7, e2m3 0b011100, e4m3 0x4c
  values[1] = -1;    // e2m1 0b1010, e2m3 0b101000, e4m3 0xb8
  values[2] = 0.5f;  // e2m1 1, e2m3 0b000100
  values[3] = 4;     // e2m1 6, e2m3 0b011000
  const Quantized fp4 = quantize(values, MxFormat::kMxfp4, MxScaleRule::kCeil);
  EXPECT_EQ(fp4.scales[0], 127);
  EXPECT_EQ(fp4.elements[0], 0xa7);
  EXPECT_EQ(fp4.elements[1], 0x61);
  const Quantized fp6 = quantize(values, MxFormat::kMxfp6E2m3, MxScaleRule::kCeil);
  EXPECT_EQ(fp6.scales[0], 127);
  EXPECT_EQ(fp6.elements[0], 0b00'011100);
  EXPECT_EQ(fp6.elements[1], 0b0100'1010);
  EXPECT_EQ(fp6.elements[2], 0b011000'00);
  values[4] = 448;  // so that the scale is 1
  const Quantized fp8 = quantize(values, MxFormat::kMxfp8E4m3, MxScaleRule::kOcpFloor);
  EXPECT_EQ(fp8.scales[0], 127);
  EXPECT_EQ(fp8.elements[0], 0x4c);
  EXPECT_EQ(fp8.elements[1], 0xb8);
}

TEST(mx, every_code_can_be_put_at_and_read_from_every_place) {
  for (const MxFormat format : kFormats) {
    for (int first = 0; first < 1 << mx_element_bits(format); ++first) {
      std::vector<uint8_t> block(static_cast<size_t>(mx_block_bytes(format)), 0);
      const auto code_at = [&](int i) {
        return static_cast<uint8_t>((first + 5 * i) % (1 << mx_element_bits(format)));
      };
      for (int i = 0; i < kMxBlock; ++i) mx_or_element_code(format, block.data(), i, code_at(i));
      for (int i = 0; i < kMxBlock; ++i) ASSERT_EQ(mx_element_code(format, block.data(), i), code_at(i));
    }
  }
}

TEST(mx, blocks_of_zeros_get_the_smallest_scale_and_keep_signs) {
  std::vector<float> values(kMxBlock, 0.0f);
  values[3] = -0.0f;
  for (const MxFormat format : kFormats) {
    for (const MxScaleRule rule : kRules) {
      const Quantized q = quantize(values, format, rule);
      EXPECT_EQ(q.scales[0], 0);
      const std::vector<float> back = dequantize(q);
      EXPECT_EQ(back, values);
      EXPECT_TRUE(std::signbit(back[3]));
      EXPECT_EQ(mx_error(values, q.blocks()).relative_rms(), 0);
    }
  }
}

TEST(mx, a_nan_or_an_infinity_makes_its_block_nan_and_no_other) {
  for (const float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
    std::vector<float> values = normal_values(3 * kMxBlock, 1);
    values[kMxBlock + 9] = bad;
    for (const MxFormat format : kFormats) {
      for (const MxScaleRule rule : kRules) {
        const Quantized q = quantize(values, format, rule);
        const std::vector<float> back = dequantize(q);
        for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(std::isnan(back[i]), i / kMxBlock == 1) << i;
        const MxError error = mx_error(values, q.blocks());
        EXPECT_EQ(error.nan_blocks, 1);
        EXPECT_EQ(error.values, 2 * kMxBlock);
        EXPECT_TRUE(std::isfinite(error.relative_rms()));
      }
    }
  }
}

TEST(mx, scales_clamp_at_both_ends) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  for (const MxFormat format : kFormats) {
    const int emax = std::ilogb(mx_max_element(format));
    for (const MxScaleRule rule : kRules) {
      const int up = rule == MxScaleRule::kOcpFloor ? 0 : 1;
      EXPECT_EQ(mx_scale_for(kLargest, format, rule).bits, 254 - emax + up);
      for (const float small : {0x1p-149f, 0x1.8p-128f, 0x1.fffffcp-127f, 0x1p-126f})
        EXPECT_EQ(mx_scale_for(small, format, rule).bits, 0) << small;
    }
  }
}

TEST(mx, scale_rules_follow_their_formulas_for_every_exponent) {
  const double sqrt2 = std::sqrt(2.0);
  for (const MxFormat format : kFormats) {
    const double max_element = mx_max_element(format);
    const int emax = std::ilogb(max_element);
    for (int exponent = -149; exponent < 128; ++exponent) {
      for (const double mantissa : {1.0, 1.2, 1.4142, sqrt2, 1.4143, 1.5, 1.75, 1.8, 1.875, 1.9, 1.99999}) {
        for (const float towards : {0.0f, INFINITY}) {
          const float amax = std::nextafter(static_cast<float>(std::ldexp(mantissa, exponent)), towards);
          if (amax == 0 || std::isinf(amax)) continue;
          const double log2_amax = std::log2(double{amax});
          const auto clamp = [](double e) { return static_cast<int>(std::clamp(e, -127.0, 127.0)) + 127; };
          const auto got = [&](MxScaleRule rule) { return mx_scale_for(amax, format, rule).bits; };
          EXPECT_EQ(got(MxScaleRule::kOcpFloor), clamp(std::ilogb(amax) - emax)) << amax;
          EXPECT_EQ(got(MxScaleRule::kRoundLlama), clamp(std::nearbyint(log2_amax) - emax)) << amax;
          const int ceil = got(MxScaleRule::kCeil) - 127;
          EXPECT_LE(amax, std::ldexp(max_element, ceil));
          if (ceil > -127) EXPECT_GT(amax, std::ldexp(max_element, ceil - 1));
        }
      }
    }
  }
}

TEST(mx, ceil_never_clips_and_floor_clips_above_the_maximum) {
  std::vector<float> values = normal_values(64 * kMxBlock, 3);
  for (const MxFormat format : kFormats)
    EXPECT_EQ(mx_error(values, quantize(values, format, MxScaleRule::kCeil).blocks()).clipped, 0);
  values.assign(kMxBlock, 1.0f);
  values[5] = 7.5f;
  const Quantized q = quantize(values, MxFormat::kMxfp4, MxScaleRule::kOcpFloor);
  const MxError error = mx_error(values, q.blocks());
  EXPECT_EQ(error.clipped, 1);
  EXPECT_EQ(error.max_abs, 1.5);
  EXPECT_EQ(error.values, kMxBlock);
  EXPECT_DOUBLE_EQ(error.relative_rms(), std::sqrt(1.5 * 1.5 / (31 + 7.5 * 7.5)));
  MxError twice = error;
  twice.add(error);
  EXPECT_EQ(twice.clipped, 2);
  EXPECT_DOUBLE_EQ(twice.relative_rms(), error.relative_rms());
}

TEST(mx, more_bits_lose_less) {
  const std::vector<float> values = normal_values(64 * kMxBlock, 4);
  const auto loss = [&](MxFormat format) {
    return mx_error(values, quantize(values, format, MxScaleRule::kOcpFloor).blocks()).relative_rms();
  };
  const double fp4 = loss(MxFormat::kMxfp4), fp6 = loss(MxFormat::kMxfp6E2m3), fp8 = loss(MxFormat::kMxfp8E4m3);
  EXPECT_LT(fp4, 0.15);
  EXPECT_LT(fp6, fp4 / 2);
  EXPECT_LT(fp8, fp4 / 3);
}

TEST(mx, sizes_that_disagree_abort) {
  const std::vector<float> values(kMxBlock + 1, 1.0f);
  std::vector<uint8_t> elements(16), scales(1);
  EXPECT_DEATH(mx_quantize(values, MxScaleRule::kCeil, {MxFormat::kMxfp4, elements, scales}), "32 values per scale");
  EXPECT_DEATH(mx_quantize({values.data(), kMxBlock}, MxScaleRule::kCeil, {MxFormat::kMxfp8E4m3, elements, scales}),
               "one block per scale");
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

uint32_t hex_number(const std::string& digits) { return static_cast<uint32_t>(std::stoul(digits, nullptr, 16)); }

// tests/data/mx_goldens.txt: made by numpy and ml_dtypes (tools/make_mx_goldens.py).
TEST(mx, equals_the_goldens_bit_for_bit) {
  const std::map<std::string, MxFormat> formats = {{"mxfp4", MxFormat::kMxfp4},
                                                   {"mxfp8_e4m3", MxFormat::kMxfp8E4m3},
                                                   {"mxfp8_e5m2", MxFormat::kMxfp8E5m2},
                                                   {"mxfp6_e2m3", MxFormat::kMxfp6E2m3},
                                                   {"mxfp6_e3m2", MxFormat::kMxfp6E3m2}};
  const std::map<std::string, MxScaleRule> rules = {
      {"ocp_floor", MxScaleRule::kOcpFloor}, {"ceil", MxScaleRule::kCeil}, {"round_llama", MxScaleRule::kRoundLlama}};
  const std::string text = read_text_file(NIBBLE_SOURCE_DIR "/tests/data/mx_goldens.txt", 1 << 20);
  std::vector<float> values;
  int inputs = 0, compared = 0;
  for (const std::string& line : split(text, '\n')) {
    if (line.empty() || line[0] == '#') continue;
    const std::vector<std::string> words = split(line, ' ');
    if (words.at(0) == "input") {
      ++inputs;
      values.clear();
      for (size_t i = 0; i < words.at(1).size(); i += 8)
        values.push_back(std::bit_cast<float>(hex_number(words[1].substr(i, 8))));
      continue;
    }
    std::vector<uint8_t> want;
    for (size_t i = 0; i < words.at(3).size(); i += 2)
      want.push_back(static_cast<uint8_t>(hex_number(words[3].substr(i, 2))));
    const Quantized got = quantize(values, formats.at(words[0]), rules.at(words[1]));
    EXPECT_EQ(got.scales[0], hex_number(words[2])) << line << " input " << inputs;
    EXPECT_EQ(got.elements, want) << line << " input " << inputs;
    ++compared;
  }
  EXPECT_GT(inputs, 100);
  EXPECT_EQ(compared, inputs * 15);
}

}  // namespace
}  // namespace nibble
