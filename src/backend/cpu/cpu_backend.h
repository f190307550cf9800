#pragma once
// The CPU: weights read where they were mapped, work shared by rows of weights over a thread pool.
//
// All activations but kInt8 are multiplied as floats (those in MX blocks once they are rounded): every sum's order is
// fixed by shapes and instruction set, so neither threads nor batch neighbours change a bit. kInt8: threads change
// nothing, but a token's bits depend on whether its step has few tokens or many (per expert), which sum in different
// orders.

#include "backend/backend.h"
#include "backend/activations.h"
#include "backend/cpu/isa.h"
#include "backend/kv_dtype.h"

#include <memory>
#include <string>

namespace nibble::backend {

struct CpuOptions {
  int threads = 1;
  KvDtype kv_dtype = KvDtype::kBf16;
  Activations activations = Activations::kExact;
  CpuIsa isa = CpuIsa::kAuto;
  bool poison = false;  // memory holds NaN until written; for tests
};

// Throws Error(kUnsupported) where this CPU lacks what the options ask for.
std::unique_ptr<Backend> make_cpu_backend(const BackendConfig& config, const CpuOptions& options);

// What this CPU multiplies faster: kInt8 where it has kernels for it. Throws as make_cpu_backend.
[[nodiscard]] Activations faster_activations(CpuIsa isa);

// For people: "avx512 vnni, int8 activations (prompts: amx bf16), 2 threads".
[[nodiscard]] std::string describe(const CpuOptions& options);

}  // namespace nibble::backend
