#pragma once
// A fault of clocks that no limit shows. Pure.

#include "backend/measure.h"

#include <span>
#include <string>
#include <string_view>

namespace nibble::backend {

// clocks: read under load. A line of warning where a GB10 ran far below what it runs at: its power supply and it did
// not agree on their power (USB-PD), so it stays at 500 to 850 MHz, while its driver tells of state P0, of full use and
// of no limit. Empty for other cards, and where the driver names a limit, which is told elsewhere.
[[nodiscard]] std::string slow_clock_warning(std::string_view card, std::span<const ClockReading> clocks);

}  // namespace nibble::backend
