#pragma once
// The forward pass of an EAGLE-3 head (Li et al., 2503.01840, and its published variants, P-EAGLE among them;
// docs/speculation.md), in plain floats on the host. A row is a token and the feature of the token before it; it tells
// what comes after the token.

#include "base/thread_pool.h"
#include "model/eagle3/weights.h"

#include <cstdint>
#include <span>
#include <vector>

namespace nibble::model::eagle3 {

// Who computes; a pool alone will do.
struct Workers {
  Workers(ThreadPool& threads, backend::HeadProducts* by = nullptr) : pool(threads), products(by) {}
  ThreadPool& pool;
  backend::HeadProducts* products;  // null: plain loops
};

// Keys and values of one sequence, row by row. Positions rise, but need not be next to each other: a row whose feature
// is not known has none.
struct Cache {
  struct Layer {
    std::vector<float> keys, values;  // [rows, kv_heads * head_dim], keys after rope
  };
  std::vector<int64_t> positions;  // [rows]
  std::vector<Layer> layers;

  [[nodiscard]] size_t rows() const { return positions.size(); }
};

// Immutable: several threads may use one head, each with a pool and caches of its own.
class Head {
 public:
  explicit Head(Weights weights);

  [[nodiscard]] const Weights& weights() const { return w_; }
  [[nodiscard]] const std::vector<int>& boundaries() const { return w_.boundaries; }

  // The features of rows of residuals [rows, boundaries, target hidden]: [rows, hidden].
  [[nodiscard]] std::vector<float> features(std::span<const float> residuals, const Workers& workers) const;

  // Of one sequence.
  struct Rows {
    std::span<const int32_t> tokens;
    std::span<const float> features;  // [tokens, hidden]
    int64_t position = 0;             // of the first row: that of the token its feature is of
    Cache* cache = nullptr;           // the sequence's
  };
  struct Read {
    std::vector<float> normed;  // [rows, hidden] what logits() reads
    std::vector<float> next;    // [rows, hidden] the features of rows that draft on
  };
  // Adds each sequence's rows to its cache; all share one pass over the weights, and no row depends on another
  // sequence's. REQUIRES at least one row of each, a cache of its own, and positions after those in it.
  [[nodiscard]] Read read(std::span<const Rows> sequences, const Workers& workers) const;

  // Of rows of Read::normed: [rows, draft vocab].
  [[nodiscard]] std::vector<float> logits(std::span<const float> normed, const Workers& workers) const;
  // Of each row the likeliest token of the target.
  [[nodiscard]] std::vector<int32_t> draft(std::span<const float> normed, const Workers& workers) const;

  // Forgets all rows but the first ones.
  void keep(Cache& cache, size_t rows) const;

 private:
  void attend(std::span<const float> q, const Cache& cache, const Cache::Layer& layer, std::span<float> out,
              const Workers& workers) const;
  void rotate(std::span<float> row, int64_t position) const;
  [[nodiscard]] int64_t kv_width() const { return w_.dims.kv_heads * w_.dims.head_dim; }

  const Weights w_;
};

}  // namespace nibble::model::eagle3
