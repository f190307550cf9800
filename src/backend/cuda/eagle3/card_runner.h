#pragma once
// An EAGLE-3 head on a card: weights, keys and values in its memory, a draft without a word from the host in between.

#include "backend/cuda/eagle3/memory.h"
#include "backend/draft_head.h"

#include <memory>
#include <vector>

namespace nibble::backend::cuda {

class Eagle3Runner : public HeadRunner {
 public:
  // The residual behind the last layer of the sequence's last row, what drafts begin with: [hidden]. REQUIRES a row.
  [[nodiscard]] virtual std::vector<float> residual(SequenceId sequence) = 0;
};

// Products read bf16: weights of files in f16 or f32 and activations are rounded to it; sums, norms and residuals are
// f32, keys and values bf16. A sequence that finds no room for its rows does without them, and without drafts until
// rows of its find room again. At most kEagle3MostDraft tokens are drafted.
// The host's weights may go when this returns. Throws Error(kUnsupported) for a head whose shapes the kernels do not
// take, without CUDA or such a device, Error(kOutOfMemory) with the bytes wanted, Error(kDevice) when CUDA fails.
[[nodiscard]] std::unique_ptr<Eagle3Runner> make_eagle3_runner(const HeadWeights& head, const Eagle3Setup& setup);

}  // namespace nibble::backend::cuda
