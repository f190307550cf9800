#pragma once
// The host's end of experts that stay with it: the pinned memory of the exchange, and the function that the stream
// calls.

#include "backend/backend.h"
#include "backend/cuda/card/device.h"
#include "backend/cuda/experts/host_experts.h"
#include "backend/host_experts.h"

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

namespace nibble::backend::cuda {

class HostLink {
 public:
  // The experts are those of the first `layers` layers.
  HostLink(std::unique_ptr<HostExperts> experts, const BackendConfig& config, int layers);
  HostLink(const HostLink&) = delete;
  HostLink& operator=(const HostLink&) = delete;

  [[nodiscard]] const HostExchange& at() const { return at_; }
  [[nodiscard]] HostExperts& experts() { return *experts_; }
  [[nodiscard]] const HostExperts& experts() const { return *experts_; }
  [[nodiscard]] int layers() const { return static_cast<int>(calls_.size()); }

  // REQUIRES that HostRows is enqueued. A capture keeps it.
  void launch(const HostCall& call, const Launch& on);
  // Throws what a call has thrown. From then on deltas are zeros.
  void require() const;

 private:
  struct Call {
    HostLink* link;
    int layer;
  };
  void run(int layer) noexcept;

  std::unique_ptr<HostExperts> experts_;
  const Dims dims_;
  PinnedBytes memory_;
  HostExchange at_;
  std::vector<Call> calls_;   // by layer, where they stay
  std::exception_ptr error_;  // written once, before failed_
  std::atomic<bool> failed_ = false;
};

}  // namespace nibble::backend::cuda
