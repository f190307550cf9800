#pragma once
// An EAGLE-3 head of random weights, for benchmarks: what one costs does not depend on what it knows.

#include "base/thread_pool.h"
#include "model/config.h"
#include "model/eagle3/head.h"

#include <cstdint>

namespace nibble::convert {

struct DummyHeadOptions {
  int64_t draft_vocab = 32000;  // at most the model's, which is its bound
  uint64_t seed = 1;
  ThreadPool* pool = nullptr;
};

// A head of the shape that heads of gpt-oss are published in: one layer with the model's heads and an inner width of
// six times its own, three states read at the boundaries that are usual, the model's embedding, in bf16. Values depend
// on the seed and their place alone. Throws Error(kCorrupt) for a model of so few layers that there are no such
// boundaries.
[[nodiscard]] model::eagle3::Head dummy_head(const model::eagle3::Target& target, const DummyHeadOptions& options);
[[nodiscard]] std::vector<int> dummy_head_boundaries(const model::ModelConfig& target);

}  // namespace nibble::convert
