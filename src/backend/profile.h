#pragma once
// Where a device's time goes, kernel by kernel, as the device itself says.

#include "backend/stage.h"

#include <cstdint>
#include <string_view>
#include <vector>

namespace nibble::backend {

// A kernel's launches in one stage, over all steps of a profile.
struct KernelTime {
  Stage stage = Stage::kEmbed;  // sampling counts with the logits
  std::string_view kernel;
  int64_t launches = 0;
  double us = 0;      // from start to end, each launch
  double own_us = 0;  // the same without what overlaps the kernels before it: these and the pauses add up
};

struct KernelProfile {
  int64_t steps = 0;
  std::vector<KernelTime> kernels;  // by their first launch
  double between_kernels_us = 0;    // nothing ran, within a step
  double between_steps_us = 0;      // likewise, from a step's last kernel to the next one's first

  [[nodiscard]] double total_us() const {
    double sum = between_kernels_us + between_steps_us;
    for (const KernelTime& time : kernels) sum += time.own_us;
    return sum;
  }
};

// Of a backend whose work runs on a device. Between steps only.
class KernelProfiler {
 public:
  KernelProfiler() = default;
  virtual ~KernelProfiler() = default;
  KernelProfiler(const KernelProfiler&) = delete;
  KernelProfiler& operator=(const KernelProfiler&) = delete;

  // Until end(), kernels are timed, which slows steps down; steps kept as graphs are recorded anew. Throws
  // Error(kUnsupported) where nothing can time them.
  virtual void begin() = 0;
  // What ran since begin() does not count. Waits for it.
  virtual void skip() = 0;
  // What ran since begin(), skip() or the last take(). Waits for it. The first kernel after begin() and take() is
  // followed by a pause of some 0.7 ms that no step has otherwise.
  [[nodiscard]] virtual KernelProfile take() = 0;
  virtual void end() = 0;
};

}  // namespace nibble::backend
