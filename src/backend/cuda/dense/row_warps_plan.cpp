#include "backend/cuda/dense/row_warps_plan.h"

#include "base/error.h"

#include <utility>

#include <fmt/format.h>

namespace nibble::backend::cuda {

std::string RowWarpsPlan::to_string() const {
  return fmt::format("grid {} x {} warps, a row tile each, up to {} columns, {} B shared", grid, warps, rows,
                     smem_bytes);
}

RowWarpsPlan plan_row_warps(int64_t cols, const RowWarpsWish& wish, const GemvDevice& device) {
  const int blocks = layout::slices_of(cols).blocks;
  if (blocks == 0 || device.sms <= 0)
    throw Error(Code::kUnsupported, "cuda: no plan for experts of {} columns on {} SMs", cols, device.sms);
  int64_t bytes = 0;
  // Warps before columns, down to 8. A warp has stages - 1 slices of 1.6 KB under way: 3.2 KB of `grouped`, 26 KB an SM
  // with 8 warps. An A100 (2 TB/s, 108 SMs) needs 15 to 18 KB for a latency of 0.8 to 1 us, an H100 20 to 24.
  for (const auto& [most, least] : {std::pair{16, 8}, {4, 4}})
    for (int rows = wish.rows; rows > 0; rows -= kColumns)
      for (int own = most; own >= least; own /= 2) {
        if (wish.warps != 0 && own != wish.warps) continue;
        bytes =
            int64_t{rows} * row_pitch(cols) + int64_t{own} * wish.stages * layout::slice_bytes(blocks) + kRowExtraBytes;
        if (bytes <= device.cta_smem_bytes)
          return {.grid = device.sms, .warps = own, .rows = rows, .smem_bytes = bytes};
      }
  throw Error(Code::kUnsupported, "cuda: experts of {} columns: want {} B of shared memory per block, the card has {}",
              cols, bytes, device.cta_smem_bytes);
}

}  // namespace nibble::backend::cuda
