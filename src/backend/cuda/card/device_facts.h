#pragma once
// What plans and choices need to know of a card (cudaDeviceProp), what it may be taken for, and why there is none to
// run on. Plain C++.

#include "backend/cuda/launch/launch.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace nibble::backend::cuda {

struct DeviceFacts {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int code = 0;              // 80 where this build's kernels for the card are code for sm_80, …; 0: for its own
  int multiprocessors = 0;
  int64_t memory_bytes = 0;
  double memory_bytes_per_s = 0;  // its memory's clock times its width: more than reads reach; 0: unknown
  int64_t cta_smem_bytes = 0, sm_smem_bytes = 0;  // shared memory that a block may opt in to; that an SM has
  bool integrated = false;                        // its memory is the machine's
};

[[nodiscard]] inline PlanDevice plan_device(const DeviceFacts& facts) {
  const int code = facts.code != 0 ? facts.code : 10 * facts.major + facts.minor;
  return {.sms = facts.multiprocessors,
          .cta_smem_bytes = facts.cta_smem_bytes,
          .sm_smem_bytes = facts.sm_smem_bytes,
          .chained = code >= 90};
}

// Up to which size of a step one kernel is faster than the next: what `nibble bench --tune` measures and prints, for an
// architecture's Arch::tuned.
struct Tuned {
  // Who multiplies the experts of more than 8 tokens (program/choices.h experts_by_gemm). A pair is a token with one of
  // its topk experts. `grouped` serves up to grouped_pairs pairs per expert; GEMMs (and sm90_grouped) serve more. A
  // GEMM that does both products in one launch serves small steps, too: of up to gemm_at_once_pairs pairs, or of models
  // with so many experts.
  int64_t gemm_at_once_pairs = 0, grouped_pairs = 0;
  // grouped_pairs, if more, where each product is a GEMM of its own or has a width of its own, but not of
  // codes (FP8). Not measured by --tune.
  int64_t grouped_pairs_apart = 0;
  // Experts' rows that GEMMs would multiply as codes (FP8) stay as they are up to so many pairs per expert, where
  // nobody chose the kernels. Not measured by --tune.
  int64_t exact_pairs = 0;
  int64_t route_tokens = 0;  // up to so many tokens the router is not any_route_sums
  // Up to 8 tokens: whether o is read in two halves of K where that balances the SMs (gemv_plan.h balances_in_halves).
  // Not measured by --tune.
  bool o_in_halves = false;
};

// An architecture that a card may be taken for, an older one: what its kernels, its plans and its figures are there.
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
// compiled for it: require_kernels refuses others. Once, before other threads.
void mask_card(const std::optional<CardArch>& arch);
[[nodiscard]] const std::optional<CardArch>& card_mask();

// CUDA's versions as it counts them: 1000 * major + 10 * minor.
struct CudaVersions {
  int driver = 0;   // the newest that the driver knows; 0: there is no driver
  int runtime = 0;  // of this build
};

// cudaError_t by its numbers (device.cpp holds them against CUDA's): what the first call may answer.
inline constexpr int kCudaInsufficientDriver = 35, kCudaNoDevice = 100;

// Why there is no card to run on: one sentence each, that says what would help. `says`: CUDA's own words for the
// status, for one that has no sentence here.
[[nodiscard]] std::string why_no_device(int status, const CudaVersions& versions, std::string_view says);

// `archs`: those of the build, as CMake names them: "90a-real 121a-real 90-virtual".
[[nodiscard]] std::string why_no_kernels(const DeviceFacts& card, std::string_view archs);

// `card`: taken for one of `wanted`.
[[nodiscard]] std::string why_no_masked_kernels(const DeviceFacts& card, const CardArch& wanted);

}  // namespace nibble::backend::cuda
