// The device packer of layout/mx_a_m16k32.h: one thread per word of codes, one per scale byte.

#include "backend/cuda/kernels/any/mxfp4_gemv.h"

#include <algorithm>

namespace nibble::backend::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlockBytes = layout::kBlockK / 2;

__global__ void pack_codes(const __grid_constant__ PackArgs a, int blocks) {
  const int64_t words_per_slice = blocks / 2 * layout::kPairBytes / 4;
  const int64_t row_blocks = a.cols / layout::kBlockK, slices = row_blocks / blocks;
  const int64_t total = a.matrices * (a.rows / layout::kTileRows) * slices * words_per_slice;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < total; i += int64_t{gridDim.x} * blockDim.x) {
    const int in_slice = static_cast<int>(i % words_per_slice), word = in_slice % 4;
    const int lane = in_slice / 4 % layout::kWarpLanes, pair = in_slice / 4 / layout::kWarpLanes;
    const int64_t slice = i / words_per_slice % slices, tile = i / words_per_slice / slices;  // tile over all matrices
    const int64_t block = slice * blocks + 2 * pair + word / 2;
    const int64_t row = layout::source_row(a.order, tile, lane / 4);
    const int64_t row8 = layout::source_row(a.order, tile, lane / 4 + 8);
    const uint32_t w = layout::code_word(a.blocks + (row * row_blocks + block) * kBlockBytes,
                                         a.blocks + (row8 * row_blocks + block) * kBlockBytes, lane, word);
    uint8_t* out = a.packed + tile * layout::tile_bytes(a.cols) + slice * layout::slice_bytes(blocks);
    *reinterpret_cast<uint32_t*>(out + layout::code_offset(pair, lane) + word * 4) = w;
  }
}

__global__ void pack_scales(const __grid_constant__ PackArgs a, int blocks) {
  const int64_t row_blocks = a.cols / layout::kBlockK, total = a.matrices * a.rows * row_blocks;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < total; i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t block = i % row_blocks, tile_row = i / row_blocks;
    const int64_t tile = tile_row / layout::kTileRows;
    const int row = static_cast<int>(tile_row % layout::kTileRows);
    const uint8_t scale = a.scales[layout::source_row(a.order, tile, row) * row_blocks + block];
    if (scale > layout::kMaxScaleCode) atomicAdd(a.bad_scales, 1);
    uint8_t* out = a.packed + tile * layout::tile_bytes(a.cols) + block / blocks * layout::slice_bytes(blocks);
    out[layout::scale_offset(blocks, row, static_cast<int>(block % blocks))] =
        static_cast<uint8_t>(scale + layout::kScaleBias);
  }
}

unsigned grid_for(int64_t items) {
  constexpr int64_t kMaxGrid = 16384;  // the loops stride
  return static_cast<unsigned>(std::min<int64_t>((items + kThreads - 1) / kThreads, kMaxGrid));
}

}  // namespace

void mxfp4_pack(const PackArgs& args, cudaStream_t stream) {
  check_args(args);
  const int blocks = layout::slice_blocks(args.cols);
  const int64_t scales = args.matrices * args.rows * args.cols / layout::kBlockK;
  pack_codes<<<grid_for(scales * 4), kThreads, 0, stream>>>(args, blocks);
  pack_scales<<<grid_for(scales), kThreads, 0, stream>>>(args, blocks);
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) throw_device_error("MXFP4 pack", cudaGetErrorString(status));
}

}  // namespace nibble::backend::cuda
