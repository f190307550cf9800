// Launchers of what a head runs, for tests that link them instead of head_counted.cpp: kernels lane by lane on the
// host.

#include "backend/cuda/emulation/device.h"

#include "backend/cuda/attention/any_attend.cuh"
#include "backend/cuda/attention/attend_decode.cuh"
#include "backend/cuda/eagle3/linear.cuh"
#include "backend/cuda/eagle3/rows.cuh"
#include "backend/cuda/launch/launchers.h"
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

void any_rope_table(const RopeTableLaunch& args, const Launch& on) {
  for (int i = 0; i < args.tokens * args.half; ++i) {
    const float angle = static_cast<float>(args.positions[i / args.half]) * args.inv_freq[i % args.half];
    args.cosine[i] = static_cast<float>(std::cos(double{angle})) * args.concentration;
    args.sine[i] = static_cast<float>(std::sin(double{angle})) * args.concentration;
  }
  launched(kernel::kRopeTable, on);
}

// The likeliest: a head draws no other.
void any_sample(const SampleLaunch& args, const Launch& on) {
  for (int r = 0; r < args.rows; ++r) {
    const float* const row = args.logits + int64_t{r} * args.vocab;
    args.tokens[r] = static_cast<int32_t>(std::max_element(row, row + args.vocab) - row);
  }
  launched(kernel::kSampleDraw, on);
}

void any_attend(const AttendLaunch& args, const Launch& on) {
  using Row = PageRow<KvDtype::kBf16>;
  const emulation::Launch launch{.grid = args.heads,
                                 .threads = kAttendWarps * kWarpLanes,
                                 .grid_y = args.tokens,
                                 .predecessor = {},
                                 .after_cta = {}};
  run_lanes(kernel::kAttend.of(args.kv.type), launch, on, [&] { any_attend<Row, 4>(args); });
}

void any_attend_decode(const FlashArgs& args, KvDtype type, const DecodePlan& plan, const Launch& on) {
  using Tile = DecodeTile<PageRow<KvDtype::kBf16>, kDecodeRing.warps, kDecodeRing.stages>;
  const emulation::Launch launch{
      .grid = args.kv_heads, .threads = Tile::kThreads, .grid_y = plan.grid, .predecessor = {}, .after_cta = {}};
  run_lanes(decode_kernel(type, args.fp8), launch, on, [&] { any_attend_decode<Tile>(args); });
}

void any_eagle3_linear(const Eagle3LinearArgs& args, const Eagle3LinearPlan& plan, const Launch& on) {
  check_args(args);
  const emulation::Launch launch{
      .grid = plan.grid, .threads = kEagle3LinearWarps * kWarpLanes, .predecessor = {}, .after_cta = {}};
  run_lanes(eagle3_linear_kernel(args.tokens), launch, on, [&] {
    switch (plan.token_tiles) {
      case 1: return any_eagle3_linear_bf16<1>(args, plan.parts);
      case 2: return any_eagle3_linear_bf16<2>(args, plan.parts);
      case 4: return any_eagle3_linear_bf16<4>(args, plan.parts);
      default: return any_eagle3_linear_bf16<8>(args, plan.parts);
    }
  });
}

void any_eagle3_norm(const Eagle3NormArgs& args, const Launch& on) {
  check_args(args);
  run_lanes(
      kernel::kEagle3Norm,
      {.grid = args.rows, .threads = kEagle3RowThreads, .grid_y = args.segments, .predecessor = {}, .after_cta = {}},
      on, [&] { any_eagle3_norm_f32(args); });
}

void any_eagle3_enter(const Eagle3EnterArgs& args, const Launch& on) {
  check_args(args);
  run_lanes(kernel::kEagle3Enter,
            {.grid = args.tokens, .threads = kEagle3RowThreads, .predecessor = {}, .after_cta = {}}, on,
            [&] { any_eagle3_enter_bf16(args); });
}

}  // namespace nibble::backend::cuda
