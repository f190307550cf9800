#pragma once
// Softmaxes over some of the keys each, and their sum: what warps and CTAs of the decode kernel leave to each other.

#include "backend/cuda/attention/attend_plan.h"
#include "backend/cuda/ptx/convert.cuh"

namespace nibble::backend::cuda {

// A thread's part of the result: some dimensions of a head.
template <int kDims>
struct DecodePart {
  struct alignas(kDims < 4 ? 4 * kDims : 16) Dims {
    float at[kDims] = {};
  };
  float top = -INFINITY, sum = 0;
  Dims out;

  // Adds the parts in their order; their exponentials are taken together.
  template <int kParts>
  __device__ void add(const DecodePart (&parts)[kParts]) {
    const float before = top;
#pragma unroll
    for (const DecodePart& part : parts) top = fmaxf(top, part.top);
    const float base = top == -INFINITY ? 0.0f : top;
    const auto share_of = [&](float other) { return ptx::exp2_approx(other - base); };
    const float own = share_of(before);
    sum *= own;
#pragma unroll
    for (float& x : out.at) x *= own;
#pragma unroll
    for (const DecodePart& part : parts) {
      const float share = share_of(part.top);
      sum += share * part.sum;
#pragma unroll
      for (int d = 0; d < kDims; ++d) out.at[d] += share * part.out.at[d];
    }
  }
};

// Parts of several warps or chunks in memory: out [parts][8 heads][kRow], then {top, sum} [parts][8 heads].
template <int kDims, int kRow>
struct DecodeParts {
  using Part = DecodePart<kDims>;
  float* out;
  float* tops;

  __device__ DecodeParts(float* memory, int64_t parts) : out(memory), tops(memory + parts * kGroupHeads * kRow) {}
  __device__ Part load(int64_t part, int head, int dim) const {
    const int64_t row = part * kGroupHeads + head;
    const float2 top_sum = *reinterpret_cast<const float2*>(tops + 2 * row);
    return {top_sum.x, top_sum.y, *reinterpret_cast<const typename Part::Dims*>(out + row * kRow + dim)};
  }
  __device__ void store(int64_t part, int head, int dim, const Part& value) const {
    const int64_t row = part * kGroupHeads + head;
    *reinterpret_cast<typename Part::Dims*>(out + row * kRow + dim) = value.out;
    if (dim == 0) *reinterpret_cast<float2*>(tops + 2 * row) = {value.top, value.sum};
  }
  // In their order; so many loads are under way together.
  template <int kTogether>
  __device__ Part sum(int64_t first, int count, int head, int dim) const {
    Part total;
#pragma unroll 1
    for (int at = 0; at < count; at += kTogether) {
      Part parts[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i)
        if (at + i < count) parts[i] = load(first + at + i, head, dim);
      total.add(parts);
    }
    return total;
  }
};

}  // namespace nibble::backend::cuda
