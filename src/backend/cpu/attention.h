#pragma once
// Attention of some tokens of one row, for the query heads that share a kv head, page by page with a running softmax.

#include "backend/args.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/kv_cache.h"
#include "backend/dims.h"

#include <cstdint>
#include <span>

namespace nibble::backend::cpu {

inline constexpr int kMaxGroup = 64;      // query heads per kv head
inline constexpr int kAttendTokens = 16;  // queries that share one pass over the keys

struct AttendBlock {
  const Kernels& kernels;
  const KvCache& cache;
  const Dims& dims;
  std::span<const int32_t> pages;  // of the tokens' row
  int64_t kv_head;
  int tokens;                    // at most kAttendTokens
  int64_t first_position;        // of the first token; the others follow
  int64_t window;                // keys that a token sees, its own included; 0: all
  std::span<const float> sinks;  // [heads of the group]; empty: none
  const float* q;                // [tokens, stride]: the group's heads, head_dim each, at the front of a token's row
  float* out;                    // likewise
  int64_t stride;
};

// A token's sums do not depend on the other tokens of the block.
void attend_block(const AttendBlock& args);

}  // namespace nibble::backend::cpu
