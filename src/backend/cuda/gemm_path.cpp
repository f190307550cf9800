#include "backend/cuda/gemm_path.h"

#include "backend/cuda/choices.h"
#include "backend/cuda/kernels/any/round_blocks.h"
#include "backend/cuda/kernels/sm90/dense_gemm.h"
#include "backend/cuda/kernels/sm90/gemm.h"
#include "backend/cuda/kernels/sm90/split_gemm.h"
#include "backend/cuda/layout/wgmma_b.h"

#include <algorithm>
#include <utility>

namespace nibble::backend::cuda {
namespace {

using layout::Packing;

int to_int(int64_t value) { return static_cast<int>(value); }

int64_t in_atoms(int64_t rows) { return (rows + layout::kAtomRows - 1) / layout::kAtomRows * layout::kAtomRows; }

template <class T>
std::vector<T> host_copy(const T* from, int64_t count, cudaStream_t stream) {
  std::vector<T> values(static_cast<size_t>(count));
  cuda_check(cudaMemcpyAsync(values.data(), from, values.size() * sizeof(T), cudaMemcpyDeviceToHost, stream));
  cuda_check(cudaStreamSynchronize(stream));
  return values;
}

// What sums takes for the widest result of a step.
int64_t sum_floats(const Dims& d, int64_t tokens, int sms) {
  const int64_t split_tokens = in_atoms(std::min<int64_t>(tokens, kSplitMaxTokens)),
                qkv = d.q_width() + 2 * d.kv_width();
  const int64_t split =
      std::max(split_count(qkv, d.hidden, sms) * qkv, split_count(d.hidden, d.q_width(), sms) * d.hidden);
  return std::max(tokens * std::max(qkv, d.hidden), split_tokens * split / 2);
}

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
  const int smallest = kGemmTokens[0];
  const int64_t places = max_places(pairs, dims_.experts), rows = std::max<int64_t>(tokens, config.max_rows);
  x_ = carver.take<uint16_t>(in_atoms(rows) * std::max(dims_.hidden, dims_.q_width()));
  u_ = carver.take<uint16_t>(places * dims_.inter);
  if (hopper_) placed_x_ = carver.take<uint16_t>(places * dims_.hidden);
  y_ = carver.take<float>(std::max(pairs * dims_.hidden / 2, sum_floats(dims_, tokens, sms_)));
  pairs_ = carver.take<int32_t>(places);
  places_ = carver.take<int32_t>(pairs);
  tiles_ = carver.take<ExpertTile>(max_expert_tiles(pairs, dims_.experts, smallest));
  tile_counts_ = carver.take<int32_t>(kTileCounts);
}

GemmDevice GemmPath::device_for(Packing packing) const {
  const bool wide = packing == Packing::kMxfp4 && wide_scales_;
  return {.sms = sms_, .wgmma = hopper_ && !wide && sm90_gemm_serves(packing)};
}

void GemmPath::run(const GemmArgs& args, const GemmPlan& plan, const Launch& on) const {
  if (device_for(args.packing).wgmma) return sm90_gemm(args, plan, on);
  any_gemm(args, plan, on);
}

GemmInput GemmPath::input(Packing packing, int64_t tokens) const {
  return {x_, input_type(packing), device_for(packing).wgmma ? to_int(in_atoms(tokens)) : 0};
}

void GemmPath::round(const float* x, const GemmArgs& args, const Launch& on) const {
  any_round({.from = x, .to = input(args.packing, args.tokens), .tokens = args.tokens, .cols = args.cols}, on);
}

SplitSums GemmPath::sums(GemmArgs args, const Launch& on) const {
  const GemmDevice device = device_for(args.packing);
  const GemmShape shape{args.rows, args.cols, args.tokens, 1, args.packing};
  const GemmInput from = input(args.packing, args.tokens);
  if (split_gemm_serves(args.packing, device.wgmma, args.tokens)) {
    const SplitGemmPlan plan = plan_split_gemm(shape, sms_);
    sm90_split_gemm({.weights = args.weights,
                     .x = from.at,
                     .sums = reinterpret_cast<uint16_t*>(y_),
                     .rows = args.rows,
                     .cols = args.cols,
                     .tokens = args.tokens,
                     .x_rows = from.rows},
                    plan, on);
    return {y_, plan.splits, SplitSums::Order::kTiles};
  }
  args.order = layout::RowOrder::kPlain;
  args.x = from.at;
  args.x_rows = from.rows;
  args.parts[0] = {y_, 0, args.rows};
  run(args, plan_gemm(shape, device), on);
  return {y_, 1};
}

RopeSumsArgs GemmPath::qkv(GemmArgs args, RopeSumsArgs rope, const Launch& on) const {
  const GemmDevice device = device_for(args.packing);
  if (!gemm_turns(args.packing, device.wgmma, args.tokens)) {
    rope.sums = sums(args, on);
    return rope;
  }
  const GemmInput from = input(args.packing, args.tokens);
  args.order = layout::RowOrder::kHeads64;
  args.bias = rope.bias;
  args.x = from.at;
  args.x_rows = from.rows;
  sm90_qkv_gemm(args, rope, plan_gemm({args.rows, args.cols, args.tokens, 1, args.packing}, device), on);
  return rope;
}

void GemmPath::dense(GemmArgs args, const float* x, const Launch& on) const {
  round(x, args, on);
  const GemmInput from = input(args.packing, args.tokens);
  args.x = from.at;
  args.x_rows = from.rows;
  run(args, plan_gemm({args.rows, args.cols, args.tokens, 1, args.packing}, device_for(args.packing)), on);
}

int GemmPath::x_rows(int64_t tokens) const { return to_int(max_places(tokens * dims_.topk, dims_.experts)); }

// The pairs by expert, and x as gate_up wants it: a row per token, or on wgmma a row per place.
void GemmPath::group_and_round(const Moe& args, int tile_tokens, GemmArgs& gemm, const Launch& on) const {
  const GroupArgs group{.expert_ids = args.expert_ids,
                        .pairs = pairs_,
                        .places = places_,
                        .tiles = tiles_,
                        .tile_counts = tile_counts_,
                        .tokens = args.tokens,
                        .topk = to_int(dims_.topk),
                        .experts = to_int(dims_.experts),
                        .tile_tokens = tile_tokens};
  RoundArgs round{.from = args.x,
                  .to = {.at = x_, .type = input_type(Packing::kMxfp4)},
                  .tokens = args.tokens,
                  .cols = to_int(dims_.hidden),
                  .inverse = args.inverse,
                  .norm = args.norm};
  const bool wgmma = device_for(Packing::kMxfp4).wgmma;
  gemm.x_share = wgmma ? 1 : group.topk;
  if (wgmma) {
    round.to.at = placed_x_;
    round.to.rows = gemm.x_rows = x_rows(args.tokens);
    round.places = places_;
    round.copies = group.topk;
  }
  gemm.x = round.to.at;
  if (group_while_rounding(wgmma, gemm.tokens)) return any_group_round(group, round, on);
  any_moe_group_tiles(group, on);
  any_round(round, on);
}

ExpertSums GemmPath::moe(const Moe& args, const Launch& on) const {
  const GemmDevice device = device_for(Packing::kMxfp4);
  const int64_t pairs = args.tokens * dims_.topk;
  const GemmPlan up_plan = plan_gemm({2 * dims_.inter, dims_.hidden, pairs, dims_.experts}, device);
  GemmArgs gemm{.packing = Packing::kMxfp4,
                .order = layout::RowOrder::kGateUp,
                .weights = args.up,
                .bias = args.up_bias,
                .rows = to_int(2 * dims_.inter),
                .cols = to_int(dims_.hidden),
                .tokens = to_int(pairs),
                .tiles = tiles_,
                .tile_count = tile_counts_,
                .pairs = pairs_,
                .experts = to_int(dims_.experts),
                .u = u_,
                .swiglu_limit = swiglu_limit_};
  group_and_round(args, up_plan.tokens, gemm, on);
  const GemmDown down{args.down, args.down_bias, reinterpret_cast<uint16_t*>(y_)};
  const ExpertSums made{
      .at = y_, .type = ExpertSums::Type::kBf16, .weights = args.expert_weights, .topk = to_int(dims_.topk)};
  if (device.wgmma && experts_at_once(args.activations, dims_)) {
    gemm.down = down;
    run(gemm, up_plan, on);
    return made;
  }
  run(gemm, up_plan, on);
  if (args.activations == ExpertActivations::kMxfp8)
    any_round_blocks({.form = args.activations,
                      .to = reinterpret_cast<F16*>(u_),
                      .values = (device.wgmma ? x_rows(args.tokens) : pairs) * dims_.inter},
                     on);
  gemm.down = down;
  run(down_alone(gemm), plan_gemm({dims_.hidden, dims_.inter, pairs, dims_.experts}, device, up_plan.tokens), on);
  return made;
}

SlotData GemmPath::values(const GemmInput& input, int64_t tokens, int64_t cols, cudaStream_t stream) {
  const int64_t rows = input.rows > 0 ? input.rows : tokens;
  const std::vector<uint16_t> bits = host_copy(input.at, rows * cols, stream);
  std::vector<float> values;
  values.reserve(static_cast<size_t>(tokens * cols));
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t k = 0; k < cols; ++k) {
      const int64_t at = input.rows > 0 ? layout::place_in_panels(rows, t, k) : t * cols + k;
      const uint16_t own = bits[static_cast<size_t>(at)];
      values.push_back(input.type == InputType::kF16 ? F16{own}.to_float() : Bf16{own}.to_float());
    }
  return {{tokens, cols}, std::move(values)};
}

SlotData GemmPath::expert_hidden(int64_t tokens, cudaStream_t stream) const {
  const int64_t pairs = tokens * dims_.topk, rows = x_rows(tokens);
  const bool panels = device_for(Packing::kMxfp4).wgmma;
  const std::vector<uint16_t> u = host_copy(u_, (panels ? rows : pairs) * dims_.inter, stream);
  const std::vector<int32_t> places = host_copy(places_, pairs, stream);
  std::vector<float> values;
  values.reserve(static_cast<size_t>(pairs * dims_.inter));
  for (int64_t pair = 0; pair < pairs; ++pair)
    for (int64_t i = 0; i < dims_.inter; ++i) {
      const int64_t at =
          panels ? layout::place_in_panels(rows, places[static_cast<size_t>(pair)], i) : pair * dims_.inter + i;
      values.push_back(F16{u[static_cast<size_t>(at)]}.to_float());
    }
  return {{tokens, dims_.topk, dims_.inter}, std::move(values)};
}

}  // namespace nibble::backend::cuda
