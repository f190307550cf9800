#pragma once
// Host twin of ptx/proxy_fence.cuh.

namespace nibble::backend::cuda::ptx {

inline void fence_proxy_async_global() {}

}  // namespace nibble::backend::cuda::ptx
