// Times the sum over ranks (src/backend/cuda/comm) by each of its ways: rounds one after the other in a CUDA graph per
// rank.
//   comm_bench [ranks, 2 without] [cards, as many as there are, at most one per rank]
// µs per sum: median of the repetitions, of a graph of 200. Ranks that share a card share its memory, too: that tells
// of the kernel, not of a link.

#include "backend/cuda/comm/comm.h"
#include "backend/cuda/card_group.h"
#include "backend/cuda/program/step_graph.h"
#include "base/error.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

namespace nibble::backend::cuda {
namespace {

constexpr int kRounds = 200, kRepetitions = 9;

struct Rank {
  int card = 0;
  Stream stream;
  DeviceBytes values;
  GraphExec graph;
};

void capture(Rank& rank, const std::function<void(const Launch& on)>& sum) {
  cuda_check(cudaStreamBeginCapture(rank.stream.get(), cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < kRounds; ++i) sum({.stream = rank.stream.get()});
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

// One for each card, which wait for each other.
std::vector<std::unique_ptr<Comm>> nccl_of(int ranks) {
  const NcclId id = new_nccl_id();
  std::vector<std::unique_ptr<Comm>> all(static_cast<size_t>(ranks));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&all, id, rank, ranks] {
      all[static_cast<size_t>(rank)] = make_nccl_comm({.id = id, .rank = rank, .ranks = ranks, .card = rank});
    });
  threads.clear();
  return all;
}

void bench(int count, int cards) {
  std::vector<int> of_ranks;
  for (int rank = 0; rank < count; ++rank) of_ranks.push_back(rank % cards);
  const CommMemory memory(of_ranks);
  std::string nccl = "none: ranks share a card";
  std::vector<std::unique_ptr<Comm>> by_nccl;
  if (cards == count) try {
      nccl = nccl_version();
      by_nccl = nccl_of(count);
    } catch (const Error& none) {
      nccl = none.what();
    }
  constexpr int64_t kRowBytes = 5760, kMostTokens = 8192;
  std::vector<Rank> ranks(of_ranks.size());
  for (size_t r = 0; r < ranks.size(); ++r) {
    ranks[r].card = of_ranks[r];
    cuda_check(cudaSetDevice(of_ranks[r]));
    ranks[r].stream = make_stream();
    ranks[r].values = allocate_device(kMostTokens * kRowBytes, "values");
    cuda_check(cudaMemset(ranks[r].values.get(), 0, kMostTokens * kRowBytes));
    cuda_check(cudaDeviceSynchronize());
  }
  std::printf("%d ranks on %d cards; NCCL: %s\n%10s %12s", count, cards, nccl.c_str(), "tokens", "bytes (bf16)");
  struct Column {
    const char* name;
    SumWay way;
    DeltaValues::Type type;
    DeltaValues::Sending sent{};  // of parts that are said to be there: what is left of a sum behind who sends them
  };
  constexpr const char* kNames[] = {"push", "shares", "NCCL"};  // of SumWay
  std::vector<Column> columns;
  for (const SumWay way : {SumWay::kPush, SumWay::kShares, SumWay::kNccl})
    for (const DeltaValues::Type type : {DeltaValues::Type::kBf16, DeltaValues::Type::kF32})
      if (way != SumWay::kNccl || !by_nccl.empty()) columns.push_back({kNames[static_cast<size_t>(way)], way, type});
  columns.push_back({"sent", SumWay::kShares, DeltaValues::Type::kBf16, DeltaValues::Sending::kToOwners});
  for (const Column& column : columns)
    std::printf(" %6s %4s", column.name, column.type == DeltaValues::Type::kBf16 ? "bf16" : "f32");
  std::printf("  us\n");
  for (const int64_t tokens : {1, 8, 32, 64, 256, 2048, 8192}) {
    std::printf("%10lld %12lld", static_cast<long long>(tokens), static_cast<long long>(tokens * kRowBytes));
    for (const Column& column : columns) {
      const int64_t of_value = column.type == DeltaValues::Type::kF32 ? 4 : 2;
      for (size_t r = 0; r < ranks.size(); ++r) {
        cuda_check(cudaSetDevice(ranks[r].card));
        const DeltaValues values{.at = ranks[r].values.get(),
                                 .count = tokens * kRowBytes / of_value,
                                 .type = column.type,
                                 .sent = column.sent};
        capture(ranks[r], [&, of = memory.of(static_cast<int>(r))](const Launch& on) {
          column.way == SumWay::kNccl ? by_nccl[r]->reduce(values, on) : of.reduce_by(column.way, values, on);
        });
      }
      std::printf(" %11.2f", median_us(ranks));
    }
    std::printf("\n");
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
