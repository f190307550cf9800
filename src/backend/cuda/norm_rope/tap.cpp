#include "backend/cuda/norm_rope/tap.h"

namespace nibble::backend::cuda {

void check_args(const TapArgs& a) {
  const auto in_quads = [](const float* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; };
  require_shape(a.tokens > 0, kernel::kTap, "at least one token", a.tokens);
  require_shape(a.hidden > 0 && a.hidden % 4 == 0, kernel::kTap, "hidden a multiple of 4", a.hidden);
  require_shape(a.pitch >= a.hidden && a.pitch % 4 == 0, kernel::kTap, "a pitch of whole rows", a.pitch);
  require_shape(
      a.x != nullptr && a.out != nullptr && in_quads(a.x) && in_quads(a.out) && in_quads(a.delta) && in_quads(a.rest),
      kernel::kTap, "x, delta and out, 16-byte aligned", a.hidden);
  require_shape(a.delta != nullptr || a.rest == nullptr, kernel::kTap, "a rest with a delta only", a.hidden);
}

}  // namespace nibble::backend::cuda
