#include "backend/cuda/program/program.h"

#include "backend/cuda/layout/mx_b_n8k64.h"
#include "backend/cuda/layout/wgmma_b.h"
#include "base/dtype.h"
#include "base/mx.h"

#include <cstring>

namespace nibble::backend::cuda {
namespace {

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

float code_value(MxFormat element, const std::byte* row, int cols, int k) {
  const auto byte = [&](int at) { return static_cast<uint8_t>(row[at]); };
  const E8m0 scale{byte(layout::mx_scale_offset(element, cols, k / layout::kBlockK))};
  const int code = byte(layout::mx_code_offset(element, k)) >> layout::mx_code_shift(element, k);
  return mx_decode(element, static_cast<uint8_t>(code & ((1 << layout::mx_code_bits(element)) - 1)), scale);
}

float value_at(const Held& held, const std::byte* memory, int64_t row, int64_t k) {
  const int64_t at = held.panel_rows > 0 ? layout::place_in_panels(held.panel_rows, row, k) : row * held.width + k;
  switch (held.type) {
    case Held::Type::kF32: return load<float>(memory + 4 * at);
    case Held::Type::kI32: return static_cast<float>(load<int32_t>(memory + 4 * at));
    case Held::Type::kF16: return load<F16>(memory + 2 * at).to_float();
    case Held::Type::kBf16: return load<Bf16>(memory + 2 * at).to_float();
    case Held::Type::kCodes: {
      const MxFormat element = element_of(held.codes);
      const auto width = static_cast<int>(held.width);
      return code_value(element, memory + row * layout::mx_row_bytes(element, width), width, static_cast<int>(k));
    }
  }
  return 0;
}

}  // namespace

int64_t Held::bytes() const {
  if (type == Type::kCodes) return rows * layout::mx_row_bytes(element_of(codes), static_cast<int>(width));
  return (panel_rows > 0 ? panel_rows : splits * rows) * width * (type == Type::kF32 || type == Type::kI32 ? 4 : 2);
}

std::vector<float> Held::values(std::span<const std::byte> memory, std::span<const int32_t> place_of) const {
  std::vector<float> all;
  all.reserve(static_cast<size_t>(rows * cols));
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t first = places == nullptr ? row : place_of[static_cast<size_t>(row)];
    for (int64_t k = 0; k < cols; ++k) {
      float value = first < 0 ? 0 : value_at(*this, memory.data(), first, k);
      for (int split = 1; split < splits; ++split) value += value_at(*this, memory.data(), split * rows + row, k);
      all.push_back(value);
    }
  }
  if (rounds(rounded_to)) round_activations(rounded_to, all);
  return all;
}

}  // namespace nibble::backend::cuda
