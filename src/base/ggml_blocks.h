#pragma once
// ggml's block types as llama.cpp's files hold them: 32 or 256 values of a row share scales. Source: ggml-org/ggml,
// src/ggml-common.h (layouts) and src/ggml-quants.c (dequantize_row_*).

#include "base/tensor.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace nibble {

// The values of whole blocks of a type that has blocks, in float arithmetic as ggml computes them. REQUIRES sizes that
// agree.
void ggml_decode(DType type, std::span<const std::byte> blocks, std::span<float> values);

// The type that backends read (Q8_0 or MXFP4) and that holds every value of this one; none for the others. And that
// copy of whole blocks. REQUIRES: there is one.
[[nodiscard]] std::optional<DType> exact_type(DType type);
void ggml_copy_exactly(DType type, std::span<const std::byte> blocks, std::span<std::byte> out);

// Q8_0: per 32 values the F16 of max|x| / 127, then x over it, unrounded to F16, rounded half away from zero. A block
// with an infinity or NaN gets such a scale. REQUIRES: 34 bytes of `blocks` for each 32 values.
void quantize_ggml_q8(std::span<const float> values, std::span<std::byte> blocks);

// Where a block's F16 scales lie: `count` of them, one behind the other. None in the float types, and in MXFP4, whose
// first byte is an E8M0 code.
struct GgmlScales {
  int64_t first = 0, count = 0;  // bytes, scales
};
[[nodiscard]] GgmlScales ggml_scales(DType type);

}  // namespace nibble
