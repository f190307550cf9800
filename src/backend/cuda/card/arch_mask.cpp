#include "backend/cuda/card/arch_mask.h"

#include "base/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

namespace nibble::backend::cuda {
namespace {

constexpr int64_t kKib = 1024;
// CUDA C++ Programming Guide 13.0, technical specifications per compute capability: shared memory of a block, of an SM.
constexpr CardArch kArchs[] = {
    {.name = "sm_80", .major = 8, .minor = 0, .cta_smem_bytes = 163 * kKib, .sm_smem_bytes = 164 * kKib},
    {.name = "sm_86", .major = 8, .minor = 6, .cta_smem_bytes = 99 * kKib, .sm_smem_bytes = 100 * kKib},
    {.name = "sm_89", .major = 8, .minor = 9, .cta_smem_bytes = 99 * kKib, .sm_smem_bytes = 100 * kKib},
    {.name = "sm_90", .major = 9, .minor = 0, .cta_smem_bytes = 227 * kKib, .sm_smem_bytes = 228 * kKib},
    {.name = "sm_100", .major = 10, .minor = 0, .cta_smem_bytes = 227 * kKib, .sm_smem_bytes = 228 * kKib},
    {.name = "sm_120", .major = 12, .minor = 0, .cta_smem_bytes = 99 * kKib, .sm_smem_bytes = 100 * kKib},
    {.name = "sm_121", .major = 12, .minor = 1, .cta_smem_bytes = 99 * kKib, .sm_smem_bytes = 100 * kKib}};

std::optional<CardArch> mask;  // the process's, as the driver's answers are

}  // namespace

CardArch card_arch(std::string_view name) {
  const auto* const found = std::ranges::find(kArchs, name, &CardArch::name);
  if (found != std::end(kArchs)) return *found;
  std::vector<std::string_view> names;
  for (const CardArch& arch : kArchs) names.push_back(arch.name);
  throw Error(Code::kInvalidRequest, "want {}, found {}", fmt::join(names, ", "), name);
}

DeviceFacts taken_for(const DeviceFacts& card, const CardArch& arch) {
  DeviceFacts facts = card;
  facts.name = fmt::format("{} as {}", card.name, arch.name);
  facts.major = arch.major;
  facts.minor = arch.minor;
  facts.cta_smem_bytes = std::min(card.cta_smem_bytes, arch.cta_smem_bytes);
  facts.sm_smem_bytes = std::min(card.sm_smem_bytes, arch.sm_smem_bytes);
  return facts;
}

void mask_card(const std::optional<CardArch>& arch) { mask = arch; }
const std::optional<CardArch>& card_mask() { return mask; }

}  // namespace nibble::backend::cuda
