#include "backend/cuda/card/measure.h"

#include "backend/cuda/arch/arch.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/card/device.h"
#include "backend/cuda/arch/neutral/peak.h"

#include <algorithm>
#include <functional>

namespace nibble::backend {
namespace {

using namespace cuda;

// Shortest time of a few, in seconds, of what `enqueue` puts on the stream.
double best_seconds(cudaStream_t stream, const std::function<void()>& enqueue) {
  const Event from = make_timer(), to = make_timer();
  float best_ms = 1e30f;
  constexpr int kRepetitions = 6;  // the first warms up
  for (int i = 0; i < kRepetitions; ++i) {
    cuda_check(cudaEventRecord(from.get(), stream));
    enqueue();
    cuda_check(cudaGetLastError());
    cuda_check(cudaEventRecord(to.get(), stream));
    cuda_check(cudaEventSynchronize(to.get()));
    float ms = 0;
    cuda_check(cudaEventElapsedTime(&ms, from.get(), to.get()));
    if (i > 0) best_ms = std::min(best_ms, ms);
  }
  return best_ms / 1e3;
}

double measure_read(const DeviceFacts& facts, cudaStream_t stream) {
  const int64_t free = device_memory().free_bytes;
  constexpr int64_t kWanted = int64_t{4} << 30, kGrain = 1 << 20;  // far beyond any L2
  const int64_t bytes = std::max(kGrain, std::min(kWanted, free / 4) / kGrain * kGrain);
  const DeviceBytes data = allocate_device(bytes, "measuring reads"), sink = allocate_device(4, "measuring reads");
  cuda_check(cudaMemsetAsync(data.get(), 0x5a, static_cast<size_t>(bytes), stream));
  double best = 0;
  for (const int per_sm : {2, 4, 8}) {
    for (const int threads : {256, 512, 1024}) {
      for (const int loads : {4, 8}) {
        if (per_sm * threads > 2048) continue;
        const double s = best_seconds(stream, [&] {
          any_read_all({.data = data.get(),
                        .bytes = bytes,
                        .sink = reinterpret_cast<uint32_t*>(sink.get()),
                        .blocks = per_sm * facts.multiprocessors,
                        .threads = threads,
                        .loads = loads},
                       stream);
        });
        best = std::max(best, static_cast<double>(bytes) / s);
      }
    }
  }
  return best;
}

// Flops per second; 0 where this build has no such kernel.
double measure_peak(double (*kernel)(const PeakLaunch&, cudaStream_t), const DeviceFacts& facts, cudaStream_t stream) {
  const DeviceBytes sink = allocate_device(4, "measuring products");
  const PeakLaunch launch{
      .sink = reinterpret_cast<float*>(sink.get()), .blocks = 4 * facts.multiprocessors, .rounds = 4096};
  double flops = 0;
  const double s = best_seconds(stream, [&] { flops = kernel(launch, stream); });
  return flops / s;
}

}  // namespace

DevicePeaks measure_cuda(int device) {
  const CurrentDevice before;
  if (const CudaAvailable available = cuda_available(device); !available.yes)
    throw Error(Code::kUnsupported, "{}", available.reason);
  const DeviceFacts facts = open_device(device);
  const Stream stream = make_stream();
  DevicePeaks peaks{.device = facts.name, .read_bytes_per_s = measure_read(facts, stream.get()), .matrix = {}};
  const std::vector<Arch> arches = Card(facts, built_architectures()).arches;
  for (auto arch = arches.rbegin(); arch != arches.rend(); ++arch) {
    if (arch->peak.launch == nullptr) continue;
    if (const double flops = measure_peak(arch->peak.launch, facts, stream.get()); flops > 0)
      peaks.matrix.push_back({std::string(arch->peak.of), arch->peak.exact16, flops});
  }
  return peaks;
}

}  // namespace nibble::backend
