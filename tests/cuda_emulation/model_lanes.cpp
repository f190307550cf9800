// Launchers of what a model's plain and streaming kernels run, for tests that link them instead of model_counted.cpp:
// plain kernels as loops, the others lane by lane on the host.

#include "backend/cuda/emulation/device.h"

#include "backend/cuda/attention/page_rows.cuh"
#include "backend/cuda/dense/gemm.cuh"
#include "backend/cuda/dense/gemv.cuh"
#include "backend/cuda/dense/linear.h"
#include "backend/cuda/experts/grouped.cuh"
#include "backend/cuda/experts/host_rows.cuh"
#include "backend/cuda/experts/moe_down.cuh"
#include "backend/cuda/experts/moe_group.cuh"
#include "backend/cuda/experts/moe_up.cuh"
#include "backend/cuda/experts/route_sums.cuh"
#include "backend/cuda/experts/router.cuh"
#include "backend/cuda/norm_rope/embed_norm_rope.h"
#include "backend/cuda/norm_rope/norm_sums.cuh"
#include "backend/cuda/norm_rope/rope_sums.cuh"
#include "backend/cuda/quantise/round.cuh"
#include "base/error.h"
#include "base/mx.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace nibble::backend::cuda {
namespace {

void run_model_lanes(Kernel name, const emulation::Launch& launch, const Launch& on,
                     const std::function<void()>& kernel) {
  const std::string wrong = emulation::run(launch, kernel);
  if (!wrong.empty()) throw Error(Code::kDevice, "{}: {}", name.name, wrong);
  launched(name, on);
}
emulation::Launch grid_of(const Plan& plan) {
  return {.grid = static_cast<int>(plan.grid), .threads = plan.threads, .predecessor = {}, .after_cta = {}};
}
emulation::Launch grid_of(int grid, int threads) {
  return {.grid = grid, .threads = threads, .predecessor = {}, .after_cta = {}};
}

double mxfp4_at(const MxfpMatrix& w, int64_t at) {
  return std::ldexp(
      double{E2m1{mx_element_code(MxFormat::kMxfp4, w.codes + at / 32 * 16, static_cast<int>(at % 32))}.to_float()},
      w.scales[at / 32] - 127);
}

template <class Tile, class Op>
void run_gemv(const typename Op::Args& args, const GemvPlan& plan, Kernel name, const Launch& on) {
  const auto kernel_args = gemv_kernel_args(args, plan);
  run_model_lanes(name, grid_of(plan), on, [&] { gemv<Tile, Op>(kernel_args); });
}

// What it serves: dense layers in bf16 alone, and experts.
template <layout::Packing kPacking, class Op>
void run_gemv(const typename Op::Args& args, const GemvPlan& plan, Kernel name, const Launch& on) {
  check_args(args);
  if (plan.geometry.blocks == 6) return run_gemv<GemvTile<kPacking, 6, Columns::kVectors>, Op>(args, plan, name, on);
  run_gemv<GemvTile<kPacking, 8, Columns::kVectors>, Op>(args, plan, name, on);
}

// The tile that is planned, where there is one.
template <layout::Packing kPacking, layout::RowOrder kOrder>
void run_any_gemm(const GemmArgs& args, const GemmPlan& plan, Kernel name, const Launch& on) {
  const auto try_tile = [&]<GemmTileSize kSize>() {
    if constexpr (gemm_has_tile(kPacking, kOrder, kSize)) {
      if (plan.rows != kSize.rows || plan.tokens != kSize.tokens) return false;
      using Tile = GemmTile<kPacking, kSize>;
      emulation::Launch launch = grid_of(static_cast<int>(plan.grid), Tile::kThreads);
      launch.grid_y = static_cast<int>(plan.grid_y);
      run_model_lanes(name, launch, on, [&] { any_gemm<Tile, kOrder>(args); });
      return true;
    } else {
      return false;
    }
  };
  check(try_tile.template operator()<kGemmFew>() || try_tile.template operator()<kGemmExperts>() ||
            try_tile.template operator()<kGemmExpertsTall>(),
        "a tile that is run here");
}

}  // namespace

void Embed::launch(const Args& args, const Launch& on) {
  for (int t = 0; t < args.tokens; ++t) {
    const int32_t id = args.ids[t] >= 0 ? args.ids[t] : std::max(0, args.sampled[-1 - args.ids[t]]);
    for (int64_t d = 0; d < args.hidden; ++d)
      args.out[t * args.hidden + d] = args.table[int64_t{id} * args.hidden + d].to_float();
  }
  launched(kName, on);
}

void Rmsnorm::launch(const Args& args, const Launch& on) {
  for (int64_t r = 0; r < args.rows; ++r) {
    const int64_t from = (args.which == nullptr ? r : args.which[r]) * args.hidden, to = r * args.hidden;
    std::vector<float> v(args.x + from, args.x + from + args.hidden);
    double squares = 0;
    for (int64_t d = 0; d < args.hidden; ++d) {
      float& value = v[static_cast<size_t>(d)];
      if (args.delta != nullptr) value += args.delta[from + d];
      squares += double{value} * value;
    }
    const double inverse = 1 / std::sqrt(squares / args.hidden + double{args.eps});
    for (int64_t d = 0; d < args.hidden; ++d) {
      const float value = v[static_cast<size_t>(d)];
      if (args.sum != nullptr) args.sum[to + d] = value;
      args.out[to + d] = static_cast<float>(value * inverse * args.scale[d].to_float());
    }
  }
  launched(kName, on);
}

void Linear::launch(const Args& args, const Launch& on) {
  for (int64_t t = 0; t < args.tokens; ++t)
    for (int64_t r = 0; r < args.rows; ++r) {
      double sum = args.bias == nullptr ? 0 : args.bias[r].to_float();
      for (int64_t k = 0; k < args.cols; ++k)
        sum += double{args.weight[r * args.cols + k].to_float()} * args.x[t * args.cols + k];
      args.out[t * args.rows + r] = static_cast<float>(sum);
    }
  launched(kName, on);
}

// Pages of bf16.
void RopeKv::launch(const Args& args, const Launch& on) {
  using Row = PageRow<KvDtype::kBf16>;
  const int half = args.head_dim / 2;
  for (int64_t t = 0; t < args.tokens; ++t) {
    const int64_t slot = args.kv_slots[t];
    for (int d = 0; d < half; ++d) {
      const float angle = static_cast<float>(args.positions[t]) * args.rope_inv_freq[d];
      const float c = std::cos(angle) * args.rope_concentration, s = std::sin(angle) * args.rope_concentration;
      for (int64_t head = 0; head < args.heads; ++head) {
        float* const x = args.q + (t * args.heads + head) * args.head_dim + d;
        const float x1 = x[0], x2 = x[half];
        x[0] = x1 * c - x2 * s;
        x[half] = x2 * c + x1 * s;
      }
      for (int64_t head = 0; head < args.kv_heads; ++head) {
        const int64_t from = (t * args.kv_heads + head) * args.head_dim + d;
        const int64_t to =
            ((slot / kPageTokens * args.kv_heads + head) * kPageTokens + slot % kPageTokens) * args.head_dim + d;
        uint8_t* const keys = static_cast<uint8_t*>(args.kv.keys) + Row::code_bytes(to);
        uint8_t* const values = static_cast<uint8_t*>(args.kv.values) + Row::code_bytes(to);
        Row::store(keys, args.k[from] * c - args.k[from + half] * s);
        Row::store(keys + Row::code_bytes(half), args.k[from + half] * c + args.k[from] * s);
        Row::store(values, args.v[from]);
        Row::store(values + Row::code_bytes(half), args.v[from + half]);
      }
    }
  }
  launched(kNames.of(args.kv.type), on);
}

void TopExperts::launch(const Args& args, const Launch& on) {
  std::vector<int32_t> order(static_cast<size_t>(args.experts));
  for (int64_t t = 0; t < args.tokens; ++t) {
    const float* const g = args.logits + t * args.experts;
    int32_t* const ids = args.ids + t * args.topk;
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort_copy(order.begin(), order.end(), ids, ids + args.topk,
                           [&](int32_t a, int32_t b) { return g[a] > g[b] || (g[a] == g[b] && a < b); });
    float sum = 0;
    for (int k = 0; k < args.topk; ++k) sum += args.weights[t * args.topk + k] = std::exp(g[ids[k]] - g[ids[0]]);
    for (int k = 0; k < args.topk; ++k) args.weights[t * args.topk + k] /= sum;
  }
  launched(kName, on);
}

void PlainGateUp::launch(const Args& args, const Launch& on) {
  for (int64_t pair = 0; pair < int64_t{args.tokens} * args.topk; ++pair) {
    const float* const x = args.x + pair / args.topk * args.hidden;
    const int64_t e = args.expert_ids[pair];
    for (int64_t i = 0; i < args.inter; ++i) {
      double v[2];
      for (int64_t r = 0; r < 2; ++r) {
        const int64_t row = e * 2 * args.inter + 2 * i + r;
        v[r] = args.gate_up_bias[row].to_float();
        for (int64_t k = 0; k < args.hidden; ++k) v[r] += mxfp4_at(args.gate_up, row * args.hidden + k) * x[k];
      }
      const double limit = args.swiglu_limit, glu = std::min(v[0], limit), up = std::clamp(v[1], -limit, limit);
      args.hidden_out[pair * args.inter + i] = static_cast<float>(glu / (1 + std::exp(-1.702 * glu)) * (up + 1));
    }
  }
  launched(kName, on);
}

void PlainDown::launch(const Args& args, const Launch& on) {
  for (int64_t pair = 0; pair < int64_t{args.tokens} * args.topk; ++pair)
    for (int64_t r = 0; r < args.hidden; ++r) {
      const int64_t row = args.expert_ids[pair] * int64_t{args.hidden} + r;
      double sum = args.down_bias[row].to_float();
      for (int64_t k = 0; k < args.inter; ++k)
        sum += mxfp4_at(args.down, row * args.inter + k) * args.hidden_out[pair * args.inter + k];
      args.down_out[pair * args.hidden + r] = static_cast<float>(sum);
    }
  launched(kName, on);
}

void PlainCombine::launch(const Args& args, const Launch& on) {
  for (int64_t t = 0; t < args.tokens; ++t)
    for (int64_t d = 0; d < args.hidden; ++d) {
      float sum = 0;
      for (int64_t k = t * args.topk; k < (t + 1) * args.topk; ++k)
        sum += args.expert_weights[k] * args.down_out[k * args.hidden + d];
      args.delta[t * args.hidden + d] = sum;
    }
  launched(kName, on);
}

void HostRows::launch(const Args& args, const Launch& on) {
  check_args(args);
  run_model_lanes(kName, grid_of(args.tokens, kHostRowsThreads), on, [&] { any_host_rows(args); });
}

void Router::launch(const Args& args, const Launch& on) {
  check_args(args);
  run_model_lanes(kName, grid_of(args.experts, kRouterThreads), on, [&] { any_router_f32_bf16(args); });
}

void NormSums::launch(const Args& args, const Launch& on) {
  check_args(args);
  run_model_lanes(kName, grid_of(args.tokens, norm_threads(args.hidden)), on, [&] {
    using enum SplitSums::Order;
    if (args.sums.order == kExpertsF32) return any_norm_sums_f32<kExpertsF32>(args);
    if (args.sums.order == kExpertsBf16) return any_norm_sums_f32<kExpertsBf16>(args);
    any_norm_sums_f32<kTiles>(args);
  });
}

void GemvDense::launch(const Args& args, const GemvPlan& plan, const Launch& on) {
  run_gemv<layout::Packing::kBf16, DenseOp<2>>(args, plan, by_packing(kNames, args.packing), on);
}
void GemvQkv::launch(const Args& args, const GemvPlan& plan, const Launch& on) {
  run_gemv<layout::Packing::kBf16, QkvOp<2>>(args, plan, by_packing(kNames, args.packing), on);
}
void GemvMoeDown::launch(const Args& args, const GemvPlan& plan, const Launch& on) {
  run_gemv<layout::Packing::kMxfp4, MoeDownOp>(args, plan, kName, on);
}

void MoeUp::launch(const Args& args, const RowWarpsPlan& plan, const Launch& on) {
  check_args(args);
  run_model_lanes(kName, grid_of(plan), on, [&] {
    if (layout::slice_blocks(args.hidden) == 6) return moe_up<RowTile<6, kRunStages>>(args);
    moe_up<RowTile<8, kRunStages>>(args);
  });
}
void MoeDown::launch(const Args& args, const RowWarpsPlan& plan, const Launch& on) {
  check_args(args);
  run_model_lanes(kName, grid_of(plan), on, [&] {
    if (layout::slice_blocks(args.inter) == 6) return moe_down<RowTile<6>>(args, plan.rows);
    moe_down<RowTile<8>>(args, plan.rows);
  });
}

void AnyGemm::launch(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  using layout::Packing;
  using layout::RowOrder;
  check_args(args);
  if (args.order == RowOrder::kGateUp) return run_any_gemm<Packing::kMxfp4, RowOrder::kGateUp>(args, plan, kGateUp, on);
  const Kernel name = by_packing(kNames, args.packing);
  if (args.packing == Packing::kMxfp4) return run_any_gemm<Packing::kMxfp4, RowOrder::kPlain>(args, plan, name, on);
  run_any_gemm<Packing::kBf16, RowOrder::kPlain>(args, plan, name, on);
}
void Round::launch(const Args& args, const Launch& on) {
  run_model_lanes(kName, grid_of(args.tokens, round_threads(args.cols)), on, [&] { any_round_f32(args); });
}
void RopeSums::launch(const Args& args, const Launch& on) {
  check_args(args);
  run_model_lanes(kName, grid_of(static_cast<int>(rope_ctas(args)), kRopeThreads), on,
                  [&] { any_rope_sums_f32(args); });
}
void RouteSums::launch(const Args& args, const Launch& on) {
  check_args(args);
  using Tile = RouteSumsAny<4>;
  check(args.experts <= 32, "a tile that is run here");
  run_model_lanes(kName, grid_of((args.tokens + Tile::kTokens - 1) / Tile::kTokens, Tile::kThreads), on,
                  [&] { any_route_sums<Tile>(args); });
}

void GroupTiles::launch(const Args& args, const Launch& on) {
  check_args(args);
  run_model_lanes(kName, grid_of(args.experts, kGroupThreads), on, [&] { any_moe_group_tiles(args); });
}
void GroupedUp::launch(const Args& args, const RowWarpsPlan& plan, const Launch& on) {
  check_args(args);
  run_model_lanes(kName, grid_of(plan), on, [&] {
    if (layout::slice_blocks(args.hidden) == 6)
      return grouped<RowTile<6, kGrouped.stages>, GroupedUpOp>(args, plan.rows);
    grouped<RowTile<8, kGrouped.stages>, GroupedUpOp>(args, plan.rows);
  });
}
void GroupedDown::launch(const Args& args, const RowWarpsPlan& plan, const Launch& on) {
  check_args(args);
  run_model_lanes(kName, grid_of(plan), on, [&] {
    if (layout::slice_blocks(args.inter) == 6)
      return grouped<RowTile<6, kGrouped.stages>, GroupedDownOp>(args, plan.rows);
    grouped<RowTile<8, kGrouped.stages>, GroupedDownOp>(args, plan.rows);
  });
}

}  // namespace nibble::backend::cuda
