#pragma once
// What a device can do at most, measured on the spot.

#include "backend/cost.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nibble::backend {

struct MatrixPeak {
  std::string type;        // "bf16 (amx)", "int8 (vnni)"
  bool exact16 = false;    // holds bf16 products exactly: what a roofline of unrounded activations uses
  double flops_per_s = 0;  // operations, for integers
};

// What a card leaves to its host: experts, of this share of all layers. They are computed there or copied to the card.
struct HostPart {
  double layers = 0;
  double read_bytes_per_s = 0, flops_per_s = 0, link_bytes_per_s = 0;

  [[nodiscard]] double ideal_seconds(const Cost& cost) const {
    return std::min(std::max(cost.bytes / read_bytes_per_s, cost.flops / flops_per_s), cost.bytes / link_bytes_per_s);
  }
};

struct DevicePeaks {
  std::string device;  // as its maker names it
  double read_bytes_per_s = 0;
  std::vector<MatrixPeak> matrix;
  std::optional<HostPart> host{};

  // The highest of the exact types.
  [[nodiscard]] const MatrixPeak* exact_peak() const {
    const MatrixPeak* best = nullptr;
    for (const MatrixPeak& p : matrix)
      if (p.exact16 && (best == nullptr || p.flops_per_s > best->flops_per_s)) best = &p;
    return best;
  }
  // Seconds that it takes at the least: the longer of reading and computing.
  [[nodiscard]] double ideal_seconds(const Cost& cost) const {
    const MatrixPeak* peak = exact_peak();
    return std::max(cost.bytes / read_bytes_per_s, peak == nullptr ? 0 : cost.flops / peak->flops_per_s);
  }
  // Seconds that a step takes at the least, which runs stage after stage.
  [[nodiscard]] double ideal_seconds(const StageCosts& costs) const {
    double seconds = 0;
    for (const Cost& cost : costs) seconds += ideal_seconds(cost);
    if (!host) return seconds;
    const Cost& experts = costs[static_cast<size_t>(Stage::kMoe)];
    return seconds - host->layers * ideal_seconds(experts) + host->ideal_seconds(experts / (1 / host->layers));
  }
};

// Devices that share every step, as one.
[[nodiscard]] inline DevicePeaks together(std::span<const DevicePeaks> devices) {
  DevicePeaks all = devices.front();
  if (devices.size() == 1) return all;
  all.device = std::to_string(devices.size()) + " x " + all.device;
  for (const DevicePeaks& more : devices.subspan(1)) {
    all.read_bytes_per_s += more.read_bytes_per_s;
    for (size_t i = 0; i < std::min(all.matrix.size(), more.matrix.size()); ++i)
      all.matrix[i].flops_per_s += more.matrix[i].flops_per_s;
  }
  return all;
}
// What each of so many has of it.
[[nodiscard]] inline DevicePeaks share_of(DevicePeaks all, int devices) {
  all.read_bytes_per_s /= devices;
  for (MatrixPeak& peak : all.matrix) peak.flops_per_s /= devices;
  return all;
}

// What a card's driver says of its clock, at one moment.
struct ClockReading {
  int mhz = 0;                          // of the multiprocessors
  int celsius = 0;                      // 0: it does not say
  bool thermal = false, power = false;  // what holds the clock down
  double watts = 0;                     // 0: it does not say
  double limit_watts = 0;               // that the card may take; 0: it does not say
  double joules = 0;                    // since the driver was loaded; 0: it does not say
};
// Empty where there is no driver to ask; none when it does not answer.
using ReadClock = std::function<std::optional<ClockReading>()>;

}  // namespace nibble::backend
