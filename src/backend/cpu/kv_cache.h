#pragma once
// One layer's keys and values in pages: [page, kv_head, kPageTokens, head_dim], bf16 or float.

#include "backend/args.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/simd.h"
#include "base/dtype.h"

#include <cstdint>
#include <limits>
#include <vector>

namespace nibble::backend::cpu {

class KvCache {
 public:
  KvCache(const Dims& dims, int32_t pages, KvDtype dtype) : dims_(dims) {
    const auto size = static_cast<size_t>(int64_t{pages} * kPageTokens * dims.kv_width());
    // NaN until written: reading past a sequence's end shows at once.
    constexpr float kUnwritten = std::numeric_limits<float>::quiet_NaN();
    if (dtype == KvDtype::kF32) {
      f32_.assign(2 * size, kUnwritten);
    } else {
      bf16_.assign(2 * size, Bf16::from_float(kUnwritten));
    }
    values_at_ = static_cast<int64_t>(size);
  }

  // k and v: [kv_heads, head_dim] of one token.
  void write(int32_t slot, const float* k, const float* v) {
    for (int h = 0; h < dims_.kv_heads; ++h) {
      const int64_t at = offset(slot / kPageTokens, h) + int64_t{slot % kPageTokens} * dims_.head_dim;
      store(at, k + int64_t{h} * dims_.head_dim);
      store(values_at_ + at, v + int64_t{h} * dims_.head_dim);
    }
  }

  // Rows [0, tokens) of a page as floats [tokens, head_dim]; `scratch` holds kPageTokens * head_dim floats.
  [[nodiscard]] const float* keys(int32_t page, int kv_head, int tokens, float* scratch) const {
    return rows(offset(page, kv_head), tokens, scratch);
  }
  [[nodiscard]] const float* values(int32_t page, int kv_head, int tokens, float* scratch) const {
    return rows(values_at_ + offset(page, kv_head), tokens, scratch);
  }

 private:
  [[nodiscard]] int64_t offset(int32_t page, int kv_head) const {
    return (int64_t{page} * dims_.kv_heads + kv_head) * kPageTokens * dims_.head_dim;
  }
  void store(int64_t at, const float* in) {
    for (int d = 0; d < dims_.head_dim; ++d) {
      if (!f32_.empty()) {
        f32_[static_cast<size_t>(at + d)] = in[d];
      } else {
        bf16_[static_cast<size_t>(at + d)] = Bf16::from_float(in[d]);
      }
    }
  }
  [[nodiscard]] const float* rows(int64_t at, int tokens, float* scratch) const {
    if (!f32_.empty()) return f32_.data() + at;
    decode_bf16(bf16_.data() + at, int64_t{tokens} * dims_.head_dim, scratch);
    return scratch;
  }

  const Dims& dims_;
  std::vector<float> f32_;  // one of the two is in use: keys, then values
  std::vector<Bf16> bf16_;
  int64_t values_at_ = 0;
};

}  // namespace nibble::backend::cpu
