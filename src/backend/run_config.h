#pragma once
// How a model is run: what was asked for or, once resolved, what computes. The application fills it from flags,
// variables and files; a backend resolves what it was left (resolved_cpu, resolved_cuda, resolved_reference) and reads
// nothing else. A new setting is a field here and a row of the option table (app/options/option.h).

#include "backend/activations.h"
#include "backend/backend_kind.h"
#include "backend/kv_dtype.h"
#include "backend/shards.h"
#include "backend/weights.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace nibble::backend {

// A card's kernels, of all that reads weights and of what stands around it (norms, rope): --moe-kernel, by vLLM's
// words. kAuto: packed matrices, each step on what was faster for its tokens; resolved, it stays where the shapes can
// be packed.
enum class KernelFamily : uint8_t {
  kAuto,
  kStreaming,  // "marlin": W4A16 on tensor cores, weights packed once, at upload
  kGemm,       // kStreaming for up to eight tokens; tensor-core GEMMs over the same weights for more
  kReference,  // plain loops in float, weights in row order
};
[[nodiscard]] constexpr std::string_view name_of(KernelFamily kernel) {
  constexpr std::array<std::string_view, 4> kNames = {"auto", "marlin", "gemm", "reference"};
  return kNames[static_cast<size_t>(kernel)];
}

// Tokens and rows of a tile of the experts' block-scaled GEMMs; kAuto: by how many pairs an expert has. The others want
// a card that has them (cuda/arch/sm121), and activations in MX blocks.
enum class MoeTile : uint8_t { kAuto, k64x128, k128x128 };
[[nodiscard]] constexpr std::string_view name_of(MoeTile tile) {
  constexpr std::array<std::string_view, 3> kNames = {"auto", "64x128", "128x128"};
  return kNames[static_cast<size_t>(tile)];
}
[[nodiscard]] constexpr int tokens_of(MoeTile tile) {
  return tile == MoeTile::kAuto ? 0 : tile == MoeTile::k64x128 ? 64 : 128;
}

// kFlash: tensor-core kernels; kReference: the plain one; kAuto: flash where it takes the model's heads and pages.
enum class AttentionKernel : uint8_t { kAuto, kFlash, kReference };
[[nodiscard]] constexpr std::string_view name_of(AttentionKernel kernel) {
  constexpr std::array<std::string_view, 3> kNames = {"auto", "flash", "reference"};
  return kNames[static_cast<size_t>(kernel)];
}

// What attention multiplies. kAuto, kBf16: queries and weights of 16 bits or better. kFp8: both rounded to E4M3
// (kv_dtype.h), with keys and values in E4M3.
enum class AttentionActivations : uint8_t { kAuto, kBf16, kFp8 };
[[nodiscard]] constexpr std::string_view name_of(AttentionActivations activations) {
  constexpr std::array<std::string_view, 3> kNames = {"auto", "bf16", "fp8"};
  return kNames[static_cast<size_t>(activations)];
}

// Which logits are computed where only the draw reads them. kAuto: those of few tokens through a short copy of the
// unembedding where memory has the room: the same tokens (screen.h). kOff: all of them.
enum class ScreenedHead : uint8_t { kAuto, kOff };
[[nodiscard]] constexpr std::string_view name_of(ScreenedHead screened) {
  return screened == ScreenedHead::kAuto ? "auto" : "off";
}

// The instruction sets of a CPU.
enum class CpuIsa : uint8_t {
  kAuto,      // the best that this CPU has
  kBaseline,  // what every CPU of this build's architecture has: SSE2, NEON
  kAvx2,      // with FMA and F16C
  kAvxVnni,   // the same with AVX-VNNI: Alder Lake, Zen 5 and later
  kAvx512,    // with VBMI and VNNI: Ice Lake, Zen 4 and later
  kAmx,       // the same with tiles of bf16: Sapphire Rapids and later
  kDotProd,   // Arm's SDOT (FEAT_DotProd): Cortex-A76, Neoverse N1 and later
  kI8mm,      // with SMMLA (FEAT_I8MM): Cortex-X2, Neoverse V1 and later, so Grace and GB10
};
inline constexpr std::array kCpuIsas = {CpuIsa::kAuto,   CpuIsa::kBaseline, CpuIsa::kAvx2,    CpuIsa::kAvxVnni,
                                        CpuIsa::kAvx512, CpuIsa::kAmx,      CpuIsa::kDotProd, CpuIsa::kI8mm};
[[nodiscard]] constexpr std::string_view name_of(CpuIsa isa) {
  constexpr std::array<std::string_view, 8> kNames = {"auto",   "baseline", "avx2",    "avxvnni",
                                                      "avx512", "amx",      "dotprod", "i8mm"};
  return kNames[static_cast<size_t>(isa)];
}

// Most tokens of a step (those of prompts and one of each stream) where nobody says. A card needs more of them to be
// busy.
inline constexpr int kHostStepTokens = 512, kCardStepTokens = 2048;
// The share of the card's memory where nobody says; the rest is for the driver and the neighbours.
inline constexpr double kGpuMemoryUtilization = 0.92;

struct RunConfig {
  BackendKind backend = BackendKind::kAuto;
  int threads = 0;                                     // 0: as many as processors
  Ranks ranks{};                                       // that share every step, and the threads
  std::optional<KvDtype> kv{};                         // none: auto, bf16
  AttentionKernel attention = AttentionKernel::kAuto;  // of a card
  KernelFamily family = KernelFamily::kAuto;           // of a card
  Activations activations = Activations::kAuto;        // of the experts
  // What dense layers multiply. kAuto: exact, on a CPU as the experts' if those are in int8. kMxfp8: of those that
  // `dense` names.
  Activations dense_activations = Activations::kAuto;
  AttentionActivations attention_activations = AttentionActivations::kAuto;
  MoeTile moe_tile = MoeTile::kAuto;  // of a card
  ScreenedHead screened_head = ScreenedHead::kAuto;
  CpuIsa isa = CpuIsa::kAuto;
  bool eager = false;         // of a card: every launch on its own, no step is captured as a graph and replayed
  bool sinks = true;          // false: attention without its sinks
  bool copy_weights = false;  // of a CPU: to memory of their own
  DenseFormats dense{};
  // Layers, the first ones, whose experts a card leaves to its host (host_layers). -1: auto, as few as let the model
  // fit the card, which the application works out; unresolved it means none.
  int cpu_moe_layers = -1;
  Activations cpu_moe_activations = Activations::kAuto;  // of these; resolved: what a CPU makes of `activations`
  // Steps of at least so many tokens have these experts copied to the card. 0: none has. -1: auto, from where on that
  // is faster, which the application works out; unresolved it means none.
  int expert_copy_tokens = -1;
  bool fast = false;          // dense, kv and activations are the application's choice (app/setup/backend_choice.h)
  int64_t max_model_len = 0;  // 0: the command's; below: as much of it as fits
  int max_num_batched_tokens = 0;                  // tokens of a step; 0: by the backend
  std::optional<double> gpu_memory_utilization{};  // of a card: share of its memory that may be used
  bool poison = false;                             // of a CPU: memory holds NaN until it is written; for tests
  bool rounds_pages = false;  // of the reference: to whatever type the pages have, not the lossy ones alone

  [[nodiscard]] KvDtype kv_type() const { return kv.value_or(KvDtype::kBf16); }
  [[nodiscard]] bool fp8_attention() const { return attention_activations == AttentionActivations::kFp8; }
};

// Layers, the first ones, whose experts' weights stay on the host, which computes them.
[[nodiscard]] constexpr int host_layers(const RunConfig& run, int64_t layers) {
  return static_cast<int>(std::clamp<int64_t>(run.cpu_moe_layers, 0, layers));
}

// What is the same on every backend: threads, the KV type, the size of a step, a card's share of memory.
[[nodiscard]] RunConfig with_defaults(RunConfig config);

}  // namespace nibble::backend
