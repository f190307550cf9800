#include "backend/cuda/dense/gemm_plan.h"

#include "backend/cuda/launch/chained_launch.cuh"
#include "backend/cuda/dense/gemm.cuh"
#include "backend/cuda/quantise/round.cuh"

#include <algorithm>

namespace nibble::backend::cuda {
namespace {

void require_round(const Round::Args& args, Kernel name) {
  const int block = args.to.rows > 0 ? layout::kPanelK : layout::kBlockK;
  require_shape(args.tokens > 0, name, "at least one token", args.tokens);
  require_shape(args.cols > 0 && args.cols % block == 0, name, "cols a multiple of 32, in panels of 64", args.cols);
  require_shape(args.to.rows % layout::kAtomRows == 0 && args.copies > 0 &&
                    (args.to.rows == 0 || int64_t{args.to.rows} >= int64_t{args.tokens} * args.copies),
                name, "panels in atoms of 8 that hold every row", args.to.rows);
  require_shape(!in_codes(args.to.type) || (args.to.type == InputType::kMxfp8 && args.to.rows == 0 &&
                                            args.cols % layout::kBlockPairK == 0 && args.copies == 1),
                name, "16 bits, or MXFP8 in rows of pairs of blocks of 32", args.cols);
  require_shape((args.norm == nullptr) == (args.inverse == nullptr), name, "a norm and its inverses, or neither",
                args.tokens);
}

// A CTA per tile, as planned.
template <layout::Packing kPacking, GemmTileSize kSize, layout::RowOrder kOrder>
void launch(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  using Tile = GemmTile<kPacking, kSize>;
  constexpr Kernel kName =
      kOrder == layout::RowOrder::kGateUp ? AnyGemm::kGateUp : by_packing(AnyGemm::kNames, kPacking);
  require_shape(plan.smem_bytes == Tile::kSharedBytes, kName, "the plan's shared memory", plan.smem_bytes);
  require_shape(plan.grid_y <= 65535, kName, "at most 65535 tiles of tokens", plan.grid_y);
  allow_shared(any_gemm<Tile, kOrder>, Tile::kSharedBytes, kName);
  const dim3 grid(static_cast<unsigned>(plan.grid), static_cast<unsigned>(plan.grid_y));
  any_gemm<Tile, kOrder><<<grid, Tile::kThreads, Tile::kSharedBytes, on.stream>>>(args);
  launched(kName, on);
}

// The list of instances: gemm_has_tile.
template <layout::Packing kPacking, layout::RowOrder kOrder>
void launch_tile(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  const auto try_tile = [&]<GemmTileSize kSize>() {
    if constexpr (gemm_has_tile(kPacking, kOrder, kSize)) {
      if (plan.rows != kSize.rows || plan.tokens != kSize.tokens) return false;
      launch<kPacking, kSize, kOrder>(args, plan, on);
      return true;
    } else {
      return false;
    }
  };
  const bool taken = try_tile.template operator()<kGemmFew>() || try_tile.template operator()<kGemmMany>() ||
                     try_tile.template operator()<kGemmWide>() || try_tile.template operator()<kGemmExperts>() ||
                     try_tile.template operator()<kGemmExpertsTall>() || try_tile.template operator()<kGemmWideTall>();
  require_shape(taken, by_packing(AnyGemm::kNames, kPacking), "a tile that there is", plan.rows);
}

}  // namespace

void AnyGemm::launch(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  using layout::Packing;
  using layout::RowOrder;
  check_args(args);
  if (args.order == RowOrder::kGateUp) return launch_tile<Packing::kMxfp4, RowOrder::kGateUp>(args, plan, on);
  switch (args.packing) {  // kPlain's instance takes its rows from args.order
    case Packing::kBf16: return launch_tile<Packing::kBf16, RowOrder::kPlain>(args, plan, on);
    case Packing::kMxfp8: return launch_tile<Packing::kMxfp8, RowOrder::kPlain>(args, plan, on);
    case Packing::kMxfp4: return launch_tile<Packing::kMxfp4, RowOrder::kPlain>(args, plan, on);
    case Packing::kQ8: return launch_tile<Packing::kQ8, RowOrder::kPlain>(args, plan, on);
  }
}

void GroupTiles::launch(const Args& args, const Launch& on) {
  check_args(args);
  launch_chained(any_moe_group_tiles, {kName, on, args.experts, kGroupThreads, sizeof(GroupShared)}, args);
}

void Round::launch(const Args& args, const Launch& on) {
  require_round(args, kName);
  launch_chained(any_round_f32, {kName, on, args.tokens, round_threads(args.cols)}, args);
}

void GroupRound::launch(const Args& both, const Launch& on) {
  const auto& [group, args] = both;
  check_args(group);
  require_round(args, kName);
  require_shape(group.topk <= 32 && group.topk == args.copies && group.tokens == args.tokens, kName,
                "a copy for each of a token's up to 32 experts", args.copies);
  require_shape(args.cols <= 8 * kRoundTokenThreads && args.to.rows > 0 && group.places != nullptr, kName,
                "up to 4096 cols, in panels", args.cols);
  // The router leaves most SMs idle (256 tokens of 20b on an H100: 5.5 µs instead of 6.2).
  const int smem = std::max(static_cast<int>(sizeof(GroupRoundShared)),
                            args.tokens > multiprocessors() ? spreading_bytes(args.tokens) : 0);
  launch_chained(any_group_round_f32, {kName, on, args.tokens, round_threads(args.cols), smem}, group, args);
}

}  // namespace nibble::backend::cuda
