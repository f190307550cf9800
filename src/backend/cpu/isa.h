#pragma once
// Which instruction sets this process may use.

#include "backend/run_config.h"

#include <string_view>

namespace nibble::backend {

// Throws Error(kInvalidRequest) for a name that is no instruction set's.
[[nodiscard]] CpuIsa isa_named(std::string_view name);

// From now on this process finds nothing beyond `most`, as on a machine that has no more, so nothing but the baseline
// where `most` is of another architecture; kAuto: all that there is. For tests; the whole process's, as CPUID's answers
// are. Once, before other threads.
void mask_isa(CpuIsa most);
[[nodiscard]] CpuIsa isa_mask();
// Whether the mask leaves `isa`, which says nothing of the CPU.
[[nodiscard]] bool unmasked(CpuIsa isa);
// Whether Highway's target for `isa` (AVX2, AVX3, NEON) may be called here: the CPU and its system have it, the mask
// leaves it. Not Highway's own answer, since that needs its library, of which every distribution has another.
[[nodiscard]] bool runs_target(CpuIsa isa);
// Whether this processor wants what is fetched ahead in its first cache instead of the second (ahead.h).
[[nodiscard]] bool wants_first_cache();

}  // namespace nibble::backend
