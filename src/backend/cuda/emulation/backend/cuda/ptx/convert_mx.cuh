#pragma once
// Host twin of ptx/convert_mx.cuh.

#include "backend/cuda/emulation/device.h"
#include "base/mx.h"

namespace nibble::backend::cuda::ptx {

template <MxFormat kFormat>
uint32_t mx_pair(float low, float high) {
  const uint32_t first = mx_encode_element(kFormat, low), second = mx_encode_element(kFormat, high);
  return first | second << (kFormat == MxFormat::kMxfp4 ? 4 : 8);
}

}  // namespace nibble::backend::cuda::ptx
