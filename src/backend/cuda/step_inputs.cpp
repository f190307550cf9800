#include "backend/cuda/step_inputs.h"

#include "backend/cuda/attention.h"
#include "base/error.h"

#include <algorithm>
#include <iterator>

namespace nibble::backend::cuda {
namespace {

// The most that one step's arrays take, twice over.
int64_t staging_bytes(const BackendConfig& config, int64_t page_ids) {
  const int64_t ints = 6 * std::max<int64_t>(8, config.max_tokens) + config.max_rows + kLayerKinds * page_ids;
  return 2 * (ints * 4 + config.max_rows * static_cast<int64_t>(sizeof(SampleRowParams)) +
              Attention::staging_bytes(config.max_tokens)) +
         4096;
}

}  // namespace

StepInputs::StepInputs(const BackendConfig& config, const Arena& at, cudaStream_t stream)
    : at_(at),
      staging_(staging_bytes(config, at.page_ids), stream),
      ids_(at.ids, config.max_tokens),
      positions_(at.positions, config.max_tokens),
      token_row_(at.token_row, config.max_tokens),
      last_key_(at.last_key, config.max_tokens),
      logit_tokens_(at.logit_tokens, config.max_rows),
      kv_slots_{StepArray<int32_t>(at.kv_slots[0], config.max_tokens),
                StepArray<int32_t>(at.kv_slots[1], config.max_tokens)},
      pages_{PageArray(at.pages[0], at.page_ids, at.row_pages), PageArray(at.pages[1], at.page_ids, at.row_pages)},
      params_(at.sample_params, config.max_rows) {
  host_row_.reserve(static_cast<size_t>(config.max_tokens));
  host_last_.reserve(static_cast<size_t>(config.max_tokens));
}

void StepInputs::spread(std::span<const Row> rows) {
  host_row_.clear();
  host_last_.clear();
  for (size_t r = 0; r < rows.size(); ++r) {
    const Row& row = rows[r];
    check(row.first_token == static_cast<int32_t>(host_row_.size()), "rows cover the step's tokens in order");
    for (int32_t i = 0; i < row.tokens; ++i) {
      host_row_.push_back(static_cast<int32_t>(r));
      host_last_.push_back(row.context - row.tokens + i);
    }
  }
}

StepInputs::RowsOnDevice StepInputs::rows(std::span<const Row> rows, int64_t tokens) {
  spread(rows);
  check(std::ssize(host_row_) == tokens, "rows cover the step's tokens");
  return {token_row_.put(host_row_, staging_), last_key_.put(host_last_, staging_)};
}

StepInputs::PagesOnDevice StepInputs::pages(LayerKind kind, const PageTable& table, int64_t rows) {
  PageArray& own = pages_[static_cast<size_t>(kind)];
  const int32_t* ids = own.put(table.ids, rows, staging_);
  return {ids, own.stride()};
}

const SampleRowParams* StepInputs::params(SamplePlan& plan) {
  for (SampleRowParams& row : plan.params)
    if (row.temperature <= 0) row.seed = row.position = 0;  // not used; so greedy steps copy nothing
  return params_.put(plan.params, staging_);
}

// Few tokens' arrays lie close together: one short copy.
void StepInputs::begin_step(int64_t tokens) {
  staging_.begin_step();
  const int64_t pitch = tokens <= kFewTokens ? kFewTokens : at_.step_pitch;
  if (pitch == pitch_) return;
  pitch_ = pitch;
  int32_t* at = at_.ids;
  for (StepArray<int32_t>* array : token_arrays()) {
    array->move_to(at);
    at += pitch;
  }
}

void StepInputs::put(const StepArgs& step, SamplePlan& plan) {
  spread(step.rows);
  const std::span<const int32_t> arrays[] = {step.ids,   step.positions,   host_row_,
                                             host_last_, step.kv_slots[0], step.kv_slots[1]};
  const auto copies = token_arrays();
  // Few tokens' arrays are copied with what lies between them, as one piece.
  const bool few = pitch_ == kFewTokens;
  const int64_t stride = few ? pitch_ : std::ssize(step.ids);
  ints_.assign(std::size(arrays) * static_cast<size_t>(stride), 0);
  for (size_t i = 0; i < std::size(arrays); ++i) {
    check(arrays[i].size() == step.ids.size(), "a step's arrays have one entry per token");
    std::copy(arrays[i].begin(), arrays[i].end(), ints_.begin() + static_cast<std::ptrdiff_t>(i) * stride);
    copies[i]->set(arrays[i]);
  }
  const auto bytes = std::as_bytes(std::span(ints_));
  if (few) {
    staging_.copy(at_.ids, bytes);
  } else {
    staging_.copy_rows(at_.ids, bytes, std::ssize(arrays), pitch_ * static_cast<int64_t>(sizeof(int32_t)));
  }
  for (const LayerKind kind : {LayerKind::kSliding, LayerKind::kFull})
    pages(kind, step.pages[static_cast<size_t>(kind)], std::ssize(step.rows));
  logit_tokens_.put(step.logit_tokens, staging_);
  params(plan);
}

}  // namespace nibble::backend::cuda
