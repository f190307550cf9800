#pragma once
// A slice of a host's tensor as a tensor of its own: a view where its bytes lie together (some experts, some rows of a
// matrix without experts), else a copy.

#include "backend/weights.h"
#include "base/buffer.h"

#include <cstdint>
#include <vector>

namespace nibble::backend {

struct SlicedWeight {
  HostWeight weight;           // of no slice; its bytes are the whole tensor's or the copies'
  std::vector<Buffer> copies;  // stay in place when this is moved
};

// Rows and columns of each expert, as WeightRole counts them.
struct Extent {
  int64_t rows = 0, cols = 0;
};

// `whole` as it is where it has no slice; after the slice's rows and columns zeros, up to `filled`'s. Throws
// Error(kUnsupported) for a slice that cuts a block of its format, and Error(kOutOfMemory).
[[nodiscard]] SlicedWeight sliced(const HostWeight& whole, const Extent& filled = {});

// Rows of each expert of a tensor, before any slicing.
[[nodiscard]] int64_t rows_per_expert(const HostWeight& whole);

}  // namespace nibble::backend
