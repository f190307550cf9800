#pragma once
// What a step leaves in a slot of backend.h: where it lies on the card, and how. Plain C++.

#include "backend/activations.h"
#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/memory/arena.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace nibble::backend::cuda {

struct Held {
  enum class Type : uint8_t {
    kF32,
    kI32,
    kF16,
    kBf16,
    kCodes  // in rows of layout/mx_b_n8k64.h
  };
  Place at = nullptr;  // null: no kernel writes it, its value is fused into the next kernel
  int64_t rows = 0, cols = 0;
  Type type = Type::kF32;
  InputType codes = InputType::kMxfp8;          // of kCodes
  int splits = 1;                               // of so many rows, to be added
  int64_t width = cols;                         // values of a row in memory
  int64_t panel_rows = 0;                       // of panels (layout/wgmma_b.h); 0: row after row
  Place places = nullptr;                       // [rows] int32: which of the panels' rows it is; -1: it is not there
  Activations rounded_to = Activations::kBf16;  // before the next kernel reads it

  [[nodiscard]] int64_t bytes() const;
  // [rows, cols] of a copy of these bytes and of the places.
  [[nodiscard]] std::vector<float> values(std::span<const std::byte> memory, std::span<const int32_t> place_of) const;
};

}  // namespace nibble::backend::cuda
