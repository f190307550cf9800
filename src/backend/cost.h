#pragma once
// What a step must read and compute at the least: the floor that measured times are held against. Read are the weights
// of the experts that are used, once per step, and the keys and values that are seen, once per sequence; activations
// are not counted. Pure.

#include "backend/args.h"
#include "backend/dims.h"
#include "backend/kv_dtype.h"
#include "backend/shards.h"
#include "backend/weights.h"

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace nibble::backend {

struct Cost {
  double bytes = 0;
  double flops = 0;  // a multiply-add is two

  constexpr Cost& operator+=(const Cost& other) {
    bytes += other.bytes;
    flops += other.flops;
    return *this;
  }
  friend constexpr Cost operator/(const Cost& cost, double by) { return {cost.bytes / by, cost.flops / by}; }
};

using StageCosts = std::array<Cost, kStages>;  // by Stage

[[nodiscard]] constexpr Cost total(const StageCosts& costs) {
  Cost sum;
  for (const Cost& cost : costs) sum += cost;
  return sum;
}

// How a backend holds what is read.
struct StoredFormats {
  std::array<WeightFormat, kWeightRoles> of_role{};  // by WeightRole
  std::optional<int64_t> kv_row_bytes{};             // of a head of a token (kv_dtype.h); none: bf16's
  int64_t copied_bytes = 0;                          // of weights that are recoded: no file holds them
  bool wide_copies = false;                          // of Q8_0, in bf16: what more than kFewTokens tokens read

  // OpenAI's checkpoints: MXFP4 experts, all else bf16.
  [[nodiscard]] static StoredFormats as_shipped();
  // The formats of uploads, with the dense layers as asked for.
  [[nodiscard]] static StoredFormats of(std::span<const HostWeight> weights, const DenseFormats& dense);
};

// Values of one tensor; the experts' hold all experts.
[[nodiscard]] int64_t values_of(WeightRole role, const Dims& dims);

// Scales included: 2 for bf16, 17/32 for MXFP4.
[[nodiscard]] double bytes_per_value(WeightFormat format);

// Experts of one layer that `tokens` tokens use, when each draws its topk independently and evenly.
[[nodiscard]] double expected_experts(const Dims& dims, int64_t tokens);

// A step, as far as its cost depends on it.
struct StepShape {
  std::span<const Row> rows;
  int64_t logit_rows = 0;
};

inline constexpr int kFewTokens = 8;  // most that a card's decode kernels take: of a step, or rows of logits

struct CostModel {
  Dims dims;  // of the whole model
  StoredFormats formats;
  std::optional<Shard> shard{};          // what one rank reads, computes and holds; none: all of it
  int64_t down_cols = 0;                 // that are held of down where they are filled up; 0: they are not
  std::vector<int64_t> layer_experts{};  // experts_of
  // Bytes of the short copy that a step of up to screened_rows rows of logits reads instead of the unembedding
  // (screen.h); 0: there is no copy.
  int64_t screened_bytes = 0, screened_rows = kFewTokens;

  // What one tensor makes of a step, in one layer; on average, where layers differ in their experts.
  [[nodiscard]] Cost of(WeightRole role, const StepShape& step) const;
  // A stage's cost in one layer of a kind; embed and logits are of no layer, and have no kind.
  [[nodiscard]] Cost of(Stage stage, LayerKind kind, const StepShape& step) const;
  // Over all layers.
  [[nodiscard]] StageCosts by_stage(std::span<const LayerKind> layer_kinds, const StepShape& step) const;
  [[nodiscard]] Cost of_step(std::span<const LayerKind> layer_kinds, const StepShape& step) const {
    return total(by_stage(layer_kinds, step));
  }
  // Memory that all weights take.
  [[nodiscard]] int64_t weight_bytes() const;
  // The experts' of the first so many layers.
  [[nodiscard]] int64_t expert_bytes(int64_t layers) const;
  // Bytes of one tensor, as `of` means it.
  [[nodiscard]] double bytes_of(WeightRole role) const;
  // Bytes of the key, or the value, of a head of a token.
  [[nodiscard]] int64_t kv_row_bytes() const {
    return formats.kv_row_bytes.value_or(row_bytes(type_of(KvDtype::kBf16), dims.head_dim));
  }

 private:
  template <class Of>
  [[nodiscard]] auto mean(WeightRole role, Of of) const;  // of(dims of a layer)
  [[nodiscard]] Cost of(WeightRole role, const StepShape& step, const Dims& dims) const;
  [[nodiscard]] double values(WeightRole role, const Dims& dims) const;
  [[nodiscard]] double bytes_of(WeightRole role, const Dims& dims) const;
  [[nodiscard]] double bytes_of_copy(WeightRole role, const Dims& dims) const;  // 0: there is none
};

}  // namespace nibble::backend
