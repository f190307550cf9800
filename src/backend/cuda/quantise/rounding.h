#pragma once
// What plans and their checks round and align by.

#include <cstdint>

namespace nibble::backend::cuda {

inline bool aligned(const void* p) { return p != nullptr && reinterpret_cast<uintptr_t>(p) % 16 == 0; }
constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace nibble::backend::cuda
