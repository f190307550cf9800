#pragma once
// A card taken for one of an older architecture: what its kernels, its plans and its figures are there. Plain C++.

#include "backend/cuda/card/device_facts.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace nibble::backend::cuda {

struct CardArch {
  std::string_view name;  // as nvcc calls it
  int major = 0, minor = 0;
  int64_t cta_smem_bytes = 0, sm_smem_bytes = 0;  // DeviceFacts

  [[nodiscard]] constexpr int code() const { return 10 * major + minor; }  // DeviceFacts::code
};

// Throws Error(kInvalidRequest) for a name that is none of those that kernels are built for: "sm_80" to "sm_121".
[[nodiscard]] CardArch card_arch(std::string_view name);

// The card as one of the architecture: its compute capability, no more shared memory than that has.
[[nodiscard]] DeviceFacts taken_for(const DeviceFacts& card, const CardArch& arch);

// From now on this process takes its cards for ones of this architecture; none: of their own. Their kernels must be
// compiled for it: kernels_for refuses others. Once, before other threads.
void mask_card(const std::optional<CardArch>& arch);
[[nodiscard]] const std::optional<CardArch>& card_mask();

}  // namespace nibble::backend::cuda
