#pragma once
// When each kernel of this process began and ended, from CUPTI's activity records. libcupti is loaded when it is first
// asked for: it comes with the CUDA toolkit, not with the driver.

#include "backend/cuda/launch/kernel_account.h"

#include <vector>

namespace nibble::backend::cuda {

class Cupti {
 public:
  // Begins to record the card's. One at a time: CUPTI's callbacks carry no pointer of ours. Throws Error(kUnsupported)
  // when this build or this machine has no CUPTI, Error(kDevice) when it fails.
  explicit Cupti(int card);
  ~Cupti();
  Cupti(const Cupti&) = delete;
  Cupti& operator=(const Cupti&) = delete;

  // Of the kernels that have ended, since the last call; all of them once the device has been waited for.
  [[nodiscard]] std::vector<KernelSpan> take();
};

}  // namespace nibble::backend::cuda
