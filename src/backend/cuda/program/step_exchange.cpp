#include "backend/cuda/program/step_exchange.h"

#include "backend/draw.h"
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
  if (few)
    staging_.copy(at_.step.rows, bytes);
  else
    staging_.copy_rows(at_.step.rows, bytes, std::ssize(arrays), pitch * static_cast<int64_t>(sizeof(int32_t)));
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

Tickets::Tickets(int64_t rows, int64_t vocab, cudaStream_t stream) : vocab_(vocab), stream_(stream) {
  for (StepSamples& s : sampled_) {
    s.tokens = allocate_pinned(rows * static_cast<int64_t>(sizeof(int32_t)), "sampled tokens");
    s.done = make_event();
  }
}

void Tickets::open(std::span<const SampleRow> rows) {
  StepSamples& out = sampled_[static_cast<size_t>(++last_ % kTickets)];
  check(out.ticket == 0, "at most four tickets wait at the same time");
  out.ticket = last_;
  out.rows.clear();
  int64_t kept = 0;
  for (const SampleRow& row : rows) {
    out.rows.push_back({.position = row.position,
                        .given = row.given,
                        .logprobs = row.logprobs,
                        .masked = !row.mask.empty(),
                        .logits = row.logprobs >= 0 ? kept++ : -1});
  }
  const int64_t row_bytes = vocab_ * static_cast<int64_t>(sizeof(float));
  if (kept > out.logits_rows) {
    out.logits = allocate_pinned(kept * row_bytes, "logits for logprobs");
    out.logits_rows = kept;
  }
}

void Tickets::keep(const float* logits) {
  StepSamples& out = sampled_[static_cast<size_t>(last_ % kTickets)];
  const int64_t row_bytes = vocab_ * static_cast<int64_t>(sizeof(float));
  for (size_t r = 0; r < out.rows.size(); ++r) {
    if (out.rows[r].logits < 0) continue;
    cuda_check(cudaMemcpyAsync(out.logits.get() + out.rows[r].logits * row_bytes,
                               logits + static_cast<int64_t>(r) * vocab_, static_cast<size_t>(row_bytes),
                               cudaMemcpyDeviceToHost, stream_));
  }
}

Ticket Tickets::hand_out(const int32_t* sampled) {
  const StepSamples& out = sampled_[static_cast<size_t>(last_ % kTickets)];
  cuda_check(
      cudaMemcpyAsync(out.tokens.get(), sampled, out.rows.size() * sizeof(int32_t), cudaMemcpyDeviceToHost, stream_));
  cuda_check(cudaEventRecord(out.done.get(), stream_));
  return last_;
}

std::vector<DrawnToken> Tickets::wait(Ticket ticket) {
  StepSamples& out = sampled_[static_cast<size_t>(ticket % kTickets)];
  check(ticket > 0 && out.ticket == ticket, "a ticket is read once");
  cuda_check(cudaEventSynchronize(out.done.get()));
  const auto* tokens = reinterpret_cast<const int32_t*>(out.tokens.get());
  out.ticket = 0;
  std::vector<DrawnToken> drawn(out.rows.size());
  for (size_t r = 0; r < drawn.size(); ++r) drawn[r] = read(out.rows[r], tokens[r], out);
  return drawn;
}

DrawnToken Tickets::read(const RowRequest& row, int32_t token, const StepSamples& from) const {
  DrawnToken drawn;
  if (token == kNothingAllowed && row.masked && row.given < 0)
    drawn.error = nothing_allowed(row.position);
  else if (token == kNotFinite || (token == kNothingAllowed && !row.masked))
    drawn.error = not_finite("NaN or infinity");
  else
    drawn.token = row.given >= 0 ? row.given : token;
  if (!drawn.error && row.logprobs >= 0) {
    const auto* logits = reinterpret_cast<const float*>(from.logits.get()) + row.logits * vocab_;
    drawn.logprobs = logprobs_of({logits, static_cast<size_t>(vocab_)}, drawn.token, row.logprobs);
  }
  return drawn;
}

TapCopies::TapCopies(int64_t tokens, int64_t width, cudaStream_t stream) : width_(width), stream_(stream) {
  for (Copy& copy : copies_) {
    copy.values = allocate_pinned(tokens * width * static_cast<int64_t>(sizeof(float)), "residuals for drafts");
    copy.done = make_event();
  }
}

TapTicket TapCopies::copy(const float* from, int64_t tokens) {
  Copy& to = copies_[static_cast<size_t>(++last_) % copies_.size()];
  to.ticket = last_;
  to.count = tokens * width_;
  cuda_check(cudaMemcpyAsync(to.values.get(), from, static_cast<size_t>(to.count) * sizeof(float),
                             cudaMemcpyDeviceToHost, stream_));
  cuda_check(cudaEventRecord(to.done.get(), stream_));
  return last_;
}

std::span<const float> TapCopies::wait(TapTicket ticket) const {
  const Copy& from = copies_[static_cast<size_t>(ticket) % copies_.size()];
  check(ticket > 0 && from.ticket == ticket, "residuals are read before the second step after theirs");
  cuda_check(cudaEventSynchronize(from.done.get()));
  return {reinterpret_cast<const float*>(from.values.get()), static_cast<size_t>(from.count)};
}

}  // namespace nibble::backend::cuda
