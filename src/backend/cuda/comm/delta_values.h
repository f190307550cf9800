#pragma once
// Values of a delta as they lie on the card, in whatever form: a delta is linear in each, so those of several ranks are
// just added, value by value. Of a short message, in floats, two more things may be done in the same launch.

#include <cstdint>

namespace nibble::backend::cuda {

struct DeltaValues {
  void* at = nullptr;
  int64_t count = 0;
  enum class Type : uint8_t { kF32, kBf16 } type = Type::kF32;
  const float* rest = nullptr;  // as many floats, each rank's: added to its values
  float* into = nullptr;        // as many floats: gets the sums added, and `at` is left alone
  // Each rank's are where PartPlaces says (share_box.h): with those who add them up, by shares; or all with all, who
  // read them there.
  enum class Sending : uint8_t { kNot, kToOwners, kToAll } sent = Sending::kNot;

  [[nodiscard]] constexpr int64_t bytes() const { return (type == Type::kF32 ? 4 : 2) * count; }
  [[nodiscard]] constexpr int64_t words() const { return (bytes() + 3) / 4; }  // of 32 bits
};

}  // namespace nibble::backend::cuda
