#pragma once
// The types of KV pages that the kernels of this room take, and which kernels. A type is a line here and a PageRow in
// page_rows.cuh: instances, names and dispatch come from these. Plain C++.

#include "backend/kv_dtype.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <string_view>
#include <utility>

namespace nibble::backend::cuda {

// One layer's keys and values, each [page, kv_head] of kPageTokens rows: their codes one after the other, then, of a
// type that has any, the rows' scales. A row is a head of a token.
struct KvPages {
  void* keys = nullptr;
  void* values = nullptr;
  KvDtype type = KvDtype::kBf16;
};

// Every type is taken by the general kernels: any_attend, any_rope_kv and rope_sums.
struct PageType {
  KvDtype dtype;
  bool alone;    // kernels that store value by value take it: a product with rope at its end
  bool decode;   // any_attend_decode takes it
  bool prefill;  // any_attend_prefill takes it; else any_attend has the steps with long rows
};
inline constexpr PageType kPageTypes[] = {
    {KvDtype::kF32, true, false, false}, {KvDtype::kBf16, true, true, true}, {KvDtype::kE4m3, true, true, true}};
static_assert(
    [] {
      for (const KvType& type : kKvTypes)
        if (type.on.has(BackendKind::kCuda) !=
            std::ranges::any_of(kPageTypes, [&](const PageType& pages) { return pages.dtype == type.dtype; }))
          return false;
      return std::ranges::all_of(
          kPageTypes, [](const PageType& pages) { return !pages.alone || stands_alone(type_of(pages.dtype)); });
    }(),
    "as many types as backend/kv_dtype.h gives to cuda");

// Throws Error(kUnsupported) that names the type where no kernel here takes it.
[[nodiscard]] const PageType& page_type(KvDtype type);

// Bytes of a key or a value `values` wide.
[[nodiscard]] constexpr int64_t page_row_bytes(KvDtype type, int64_t values) {
  return row_bytes(type_of(type), values);
}

// The types for which `takes` holds: f.operator()<type>() of the one that is asked for; false where there is none.
template <class Takes, class F>
constexpr bool with_page_type(KvDtype type, Takes /*takes*/, F f) {
  return [&]<size_t... kIdx>(std::index_sequence<kIdx...>) {
    const auto one = [&]<size_t kAt>() {
      if constexpr (Takes{}(kPageTypes[kAt])) {
        if (kPageTypes[kAt].dtype != type) return false;
        f.template operator()<kPageTypes[kAt].dtype>();
        return true;
      } else {
        return false;
      }
    };
    return (one.template operator()<kIdx>() || ...);
  }(std::make_index_sequence<std::size(kPageTypes)>());
}

}  // namespace nibble::backend::cuda
