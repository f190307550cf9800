#pragma once
// All that a step's verbs bring from the host: small arrays, kept on the device as long as they do not change.

#include "backend/cuda/memory/arena.h"
#include "backend/cuda/program/program.h"
#include "backend/cuda/sampling/sample.h"
#include "backend/cuda/memory/staging.h"

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace nibble::backend::cuda {

class StepInputs {
 public:
  StepInputs(const BackendConfig& config, const Arena& at, cudaStream_t stream);

  // All that a step's launches read, in few copies: page tables, sampling and what attention takes only when they
  // changed. The pointers are the same for every step of as many tokens whose shares are decode attention's alone.
  StepPointers put(const StepArgs& step, const AttendShares& shares);
  const SampleRowParams* params(SampleInputs& inputs);

 private:
  void spread(std::span<const Row> rows);

  static constexpr int64_t kFewTokens = 8;  // whose arrays lie close together: one short copy

  const Arena& at_;
  Staging staging_;
  StepArray<int32_t> logit_tokens_;
  std::vector<PageArray> pages_;  // by LayerKind, as far as the model has them
  StepArray<SampleRowParams> params_;
  std::optional<StepArray<int32_t>> decode_tokens_;  // with attention on tensor cores
  std::optional<StepArray<AttendTile>> attend_tiles_;
  std::vector<int32_t> host_row_, host_last_, ints_;
};

}  // namespace nibble::backend::cuda
