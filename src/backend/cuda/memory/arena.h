#pragma once
// All device memory but the weights, as one allocation. carve() declares what is in it, and so gives its size, too.

#include "backend/backend.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/arch/arch.h"
#include "backend/cuda/sampling/sample.h"
#include "backend/cuda/norm_rope/around_gemm.h"

#include <cstddef>
#include <cstdint>
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
  [[nodiscard]] int64_t bytes() const { return bytes_; }

 private:
  std::byte* base_;
  int64_t bytes_ = 0;
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

struct Arena {
  // Slots, and scratch between them
  float* residual = nullptr;         // [tokens, hidden]
  float* residual_sum = nullptr;     // [min(tokens, 8), hidden] of a fused step, from attn_in to route: its CTAs still
                                     // read residual when the first of them has added delta
  float* delta = nullptr;            // [tokens, hidden] or, with GEMMs, [min(tokens, 8), hidden]; of a fused step
                                     // there may be two parts, one after the other, as far as its tokens go
  float* normed = nullptr;           // [max(tokens, rows), hidden]
  float* taps = nullptr;             // [tokens, BackendConfig::taps, hidden]
  float* q = nullptr;                // [tokens, heads * head_dim]
  float* k = nullptr;                // [tokens, kv_heads * head_dim]; not with packed matrices
  float* v = nullptr;                // as k
  float* qkv = nullptr;              // [tokens, (heads + 2 * kv_heads) * head_dim] before rope, by a gemv; with packed
                                     // matrices, for pages whose values do not stand alone
  float* attn = nullptr;             // [tokens, heads * head_dim]
  float* router_logits = nullptr;    // [tokens, experts]
  float* inverse = nullptr;          // [tokens] 1 / rms of residual, of the last route; with packed matrices
  int32_t* expert_ids = nullptr;     // [tokens, topk]
  float* expert_weights = nullptr;   // [tokens, topk]
  float* expert_hidden = nullptr;    // [tokens, topk, inter]
  F16* expert_hidden_f16 = nullptr;  // [tokens, topk, layout::block_pair_width(inter)], instead of expert_hidden
  F16* normed_f16 = nullptr;         // [tokens, hidden], with packed matrices: what the experts multiply
  float* expert_out = nullptr;       // [tokens, topk, hidden]
  uint16_t* combined = nullptr;      // [split_pitch(tokens, hidden)] bf16, of one of several ranks with packed matrices
  int* down_finished = nullptr;      // [hidden / 16] zero between launches; with packed matrices
  int32_t* moe_pairs = nullptr;      // [max_places]
  ExpertTile* moe_tiles = nullptr;   // [max_expert_tiles]
  int32_t* moe_tile_counts = nullptr;  // [kTileCounts]
  float* logits = nullptr;             // [rows, vocab]
  // Around GEMMs; only where the step may run on them
  uint16_t* gemm_x = nullptr;           // [max(tokens, rows), max(hidden, heads * head_dim)], as the GEMM takes it
  uint16_t* gemm_u = nullptr;           // [tokens, topk, layout::block_pair_width(inter)] f16, or by place
  uint16_t* gemm_placed_x = nullptr;    // x by place: down writes its results while gate_up still reads; SM90
  float* gemm_row_scales = nullptr;     // [max_places] where gemm_placed_x is codes of rows: x's, then u's
  float* gemm_y = nullptr;              // what readers add up; of the experts, in bf16, [tokens, topk, hidden]
  int32_t* gemm_pairs = nullptr;        // [max_places]
  int32_t* gemm_places = nullptr;       // [tokens, topk]
  ExpertTile* gemm_tiles = nullptr;     // [max_expert_tiles]
  int32_t* gemm_tile_counts = nullptr;  // [kTileCounts]
  ExpertRanges gemm_ranges{};           // of steps of any_route_sums; SM90
  // Attention on tensor cores; only with it
  float* attend_partials = nullptr;  // DecodeScratch floats
  int* attend_finished = nullptr;    // DecodeScratch counters; zero between launches
  int64_t attend_counters = 0;
  int32_t* decode_tokens = nullptr;    // [tokens]
  AttendTile* attend_tiles = nullptr;  // [max_attend_tiles]
  // The step's arrays
  int32_t* ids = nullptr;        // [tokens]; this and those up to kv_slots are rows, step_pitch apart, of one array
  int32_t* positions = nullptr;  // [tokens]
  int32_t* token_row = nullptr;  // [tokens]
  int32_t* last_key = nullptr;   // [tokens] the position a token attends from
  std::array<int32_t*, kLayerKinds> kv_slots{};  // of kinds_of(dims), as pages
  int64_t step_pitch = 0;
  std::array<int32_t*, kLayerKinds> pages{};  // [page_ids]
  int64_t page_ids = 0;                       // capacity of each
  int64_t row_pages = 0;                      // most of one row
  int32_t* logit_tokens = nullptr;            // [rows]
  float* rope_inv_freq = nullptr;             // [head_dim / 2]
  float* rope_cosine = nullptr;               // [tokens, head_dim / 2]
  float* rope_sine = nullptr;                 // [tokens, head_dim / 2]
  // Sampling
  SampleRowParams* sample_params = nullptr;  // [rows]
  uint64_t* sample_threshold = nullptr;      // [rows]
  float* sample_part_value = nullptr;        // [rows, kSampleParts]
  int32_t* sample_part_token = nullptr;      // [rows, kSampleParts]
  int32_t* sampled = nullptr;                // [rows]
  std::vector<KvPages> kv;                   // per layer
  HeadArena head{};
};

// How the matrices are held: in row order for the plain kernels, or packed for the streaming ones.
enum class Matrices : uint8_t { kRowOrder, kPacked };

struct ArenaNeeds {
  const BackendConfig& config;
  KvDtype kv = KvDtype::kBf16;
  Matrices matrices = Matrices::kPacked;
  bool gemms = false, flash = false;  // choices.h
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
