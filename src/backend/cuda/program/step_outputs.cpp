#include "backend/cuda/program/step_outputs.h"

#include "backend/cuda/sampling/sample.h"
#include "backend/draw.h"
#include "base/error.h"

namespace nibble::backend::cuda {

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
  if (token == kNothingAllowed && row.masked && row.given < 0) {
    drawn.error = nothing_allowed(row.position);
  } else if (token == kNotFinite || (token == kNothingAllowed && !row.masked)) {
    drawn.error = not_finite("NaN or infinity");
  } else {
    drawn.token = row.given >= 0 ? row.given : token;
  }
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
