// cuda_clock (measure.h). NVML comes with the driver, so it is loaded, never linked; its header comes with neither, so
// what is used of it is declared here, after NVIDIA's "NVML API Reference".
#include "backend/cuda/card/device.h"
#include "backend/cuda/card/measure.h"

#include <type_traits>

#include <cuda_runtime_api.h>
#include <dlfcn.h>

namespace nibble::backend {
namespace {

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
  int (*power_limit)(Device, unsigned* milliwatts) = nullptr;  // not every driver has it
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
    char bus[32] = {};
    return bind("nvmlInit_v2", init) && bind("nvmlDeviceGetHandleByPciBusId_v2", device_of) &&
           bind("nvmlDeviceGetClockInfo", clock) && bind("nvmlDeviceGetTemperature", temperature) &&
           bind("nvmlDeviceGetCurrentClocksThrottleReasons", reasons) && bind("nvmlDeviceGetPowerUsage", power) &&
           cudaDeviceGetPCIBusId(bus, sizeof bus, which) == cudaSuccess && init() == kSuccess &&
           device_of(bus, &device) == kSuccess;
  }
  [[nodiscard]] std::optional<ClockReading> read() const {
    unsigned mhz = 0, celsius = 0, milliwatts = 0, limit = 0;
    unsigned long long why = 0;
    if (clock(device, kSmClock, &mhz) != kSuccess) return std::nullopt;
    // An integrated card may not have them all.
    if (temperature(device, kGpuSensor, &celsius) != kSuccess) celsius = 0;
    if (reasons(device, &why) != kSuccess) why = 0;
    if (power(device, &milliwatts) != kSuccess) milliwatts = 0;
    if (power_limit == nullptr || power_limit(device, &limit) != kSuccess) limit = 0;
    constexpr double kMilli = 1e-3;
    return ClockReading{.mhz = static_cast<int>(mhz),
                        .celsius = static_cast<int>(celsius),
                        .thermal = (why & (kSwThermal | kHwThermal)) != 0,
                        .power = (why & (kSwPowerCap | kHwPowerBrake)) != 0,
                        .watts = kMilli * milliwatts,
                        .limit_watts = kMilli * limit};
  }
};

}  // namespace

ReadClock cuda_clock(int device) {
  Nvml nvml;
  if (!nvml.open(device)) return {};
  return [nvml] { return nvml.read(); };
}

}  // namespace nibble::backend
