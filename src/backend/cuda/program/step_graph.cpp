#include "backend/cuda/program/step_graph.h"

#include "base/error.h"

namespace nibble::backend::cuda {

GraphExec captured(cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  cuda_check(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t executable = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  cuda_check(status);
  return GraphExec(executable);
}

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
  size.graph = captured(on_.stream);
  size.launches.assign(on_.trace->begin() + static_cast<std::ptrdiff_t>(captured_from_), on_.trace->end());
  for (const LaunchRecord& launch : size.launches) ++size.counts[launch.kernel.name];
}

void StepGraphs::launch(int64_t tokens) {
  cuda_check(cudaGraphLaunch(sizes_[static_cast<size_t>(tokens)].graph.get(), on_.stream));
}

void StepGraphs::replay(int64_t tokens) {
  launch(tokens);
  const Size& size = sizes_[static_cast<size_t>(tokens)];
  for (const auto& [kernel, count] : size.counts) (*on_.counts)[kernel] += count;
  on_.trace->insert(on_.trace->end(), size.launches.begin(), size.launches.end());
  ++replays_;
}

}  // namespace nibble::backend::cuda
