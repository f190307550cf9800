#pragma once
// One argument struct per verb of backend.h. Spans live in host memory and must stay valid until the verb returns.

#include "backend/dims.h"
#include "backend/sampling.h"
#include "backend/weights.h"

#include <array>
#include <cstdint>
#include <span>

namespace nibble::backend {

inline constexpr int kPageTokens = 64;  // positions in one KV page

// One sequence's part of a step: its tokens are consecutive in the step, the last one at position context - 1.
struct Row {
  int32_t first_token = 0;
  int32_t tokens = 0;   // new in this step
  int32_t context = 0;  // in the KV cache after this step
  // How many of `tokens`, the last ones, are guesses. In a step that has any, a backend computes tokens as it would
  // each alone where it can, so that what is drawn is what is drawn without guesses.
  int32_t drafted = 0;
};

// Page ids per row: page p of row r holds positions [p * kPageTokens, ...). -1: released (behind every window).
struct PageTable {
  std::span<const int32_t> ids;  // [rows, pages_per_row]
  int32_t pages_per_row = 0;
};

// One page of the KV cache onto another, in every layer of the kind.
struct PageCopy {
  LayerKind kind;
  int32_t from = 0, to = 0;
};

struct EmbedArgs {
  // [tokens]; an id below 0 names the token that the last sample() drew for its row -1 - id, not read yet. Where
  // that row failed, any token may stand for it.
  std::span<const int32_t> ids;
  WeightHandle table;
  // A head's: [tokens, taps, target_hidden]; empty: all ids are below 0.
  std::span<const float> taps{};
  WeightHandle tap_norm{}, tap_fc{};
};

struct AttnInArgs {
  const LayerWeights& layer;
  int layer_idx;
};

struct AttendArgs {
  const LayerWeights& layer;
  int layer_idx;
  LayerKind kind;                      // only keys with position > query position - dims.window_of(kind), if not 0
  bool sinks;                          // false drops the sink column (for measuring what it does)
  std::span<const int32_t> positions;  // [tokens]
  std::span<const int32_t> kv_slots;   // [tokens] page id * kPageTokens + offset, in this layer's kind of pages
  std::span<const Row> rows;
  PageTable pages;
};

struct AttnOutArgs {
  const LayerWeights& layer;
};

struct RouteArgs {
  const LayerWeights& layer;
};

struct MoeArgs {
  const LayerWeights& layer;
};

struct LogitsArgs {
  std::span<const int32_t> tokens;  // indices into the step: which tokens get logits
  WeightHandle norm;
  WeightHandle table;
};

struct SampleArgs {
  std::span<const SampleRow> rows;  // one per row of logits
};

// A whole step: what its verbs are told, for a backend that runs it at once.
struct StepArgs {
  const Weights* weights = nullptr;
  std::span<const int32_t> ids, positions;                     // [tokens]
  std::array<std::span<const int32_t>, kLayerKinds> kv_slots;  // [tokens], by LayerKind
  std::array<PageTable, kLayerKinds> pages;                    // by LayerKind
  std::span<const Row> rows;
  std::span<const int32_t> logit_tokens;
  std::span<const SampleRow> sample_rows;
  bool sinks = true;
  std::span<const float> taps{};  // EmbedArgs
};

}  // namespace nibble::backend
