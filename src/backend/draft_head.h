#pragma once
// A head that drafts for a model (EAGLE-3; model/eagle3 reads its files): its weights as plain data, and the verbs of
// whoever runs it. A row is a token and the feature of the token before it; it tells what comes after the token.

#include "base/tensor.h"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace nibble::backend {

// Rows of bf16, f16 or f32 where they lie.
struct HeadMatrix {
  RawTensor values;         // [rows, cols]
  std::vector<float> bias;  // [rows]; empty: none

  [[nodiscard]] int64_t rows() const { return values.shape[0]; }
  [[nodiscard]] int64_t cols() const { return values.shape[1]; }
  // Copies a row, as floats, to out [cols].
  void decode(int64_t row, float* out) const;
};

struct HeadLayer {
  std::vector<float> input_norm, hidden_norm, post_attention_norm;  // [hidden]; hidden_norm: of layer 0 only
  HeadMatrix q, k, v;  // [heads or kv_heads * head_dim, 2 * hidden in layer 0, else hidden]
  HeadMatrix o;        // [hidden, heads * head_dim]
  HeadMatrix gate, up, down;
};

struct HeadDims {
  int64_t hidden = 0, target_hidden = 0;
  int64_t taps = 0;  // boundaries of the model's residuals that it reads
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t inter = 0;
  int64_t vocab = 0, draft_vocab = 0;  // of the model; of lm_head
};

// feature = fc·residuals, which are normed before it, or the final norm of the one residual where there is no fc.
// Layer 0 reads [input_norm(embedding of the token), hidden_norm(feature)], its residual stream begins with the
// feature (norm_before_residual: the normed one); other layers read input_norm(residual). Each adds o·attention, then
// down·(silu(gate·x) * up·x) of the post_attention_norm. The draft is the argmax of lm_head·norm(residual); the
// feature of the row that draws on is the residual (norm_output: the normed one). With a mask token (P-EAGLE) nothing
// is fed back: guesses behind the first are of rows of that token and of mask_hidden, in place of residuals, all at
// once.
struct HeadWeights {
  HeadDims dims;
  std::optional<HeadMatrix> fc;               // [hidden, taps * target_hidden]; none: it reads the last state
  std::vector<std::vector<float>> tap_norms;  // one of all taps together, one for each, or none at all
  std::vector<float> target_norm;             // the model's final one, where there is no fc
  float target_eps = 0;                       // its
  std::vector<HeadLayer> layers;
  std::vector<float> norm;           // [hidden]
  HeadMatrix embedding;              // [vocab, hidden]
  HeadMatrix lm_head;                // [draft_vocab, hidden]
  std::vector<int32_t> target_ids;   // [draft_vocab] what a row of lm_head is to the model; empty: the same
  std::vector<float> rope_inv_freq;  // [head_dim / 2], radians per position; halves d, d + head_dim / 2
  float rope_concentration = 1;      // multiplies cos and sin
  double rms_eps = 0;
  double logit_scale = 1;                      // of no effect on the argmax, unless it is negative
  std::optional<int64_t> sliding_window = {};  // positions that a query sees, its own included; none: all
  bool norm_before_residual = false;
  bool norm_output = false;
  std::optional<int32_t> mask_token = {};  // none: it drafts one token after another
  std::vector<float> mask_hidden;          // [taps * target_hidden], with mask_token
};

// Products of a head that the host runs, by a backend's kernels and threads. One caller at a time, between its verbs.
class HeadProducts {
 public:
  HeadProducts() = default;
  virtual ~HeadProducts() = default;
  HeadProducts(const HeadProducts&) = delete;
  HeadProducts& operator=(const HeadProducts&) = delete;
  // y [x rows, matrix rows] = x [rows, cols] · matrixᵀ + bias. REQUIRES a matrix of the head that it was made for,
  // the embedding excepted.
  virtual void multiply(std::span<const float> x, const HeadMatrix& matrix, float* y) = 0;
};

// Runs a head for the sequences of one engine, on its thread. Keys and values of the rows that it has read are its own,
// wherever they lie. A sequence comes to be with its first row.
class HeadRunner {
 public:
  using SequenceId = uint64_t;

  HeadRunner() = default;
  virtual ~HeadRunner() = default;
  HeadRunner(const HeadRunner&) = delete;
  HeadRunner& operator=(const HeadRunner&) = delete;

  struct Rows {
    SequenceId sequence;
    std::span<const int32_t> tokens;   // at least one
    std::span<const float> residuals;  // [tokens, taps, target_hidden] of the tokens before these; on the host
    int64_t position;                  // of the first row: that of the token its residuals are of
  };
  // Adds each sequence's rows behind those it has. Positions rise, but need not be next to each other: a row whose
  // residuals are not known has none. What is passed may go when this returns; the work need not be done by then.
  // REQUIRES that no sequence comes twice, and positions after those that were read.
  virtual void read(std::span<const Rows> sequences) = 0;

  struct Draft {
    SequenceId sequence;
    int most;                      // at least 1
    std::vector<int32_t>* tokens;  // what is drafted, of the model's vocabulary; empty: the runner had no room
    // Of the sequence, to be read first, as by read(); none: nothing. A head with a mask token reads and drafts in one
    // pass.
    const Rows* unread = nullptr;
  };
  // The likeliest token after the last row that was read of each sequence, then the likeliest after that one's row, and
  // so on; with a mask token, after rows of it instead. The rows that are made on the way are forgotten: the same call
  // drafts the same again. All sequences advance together; nothing of a draft needs the host until all of it is made.
  // REQUIRES rows of each sequence, and that none comes twice.
  virtual void draft(std::span<const Draft> sequences) = 0;

  // Forgets a sequence, known or not.
  virtual void end(SequenceId sequence) = 0;

 protected:
  // What the drafts have to be read first.
  [[nodiscard]] static std::vector<Rows> unread_of(std::span<const Draft> drafts);
};

}  // namespace nibble::backend
