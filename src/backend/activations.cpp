#include "backend/activations.h"

#include "base/error.h"

#include <array>
#include <cmath>
#include <limits>

namespace nibble::backend {
namespace {

void round_mxfp8(std::span<float> block) {
  std::array<uint8_t, kMxBlock> codes{};
  uint8_t scale = 0;
  const MxBlocks blocks{MxFormat::kMxfp8E4m3, codes, {&scale, 1}};
  mx_quantize(block, MxScaleRule::kOcpFloor, blocks);
  mx_dequantize(blocks, block);
}

void round_int8(std::span<float> block) {
  float most = 0;
  for (const float x : block)
    most = std::isfinite(x) ? std::max(most, std::abs(x)) : std::numeric_limits<float>::quiet_NaN();
  const float scale = most / 127.0f, inverse = most < kInt8Least ? 0.0f : 127.0f / most;
  for (float& x : block) x = std::nearbyint(x * inverse) * scale;
}

}  // namespace

void round_activations(Activations activations, std::span<float> values) {
  if (!rounds(activations)) return;
  check(values.size() % kMxBlock == 0, "whole blocks of 32");
  for (size_t b = 0; b < values.size(); b += kMxBlock) {
    const std::span<float> block = values.subspan(b, kMxBlock);
    activations == Activations::kMxfp8 ? round_mxfp8(block) : round_int8(block);
  }
}

}  // namespace nibble::backend
