#pragma once
// Stands in for CUDA's header of this name when kernel source is built for the host (emulation/device.h).

#include "base/dtype.h"

// NOLINTBEGIN(readability-identifier-naming): CUDA's names
inline nibble::F16 __float2half_rn(float value) { return nibble::F16::from_float(value); }
inline unsigned short __half_as_ushort(nibble::F16 value) { return value.bits; }
// NOLINTEND(readability-identifier-naming)
