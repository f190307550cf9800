#pragma once
// One layer's keys and values in pages. A page of a kv head: keys [head_dim, kPageTokens], transposed so that scores of
// neighbouring keys are neighbours, and values [kPageTokens, head_dim]; int8 has a scale per token behind either.

#include "backend/args.h"
#include "backend/dims.h"
#include "backend/kv_dtype.h"
#include "base/buffer.h"
#include "base/dtype.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

namespace nibble::backend::cpu {

// A page of a kv head: its keys, or its values.
struct KvPage {
  const void* codes;
  const Bf16* scales;  // [kPageTokens], of int8 only
};

class KvCache {
 public:
  KvCache(const Dims& dims, int32_t pages, KvDtype dtype)
      : dims_(dims), dtype_(dtype), pages_(pages), memory_(Buffer::zeroed(2 * pages * dims.kv_heads * page_bytes())) {}

  [[nodiscard]] KvDtype dtype() const { return dtype_; }

  // k and v: [kv_heads, head_dim] of one token.
  void write(int32_t slot, const float* k, const float* v) {
    const auto dim = static_cast<size_t>(dims_.head_dim);
    const int64_t token = slot % kPageTokens;
    for (int64_t h = 0; h < dims_.kv_heads; ++h) {
      const int32_t page = slot / kPageTokens;
      store({k + h * dims_.head_dim, dim}, at(kKeys, page, h), {token, token, kPageTokens});
      store({v + h * dims_.head_dim, dim}, at(kValues, page, h), {token, token * dims_.head_dim, 1});
    }
  }

  [[nodiscard]] KvPage keys(int32_t page, int64_t kv_head) const { return view(at(kKeys, page, kv_head)); }
  [[nodiscard]] KvPage values(int32_t page, int64_t kv_head) const { return view(at(kValues, page, kv_head)); }

  // Of a KvPage, a multiple of 64.
  [[nodiscard]] int64_t page_bytes() const {
    return codes_bytes() + kPageTokens * int64_t{type_of(dtype_).scale_bytes};
  }

  void copy(int32_t from, int32_t to) {
    for (const Part part : {kKeys, kValues}) {
      std::memcpy(at(part, to, 0), at(part, from, 0), static_cast<size_t>(dims_.kv_heads * page_bytes()));
    }
  }

  // NaN everywhere: reading what was never written shows. For tests.
  void poison() {
    const std::vector<float> nan(static_cast<size_t>(dims_.kv_width()), std::numeric_limits<float>::quiet_NaN());
    for (int32_t slot = 0; slot < pages_ * kPageTokens; ++slot) write(slot, nan.data(), nan.data());
  }

 private:
  enum Part { kKeys, kValues };
  struct Place {
    int64_t token, first, step;  // element d of the token's row is at first + d * step
  };

  [[nodiscard]] int64_t codes_bytes() const {
    const int64_t bytes = type_of(dtype_).value_bytes;
    return kPageTokens * dims_.head_dim * bytes;
  }
  [[nodiscard]] std::byte* at(Part part, int32_t page, int64_t kv_head) const {
    return memory_.as<std::byte>() + ((int64_t{part} * pages_ + page) * dims_.kv_heads + kv_head) * page_bytes();
  }
  [[nodiscard]] KvPage view(const std::byte* page) const {
    return {page, reinterpret_cast<const Bf16*>(page + codes_bytes())};
  }

  void store(std::span<const float> row, std::byte* page, const Place& place) const {
    const auto each = [&](auto* out, const auto& code) {
      for (size_t d = 0; d < row.size(); ++d) out[place.first + static_cast<int64_t>(d) * place.step] = code(row[d]);
    };
    switch (dtype_) {
      case KvDtype::kBf16: return each(reinterpret_cast<Bf16*>(page), Bf16::from_float);
      case KvDtype::kF32: return each(reinterpret_cast<float*>(page), [](float x) { return x; });
      case KvDtype::kE4m3: return each(reinterpret_cast<E4m3*>(page), E4m3::from_float);
      case KvDtype::kInt8: {
        const Bf16 scale = int8_scale(row);
        reinterpret_cast<Bf16*>(page + codes_bytes())[place.token] = scale;
        return each(reinterpret_cast<int8_t*>(page), [&](float x) { return int8_code(x, scale); });
      }
    }
  }

  const Dims& dims_;
  KvDtype dtype_;
  int64_t pages_;
  Buffer memory_;
};

}  // namespace nibble::backend::cpu
