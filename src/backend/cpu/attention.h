#pragma once
// One token's attention for the query heads that share a kv head, page by page with a running softmax.

#include "backend/args.h"
#include "backend/cpu/kv_cache.h"
#include "backend/dims.h"

#include <cstdint>
#include <span>

namespace nibble::backend::cpu {

inline constexpr int kMaxGroup = 64;  // query heads per kv head

struct AttendGroup {
  const KvCache& cache;
  const Dims& dims;
  std::span<const int32_t> pages;  // of the token's row
  int kv_head;
  int64_t first, last;           // positions seen, both included
  std::span<const float> sinks;  // [heads of the group]; empty: none
  const float* q;                // [heads of the group, head_dim]
  float* out;                    // likewise
  float* scratch;                // attend_scratch_floats()
};

[[nodiscard]] constexpr int64_t attend_scratch_floats(const Dims& dims) {
  return int64_t{2} * kPageTokens * dims.head_dim + kPageTokens;
}

void attend_group(const AttendGroup& args);

}  // namespace nibble::backend::cpu
