#include "backend/draft_head.h"

#include "base/dtype.h"

#include <cstring>

namespace nibble::backend {
namespace {

template <class T>
T element(const std::byte* row, int64_t at) {
  T value;
  std::memcpy(&value, row + at * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

}  // namespace

void HeadMatrix::decode(int64_t row, float* out) const {
  const std::byte* const from = values.bytes.data() + row * cols() * bytes_of(values.dtype);
  switch (values.dtype) {
    case DType::kF32: std::memcpy(out, from, static_cast<size_t>(cols()) * sizeof(float)); break;
    case DType::kF16:
      for (int64_t i = 0; i < cols(); ++i) out[i] = F16{element<uint16_t>(from, i)}.to_float();
      break;
    default:
      for (int64_t i = 0; i < cols(); ++i) out[i] = Bf16{element<uint16_t>(from, i)}.to_float();
  }
}

std::vector<HeadRunner::Rows> HeadRunner::unread_of(std::span<const Draft> drafts) {
  std::vector<Rows> unread;
  for (const Draft& draft : drafts)
    if (draft.unread != nullptr) unread.push_back(*draft.unread);
  return unread;
}

}  // namespace nibble::backend
