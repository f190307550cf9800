#pragma once
// Host twin of ptx/prefetch.cuh: notes what was asked for.

#include <vector>

namespace nibble::backend::cuda::ptx {

inline std::vector<const void*> prefetched;
inline void prefetch_l2(const void* global) { prefetched.push_back(global); }

}  // namespace nibble::backend::cuda::ptx
