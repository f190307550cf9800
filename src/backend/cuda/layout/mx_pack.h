#pragma once
// Host packer of mx_a_m16k32.h and its inverse. The device packer is quantise/pack.cu.

#include "backend/cuda/layout/mx_a_m16k32.h"

#include <cstdint>
#include <span>

namespace nibble::backend::cuda::layout {

// One matrix as OpenAI ships it: blocks [rows, cols/32, 16], low nibble first, and E8M0 scales [rows, cols/32].
struct MxSource {
  int64_t rows = 0, cols = 0;
  RowOrder order = RowOrder::kPlain;
  std::span<const uint8_t> blocks;
  std::span<const uint8_t> scales;
};

// Throws Error: kUnsupported for a shape that has no tiles or slices, or for a scale code above 191 (2^64; 255 is
// NaN), naming the row and block; kInvalidRequest for spans of the wrong size.
// out: packed_bytes(rows, cols). Rows of tiles are independent: callers may split a matrix by multiples of 16 rows.
void pack(const MxSource& source, std::span<uint8_t> out);

// blocks and scales as in MxSource. REQUIRES sizes and a shape that pack would take: check() aborts.
struct MxUnpacked {
  int64_t rows = 0, cols = 0;
  RowOrder order = RowOrder::kPlain;
  std::span<uint8_t> blocks;
  std::span<uint8_t> scales;
};
void unpack(std::span<const uint8_t> packed, const MxUnpacked& out);

}  // namespace nibble::backend::cuda::layout
