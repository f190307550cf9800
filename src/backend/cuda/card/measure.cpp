#include "backend/cuda/card/measure.h"

#include "backend/cuda/arch/arch.h"
#include "backend/cuda/card/device.h"
#include "backend/cuda/cuda_backend.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <functional>
#include <type_traits>

#include <dlfcn.h>

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

// cuda_clock (measure.h). NVML comes with the driver, so it is loaded, never linked; its header comes with neither, so
// what is used of it is declared here, after NVIDIA's "NVML API Reference".

using Device = struct nvmlDevice_st*;  // NOLINT(readability-identifier-naming): NVML's name
constexpr int kSuccess = 0, kSmClock = 1, kGpuSensor = 0;
// nvmlClocksEventReasons
constexpr unsigned long long kSwPowerCap = 0x04, kSwThermal = 0x20, kHwThermal = 0x40, kHwPowerBrake = 0x80;

struct Nvml {
  int (*init)() = nullptr;
  int (*device_of)(const char* pci_bus_id, Device*) = nullptr;
  int (*clock)(Device, int which, unsigned* mhz) = nullptr;
  int (*temperature)(Device, int sensor, unsigned* celsius) = nullptr;
  int (*reasons)(Device, unsigned long long* bits) = nullptr;
  int (*power)(Device, unsigned* milliwatts) = nullptr;
  // Not every driver and card has these.
  int (*power_limit)(Device, unsigned* milliwatts) = nullptr;
  int (*energy)(Device, unsigned long long* millijoules) = nullptr;
  Device device = nullptr;

  // False where the library lacks something or does not know the card.
  bool open(int which) {
    void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return false;
    const auto bind = [&](const char* name, auto& function) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      return function != nullptr;
    };
    bind("nvmlDeviceGetEnforcedPowerLimit", power_limit);
    bind("nvmlDeviceGetTotalEnergyConsumption", energy);
    char bus[32] = {};
    return bind("nvmlInit_v2", init) && bind("nvmlDeviceGetHandleByPciBusId_v2", device_of) &&
           bind("nvmlDeviceGetClockInfo", clock) && bind("nvmlDeviceGetTemperature", temperature) &&
           bind("nvmlDeviceGetCurrentClocksThrottleReasons", reasons) && bind("nvmlDeviceGetPowerUsage", power) &&
           cudaDeviceGetPCIBusId(bus, sizeof bus, which) == cudaSuccess && init() == kSuccess &&
           device_of(bus, &device) == kSuccess;
  }
  [[nodiscard]] std::optional<ClockReading> read() const {
    unsigned mhz = 0, celsius = 0, milliwatts = 0, limit = 0;
    unsigned long long why = 0, millijoules = 0;
    if (clock(device, kSmClock, &mhz) != kSuccess) return std::nullopt;
    // An integrated card may not have them all.
    if (temperature(device, kGpuSensor, &celsius) != kSuccess) celsius = 0;
    if (reasons(device, &why) != kSuccess) why = 0;
    if (power(device, &milliwatts) != kSuccess) milliwatts = 0;
    if (power_limit == nullptr || power_limit(device, &limit) != kSuccess) limit = 0;
    if (energy == nullptr || energy(device, &millijoules) != kSuccess) millijoules = 0;
    constexpr double kMilli = 1e-3;
    return ClockReading{.mhz = static_cast<int>(mhz),
                        .celsius = static_cast<int>(celsius),
                        .thermal = (why & (kSwThermal | kHwThermal)) != 0,
                        .power = (why & (kSwPowerCap | kHwPowerBrake)) != 0,
                        .watts = kMilli * milliwatts,
                        .limit_watts = kMilli * limit,
                        .joules = kMilli * static_cast<double>(millijoules)};
  }
};

}  // namespace

double measure_link(int device) {
  constexpr int64_t kBytes = int64_t{32} << 20;
  const CurrentDevice before;
  require_kernels(open_device(device));
  const PinnedBytes from = allocate_pinned(kBytes, "measuring the link");
  const DeviceBytes to = allocate_device(kBytes, "measuring the link");
  const Stream stream = make_stream();
  return kBytes / best_seconds(stream.get(), [&] {
           cuda_check(cudaMemcpyAsync(to.get(), from.get(), kBytes, cudaMemcpyHostToDevice, stream.get()));
         });
}

DevicePeaks measure_cuda(int device) {
  const CurrentDevice before;
  if (const CudaAvailable available = cuda_available(device); !available.yes)
    throw Error(Code::kUnsupported, "{}", available.reason);
  const DeviceFacts facts = open_device(device);
  const Stream stream = make_stream();
  DevicePeaks peaks{.device = facts.name, .read_bytes_per_s = measure_read(facts, stream.get()), .matrix = {}};
  const std::vector<Arch> arches = Card(facts).arches;
  for (auto arch = arches.rbegin(); arch != arches.rend(); ++arch) {
    if (arch->peak.launch == nullptr) continue;
    if (const double flops = measure_peak(arch->peak.launch, facts, stream.get()); flops > 0)
      peaks.matrix.push_back({std::string(arch->peak.of), arch->peak.exact16, flops});
  }
  return peaks;
}

ReadClock cuda_clock(int device) {
  Nvml nvml;
  if (!nvml.open(device)) return {};
  return [nvml] { return nvml.read(); };
}

}  // namespace nibble::backend
