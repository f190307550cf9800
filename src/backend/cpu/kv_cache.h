#pragma once
// One layer's keys and values in pages, bf16 or float. A page of a kv head: keys [head_dim, kPageTokens], transposed so
// that scores of neighbouring keys are neighbours, and values [kPageTokens, head_dim].

#include "backend/args.h"
#include "backend/cpu/cpu_backend.h"
#include "base/buffer.h"
#include "base/dtype.h"

#include <cstdint>
#include <cstring>
#include <limits>

namespace nibble::backend::cpu {

class KvCache {
 public:
  KvCache(const Dims& dims, int32_t pages, KvDtype dtype)
      : dims_(dims),
        dtype_(dtype),
        values_at_(int64_t{pages} * kPageTokens * dims.kv_width()),
        memory_(Buffer::zeroed(2 * values_at_ * element_bytes())) {}

  [[nodiscard]] bool is_bf16() const { return dtype_ == KvDtype::kBf16; }

  // k and v: [kv_heads, head_dim] of one token.
  void write(int32_t slot, const float* k, const float* v) {
    const int64_t token = slot % kPageTokens, dim = dims_.head_dim;
    for (int64_t h = 0; h < dims_.kv_heads; ++h) {
      const int64_t page = page_at(slot / kPageTokens, h);
      for (int64_t d = 0; d < dim; ++d) {
        store(page + d * kPageTokens + token, k[h * dim + d]);
        store(values_at_ + page + token * dim + d, v[h * dim + d]);
      }
    }
  }

  [[nodiscard]] const void* keys(int32_t page, int64_t kv_head) const { return address(page_at(page, kv_head)); }
  [[nodiscard]] const void* values(int32_t page, int64_t kv_head) const {
    return address(values_at_ + page_at(page, kv_head));
  }

  // Of a page of one kv head: its keys, or its values.
  [[nodiscard]] int64_t page_bytes() const { return kPageTokens * dims_.head_dim * element_bytes(); }

  void copy(int32_t from, int32_t to) {
    const int64_t bytes = page_at(1, 0) * element_bytes();
    for (const int64_t part : {int64_t{0}, values_at_}) {
      std::byte* pages = memory_.as<std::byte>() + part * element_bytes();
      std::memcpy(pages + to * bytes, pages + from * bytes, static_cast<size_t>(bytes));
    }
  }

  // NaN everywhere: reading what was never written shows. For tests.
  void poison() {
    for (int64_t i = 0; i < 2 * values_at_; ++i) store(i, std::numeric_limits<float>::quiet_NaN());
  }

 private:
  [[nodiscard]] int64_t element_bytes() const { return is_bf16() ? 2 : 4; }
  [[nodiscard]] int64_t page_at(int32_t page, int64_t kv_head) const {
    return (page * dims_.kv_heads + kv_head) * kPageTokens * dims_.head_dim;
  }
  [[nodiscard]] const void* address(int64_t at) const { return memory_.as<std::byte>() + at * element_bytes(); }
  void store(int64_t at, float value) {
    if (is_bf16()) {
      memory_.as<Bf16>()[at] = Bf16::from_float(value);
    } else {
      memory_.as<float>()[at] = value;
    }
  }

  const Dims& dims_;
  KvDtype dtype_;
  int64_t values_at_;  // element index of the values
  Buffer memory_;
};

}  // namespace nibble::backend::cpu
