#include "base/mx.h"

#include "base/error.h"

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

constexpr size_t kBlock = kMxBlock;

void check_sizes(size_t values, const MxConstBlocks& blocks) {
  check(values == blocks.scales.size() * kBlock, "MX blocks hold 32 values per scale");
  check(blocks.elements.size() == blocks.scales.size() * static_cast<size_t>(mx_block_bytes(blocks.format)),
        "MX elements hold one block per scale");
}

// NaN counts as larger than infinity, and infinity as larger than any number.
float max_magnitude(std::span<const float> values) {
  uint32_t most = 0;
  for (const float v : values) most = std::max(most, std::bit_cast<uint32_t>(v) & 0x7fffffffu);
  return std::bit_cast<float>(most);
}

std::span<const uint8_t> block_of(const MxConstBlocks& blocks, size_t block_idx) {
  const auto bytes = static_cast<size_t>(mx_block_bytes(blocks.format));
  return blocks.elements.subspan(block_idx * bytes, bytes);
}

// The format is a template parameter so that its tests leave the loops.
template <MxFormat kFormat>
void quantize_blocks(std::span<const float> values, MxScaleRule rule, MxBlocks out) {
  constexpr auto kBytes = static_cast<size_t>(mx_block_bytes(kFormat));
  std::fill(out.elements.begin(), out.elements.end(), uint8_t{0});
  for (size_t b = 0; b < out.scales.size(); ++b) {
    const auto x = values.subspan(b * kBlock, kBlock);
    const E8m0 scale = mx_scale_for(max_magnitude(x), kFormat, rule);
    out.scales[b] = scale.bits;
    if (scale.is_nan()) continue;
    const float inverse = mx_inverse_scale(scale);
    uint8_t* block = out.elements.data() + b * kBytes;
    for (size_t i = 0; i < kBlock; ++i)
      mx_or_element_code(kFormat, block, static_cast<int>(i), mx_encode_element(kFormat, x[i] * inverse));
  }
}

template <MxFormat kFormat>
void dequantize_blocks(MxConstBlocks in, std::span<float> values) {
  constexpr auto kBytes = static_cast<size_t>(mx_block_bytes(kFormat));
  for (size_t b = 0; b < in.scales.size(); ++b) {
    const float scale = E8m0{in.scales[b]}.to_float();
    const uint8_t* block = in.elements.data() + b * kBytes;
    for (size_t i = 0; i < kBlock; ++i) {
      const uint8_t code = mx_element_code(kFormat, block, static_cast<int>(i));
      values[b * kBlock + i] = mx_decode_element(kFormat, code) * scale;
    }
  }
}

}  // namespace

void mx_quantize(std::span<const float> values, MxScaleRule rule, MxBlocks out) {
  check_sizes(values.size(), out);
  with_mx_format(out.format, [&](auto of) { quantize_blocks<decltype(of)::value>(values, rule, out); });
}

void mx_dequantize(MxConstBlocks in, std::span<float> values) {
  check_sizes(values.size(), in);
  with_mx_format(in.format, [&](auto of) { dequantize_blocks<decltype(of)::value>(in, values); });
}

double MxError::relative_rms() const {
  return sum_squared_error == 0 ? 0.0 : std::sqrt(sum_squared_error / sum_squares);
}

void MxError::add(const MxError& other) {
  max_abs = std::max(max_abs, other.max_abs);
  sum_squares += other.sum_squares;
  sum_squared_error += other.sum_squared_error;
  values += other.values;
  clipped += other.clipped;
  nan_blocks += other.nan_blocks;
}

MxError mx_error(std::span<const float> values, MxConstBlocks blocks) {
  check_sizes(values.size(), blocks);
  const double max_element = mx_max_element(blocks.format);
  MxError error;
  for (size_t b = 0; b < blocks.scales.size(); ++b) {
    const E8m0 scale{blocks.scales[b]};
    if (scale.is_nan()) {
      ++error.nan_blocks;
      continue;
    }
    const auto block = block_of(blocks, b);
    for (size_t i = 0; i < kBlock; ++i) {
      const double x = values[b * kBlock + i];
      const uint8_t code = mx_element_code(blocks.format, block.data(), static_cast<int>(i));
      const double delta = x - double{mx_decode_element(blocks.format, code)} * scale.to_float();
      error.max_abs = std::max(error.max_abs, std::abs(delta));
      error.sum_squares += x * x;
      error.sum_squared_error += delta * delta;
      error.clipped += std::abs(x) > max_element * scale.to_float() ? 1 : 0;
      ++error.values;
    }
  }
  return error;
}

}  // namespace nibble
