// Launchers of what a head runs, for tests that link them instead of head_counted.cpp: kernels lane by lane on the
// host.

#include "backend/cuda/emulation/device.h"

#include "backend/cuda/attention/any_attend.cuh"
#include "backend/cuda/attention/attend_decode.cuh"
#include "backend/cuda/eagle3/kernels.cuh"
#include "backend/cuda/norm_rope/embed_norm_rope.h"
#include "backend/cuda/sampling/sample.h"
#include "base/error.h"

#include <algorithm>
#include <cmath>

namespace nibble::backend::cuda {
namespace {

void run_lanes(Kernel name, const emulation::Launch& launch, const Launch& on, const std::function<void()>& kernel) {
  const std::string wrong = emulation::run(launch, kernel);
  if (!wrong.empty()) throw Error(Code::kDevice, "{}: {}", name.name, wrong);
  launched(name, on);
}

}  // namespace

void RopeTable::launch(const Args& args, const Launch& on) {
  for (int i = 0; i < args.tokens * args.half; ++i) {
    const float angle = static_cast<float>(args.positions[i / args.half]) * args.inv_freq[i % args.half];
    args.cosine[i] = static_cast<float>(std::cos(double{angle})) * args.concentration;
    args.sine[i] = static_cast<float>(std::sin(double{angle})) * args.concentration;
  }
  launched(kName, on);
}

// The likeliest: a head draws no other.
void Sample::launch(const Args& args, const Launch& on) {
  for (int r = 0; r < args.rows; ++r) {
    const float* const row = args.logits + int64_t{r} * args.vocab;
    args.tokens[r] = static_cast<int32_t>(std::max_element(row, row + args.vocab) - row);
  }
  launched(kDraw, on);
}

void Attend::launch(const AttentionArgs& args, const Launch& on) {
  using Row = PageRow<KvDtype::kBf16>;
  const emulation::Launch launch{.grid = args.heads,
                                 .threads = kAttendWarps * kWarpLanes,
                                 .grid_y = args.decode_count,
                                 .predecessor = {},
                                 .after_cta = {}};
  run_lanes(kNames.of(args.kv.type), launch, on, [&] { any_attend<Row, 4>(args); });
}

void AttendDecode::launch(const AttentionArgs& args, const DecodePlan& plan, const Launch& on) {
  using Tile = DecodeTile<PageRow<KvDtype::kBf16>, kDecodeRing.warps, kDecodeRing.stages>;
  const emulation::Launch launch{.grid = args.kv_heads,
                                 .threads = Tile::kThreads,
                                 .grid_y = static_cast<int>(plan.grid_y),
                                 .predecessor = {},
                                 .after_cta = {}};
  run_lanes(name(args.kv.type, args.fp8), launch, on, [&] { any_attend_decode<Tile>(args); });
}

void Eagle3Linear::launch(const Args& args, const Eagle3LinearPlan& plan, const Launch& on) {
  check_args(args);
  const emulation::Launch launch{
      .grid = static_cast<int>(plan.grid), .threads = plan.threads, .predecessor = {}, .after_cta = {}};
  run_lanes(name(args.tokens), launch, on, [&] {
    switch (plan.token_tiles) {
      case 1: return any_eagle3_linear_bf16<1>(args, plan.parts);
      case 2: return any_eagle3_linear_bf16<2>(args, plan.parts);
      case 4: return any_eagle3_linear_bf16<4>(args, plan.parts);
      default: return any_eagle3_linear_bf16<8>(args, plan.parts);
    }
  });
}

void Eagle3Norm::launch(const Args& args, const Launch& on) {
  check_args(args);
  run_lanes(
      kName,
      {.grid = args.rows, .threads = kEagle3RowThreads, .grid_y = args.segments, .predecessor = {}, .after_cta = {}},
      on, [&] { any_eagle3_norm_f32(args); });
}

void Eagle3Enter::launch(const Args& args, const Launch& on) {
  check_args(args);
  run_lanes(kName, {.grid = args.tokens, .threads = kEagle3RowThreads, .predecessor = {}, .after_cta = {}}, on,
            [&] { any_eagle3_enter_bf16(args); });
}

}  // namespace nibble::backend::cuda
