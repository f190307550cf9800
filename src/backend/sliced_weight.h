#pragma once
// A slice of a host's tensor as a tensor of its own: a view where its bytes lie together (some experts, some rows of a
// matrix without experts), else a copy. What a file holds in another format than a backend takes is recoded on the way,
// row by row, always a copy.

#include "backend/weights.h"
#include "base/buffer.h"
#include "base/thread_pool.h"

#include <cstdint>
#include <span>
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

// `whole` as it is where it has no slice and is not recoded; after the slice's rows and columns zeros, up to
// `filled`'s. `pool` shares the work of recoding; null: the caller alone. Throws Error(kUnsupported) for a slice that
// cuts a block of its format, and Error(kOutOfMemory).
[[nodiscard]] SlicedWeight sliced(const HostWeight& whole, const Extent& filled = {}, ThreadPool* pool = nullptr);

// Rows [first, first + values.size() / cols) of a tensor in floats or in blocks of ggml's, counted over all experts, as
// floats. transposed: it lies as [experts, cols, rows_per_expert], and the rows are of one expert.
struct StoredRows {
  const RawTensor& tensor;
  int64_t rows_per_expert, cols;
  bool transposed = false;
};
// As many are read at a time: a transposed tensor's values lie together by rows.
inline constexpr int64_t kRowsAtOnce = 32;
void read_rows(const StoredRows& from, int64_t first, std::span<float> values);

// Rows of each expert of a tensor, before any slicing.
[[nodiscard]] int64_t rows_per_expert(const HostWeight& whole);

}  // namespace nibble::backend
