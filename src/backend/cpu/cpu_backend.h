#pragma once
// The CPU: float activations, weights read where they were mapped, work shared by output rows over a thread pool.
// Every sum's order is fixed by shapes and instruction set, so neither threads nor batch neighbours change a bit.

#include "backend/backend.h"

#include <memory>

namespace nibble::backend {

enum class KvDtype : uint8_t { kBf16, kF32 };

struct CpuOptions {
  int threads = 1;
  KvDtype kv_dtype = KvDtype::kBf16;
};

std::unique_ptr<Backend> make_cpu_backend(const BackendConfig& config, const CpuOptions& options);

}  // namespace nibble::backend
