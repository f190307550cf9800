#pragma once
// Counter-based random numbers (Philox4x32-10, Salmon et al., SC 2011): value = f(key, counter), no state, so host and
// device draw the same stream and a draw does not depend on its neighbours. Device code includes this, and its compiler
// does not take base/error.h.

#include <array>
#include <cstdint>
#include <span>

namespace nibble {

using Philox4 = std::array<uint32_t, 4>;

[[nodiscard]] constexpr Philox4 philox(uint64_t key, uint64_t counter_low, uint64_t counter_high = 0) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  Philox4 c = {static_cast<uint32_t>(counter_low), static_cast<uint32_t>(counter_low >> 32),
               static_cast<uint32_t>(counter_high), static_cast<uint32_t>(counter_high >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c[0], p1 = uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// Uniform in [0, 1) with 24 bits.
[[nodiscard]] constexpr float uniform_float(uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1p-24f; }

// Bytes that cannot be guessed, from the system's generator: for ids and seeds. std::random_device would use rdseed,
// which takes a millisecond for an id. REQUIRES at most 256 bytes. Throws Error(kIo) if the system has no generator.
void fill_unguessable(std::span<uint8_t> bytes);

}  // namespace nibble
