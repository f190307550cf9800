#include "backend/cuda/quantise/pack.cuh"

#include "backend/cuda/dense/gemv_plan.h"
#include "backend/cuda/launch/chained_launch.cuh"
#include "backend/cuda/quantise/round_blocks.cuh"

#include <algorithm>

namespace nibble::backend::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void pack_pieces(const __grid_constant__ PackArgs a, layout::Geometry g, int64_t count) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    switch (a.packing) {
      case layout::Packing::kBf16: pack_bf16_piece(a, g, i); break;
      case layout::Packing::kMxfp8:
      case layout::Packing::kQ8: pack_bytes_piece(a, g, i); break;
      case layout::Packing::kMxfp4: pack_mxfp4_piece(a, g, i); break;
    }
  }
}

// ScaleRange::add. Few codes are new, and what was read too early is only added in vain.
__device__ void add_scale(layout::ScaleRange& range, int code) {
  const auto now = [](const int& value) { return *static_cast<const volatile int*>(&value); };
  if (code > now(range.largest)) atomicMax(&range.largest, code);
  if (code > 0 && code < now(range.smallest)) atomicMin(&range.smallest, code);
}

__global__ void pack_scales(const __grid_constant__ PackArgs a, layout::Geometry g, int64_t count) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    const uint8_t code = pack_scale(a, g, i);
    if (bad_scale(a.packing, code)) atomicAdd(a.bad_scales, 1);
    if (a.packing == layout::Packing::kMxfp4 && a.scale_range != nullptr) add_scale(*a.scale_range, code);
  }
}

__global__ void quantize(const __grid_constant__ QuantizeArgs a, int64_t count) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x)
    if (a.packing == layout::Packing::kMxfp4)
      quantize_block<MxFormat::kMxfp4>(a, WeightFormat::kMxfp4, i);
    else
      quantize_block<MxFormat::kMxfp8E4m3>(a, WeightFormat::kMxfp8, i);
}

__global__ void translate(const __grid_constant__ TranslateArgs a, int64_t count) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x)
    if (a.scales != nullptr)
      regroup_nibbles(a, i);
    else
      widen(a, i);
}

unsigned grid_for(int64_t items) {
  constexpr int64_t kMaxGrid = 16384;  // the loops stride
  return static_cast<unsigned>(std::min<int64_t>((items + kThreads - 1) / kThreads, kMaxGrid));
}

void require_launched(const char* what) {
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) throw_device_error(what, cudaGetErrorString(status));
}

}  // namespace

void pack_weights(const PackArgs& args, cudaStream_t stream) {
  check_args(args);
  const layout::Geometry g = layout::geometry(args.packing, args.cols);
  const int64_t scales = args.rows * args.cols / layout::kBlockK;
  constexpr int kBlocksPerPiece[] = {16, 32, 64,
                                     32};  // k of a row that one piece of 16 rows' 32 lanes holds, by packing
  const int64_t pieces = args.rows * args.cols / layout::kTileRows /
                         kBlocksPerPiece[static_cast<size_t>(args.packing)] * layout::kWarpLanes;
  pack_pieces<<<grid_for(pieces), kThreads, 0, stream>>>(args, g, pieces);
  if (args.packing != layout::Packing::kBf16) pack_scales<<<grid_for(scales), kThreads, 0, stream>>>(args, g, scales);
  require_launched("weight packing");
}

void quantize_weights(const QuantizeArgs& args, cudaStream_t stream) {
  const int64_t blocks = args.rows * args.cols / kMxBlock;
  quantize<<<grid_for(blocks), kThreads, 0, stream>>>(args, blocks);
  require_launched("weight quantisation");
}

void translate_weights(const TranslateArgs& args, cudaStream_t stream) {
  const int64_t count = args.rows * args.cols / (args.scales != nullptr ? kMxBlock : 1);
  translate<<<grid_for(count), kThreads, 0, stream>>>(args, count);
  require_launched("weight translation");
}

void RoundBlocks::launch(const Args& args, const Launch& on) {
  const Kernel kernel = name(args.form);
  require_shape(args.values > 0 && args.values % kMxBlock == 0, kernel, "whole blocks of 32 values", args.values);
  const int64_t ctas = (args.values / kRoundValues + kRoundThreads - 1) / kRoundThreads;
  switch (args.form) {
    case Activations::kMxfp8:
      return launch_chained(any_round_blocks<Activations::kMxfp8>, {kernel, on, ctas, kRoundThreads}, args);
    case Activations::kMxfp6:
      return launch_chained(any_round_blocks<Activations::kMxfp6>, {kernel, on, ctas, kRoundThreads}, args);
    case Activations::kMxfp4:
      return launch_chained(any_round_blocks<Activations::kMxfp4>, {kernel, on, ctas, kRoundThreads}, args);
    default: require_shape(false, kernel, "values to round", args.values);
  }
}

void RoundRows::launch(const Args& args, const Launch& on) {
  require_shape(args.tokens > 0, kName, "at least one token", args.tokens);
  require_shape(args.cols > 0 && args.cols % layout::kPanelK == 0 && args.cols <= kRoundRowsCols, kName,
                "cols a multiple of 64 up to 4096", args.cols);
  require_shape(args.rows > 0 && args.rows % layout::kAtomRows == 0, kName, "rows in atoms of 8", args.rows);
  require_shape((args.from != nullptr) != (args.panels != nullptr), kName, "rows or panels to round", args.tokens);
  const bool panels = args.panels != nullptr;
  launch_chained(
      panels ? any_round_rows_e4m3<true> : any_round_rows_e4m3<false>,
      {kName, on, ceil_div(args.tokens, rows_at_once(panels)), round_rows_threads(args.cols), kRoundRowsShared}, args);
}

}  // namespace nibble::backend::cuda
