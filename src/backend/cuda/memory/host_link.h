#pragma once
// The host's end of experts that stay with it: the pinned memory of the exchange, and the thread that answers the card
// there. It looks at memory while turns are due, and sleeps else.

#include "backend/backend.h"
#include "backend/cuda/card/device.h"
#include "backend/cuda/experts/host_experts.h"
#include "backend/host_experts.h"

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>

namespace nibble::backend::cuda {

class HostLink {
 public:
  // The experts are those of the first `layers` layers.
  HostLink(std::unique_ptr<HostExperts> experts, const BackendConfig& config, int layers, cudaStream_t stream);
  HostLink(const HostLink&) = delete;
  HostLink& operator=(const HostLink&) = delete;

  [[nodiscard]] const HostExchange& at() const { return at_; }
  [[nodiscard]] HostExperts& experts() { return *experts_; }
  [[nodiscard]] const HostExperts& experts() const { return *experts_; }
  [[nodiscard]] int layers() const { return layers_; }

  ~HostLink();

  // REQUIRES that HostRows is enqueued. What captures it calls expect_layers() before each replay.
  void launch(const HostCall& call, const Launch& on);
  void expect_layers() { expect(layers_); }
  // Throws what a call has thrown. From then on deltas are zeros.
  void require() const;

 private:
  void expect(int64_t turns);
  void answer() noexcept;
  void run(int layer) noexcept;

  std::unique_ptr<HostExperts> experts_;
  const Dims dims_;
  const int layers_;
  PinnedBytes memory_;
  DeviceBytes turns_;
  HostExchange at_;
  std::exception_ptr error_;  // written once, before failed_
  std::atomic<bool> failed_ = false, ends_ = false;
  std::atomic<int64_t> due_ = 0;  // turns that are enqueued and not answered
  std::jthread thread_;           // the last: it uses the others
};

}  // namespace nibble::backend::cuda
