#pragma once
// One layer's keys and values in pages. A page of a kv head holds the codes of its rows as KvCodec places them: keys
// [head_dim, kPageTokens], values [kPageTokens, head_dim]; and after either the scales of types that have some.

#include "backend/args.h"
#include "backend/dims.h"
#include "backend/kv_dtype.h"
#include "base/buffer.h"
#include "base/dtype.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace nibble::backend::cpu {

// What each type of keys and values is here: one KvCodec per type that backend/kv_dtype.h
// gives to cpu, and the table of them. Vectors: a type may have a faster widening in simd.cpp.

// A page of a kv head: its keys, or its values. The codes of all its rows, then the scales of all.
struct KvPage {
  void* codes;
  void* scales;
};

// A token's row of a page: code i, of a KvCodec's kValues values, is number first + i * step of the codes.
struct KvPlace {
  int64_t token, first, step;
  [[nodiscard]] int64_t code(int64_t i) const { return first + i * step; }
};
enum class KvPart : uint8_t { kKeys, kValues };
// codes: of a row. Keys are transposed, so that scores of neighbouring keys are neighbours.
[[nodiscard]] constexpr KvPlace row_place(KvPart part, int64_t token, int64_t codes) {
  return part == KvPart::kKeys ? KvPlace{token, token, kPageTokens} : KvPlace{token, token * codes, 1};
}

// Rows [from, to) of a page as floats.
struct WidenArgs {
  KvPage page;  // [.., cols]
  int64_t cols;
  int from, to;
  bool scale_per_row;  // of values: a row is a token's; else of keys, a column is, at most kPageTokens
  float* out;          // [.., cols], divided by the type's unit
};

// How products can take pages without widening.
enum class KvOperand : uint8_t { kNone, kBf16, kF32 };

template <KvDtype kType>
struct KvCodec;

template <class Code>
struct PlainKvCodec {
  static constexpr int kValues = 1;  // of a code
  static constexpr KvOperand kOperand = KvOperand::kNone;
  static constexpr float kUnit = 1;  // widened values come divided by it
  template <class Encode>
  static void each(std::span<const float> row, const KvPage& page, const KvPlace& at, const Encode& code) {
    for (size_t d = 0; d < row.size(); ++d)
      static_cast<Code*>(page.codes)[at.code(static_cast<int64_t>(d))] = code(row[d]);
  }
  static Code code(const KvPage& page, const KvPlace& at, int64_t d) {
    return static_cast<const Code*>(page.codes)[at.code(d)];
  }
};

template <>
struct KvCodec<KvDtype::kBf16> : PlainKvCodec<Bf16> {
  static constexpr KvOperand kOperand = KvOperand::kBf16;
  static void store(std::span<const float> row, const KvPage& page, const KvPlace& at) {
    each(row, page, at, Bf16::from_float);
  }
  static float value(const KvPage& page, const KvPlace& at, int64_t d) { return code(page, at, d).to_float(); }
};
template <>
struct KvCodec<KvDtype::kF32> : PlainKvCodec<float> {
  static constexpr KvOperand kOperand = KvOperand::kF32;
  static void store(std::span<const float> row, const KvPage& page, const KvPlace& at) {
    each(row, page, at, [](float x) { return x; });
  }
  static float value(const KvPage& page, const KvPlace& at, int64_t d) { return code(page, at, d); }
};
template <>
struct KvCodec<KvDtype::kE4m3> : PlainKvCodec<E4m3> {
  static constexpr float kUnit = 256.0f;  // between the codes' bits as an F16's and their values
  static void store(std::span<const float> row, const KvPage& page, const KvPlace& at) {
    each(row, page, at, E4m3::from_float);
  }
  static float value(const KvPage& page, const KvPlace& at, int64_t d) { return code(page, at, d).to_float() / kUnit; }
};
// A scale per token.
template <>
struct KvCodec<KvDtype::kInt8> : PlainKvCodec<int8_t> {
  static void store(std::span<const float> row, const KvPage& page, const KvPlace& at) {
    const Bf16 scale = int8_scale(row);
    static_cast<Bf16*>(page.scales)[at.token] = scale;
    each(row, page, at, [&](float x) { return int8_code(x, scale); });
  }
  static float value(const KvPage& page, const KvPlace& at, int64_t d) {
    return code(page, at, d) * static_cast<const Bf16*>(page.scales)[at.token].to_float();
  }
};

template <class Row>
void widen_rows(const WidenArgs& args) {
  const KvPart part = args.scale_per_row ? KvPart::kValues : KvPart::kKeys;
  for (int64_t r = args.from; r < args.to; ++r)
    for (int64_t c = 0; c < args.cols; ++c) {
      const int64_t token = args.scale_per_row ? r : c, d = args.scale_per_row ? c : r;
      args.out[r * args.cols + c] = Row::value(args.page, row_place(part, token, args.cols / Row::kValues), d);
    }
}

// A KvCodec as the cache and attention ask it.
struct KvFormat {
  KvType type;
  int values;
  KvOperand operand;
  float unit;
  void (*store)(std::span<const float> row, const KvPage& page, const KvPlace& at);
  void (*widen)(const WidenArgs& args);
};
template <class Row>
[[nodiscard]] constexpr KvFormat format_of(const KvType& type) {
  return {type, Row::kValues, Row::kOperand, Row::kUnit, Row::store, widen_rows<Row>};
}
// By KvDtype.
inline constexpr auto kKvFormats = []<size_t... kIdx>(std::index_sequence<kIdx...>) {
  return std::array{format_of<KvCodec<kKvTypes[kIdx].dtype>>(kKvTypes[kIdx])...};
}(std::make_index_sequence<kKvDtypes>());
[[nodiscard]] constexpr const KvFormat& format_of(KvDtype dtype) { return kKvFormats[static_cast<size_t>(dtype)]; }

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

  // Bytes of a KvPage, a multiple of 64.
  [[nodiscard]] int64_t page_bytes() const { return page_bytes_; }

  void copy(int32_t from, int32_t to) {
    for (const KvPart part : {KvPart::kKeys, KvPart::kValues})
      std::memcpy(at(part, to, 0), at(part, from, 0), static_cast<size_t>(dims_.kv_heads * page_bytes()));
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
