#pragma once
// One layer's keys and values in pages. A page of a kv head holds the codes of its rows as kv_row.h places them: keys
// [head_dim, kPageTokens], values [kPageTokens, head_dim]; and behind either the scales of types that have some.

#include "backend/args.h"
#include "backend/cpu/kv_row.h"
#include "backend/dims.h"
#include "backend/kv_dtype.h"
#include "base/buffer.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

namespace nibble::backend::cpu {

class KvCache {
 public:
  KvCache(const Dims& dims, int32_t pages, KvDtype dtype) : KvCache(dims, pages, format_of(dtype)) {}
  // `format` outlives the cache.
  KvCache(const Dims& dims, int32_t pages, const KvFormat& format)
      : dims_(dims),
        format_(format),
        codes_bytes_(kPageTokens * code_bytes(format.type, dims.head_dim)),
        page_bytes_(kPageTokens * row_bytes(format.type, dims.head_dim)),
        pages_(pages),
        memory_(Buffer::zeroed(2 * pages * dims.kv_heads * page_bytes_)) {}

  [[nodiscard]] const KvFormat& format() const { return format_; }

  // k and v: [kv_heads, head_dim] of one token.
  void write(int32_t slot, const float* k, const float* v) {
    const auto dim = static_cast<size_t>(dims_.head_dim);
    const int64_t token = slot % kPageTokens, codes = dims_.head_dim / format_.values;
    for (int64_t h = 0; h < dims_.kv_heads; ++h) {
      const int32_t page = slot / kPageTokens;
      format_.store({k + h * dims_.head_dim, dim}, keys(page, h), row_place(KvPart::kKeys, token, codes));
      format_.store({v + h * dims_.head_dim, dim}, values(page, h), row_place(KvPart::kValues, token, codes));
    }
  }

  [[nodiscard]] KvPage keys(int32_t page, int64_t kv_head) const { return view(at(KvPart::kKeys, page, kv_head)); }
  [[nodiscard]] KvPage values(int32_t page, int64_t kv_head) const { return view(at(KvPart::kValues, page, kv_head)); }

  // Of a KvPage, a multiple of 64.
  [[nodiscard]] int64_t page_bytes() const { return page_bytes_; }

  void copy(int32_t from, int32_t to) {
    for (const KvPart part : {KvPart::kKeys, KvPart::kValues}) {
      std::memcpy(at(part, to, 0), at(part, from, 0), static_cast<size_t>(dims_.kv_heads * page_bytes()));
    }
  }

  // NaN everywhere: reading what was never written shows. For tests.
  void poison() {
    const std::vector<float> nan(static_cast<size_t>(dims_.kv_width()), std::numeric_limits<float>::quiet_NaN());
    for (int32_t slot = 0; slot < pages_ * kPageTokens; ++slot) write(slot, nan.data(), nan.data());
  }

 private:
  [[nodiscard]] std::byte* at(KvPart part, int32_t page, int64_t kv_head) const {
    return memory_.as<std::byte>() +
           ((static_cast<int64_t>(part) * pages_ + page) * dims_.kv_heads + kv_head) * page_bytes();
  }
  [[nodiscard]] KvPage view(std::byte* page) const { return {page, page + codes_bytes_}; }

  const Dims& dims_;
  const KvFormat& format_;
  const int64_t codes_bytes_, page_bytes_;  // of a KvPage
  int64_t pages_;
  Buffer memory_;
};

}  // namespace nibble::backend::cpu
