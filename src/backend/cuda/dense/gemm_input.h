#pragma once
// Where a GEMM finds its activations, and their form.

#include "backend/activations.h"
#include "backend/cuda/layout/packed.h"

#include <cstdint>

namespace nibble::backend::cuda {

enum class InputType : uint8_t {
  kBf16,
  kF16,
  kMxfp8,  // from here on codes, in rows of layout/mx_b_n8k64.h
  kMxfp6,
  kMxfp4,
};
[[nodiscard]] constexpr InputType input_type(layout::Packing packing) {
  return packing == layout::Packing::kBf16 ? InputType::kBf16 : InputType::kF16;
}
[[nodiscard]] constexpr bool in_codes(InputType type) { return type != InputType::kBf16 && type != InputType::kF16; }
// Of a format in MX blocks, and back.
[[nodiscard]] constexpr InputType codes_of(backend::Activations format) {
  return static_cast<InputType>(static_cast<int>(InputType::kMxfp8) + static_cast<int>(format) -
                                static_cast<int>(backend::Activations::kMxfp8));
}
[[nodiscard]] constexpr backend::Activations activations_of(InputType codes) {
  return static_cast<backend::Activations>(static_cast<int>(backend::Activations::kMxfp8) + static_cast<int>(codes) -
                                           static_cast<int>(InputType::kMxfp8));
}
static_assert(codes_of(backend::Activations::kMxfp6) == InputType::kMxfp6 &&
              codes_of(backend::Activations::kMxfp4) == InputType::kMxfp4 &&
              activations_of(InputType::kMxfp8) == backend::Activations::kMxfp8);
[[nodiscard]] constexpr MxFormat element_of(InputType codes) { return type_of(activations_of(codes)).blocks->element; }

struct GemmInput {
  uint16_t* at = nullptr;  // [tokens, cols] of its type, 16-byte aligned; null: none
  InputType type = InputType::kBf16;
  int rows = 0;           // of the panels (layout/wgmma_b.h), a multiple of 8 that holds the tokens; 0: row-major
  bool in_mxfp8 = false;  // of kBf16 and kF16: values are rounded as MXFP8 before (backend/activations.h)
};

}  // namespace nibble::backend::cuda
