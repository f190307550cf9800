#pragma once
// All device memory but the weights, as one allocation. carve() declares what is in it, and so gives its size, too.

#include "backend/backend.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/arch/arch.h"
#include "backend/cuda/experts/host_experts.h"
#include "backend/cuda/sampling/sample.h"
#include "backend/cuda/sampling/screen.h"
#include "backend/cuda/norm_rope/around_gemm.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace nibble::backend::cuda {

inline constexpr int kMaxStepRows = 1024;  // sequences in one step

// Takes aligned pieces one after the other; without a base it only measures.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}

  template <class T>
  [[nodiscard]] T* take(int64_t count) {
    constexpr int64_t kAlignment = 256;
    bytes_ = (bytes_ + kAlignment - 1) / kAlignment * kAlignment;
    std::byte* at = base_ == nullptr ? nullptr : base_ + bytes_;
    bytes_ += count * static_cast<int64_t>(sizeof(T));
    return reinterpret_cast<T*>(at);
  }
  // What begins as zeros.
  template <class T>
  [[nodiscard]] T* take_zeros(int64_t count) {
    T* const at = take<T>(count);
    if (at != nullptr) zeros_.push_back(std::as_writable_bytes(std::span(at, static_cast<size_t>(count))));
    return at;
  }
  [[nodiscard]] int64_t bytes() const { return bytes_; }
  [[nodiscard]] const std::vector<std::span<std::byte>>& zeros() const { return zeros_; }

 private:
  std::byte* base_;
  int64_t bytes_ = 0;
  std::vector<std::span<std::byte>> zeros_;
};

// Pairs of tokens and experts by expert (gemm_plan.h GroupTiles).
struct PairLists {
  int32_t* pairs = nullptr;        // [max_places]
  ExpertTile* tiles = nullptr;     // [max_expert_tiles]
  int32_t* tile_counts = nullptr;  // [kTileCounts]
};

// What the plain kernels have between them.
struct RowOrderArena {
  float *k = nullptr, *v = nullptr;  // [tokens, kv_heads * head_dim]
  float* expert_hidden = nullptr;    // [tokens, topk, inter]
};

// What kernels of packed matrices have between them.
struct PackedArena {
  F16* expert_hidden = nullptr;   // [tokens, topk, layout::block_pair_width(inter)]
  float* residual_sum = nullptr;  // [min(tokens, 8), hidden] of a fused step, from attn_in to route: its CTAs still
                                  // read residual when the first of them has added delta
  uint16_t* combined = nullptr;   // [split_pitch(tokens, hidden)] bf16, of one of several ranks
  float* inverse = nullptr;       // [tokens] 1 / rms of residual, of the last route
  F16* normed = nullptr;          // [tokens, hidden] what the experts multiply
  int* down_finished = nullptr;   // [hidden / 16] zero between launches
};

// Around GEMMs.
struct GemmArena {
  uint16_t* x = nullptr;         // [max(tokens, rows), max(hidden, heads * head_dim)], as the GEMM takes it
  uint16_t* u = nullptr;         // [tokens, topk, layout::block_pair_width(inter)] f16, or by place
  uint16_t* placed_x = nullptr;  // x by place: down writes its results while gate_up still reads; SM90
  float* row_scales = nullptr;   // [max_places] where placed_x is codes of rows: x's, then u's
  float* y = nullptr;            // what readers add up; of the experts, in bf16, [tokens, topk, hidden]
  int32_t* places = nullptr;     // [tokens, topk]
  PairLists lists;
};

// Attention on tensor cores.
struct AttendArena {
  float* partials = nullptr;         // DecodeScratch floats
  int* finished = nullptr;           // DecodeScratch counters; zero between launches
  int32_t* decode_tokens = nullptr;  // [tokens]
  AttendTile* tiles = nullptr;       // [max_attend_tiles]
};

// A head's, beside what a model has.
struct HeadArena {
  float* taps = nullptr;          // [tokens, taps * target hidden]
  Bf16* rounded_taps = nullptr;   // [tokens, taps * target hidden]
  Bf16* x = nullptr;              // [max(tokens, rows), 2 * hidden] what products read
  Bf16* attended = nullptr;       // [tokens, heads * head_dim]
  Bf16* gated = nullptr;          // [tokens, inter]
  float* features = nullptr;      // [rows, hidden] what the next step reads of rows of logits
  int32_t* target_ids = nullptr;  // [vocab], where the head has some
};

// Room for two parts of a layer's experts that are copied from the host: while one is multiplied, the other comes.
struct ExpertSlots {
  struct Slot {
    uint8_t *gate_up = nullptr, *down = nullptr;  // packed, of ExpertParts::each experts
  };
  std::array<Slot, 2> slots{};
  [[nodiscard]] const Slot& of(int part) const { return slots[static_cast<size_t>(part % 2)]; }
};

// The step's arrays.
struct StepArena {
  int32_t* rows = nullptr;  // ids, positions, rows of tokens, last keys, then the kv slots of each of kinds_of(dims)
  int64_t pitch = 0;        // of these, [tokens] each
  std::array<int32_t*, kLayerKinds> pages{};  // [page_ids]
  int64_t page_ids = 0;                       // capacity of each
  int64_t row_pages = 0;                      // most of one row
  int32_t* logit_tokens = nullptr;            // [rows]
};
struct RopeArena {
  float* inv_freq = nullptr;                 // [head_dim / 2]
  float *cosine = nullptr, *sine = nullptr;  // [tokens, head_dim / 2]
};
struct SampleArena {
  SampleRowParams* params = nullptr;  // [rows]
  uint64_t* threshold = nullptr;      // [rows]
  float* part_value = nullptr;        // [rows, kSampleParts]
  int32_t* part_token = nullptr;      // [rows, kSampleParts]
  int32_t* tokens = nullptr;          // [rows]
};

struct Arena {
  // Slots, and scratch between them
  float* residual = nullptr;  // [tokens, hidden]
  float* delta = nullptr;     // [tokens, hidden] or, with GEMMs, [min(tokens, 8), hidden]; of a fused step there may
                              // be two parts, one after the other, as far as its tokens go
  float* normed = nullptr;    // [max(tokens, rows), hidden]
  float* taps = nullptr;      // [tokens, BackendConfig::taps, hidden]
  float* q = nullptr;         // [tokens, heads * head_dim]
  float* attn = nullptr;      // [tokens, heads * head_dim]
  float* router_logits = nullptr;   // [tokens, experts]
  int32_t* expert_ids = nullptr;    // [tokens, topk]
  float* expert_weights = nullptr;  // [tokens, topk]
  float* expert_out = nullptr;      // [tokens, topk, hidden]
  float* logits = nullptr;          // [rows, vocab]
  PairLists lists;
  // Where two ranks that exchange their parts whole find both, by sum (comm/mailbox.h); not in the allocation
  uint32_t *both_of_o = nullptr, *both_of_experts = nullptr;
  HostExchange host;  // with experts on the host; not in the allocation
  std::optional<RowOrderArena> row_order;
  std::optional<PackedArena> packed;
  std::optional<GemmArena> gemm;
  std::optional<AttendArena> attend;
  std::optional<ScreenScratch> screen;  // of up to kGemvTokens rows of logits
  std::optional<HeadArena> head;
  std::optional<ExpertSlots> expert_slots;  // where steps of many tokens copy the host's experts
  StepArena step;
  RopeArena rope;
  SampleArena sample;
  std::vector<KvPages> kv;  // per layer
};

// Where in an arena something begins.
using Place = void* (*)(const Arena&);
template <auto kMember>
void* in(const Arena& at) {
  return at.*kMember;
}
template <auto kPart, auto kMember>
void* in(const Arena& at) {
  return (*(at.*kPart)).*kMember;
}

// How the matrices are held: in row order for the plain kernels, or packed for the streaming ones.
enum class Matrices : uint8_t { kRowOrder, kPacked };

struct ArenaNeeds {
  const BackendConfig& config;
  KvDtype kv = KvDtype::kBf16;
  Matrices matrices = Matrices::kPacked;
  bool gemms = false, flash = false, screen = false, expert_slots = false;  // choices.h
  Card card;
};
// What a run needs. Throws Error(kUnsupported) as choices.h does.
[[nodiscard]] ArenaNeeds arena_needs(const BackendConfig& config, const RunConfig& run, const Card& card);
// Whether steps can be captured.
[[nodiscard]] inline bool has_graphs(const BackendConfig& config, const ArenaNeeds& needs) {
  return needs.matrices == Matrices::kPacked || config.head.has_value();
}
[[nodiscard]] Arena carve(const ArenaNeeds& needs, Carver& carver);

}  // namespace nibble::backend::cuda
