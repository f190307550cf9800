#include "backend/reference/reference_backend.h"

#include "backend/kv_dtype.h"
#include "backend/sliced_weight.h"
#include "base/dtype.h"
#include "base/error.h"
#include "base/mx.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <functional>
#include <numbers>
#include <numeric>
#include <optional>
#include <utility>

namespace nibble::backend {
namespace {

using Vec = std::vector<double>;

// Every code's value. Looked up: decoding branches on bits that no predictor knows, which was most of a step's time.
template <MxFormat format>
constexpr auto kValues = [] {
  std::array<float, size_t{1} << mx_element_bits(format)> values{};
  for (size_t code = 0; code < values.size(); ++code)
    values[code] = mx_decode_element(format, static_cast<uint8_t>(code));
  return values;
}();

// An uploaded tensor, read one value at a time; requantised first where `as` says so.
class Matrix {
 public:
  Matrix(const HostWeight& weight, std::optional<WeightFormat> as, bool as_on_a_card) : weight_(weight) {
    if (as) requantise(*as);
    rounds_ = !as && as_on_a_card && weight.format != WeightFormat::kMxfp4 && weight.format != WeightFormat::kGgmlMxfp4;
  }

  bool has_odd = false;  // gate_up's even rows; the next matrix has the odd ones

  // Element `idx` in row-major order of the logical (unpacked) tensor.
  [[nodiscard]] double operator[](int64_t idx) const {
    return rounds_ ? Bf16::from_float(static_cast<float>(stored(idx))).to_float() : stored(idx);
  }

 private:
  [[nodiscard]] double stored(int64_t idx) const {
    const auto* data = reinterpret_cast<const uint8_t*>(weight_.values.bytes.data());
    const int64_t block = idx / kMxBlock;
    const auto j = static_cast<int>(idx % kMxBlock);
    switch (weight_.format) {
      case WeightFormat::kBf16: return reinterpret_cast<const Bf16*>(data)[idx].to_float();
      case WeightFormat::kF16: return f16_at(data + 2 * idx);
      case WeightFormat::kF32: return reinterpret_cast<const float*>(data)[idx];
      case WeightFormat::kMxfp4: return mx_value<MxFormat::kMxfp4>(block, j);
      case WeightFormat::kMxfp8: return mx_value<MxFormat::kMxfp8E4m3>(block, j);
      case WeightFormat::kGgmlMxfp4: {
        const uint8_t* b = data + block * 17;
        const int code = j < 16 ? b[1 + j] & 15 : b[1 + j - 16] >> 4;
        return double{kValues<MxFormat::kMxfp4>[static_cast<size_t>(code)]} * double{E8m0{b[0]}.to_float()};
      }
      case WeightFormat::kGgmlQ8: return f16_at(data + block * 34) * static_cast<int8_t>(data[block * 34 + 2 + j]);
    }
    return NAN;
  }
  static double f16_at(const uint8_t* bytes) {
    const int bits = bytes[0] | bytes[1] << 8, exponent = bits >> 10 & 31, fraction = bits & 1023;
    double value = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    if (exponent == 31) value = fraction == 0 ? INFINITY : NAN;
    return bits >> 15 == 0 ? value : -value;
  }
  template <MxFormat format>
  [[nodiscard]] double mx_value(int64_t block, int j) const {
    const auto* data = reinterpret_cast<const uint8_t*>(weight_.values.bytes.data());
    const uint8_t code = mx_element_code(format, data + block * mx_block_bytes(format), j);
    const E8m0 scale{static_cast<uint8_t>(weight_.scales.bytes[static_cast<size_t>(block)])};
    return double{kValues<format>[code]} * double{scale.to_float()};
  }

  void requantise(WeightFormat as) {
    const MxFormat format = as == WeightFormat::kMxfp4 ? MxFormat::kMxfp4 : MxFormat::kMxfp8E4m3;
    const Shape& shape = weight_.values.shape;  // blocks have one dimension more
    int64_t blocks = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>()) / shape.back();
    if (weight_.values.dtype != DType::kU8) blocks = blocks * shape.back() / kMxBlock;
    std::vector<float> values(static_cast<size_t>(blocks * kMxBlock));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>((*this)[static_cast<int64_t>(i)]);
    codes_.resize(static_cast<size_t>(blocks * mx_block_bytes(format)));
    scales_.resize(static_cast<size_t>(blocks));
    mx_quantize(values, scale_rule(as), {format, codes_, scales_});
    weight_.format = as;
    weight_.values.bytes = std::as_bytes(std::span(codes_));
    weight_.scales.bytes = std::as_bytes(std::span(scales_));
  }

  HostWeight weight_;
  bool rounds_ = false;
  std::vector<uint8_t> codes_, scales_;  // of a requantised tensor
};

// y[rows] = W[first_row.., cols] · x + b; without b where that is null.
Vec linear(const Matrix& w, const Matrix* bias, const Vec& x, int64_t first_row, int64_t rows) {
  Vec y(static_cast<size_t>(rows));
  const auto cols = static_cast<int64_t>(x.size());
  for (int64_t r = 0; r < rows; ++r) {
    double sum = bias == nullptr ? 0 : (*bias)[first_row + r];
    for (int64_t c = 0; c < cols; ++c) sum += w[(first_row + r) * cols + c] * x[static_cast<size_t>(c)];
    y[static_cast<size_t>(r)] = sum;
  }
  return y;
}

class ReferenceBackend final : public Backend {
 public:
  ReferenceBackend(const BackendConfig& config, const RunConfig& run)
      : config_(config), run_(run), kv_(config.layer_kinds.size()) {
    for (size_t l = 0; l < kv_.size(); ++l) {
      const int64_t slots = int64_t{config.kv_pages[static_cast<size_t>(config.layer_kinds[l])]} * kPageTokens;
      kv_[l].keys.assign(static_cast<size_t>(slots * dims_.kv_width()), NAN);
      kv_[l].values = kv_[l].keys;
    }
  }

  [[nodiscard]] std::string_view name() const override { return "reference"; }

  WeightHandle upload(const HostWeight& whole) override {
    SlicedWeight part = sliced(in_q8(whole, config_.dense));
    const HostWeight& weight = part.weight;
    for (Buffer& copy : part.copies) copies_.push_back(std::move(copy));
    weights_.emplace_back(weight, config_.dense.in_mx(weight.role),
                          run_.backend == BackendKind::kCuda && config_.dense.of(weight.role) != WeightFormat::kGgmlQ8);
    const int32_t own = static_cast<int32_t>(weights_.size()) - 1;
    if (whole.odd.bytes.empty()) return {own};
    weights_.emplace_back(odd_rows(weight), std::nullopt, run_.backend == BackendKind::kCuda);  // odd_of
    weights_[static_cast<size_t>(own)].has_odd = true;
    return {own};
  }

  void copy_page(const PageCopy& copy) override {
    const int64_t values = int64_t{kPageTokens} * dims_.kv_width();
    for (size_t l = 0; l < kv_.size(); ++l) {
      if (config_.layer_kinds[l] != copy.kind) continue;
      for (auto* of : {&kv_[l].keys, &kv_[l].values})
        std::copy_n(of->begin() + copy.from * values, values, of->begin() + copy.to * values);
    }
  }

  void embed(const EmbedArgs& args) override {
    residual_.clear();
    for (const int32_t named : args.ids) {
      const int32_t id = named >= 0 ? named : std::max(0, sampled_.back()[static_cast<size_t>(-1 - named)].token);
      Vec row(static_cast<size_t>(dims_.hidden));
      for (int d = 0; d < dims_.hidden; ++d)
        row[static_cast<size_t>(d)] = at(args.table)[int64_t{id} * dims_.hidden + d];
      residual_.push_back(std::move(row));
    }
    delta_.assign(residual_.size(), Vec(static_cast<size_t>(dims_.hidden)));
    if (!config_.head) return;
    embedding_ = std::exchange(residual_, {});
    for (size_t t = 0; t < args.ids.size(); ++t)
      residual_.push_back(args.ids[t] < 0 ? features_[static_cast<size_t>(-1 - args.ids[t])] : feature(args, t));
  }

  void attn_in(const AttnInArgs& args) override {
    add_delta();
    normed_.clear();
    qkv_.clear();
    for (size_t t = 0; t < residual_.size(); ++t) {
      const Matrix& norm = at(args.layer[WeightRole::kAttnNorm]);
      if (const WeightHandle hidden_norm = args.layer[WeightRole::kHiddenNorm]; hidden_norm.idx >= 0) {
        const Vec read = rmsnorm(residual_[t], at(hidden_norm));
        normed_.push_back(rmsnorm(embedding_[t], norm));
        normed_[t].insert(normed_[t].end(), read.begin(), read.end());
        if (config_.head->norm_before_residual) residual_[t] = read;
      } else {
        normed_.push_back(dense_input(WeightRole::kQ, rmsnorm(residual_[t], norm)));
      }
      const auto project = [&](WeightRole weight, WeightRole bias, int rows) {
        return linear(at(args.layer[weight]), &at(args.layer[bias]), normed_[t], 0, rows);
      };
      Vec qkv = project(WeightRole::kQ, WeightRole::kQBias, dims_.q_width());
      for (const Vec& more : {project(WeightRole::kK, WeightRole::kKBias, dims_.kv_width()),
                              project(WeightRole::kV, WeightRole::kVBias, dims_.kv_width())})
        qkv.insert(qkv.end(), more.begin(), more.end());
      qkv_.push_back(std::move(qkv));
    }
  }

  void attend(const AttendArgs& args) override {
    q_.clear();
    for (size_t t = 0; t < qkv_.size(); ++t) {
      const auto q_end = qkv_[t].begin() + dims_.q_width(), k_end = q_end + dims_.kv_width();
      Vec q(qkv_[t].begin(), q_end), k(q_end, k_end), v(k_end, qkv_[t].end());
      rope(q, args.positions[t]);
      rope(k, args.positions[t]);
      if (run_.fp8_attention()) round_heads(KvDtype::kE4m3, q);
      round_heads(run_.kv_type(), k);
      round_heads(run_.kv_type(), v);
      const auto slot = int64_t{args.kv_slots[t]} * dims_.kv_width();
      LayerKv& kv = kv_[static_cast<size_t>(args.layer_idx)];
      std::copy(k.begin(), k.end(), kv.keys.begin() + slot);
      std::copy(v.begin(), v.end(), kv.values.begin() + slot);
      q_.push_back(std::move(q));
    }
    attn_.assign(q_.size(), Vec(static_cast<size_t>(dims_.q_width())));
    for (size_t r = 0; r < args.rows.size(); ++r) {
      const Row& row = args.rows[r];
      for (int i = 0; i < row.tokens; ++i) {
        const int64_t position = row.context - row.tokens + i;
        const int64_t window = dims_.window_of(args.kind);
        const int64_t first = window > 0 ? std::max<int64_t>(0, position - window + 1) : 0;
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
    for (size_t t = 0; t < residual_.size(); ++t)
      delta_[t] = linear(at(args.layer[WeightRole::kO]), &at(args.layer[WeightRole::kOBias]),
                         dense_input(WeightRole::kO, attn_[t]), 0, dims_.hidden);
  }

  void route(const RouteArgs& args) override {
    add_delta();
    normed_.clear();
    router_logits_.clear();
    expert_ids_.clear();
    expert_weights_.clear();
    for (const Vec& x : residual_) {
      normed_.push_back(rmsnorm(x, at(args.layer[WeightRole::kMlpNorm])));
      if (config_.head) {
        expert_ids_.push_back({0});
        expert_weights_.push_back({1});
        continue;
      }
      const Vec g = linear(at(args.layer[WeightRole::kRouter]), &at(args.layer[WeightRole::kRouterBias]),
                           normed_.back(), 0, dims_.experts);
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
      delta_[t].assign(static_cast<size_t>(dims_.hidden), 0);
      for (int k = 0; k < dims_.topk; ++k) {
        const int64_t expert = static_cast<int64_t>(expert_ids_[t][static_cast<size_t>(k)]) - own_experts_.first;
        if (expert < 0 || expert >= own_experts_.count) {
          all.resize(all.size() + static_cast<size_t>(dims_.inter));
          continue;
        }
        const Vec h = gate_up(args.layer, expert, rounded(normed_[t]));
        const Vec exact = swiglu(h), u = rounded(exact);
        const Vec y = linear(at(args.layer[WeightRole::kDown]), &at(args.layer[WeightRole::kDownBias]), u,
                             expert * dims_.hidden, dims_.hidden);
        add(delta_[t], y, expert_weights_[t][static_cast<size_t>(k)]);
        const Vec& shown = in_mx_blocks(run_.activations) ? u : exact;  // as the CPU leaves them
        all.insert(all.end(), shown.begin(), shown.end());
      }
      expert_hidden_.push_back(std::move(all));
    }
  }

  void logits(const LogitsArgs& args) override {
    add_delta();
    logits_.clear();
    features_.clear();
    for (const int32_t t : args.tokens) {
      const Vec& residual = residual_[static_cast<size_t>(t)];
      const Vec x = dense_input(WeightRole::kUnembedding, rmsnorm(residual, at(args.norm)));
      if (config_.head) features_.push_back(config_.head->norm_output ? x : residual);
      logits_.push_back(linear(at(args.table), nullptr, x, 0, dims_.vocab));
    }
  }

  Ticket sample(const SampleArgs& args) override {
    check(args.rows.size() == logits_.size(), "one sample row per row of logits");
    std::vector<DrawnToken> drawn;
    for (size_t r = 0; r < args.rows.size(); ++r) {
      std::vector<float> row(logits_[r].begin(), logits_[r].end());
      drawn.push_back(draw(row, args.rows[r]));
      if (config_.head) drawn.back().token = config_.head->target_id(drawn.back().token);
    }
    sampled_ = {std::move(sampled_.back()), std::move(drawn)};
    return ++ticket_;
  }

  [[nodiscard]] std::vector<DrawnToken> wait(Ticket ticket) override {
    check(ticket == ticket_ || ticket == ticket_ - 1, "two tickets may be outstanding");
    return sampled_[ticket == ticket_ ? 1 : 0];
  }

  [[nodiscard]] SlotRows rows(Slot slot) override {
    std::vector<Vec>& of = slot_rows(slot);
    return std::vector<std::span<double>>(of.begin(), of.end());
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
  [[nodiscard]] const Matrix& odd_of(WeightHandle handle) const { return at({handle.idx + 1}); }

  [[nodiscard]] Vec rmsnorm(const Vec& x, const Matrix& norm) const { return rmsnorm(x, norm, 0, config_.rms_eps); }
  // By the values of `norm` from `first` on.
  [[nodiscard]] static Vec rmsnorm(const Vec& x, const Matrix& norm, int64_t first, double eps) {
    double sum = 0;
    for (const double v : x) sum += v * v;
    const double inverse = 1 / std::sqrt(sum / static_cast<double>(x.size()) + eps);
    Vec y(x.size());
    for (size_t d = 0; d < x.size(); ++d) y[d] = x[d] * inverse * norm[first + static_cast<int64_t>(d)];
    return y;
  }

  // The feature of a token of a head's step, from its taps.
  [[nodiscard]] Vec feature(const EmbedArgs& args, size_t token) const {
    const HeadConfig& head = *config_.head;
    const int64_t all = head.taps * head.target_hidden;
    const auto own = args.taps.subspan(token * static_cast<size_t>(all), static_cast<size_t>(all));
    Vec x(own.begin(), own.end());
    const int64_t width = head.tap_norms > 1 ? head.target_hidden : all;
    for (int64_t first = 0; head.tap_norms > 0 && first < all; first += width) {
      const Vec normed =
          rmsnorm({x.begin() + first, x.begin() + first + width}, at(args.tap_norm), first, head.tap_eps);
      std::copy(normed.begin(), normed.end(), x.begin() + first);
    }
    return args.tap_fc.idx < 0 ? x : linear(at(args.tap_fc), nullptr, x, 0, dims_.hidden);
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

  // To what such a cache gives back.
  void round_heads(KvDtype type, Vec& x) const {
    if (!type_of(type).lossy && !run_.rounds_pages) return;
    std::vector<float> values(x.begin(), x.end());
    const auto dim = static_cast<size_t>(dims_.head_dim);
    for (size_t head = 0; head < x.size(); head += dim) round_kv(type, std::span(values).subspan(head, dim));
    x.assign(values.begin(), values.end());
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
    if (run_.fp8_attention())
      top = weight_base(top * std::numbers::log2e) * std::numbers::ln2;
    else if (args.sinks)
      top = std::max(top, sink);
    double sum = args.sinks ? std::exp(sink - top) : 0;
    for (double& s : score) {
      s = std::exp(s - top);
      if (run_.fp8_attention()) s = round_weight(static_cast<float>(s));
      sum += s;
    }
    double* out = attn_[t].data() + int64_t{head} * dim;
    for (size_t i = 0; i < slots.size(); ++i) {
      const double* v = kv.values.data() + slots[i] * dims_.kv_width() + int64_t{kv_head} * dim;
      for (int d = 0; d < dim; ++d) out[d] += score[i] / sum * v[d];
    }
  }

  [[nodiscard]] Vec gate_up(const LayerWeights& layer, int64_t expert, const Vec& x) const {
    const int64_t inter = dims_.inter;
    const WeightHandle w = layer[WeightRole::kGateUp], b = layer[WeightRole::kGateUpBias];
    if (!at(w).has_odd) return linear(at(w), &at(b), x, expert * 2 * inter, 2 * inter);
    const Vec gate = linear(at(w), &at(b), x, expert * inter, inter);
    const Vec up = linear(odd_of(w), &odd_of(b), x, expert * inter, inter);
    Vec h;
    for (size_t i = 0; i < gate.size(); ++i) h.insert(h.end(), {gate[i], up[i]});
    return h;
  }

  // As an expert multiplies them; as a dense layer does.
  [[nodiscard]] Vec rounded(const Vec& x) const { return rounded_to(run_.activations, x); }
  [[nodiscard]] Vec dense_input(WeightRole role, const Vec& x) const {
    return config_.dense.in_mx(role) ? rounded_to(run_.dense_activations, x) : x;
  }
  [[nodiscard]] static Vec rounded_to(Activations activations, const Vec& x) {
    if (!rounds(activations)) return x;
    std::vector<float> values(x.begin(), x.end());
    round_activations(activations, values);
    return {values.begin(), values.end()};
  }

  [[nodiscard]] Vec swiglu(const Vec& h) const {
    constexpr double kAlpha = 1.702;  // torch/model.py swiglu
    const double limit = config_.swiglu_limit;
    Vec u(h.size() / 2);
    for (size_t i = 0; i < u.size(); ++i) {
      if (config_.head) {
        u[i] = h[2 * i] / (1 + std::exp(-h[2 * i])) * h[2 * i + 1];
        continue;
      }
      const double glu = std::min(h[2 * i], limit), linear_part = std::clamp(h[2 * i + 1], -limit, limit);
      u[i] = glu / (1 + std::exp(-kAlpha * glu)) * (linear_part + 1);
    }
    return u;
  }

  void add_delta() {
    for (size_t t = 0; t < residual_.size(); ++t) add(residual_[t], delta_[t], 1);
  }

  static void add(Vec& x, const Vec& y, double weight) {
    for (size_t d = 0; d < x.size(); ++d) x[d] += weight * y[d];
  }

  [[nodiscard]] std::vector<Vec>& slot_rows(Slot slot) {
    switch (slot) {
      case Slot::kResidual: return residual_;
      case Slot::kDelta: return delta_;
      case Slot::kNormed: return normed_;
      case Slot::kQkv: return qkv_;
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
  const RunConfig run_;
  const Dims& dims_ = config_.dims;
  const Range own_experts_ = config_.own_experts.value_or(Range{0, config_.dims.experts});
  std::vector<Buffer> copies_;             // of parts of tensors
  std::deque<Matrix> weights_;             // stays in place: a requantised matrix points into itself
  std::vector<LayerKv> kv_;                // per layer
  std::vector<Vec> embedding_, features_;  // of a head: [tokens, hidden], [logit rows, hidden]
  std::vector<Vec> residual_, delta_, normed_, qkv_, q_, attn_, router_logits_, expert_ids_, expert_weights_,
      expert_hidden_, logits_;
  std::array<std::vector<DrawnToken>, 2> sampled_;  // of the last two tickets
  Ticket ticket_ = 0;
};

}  // namespace

RunConfig resolved_reference(const RunConfig& run) {
  RunConfig config = with_defaults(run);
  config.threads = 1;
  if (!rounds(config.activations)) config.activations = Activations::kF32;
  if (!rounds(config.dense_activations)) config.dense_activations = Activations::kBf16;
  return config;
}

std::unique_ptr<Backend> make_reference_backend(const BackendConfig& config, const RunConfig& run) {
  require_taken(type_of(run.kv_type()), BackendKind::kReference);
  return std::make_unique<ReferenceBackend>(config, resolved_reference(run));
}

}  // namespace nibble::backend
