#pragma once
// Views of tensors. A view never owns; it is passed by value.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace nibble {

// Row-major view: pointer and shape. T is const for inputs.
template <class T, int Rank>
struct TensorView {
  T* data = nullptr;
  std::array<int64_t, Rank> shape{};

  [[nodiscard]] constexpr int64_t size() const {
    int64_t n = 1;
    for (const int64_t d : shape) n *= d;
    return n;
  }
  // The sub-tensor at an index of the first dimension; an element when Rank is 1.
  constexpr decltype(auto) operator[](int64_t idx) const {
    if constexpr (Rank == 1) {
      return (data[idx]);
    } else {
      TensorView<T, Rank - 1> row;
      int64_t stride = 1;
      for (int d = 1; d < Rank; ++d) stride *= row.shape[d - 1] = shape[d];
      row.data = data + idx * stride;
      return row;
    }
  }
  [[nodiscard]] constexpr std::span<T> flat() const { return {data, static_cast<size_t>(size())}; }
};

enum class DType : uint8_t { kBool, kU8, kI8, kI16, kI32, kI64, kF8E4m3, kF8E5m2, kF16, kBf16, kF32, kF64 };

[[nodiscard]] constexpr int64_t bytes_of(DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kU8:
    case DType::kI8:
    case DType::kF8E4m3:
    case DType::kF8E5m2: return 1;
    case DType::kI16:
    case DType::kF16:
    case DType::kBf16: return 2;
    case DType::kI32:
    case DType::kF32: return 4;
    case DType::kI64:
    case DType::kF64: return 8;
  }
  return 0;
}

// safetensors' spelling: "BF16", "F32", "U8", …
[[nodiscard]] constexpr std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::kBool: return "BOOL";
    case DType::kU8: return "U8";
    case DType::kI8: return "I8";
    case DType::kI16: return "I16";
    case DType::kI32: return "I32";
    case DType::kI64: return "I64";
    case DType::kF8E4m3: return "F8_E4M3";
    case DType::kF8E5m2: return "F8_E5M2";
    case DType::kF16: return "F16";
    case DType::kBf16: return "BF16";
    case DType::kF32: return "F32";
    case DType::kF64: return "F64";
  }
  return "?";
}

using Shape = std::vector<int64_t>;

// A tensor whose type and rank are known only at run time: in files and uploads. Row-major.
struct RawTensor {
  DType dtype = DType::kU8;
  Shape shape;
  std::span<const std::byte> bytes;  // empty when only the description is known
};

}  // namespace nibble
