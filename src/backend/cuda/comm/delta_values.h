#pragma once
// Values of a delta as they lie on the card, in whatever form: a delta is linear in each, so those of several ranks are
// just added, value by value.

#include <cstdint>

namespace nibble::backend::cuda {

struct DeltaValues {
  void* at = nullptr;
  int64_t count = 0;
  enum class Type : uint8_t { kF32, kBf16 } type = Type::kF32;
};

}  // namespace nibble::backend::cuda
