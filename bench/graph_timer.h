#pragma once
// How the benches time kernels: as links of a chain that runs as one CUDA graph, so that launches cost what they cost
// in a step.

#include "backend/cuda/device.h"

#include <algorithm>
#include <functional>
#include <vector>

namespace nibble::backend::cuda {

// Median µs of what `enqueue` puts on the stream, after a first time that does not count.
inline double median_us(cudaStream_t stream, int repetitions, const std::function<void()>& enqueue) {
  const Event from = make_timer(), to = make_timer();
  std::vector<float> ms(static_cast<size_t>(repetitions));
  enqueue();
  for (float& time : ms) {
    cuda_check(cudaEventRecord(from.get(), stream));
    enqueue();
    cuda_check(cudaEventRecord(to.get(), stream));
    cuda_check(cudaEventSynchronize(to.get()));
    cuda_check(cudaEventElapsedTime(&time, from.get(), to.get()));
  }
  std::nth_element(ms.begin(), ms.begin() + repetitions / 2, ms.end());
  return 1e3 * ms[static_cast<size_t>(repetitions / 2)];
}

// Median µs of a link; link(i) enqueues the i-th of `links`.
struct LinkChain {
  cudaStream_t stream = nullptr;
  int links = 1, repetitions = 1;
};
inline double median_link_us(const LinkChain& chain, const std::function<void(int)>& link) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  link(0);  // loads the kernels
  cuda_check(cudaStreamBeginCapture(chain.stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < chain.links; ++i) link(i);
  cuda_check(cudaStreamEndCapture(chain.stream, &graph));
  cuda_check(cudaGraphInstantiate(&executable, graph, 0));
  const double us =
      median_us(chain.stream, chain.repetitions, [&] { cuda_check(cudaGraphLaunch(executable, chain.stream)); });
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  return us / chain.links;
}

}  // namespace nibble::backend::cuda
