#pragma once
// Where and how a GEMM takes its activations.

#include "backend/cuda/layout/packed.h"

#include <cstdint>

namespace nibble::backend::cuda {

enum class InputType : uint8_t {
  kBf16,
  kF16,
  kMxfp8,  // rows of layout/mx_b_n8k64.h
};
[[nodiscard]] constexpr InputType input_type(layout::Packing packing) {
  return packing == layout::Packing::kBf16 ? InputType::kBf16 : InputType::kF16;
}

struct GemmInput {
  uint16_t* at = nullptr;  // [tokens, cols] of its type, 16-byte aligned; null: none
  InputType type = InputType::kBf16;
  int rows = 0;  // of the panels (layout/wgmma_b.h), a multiple of 8 that holds the tokens; 0: row-major
};

}  // namespace nibble::backend::cuda
