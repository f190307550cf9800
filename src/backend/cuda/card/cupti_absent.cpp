// Stands in for cupti.cpp where the build found no cupti.h.
#include "backend/cuda/card/profiler.h"
#include "base/error.h"

namespace nibble::backend::cuda {

Cupti::Cupti(int /*card*/) {
  throw Error(Code::kUnsupported,
              "--profile: want a build with CUPTI (cupti.h of the CUDA toolkit), found one without");
}
Cupti::~Cupti() = default;
std::vector<KernelSpan> Cupti::take() { return {}; }

}  // namespace nibble::backend::cuda
