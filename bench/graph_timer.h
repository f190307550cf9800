#pragma once
// How the benches time kernels: as links of a chain that runs as one CUDA graph, so that launches cost what they cost
// in a step.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include <cuda_runtime_api.h>

namespace nibble::backend::cuda {

// Ends the program when CUDA fails: backend/cuda/card/device.h is not for nvcc.
inline void timer_check(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::printf("timing: %s\n", cudaGetErrorString(status));
  std::exit(1);
}

// Median µs of what `enqueue` puts on the stream, after a first time that does not count.
inline double median_us(cudaStream_t stream, int repetitions, const std::function<void()>& enqueue) {
  cudaEvent_t from = nullptr, to = nullptr;
  timer_check(cudaEventCreate(&from));
  timer_check(cudaEventCreate(&to));
  std::vector<float> ms(static_cast<size_t>(repetitions));
  enqueue();
  for (float& time : ms) {
    timer_check(cudaEventRecord(from, stream));
    enqueue();
    timer_check(cudaEventRecord(to, stream));
    timer_check(cudaEventSynchronize(to));
    timer_check(cudaEventElapsedTime(&time, from, to));
  }
  cudaEventDestroy(from);
  cudaEventDestroy(to);
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
  timer_check(cudaStreamBeginCapture(chain.stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < chain.links; ++i) link(i);
  timer_check(cudaStreamEndCapture(chain.stream, &graph));
  timer_check(cudaGraphInstantiate(&executable, graph, 0));
  const double us =
      median_us(chain.stream, chain.repetitions, [&] { timer_check(cudaGraphLaunch(executable, chain.stream)); });
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  return us / chain.links;
}

}  // namespace nibble::backend::cuda
