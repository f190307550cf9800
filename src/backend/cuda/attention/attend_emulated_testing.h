#pragma once
// The decode kernel of a plan, run lane by lane on the host.

#include "backend/cuda/emulation/device.h"

#include "backend/cuda/attention/attend_decode.cuh"

#include <gtest/gtest.h>

namespace nibble::backend::cuda {

template <class Kv>
void emulate_decode(const emulation::Launch& launch, const FlashArgs& args, const DecodePlan& plan) {
  const auto run = [&](auto tile) {
    ASSERT_EQ(plan.smem_bytes, decltype(tile)::kSharedBytes);
    ASSERT_EQ(emulation::run(launch, [&] { any_attend_decode<decltype(tile)>(args); }), "");
  };
  constexpr DecodeRing kLarge = kDecodeRing, kSmall = kSmallDecodeRing, kLone = kLoneDecodeRing;
  if (plan.ring == kLarge) {
    run(DecodeTile<Kv, kLarge.warps, kLarge.stages>{});
  } else if (plan.ring == kSmall) {
    run(DecodeTile<Kv, kSmall.warps, kSmall.stages>{});
  } else {
    run(DecodeTile<Kv, kLone.warps, kLone.stages>{});
  }
}

}  // namespace nibble::backend::cuda
