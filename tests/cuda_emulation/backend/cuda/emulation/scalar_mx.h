#pragma once
// ScalarMx (arch/sm121/mx_mma.h): the kernels of arch/sm121 on the host, lane by lane, with exact products.

#include "backend/cuda/testing/mx_probe.h"
#include "backend/cuda/arch/sm121/mx_mma.h"
#include "backend/cuda/emulation/device.h"

namespace nibble::backend::cuda {

struct ScalarMx {
  template <MxFormat kA, MxFormat kB, int kByteA, int kByteB>
  static void mma_k32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], uint32_t scale_a,
                      uint32_t scale_b) {
    add({layout::kMxK32, kA, kB, kByteA, kByteB}, d, a, b, scale_a, scale_b);
  }
  template <int kByteA, int kByteB>
  static void mma_k64(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], uint32_t scale_a,
                      uint32_t scale_b) {
    add({layout::kMxK64, MxFormat::kMxfp4, MxFormat::kMxfp4, kByteA, kByteB}, d, a, b, scale_a, scale_b);
  }
  template <MxFormat kFormat>
  static uint32_t pair(float low, float high) {
    const uint32_t first = mx_encode_element(kFormat, low), second = mx_encode_element(kFormat, high);
    return first | second << (kFormat == MxFormat::kMxfp4 ? 4 : 8);
  }

 private:
  static void add(const MxProduct& p, float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], uint32_t scale_a,
                  uint32_t scale_b) {
    const emulation::WarpOperands& all =
        emulation::exchange({.a = {a[0], a[1], a[2], a[3]}, .b = {b[0], b[1]}, .scale_a = scale_a, .scale_b = scale_b});
    MxFragments f;
    for (int lane = 0; lane < layout::kWarpLanes; ++lane) {
      const emulation::Operands& of = all.lane[lane];
      f.lane[lane] = {{of.a[0], of.a[1], of.a[2], of.a[3]}, {of.b[0], of.b[1]}, of.scale_a, of.scale_b};
    }
    for (int i = 0; i < 4; ++i) d[i] = static_cast<float>(d[i] + mx_sum(p, f, emulation::lane_idx(), i).value);
  }
};
static_assert(MxMma<ScalarMx>);

}  // namespace nibble::backend::cuda
