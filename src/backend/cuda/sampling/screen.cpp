#include "backend/cuda/sampling/screen.h"

#include "base/error.h"

#include <fmt/format.h>

#include <algorithm>

namespace nibble::backend::cuda {

Plan Screen::plan(int64_t rows, int64_t cols, int tokens, const PlanDevice& device) {
  constexpr int kSharedBytes = 4096;  // ScreenShared, which only device code has
  const int64_t operands = screen_operand_bytes(cols, tokens);
  Plan plan{.kernel = kName, .grid = std::min<int64_t>(device.sms, kScreenParts)};
  plan.smem_bytes = operands + kSharedBytes;
  if (plan.smem_bytes > device.cta_smem_bytes)
    throw Error(Code::kUnsupported, "cuda: a screen of [{}, {}]: want {} B of shared memory per block, the card has {}",
                rows, cols, plan.smem_bytes, device.cta_smem_bytes);
  plan.tile = fmt::format("grid {}, 32 rows a warp, {} B operands", plan.grid, operands);
  return plan;
}

void check_args(const Screen::Args& a) {
  require_shape(layout::screens(a.copy.rows, a.copy.cols), Screen::kName, "rows in groups of 32, columns in 64s",
                a.copy.rows);
  require_shape(a.tokens > 0 && a.tokens <= kGemvTokens, Screen::kName, "1 to 8 tokens", a.tokens);
  require_shape(aligned(a.copy.matrix) && aligned(a.copy.codes) && aligned(a.y) && aligned(a.copy.lost) &&
                    aligned(a.copy.kept) && a.in.x != nullptr && a.params != nullptr && a.at.state != nullptr,
                Screen::kName, "a copy beside its matrix, activations, logits and scratch", a.tokens);
}

}  // namespace nibble::backend::cuda
