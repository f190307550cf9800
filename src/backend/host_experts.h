#pragma once
// Experts that a card leaves to its host: their weights never reach the card, which sends activations and routing and
// gets the delta back.

#include "backend/weights.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace nibble::backend {

struct BackendConfig;

class HostExperts {
 public:
  // A layer's share of a step.
  struct Work {
    int layer = 0;
    int64_t tokens = 0;              // 1 to BackendConfig::max_tokens
    float* x = nullptr;              // [tokens, hidden] normed; rounded in its place where activations are
    const int32_t* ids = nullptr;    // [tokens, topk]
    const float* weights = nullptr;  // [tokens, topk]
    float* delta = nullptr;          // [tokens, hidden] out
  };

  HostExperts() = default;
  virtual ~HostExperts() = default;
  HostExperts(const HostExperts&) = delete;
  HostExperts& operator=(const HostExperts&) = delete;

  // For people: with what it computes.
  [[nodiscard]] virtual std::string modes() const = 0;
  // As Backend::upload of a host backend. REQUIRES has_experts(role).
  virtual void upload(const HostWeight& weight) = 0;
  // delta = Σ w_e (W2[e]·u + b2[e]), as Backend::moe() has it. One caller at a time, on any thread. REQUIRES all four
  // weights of the layer.
  virtual void run(const Work& work) = 0;
};

using MakeHostExperts = std::function<std::unique_ptr<HostExperts>(const BackendConfig& config)>;

}  // namespace nibble::backend
