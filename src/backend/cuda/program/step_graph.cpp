#include "backend/cuda/program/step_graph.h"

#include "base/error.h"

namespace nibble::backend::cuda {

StepGraphs::Next StepGraphs::next(int64_t tokens) {
  check(tokens >= 1 && tokens <= most_tokens(), "graphs serve steps of up to most_tokens");
  Size& size = sizes_[static_cast<size_t>(tokens)];
  if (size.graph != nullptr) return Next::kReplay;
  return size.seen++ == 0 ? Next::kRun : Next::kCapture;
}

void StepGraphs::begin_capture(int64_t tokens) {
  check(!capturing(), "one capture at a time");
  cuda_check(cudaStreamBeginCapture(on_.stream, cudaStreamCaptureModeThreadLocal));
  capturing_ = tokens;
  captured_from_ = on_.trace->size();
}

void StepGraphs::end_capture() {
  Size& size = sizes_[static_cast<size_t>(capturing_)];
  capturing_ = 0;
  cudaGraph_t graph = nullptr;
  cuda_check(cudaStreamEndCapture(on_.stream, &graph));
  cudaGraphExec_t executable = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  cuda_check(status);
  size.graph.reset(executable);
  size.launches.assign(on_.trace->begin() + static_cast<std::ptrdiff_t>(captured_from_), on_.trace->end());
  for (const LaunchRecord& launch : size.launches) ++size.counts[launch.kernel.name];
  cuda_check(cudaGraphLaunch(executable, on_.stream));
}

void StepGraphs::replay(int64_t tokens) {
  const Size& size = sizes_[static_cast<size_t>(tokens)];
  cuda_check(cudaGraphLaunch(size.graph.get(), on_.stream));
  for (const auto& [kernel, count] : size.counts) (*on_.counts)[kernel] += count;
  on_.trace->insert(on_.trace->end(), size.launches.begin(), size.launches.end());
  ++replays_;
}

}  // namespace nibble::backend::cuda
