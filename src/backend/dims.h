#pragma once
// The glossary: the dimensions of a model and the stages of a step, by the names that every room uses. Numbers:
// gpt-oss-20b / -120b.

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace nibble::backend {

// Two more words are not a model's: tokens (positions in one step) and page (positions in one KV page).
// Which keys a layer sees; also the class of KV pages it uses, since a layer with a window needs only its window's
// pages. Wide: a second, longer window, which most models do not have.
enum class LayerKind : uint8_t { kSliding, kFull, kWide };
inline constexpr int kLayerKinds = 3;
inline constexpr std::array kEachLayerKind = {LayerKind::kSliding, LayerKind::kFull, LayerKind::kWide};
[[nodiscard]] constexpr std::string_view name_of(LayerKind kind) {
  return std::array<std::string_view, kLayerKinds>{"sliding", "full", "wide"}[static_cast<size_t>(kind)];
}

struct Dims {
  int64_t layers = 0;          // transformer blocks: 24 / 36
  int64_t hidden = 0;          // width of the residual stream: 2880
  int64_t heads = 0;           // query heads: 64
  int64_t kv_heads = 0;        // key and value heads: 8; query head h uses h / (heads / kv_heads)
  int64_t head_dim = 0;        // elements per head: 64; heads * head_dim need not be hidden
  int64_t inter = 0;           // an expert's inner width, per gate and per up: 2880
  int64_t experts = 0;         // per layer, the most of any (experts_of): 32 / 128
  int64_t topk = 0;            // experts per token: 4
  int64_t vocab = 0;           // rows of embedding and unembedding: 201088
  int64_t sliding_window = 0;  // keys that a sliding layer sees, the query's own included: 128
  int64_t max_context = 0;     // positions: 131072
  int64_t wide_window = 0;     // keys that a wide layer sees; 0: there is none. 8192 in gpt-oss-puzzle-88B

  [[nodiscard]] constexpr int64_t q_width() const { return heads * head_dim; }
  [[nodiscard]] constexpr int64_t kv_width() const { return kv_heads * head_dim; }
  // Keys that a layer of the kind sees; 0: all.
  [[nodiscard]] constexpr int64_t window_of(LayerKind kind) const {
    return kind == LayerKind::kFull ? 0 : kind == LayerKind::kWide ? wide_window : sliding_window;
  }
  friend constexpr bool operator==(const Dims&, const Dims&) = default;
};

// Kinds of layers that a model may have.
[[nodiscard]] constexpr std::span<const LayerKind> kinds_of(const Dims& dims) {
  return std::span(kEachLayerKind).first(dims.wide_window > 0 ? 3 : 2);
}

// A model whose layers differ in their experts lists them, by layer; else the list is empty. A layer with fewer than
// Dims::experts has a router as wide as the others', filled up with experts that no token draws (model::load).
[[nodiscard]] inline int64_t experts_of(const Dims& dims, std::span<const int64_t> layer_experts, int layer) {
  return layer < 0 || layer_experts.empty() ? dims.experts : layer_experts[static_cast<size_t>(layer)];
}

// The stages of a step, by the verbs that run them: what costs, plans and differences are told by.
enum class Stage : uint8_t { kEmbed, kAttnIn, kAttend, kAttnOut, kRoute, kMoe, kLogits };
inline constexpr int kStages = static_cast<int>(Stage::kLogits) + 1;

[[nodiscard]] constexpr std::string_view name_of(Stage stage) {
  constexpr std::array<std::string_view, kStages> kNames = {"embed", "attn_in", "attend", "attn_out",
                                                            "route", "moe",     "logits"};
  return kNames[static_cast<size_t>(stage)];
}

}  // namespace nibble::backend
