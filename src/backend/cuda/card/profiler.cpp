#include "backend/cuda/card/profiler.h"

namespace nibble::backend::cuda {

void Profiler::begin() {
  cuda_check(cudaStreamSynchronize(on_.stream));
  int card = 0;
  cuda_check(cudaGetDevice(&card));
  cupti_.emplace(card);
  if (graphs_ != nullptr) graphs_->forget();  // CUPTI sees into those that are made before its eyes
  on_.trace->clear();
  skipped_ = 0;
}

void Profiler::skip() {
  cuda_check(cudaStreamSynchronize(on_.stream));
  skipped_ = on_.trace->size();
}

KernelProfile Profiler::take() {
  cuda_check(cudaStreamSynchronize(on_.stream));
  KernelProfile profile = account(*on_.trace, cupti_->take(), skipped_);
  on_.trace->clear();
  skipped_ = 0;
  return profile;
}

}  // namespace nibble::backend::cuda
