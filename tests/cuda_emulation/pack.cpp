// What quantise/quantise.cu launches, as loops on the host where emulated_cuda().packs says so.

#include "backend/cuda/emulation/device.h"

#include "backend/cuda/dense/gemv_plan.h"
#include "backend/cuda/quantise/pack.cuh"
#include "base/error.h"

#include <cuda_runtime_api.h>  // the emulated one

namespace nibble::backend::cuda {

using layout::Packing;

void pack_weights(const PackArgs& args, CUstream_st* /*stream*/) {
  check_args(args);
  if (!emulated_cuda().packs) return;
  const layout::Geometry g = layout::geometry(args.packing, args.cols);
  const int64_t values = args.rows * args.cols;
  for (int64_t i = 0; args.packing == Packing::kBf16 && i < values / 8; ++i) pack_bf16_piece(args, g, i);
  const bool bytes = args.packing == Packing::kMxfp8 || args.packing == Packing::kQ8;
  for (int64_t i = 0; bytes && i < values / 16; ++i) pack_bytes_piece(args, g, i);
  for (int64_t i = 0; args.packing == Packing::kMxfp4 && i < values / 32; ++i) pack_mxfp4_piece(args, g, i);
  for (int64_t i = 0; args.packing != Packing::kBf16 && i < values / 32; ++i) {
    const uint8_t code = pack_scale(args, g, i);
    if (args.bad_scales != nullptr) *args.bad_scales += bad_scale(args.packing, code) ? 1 : 0;
    if (args.packing == Packing::kMxfp4 && args.scale_range != nullptr) args.scale_range->add(code);
  }
}

void quantize_weights(const QuantizeArgs& args, CUstream_st* /*stream*/) {
  if (!emulated_cuda().packs) return;
  for (int64_t i = 0; i < args.rows * args.cols / kMxBlock; ++i)
    if (args.packing == Packing::kMxfp4)
      quantize_block<MxFormat::kMxfp4>(args, WeightFormat::kMxfp4, i);
    else
      quantize_block<MxFormat::kMxfp8E4m3>(args, WeightFormat::kMxfp8, i);
}

void translate_weights(const TranslateArgs& args, CUstream_st* /*stream*/) {
  if (!emulated_cuda().packs) return;
  const bool blocks = args.scales != nullptr;
  for (int64_t i = 0; i < args.rows * args.cols / (blocks ? kMxBlock : 1); ++i)
    if (blocks)
      regroup_nibbles(args, i);
    else
      widen(args, i);
}

}  // namespace nibble::backend::cuda
