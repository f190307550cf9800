#pragma once
// Runs CUDA kernel source on the host, lane by lane: the words and functions of the device that our kernels use. Test
// code. A lane is a fiber; it runs until it waits for other lanes or for a barrier. The instructions of ptx/ have their
// host twins in emulation/backend/cuda/ptx, found first on the include path.
// Bulk copies poison their destination and land later, at random; warps sleep at random; a long time without progress
// is reported as a deadlock.

#include "base/dtype.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>

// NOLINTBEGIN(readability-identifier-naming): CUDA's names
#define __host__
#define __device__
#define __global__ inline
#define __shared__
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

struct EmulatedDim {
  unsigned x = 0, y = 0;
};
struct alignas(8) uint2 {
  uint32_t x = 0, y = 0;
};
struct alignas(8) float2 {
  float x = 0, y = 0;
};
struct alignas(16) float4 {
  float x = 0, y = 0, z = 0, w = 0;
};
struct alignas(16) uint4 {
  uint32_t x = 0, y = 0, z = 0, w = 0;
};

inline EmulatedDim threadIdx, blockIdx, blockDim, gridDim;  // set by the emulator before a lane runs

namespace nibble::backend::cuda {
extern uint8_t smem[];  // what a kernel's `extern __shared__ uint8_t smem[]` finds
}

namespace nibble::backend::cuda::emulation {

inline constexpr int kLanes = 32;

// What the lanes of a warp bring to a common operation.
struct Operands {
  uint32_t a[4] = {}, b[2] = {};
  float d[4] = {};
  uint32_t scale_a = 0, scale_b = 0;
  uint32_t value = 0;
};
struct WarpOperands {
  Operands lane[kLanes];
};

// Meets the other 31 lanes of the warp; all get everybody's operands.
const WarpOperands& exchange(Operands own);
int lane_idx();
void sync_block();
void wait_until(const std::function<bool()>& holds);  // lets other lanes run
void made_progress();
void copy_later(uint32_t to_shared, const void* from, uint32_t bytes, std::function<void()> landed);
// A lane's own copies, in groups that it waits for.
void group_copy(uint32_t to_shared, const void* from, uint32_t bytes);
void commit_copies();
void wait_copies(int newest);
void wait_own_copies();  // all of them, committed or not; the groups stay as they are
void dependency_wait();
// Barriers of Launch::cluster CTAs.
void cluster_arrive();
void cluster_wait();
uint8_t* cluster_memory(int rank);  // shared memory of one; poison, if it has not begun or has ended

struct Launch {
  int grid = 1, threads = 32, grid_y = 1;
  int cluster = 1;
  uint64_t seed = 1;                            // of the delays of copies
  std::function<void()> predecessor = nullptr;  // runs when the first lane of the grid waits for the kernel before
  std::function<void()> after_cta = nullptr;
};
// Runs `kernel` for every lane of every CTA, one CTA after the other; one that waits for others, until these have run.
// Empty, or what went wrong.
std::string run(const Launch& launch, const std::function<void()>& kernel);

}  // namespace nibble::backend::cuda::emulation

inline float __uint_as_float(uint32_t bits) { return std::bit_cast<float>(bits); }
inline int __popc(uint32_t bits) { return std::popcount(bits); }
inline int __ffs(int bits) { return bits == 0 ? 0 : std::countr_zero(static_cast<uint32_t>(bits)) + 1; }
inline uint32_t __float_as_uint(float value) { return std::bit_cast<uint32_t>(value); }
inline float __expf(float x) { return std::exp(x); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline void sincospi(double x, double* sine, double* cosine) {
  const double angle = 3.14159265358979323846 * std::remainder(x, 2.0);
  *sine = std::sin(angle);
  *cosine = std::cos(angle);
}
using std::max;
using std::min;
template <class T>
T __ldcg(const T* from) {
  return *from;
}
inline int atomicAdd(int* to, int value) {
  *to += value;
  return *to - value;
}

template <class T>
T __shfl_sync(unsigned mask, T value, int from) {
  if constexpr (sizeof(T) == 8) {
    const auto bits = std::bit_cast<uint64_t>(value);
    const uint64_t high = __shfl_sync(mask, static_cast<uint32_t>(bits >> 32), from);
    return std::bit_cast<T>(high << 32 | __shfl_sync(mask, static_cast<uint32_t>(bits), from));
  } else {
    const auto& all = nibble::backend::cuda::emulation::exchange({.value = std::bit_cast<uint32_t>(value)});
    return std::bit_cast<T>(all.lane[from & 31].value);
  }
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits) {
  return __shfl_sync(mask, value, nibble::backend::cuda::emulation::lane_idx() ^ bits);
}
inline uint32_t __match_any_sync(unsigned, int value) {
  const auto& all = nibble::backend::cuda::emulation::exchange({.value = static_cast<uint32_t>(value)});
  uint32_t same = 0;
  for (int i = 0; i < 32; ++i) same |= (all.lane[i].value == static_cast<uint32_t>(value) ? 1u : 0u) << i;
  return same;
}
inline uint32_t __ballot_sync(unsigned, bool value) {
  const auto& all = nibble::backend::cuda::emulation::exchange({.value = value ? 1u : 0u});
  uint32_t bits = 0;
  for (int i = 0; i < 32; ++i) bits |= all.lane[i].value << i;
  return bits;
}
inline bool __any_sync(unsigned mask, bool value) { return __ballot_sync(mask, value) != 0; }
inline bool __all_sync(unsigned mask, bool value) { return __ballot_sync(mask, !value) == 0; }
inline void __syncwarp() { nibble::backend::cuda::emulation::exchange({}); }
inline void __syncthreads() { nibble::backend::cuda::emulation::sync_block(); }
// NOLINTEND(readability-identifier-naming)
