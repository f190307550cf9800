#include "backend/cpu/cpu_backend.h"

#include "backend/cpu/attention.h"
#include "backend/cpu/kv_cache.h"
#include "backend/cpu/linear.h"
#include "base/error.h"
#include "base/thread_pool.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

namespace nibble::backend {
namespace {

using cpu::Matrix;

// What one verb multiplies: out[i][row] (=|+=) w[row] · x[i] + bias[row].
struct LinearArgs {
  const Matrix& weight;
  std::span<const float> bias;   // empty: none
  TensorView<const float, 2> x;  // [tokens, cols]
  TensorView<float, 2> out;      // [tokens, rows]
  enum class Store { kSet, kAdd } store = Store::kSet;
};

class CpuBackend final : public Backend {
 public:
  CpuBackend(const BackendConfig& config, const CpuOptions& options) : config_(config), pool_(options.threads) {
    const Dims& d = dims_;
    if (d.heads / d.kv_heads > cpu::kMaxGroup) {
      throw Error(Code::kUnsupported, "[cpu] want at most {} query heads per kv head, found {} / {}", cpu::kMaxGroup,
                  d.heads, d.kv_heads);
    }
    for (const LayerKind kind : config_.layer_kinds) {
      kv_.emplace_back(dims_, config_.kv_pages[static_cast<size_t>(kind)], options.kv_dtype);
    }
    const auto make = [&](int64_t rows, int64_t width) {
      return std::vector<float>(static_cast<size_t>(rows * width));
    };
    const int64_t tokens = config_.max_tokens;
    residual_ = make(tokens, d.hidden);
    normed_ = make(std::max<int64_t>(tokens, config_.max_rows), d.hidden);
    q_ = make(tokens, d.q_width());
    k_ = make(tokens, d.kv_width());
    v_ = make(tokens, d.kv_width());
    attn_ = make(tokens, d.q_width());
    router_logits_ = make(tokens, d.experts);
    expert_weights_ = make(tokens, d.topk);
    expert_hidden_ = make(tokens, int64_t{d.topk} * d.inter);
    logits_ = make(config_.max_rows, d.vocab);
    expert_ids_.resize(static_cast<size_t>(tokens * d.topk));
    expert_order_.resize(static_cast<size_t>(d.experts));
    routed_.resize(static_cast<size_t>(d.experts));
    thread_scratch_floats_ = std::max({int64_t{d.hidden}, int64_t{d.q_width()},
                                       2 * int64_t{std::max(d.hidden, d.inter)}, cpu::attend_scratch_floats(d)});
    scratch_ = make(pool_.threads(), thread_scratch_floats_);
  }

  [[nodiscard]] std::string_view name() const override { return "cpu"; }

  WeightHandle upload(const HostWeight& weight) override {
    const bool experts = weight.role == WeightRole::kGateUp || weight.role == WeightRole::kDown;
    if (weight.format != (experts ? WeightFormat::kMxfp4 : WeightFormat::kBf16) || config_.dense.of(weight.role)) {
      throw Error(Code::kUnsupported, "[cpu] {}: want {}, found {}", backend::name_of(weight.role),
                  experts ? "mxfp4" : "bf16", backend::name_of(config_.dense.of(weight.role).value_or(weight.format)));
    }
    const bool vector = weight.values.shape.size() == 1 || weight.role == WeightRole::kGateUpBias ||
                        weight.role == WeightRole::kDownBias;
    Uploaded uploaded{Matrix(weight, weight.scales.bytes.empty() ? weight.values.shape.back() : columns(weight)), {}};
    if (vector) {  // small, read often: decoded once
      const int64_t count =
          std::accumulate(weight.values.shape.begin(), weight.values.shape.end(), int64_t{1}, std::multiplies<>());
      uploaded.decoded.resize(static_cast<size_t>(count));
      cpu::decode_bf16(reinterpret_cast<const Bf16*>(weight.values.bytes.data()), count, uploaded.decoded.data());
    }
    weights_.push_back(std::move(uploaded));
    return {static_cast<int32_t>(weights_.size()) - 1};
  }

  void embed(const EmbedArgs& args) override {
    tokens_ = static_cast<int64_t>(args.ids.size());
    check(tokens_ <= config_.max_tokens, "a step holds at most max_tokens tokens");
    for (int64_t t = 0; t < tokens_; ++t) {
      const int32_t named = args.ids[static_cast<size_t>(t)];
      const int32_t id = named >= 0 ? named : std::max(0, sampled_.back()[static_cast<size_t>(-1 - named)].token);
      matrix(args.table).decode_row(id, residual_.data() + t * dims_.hidden);
    }
  }

  void attn_in(const AttnInArgs& args) override {
    const LayerWeights& w = args.layer;
    for (int64_t t = 0; t < tokens_; ++t)
      rmsnorm(residual_.data() + t * dims_.hidden, w[WeightRole::kAttnNorm], normed_.data() + t * dims_.hidden);
    const TensorView<const float, 2> x{normed_.data(), {tokens_, dims_.hidden}};
    linear({matrix(w[WeightRole::kQ]), decoded(w[WeightRole::kQBias]), x, {q_.data(), {tokens_, dims_.q_width()}}});
    linear({matrix(w[WeightRole::kK]), decoded(w[WeightRole::kKBias]), x, {k_.data(), {tokens_, dims_.kv_width()}}});
    linear({matrix(w[WeightRole::kV]), decoded(w[WeightRole::kVBias]), x, {v_.data(), {tokens_, dims_.kv_width()}}});
    cpu::KvCache& cache = kv_[static_cast<size_t>(args.layer_idx)];
    pool_.parallel_for(tokens_, [&](IndexRange range) {
      for (int64_t t = range.begin; t < range.end; ++t) {
        const int32_t position = args.positions[static_cast<size_t>(t)];
        rope(q_.data() + t * dims_.q_width(), dims_.heads, position);
        rope(k_.data() + t * dims_.kv_width(), dims_.kv_heads, position);
        cache.write(args.kv_slots[static_cast<size_t>(t)], k_.data() + t * dims_.kv_width(),
                    v_.data() + t * dims_.kv_width());
      }
    });
  }

  void attend(const AttendArgs& args) override {
    const std::span<const float> sinks = decoded(args.layer[WeightRole::kSinks]);
    const int group = dims_.heads / dims_.kv_heads;
    for (size_t r = 0; r < args.rows.size(); ++r) {
      const Row& row = args.rows[r];
      const auto pages = args.pages.ids.subspan(r * static_cast<size_t>(args.pages.pages_per_row),
                                                static_cast<size_t>(args.pages.pages_per_row));
      // Interleaved, so that the later and longer tokens of a prompt spread over the threads.
      const int64_t items = int64_t{row.tokens} * dims_.kv_heads, threads = pool_.threads();
      pool_.parallel_for(threads, [&](IndexRange range) {
        for (int64_t lane = range.begin; lane < range.end; ++lane) {
          for (int64_t item = lane; item < items; item += threads) {
            const int64_t i = item / dims_.kv_heads, position = row.context - row.tokens + i;
            const int kv_head = static_cast<int>(item % dims_.kv_heads);
            const int64_t at = (row.first_token + i) * dims_.q_width() + int64_t{kv_head} * group * dims_.head_dim;
            cpu::attend_group(
                {.cache = kv_[static_cast<size_t>(args.layer_idx)],
                 .dims = dims_,
                 .pages = pages,
                 .kv_head = kv_head,
                 .first =
                     args.kind == LayerKind::kSliding ? std::max<int64_t>(0, position - dims_.sliding_window + 1) : 0,
                 .last = position,
                 .sinks = args.sinks ? sinks.subspan(static_cast<size_t>(kv_head * group), static_cast<size_t>(group))
                                     : std::span<const float>(),
                 .q = q_.data() + at,
                 .out = attn_.data() + at,
                 .scratch = scratch(range.thread_idx)});
          }
        }
      });
    }
  }

  void attn_out(const AttnOutArgs& args) override {
    linear({matrix(args.layer[WeightRole::kO]),
            decoded(args.layer[WeightRole::kOBias]),
            {attn_.data(), {tokens_, dims_.q_width()}},
            {residual_.data(), {tokens_, dims_.hidden}},
            LinearArgs::Store::kAdd});
  }

  void route(const RouteArgs& args) override {
    const LayerWeights& w = args.layer;
    for (int64_t t = 0; t < tokens_; ++t)
      rmsnorm(residual_.data() + t * dims_.hidden, w[WeightRole::kMlpNorm], normed_.data() + t * dims_.hidden);
    linear({matrix(w[WeightRole::kRouter]),
            decoded(w[WeightRole::kRouterBias]),
            {normed_.data(), {tokens_, dims_.hidden}},
            {router_logits_.data(), {tokens_, dims_.experts}}});
    for (auto& list : routed_) list.clear();
    for (int64_t t = 0; t < tokens_; ++t) {
      const float* g = router_logits_.data() + t * dims_.experts;
      int32_t* ids = expert_ids_.data() + t * dims_.topk;
      float* weights = expert_weights_.data() + t * dims_.topk;
      std::iota(expert_order_.begin(), expert_order_.end(), 0);
      std::partial_sort_copy(expert_order_.begin(), expert_order_.end(), ids, ids + dims_.topk,
                             [&](int32_t a, int32_t b) { return g[a] > g[b] || (g[a] == g[b] && a < b); });
      float sum = 0;
      for (int k = 0; k < dims_.topk; ++k) sum += weights[k] = std::exp(g[ids[k]] - g[ids[0]]);
      for (int k = 0; k < dims_.topk; ++k) {
        weights[k] /= sum;
        routed_[static_cast<size_t>(ids[k])].push_back({static_cast<int32_t>(t), k});
      }
    }
  }

  void moe(const MoeArgs& args) override {
    hit_.clear();
    for (int e = 0; e < dims_.experts; ++e) {
      if (!routed_[static_cast<size_t>(e)].empty()) hit_.push_back(e);
    }
    gate_up(args.layer);
    down(args.layer);
  }

  void logits(const LogitsArgs& args) override {
    logit_rows_ = static_cast<int64_t>(args.tokens.size());
    check(logit_rows_ <= config_.max_rows, "a step holds at most max_rows rows of logits");
    for (int64_t r = 0; r < logit_rows_; ++r) {
      rmsnorm(residual_.data() + int64_t{args.tokens[static_cast<size_t>(r)]} * dims_.hidden, args.norm,
              normed_.data() + r * dims_.hidden);
    }
    linear({matrix(args.table),
            {},
            {normed_.data(), {logit_rows_, dims_.hidden}},
            {logits_.data(), {logit_rows_, dims_.vocab}}});
  }

  Ticket sample(const SampleArgs& args) override {
    check(static_cast<int64_t>(args.rows.size()) == logit_rows_, "one sample row per row of logits");
    std::vector<Drawn> drawn(args.rows.size());
    pool_.parallel_for(logit_rows_, [&](IndexRange range) {
      for (int64_t r = range.begin; r < range.end; ++r) {
        drawn[static_cast<size_t>(r)] = draw(logits_row(r), args.rows[static_cast<size_t>(r)]);
      }
    });
    sampled_ = {std::move(sampled_.back()), std::move(drawn)};
    return ++ticket_;
  }

  [[nodiscard]] std::vector<Drawn> wait(Ticket ticket) override {
    check(ticket == ticket_ || ticket == ticket_ - 1, "two tickets may be outstanding");
    return sampled_[ticket == ticket_ ? 1 : 0];
  }

  [[nodiscard]] SlotData peek(Slot slot) override {
    const auto copy = [&](const auto& values, Shape shape) {
      const int64_t count = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
      return SlotData{std::move(shape), std::vector<float>(values.begin(), values.begin() + count)};
    };
    switch (slot) {
      case Slot::kResidual: return copy(residual_, {tokens_, dims_.hidden});
      case Slot::kNormed: return copy(normed_, {tokens_, dims_.hidden});
      case Slot::kQ: return copy(q_, {tokens_, dims_.q_width()});
      case Slot::kAttn: return copy(attn_, {tokens_, dims_.q_width()});
      case Slot::kRouterLogits: return copy(router_logits_, {tokens_, dims_.experts});
      case Slot::kExpertIds: return copy(expert_ids_, {tokens_, dims_.topk});
      case Slot::kExpertWeights: return copy(expert_weights_, {tokens_, dims_.topk});
      case Slot::kExpertHidden: return copy(expert_hidden_, {tokens_, dims_.topk, dims_.inter});
      case Slot::kLogits: return copy(logits_, {logit_rows_, dims_.vocab});
    }
    return {};
  }

 private:
  struct Uploaded {
    Matrix matrix;
    std::vector<float> decoded;  // of vectors
  };
  struct Routed {
    int32_t token, k;
  };

  [[nodiscard]] int64_t columns(const HostWeight& weight) const {
    return weight.role == WeightRole::kGateUp ? dims_.hidden : dims_.inter;
  }
  [[nodiscard]] const Matrix& matrix(WeightHandle handle) const {
    return weights_[static_cast<size_t>(handle.idx)].matrix;
  }
  [[nodiscard]] std::span<const float> decoded(WeightHandle handle) const {
    return weights_[static_cast<size_t>(handle.idx)].decoded;
  }
  [[nodiscard]] std::span<float> logits_row(int64_t r) {
    return {logits_.data() + r * dims_.vocab, static_cast<size_t>(dims_.vocab)};
  }
  [[nodiscard]] float* scratch(int thread_idx) { return scratch_.data() + thread_idx * thread_scratch_floats_; }

  void rmsnorm(const float* x, WeightHandle norm, float* y) const {
    double sum = 0;
    for (int d = 0; d < dims_.hidden; ++d) sum += double{x[d]} * x[d];
    const float inverse = 1.0f / std::sqrt(static_cast<float>(sum / dims_.hidden) + config_.rms_eps);
    const std::span<const float> scale = decoded(norm);
    for (int d = 0; d < dims_.hidden; ++d) y[d] = x[d] * inverse * scale[static_cast<size_t>(d)];
  }

  void rope(float* x, int heads, int32_t position) const {
    const int half = dims_.head_dim / 2;
    for (int d = 0; d < half; ++d) {
      const float angle = static_cast<float>(position) * config_.rope_inv_freq[static_cast<size_t>(d)];
      const float c = std::cos(angle) * config_.rope_concentration, s = std::sin(angle) * config_.rope_concentration;
      for (int h = 0; h < heads; ++h) {
        float& x1 = x[h * dims_.head_dim + d];
        float& x2 = x[h * dims_.head_dim + d + half];
        const float first = x1 * c - x2 * s;
        x2 = x2 * c + x1 * s;
        x1 = first;
      }
    }
  }

  void linear(const LinearArgs& args) {
    const int64_t tokens = args.x.shape[0], rows = args.out.shape[1];
    rows_in_.clear();
    for (int64_t t = 0; t < tokens; ++t) rows_in_.push_back(args.x[t].data);
    pool_.parallel_for(rows, [&](IndexRange range) {
      const std::span<float> row(scratch(range.thread_idx), static_cast<size_t>(args.weight.cols()));
      for (int64_t r = range.begin; r < range.end; ++r) {
        args.weight.decode_row(r, row.data());
        const float bias = args.bias.empty() ? 0.0f : args.bias[static_cast<size_t>(r)];
        cpu::dot_all(row, rows_in_, [&](int64_t t, float sum) {
          float& out = args.out[t][r];
          out = sum + bias + (args.store == LinearArgs::Store::kAdd ? out : 0.0f);
        });
      }
    });
  }

  // expert_hidden[t, k] = swiglu(W1[e] · normed[t] + b1[e]) for every routed (t, k), one pass over the hit experts.
  void gate_up(const LayerWeights& w) {
    const Matrix& weight = matrix(w[WeightRole::kGateUp]);
    const std::span<const float> bias = decoded(w[WeightRole::kGateUpBias]);
    const int64_t inter = dims_.inter;
    pool_.parallel_for(static_cast<int64_t>(hit_.size()) * inter, [&](IndexRange range) {
      const std::span<float> row(scratch(range.thread_idx), static_cast<size_t>(dims_.hidden));
      for (int64_t item = range.begin; item < range.end; ++item) {
        const int64_t expert = hit_[static_cast<size_t>(item / inter)], i = item % inter;
        const std::vector<Routed>& list = routed_[static_cast<size_t>(expert)];
        const auto each = [&](int64_t r, const auto& store) {
          weight.decode_row(expert * 2 * inter + r, row.data());
          const float b = bias[static_cast<size_t>(expert * 2 * inter + r)];
          dot_routed(
              row, list, [&](const Routed& at) { return normed_.data() + int64_t{at.token} * dims_.hidden; },
              [&](const Routed& at, float sum) {
                store(expert_hidden_[static_cast<size_t>((int64_t{at.token} * dims_.topk + at.k) * inter + i)],
                      sum + b);
              });
        };
        each(2 * i, [](float& u, float gate) { u = gate; });
        each(2 * i + 1, [&](float& u, float up) { u = swiglu(u, up); });
      }
    });
  }

  // residual[t] += weight[t, k] * (W2[e] · expert_hidden[t, k] + b2[e]); a token adds its experts by rising id.
  void down(const LayerWeights& w) {
    const Matrix& weight = matrix(w[WeightRole::kDown]);
    const std::span<const float> bias = decoded(w[WeightRole::kDownBias]);
    pool_.parallel_for(dims_.hidden, [&](IndexRange range) {
      const std::span<float> row(scratch(range.thread_idx), static_cast<size_t>(dims_.inter));
      for (int64_t r = range.begin; r < range.end; ++r) {
        for (const int expert : hit_) {
          const int64_t weight_row = int64_t{expert} * dims_.hidden + r;
          weight.decode_row(weight_row, row.data());
          dot_routed(
              row, routed_[static_cast<size_t>(expert)],
              [&](const Routed& at) {
                return expert_hidden_.data() + (int64_t{at.token} * dims_.topk + at.k) * dims_.inter;
              },
              [&](const Routed& at, float sum) {
                const float share = expert_weights_[static_cast<size_t>(int64_t{at.token} * dims_.topk + at.k)];
                residual_[static_cast<size_t>(int64_t{at.token} * dims_.hidden + r)] +=
                    share * (sum + bias[static_cast<size_t>(weight_row)]);
              });
        }
      }
    });
  }

  template <class In, class Out>
  static void dot_routed(std::span<const float> row, const std::vector<Routed>& list, const In& in, const Out& out) {
    std::array<const float*, cpu::kDotTokens> x{};
    for (size_t i = 0; i < list.size(); i += cpu::kDotTokens) {
      const size_t count = std::min<size_t>(cpu::kDotTokens, list.size() - i);
      for (size_t j = 0; j < count; ++j) x[j] = in(list[i + j]);
      cpu::dot_all(row, std::span(x).first(count),
                   [&](int64_t j, float sum) { out(list[i + static_cast<size_t>(j)], sum); });
    }
  }

  [[nodiscard]] float swiglu(float gate, float up) const {
    constexpr float kAlpha = 1.702f;  // torch/model.py swiglu
    const float glu = std::min(gate, config_.swiglu_limit);
    const float linear_part = std::clamp(up, -config_.swiglu_limit, config_.swiglu_limit);
    return glu / (1.0f + std::exp(-kAlpha * glu)) * (linear_part + 1.0f);
  }

  const BackendConfig config_;
  const Dims& dims_ = config_.dims;
  ThreadPool pool_;
  std::vector<Uploaded> weights_;
  std::vector<cpu::KvCache> kv_;  // per layer
  std::vector<float> residual_, normed_, q_, k_, v_, attn_, router_logits_, expert_weights_, expert_hidden_, logits_;
  std::vector<int32_t> expert_ids_, expert_order_;
  std::array<std::vector<Drawn>, 2> sampled_;  // of the last two tickets
  std::vector<std::vector<Routed>> routed_;    // per expert: who uses it in this step
  std::vector<int> hit_;                       // experts with anybody
  std::vector<const float*> rows_in_;
  std::vector<float> scratch_;  // per thread
  int64_t thread_scratch_floats_ = 0;
  int64_t tokens_ = 0, logit_rows_ = 0;
  Ticket ticket_ = 0;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(const BackendConfig& config, const CpuOptions& options) {
  return std::make_unique<CpuBackend>(config, options);
}

}  // namespace nibble::backend
