#include "backend/cuda/experts/gemv_int8.h"
#include "backend/cuda/quantise/round_blocks.h"
#include "base/error.h"

#include <fmt/format.h>

#include <cstring>

namespace nibble::backend::cuda {

std::string GemvInt8Plan::to_string() const {
  return fmt::format("16 rows x up to {} tokens of an expert per CTA of {} warps, {} x at most {} CTAs", kMoeTileTokens,
                     kInt8Warps, row_tiles, expert_tiles);
}

GemvInt8Plan plan_gemv_int8(int64_t rows, int64_t pairs, int64_t experts) {
  constexpr int64_t kMostGridY = 65535;
  const int64_t tiles = max_moe_tiles(pairs, experts);
  if (tiles > kMostGridY)
    throw Error(Code::kUnsupported, "--moe-kernel gemv: want a step of up to {} tiles of pairs, found {}", kMostGridY,
                tiles);
  return {static_cast<int>(rows / layout::kTileRows), tiles};
}

std::vector<float> int8_values(std::span<const F16> blocks) {
  std::vector<float> values;
  values.reserve(blocks.size());
  const auto* bytes = reinterpret_cast<const uint8_t*>(blocks.data());
  for (size_t i = 0; i < blocks.size(); ++i) {
    const uint8_t* block = bytes + i / kMxBlock * kInt8BlockBytes;
    float scale = 0;
    std::memcpy(&scale, block + kInt8ScaleAt, sizeof(scale));
    values.push_back(static_cast<float>(static_cast<int8_t>(block[i % kMxBlock])) * scale);
  }
  return values;
}

}  // namespace nibble::backend::cuda
