#pragma once
// The glossary: the dimensions of a model, by the names that every room uses. Numbers: gpt-oss-20b / -120b.

#include <cstdint>

namespace nibble::backend {

// Two more words are not a model's: tokens (positions in one step) and page (positions in one KV page).
struct Dims {
  int64_t layers = 0;          // transformer blocks: 24 / 36
  int64_t hidden = 0;          // width of the residual stream: 2880
  int64_t heads = 0;           // query heads: 64
  int64_t kv_heads = 0;        // key and value heads: 8; query head h uses h / (heads / kv_heads)
  int64_t head_dim = 0;        // elements per head: 64; heads * head_dim need not be hidden
  int64_t inter = 0;           // an expert's inner width, per gate and per up: 2880
  int64_t experts = 0;         // per layer: 32 / 128
  int64_t topk = 0;            // experts per token: 4
  int64_t vocab = 0;           // rows of embedding and unembedding: 201088
  int64_t sliding_window = 0;  // keys that a sliding layer sees, the query's own included: 128
  int64_t max_context = 0;     // positions: 131072

  [[nodiscard]] constexpr int64_t q_rows() const { return heads * head_dim; }
  [[nodiscard]] constexpr int64_t kv_rows() const { return kv_heads * head_dim; }
  friend constexpr bool operator==(const Dims&, const Dims&) = default;
};

}  // namespace nibble::backend
