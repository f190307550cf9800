#pragma once
// KV pages as this room's kernels know them: a type that backend/kv_dtype.h gives to cuda is a PageRow in
// page_rows.cuh. Plain C++.

#include "backend/kv_dtype.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace nibble::backend::cuda {

// One layer's keys and values, each [page, kv_head] of kPageTokens rows. A row is a head of a token.
struct KvPages {
  void* keys = nullptr;
  void* values = nullptr;
  KvDtype type = KvDtype::kBf16;
};

// f.operator()<type>() of a type that require_pages() lets through, on the host and on the card.
template <size_t kIdx = 0, class F>
constexpr void with_page_type(KvDtype type, const F& f) {
  if constexpr (kIdx < kKvDtypes) {
    if constexpr (kKvTypes[kIdx].on.has(BackendKind::kCuda))
      if (type == kKvTypes[kIdx].dtype) return f.template operator()<kKvTypes[kIdx].dtype>();
    with_page_type<kIdx + 1>(type, f);
  }
}
static_assert(std::ranges::all_of(kKvTypes,
                                  [](const KvType& type) {
                                    return !type.on.has(BackendKind::kCuda) || stands_alone(type);
                                  }),
              "kernels store a value without its neighbours");

// Throws Error(kUnsupported) that names the type where no kernel here takes it.
inline void require_pages(KvDtype type) { require_taken(type_of(type), BackendKind::kCuda); }

// Whether attention on tensor cores takes it; any_attend, any_rope_kv and rope_sums take every type.
[[nodiscard]] constexpr bool on_tensor_cores(KvDtype type) { return type == KvDtype::kBf16 || type == KvDtype::kE4m3; }

// Bytes of a key or a value `values` wide.
[[nodiscard]] constexpr int64_t page_row_bytes(KvDtype type, int64_t values) {
  return row_bytes(type_of(type), values);
}

}  // namespace nibble::backend::cuda
