#pragma once
// gpt-oss-120b's dimensions, for tests of rooms that do not see the model.

#include "backend/dims.h"

namespace nibble::backend {

inline constexpr Dims kDims120b = {.layers = 36,
                                   .hidden = 2880,
                                   .heads = 64,
                                   .kv_heads = 8,
                                   .head_dim = 64,
                                   .inter = 2880,
                                   .experts = 128,
                                   .topk = 4,
                                   .vocab = 201088,
                                   .sliding_window = 128,
                                   .max_context = 131072};

}  // namespace nibble::backend
