// Times the sum over ranks (src/backend/cuda/comm): rounds one after the other in a CUDA graph per rank.
//   comm_bench [ranks, 2 without] [cards, as many as there are, at most one per rank]
// µs per sum: median of the repetitions, of a graph of 500. Ranks that share a card share its memory, too: that tells
// of the kernel, not of a link.

#include "backend/cuda/comm/comm.h"
#include "backend/cuda/program/step_graph.h"
#include "base/error.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

namespace nibble::backend::cuda {
namespace {

constexpr int kRounds = 500, kRepetitions = 9;

struct Rank {
  int card = 0;
  Stream stream;
  DeviceBytes values;
  GraphExec graph;
};

void capture(Rank& rank, const Comm& comm, const DeltaValues& values) {
  cuda_check(cudaStreamBeginCapture(rank.stream.get(), cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < kRounds; ++i) comm.reduce(values, {.stream = rank.stream.get()});
  cudaGraph_t graph = nullptr;
  cuda_check(cudaStreamEndCapture(rank.stream.get(), &graph));
  cudaGraphExec_t executable = nullptr;
  cuda_check(cudaGraphInstantiate(&executable, graph, 0));
  cudaGraphDestroy(graph);
  rank.graph.reset(executable);
}

double median_us(std::span<Rank> ranks) {
  cuda_check(cudaSetDevice(ranks.front().card));
  const Event from = make_timer(), to = make_timer();
  std::vector<float> ms;
  for (int i = 0; i <= kRepetitions; ++i) {
    for (Rank& rank : ranks) {
      cuda_check(cudaSetDevice(rank.card));
      if (&rank == &ranks.front()) cuda_check(cudaEventRecord(from.get(), rank.stream.get()));
      cuda_check(cudaGraphLaunch(rank.graph.get(), rank.stream.get()));
      if (&rank == &ranks.front()) cuda_check(cudaEventRecord(to.get(), rank.stream.get()));
    }
    for (Rank& rank : ranks) {
      cuda_check(cudaSetDevice(rank.card));
      cuda_check(cudaStreamSynchronize(rank.stream.get()));
    }
    float time = 0;
    cuda_check(cudaEventElapsedTime(&time, from.get(), to.get()));
    if (i > 0) ms.push_back(time);
  }
  std::ranges::nth_element(ms, ms.begin() + kRepetitions / 2);
  return 1e3 * ms[kRepetitions / 2] / kRounds;
}

void bench(int count, int cards) {
  std::vector<int> of_ranks;
  for (int rank = 0; rank < count; ++rank) of_ranks.push_back(rank % cards);
  const CommMemory memory(of_ranks);
  constexpr int64_t kRowBytes = 5760, kMostTokens = 2048;
  std::vector<Rank> ranks(of_ranks.size());
  for (size_t r = 0; r < ranks.size(); ++r) {
    ranks[r].card = of_ranks[r];
    cuda_check(cudaSetDevice(of_ranks[r]));
    ranks[r].stream = make_stream();
    ranks[r].values = allocate_device(kMostTokens * kRowBytes, "values");
    cuda_check(cudaMemset(ranks[r].values.get(), 0, kMostTokens * kRowBytes));
    cuda_check(cudaDeviceSynchronize());
  }
  std::printf("%d ranks on %d cards\n%10s %12s %10s %10s\n", count, cards, "tokens", "bytes (bf16)", "us bf16",
              "us f32");
  for (const int64_t tokens : {1, 8, 32, 64, 256, 2048}) {
    double us[2] = {};
    for (const DeltaValues::Type type : {DeltaValues::Type::kF32, DeltaValues::Type::kBf16}) {
      const bool f32 = type == DeltaValues::Type::kF32;  // of the same bytes
      for (size_t r = 0; r < ranks.size(); ++r) {
        cuda_check(cudaSetDevice(ranks[r].card));
        capture(ranks[r], memory.of(static_cast<int>(r)),
                {ranks[r].values.get(), tokens * kRowBytes / (f32 ? 4 : 2), type});
      }
      us[f32 ? 1 : 0] = median_us(ranks);
    }
    std::printf("%10lld %12lld %10.2f %10.2f\n", static_cast<long long>(tokens),
                static_cast<long long>(tokens * kRowBytes), us[0], us[1]);
  }
}

}  // namespace
}  // namespace nibble::backend::cuda

int main(int argc, char** argv) {
  try {
    int there = 0;
    nibble::backend::cuda::cuda_check(cudaGetDeviceCount(&there));
    const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
    nibble::backend::cuda::bench(ranks, argc > 2 ? std::atoi(argv[2]) : std::max(1, std::min(there, ranks)));
  } catch (const nibble::Error& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
  return 0;
}
