#include "backend/cuda/program/tap_copies.h"

#include "base/error.h"

namespace nibble::backend::cuda {

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
