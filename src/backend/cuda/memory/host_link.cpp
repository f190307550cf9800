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
          .delta = carver.take<float>(std::max(tokens, 2 * few) * d.hidden)};
}

}  // namespace

HostLink::HostLink(std::unique_ptr<HostExperts> experts, const BackendConfig& config, int layers)
    : experts_(std::move(experts)), dims_(config.dims) {
  Carver measure(nullptr);
  static_cast<void>(carve_exchange(config, measure));
  memory_ = allocate_pinned(measure.bytes(), "the exchange with experts on the host");
  Carver place(memory_.get());
  at_ = carve_exchange(config, place);
  for (int layer = 0; layer < layers; ++layer) calls_.push_back({this, layer});
}

void HostLink::launch(const HostCall& call, const Launch& on) {
  const cudaHostFn_t entry = [](void* data) {
    const Call& own = *static_cast<Call*>(data);
    own.link->run(own.layer);
  };
  cuda_check(cudaLaunchHostFunc(on.stream, entry, &calls_.at(static_cast<size_t>(call.layer))));
  cuda_check(cudaMemcpyAsync(call.delta, at_.delta, static_cast<size_t>(call.values) * sizeof(float),
                             cudaMemcpyHostToDevice, on.stream));
  note_launch(host_call_kernel(), on, RunsOn::kHost);
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
