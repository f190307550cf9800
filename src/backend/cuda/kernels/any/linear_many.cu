#include "backend/cuda/kernels/any/linear_many.cuh"

#include "backend/cuda/kernels/any/chained_launch.cuh"
#include "backend/cuda/kernels/any/gemm.h"

namespace nibble::backend::cuda {
namespace {

template <int kColTiles>
void launch(const LinearLaunch& args, const Launch& on) {
  using Tile = LinearManyTile<kColTiles>;
  constexpr Kernel kName = Kernel::kLinearMany;
  const cudaError_t status =
      cudaFuncSetAttribute(any_linear_many<Tile>, cudaFuncAttributeMaxDynamicSharedMemorySize, Tile::kSharedBytes);
  require_shape(status == cudaSuccess, kName, "a card with enough shared memory per block", Tile::kSharedBytes);
  launch_chained(any_linear_many<Tile>,
                 {kName, on, (args.tokens + Tile::kTokens - 1) / Tile::kTokens, Tile::kThreads, Tile::kSharedBytes,
                  (args.rows + Tile::kRows - 1) / Tile::kRows},
                 args);
}

}  // namespace

void any_linear_many(const LinearLaunch& args, const Launch& on) {
  constexpr Kernel kName = Kernel::kLinearMany;
  require_shape(args.tokens > 0, kName, "at least one token", args.tokens);
  require_shape(args.rows > 0 && args.rows <= 1 << 16, kName, "1 to 65536 rows", args.rows);
  require_shape(args.cols > 0 && args.cols % 32 == 0, kName, "cols a multiple of 32", args.cols);
  require_shape(args.bias != nullptr && args.store == LinearLaunch::Store::kSet, kName, "a bias, and results to set",
                static_cast<int64_t>(args.store));
  // Fewer rows a CTA where there would be fewer CTAs than multiprocessors. Every instance gives the same bits.
  if (args.rows <= 32 || args.tokens <= 1024) return launch<4>(args, on);
  if (args.rows <= 64 || args.tokens <= 2048) return launch<8>(args, on);
  launch<16>(args, on);
}

}  // namespace nibble::backend::cuda
