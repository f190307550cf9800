#include "backend/cuda/memory/host_link.h"

#include "backend/cost.h"
#include "backend/cuda/memory/arena.h"
#include "base/error.h"

#include <algorithm>
#include <utility>

namespace nibble::backend::cuda {
namespace {

HostExchange carve_exchange(const BackendConfig& config, Carver& carver) {
  const Dims& d = config.dims;
  const int64_t tokens = config.max_tokens, few = std::min<int64_t>(tokens, kFewTokens);
  return {.tokens = carver.take<int32_t>(1),
          .x = carver.take<float>(tokens * d.hidden),
          .ids = carver.take<int32_t>(tokens * d.topk),
          .weights = carver.take<float>(tokens * d.topk),
          .delta = carver.take<float>(std::max(tokens, 2 * few) * d.hidden),
          .asked = carver.take<uint64_t>(1),
          .answered = carver.take<uint64_t>(1)};
}

}  // namespace

HostLink::HostLink(std::unique_ptr<HostExperts> experts, const BackendConfig& config, int layers, cudaStream_t stream)
    : experts_(std::move(experts)), dims_(config.dims), layers_(layers) {
  Carver measure(nullptr);
  static_cast<void>(carve_exchange(config, measure));
  memory_ = allocate_pinned(measure.bytes(), "the exchange with experts on the host");
  Carver place(memory_.get());
  at_ = carve_exchange(config, place);
  *at_.asked = *at_.answered = 0;
  turns_ = allocate_device(sizeof(uint64_t), "the exchange with experts on the host");
  at_.turns = reinterpret_cast<uint64_t*>(turns_.get());
  cuda_check(cudaMemsetAsync(at_.turns, 0, sizeof(uint64_t), stream));
  thread_ = std::jthread([this] { answer(); });
}

HostLink::~HostLink() {
  ends_ = true;
  expect(1);
}

void HostLink::launch(const HostCall& call, const Launch& on) {
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  cuda_check(cudaStreamIsCapturing(on.stream, &capturing));
  if (capturing == cudaStreamCaptureStatusNone) expect(1);
  HostTurn::launch({.with = at_, .layer = call.layer}, on);
  cuda_check(cudaMemcpyAsync(call.delta, at_.delta, static_cast<size_t>(call.values) * sizeof(float),
                             cudaMemcpyHostToDevice, on.stream));
}

void HostLink::expect(int64_t turns) {
  due_ += turns;
  due_.notify_one();
}

void HostLink::answer() noexcept {
  const std::atomic_ref asked(*at_.asked), answered(*at_.answered);
  constexpr int kLooks = 1 << 16;  // some 0.1 ms, then others get their turn
  for (uint64_t turn = 1;; ++turn) {
    due_.wait(0);
    uint64_t word = 0;
    for (int looks = 0; (word = asked.load(std::memory_order_acquire)) / HostTurn::kMostLayers != turn;) {
      if (ends_) return;
      if (looks < kLooks)
        ++looks;
      else
        std::this_thread::yield();
    }
    run(static_cast<int>(word % HostTurn::kMostLayers));
    answered.store(turn, std::memory_order_release);
    --due_;
  }
}

void HostLink::run(int layer) noexcept {
  const int64_t tokens = *at_.tokens, values = tokens * dims_.hidden;
  if (!failed_) {
    try {
      experts_->run(
          {.layer = layer, .tokens = tokens, .x = at_.x, .ids = at_.ids, .weights = at_.weights, .delta = at_.delta});
    } catch (...) {
      error_ = std::current_exception();
      failed_ = true;
    }
  }
  if (failed_) std::fill_n(at_.delta, values, 0.0f);
  if (tokens <= kFewTokens) std::fill_n(at_.delta + values, values, 0.0f);
}

void HostLink::require() const {
  if (failed_) std::rethrow_exception(error_);
}

}  // namespace nibble::backend::cuda
