#pragma once
// Decode steps as CUDA graphs, one per number of tokens: eight sequences and one with seven guesses are the same
// launches. The first step of a size runs eagerly (kernels are loaded), the second is captured from the same verbs, the
// rest are replays. What differs from step to step lies in device memory
// and is copied there before; a step whose arguments cannot lie there is not asked for.

#include "backend/cuda/card/device.h"
#include "backend/cuda/launch/launch.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

namespace nibble::backend::cuda {

// What the stream recorded since cudaStreamBeginCapture.
[[nodiscard]] GraphExec captured(cudaStream_t stream);

class StepGraphs {
 public:
  static constexpr int64_t kMaxTokens = 256;
  // The device's memory for a graph of every size up to most_tokens.
  [[nodiscard]] static constexpr int64_t memory_bytes(int64_t most_tokens, int64_t layers) {
    return std::min(most_tokens, kMaxTokens) * layers * kLayerBytes;
  }

  // For steps of up to `most_tokens`, at most kMaxTokens, whose launches are traced. `on` outlives the graphs.
  StepGraphs(const Launch& on, int64_t most_tokens)
      : on_(on), sizes_(static_cast<size_t>(std::min(most_tokens, kMaxTokens)) + 1) {}
  [[nodiscard]] int64_t most_tokens() const { return std::ssize(sizes_) - 1; }

  enum class Next : uint8_t { kRun, kCapture, kReplay };
  // What to do with a step of `tokens`, 1 to most_tokens(). Counts it as seen.
  [[nodiscard]] Next next(int64_t tokens);

  // Between them the stream records instead of running; what was recorded runs with launch(), once.
  void begin_capture(int64_t tokens);
  void end_capture();
  void launch(int64_t tokens);
  [[nodiscard]] bool capturing() const { return capturing_ > 0; }

  // REQUIRES next() said kReplay. Notes the step's launches.
  void replay(int64_t tokens);
  // All sizes begin anew.
  void forget() {
    for (Size& size : sizes_) size = {};
  }
  [[nodiscard]] int64_t replays() const { return replays_; }

 private:
  static constexpr int64_t kLayerBytes = int64_t{40} << 10;  // H100, CUDA 13.0: 36 KB, whatever the widths (gpu_test)
  struct Size {
    int64_t seen = 0;
    GraphExec graph;
    LaunchTrace launches;
    LaunchCounts counts;  // of them
  };
  const Launch& on_;
  std::vector<Size> sizes_;
  int64_t capturing_ = 0;
  size_t captured_from_ = 0;  // in the trace
  int64_t replays_ = 0;
};

}  // namespace nibble::backend::cuda
