#include "backend/cpu/moe.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace nibble::backend::cpu {
namespace {

// Every kStep-th of in and bias.
template <int kStep>
void add_bias(const float* in, const float* bias, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) out[i] = in[i * kStep] + bias[i * kStep];
}

}  // namespace

Moe::Moe(const BackendConfig& config, const Kernels& kernels, Linear& linear, const WatchedHost& watched)
    : config_(config),
      own_(config.own_experts.value_or(Range{0, config.dims.experts})),
      kernels_(kernels),
      linear_(linear),
      experts_(static_cast<size_t>(config.dims.experts)) {
  if (watched.say) watch_.emplace(watched);
}

void Moe::route(std::span<const int32_t> ids, std::span<const float> weights) {
  weights_ = weights;
  tokens_ = static_cast<int64_t>(ids.size()) / dims_.topk;
  for (Expert& expert : experts_) {
    expert.slots.clear();
    expert.tokens.clear();
  }
  for (size_t slot = 0; slot < ids.size(); ++slot) {
    Expert& expert = experts_[static_cast<size_t>(ids[slot])];
    expert.slots.push_back(static_cast<int32_t>(slot));
    expert.tokens.push_back(static_cast<int32_t>(static_cast<int64_t>(slot) / dims_.topk));
  }
  hit_.clear();
  for (auto e = static_cast<int>(own_.first); e < own_.end(); ++e)
    if (!experts_[static_cast<size_t>(e)].slots.empty()) hit_.push_back(e);
}

void Moe::run(const ExpertWeights& w, float* x, float* hidden, float* delta) {
  if (dims_.inter == 0) return;
  const double began = watch_ ? watch_->seconds() : 0;
  linear_.round_inputs({x, tokens_, dims_.hidden});
  gate_up(w, x, hidden);
  linear_.round_inputs({hidden, tokens_ * dims_.topk, dims_.inter});
  down(w, hidden, delta);
  if (watch_) watch_->worked(cost(w), watch_->seconds() - began);
}

// Each weight of an expert that has anybody is read once. Nobody watches a rank, which has a part of the pairs.
Cost Moe::cost(const ExpertWeights& w) const {
  const double values = static_cast<double>(dims_.hidden * dims_.inter);
  const double each = 2 * bytes_per_value(w.gate.format()) + bytes_per_value(w.down.format());
  return {.bytes = static_cast<double>(hit_.size()) * values * each,
          .flops = 6 * static_cast<double>(weights_.size()) * values};
}

void Moe::gate_up(const ExpertWeights& w, const float* x, float* hidden) {
  const int step = w.up == nullptr ? 2 : 1;  // rows of w.gate per value
  const int64_t inter = dims_.inter;
  groups_.clear();
  for (const int e : hit_) {
    const int64_t own = e - own_.first, first_bias = own * inter * step;
    groups_.push_back({.weight = &w.gate,
                       .first_row = own * w.gate_rows + w.first_gate_row,
                       .tokens = experts_[static_cast<size_t>(e)].tokens,
                       .pair = w.up,
                       .bias = w.gate_bias.data() + first_bias,
                       .pair_bias = w.up == nullptr ? nullptr : w.up_bias.data() + first_bias});
  }
  linear_.run({x, tokens_, dims_.hidden}, groups_, inter * step, [&](const Tile& tile) {
    const int64_t e = hit_[static_cast<size_t>(tile.group)];
    const Group& group = groups_[static_cast<size_t>(tile.group)];
    const int values = tile.rows / step;
    alignas(64) std::array<float, size_t{kTileTokens} * kTileRows> gate, up;  // [tokens, values]
    size_t n = 0;
    for (int t = 0; t < tile.tokens; ++t) {
      const float* g = tile.out + t * kTileRows;
      const float* u = step == 2 ? g + 1 : tile.pair + t * kTileRows;
      const float* gate_bias = group.bias + tile.row;
      const float* up_bias = step == 2 ? gate_bias + 1 : group.pair_bias + tile.row;
      const auto add = step == 2 ? add_bias<2> : add_bias<1>;
      add(g, gate_bias, std::span(gate).subspan(n, static_cast<size_t>(values)));
      add(u, up_bias, std::span(up).subspan(n, static_cast<size_t>(values)));
      n += static_cast<size_t>(values);
    }
    constexpr size_t kLanes = 16;  // whole vectors
    const size_t whole = (n + kLanes - 1) / kLanes * kLanes;
    std::fill(gate.begin() + static_cast<int64_t>(n), gate.begin() + static_cast<int64_t>(whole), 0.0f);
    std::fill(up.begin() + static_cast<int64_t>(n), up.begin() + static_cast<int64_t>(whole), 0.0f);
    if (config_.head) {
      for (size_t i = 0; i < n; ++i) gate[i] *= up[i] / (1.0f + std::exp(-gate[i]));
    } else {
      kernels_.swiglu({.gate = gate.data(),
                       .up = up.data(),
                       .limit = config_.swiglu_limit,
                       .n = static_cast<int64_t>(whole),
                       .out = gate.data()});
    }
    const std::vector<int32_t>& slots = experts_[static_cast<size_t>(e)].slots;
    for (int t = 0; t < tile.tokens; ++t) {
      const int64_t slot = slots[static_cast<size_t>(tile.from + t)];
      float* out = hidden + slot * inter + tile.row / step;
      __builtin_prefetch(out + values, 1);
      std::copy_n(gate.data() + t * values, values, out);
    }
  });
}

void Moe::down(const ExpertWeights& w, const float* hidden, float* delta) {
  groups_.clear();
  for (const int e : hit_) {
    const int64_t first_row = (e - own_.first) * dims_.hidden;
    groups_.push_back({.weight = &w.down,
                       .first_row = first_row,
                       .tokens = experts_[static_cast<size_t>(e)].slots,
                       .bias = w.down_bias.data() + first_row});
  }
  linear_.run({hidden, tokens_ * dims_.topk, dims_.inter}, groups_, dims_.hidden, [&](const Tile& tile) {
    const int64_t e = hit_[static_cast<size_t>(tile.group)];
    const float* bias = groups_[static_cast<size_t>(tile.group)].bias + tile.row;
    for (int t = 0; t < tile.tokens; ++t) {
      const int64_t slot = experts_[static_cast<size_t>(e)].slots[static_cast<size_t>(tile.from + t)];
      const float weight = weights_[static_cast<size_t>(slot)];
      float* out = delta + slot / dims_.topk * dims_.hidden + tile.row;
      __builtin_prefetch(out + tile.rows, 1);
      for (int r = 0; r < tile.rows; ++r) out[r] += weight * (tile.out[t * kTileRows + r] + bias[r]);
    }
  });
}

}  // namespace nibble::backend::cpu
