#include "backend/cuda/dense/row_warps_plan.h"

#include "base/error.h"

#include <fmt/format.h>

namespace nibble::backend::cuda {

std::string RowWarpsPlan::to_string() const {
  return fmt::format("grid {} x {} warps, a row tile each, up to {} columns, {} B shared", grid, warps, rows,
                     smem_bytes);
}

RowWarpsPlan plan_row_warps(int64_t cols, const RowWarpsWish& wish, const GemvDevice& device) {
  constexpr int kWarps[] = {16, 8, 4};
  const int blocks = layout::slice_blocks(cols);
  if (blocks == 0 || device.sms <= 0)
    throw Error(Code::kUnsupported, "cuda: no plan for experts of {} columns on {} SMs", cols, device.sms);
  int64_t bytes = 0;
  for (int rows = wish.rows; rows > 0; rows -= kColumns)
    for (const int own : kWarps) {
      if (wish.warps != 0 && own != wish.warps) continue;
      bytes =
          int64_t{rows} * row_pitch(cols) + int64_t{own} * wish.stages * layout::slice_bytes(blocks) + kRowExtraBytes;
      if (bytes <= device.cta_smem_bytes) return {.grid = device.sms, .warps = own, .rows = rows, .smem_bytes = bytes};
    }
  throw Error(Code::kUnsupported, "cuda: experts of {} columns: want {} B of shared memory per block, the card has {}",
              cols, bytes, device.cta_smem_bytes);
}

}  // namespace nibble::backend::cuda
