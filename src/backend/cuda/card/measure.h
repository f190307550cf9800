#pragma once
// How fast the card reads its memory and multiplies matrices.

#include "backend/measure.h"

#include <span>
#include <string>
#include <string_view>

namespace nibble::backend {

// Takes a second, and a part of the card's free memory while it runs. Throws what make_cuda_backend throws.
[[nodiscard]] DevicePeaks measure_cuda(int device);

// The card's clock, from NVML, which is loaded now; empty where the driver brought no such library. A reading takes
// less than a millisecond.
[[nodiscard]] ReadClock cuda_clock(int device);

// clocks: read under load. A line of warning where a GB10 ran far below what it runs at: its power supply and it did
// not agree on their power (USB-PD), so it stays at 500 to 850 MHz, while its driver tells of state P0, of full use and
// of no limit. Empty for other cards, and where the driver names a limit, which is told elsewhere.
[[nodiscard]] std::string slow_clock_warning(std::string_view card, std::span<const ClockReading> clocks);

}  // namespace nibble::backend
