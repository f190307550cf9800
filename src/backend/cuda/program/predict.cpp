#include "backend/cuda/program/predict.h"

#include "backend/cuda/comm/sums.h"
#include "backend/cuda/norm_rope/around_gemm.h"
#include "backend/cuda/sampling/sample.h"
#include "base/error.h"

#include <algorithm>
#include <cmath>

namespace nibble::backend::cuda {
namespace {

constexpr double kMicro = 1e6;

// What one launch does. taken: the bytes that instructions are told by, whose number a kernel's form changes little.
struct Work {
  double bytes = 0, taken = 0, flops = 0, tokens = 0;
};

struct LaunchTime {
  double us = 0;
  HeldBy held = HeldBy::kLaunch;
};

// Where a card has no unit for e4m3, f16 products stand in for it (ptx/mma.cuh).
double peak_of(const KnownCard& card, MatrixUnit unit) {
  const double own = card.peak(unit);
  return own == 0 && unit == MatrixUnit::kFp8 ? card.peak(MatrixUnit::kMma) : own;
}

LaunchTime launch_time(const KernelShare& share, const Work& work, const KnownCard& card) {
  const bool chained = card.facts.major >= 9;  // programmatic dependent launch
  const double fixed = share.step_us + share.token_us * work.tokens + (chained ? 0 : kUnchainedUs);
  const double reads = work.bytes / (card.read_bytes_per_s * share.read) * kMicro;
  const double cycles_per_s = card.facts.multiprocessors * card.ghz * 1e9;
  const double takes = share.cycle_bytes > 0 ? work.taken / (cycles_per_s * share.cycle_bytes) * kMicro : 0;
  double matrix = 0;
  if (share.matrix.unit != MatrixUnit::kNone && work.flops > 0) {
    const double peak = peak_of(card, share.matrix.unit);
    check(peak > 0, "a card runs kernels for units that it has");
    matrix = work.flops / (peak * share.matrix.share) * kMicro;
  }
  const double fed = share.feeding == Feeding::kOwn ? std::hypot(reads, takes) : std::max(reads, takes);
  LaunchTime time{.us = fixed + std::hypot(fed, matrix)};
  double most = fixed;
  for (const auto& [us, held] :
       {std::pair{reads, HeldBy::kReads}, {takes, HeldBy::kInstructions}, {matrix, HeldBy::kMatrix}})
    if (us > most) most = us, time.held = held;
  return time;
}

// A product's own tokens: logits are of rows.
double tokens_of(const Program& program, const Node& node) {
  const bool rows = node.stage == Stage::kLogits && !node.kernel.starts_with(NormSums::kName.name);
  return static_cast<double>(rows ? program.logit_rows : program.tokens);
}

double floor_us(const Cost& cost, const KnownCard& card, double peak) {
  return std::max(cost.bytes / card.read_bytes_per_s, cost.flops / peak) * kMicro;
}

// A launch after the program.
NodeTime of_draw(Kernel kernel, const LaunchTime& time) {
  return {.stage = Stage::kLogits, .kernel = std::string(kernel.name), .launches = 1, .us = time.us, .held = time.held};
}

// The logits are written, then read by the draw, both by rows. A rank draws from its own.
NodeTime sampling(const PredictArgs& args) {
  const double bytes = static_cast<double>(args.program.logit_rows * args.dims.vocab) * sizeof(float);
  return of_draw(Sample::kDraw, launch_time(share_of(Sample::kDraw.name), {.bytes = bytes, .taken = bytes}, args.card));
}

// After the draws: each rank's best of a row, to all others.
NodeTime picking(const PredictArgs& args) {
  const double bytes = static_cast<double>(args.program.logit_rows * kVectorWords) * sizeof(float);
  return of_draw(PushPick::kName,
                 {sum_us(args.between.link, {.ranks = args.between.ranks, .bytes = bytes}), HeldBy::kLink});
}

// A node that adds up the ranks' parts. What it sends says how long its message is: a push sends it twice to every
// other rank. Where the parts were sent as they were made, what is left is half, and takes half as long.
NodeTime sum_over_ranks(const PredictArgs& args, const Node& node, SumWay way) {
  const auto& [ranks, link] = args.between;
  const bool longer = way != SumWay::kPush;
  const double message = node.cost.bytes / (2 * (ranks - 1)) * (longer ? ranks : 1);
  const int64_t launches = layers_of(node, args.layer_kinds) * node.launches;
  const double us =
      sum_us(link, {.ranks = ranks, .bytes = message / static_cast<double>(node.launches), .longer = longer});
  return {.stage = node.stage,
          .kernel = node.kernel,
          .launches = launches,
          .us = static_cast<double>(launches) * us,
          .held = HeldBy::kLink};
}

// A call of the host, or a copy from there: of the bytes, or of what crosses the bus, in all layers.
NodeTime on_host(const PredictArgs& args, const Node& node, bool copies) {
  // One H200 beside 16 Xeon cores: 2026-12-01-h200-experts-on-the-host.json.
  constexpr double kCallUs = 12;
  const auto layers = static_cast<double>(layers_of(node, args.layer_kinds));
  const double us =
      copies ? node.moved / args.host.link_bytes_per_s * kMicro : node.cost.bytes / args.host.read_bytes_per_s * kMicro;
  return {.stage = node.stage,
          .kernel = node.kernel,
          .launches = static_cast<int64_t>(layers),
          .us = layers * (copies ? us / kExpertCopyShare : us + kCallUs),
          .floor_us = layers * us,
          .held = copies ? HeldBy::kLink : HeldBy::kHost};
}

}  // namespace

StepTime predict_step(const PredictArgs& args) {
  StepTime step;
  double peak = args.card.exact_peak();
  const auto off_card = [](const Node& node) {
    return node.kernel == HostTurn::kName.name || node.kernel == expert_copy_kernel().name;
  };
  double copied_us = 0, beside_us = 0;  // copies, and what multiplies what they have brought
  for (const Node& node : args.program.nodes)
    if (!way_of(node.kernel) && !off_card(node))
      peak = std::max(peak, args.card.peak(share_of(node.kernel).matrix.unit));
  for (const Node& node : args.program.nodes) {
    if (const auto way = way_of(node.kernel)) {
      step.nodes.push_back(sum_over_ranks(args, node, *way));
      continue;
    }
    if (off_card(node)) {
      const bool copies = node.kernel == expert_copy_kernel().name;
      step.nodes.push_back(on_host(args, node, copies));
      step.floor_us += step.nodes.back().floor_us;
      if (copies) copied_us += step.nodes.back().us;
      continue;
    }
    const KernelShare& share = share_of(node.kernel);
    const auto layers = static_cast<double>(layers_of(node, args.layer_kinds));
    const auto launches = static_cast<double>(node.launches);
    const double tokens = tokens_of(args.program, node);
    const double activations = share.value_bytes * tokens * static_cast<double>(args.dims.hidden) / launches;
    const double moved = node.moved > 0 ? node.moved : activations;
    const LaunchTime one = launch_time(share,
                                       {.bytes = node.cost.bytes + moved,  // each reads the weights
                                        .taken = node.cost.bytes + activations,
                                        .flops = node.cost.flops / launches,
                                        .tokens = tokens / launches},
                                       args.card);
    const Cost cost{layers * node.cost.bytes, layers * node.cost.flops};
    step.nodes.push_back({.stage = node.stage,
                          .kernel = node.kernel,
                          .launches = static_cast<int64_t>(layers * launches),
                          .us = layers * launches * one.us,
                          .floor_us = floor_us(cost, args.card, peak),
                          .held = one.held});
    if (copied_us > 0 && node.stage == Stage::kMoe) {  // no other node of the stage follows them
      beside_us += step.nodes.back().us;
      continue;
    }
    step.costs[static_cast<size_t>(node.stage)] += cost;
  }
  if (args.program.logit_rows > 0) step.nodes.push_back(sampling(args));
  if (args.program.logit_rows > 0 && args.between.ranks > 1) step.nodes.push_back(picking(args));
  step.us = kBetweenStepsUs;
  for (const NodeTime& node : step.nodes) step.us += node.us;
  step.us -= std::min(copied_us, beside_us);
  for (const Cost& cost : step.costs) step.floor_us += floor_us(cost, args.card, peak);
  return step;
}

}  // namespace nibble::backend::cuda
