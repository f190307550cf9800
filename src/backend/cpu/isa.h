#pragma once
// The instruction sets that a user may ask for.

#include <cstdint>
#include <string_view>

namespace nibble::backend {

enum class CpuIsa : uint8_t {
  kAuto,      // the best that this CPU has
  kBaseline,  // what every CPU of this build's architecture has: SSE2, NEON
  kAvx2,      // with FMA and F16C
  kAvx512,    // with VBMI and VNNI: Ice Lake, Zen 4 and later
  kAmx,       // the same with tiles of int8: Sapphire Rapids and later
};

}  // namespace nibble::backend
