#pragma once
// An architecture of cards: the kernels that it has where cards differ, and what was measured on it. A program asks a
// card's architectures in order; the first kernel that serves a shape takes it. Nothing else asks what card it is.
//
// A new architecture is a folder beside this file that exports one Arch; README.md lists what else names it. Plain C++:
// programs are made where there is neither CUDA nor a card.

#include "backend/activations.h"
#include "backend/cuda/card/device_facts.h"
#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/attention/attend_plan.h"
#include "backend/cuda/experts/route.h"

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace nibble::backend::cuda {

// An operation's kernel. serve() names it in a plan for a shape, and is empty for a shape that it does not take.

// y = W · x for more than kGemvTokens tokens.
struct GemmKernel {
  std::optional<GemmPlan> (*serve)(const GemmShape&, const DeviceFacts&) = nullptr;
  void (*launch)(const GemmArgs&, const GemmPlan&, const Launch&) = nullptr;
  bool panels = false;  // x lies in panels (layout/wgmma_b.h), not row by row
  bool codes = false;   // x is in codes of MXFP8 (InputType); it serves only such shapes
  // It can leave sums as a split GEMM does (GemmArgs::sums), in GemmPlan::splits parts. In bf16 it then also adds a
  // bias to them and sends them to other ranks (GemmArgs::places), and takes panels.
  bool sums = false;
};

// A GEMM with K split among CTAs; whoever reads the result adds the parts. Takes panels.
struct SplitGemmKernel {
  std::optional<SplitGemmPlan> (*serve)(const GemmShape&, const DeviceFacts&) = nullptr;
  void (*launch)(const SplitGemmArgs&, const SplitGemmPlan&, const Launch&) = nullptr;
  // How many bf16 values it leaves in the largest step that it takes, of up to `tokens` tokens.
  int64_t (*most_values)(int64_t rows, int64_t cols, int64_t tokens, const DeviceFacts&) = nullptr;
};

// Norm and router of a step in one launch; where there is none, any_norm_sums and a router of its own.
struct NormRouteKernel {
  std::optional<Plan> (*serve)(const RouteShape&, const DeviceFacts&) = nullptr;
  void (*launch)(const NormRouteArgs&, const Plan&, const Launch&) = nullptr;
};

// Both products of the experts on GEMMs.
struct ExpertsShape {
  int64_t hidden = 0, inter = 0;
  int64_t pairs = 0, experts = 0;                // tokens times experts of a token
  Activations activations = Activations::kBf16;  // the rounding of both products' inputs
  bool wide_scales = false;                      // GemmShape
  bool byte_scales = true;                       // layout::ScaleRange::fits_bytes
  int tile_tokens = 0;                           // --moe-tile; 0: the kernel chooses. Only for inputs in codes
  bool shares_card = false;                      // with another rank: CTAs must not wait for others of their launch
};
struct ExpertsPlan {
  GemmPlan first, second;  // gate and up, down: both with the same number of tokens to a tile
  bool at_once = false;    // one launch makes both products; there is no second
  // What both products multiply. Codes are made by the kernel before, and do not go with by_place.
  InputType input = InputType::kF16;
  // With by_place: x and u are codes of rows (quantise/round_blocks.h). A launch makes those of x, another those of u.
  bool row_codes = false;
};
struct ExpertsGemm {
  std::optional<ExpertsPlan> (*serve)(const ExpertsShape&, const DeviceFacts&) = nullptr;
  void (*launch)(const GemmArgs&, const GemmPlan&, const Launch&) = nullptr;
  bool by_place =
      false;  // x and u lie in panels, a row per place (GroupTiles::Args); else x has a row per token, u per pair
};

// Attention of rows with many new tokens.
struct PrefillShape {
  KvDtype pages;
  bool fp8 = false;  // AttentionArgs
};
struct PrefillKernel {
  std::optional<Kernel> (*serve)(const PrefillShape&) = nullptr;
  Plan (*plan)(int64_t tiles, int64_t kv_heads, const DeviceFacts&) = nullptr;
  void (*launch)(const AttentionArgs&, const Launch&) = nullptr;
  int tile_tokens = 0;  // of one row, to a tile
};

struct PeakLaunch;
// Measures what the matrix units can do.
struct PeakKernel {
  std::string_view of;                                          // for people: operands (instruction)
  double (*launch)(const PeakLaunch&, CUstream_st*) = nullptr;  // returns the flops of the launch
  bool exact16 = true;                                          // 16-bit operands
};

// An operation whose kernel has no serve() is left to the next architecture.
struct Arch {
  std::string_view name;
  bool (*runs_on)(const DeviceFacts&) = nullptr;
  GemmKernel gemm{};
  SplitGemmKernel split_gemm{};
  NormRouteKernel norm_route{};
  ExpertsGemm experts_gemm{};
  PrefillKernel prefill{};
  PeakKernel peak{};
  Tuned (*tuned)(const DeviceFacts&) = nullptr;  // null: nothing was measured, the next architecture's holds
};

[[nodiscard]] Arch neutral();  // mma.sync: sm_80 and later
[[nodiscard]] Arch sm90();     // wgmma: Hopper
[[nodiscard]] Arch sm121();    // block-scaled mma.sync: GB10 and others of compute capability 12
// All architectures, the most particular first. The last one runs on every card. The only list.
[[nodiscard]] std::vector<Arch> architectures();

// A card, and which of `all` run on it.
struct Card {
  Card(DeviceFacts its_facts, const std::vector<Arch>& all = architectures());  // NOLINT: facts are a card
  DeviceFacts facts;
  std::vector<Arch> arches;

  // The limits of the most particular architecture that was measured, whether or not it serves the experts of a step.

  [[nodiscard]] Tuned tuned() const;
};

// Kernels that do one thing as fast as the card can: read memory, or multiply matrices out of registers. A PeakKernel
// of each architecture's own is in its folder.
struct ReadLaunch {
  const void* data = nullptr;  // 16-byte aligned
  int64_t bytes = 0;           // a multiple of 16
  uint32_t* sink = nullptr;    // [1]; only keeps the reads from being dropped
  int blocks = 0, threads = 0;
  int loads = 0;  // of 16 bytes that a thread has under way: 4 or 8
};
void any_read_all(const ReadLaunch& args, CUstream_st* stream);

struct PeakLaunch {
  float* sink = nullptr;  // [1]
  int blocks = 0;
  int rounds = 0;
};
// mma.sync m16n8k16, 16-bit operands, float sums; every sm_80 and later. Returns the flops of the launch.
double any_peak_mma(const PeakLaunch& args, CUstream_st* stream);

}  // namespace nibble::backend::cuda
