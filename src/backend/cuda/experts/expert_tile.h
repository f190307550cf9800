#pragma once

#include <cstdint>

namespace nibble::backend::cuda {

// Some of the pairs (token * topk + k) that use one expert: [first, first + count) of a list by expert.
struct ExpertTile {
  int32_t expert = 0, first = 0, count = 0;
  int32_t stored = 0;  // work tiles of gate_up whose part of u is there: sm90_mxfp4_gemm's own
  friend constexpr bool operator==(const ExpertTile&, const ExpertTile&) = default;
};

}  // namespace nibble::backend::cuda
