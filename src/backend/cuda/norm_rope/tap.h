#pragma once
// The residual stream as a head reads it: arguments and checks. Pointers are device memory, 16-byte aligned.

#include "backend/cuda/launch/kernel_table.h"

#include <cstdint>

namespace nibble::backend::cuda {

// out[t] = x[t] + delta[t] + rest[t], the terms that there are.
struct TapArgs {
  const float* x = nullptr;      // [tokens, hidden]
  const float* delta = nullptr;  // [tokens, hidden]
  const float* rest = nullptr;   // [tokens, hidden], with delta
  float* out = nullptr;          // [tokens, hidden], rows `pitch` floats apart
  int64_t pitch = 0;
  int tokens = 0, hidden = 0;  // hidden: a multiple of 4
};

// Throws Error(kUnsupported) that prints what a launch cannot serve.
void check_args(const TapArgs& args);

// Checks the arguments, launches chained (chained_launch.cuh), returns.
void any_tap(const TapArgs& args, const Launch& on);

}  // namespace nibble::backend::cuda
