#pragma once
// The experts of one layer: who uses which in this step, and their two matrices.

#include "backend/backend.h"
#include "backend/cpu/host_watch.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/linear.h"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace nibble::backend::cpu {

// What every expert computes with, the first own one first; weights are stacked along their rows.
struct ExpertWeights {
  const Matrix& gate;                 // kGateUp, or its even rows with `up` beside them
  int64_t first_gate_row, gate_rows;  // of each expert's: where those begin that are multiplied, and how many are there
  const Matrix* up;                   // null: gate's even rows are the gate, its odd rows are up
  std::span<const float> gate_bias, up_bias;  // as gate and up; up_bias empty when up is null
  const Matrix& down;
  std::span<const float> down_bias;
};

class Moe {
 public:
  Moe(const BackendConfig& config, const Kernels& kernels, Linear& linear, const WatchedHost& watched = {});

  // Who is routed where: ids and weights are [tokens, topk]. Experts that are not config's own are left out.
  void route(std::span<const int32_t> ids, std::span<const float> weights);

  // hidden[t, k] = swiglu(W1[e] · x[t] + b1[e]); delta[t] += weight[t, k] * (W2[e] · hidden[t, k] + b2[e]), a
  // token's experts by rising id. x and delta are [tokens, hidden], hidden is [tokens, topk, inter]. Activations in MX
  // blocks leave x and hidden rounded.
  void run(const ExpertWeights& w, float* x, float* hidden, float* delta);

 private:
  struct Expert {
    std::vector<int32_t> slots;   // token * topk + k
    std::vector<int32_t> tokens;  // the same tokens
  };

  [[nodiscard]] Cost cost(const ExpertWeights& w) const;
  void gate_up(const ExpertWeights& w, const float* x, float* hidden);
  void down(const ExpertWeights& w, const float* hidden, float* delta);

  const BackendConfig& config_;
  const Dims& dims_ = config_.dims;
  const Range own_;  // experts
  const Kernels& kernels_;
  Linear& linear_;
  std::span<const float> weights_;
  int64_t tokens_ = 0;
  std::vector<Expert> experts_;
  std::vector<int> hit_;  // own experts with anybody, rising
  std::vector<Group> groups_;
  std::optional<HostWatch> watch_;
};

}  // namespace nibble::backend::cpu
