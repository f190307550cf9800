#pragma once
// The kernels of round_blocks.h.

#include "backend/cuda/layout/wgmma_b.h"
#include "backend/cuda/ptx/convert.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"
#include "backend/cuda/ptx/registers.cuh"
#include "backend/cuda/quantise/mx_block.cuh"
#include "backend/cuda/quantise/round_blocks.h"

namespace nibble::backend::cuda {

// any_round_rows: rows in MX blocks of MXFP8, then relative to the row's largest scale
// grid a CTA per few tokens, whose loads are on their way at once; a thread per 8 values, 4 threads per block
// bytes tokens * cols * (4 or 2, then copies)
// rounding: to nearest, twice where a block's scale is not the row's

// Where a thread's values are: k, k + 1, k + 8, … k + 25, a chunk of f16 panels. The codes of two such chunks are one
// of bytes; of it this thread stores `half`.
struct RowChunk {
  int panel, in_panel;
  __device__ explicit RowChunk(int chunk) : panel(chunk / 8), in_panel(chunk % 8) {}
  [[nodiscard]] __device__ int k() const {
    return panel * layout::kPanelK + in_panel / 4 * layout::kBlockK + in_panel % 4 * 2;
  }
  [[nodiscard]] __device__ int64_t in_panels(int rows, int row) const {  // in values
    const uint32_t own = layout::swizzled_chunk(row % layout::kAtomRows, in_panel) / 2;
    return int64_t{panel} * rows * layout::kPanelK + int64_t{row / layout::kAtomRows} * (layout::kAtomBytes / 2) + own;
  }
  [[nodiscard]] __device__ int64_t in_byte_panels(int rows, int row) const {
    const uint32_t own =
        layout::swizzled_byte_chunk(row % layout::kAtomRows, in_panel / 2) + static_cast<uint32_t>(8 * (in_panel % 2));
    return int64_t{panel} * rows * layout::kByteRowBytes + int64_t{row / layout::kAtomRows} * layout::kByteAtomBytes +
           own;
  }
};

// A thread's eight values of a row, as they were read.
template <bool kPanels>
struct RowValues {
  uint4 eight;
  __device__ void load(const RoundRows::Args& args, int64_t token, const RowChunk& chunk) {
    eight = *reinterpret_cast<const uint4*>(args.panels + chunk.in_panels(args.rows, static_cast<int>(token)));
  }
  __device__ void put(const RoundRows::Args& /*args*/, int64_t /*token*/, const RowChunk& /*chunk*/,
                      float (&x)[kEighth]) const {
    const uint32_t pairs[] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (int i = 0; i < kEighth; ++i) x[i] = ptx::f16_half(pairs[i / 2], i % 2);
  }
};
template <>
struct RowValues<false> {
  float2 two[4];
  __device__ void load(const RoundRows::Args& args, int64_t token, const RowChunk& chunk) {
#pragma unroll
    for (int t = 0; t < 4; ++t)
      two[t] = *reinterpret_cast<const float2*>(args.from + token * args.cols + chunk.k() + 8 * t);
  }
  __device__ void put(const RoundRows::Args& args, int64_t token, const RowChunk& chunk, float (&x)[kEighth]) const {
    const float inverse = args.norm == nullptr ? 1.0f : args.inverse[token];
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      x[2 * t] = two[t].x, x[2 * t + 1] = two[t].y;
      if (args.norm == nullptr) continue;
      const uint32_t norm = *reinterpret_cast<const uint32_t*>(args.norm + chunk.k() + 8 * t);
      x[2 * t] *= inverse * __uint_as_float(norm << 16);
      x[2 * t + 1] *= inverse * __uint_as_float(norm & 0xffff0000u);
    }
  }
};

// The codes, two to a half word, of values that are `binades` below the row's scale.
__device__ __forceinline__ uint32_t row_pair(float low, float high, float down) {
  const uint32_t halves = ptx::f16_of_e4m3(ptx::pack_e4m3(low, high));
  return ptx::pack_e4m3(ptx::f16_half(halves, 0) * down, ptx::f16_half(halves, 1) * down);
}

template <bool kPanels>
__global__ void __launch_bounds__(kRoundRowsCols / 8)
    any_round_rows_e4m3(const __grid_constant__ RoundRows::Args args) {
  constexpr int kRows = RoundRows::rows_at_once(kPanels);
  extern __shared__ __align__(128) uint8_t smem[];
  auto* const of_warps = reinterpret_cast<uint32_t*>(smem);  // [kRows][kRoundRowsWarps]
  ptx::grid_dependency_launch();
  ptx::grid_dependency_wait();
  const auto tid = static_cast<int>(threadIdx.x), lane = tid % 32, warps = static_cast<int>(blockDim.x) / 32;
  const int64_t first = int64_t{blockIdx.x} * kRows;
  const auto rows = static_cast<int>(min(int64_t{kRows}, args.tokens - first));
  const bool mine = tid < args.cols / 8;  // whole warps go on: blocks' threads meet
  const RowChunk chunk(mine ? tid : tid % 4);
  RowValues<kPanels> read[kRows] = {};
#pragma unroll
  for (int r = 0; r < kRows; ++r)
    if (mine && r < rows) read[r].load(args, first + r, chunk);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float x[kEighth] = {};
    if (mine && r < rows) read[r].put(args, first + r, chunk, x);
    const uint32_t of_warp = ptx::warp_max_u32(MxScale<backend::Activations::kMxfp8>(largest(x)).scale.bits);
    if (lane == 0) of_warps[r * kRoundRowsWarps + tid / 32] = of_warp;
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= rows) break;
    float x[kEighth] = {};
    if (mine) read[r].put(args, first + r, chunk, x);
    const MxScale<backend::Activations::kMxfp8> block(largest(x));
    const uint32_t row = ptx::warp_max_u32(lane < warps ? of_warps[r * kRoundRowsWarps + lane] : 0);
    constexpr uint32_t kMost = 30;  // binades, beyond which nothing is left of e4m3
    const float down = __uint_as_float((127 - min(row - block.scale.bits, kMost)) << 23);
    uint32_t pairs[4];
#pragma unroll
    for (int t = 0; t < 4; ++t) pairs[t] = row_pair(x[2 * t] * block.down, x[2 * t + 1] * block.down, down);
    // The neighbour has the other two k of each of the chunk's words: this thread makes two of the words.
    const bool second = chunk.in_panel % 2 != 0;
    const uint32_t others =
        __shfl_xor_sync(0xffffffffu, second ? pairs[0] | pairs[1] << 16 : pairs[2] | pairs[3] << 16, 1);
    if (!mine) continue;
    uint2 words;
    words.x = second ? (others & 0xffffu) | pairs[2] << 16 : pairs[0] | others << 16;
    words.y = second ? others >> 16 | pairs[3] << 16 : pairs[1] | (others & 0xffff0000u);
    for (int copy = 0; copy < (kPanels ? 1 : args.copies); ++copy) {
      const int place = kPanels ? static_cast<int>(first) + r : args.places[(first + r) * args.copies + copy];
      if (!kPanels && place < 0) continue;  // of an expert of another rank
      *reinterpret_cast<uint2*>(args.codes + chunk.in_byte_panels(args.rows, place)) = words;
      if (tid == 0) args.scales[place] = E8m0{static_cast<uint8_t>(row)}.to_float();
    }
  }
}

// E4M3 by its instruction, which every card from sm_89 on has; the others in integers, which hide behind the memory.
template <MxFormat kElement>
__device__ __forceinline__ float round_element(float value) {
  if constexpr (kElement == MxFormat::kMxfp8E4m3)
    return ptx::f16_half(ptx::f16_of_e4m3(ptx::to_e4m3(value)), 0);
  else
    return mx_decode_element(kElement, mx_encode_element(kElement, value));
}

// The lane's values, to what their block holds of them.
template <backend::Activations kForm>
__device__ __forceinline__ void round_mx(float (&x)[kEighth]) {
  const MxScale<kForm> block(largest(x));
  const float up = block.scale.to_float();
#pragma unroll
  for (float& value : x) value = round_element<MxScale<kForm>::kBlocks.element>(value * block.down) * up;
}

// any_round_blocks: f16 activations in blocks of 32, with a scale each, in their place
// grid 4 lanes per block, 8 values per lane     bytes values * 4
// rounding: that of backend/activations.h, to the bit
inline constexpr int kRoundThreads = 256, kRoundValues = kEighth;  // of a lane

template <Activations kForm>
__global__ void __launch_bounds__(kRoundThreads) any_round_blocks(const __grid_constant__ RoundBlocks::Args args) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  const int64_t at = (int64_t{blockIdx.x} * kRoundThreads + threadIdx.x) * kRoundValues;
  const bool mine = at < args.values;  // all lanes of a warp go on: blocks' lanes meet
  uint4 eight{};
  if (mine) eight = *reinterpret_cast<const uint4*>(args.at + at);
  const uint32_t pairs[] = {eight.x, eight.y, eight.z, eight.w};
  float x[kRoundValues];
#pragma unroll
  for (int i = 0; i < kRoundValues; ++i) x[i] = ptx::f16_half(pairs[i / 2], i % 2);
  round_mx<kForm>(x);
  if (!mine) return;
  eight = {ptx::pack_f16(x[0], x[1]), ptx::pack_f16(x[2], x[3]), ptx::pack_f16(x[4], x[5]), ptx::pack_f16(x[6], x[7])};
  *reinterpret_cast<uint4*>(args.at + at) = eight;
}

}  // namespace nibble::backend::cuda
