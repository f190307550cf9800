#pragma once
// How fast the card reads its memory and multiplies matrices.

#include "backend/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>

namespace nibble::backend {

// Takes a second, and a part of the card's free memory while it runs. Throws what make_cuda_backend throws.
[[nodiscard]] DevicePeaks measure_cuda(int device);

// Bytes per second of copies from pinned host memory to the card; takes some 10 ms. Throws as measure_cuda.
[[nodiscard]] double measure_link(int device);

// The card's clock, from NVML, which is loaded now; empty where the driver brought no such library. A reading takes
// less than a millisecond.
[[nodiscard]] ReadClock cuda_clock(int device);

// clocks: read under load. A line of warning where a GB10 ran far below what it runs at: its power supply and it did
// not agree on their power (USB-PD), so it stays at 500 to 850 MHz, while its driver tells of state P0, of full use and
// of no limit. Empty for other cards, and where the driver names a limit, which is told elsewhere.
[[nodiscard]] inline std::string slow_clock_warning(std::string_view card, std::span<const ClockReading> clocks) {
  constexpr int kLeastMhz = 1500;  // of a GB10 under load, which runs at 2200 and more
  if (clocks.empty() || card.find("GB10") == std::string_view::npos) return {};
  const ClockReading fastest = std::ranges::max(clocks, {}, &ClockReading::mhz);
  if (fastest.mhz >= kLeastMhz || std::ranges::any_of(clocks, [](const auto& c) { return c.thermal || c.power; }))
    return {};
  return fmt::format(
      "warning: {} ran at {} MHz at most{}, under load, and its driver names no limit; want {} and more. Known cause: "
      "the power supply came up with too little power. Shut down, take the supply off the wall and the machine for a "
      "minute, use the one that came along",
      card, fastest.mhz, fastest.watts > 0 ? fmt::format(" ({:.0f} W)", fastest.watts) : "", kLeastMhz);
}

}  // namespace nibble::backend
