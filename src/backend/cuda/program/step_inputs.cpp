#include "backend/cuda/program/step_inputs.h"

#include "base/error.h"

#include <algorithm>
#include <iterator>

namespace nibble::backend::cuda {
namespace {

// The most that one step's arrays take, twice over.
int64_t staging_bytes(const BackendConfig& config, int64_t page_ids) {
  const auto kinds = std::ssize(kinds_of(config.dims));
  const int64_t ints = (4 + kinds) * std::max<int64_t>(8, config.max_tokens) + config.max_rows + kinds * page_ids;
  const int64_t taps = config.head ? config.max_tokens * config.head->taps * config.head->target_hidden : 0;
  return 2 * (ints * 4 + taps * 4 + config.max_rows * static_cast<int64_t>(sizeof(SampleRowParams)) +
              config.max_tokens * 4 + max_attend_tiles(config.max_tokens) * static_cast<int64_t>(sizeof(AttendTile))) +
         4096;
}

}  // namespace

StepInputs::StepInputs(const BackendConfig& config, const Arena& at, cudaStream_t stream)
    : at_(at),
      staging_(staging_bytes(config, at.step.page_ids), stream),
      logit_tokens_(at.step.logit_tokens, config.max_rows),
      params_(at.sample.params, config.max_rows) {
  for (const LayerKind kind : kinds_of(config.dims))
    pages_.emplace_back(at.step.pages[static_cast<size_t>(kind)], at.step.page_ids, at.step.row_pages);
  if (at.attend) {
    decode_tokens_.emplace(at.attend->decode_tokens, config.max_tokens);
    attend_tiles_.emplace(at.attend->tiles, max_attend_tiles(config.max_tokens));
  }
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

const SampleRowParams* StepInputs::params(SampleInputs& inputs) {
  for (SampleRowParams& row : inputs.params)
    if (row.greedy()) row.seed = row.position = 0;  // not used; so greedy steps copy nothing
  return params_.put(inputs.params, staging_);
}

StepPointers StepInputs::put(const StepArgs& step, const AttendShares& shares) {
  staging_.begin_step();
  spread(step.rows);
  check(host_row_.size() == step.ids.size(), "rows cover the step's tokens");
  std::array<std::span<const int32_t>, 4 + kLayerKinds> all = {step.ids, step.positions, host_row_, host_last_};
  std::copy(step.kv_slots.begin(), step.kv_slots.end(), all.begin() + 4);
  const auto arrays = std::span(all).first(4 + pages_.size());
  const bool few = std::ssize(step.ids) <= kFewTokens;
  const int64_t pitch = few ? kFewTokens : at_.step.pitch;         // on the device
  const int64_t stride = few ? kFewTokens : std::ssize(step.ids);  // here; a few are copied with what lies between them
  ints_.assign(std::size(arrays) * static_cast<size_t>(stride), 0);
  for (size_t i = 0; i < std::size(arrays); ++i) {
    check(arrays[i].size() == step.ids.size(), "a step's arrays have one entry per token");
    std::copy(arrays[i].begin(), arrays[i].end(), ints_.begin() + static_cast<std::ptrdiff_t>(i) * stride);
  }
  const auto bytes = std::as_bytes(std::span(ints_));
  if (few) {
    staging_.copy(at_.step.rows, bytes);
  } else {
    staging_.copy_rows(at_.step.rows, bytes, std::ssize(arrays), pitch * static_cast<int64_t>(sizeof(int32_t)));
  }
  const auto place = [&](int i) { return at_.step.rows + i * pitch; };
  StepPointers on{.ids = place(0),
                  .positions = place(1),
                  .token_row = place(2),
                  .last_key = place(3),
                  .logit_tokens = logit_tokens_.put(step.logit_tokens, staging_),
                  .sinks = step.sinks};
  for (size_t kind = 0; kind < pages_.size(); ++kind) {
    on.kv_slots[kind] = place(4 + static_cast<int>(kind));
    on.pages[kind] = pages_[kind].put(step.pages[kind].ids, std::ssize(step.rows), staging_);
    on.pages_per_row[kind] = pages_[kind].stride();
  }
  if (!step.taps.empty()) staging_.copy(at_.head->taps, std::as_bytes(step.taps));
  if (!shares.decode.empty() && shares.decode.size() < step.ids.size())
    on.decode_tokens = decode_tokens_->put(shares.decode, staging_);
  if (!shares.prefill.empty()) on.attend_tiles = attend_tiles_->put(shares.prefill, staging_);
  return on;
}

}  // namespace nibble::backend::cuda
