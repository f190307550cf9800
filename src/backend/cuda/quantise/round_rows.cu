#include "backend/cuda/quantise/round_rows.cuh"

#include "backend/cuda/launch/chained_launch.cuh"

namespace nibble::backend::cuda {

void any_round_rows(const RoundRowsArgs& args, const Launch& on) {
  constexpr Kernel kName = kernel::kRoundRows;
  require_shape(args.tokens > 0, kName, "at least one token", args.tokens);
  require_shape(args.cols > 0 && args.cols % layout::kPanelK == 0 && args.cols <= kRoundRowsCols, kName,
                "cols a multiple of 64 up to 4096", args.cols);
  require_shape(args.rows > 0 && args.rows % layout::kAtomRows == 0, kName, "rows in atoms of 8", args.rows);
  require_shape((args.from != nullptr) != (args.panels != nullptr), kName, "rows or panels to round", args.tokens);
  launch_chained(any_round_rows_e4m3, {kName, on, args.tokens, round_rows_threads(args.cols), kRoundRowsShared}, args);
}

}  // namespace nibble::backend::cuda
