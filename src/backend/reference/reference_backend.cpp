#include "backend/reference/reference_backend.h"

#include "base/dtype.h"
#include "base/error.h"
#include "base/mx.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace nibble::backend {
namespace {

using Vec = std::vector<double>;

constexpr int kBlockBytes = mx_block_bytes(MxFormat::kMxfp4);

// An uploaded tensor, read one value at a time.
class Matrix {
 public:
  explicit Matrix(const HostWeight& weight) : values_(weight.values), scales_(weight.scales) {}

  // Element `idx` in row-major order of the logical (unpacked) tensor.
  [[nodiscard]] double operator[](int64_t idx) const {
    const std::byte* data = values_.bytes.data();
    if (scales_.bytes.empty()) return reinterpret_cast<const Bf16*>(data)[idx].to_float();
    const int64_t block = idx / kMxBlock;
    const auto code = mx_element_code(MxFormat::kMxfp4, reinterpret_cast<const uint8_t*>(data) + block * kBlockBytes,
                                      static_cast<int>(idx % kMxBlock));
    const E8m0 scale{static_cast<uint8_t>(scales_.bytes[static_cast<size_t>(block)])};
    return double{E2m1{code}.to_float()} * double{scale.to_float()};
  }

 private:
  RawTensor values_, scales_;
};

// y[rows] = W[first_row.., cols] · x + b
Vec linear(const Matrix& w, const Matrix& bias, const Vec& x, int64_t first_row, int64_t rows) {
  Vec y(static_cast<size_t>(rows));
  const auto cols = static_cast<int64_t>(x.size());
  for (int64_t r = 0; r < rows; ++r) {
    double sum = bias[first_row + r];
    for (int64_t c = 0; c < cols; ++c) sum += w[(first_row + r) * cols + c] * x[static_cast<size_t>(c)];
    y[static_cast<size_t>(r)] = sum;
  }
  return y;
}

class ReferenceBackend final : public Backend {
 public:
  explicit ReferenceBackend(const BackendConfig& config) : config_(config), kv_(config.layer_kinds.size()) {
    for (size_t l = 0; l < kv_.size(); ++l) {
      const int64_t slots = int64_t{config.kv_pages[static_cast<size_t>(config.layer_kinds[l])]} * kPageTokens;
      kv_[l].keys.assign(static_cast<size_t>(slots * dims_.kv_width()), NAN);
      kv_[l].values = kv_[l].keys;
    }
  }

  [[nodiscard]] std::string_view name() const override { return "reference"; }

  WeightHandle upload(const HostWeight& weight) override {
    weights_.emplace_back(weight);
    return {static_cast<int32_t>(weights_.size()) - 1};
  }

  void embed(const EmbedArgs& args) override {
    residual_.clear();
    for (const int32_t id : args.ids) {
      Vec row(static_cast<size_t>(dims_.hidden));
      for (int d = 0; d < dims_.hidden; ++d)
        row[static_cast<size_t>(d)] = at(args.table)[int64_t{id} * dims_.hidden + d];
      residual_.push_back(std::move(row));
    }
  }

  void attn_in(const AttnInArgs& args) override {
    normed_.clear();
    q_.clear();
    for (size_t t = 0; t < residual_.size(); ++t) {
      normed_.push_back(rmsnorm(residual_[t], at(args.layer[WeightRole::kAttnNorm])));
      const auto project = [&](WeightRole weight, WeightRole bias, int rows) {
        return linear(at(args.layer[weight]), at(args.layer[bias]), normed_[t], 0, rows);
      };
      Vec q = project(WeightRole::kQ, WeightRole::kQBias, dims_.q_width());
      Vec k = project(WeightRole::kK, WeightRole::kKBias, dims_.kv_width());
      const Vec v = project(WeightRole::kV, WeightRole::kVBias, dims_.kv_width());
      rope(q, args.positions[t]);
      rope(k, args.positions[t]);
      const auto slot = int64_t{args.kv_slots[t]} * dims_.kv_width();
      LayerKv& kv = kv_[static_cast<size_t>(args.layer_idx)];
      std::copy(k.begin(), k.end(), kv.keys.begin() + slot);
      std::copy(v.begin(), v.end(), kv.values.begin() + slot);
      q_.push_back(std::move(q));
    }
  }

  void attend(const AttendArgs& args) override {
    attn_.assign(q_.size(), Vec(static_cast<size_t>(dims_.q_width())));
    for (size_t r = 0; r < args.rows.size(); ++r) {
      const Row& row = args.rows[r];
      for (int i = 0; i < row.tokens; ++i) {
        const int64_t position = row.context - row.tokens + i;
        const int64_t first =
            args.kind == LayerKind::kSliding ? std::max<int64_t>(0, position - dims_.sliding_window + 1) : 0;
        std::vector<int64_t> slots;
        for (int64_t p = first; p <= position; ++p) {
          const int32_t page =
              args.pages.ids[r * static_cast<size_t>(args.pages.pages_per_row) + static_cast<size_t>(p / kPageTokens)];
          slots.push_back(int64_t{page} * kPageTokens + p % kPageTokens);
        }
        for (int h = 0; h < dims_.heads; ++h) attend_head(args, static_cast<size_t>(row.first_token + i), h, slots);
      }
    }
  }

  void attn_out(const AttnOutArgs& args) override {
    for (size_t t = 0; t < residual_.size(); ++t) {
      add(residual_[t],
          linear(at(args.layer[WeightRole::kO]), at(args.layer[WeightRole::kOBias]), attn_[t], 0, dims_.hidden), 1);
    }
  }

  void route(const RouteArgs& args) override {
    normed_.clear();
    router_logits_.clear();
    expert_ids_.clear();
    expert_weights_.clear();
    for (const Vec& x : residual_) {
      normed_.push_back(rmsnorm(x, at(args.layer[WeightRole::kMlpNorm])));
      const Vec g = linear(at(args.layer[WeightRole::kRouter]), at(args.layer[WeightRole::kRouterBias]), normed_.back(),
                           0, dims_.experts);
      std::vector<int> order(g.size());
      std::iota(order.begin(), order.end(), 0);
      std::sort(order.begin(), order.end(), [&](int a, int b) {
        const double of_a = g[static_cast<size_t>(a)], of_b = g[static_cast<size_t>(b)];
        return of_a > of_b || (of_a == of_b && a < b);
      });
      order.resize(static_cast<size_t>(dims_.topk));
      Vec w;
      for (const int e : order) w.push_back(std::exp(g[static_cast<size_t>(e)] - g[static_cast<size_t>(order[0])]));
      const double sum = std::accumulate(w.begin(), w.end(), 0.0);
      for (double& value : w) value /= sum;
      router_logits_.push_back(g);
      expert_ids_.emplace_back(order.begin(), order.end());
      expert_weights_.push_back(std::move(w));
    }
  }

  void moe(const MoeArgs& args) override {
    expert_hidden_.clear();
    for (size_t t = 0; t < residual_.size(); ++t) {
      Vec all;
      for (int k = 0; k < dims_.topk; ++k) {
        const auto expert = static_cast<int64_t>(expert_ids_[t][static_cast<size_t>(k)]);
        const Vec h = linear(at(args.layer[WeightRole::kGateUp]), at(args.layer[WeightRole::kGateUpBias]), normed_[t],
                             expert * 2 * dims_.inter, 2 * int64_t{dims_.inter});
        const Vec u = swiglu(h);
        const Vec y = linear(at(args.layer[WeightRole::kDown]), at(args.layer[WeightRole::kDownBias]), u,
                             expert * dims_.hidden, dims_.hidden);
        add(residual_[t], y, expert_weights_[t][static_cast<size_t>(k)]);
        all.insert(all.end(), u.begin(), u.end());
      }
      expert_hidden_.push_back(std::move(all));
    }
  }

  void logits(const LogitsArgs& args) override {
    logits_.clear();
    for (const int32_t t : args.tokens) {
      const Vec x = rmsnorm(residual_[static_cast<size_t>(t)], at(args.norm));
      Vec y(static_cast<size_t>(dims_.vocab));
      for (int64_t r = 0; r < dims_.vocab; ++r) {
        for (int64_t c = 0; c < dims_.hidden; ++c)
          y[static_cast<size_t>(r)] += at(args.table)[r * dims_.hidden + c] * x[static_cast<size_t>(c)];
      }
      logits_.push_back(std::move(y));
    }
  }

  Ticket sample(const SampleArgs& args) override {
    check(args.rows.size() == logits_.size(), "one sample row per row of logits");
    std::vector<int32_t> tokens;
    for (size_t r = 0; r < args.rows.size(); ++r) {
      std::vector<float> row(logits_[r].begin(), logits_[r].end());
      check_logits(row);
      tokens.push_back(sample_row(row, args.rows[r]));
    }
    sampled_ = std::move(tokens);
    return ++ticket_;
  }

  [[nodiscard]] std::vector<int32_t> wait(Ticket ticket) override {
    check(ticket == ticket_, "a ticket is read before the next is drawn");
    return std::exchange(sampled_, {});
  }

  [[nodiscard]] SlotData peek(Slot slot) override {
    const std::vector<Vec>& rows = slot_rows(slot);
    SlotData data{{static_cast<int64_t>(rows.size()), rows.empty() ? 0 : static_cast<int64_t>(rows[0].size())}, {}};
    for (const Vec& row : rows) data.values.insert(data.values.end(), row.begin(), row.end());
    if (slot == Slot::kExpertHidden) data.shape = {data.shape[0], dims_.topk, dims_.inter};
    return data;
  }

 private:
  struct LayerKv {
    Vec keys, values;  // [slots, kv_heads * head_dim]; NaN where never written
  };

  [[nodiscard]] const Matrix& at(WeightHandle handle) const { return weights_[static_cast<size_t>(handle.idx)]; }

  [[nodiscard]] Vec rmsnorm(const Vec& x, const Matrix& norm) const {
    double sum = 0;
    for (const double v : x) sum += v * v;
    const double inverse = 1 / std::sqrt(sum / static_cast<double>(x.size()) + config_.rms_eps);
    Vec y(x.size());
    for (size_t d = 0; d < x.size(); ++d) y[d] = x[d] * inverse * norm[static_cast<int64_t>(d)];
    return y;
  }

  // The angle is rounded to float as the model's authors do; past 2^13 positions the difference is visible.
  void rope(Vec& x, int32_t position) const {
    const auto half = static_cast<size_t>(dims_.head_dim) / 2;
    for (size_t head = 0; head < x.size(); head += 2 * half) {
      for (size_t d = 0; d < half; ++d) {
        const float angle = static_cast<float>(position) * config_.rope_inv_freq[d];
        const double c = std::cos(double{angle}) * config_.rope_concentration;
        const double s = std::sin(double{angle}) * config_.rope_concentration;
        const double x1 = x[head + d], x2 = x[head + d + half];
        x[head + d] = x1 * c - x2 * s;
        x[head + d + half] = x2 * c + x1 * s;
      }
    }
  }

  void attend_head(const AttendArgs& args, size_t t, int head, const std::vector<int64_t>& slots) {
    const LayerKv& kv = kv_[static_cast<size_t>(args.layer_idx)];
    const int dim = dims_.head_dim, kv_head = head / (dims_.heads / dims_.kv_heads);
    const double* q = q_[t].data() + int64_t{head} * dim;
    Vec score;
    for (const int64_t slot : slots) {
      const double* k = kv.keys.data() + slot * dims_.kv_width() + int64_t{kv_head} * dim;
      double dot = 0;
      for (int d = 0; d < dim; ++d) dot += q[d] * k[d];
      score.push_back(dot / std::sqrt(dim));
    }
    double top = *std::max_element(score.begin(), score.end());
    const double sink = at(args.layer[WeightRole::kSinks])[head];
    if (args.sinks) top = std::max(top, sink);
    double sum = args.sinks ? std::exp(sink - top) : 0;
    for (double& s : score) sum += s = std::exp(s - top);
    double* out = attn_[t].data() + int64_t{head} * dim;
    for (size_t i = 0; i < slots.size(); ++i) {
      const double* v = kv.values.data() + slots[i] * dims_.kv_width() + int64_t{kv_head} * dim;
      for (int d = 0; d < dim; ++d) out[d] += score[i] / sum * v[d];
    }
  }

  [[nodiscard]] Vec swiglu(const Vec& h) const {
    constexpr double kAlpha = 1.702;  // torch/model.py swiglu
    const double limit = config_.swiglu_limit;
    Vec u(h.size() / 2);
    for (size_t i = 0; i < u.size(); ++i) {
      const double glu = std::min(h[2 * i], limit), linear_part = std::clamp(h[2 * i + 1], -limit, limit);
      u[i] = glu / (1 + std::exp(-kAlpha * glu)) * (linear_part + 1);
    }
    return u;
  }

  static void add(Vec& x, const Vec& y, double weight) {
    for (size_t d = 0; d < x.size(); ++d) x[d] += weight * y[d];
  }

  [[nodiscard]] const std::vector<Vec>& slot_rows(Slot slot) const {
    switch (slot) {
      case Slot::kResidual: return residual_;
      case Slot::kNormed: return normed_;
      case Slot::kQ: return q_;
      case Slot::kAttn: return attn_;
      case Slot::kRouterLogits: return router_logits_;
      case Slot::kExpertIds: return expert_ids_;
      case Slot::kExpertWeights: return expert_weights_;
      case Slot::kExpertHidden: return expert_hidden_;
      case Slot::kLogits: return logits_;
    }
    return residual_;
  }

  const BackendConfig config_;
  const Dims& dims_ = config_.dims;
  std::vector<Matrix> weights_;
  std::vector<LayerKv> kv_;  // per layer
  std::vector<Vec> residual_, normed_, q_, attn_, router_logits_, expert_ids_, expert_weights_, expert_hidden_, logits_;
  std::vector<int32_t> sampled_;
  Ticket ticket_ = 0;
};

}  // namespace

std::unique_ptr<Backend> make_reference_backend(const BackendConfig& config) {
  return std::make_unique<ReferenceBackend>(config);
}

}  // namespace nibble::backend
