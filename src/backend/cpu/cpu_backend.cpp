#include "backend/cpu/cpu_backend.h"

#include "backend/cpu/attention.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/kv_cache.h"
#include "backend/cpu/linear.h"
#include "backend/cpu/loaded_weight.h"
#include "backend/cpu/moe.h"
#include "backend/cpu/screen.h"
#include "backend/kv_dtype.h"
#include "base/buffer.h"
#include "base/error.h"
#include "base/machine.h"
#include "base/thread_pool.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

namespace nibble::backend {
namespace {

using cpu::Matrix;

// One matrix of a verb: out[i][row] = weight[row] · x[i] + bias[row].
struct Job {
  const Matrix& weight;
  std::span<const float> bias;  // empty: none
  float* out;                   // [tokens, weight.rows()]
};

constexpr int64_t kMostJobs = 3;  // of one linear(): q, k and v

class CpuBackend final : public Backend {
 public:
  CpuBackend(const BackendConfig& config, const RunConfig& run, const WatchedHost& watched)
      : config_(config),
        activations_(run.activations),
        dense_activations_(run.dense_activations),
        run_(run),
        fp8_attention_(run.fp8_attention()),
        modes_(describe_cpu(run)),
        kernels_(cpu::kernels_for(run.isa, run.activations)),
        pool_(run.threads),
        linear_(kernels_, run.activations, pool_, linear_limits()),
        moe_(config_, kernels_, linear_, watched),
        attention_(config_, kernels_, run.activations, pool_) {
    const Dims& d = dims_;
    kv_.reserve(config_.layer_kinds.size());
    for (const LayerKind kind : config_.layer_kinds) {
      kv_.emplace_back(dims_, config_.kv_pages[static_cast<size_t>(kind)], run.kv_type());
      if (run.poison) kv_.back().poison();
    }
    const float unwritten = run.poison ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
    const auto make = [&](int64_t rows, int64_t width) {
      return AlignedVector<float>(static_cast<size_t>(rows * width), unwritten);
    };
    const int64_t tokens = config_.max_tokens;
    residual_ = make(tokens, d.hidden);
    delta_ = make(tokens, d.hidden);
    normed_ = make(std::max<int64_t>(tokens, config_.max_rows), d.hidden);
    q_ = make(tokens, d.q_width());
    k_ = make(tokens, d.kv_width());
    v_ = make(tokens, d.kv_width());
    attn_ = make(tokens, d.q_width());
    router_logits_ = make(tokens, d.experts);
    expert_weights_ = make(tokens, d.topk);
    expert_hidden_ = make(tokens, int64_t{d.topk} * d.inter);
    logits_ = make(config_.max_rows, d.vocab);
    if (config_.head) {
      taps_ = make(tokens, config_.head->taps * config_.head->target_hidden);
      features_ = make(config_.max_rows, d.hidden);
      read_ = make(tokens, 2 * d.hidden);
    }
    expert_ids_.resize(static_cast<size_t>(tokens * d.topk));
    expert_order_.resize(static_cast<size_t>(d.experts));
    all_rows_.resize(std::max(static_cast<size_t>(tokens), static_cast<size_t>(config_.max_rows)));
    std::iota(all_rows_.begin(), all_rows_.end(), 0);
  }

  [[nodiscard]] std::string_view name() const override { return "cpu"; }
  [[nodiscard]] std::string modes() const override { return modes_; }

  WeightHandle upload(const HostWeight& whole) override {
    SlicedWeight part = cpu::part_of(whole, pool_);
    const HostWeight& weight = part.weight;
    std::optional<WeightFormat> as = config_.dense.of(weight.role);
    // A head's guesses are verified, so it is rounded as far as the activations are (docs/decisions/0031).
    if (config_.head && activations_ == Activations::kInt8 && is_matrix(weight.role) &&
        weight.role != WeightRole::kEmbedding && weight.values.shape.back() % kMxBlock == 0)
      as = WeightFormat::kMxfp4;
    weights_.push_back(cpu::loaded({whole, std::move(part), as}, kernels_, pool_));
    const cpu::LoadedWeight& own = weights_.back();
    if (whole.role == WeightRole::kUnembedding && !config_.head && !config_.own_experts && !whole.slice &&
        cpu_screened_bytes(dims_, own.matrix->format(), run_) > 0)
      screen_.emplace(*own.matrix, kernels_, pool_);
    return {static_cast<int32_t>(weights_.size()) - 1};
  }

  void copy_page(const PageCopy& copy) override {
    for (size_t l = 0; l < kv_.size(); ++l)
      if (config_.layer_kinds[l] == copy.kind) kv_[l].copy(copy.from, copy.to);
  }

  void begin(const StepArgs& step) override {
    as_alone_ = std::any_of(step.rows.begin(), step.rows.end(), [](const Row& row) { return row.drafted > 0; });
    linear_.as_alone(as_alone_);
    draws_ = draws_unfiltered(step.sample_rows) ? step.sample_rows : std::span<const SampleRow>();
  }

  void embed(const EmbedArgs& args) override {
    tokens_ = static_cast<int64_t>(args.ids.size());
    check(tokens_ <= config_.max_tokens, "a step holds at most max_tokens tokens");
    float* const embedded = config_.head ? read_.data() : residual_.data();
    const int64_t pitch = config_.head ? 2 * dims_.hidden : dims_.hidden;
    for (int64_t t = 0; t < tokens_; ++t) {
      const Matrix& table = matrix(args.table);
      const int32_t named = args.ids[static_cast<size_t>(t)];
      const int32_t id = named >= 0 ? named : std::max(0, sampled_.back()[static_cast<size_t>(-1 - named)].token);
      kernels_.decode(table.at(id, 1), embedded + t * pitch);
    }
    clear_delta();
    if (config_.head) make_features(args);
  }

  void attn_in(const AttnInArgs& args) override {
    const LayerWeights& w = args.layer;
    const bool beside = w[WeightRole::kHiddenNorm].idx >= 0;
    if (beside)
      norm_beside_embedding(w);
    else
      add_delta_and_norm(w[WeightRole::kAttnNorm]);
    dense(WeightRole::kQ, {beside ? read_.data() : normed_.data(), tokens_, (beside ? 2 : 1) * dims_.hidden},
          std::array{Job{matrix(w[WeightRole::kQ]), vector(w[WeightRole::kQBias]), q_.data()},
                     Job{matrix(w[WeightRole::kK]), vector(w[WeightRole::kKBias]), k_.data()},
                     Job{matrix(w[WeightRole::kV]), vector(w[WeightRole::kVBias]), v_.data()}});
  }

  void attend(const AttendArgs& args) override {
    cpu::KvCache& cache = kv_[static_cast<size_t>(args.layer_idx)];
    pool_.parallel_each(tokens_, [&](int64_t t) {
      const int32_t position = args.positions[static_cast<size_t>(t)];
      float *const q = q_.data() + t * dims_.q_width(), *const k = k_.data() + t * dims_.kv_width();
      float* const v = v_.data() + t * dims_.kv_width();
      rope(q, k, position);
      if (fp8_attention_) round_query(std::span(q, static_cast<size_t>(dims_.q_width())));
      cache.write(args.kv_slots[static_cast<size_t>(t)], k, v);
    });
    attention_.run({.cache = cache,
                    .rows = args.rows,
                    .pages = args.pages,
                    .window = dims_.window_of(args.kind),
                    .sinks = args.sinks ? vector(args.layer[WeightRole::kSinks]) : std::span<const float>(),
                    .q = q_.data(),
                    .out = attn_.data(),
                    .as_alone = as_alone_,
                    .fp8 = fp8_attention_});
  }

  void attn_out(const AttnOutArgs& args) override {
    dense(WeightRole::kO, {attn_.data(), tokens_, dims_.q_width()},
          std::array{Job{matrix(args.layer[WeightRole::kO]), vector(args.layer[WeightRole::kOBias]), delta_.data()}});
  }

  void route(const RouteArgs& args) override {
    const LayerWeights& w = args.layer;
    add_delta_and_norm(w[WeightRole::kMlpNorm]);
    const auto count = static_cast<size_t>(tokens_ * dims_.topk);
    if (config_.head) {  // one expert, with weight 1
      std::fill_n(expert_ids_.begin(), tokens_, 0);
      std::fill_n(expert_weights_.begin(), tokens_, 1.0f);
      return moe_.route(std::span(expert_ids_).first(count), std::span(expert_weights_).first(count));
    }
    linear({normed_.data(), tokens_, dims_.hidden},
           std::array{Job{matrix(w[WeightRole::kRouter]), vector(w[WeightRole::kRouterBias]), router_logits_.data()}},
           Activations::kF32);
    for (int64_t t = 0; t < tokens_; ++t) {
      const float* g = router_logits_.data() + t * dims_.experts;
      int32_t* ids = expert_ids_.data() + t * dims_.topk;
      float* weights = expert_weights_.data() + t * dims_.topk;
      std::iota(expert_order_.begin(), expert_order_.end(), 0);
      std::partial_sort_copy(expert_order_.begin(), expert_order_.end(), ids, ids + dims_.topk,
                             [&](int32_t a, int32_t b) { return g[a] > g[b] || (g[a] == g[b] && a < b); });
      float sum = 0;
      for (int k = 0; k < dims_.topk; ++k) sum += weights[k] = std::exp(g[ids[k]] - g[ids[0]]);
      for (int k = 0; k < dims_.topk; ++k) weights[k] /= sum;
    }
    moe_.route(std::span(expert_ids_).first(count), std::span(expert_weights_).first(count));
  }

  void moe(const MoeArgs& args) override {
    clear_delta();
    using enum WeightRole;
    const auto of = [&](WeightRole role) -> const cpu::LoadedWeight& {
      return weights_[static_cast<size_t>(args.layer[role].idx)];
    };
    moe_.run(cpu::weights_of({of(kGateUp), of(kGateUpBias), of(kDown), of(kDownBias)}), normed_.data(),
             expert_hidden_.data(), delta_.data());
  }

  void logits(const LogitsArgs& args) override {
    logit_rows_ = static_cast<int64_t>(args.tokens.size());
    check(logit_rows_ <= config_.max_rows, "a step holds at most max_rows rows of logits");
    for (size_t i = 0; i < static_cast<size_t>(tokens_ * dims_.hidden); ++i) residual_[i] += delta_[i];
    for (int64_t r = 0; r < logit_rows_; ++r) {
      const float* const x = residual_.data() + int64_t{args.tokens[static_cast<size_t>(r)]} * dims_.hidden;
      float* const normed = normed_.data() + r * dims_.hidden;
      rmsnorm(x, vector(args.norm), normed);
      if (config_.head)
        std::copy_n(config_.head->norm_output ? normed : x, dims_.hidden, features_.data() + r * dims_.hidden);
    }
    table_ = args.table;
    drawn_.clear();
    if (!draw_screened()) all_logits();
  }

  Ticket sample(const SampleArgs& args) override {
    check(static_cast<int64_t>(args.rows.size()) == logit_rows_, "one sample row per row of logits");
    if (args.rows.data() != draws_.data()) need_logits();
    std::vector<DrawnToken> drawn = drawn_;
    drawn.resize(args.rows.size());
    pool_.parallel_each(drawn_.empty() ? logit_rows_ : 0, [&](int64_t r) {
      DrawnToken& own = drawn[static_cast<size_t>(r)];
      own = draw(logits_row(r), args.rows[static_cast<size_t>(r)]);
      if (config_.head) own.token = config_.head->target_id(own.token);
    });
    sampled_ = {std::move(sampled_.back()), std::move(drawn)};
    return ++ticket_;
  }

  [[nodiscard]] std::vector<DrawnToken> wait(Ticket ticket) override {
    check(ticket == ticket_ || ticket == ticket_ - 1, "two tickets may be outstanding");
    return sampled_[ticket == ticket_ ? 1 : 0];
  }

  [[nodiscard]] std::vector<KernelLaunches> launches() const override {
    std::vector<KernelLaunches> all;
    for (const CpuIsa isa : kCpuIsas)
      if (linear_.called().has(isa) || attention_.called().has(isa)) all.push_back({name_of(isa), 1});
    return all;
  }
  [[nodiscard]] ScreenCounts screen_counts() const override { return screen_ ? screen_->counts() : ScreenCounts(); }

  [[nodiscard]] SlotRows rows(Slot slot) override {
    const bool logits = slot == Slot::kLogits;
    if (logits) need_logits();
    check(logits || slot == Slot::kDelta, "delta and logits are what ranks share");
    const int64_t count = logits ? logit_rows_ : tokens_, width = logits ? dims_.vocab : dims_.hidden;
    std::vector<std::span<float>> rows;
    for (int64_t i = 0; i < count; ++i)
      rows.emplace_back((logits ? logits_ : delta_).data() + i * width, static_cast<size_t>(width));
    return rows;
  }

  [[nodiscard]] SlotData peek(Slot slot) override {
    const auto copy = [&](const auto& values, Shape shape) {
      const int64_t count = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
      return SlotData{std::move(shape), std::vector<float>(values.begin(), values.begin() + count)};
    };
    switch (slot) {
      case Slot::kResidual: return copy(residual_, {tokens_, dims_.hidden});
      case Slot::kDelta: return copy(delta_, {tokens_, dims_.hidden});
      case Slot::kNormed: return copy(normed_, {tokens_, dims_.hidden});
      case Slot::kQkv: {
        SlotData all{{tokens_, dims_.q_width() + 2 * dims_.kv_width()}, {}};
        for (int64_t t = 0; t < tokens_; ++t)
          for (const auto& [part, width] :
               {std::pair{&q_, dims_.q_width()}, {&k_, dims_.kv_width()}, {&v_, dims_.kv_width()}})
            all.values.insert(all.values.end(), part->begin() + t * width, part->begin() + (t + 1) * width);
        return all;
      }
      case Slot::kQ: return copy(q_, {tokens_, dims_.q_width()});
      case Slot::kAttn: return copy(attn_, {tokens_, dims_.q_width()});
      case Slot::kRouterLogits: return copy(router_logits_, {tokens_, dims_.experts});
      case Slot::kExpertIds: return copy(expert_ids_, {tokens_, dims_.topk});
      case Slot::kExpertWeights: return copy(expert_weights_, {tokens_, dims_.topk});
      case Slot::kExpertHidden: return copy(expert_hidden_, {tokens_, dims_.topk, dims_.inter});
      case Slot::kLogits: need_logits(); return copy(logits_, {logit_rows_, dims_.vocab});
    }
    return {};
  }

 private:
  [[nodiscard]] cpu::Linear::Limits linear_limits() const {
    const Dims& d = dims_;
    const int64_t head = config_.head ? std::max(2 * d.hidden, config_.head->taps * config_.head->target_hidden) : 0;
    return {.cols = std::max({d.hidden, d.inter, d.q_width(), head}),
            .inputs = std::max<int64_t>(int64_t{config_.max_tokens} * std::max<int64_t>(d.topk, 1), config_.max_rows),
            .groups = std::max(d.experts, kMostJobs)};
  }

  [[nodiscard]] const Matrix& matrix(WeightHandle handle) const {
    return *weights_[static_cast<size_t>(handle.idx)].matrix;
  }
  [[nodiscard]] std::span<const float> vector(WeightHandle handle) const {
    return weights_[static_cast<size_t>(handle.idx)].vector;
  }
  [[nodiscard]] std::span<float> logits_row(int64_t r) {
    return {logits_.data() + r * dims_.vocab, static_cast<size_t>(dims_.vocab)};
  }

  void all_logits() {
    dense(WeightRole::kUnembedding, {normed_.data(), logit_rows_, dims_.hidden},
          std::array{Job{matrix(table_), {}, logits_.data()}});
  }
  // For whoever reads more of them than a draw does.
  void need_logits() {
    if (drawn_.empty()) return;
    drawn_.clear();
    all_logits();
  }
  // Whether the step's tokens are drawn, from the rows that may win alone.
  bool draw_screened() {
    const Matrix& table = matrix(table_);
    const auto tokens = static_cast<int>(logit_rows_);
    if (!screen_ || std::ssize(draws_) != logit_rows_ || tokens > cpu::kScreenTokens) return false;
    const cpu::Vectors<const float> x{normed_.data(), logit_rows_, dims_.hidden};
    const bool int8 = dense_activations_ == Activations::kInt8 && cpu::int8_serves(table.format());
    const std::span<const int32_t> rows =
        screen_->candidates({.matrix = table, .x = x, .int8 = int8, .rows = draws_, .scratch = logits_.data()});
    if (rows.empty()) return false;
    const cpu::Group group{.weight = &table, .tokens = std::span(all_rows_).first(static_cast<size_t>(tokens))};
    linear_.run_listed(x, group, rows, dense_activations_,
                       [&](const cpu::Tile& tile) { store({table, {}, logits_.data()}, tile); });
    std::vector<TokenLogit> logits(rows.size());
    for (int64_t t = 0; t < tokens; ++t) {
      std::ranges::transform(rows, logits.begin(),
                             [&](int32_t row) { return TokenLogit{logits_row(t)[static_cast<size_t>(row)], row}; });
      drawn_.push_back({.token = sample_among(logits, draws_[static_cast<size_t>(t)])});
    }
    return true;
  }

  void clear_delta() { std::fill_n(delta_.begin(), tokens_ * dims_.hidden, 0.0f); }

  void add_delta_and_norm(WeightHandle norm) {
    const std::span<const float> scale = vector(norm);
    pool_.parallel_each(tokens_, [&](int64_t t) {
      float* const x = residual_.data() + t * dims_.hidden;
      const float* const delta = delta_.data() + t * dims_.hidden;
      for (int64_t d = 0; d < dims_.hidden; ++d) x[d] += delta[d];
      rmsnorm(x, scale, normed_.data() + t * dims_.hidden);
    });
  }

  void rmsnorm(const float* x, std::span<const float> scale, float* y) const { rmsnorm(x, scale, config_.rms_eps, y); }

  // As wide as the scale; y may be x.
  static void rmsnorm(const float* x, std::span<const float> scale, float eps, float* y) {
    const int64_t width = std::ssize(scale);
    std::array<double, 8> sums{};  // independent chains
    int64_t d = 0;
    for (; d + 8 <= width; d += 8)
      for (size_t i = 0; i < 8; ++i) sums[i] += double{x[d + static_cast<int64_t>(i)]} * x[d + static_cast<int64_t>(i)];
    for (; d < width; ++d) sums[static_cast<size_t>(d % 8)] += double{x[d]} * x[d];
    const double sum = std::accumulate(sums.begin(), sums.end(), 0.0);
    const float mean = static_cast<float>(sum / static_cast<double>(width));
    const float inverse = 1.0f / std::sqrt(mean + eps);
    for (d = 0; d < width; ++d) y[d] = x[d] * inverse * scale[static_cast<size_t>(d)];
  }

  // A head's residuals begin with these.
  void make_features(const EmbedArgs& args) {
    if (args.taps.empty()) {
      for (int64_t t = 0; t < tokens_; ++t)
        std::copy_n(features_.data() - (1 + args.ids[static_cast<size_t>(t)]) * dims_.hidden, dims_.hidden,
                    residual_.data() + t * dims_.hidden);
      return;
    }
    const HeadConfig& head = *config_.head;
    const int64_t all = head.taps * head.target_hidden, width = head.tap_norms > 1 ? head.target_hidden : all;
    check(std::ssize(args.taps) == tokens_ * all, "taps of each token");
    std::copy(args.taps.begin(), args.taps.end(), taps_.begin());
    for (int64_t at = 0; head.tap_norms > 0 && at < tokens_ * all; at += width)
      rmsnorm(taps_.data() + at,
              vector(args.tap_norm).subspan(static_cast<size_t>(at % all), static_cast<size_t>(width)), head.tap_eps,
              taps_.data() + at);
    if (args.tap_fc.idx < 0)
      std::copy_n(taps_.begin(), tokens_ * all, residual_.begin());
    else
      linear({taps_.data(), tokens_, all}, std::array{Job{matrix(args.tap_fc), {}, residual_.data()}},
             dense_activations_);
  }

  // What a head's first layer reads: the embedding, which is in read_, and the feature, both normed.
  void norm_beside_embedding(const LayerWeights& w) {
    pool_.parallel_each(tokens_, [&](int64_t t) {
      float* const embedding = read_.data() + t * 2 * dims_.hidden;
      float *const normed = embedding + dims_.hidden, *const residual = residual_.data() + t * dims_.hidden;
      rmsnorm(embedding, vector(w[WeightRole::kAttnNorm]), embedding);
      rmsnorm(residual, vector(w[WeightRole::kHiddenNorm]), normed);
      if (config_.head->norm_before_residual) std::copy_n(normed, dims_.hidden, residual);
    });
  }

  // q: [heads, head_dim], k: [kv_heads, head_dim].
  void rope(float* q, float* k, int32_t position) const {
    const int64_t half = dims_.head_dim / 2;
    for (int64_t d = 0; d < half; ++d) {
      const float angle = static_cast<float>(position) * config_.rope_inv_freq[static_cast<size_t>(d)];
      const float c = std::cos(angle) * config_.rope_concentration, s = std::sin(angle) * config_.rope_concentration;
      for (const auto& [x, heads] : {std::pair{q, dims_.heads}, {k, dims_.kv_heads}}) {
        for (int64_t h = 0; h < heads; ++h) {
          float& x1 = x[h * dims_.head_dim + d];
          float& x2 = x[h * dims_.head_dim + d + half];
          const float first = x1 * c - x2 * s;
          x2 = x2 * c + x1 * s;
          x1 = first;
        }
      }
    }
  }

  // The roles that RunConfig::dense names round x, in place, where they multiply MX blocks.
  void dense(WeightRole role, cpu::Vectors<float> x, std::span<const Job> jobs) {
    if (config_.dense.of(role)) linear_.round_inputs(x, dense_activations_);
    linear({x.data, x.count, x.cols}, jobs, dense_activations_);
  }

  // Jobs of one format share a loop over the threads.
  void linear(cpu::Vectors<const float> x, std::span<const Job> jobs, Activations activations) {
    const auto tokens = std::span(all_rows_).first(static_cast<size_t>(x.count));
    std::array<cpu::Group, kMostJobs> groups;
    for (size_t first = 0, count = 0; first < jobs.size(); first += count) {
      count = 0;
      do {
        const Job& job = jobs[first + count];
        groups[count] = {.weight = &job.weight, .first_row = 0, .tokens = tokens, .bias = job.bias.data()};
        ++count;
      } while (first + count < jobs.size() && jobs[first + count].weight.format() == groups[0].weight->format());
      linear_.run_whole(x, std::span(groups).first(count), activations,
                        [&](const cpu::Tile& tile) { store(jobs[first + static_cast<size_t>(tile.group)], tile); });
    }
  }

  static void store(const Job& job, const cpu::Tile& tile) {
    const int64_t rows = job.weight.rows();
    for (int t = 0; t < tile.tokens; ++t) {
      float* out = job.out + (tile.from + t) * rows + tile.row;
      const float* sum = tile.out + t * cpu::kTileRows;
      __builtin_prefetch(out + tile.rows, 1);
      for (int r = 0; r < tile.rows; ++r) {
        const float bias = job.bias.empty() ? 0.0f : job.bias[static_cast<size_t>(tile.row + r)];
        out[r] = sum[r] + bias;
      }
    }
  }

  const BackendConfig config_;
  const Dims& dims_ = config_.dims;
  const Activations activations_, dense_activations_;
  const RunConfig run_;
  const bool fp8_attention_;
  const std::string modes_;
  const cpu::Kernels kernels_;
  ThreadPool pool_;
  cpu::Linear linear_;
  cpu::Moe moe_;
  cpu::Attention attention_;
  std::vector<cpu::LoadedWeight> weights_;
  std::optional<cpu::Screen> screen_;
  std::vector<cpu::KvCache> kv_;                 // per layer
  AlignedVector<float> taps_, features_, read_;  // of a head: of tokens, of rows of logits; what layer 0 reads
  AlignedVector<float> residual_, delta_, normed_, q_, k_, v_, attn_, router_logits_, expert_weights_, expert_hidden_,
      logits_;
  std::vector<int32_t> expert_ids_, expert_order_;
  std::array<std::vector<DrawnToken>, 2> sampled_;  // of the last two tickets
  std::vector<int32_t> all_rows_;                   // 0, 1, 2, …
  std::span<const SampleRow> draws_;                // the step's, if none has a filter
  std::vector<DrawnToken> drawn_;                   // from a screen; none: all logits are there
  WeightHandle table_;
  int64_t tokens_ = 0, logit_rows_ = 0;
  bool as_alone_ = false;  // the step has guesses
  Ticket ticket_ = 0;
};

}  // namespace

RunConfig resolved_cpu(const RunConfig& run) {
  RunConfig config = with_defaults(run);
  const std::vector<cpu::IsaKernels> here = cpu::kernels_here();
  if (config.isa == CpuIsa::kAuto) config.isa = here.front().isa;
  if (config.activations == Activations::kBf16) config.activations = Activations::kF32;
  if (config.activations == Activations::kAuto)
    config.activations = cpu::kernels_for(config.isa).int8 != nullptr ? Activations::kInt8 : Activations::kF32;
  static_cast<void>(cpu::kernels_for(config.isa, config.activations));  // or it is refused
  if (config.dense_activations == Activations::kAuto)                   // as the experts', if in int8
    config.dense_activations = config.activations == Activations::kInt8 ? Activations::kInt8 : Activations::kBf16;
  if (config.dense_activations == Activations::kInt8 && config.activations != Activations::kInt8)
    throw Error(Code::kUnsupported, "--dense-activation int8: want --moe-activation int8, found {}",
                name_of(config.activations));
  return config;
}

int64_t cpu_screened_bytes(const Dims& dims, WeightFormat format, const RunConfig& run) {
  if (run.screened_head != ScreenedHead::kAuto || run.ranks.count > 1) return 0;
  if (!cpu::Screen::serves(format, dims.vocab, dims.hidden)) return 0;
  const RunConfig config = resolved_cpu(run);
  const int64_t bytes = cpu::Screen::bytes(dims.vocab, dims.hidden);
  const bool has = cpu::kernels_for(config.isa, config.activations).screen != nullptr;
  return has && has_room_to_screen(bytes, memory_limit()) ? bytes : 0;
}

void set_cpu_screen(CostModel& cost, const RunConfig& run) {
  const WeightFormat format = cost.formats.of_role[static_cast<size_t>(WeightRole::kUnembedding)];
  cost.screened_bytes = cpu_screened_bytes(cost.dims, format, run);
  cost.screened_rows = cpu::kScreenTokens;
}

std::unique_ptr<Backend> make_cpu_backend(const BackendConfig& config, const RunConfig& run,
                                          const WatchedHost& watched) {
  require_taken(type_of(run.kv_type()), BackendKind::kCpu);
  return std::make_unique<CpuBackend>(config, resolved_cpu(run), watched);
}

std::string describe_cpu(const RunConfig& run) {
  const RunConfig config = resolved_cpu(run);
  const cpu::Kernels kernels = cpu::kernels_for(config.isa, config.activations);
  const bool int8 = config.activations == Activations::kInt8;
  const cpu::TokenTiles* const tiles = int8 ? kernels.int8->tiles_for(WeightFormat::kMxfp4, cpu::kTileTokens) : nullptr;
  const std::string prompts = tiles != nullptr ? fmt::format(" (prompts: {})", tiles->name) : "";
  const std::string experts =
      in_mx_blocks(config.activations) ? fmt::format(", the experts' rounded to {}", name_of(config.activations)) : "";
  const Activations dense = config.dense_activations;
  const std::string others = in_mx_blocks(dense) ? fmt::format(", dense layers' rounded to {}", name_of(dense))
                             : int8 && dense != Activations::kInt8 ? ", dense layers' float"
                                                                   : "";
  const std::string activations = (int8 ? "int8 activations" : "float activations") + prompts + experts + others;
  const std::string_view attention = config.fp8_attention() ? ", attention rounded to fp8" : "";
  return fmt::format("{}, {}{}, {} thread{}", kernels.name, activations, attention, config.threads,
                     config.threads == 1 ? "" : "s");
}

}  // namespace nibble::backend
