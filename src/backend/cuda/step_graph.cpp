#include "backend/cuda/step_graph.h"

#include "base/error.h"

namespace nibble::backend::cuda {

StepGraphs::Next StepGraphs::next(int64_t tokens) {
  check(tokens >= 1 && tokens <= most_tokens(), "graphs serve steps of up to most_tokens");
  Size& size = sizes_[static_cast<size_t>(tokens)];
  if (size.graph != nullptr) return Next::kReplay;
  return size.seen++ == 0 ? Next::kRun : Next::kCapture;
}

void StepGraphs::begin_capture(int64_t tokens, const LaunchCounts& counts) {
  check(!capturing(), "one capture at a time");
  cuda_check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  capturing_ = tokens;
  sizes_[static_cast<size_t>(tokens)].launches = counts;
}

void StepGraphs::end_capture(const LaunchCounts& counts) {
  Size& size = sizes_[static_cast<size_t>(capturing_)];
  capturing_ = 0;
  cudaGraph_t graph = nullptr;
  cuda_check(cudaStreamEndCapture(stream_, &graph));
  cudaGraphExec_t executable = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  cuda_check(status);
  size.graph.reset(executable);
  for (size_t k = 0; k < counts.size(); ++k) size.launches[k] = counts[k] - size.launches[k];
  cuda_check(cudaGraphLaunch(executable, stream_));
}

void StepGraphs::replay(int64_t tokens, LaunchCounts& counts) {
  const Size& size = sizes_[static_cast<size_t>(tokens)];
  cuda_check(cudaGraphLaunch(size.graph.get(), stream_));
  for (size_t k = 0; k < counts.size(); ++k) counts[k] += size.launches[k];
  ++replays_;
}

}  // namespace nibble::backend::cuda
