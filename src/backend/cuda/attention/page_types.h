#pragma once
// The one place where a type of KV pages becomes a type of C++.

#include "backend/cuda/launch/kernel_table.h"
#include "base/dtype.h"

namespace nibble::backend::cuda {

// Throws Error(kUnsupported), naming both.
[[noreturn]] void refuse_pages(KvPages::Type type, Kernel kernel);

// f(T{}), T what pages of `type` hold. Refuses a type that no kernel here reads.
template <class F>
auto with_page_type(KvPages::Type type, Kernel kernel, F f) {
  switch (type) {
    case KvPages::Type::kBf16: return f(Bf16{});
    case KvPages::Type::kF32: return f(float{});
    case KvPages::Type::kE4m3: return f(E4m3{});
    default: break;
  }
  refuse_pages(type, kernel);
}

}  // namespace nibble::backend::cuda
