#include "backend/activations.h"

#include "base/error.h"

#include <array>
#include <cmath>
#include <limits>

namespace nibble::backend {
namespace {

void round_mx(const ActivationType::Blocks& format, std::span<float> values) {
  std::array<uint8_t, kMxBlock> codes{};
  uint8_t scale = 0;
  const MxBlocks block{
      format.element, std::span(codes).first(static_cast<size_t>(mx_block_bytes(format.element))), {&scale, 1}};

  for (size_t b = 0; b < values.size(); b += kMxBlock) {
    const std::span<float> of_block = values.subspan(b, kMxBlock);
    mx_quantize(of_block, format.rule, block);
    mx_dequantize(block, of_block);
  }
}

void round_int8(std::span<float> values) {
  for (size_t b = 0; b < values.size(); b += kMxBlock) {
    const std::span<float> block = values.subspan(b, kMxBlock);
    float most = 0;
    for (const float x : block)
      most = std::isfinite(x) ? std::max(most, std::abs(x)) : std::numeric_limits<float>::quiet_NaN();
    const float scale = most / 127.0f, inverse = most < kInt8Least ? 0.0f : 127.0f / most;
    for (float& x : block) x = std::nearbyint(x * inverse) * scale;
  }
}

}  // namespace

void round_activations(Activations activations, std::span<float> values) {
  if (!rounds(activations)) return;
  check(values.size() % kMxBlock == 0, "whole blocks of 32");
  if (const auto& blocks = type_of(activations).blocks) return round_mx(*blocks, values);
  round_int8(values);
}

}  // namespace nibble::backend
