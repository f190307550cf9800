#pragma once
// All that a step's verbs bring from the host: small arrays, kept on the device as long as they do not change.

#include "backend/cuda/arena.h"
#include "backend/cuda/sample_plan.h"
#include "backend/cuda/staging.h"

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace nibble::backend::cuda {

class StepInputs {
 public:
  StepInputs(const BackendConfig& config, const Arena& at, cudaStream_t stream);

  void begin_step(int64_t tokens);
  [[nodiscard]] Staging& staging() { return staging_; }
  void freeze(bool frozen) { staging_.freeze(frozen); }

  // Each returns the device's copy.
  const int32_t* ids(std::span<const int32_t> host) { return ids_.put(host, staging_); }
  const int32_t* positions(std::span<const int32_t> host) { return positions_.put(host, staging_); }
  const int32_t* kv_slots(LayerKind kind, std::span<const int32_t> host) {
    return kv_slots_[static_cast<size_t>(kind)].put(host, staging_);
  }
  const int32_t* logit_tokens(std::span<const int32_t> host) { return logit_tokens_.put(host, staging_); }
  struct RowsOnDevice {
    const int32_t* token_row = nullptr;  // [tokens]
    const int32_t* last_key = nullptr;   // [tokens]
  };
  // REQUIRES that the rows cover the step's `tokens` in order.
  RowsOnDevice rows(std::span<const Row> rows, int64_t tokens);
  struct PagesOnDevice {
    const int32_t* ids = nullptr;
    int per_row = 0;
  };
  PagesOnDevice pages(LayerKind kind, const PageTable& table, int64_t rows);
  const SampleRowParams* params(SamplePlan& plan);

  // What a captured step reads, in one copy; page tables and sampling only when they changed.
  void put(const StepArgs& step, SamplePlan& plan);

 private:
  void spread(std::span<const Row> rows);

  static constexpr int64_t kFewTokens = 8;
  // The arena's six arrays of one entry per token, in its order.
  [[nodiscard]] std::array<StepArray<int32_t>*, 6> token_arrays() {
    return {&ids_, &positions_, &token_row_, &last_key_, &kv_slots_[0], &kv_slots_[1]};
  }

  const Arena& at_;
  int64_t pitch_ = 0;  // between these arrays
  Staging staging_;
  StepArray<int32_t> ids_, positions_, token_row_, last_key_, logit_tokens_;
  std::array<StepArray<int32_t>, kLayerKinds> kv_slots_;
  std::array<PageArray, kLayerKinds> pages_;
  StepArray<SampleRowParams> params_;
  std::vector<int32_t> host_row_, host_last_, ints_;
};

}  // namespace nibble::backend::cuda
