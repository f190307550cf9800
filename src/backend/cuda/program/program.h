#pragma once
// A step as a program: the list of its launches. The backend executes it, graphs capture it, `inspect --plan` prints
// it, `bench` counts its cost, a profile has its kernels. It is made from data alone and needs neither CUDA nor a card.
// Sampling is not in it: that depends on the requests.

#include "backend/backend.h"
#include "backend/cuda/memory/arena.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/arch/arch.h"
#include "backend/cuda/comm/sums.h"
#include "backend/cuda/experts/experts.h"
#include "backend/cuda/launch/launch.h"
#include "backend/cuda/norm_rope/around_gemm.h"
#include "backend/cuda/sampling/screen.h"
#include "backend/cuda/layout/packed.h"
#include "backend/plan.h"
#include "backend/activations.h"
#include "backend/cuda/dense/gemm_plan.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>
#include <cstddef>
#include <span>

namespace nibble::backend::cuda {

// A product's matrix, packed or in row order, and its bias in the checkpoint's order.
struct ProductPointers {
  const uint8_t* packed = nullptr;
  const uint8_t* wide = nullptr;  // what GEMMs read: `packed`, or of Q8_0 its copy in bf16
  const Bf16* rows = nullptr;
  const Bf16* bias = nullptr;
};
struct ExpertsPointers {
  const uint8_t* packed = nullptr;
  MxfpMatrix rows{};
  const Bf16* bias = nullptr;
};

// A head's, as DeviceWeights has them.
struct HeadProduct {
  const Bf16* rows = nullptr;
  const float* bias = nullptr;
};
struct HeadPointers {
  HeadProduct tap_fc{}, qkv{}, o{}, gate_up{}, down{}, unembedding{};
  const float *tap_norm = nullptr, *attn_norm = nullptr, *hidden_norm = nullptr, *mlp_norm = nullptr,
              *final_norm = nullptr;
};

// One layer's weights in device memory. Every layer also has the pointers of what lies outside the layers.
struct LayerPointers {
  const Bf16* embedding = nullptr;
  const Bf16 *attn_norm = nullptr, *sinks = nullptr, *mlp_norm = nullptr, *final_norm = nullptr;
  ProductPointers qkv{};          // packed
  ProductPointers q{}, k{}, v{};  // in row order
  ProductPointers o{}, router{}, unembedding{};
  ScreenCopy screen{};  // of the unembedding, where there is one
  ExpertsPointers gate_up{}, down{};
  HeadPointers head{};
};

// The step's arrays on the device.
struct StepPointers {
  const int32_t *ids = nullptr, *positions = nullptr;
  std::array<const int32_t*, kLayerKinds> kv_slots{};
  const int32_t *token_row = nullptr, *last_key = nullptr;
  std::array<const int32_t*, kLayerKinds> pages{};
  std::array<int, kLayerKinds> pages_per_row{};
  const int32_t* logit_tokens = nullptr;
  const int32_t* decode_tokens = nullptr;  // null: all tokens are decode attention's
  const AttendTile* attend_tiles = nullptr;
  bool sinks = true;
};

// What the arguments of a launch are made from: the slots, the step's arrays and the weights.
struct Binding {
  const BackendConfig& config;
  const Arena& at;
  const StepPointers& step;
  const LayerPointers& w;
  int layer = 0;
  LayerKind kind = LayerKind::kFull;  // of the layer
  [[nodiscard]] const KvPages& kv() const { return at.kv[static_cast<size_t>(layer)]; }
  // Where the residual at a boundary of BackendConfig::taps goes, in the first token's row.
  [[nodiscard]] float* tap(int boundary) const {
    return at.taps + (std::ranges::find(config.taps, boundary) - config.taps.begin()) * config.dims.hidden;
  }
  // The second part of a delta of so many tokens.
  [[nodiscard]] float* rest(int64_t tokens) const { return at.delta + tokens * config.dims.hidden; }
};

// What a step leaves in a slot of backend.h: where it lies on the card, and how.
struct Held {
  enum class Type : uint8_t {
    kF32,
    kI32,
    kF16,
    kBf16,
    kCodes  // in rows of layout/mx_b_n8k64.h
  };
  Place at = nullptr;  // null: no kernel writes it, its value is fused into the next kernel
  int64_t rows = 0, cols = 0;
  Type type = Type::kF32;
  InputType codes = InputType::kMxfp8;          // of kCodes
  int splits = 1;                               // of so many rows, to be added
  int64_t width = cols;                         // values of a row in memory
  int64_t panel_rows = 0;                       // of panels (layout/wgmma_b.h); 0: row after row
  Place places = nullptr;                       // [rows] int32: which of the panels' rows it is; -1: it is not there
  Activations rounded_to = Activations::kBf16;  // before the next kernel reads it

  [[nodiscard]] int64_t bytes() const;
  // [rows, cols] of a copy of these bytes and of the places.
  [[nodiscard]] std::vector<float> values(std::span<const std::byte> memory, std::span<const int32_t> place_of) const;
};

// A kernel, and how it is launched: once in each of its layers, or once outside the layers.
struct Node : PlannedKernel {
  std::function<void(const Binding&, const Launch&)> launch;
  double moved = 0;  // bytes of activations that a launch reads and writes; 0: not counted (KernelShare)
};

struct Program {
  KernelFamily family = KernelFamily::kAuto;           // what kAuto became
  bool flash = false;                                  // what attention's kAuto became
  Activations activations = Activations::kAuto;        // resolved
  Activations dense_activations = Activations::kAuto;  // resolved, of the dense layers in MX blocks
  int64_t tokens = 0, logit_rows = 0;
  std::array<std::array<Held, kSlots>, kStages> slots{};  // [the Stage that has run][Slot]
  std::vector<Node> nodes;
  AttendShares shares;  // the step's tokens by attention kernel

  [[nodiscard]] const Held& held(Stage ran, Slot slot) const {
    return slots[static_cast<size_t>(ran)][static_cast<size_t>(slot)];
  }
  // Enqueues the launches of a stage in b's layer. Stages outside the layers belong to layer 0.
  void execute(Stage stage, const Binding& b, Launch on) const;
};

// Adds up the deltas of ranks that share a step (backend.h Slot::kDelta): the deltas themselves, or what they are made
// of.
struct Reduce {
  int ranks = 2, ranks_on_card = 1;
  // Every message. Else a push makes the bf16 rows itself, and in a fused step it adds short sums to the residual.
  bool by_nccl = false;
  // Where values go that are sent as they are made (sums.h sent_as_made).
  PartPlaces places{};
  Exchange exchange{};
  std::function<void(const DeltaValues&, const Launch&)> launch;
};

// For a program that is planned but not executed. Empty for one rank.
[[nodiscard]] inline std::optional<Reduce> planned_reduce(const Ranks& ranks) {
  if (ranks.count == 1) return std::nullopt;
  return Reduce{.ranks = ranks.count, .launch = nullptr};
}

struct ProgramArgs {
  const BackendConfig& config;
  const RunConfig& run;
  StepShape step;
  const Card& card;
  const Reduce* reduce = nullptr;  // for a rank (BackendConfig::own_experts); null: a delta stays the rank's part
  layout::ModelScales scales{};    // of the MXFP4 matrices
  std::optional<Tuned> tuned{};    // instead of the card's
  bool screened = false;           // the step's logits are for draws by temperature alone
  bool fed_back = false;           // of a head: the step has no taps (EmbedArgs)
  // Enqueues a call of experts on the host; empty in a program that is planned but not executed.
  std::function<void(const HostCall&, const Launch&)> host_call{};
  // Enqueues the copy of a part of the host's experts; empty in a program that is planned but not executed.
  std::function<void(const ExpertCopy&, const Launch&)> expert_copy{};
  bool may_copy = true;  // false: these weights cannot be copied, whatever copies_experts says of the step
};
// Throws Error(kUnsupported) for what make_cuda_backend refuses.
[[nodiscard]] Program make_program(const ProgramArgs& args);
// CostModel::screened_bytes on this card.
[[nodiscard]] int64_t screened_bytes(const BackendConfig& config, const RunConfig& run, const DeviceFacts& card);

}  // namespace nibble::backend::cuda

namespace nibble::backend {

// This machine's card, for make_program. Empty where it has none that this build runs on. It asks the driver, so it is
// in the backend's library.
[[nodiscard]] std::optional<cuda::DeviceFacts> cuda_plan_device();

}  // namespace nibble::backend
