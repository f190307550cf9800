#pragma once
// The profile of a backend's one stream: its launches in order, each with the time that CUPTI gives it.

#include "backend/cuda/launch/launch.h"
#include "backend/cuda/program/step_graph.h"
#include "backend/plan.h"

#include <optional>
#include <vector>

namespace nibble::backend::cuda {

// When each kernel of this process began and ended, from CUPTI's activity records. libcupti is loaded when it is first
// asked for: it comes with the CUDA toolkit, not with the driver.
class Cupti {
 public:
  // Begins to record the card's. One at a time: CUPTI's callbacks carry no pointer of ours. Throws Error(kUnsupported)
  // when this build or this machine has no CUPTI, Error(kDevice) when it fails.
  explicit Cupti(int card);
  ~Cupti();
  Cupti(const Cupti&) = delete;
  Cupti& operator=(const Cupti&) = delete;

  // The spans of kernels that have ended since the last call; all of them once the device has been waited for.
  [[nodiscard]] std::vector<KernelSpan> take();
};

class Profiler final : public KernelProfiler {
 public:
  // on: whose trace the backend's launches go to, on that card. graphs: may be null. Both outlive the profiler.
  Profiler(const Launch& on, StepGraphs* graphs, int card) : on_(on), graphs_(graphs), card_(card) {}

  void begin() override {
    cuda_check(cudaStreamSynchronize(on_.stream));
    cupti_.emplace(card_);
    if (graphs_ != nullptr) graphs_->forget();  // CUPTI sees into those that are made before its eyes
    restart();
  }
  void skip() override {
    cuda_check(cudaStreamSynchronize(on_.stream));
    skipped_ = kernels_of(*on_.trace).size();
  }
  [[nodiscard]] KernelProfile take() override {
    cuda_check(cudaStreamSynchronize(on_.stream));
    KernelProfile profile = account(kernels_of(*on_.trace), cupti_->take(), skipped_);
    restart();
    return profile;
  }
  void end() override { cupti_.reset(); }

  // A step begins: its launches are kept after those of the steps before it, or alone when nobody profiles.
  void begin_step() {
    if (!cupti_) on_.trace->clear();
  }

 private:
  void restart() {
    on_.trace->clear();
    skipped_ = 0;
  }

  const Launch& on_;
  StepGraphs* graphs_;
  const int card_;
  std::optional<Cupti> cupti_;
  size_t skipped_ = 0;  // launches
};

}  // namespace nibble::backend::cuda
