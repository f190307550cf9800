#include "backend/cuda/memory/screen_weights.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace nibble::backend::cuda {

ScreenWeights::ScreenWeights(int64_t rows, int64_t cols)
    : counts_(allocate_pinned(sizeof(ScreenCounts), "counts of the screen")),
      memory_(allocate_device(screen_copy_bytes(rows, cols), "the screen of the logits")) {
  *counts() = {};
  std::byte* const end = memory_.get() + layout::screen_bytes(rows, cols);
  auto* floats = reinterpret_cast<float*>(end);
  copy_ = {.codes = reinterpret_cast<uint8_t*>(memory_.get()),
           .mean = floats + 4 * rows,
           .rms = floats + 4 * rows + cols,
           .scale = floats,
           .lost = floats + rows,
           .kept = floats + 2 * rows,
           .length = floats + 3 * rows,
           .rows = static_cast<int>(rows),
           .cols = static_cast<int>(cols)};
}

void ScreenWeights::make(const uint8_t* matrix, cudaStream_t stream) {
  copy_.matrix = matrix;
  make_screen_copy(copy_, stream);
  std::vector<float> lengths(static_cast<size_t>(copy_.rows));
  cuda_check(
      cudaMemcpyAsync(lengths.data(), copy_.length, lengths.size() * sizeof(float), cudaMemcpyDeviceToHost, stream));
  cuda_check(cudaStreamSynchronize(stream));
  const auto strange = std::ranges::find_if_not(lengths, [](float length) { return std::isfinite(length); });
  copy_.longest = strange != lengths.end() ? *strange : *std::ranges::max_element(lengths);
}

}  // namespace nibble::backend::cuda
