#include "backend/cuda/card/measure.h"

#include <fmt/format.h>

#include <algorithm>

namespace nibble::backend {

std::string slow_clock_warning(std::string_view card, std::span<const ClockReading> clocks) {
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
