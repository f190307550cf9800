#include "backend/cuda/card/device_facts.h"

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

std::string version(int cuda) { return fmt::format("{}.{}", cuda / 1000, cuda % 1000 / 10); }

// The oldest driver of a CUDA major version serves all its minor ones.
std::string wanted_driver(int runtime) {
  constexpr int kMajor = 13;
  constexpr std::string_view kOldest = ", version 580 or newer";
  return fmt::format("an NVIDIA driver for CUDA {}{}", version(runtime), runtime / 1000 == kMajor ? kOldest : "");
}

// "121a-real" as "12.1": the last digit is the minor version. PTX serves all that follow, too.
std::string capability(std::string_view arch) {
  const std::string_view digits = arch.substr(0, arch.find_first_not_of("0123456789"));
  if (digits.size() < 2) return std::string(arch);
  const std::string_view newer = arch.find("-virtual") != std::string_view::npos ? " or newer" : "";
  return fmt::format("{}.{}{}", digits.substr(0, digits.size() - 1), digits.back(), newer);
}

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

std::string why_no_device(int status, const CudaVersions& versions, std::string_view says) {
  if (status == kCudaInsufficientDriver) {  // CUDA's answer where there is no driver, too
    if (versions.driver == 0)
      return fmt::format("want {}, found none: install it, or use --backend cpu", wanted_driver(versions.runtime));
    return fmt::format("want {}, found one for CUDA {}: update the driver", wanted_driver(versions.runtime),
                       version(versions.driver));
  }
  if (status == 0 || status == kCudaNoDevice)
    return fmt::format(
        "want a GPU, found none, but a driver for CUDA {}: is one built in, is it hidden by "
        "CUDA_VISIBLE_DEVICES or from this container?",
        version(versions.driver));
  return fmt::format("want a GPU and its driver, found {}", says);
}

std::string why_no_kernels(const DeviceFacts& card, std::string_view archs) {
  std::vector<std::string> built;
  while (!archs.empty()) {
    const size_t end = std::min(archs.find(' '), archs.size());
    if (end > 0) built.push_back(capability(archs.substr(0, end)));
    archs.remove_prefix(std::min(end + 1, archs.size()));
  }
  const std::string last = built.empty() ? std::string() : built.back();
  if (!built.empty()) built.pop_back();
  return fmt::format("want a card of compute capability {}{}{}, for which this build has kernels, found {} of {}.{}",
                     fmt::join(built, ", "), built.empty() ? "" : " or ", last, card.name, card.major, card.minor);
}

std::string why_no_masked_kernels(const DeviceFacts& card, const CardArch& wanted) {
  return fmt::format(
      "NIBBLE_CUDA_ARCH: want {}, found that this build runs code for sm_{} on {} (a build of that code alone, the "
      "preset h100-as-sm80, has an H100 run it)",
      wanted.name, card.code, card.name);
}

}  // namespace nibble::backend::cuda
