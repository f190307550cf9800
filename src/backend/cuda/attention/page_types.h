#pragma once
// KV pages as this room's kernels know them, and the types that there are: a type is a line of with_page_type and a
// PageRow in page_rows.cuh. Plain C++.

#include "backend/kv_dtype.h"

#include <algorithm>
#include <cstdint>

namespace nibble::backend::cuda {

// One layer's keys and values, each [page, kv_head] of kPageTokens rows. A row is a head of a token.
struct KvPages {
  void* keys = nullptr;
  void* values = nullptr;
  KvDtype type = KvDtype::kBf16;
};

// f.operator()<type>() of a type that require_pages() lets through, on the host and on the card.
template <class F>
constexpr void with_page_type(KvDtype type, const F& f) {
  if (type == KvDtype::kF32) {
    f.template operator()<KvDtype::kF32>();
  } else if (type == KvDtype::kBf16) {
    f.template operator()<KvDtype::kBf16>();
  } else {
    f.template operator()<KvDtype::kE4m3>();
  }
}
static_assert(std::ranges::all_of(kKvTypes,
                                  [](const KvType& type) {
                                    bool met = false;
                                    with_page_type(type.dtype, [&]<KvDtype kType>() { met = kType == type.dtype; });
                                    return met == type.on.has(BackendKind::kCuda) && (!met || stands_alone(type));
                                  }),
              "the types that backend/kv_dtype.h gives to cuda; kernels store a value without its neighbours");

// Throws Error(kUnsupported) that names the type where no kernel here takes it.
inline void require_pages(KvDtype type) { require_taken(type_of(type), BackendKind::kCuda); }

// Whether attention on tensor cores takes it; any_attend, any_rope_kv and rope_sums take every type.
[[nodiscard]] constexpr bool on_tensor_cores(KvDtype type) { return type == KvDtype::kBf16 || type == KvDtype::kE4m3; }

// Bytes of a key or a value `values` wide.
[[nodiscard]] constexpr int64_t page_row_bytes(KvDtype type, int64_t values) {
  return row_bytes(type_of(type), values);
}

}  // namespace nibble::backend::cuda
