#include "backend/cuda/gemm_path.h"

#include "backend/cuda/kernels/sm90/gemm.h"

#include <algorithm>

namespace nibble::backend::cuda {
namespace {

using layout::Packing;

int to_int(int64_t value) { return static_cast<int>(value); }

int attribute(cudaDeviceAttr which) {
  int device = 0, value = 0;
  cuda_check(cudaGetDevice(&device));
  cuda_check(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

}  // namespace

GemmPath::GemmPath(const BackendConfig& config, Carver& carver)
    : dims_(config.dims),
      swiglu_limit_(config.swiglu_limit),
      sms_(attribute(cudaDevAttrMultiProcessorCount)),
      hopper_(attribute(cudaDevAttrComputeCapabilityMajor) == 9) {
  const int64_t tokens = config.max_tokens, pairs = tokens * dims_.topk;
  const int smallest = std::min(kGemmTokens[0], kWgmmaTokens[0]);
  x_ = carver.take<uint16_t>(std::max<int64_t>(tokens, config.max_rows) * std::max(dims_.hidden, dims_.q_width()));
  u_ = carver.take<uint16_t>(pairs * dims_.inter);
  y_ = carver.take<float>(pairs * dims_.hidden);
  pairs_ = carver.take<int32_t>(pairs);
  tiles_ = carver.take<ExpertTile>(max_expert_tiles(pairs, dims_.experts, smallest));
  tile_count_ = carver.take<int32_t>(1);
}

GemmDevice GemmPath::device_for(Packing packing) const {
  return {.sms = sms_, .wgmma = hopper_ && sm90_gemm_serves(packing)};
}

InputType GemmPath::input_before(Packing packing) const {
  if (device_for(packing).wgmma) return InputType::kWgmma;
  return packing == Packing::kBf16 ? InputType::kBf16 : InputType::kF16;
}

void GemmPath::run(const GemmArgs& args, const GemmPlan& plan, const Launch& on) const {
  if (device_for(args.packing).wgmma) return sm90_gemm(args, plan, on);
  any_gemm(args, plan, on);
}

void GemmPath::dense(GemmArgs args, const float* x, const Launch& on) const {
  any_round({.from = x, .to = x_, .count = int64_t{args.tokens} * args.cols, .type = input_before(args.packing)}, on);
  args.x = x_;
  run(args, plan_gemm({args.rows, args.cols, args.tokens}, device_for(args.packing)), on);
}

void GemmPath::moe(const Moe& args, const Launch& on) const {
  const GemmDevice device = device_for(Packing::kMxfp4);
  const int64_t pairs = args.tokens * dims_.topk;
  const GemmPlan up_plan = plan_gemm({2 * dims_.inter, dims_.hidden, pairs, dims_.experts}, device);
  any_moe_group_tiles({.expert_ids = args.expert_ids,
                       .pairs = pairs_,
                       .tiles = tiles_,
                       .tile_count = tile_count_,
                       .tokens = args.tokens,
                       .topk = to_int(dims_.topk),
                       .experts = to_int(dims_.experts),
                       .tile_tokens = up_plan.tokens},
                      on);
  any_round({.from = args.x, .to = x_, .count = args.tokens * dims_.hidden, .type = hidden_type()}, on);
  GemmArgs gemm{.packing = Packing::kMxfp4,
                .order = layout::RowOrder::kGateUp,
                .weights = args.up,
                .bias = args.up_bias,
                .x = x_,
                .rows = to_int(2 * dims_.inter),
                .cols = to_int(dims_.hidden),
                .tokens = to_int(pairs),
                .tiles = tiles_,
                .tile_count = tile_count_,
                .pairs = pairs_,
                .x_share = to_int(dims_.topk),
                .experts = to_int(dims_.experts),
                .u = u_,
                .swiglu_limit = swiglu_limit_};
  run(gemm, up_plan, on);
  gemm.order = layout::RowOrder::kPlain;
  gemm.weights = args.down;
  gemm.bias = args.down_bias;
  gemm.x = u_;
  gemm.rows = to_int(dims_.hidden);
  gemm.cols = to_int(dims_.inter);
  gemm.parts[0] = {y_, 0, gemm.rows};
  gemm.x_share = 1;
  gemm.u = nullptr;
  run(gemm, plan_gemm({gemm.rows, gemm.cols, pairs, dims_.experts}, device, up_plan.tokens), on);
  any_moe_combine({.y = y_,
                   .weights = args.expert_weights,
                   .residual = args.residual,
                   .tokens = args.tokens,
                   .topk = to_int(dims_.topk),
                   .hidden = to_int(dims_.hidden)},
                  on);
}

}  // namespace nibble::backend::cuda
