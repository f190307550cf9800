// Launchers of round_blocks.h.

#include "backend/cuda/launch/chained_launch.cuh"
#include "backend/cuda/quantise/round_blocks.cuh"

namespace nibble::backend::cuda {

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
  launch_chained(any_round_rows_e4m3, {kName, on, args.tokens, round_rows_threads(args.cols), kRoundRowsShared}, args);
}

}  // namespace nibble::backend::cuda
