#include "backend/cuda/cuda_backend.h"

#include "backend/cuda/arena.h"
#include "backend/cuda/attention.h"
#include "backend/cuda/card.h"
#include "backend/cuda/choices.h"
#include "backend/cuda/decode_path.h"
#include "backend/cuda/device.h"
#include "backend/cuda/device_weights.h"
#include "backend/cuda/gemm_path.h"
#include "backend/cuda/kernel_table.h"
#include "backend/cuda/kernels/any/round_blocks.h"
#include "backend/cuda/profiler.h"
#include "backend/cuda/sample_plan.h"
#include "backend/cuda/step_graph.h"
#include "backend/cuda/step_inputs.h"
#include "backend/cuda/tickets.h"
#include "base/error.h"

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <numeric>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

namespace nibble::backend {
namespace {

using namespace cuda;  // NOLINT: this file is the room's own

int to_int(int64_t value) { return static_cast<int>(value); }

class StreamedCudaBackend final : public CudaBackend {
 public:
  StreamedCudaBackend(const BackendConfig& config, const CudaOptions& options)
      : config_(config),
        moe_kernel_(choose_moe(config, options)),
        facts_(open_device(options.device)),
        kernels_(kernels_for(facts_)),
        stream_(make_stream()),
        attention_(config_, options, stream_.get()),
        files_(options.files),
        weights_({config_, matrices_of(moe_kernel_), files_, options.upload_threads}, stream_.get()) {
    const Matrices matrices = matrices_of(moe_kernel_);
    Carver measure(nullptr);
    static_cast<void>(carve(config_, options.kv, matrices, measure));
    memory_ = allocate_device(measure.bytes(), "activations and KV pages");
    // All ones is NaN in every float type: reading what was never written shows at once.
    cuda_check(cudaMemsetAsync(memory_.get(), 0xff, static_cast<size_t>(measure.bytes()), stream_.get()));
    Carver place(memory_.get());
    at_ = carve(config_, options.kv, matrices, place);
    if (moe_kernel_ != MoeKernel::kReference) {
      cuda_check(cudaMemsetAsync(
          at_.route_finished, 0,
          static_cast<size_t>(route_tiles(std::min<int64_t>(config_.max_tokens, kRouteMaxTokens))) * sizeof(int),
          stream_.get()));
      path_.emplace(config_, at_, kernels_, gemv_device(facts_));
      path_->use(choose_activations(moe_kernel_, options), options.tuned.value_or(tuned(facts_.major)));
      if (has_gemms(moe_kernel_)) use_gemms();
      if (!options.eager) graphs_.emplace(on_, std::min(config_.max_rows, config_.max_tokens));
    }
    inputs_.emplace(config_, at_, stream_.get());
    const std::span freq(config_.rope_inv_freq);
    check(static_cast<int64_t>(freq.size()) == dims_.head_dim / 2, "one rope frequency per pair");
    cuda_check(
        cudaMemcpyAsync(at_.rope_inv_freq, freq.data(), freq.size_bytes(), cudaMemcpyHostToDevice, stream_.get()));
    tickets_.emplace(config_.max_rows, dims_.vocab, stream_.get());
    profiler_.emplace(on_, graphs_ ? &*graphs_ : nullptr);
  }

  ~StreamedCudaBackend() override { cudaStreamSynchronize(stream_.get()); }

  [[nodiscard]] std::string_view name() const override { return "cuda"; }
  [[nodiscard]] MoeKernel moe_kernel() const override { return moe_kernel_; }
  [[nodiscard]] int64_t graph_replays() const override { return graphs_ ? graphs_->replays() : 0; }

  [[nodiscard]] std::vector<KernelLaunches> launches() const override {
    std::vector<KernelLaunches> result;
    for (size_t k = 0; k < counts_.size(); ++k) {
      if (counts_[k] > 0) result.push_back({cuda::name_of(static_cast<Kernel>(k)), counts_[k]});
    }
    return result;
  }

  WeightHandle upload(const HostWeight& weight) override { return weights_.upload(weight); }

  void finish_upload() override {
    weights_.finish();
    if (gemms_ && weights_.wide_scales()) gemms_->with_wide_scales();
  }

  void copy_page(const PageCopy& copy) override {
    for (size_t l = 0; l < at_.kv.size(); ++l) {
      if (config_.layer_kinds[l] != copy.kind) continue;
      const int64_t bytes = int64_t{kPageTokens} * dims_.kv_width() * value_bytes(at_.kv[l].type);
      for (void* part : {at_.kv[l].keys, at_.kv[l].values}) {
        std::byte* pages = static_cast<std::byte*>(part);
        cuda_check(cudaMemcpyAsync(pages + copy.to * bytes, pages + copy.from * bytes, static_cast<size_t>(bytes),
                                   cudaMemcpyDeviceToDevice, stream_.get()));
      }
    }
  }

  // One new token per row, one draw per row, nothing that needs arrays of its own: every step of plain decoding.
  std::optional<Ticket> replay(const StepArgs& step) override {
    const size_t tokens = step.ids.size();
    if (!graphs_ || tokens < 1 || std::ssize(step.ids) > graphs_->most_tokens() || step.rows.size() != tokens ||
        step.logit_tokens.size() != tokens || step.sample_rows.size() != tokens || step.sinks != graph_sinks_)
      return std::nullopt;
    for (const SampleRow& row : step.sample_rows)
      if (row.logprobs >= 0 || row.given >= 0) return std::nullopt;
    plan_samples(step.sample_rows, plan_);
    if (plan_.filters || plan_.most_shifts > 0 || !plan_.masks.empty()) return std::nullopt;
    const StepGraphs::Next next = graphs_->next(static_cast<int64_t>(tokens));
    if (next == StepGraphs::Next::kRun) return std::nullopt;
    inputs_->begin_step(static_cast<int64_t>(tokens));
    inputs_->put(step, plan_);
    if (next == StepGraphs::Next::kCapture) {
      inputs_->freeze(true);
      graphs_->begin_capture(static_cast<int64_t>(tokens));
      return std::nullopt;
    }
    tokens_ = logit_rows_ = static_cast<int64_t>(tokens);
    tickets_->open(step.sample_rows, at_.logits);
    profiler_->begin_step();
    graphs_->replay(tokens_);
    path_->replayed(tokens_);
    return tickets_->hand_out(at_.sampled);
  }

  void embed(const EmbedArgs& args) override {
    check(weights_.finished(), "finish_upload() comes before the first step");
    if (!capturing()) profiler_->begin_step();
    on_.stage = Stage::kEmbed;
    tokens_ = static_cast<int64_t>(args.ids.size());
    check(tokens_ <= config_.max_tokens, "a step holds at most max_tokens tokens");
    if (!capturing()) inputs_->begin_step(tokens_);
    kernels_.embed({.table = bf16(args.table),
                    .ids = inputs_->ids(args.ids),
                    .sampled = at_.sampled,
                    .out = at_.residual,
                    .tokens = to_int(tokens_),
                    .hidden = to_int(dims_.hidden)},
                   on_);
    if (path_) path_->begin(tokens_);
  }

  void attn_in(const AttnInArgs& args) override {
    on_.stage = Stage::kAttnIn;
    const LayerWeights& w = args.layer;
    const LayerKind kind = config_.layer_kinds[static_cast<size_t>(args.layer_idx)];
    const int32_t* positions = inputs_->positions(args.positions);
    const int32_t* kv_slots = inputs_->kv_slots(kind, args.kv_slots);
    if (path_) {
      return path_->attn_in({bf16(w[WeightRole::kAttnNorm]), weights_.matrix(w[WeightRole::kQ]),
                             weights_.qkv_bias(w[WeightRole::kQBias])},
                            args.layer_idx, positions, kv_slots, on_);
    }
    norm({.x = at_.residual, .scale = bf16(w[WeightRole::kAttnNorm])}, tokens_);
    linear({.weight = bf16(w[WeightRole::kQ]), .bias = bf16(w[WeightRole::kQBias]), .x = at_.normed, .out = at_.q},
           {tokens_, dims_.q_width(), dims_.hidden});
    linear({.weight = bf16(w[WeightRole::kK]), .bias = bf16(w[WeightRole::kKBias]), .x = at_.normed, .out = at_.k},
           {tokens_, dims_.kv_width(), dims_.hidden});
    linear({.weight = bf16(w[WeightRole::kV]), .bias = bf16(w[WeightRole::kVBias]), .x = at_.normed, .out = at_.v},
           {tokens_, dims_.kv_width(), dims_.hidden});
    kernels_.rope_kv({.q = at_.q,
                      .k = at_.k,
                      .v = at_.v,
                      .positions = positions,
                      .kv_slots = kv_slots,
                      .rope_inv_freq = at_.rope_inv_freq,
                      .kv = at_.kv[static_cast<size_t>(args.layer_idx)],
                      .tokens = to_int(tokens_),
                      .heads = to_int(dims_.heads),
                      .kv_heads = to_int(dims_.kv_heads),
                      .head_dim = to_int(dims_.head_dim),
                      .rope_concentration = config_.rope_concentration},
                     on_);
  }

  void attend(const AttendArgs& args) override {
    on_.stage = Stage::kAttend;
    const StepInputs::RowsOnDevice rows = inputs_->rows(args.rows, tokens_);
    const StepInputs::PagesOnDevice pages = inputs_->pages(args.kind, args.pages, std::ssize(args.rows));
    const AttendLaunch launch{.q = at_.q,
                              .out = at_.attn,
                              .rounded = attn_input(),
                              .sinks = args.sinks ? bf16(args.layer[WeightRole::kSinks]) : nullptr,
                              .token_row = rows.token_row,
                              .positions = rows.last_key,
                              .pages = pages.ids,
                              .kv = at_.kv[static_cast<size_t>(args.layer_idx)],
                              .pages_per_row = pages.per_row,
                              .tokens = to_int(tokens_),
                              .heads = to_int(dims_.heads),
                              .kv_heads = to_int(dims_.kv_heads),
                              .head_dim = to_int(dims_.head_dim),
                              .window = args.kind == LayerKind::kSliding ? to_int(dims_.sliding_window) : 0};
    const Attention::Step step{args.rows, path_ ? path_->attend_input(args.rows, on_) : RopeSumsArgs{}};
    if (attention_.flash()) return attention_.attend(step, launch, inputs_->staging(), on_);
    kernels_.attend(launch, on_);
  }

  void attn_out(const AttnOutArgs& args) override {
    on_.stage = Stage::kAttnOut;
    if (path_) {
      return path_->attn_out({weights_.matrix(args.layer[WeightRole::kO]), bf16(args.layer[WeightRole::kOBias])}, on_);
    }
    linear({.weight = bf16(args.layer[WeightRole::kO]),
            .bias = bf16(args.layer[WeightRole::kOBias]),
            .x = at_.attn,
            .out = at_.residual,
            .store = LinearLaunch::Store::kAdd},
           {tokens_, dims_.hidden, dims_.q_width()});
  }

  void route(const RouteArgs& args) override {
    on_.stage = Stage::kRoute;
    const LayerWeights& w = args.layer;
    if (path_) {
      return path_->route(
          {bf16(w[WeightRole::kMlpNorm]), bf16(w[WeightRole::kRouter]), bf16(w[WeightRole::kRouterBias])}, on_);
    }
    norm({.x = at_.residual, .scale = bf16(w[WeightRole::kMlpNorm])}, tokens_);
    linear({.weight = bf16(w[WeightRole::kRouter]),
            .bias = bf16(w[WeightRole::kRouterBias]),
            .x = at_.normed,
            .out = at_.router_logits},
           {tokens_, dims_.experts, dims_.hidden});
    kernels_.top_experts({.logits = at_.router_logits,
                          .ids = at_.expert_ids,
                          .weights = at_.expert_weights,
                          .tokens = to_int(tokens_),
                          .experts = to_int(dims_.experts),
                          .topk = to_int(dims_.topk)},
                         on_);
  }

  void moe(const MoeArgs& args) override {
    on_.stage = Stage::kMoe;
    const LayerWeights& w = args.layer;
    const WeightHandle gate_up = either(w[WeightRole::kGateUp], w[WeightRole::kUp]),
                       gate_up_bias = either(w[WeightRole::kGateUpBias], w[WeightRole::kUpBias]);
    if (path_) {
      return path_->moe({weights_.matrix(gate_up).data, weights_.matrix(w[WeightRole::kDown]).data, bf16(gate_up_bias),
                         bf16(w[WeightRole::kDownBias])},
                        on_);
    }
    kernels_.moe({.x = at_.normed,
                  .expert_ids = at_.expert_ids,
                  .expert_weights = at_.expert_weights,
                  .gate_up = weights_.mxfp4(gate_up),
                  .down = weights_.mxfp4(w[WeightRole::kDown]),
                  .gate_up_bias = bf16(gate_up_bias),
                  .down_bias = bf16(w[WeightRole::kDownBias]),
                  .hidden_out = at_.expert_hidden,
                  .residual = at_.residual,
                  .pairs = at_.moe_pairs,
                  .tiles = at_.moe_tiles,
                  .tile_count = at_.moe_tile_counts,
                  .down_out = at_.expert_out,
                  .tokens = to_int(tokens_),
                  .topk = to_int(dims_.topk),
                  .experts = to_int(dims_.experts),
                  .hidden = to_int(dims_.hidden),
                  .inter = to_int(dims_.inter),
                  .swiglu_limit = config_.swiglu_limit},
                 on_);
  }

  void logits(const LogitsArgs& args) override {
    on_.stage = Stage::kLogits;
    logit_rows_ = static_cast<int64_t>(args.tokens.size());
    check(logit_rows_ <= config_.max_rows, "a step holds at most max_rows rows of logits");
    const int32_t* rows = inputs_->logit_tokens(args.tokens);
    if (path_) return path_->logits({weights_.matrix(args.table), nullptr}, {rows, logit_rows_, bf16(args.norm)}, on_);
    norm({.x = at_.residual, .which = rows, .scale = bf16(args.norm)}, logit_rows_);
    linear({.weight = bf16(args.table), .x = at_.normed, .out = at_.logits}, {logit_rows_, dims_.vocab, dims_.hidden});
  }

  Ticket sample(const SampleArgs& args) override {
    check(static_cast<int64_t>(args.rows.size()) == logit_rows_, "one sample row per row of logits");
    tickets_->open(args.rows, at_.logits);
    plan_samples(args.rows, plan_);
    const SampleRowParams* params = inputs_->params(plan_);
    put_history(shifts_, std::as_bytes(std::span(plan_.shifts)));
    put_history(biases_, std::as_bytes(std::span(plan_.biases)));
    put_history(masks_, std::as_bytes(std::span(plan_.masks)));
    kernels_.sample({.logits = at_.logits,
                     .params = params,
                     .shifts = reinterpret_cast<const LogitShift*>(shifts_.bytes.get()),
                     .biases = reinterpret_cast<const float*>(biases_.bytes.get()),
                     .masks = reinterpret_cast<const uint32_t*>(masks_.bytes.get()),
                     .tokens = at_.sampled,
                     .threshold = at_.sample_threshold,
                     .part_value = at_.sample_part_value,
                     .part_token = at_.sample_part_token,
                     .rows = to_int(logit_rows_),
                     .vocab = to_int(dims_.vocab),
                     .most_shifts = plan_.most_shifts,
                     .filters = plan_.filters,
                     .masked = !plan_.masks.empty()},
                    on_);
    if (capturing()) {
      inputs_->freeze(false);
      graphs_->end_capture();
    }
    return tickets_->hand_out(at_.sampled);
  }

  [[nodiscard]] std::vector<Drawn> wait(Ticket ticket) override { return tickets_->wait(ticket); }

  [[nodiscard]] KernelProfiler* kernel_profiler() override { return &*profiler_; }

  [[nodiscard]] SlotData peek(Slot slot) override {
    if (path_) path_->settle(on_);
    switch (slot) {
      case Slot::kResidual: return read(at_.residual, {tokens_, dims_.hidden});
      case Slot::kNormed: return read(at_.normed, {tokens_, dims_.hidden});
      case Slot::kQ: return read(at_.q, {tokens_, dims_.q_width()});
      case Slot::kAttn:
        if (attn_input().at != nullptr) return gemms_->values(attn_input(), tokens_, dims_.q_width(), stream_.get());
        return read(at_.attn, {tokens_, dims_.q_width()});
      case Slot::kRouterLogits: return read(at_.router_logits, {tokens_, dims_.experts});
      case Slot::kExpertIds: return read(at_.expert_ids, {tokens_, dims_.topk});
      case Slot::kExpertWeights: return read(at_.expert_weights, {tokens_, dims_.topk});
      case Slot::kExpertHidden:
        if (path_ && path_->experts_on_gemms()) return gemms_->expert_hidden(tokens_, stream_.get());
        if (moe_kernel_ == MoeKernel::kGemv) return int8_hidden();
        if (path_) return read(at_.expert_hidden_f16, {tokens_, dims_.topk, dims_.inter});
        return read(at_.expert_hidden, {tokens_, dims_.topk, dims_.inter});
      case Slot::kLogits: return read(at_.logits, {logit_rows_, dims_.vocab});
    }
    return {};
  }

 private:
  // Grows when a request with bias or penalties needs more; most have none.
  struct History {
    DeviceBytes bytes;
    size_t capacity = 0;
  };
  struct LinearShape {
    int64_t tokens, rows, cols;
  };

  void use_gemms() {
    Carver measure(nullptr);
    static_cast<void>(GemmPath(config_, measure));
    gemm_memory_ = allocate_device(measure.bytes(), "activations of many tokens");
    cuda_check(cudaMemsetAsync(gemm_memory_.get(), 0xff, static_cast<size_t>(measure.bytes()), stream_.get()));
    Carver place(gemm_memory_.get());
    gemms_.emplace(config_, place);
    path_->use_gemms(&*gemms_, moe_kernel_, attention_.flash());
  }
  [[nodiscard]] SlotData int8_hidden() {
    std::vector<F16> blocks(static_cast<size_t>(tokens_ * dims_.topk * dims_.inter));
    cuda_check(cudaMemcpyAsync(blocks.data(), at_.expert_hidden_f16, blocks.size() * sizeof(F16),
                               cudaMemcpyDeviceToHost, stream_.get()));
    cuda_check(cudaStreamSynchronize(stream_.get()));
    return {{tokens_, dims_.topk, dims_.inter}, int8_values(blocks)};
  }

  [[nodiscard]] GemmInput attn_input() const { return path_ ? path_->attn_input() : GemmInput{}; }
  [[nodiscard]] bool capturing() const { return graphs_ && graphs_->capturing(); }

  static Matrices matrices_of(MoeKernel kernel) {
    return kernel == MoeKernel::kReference ? Matrices::kRowOrder : Matrices::kPacked;
  }
  // Of halves that came apart, the second one's handle stands for both.
  static WeightHandle either(WeightHandle whole, WeightHandle second) { return whole.idx >= 0 ? whole : second; }
  [[nodiscard]] const Bf16* bf16(WeightHandle handle) const { return weights_.bf16(handle); }

  void norm(RmsnormLaunch args, int64_t rows) {
    args.out = at_.normed;
    args.rows = to_int(rows);
    args.hidden = to_int(dims_.hidden);
    args.eps = config_.rms_eps;
    kernels_.rmsnorm(args, on_);
  }

  void linear(LinearLaunch args, const LinearShape& shape) {
    args.tokens = to_int(shape.tokens);
    args.rows = to_int(shape.rows);
    args.cols = to_int(shape.cols);
    kernels_.linear(args, on_);
  }

  void put_history(History& history, std::span<const std::byte> host) {
    if (host.empty()) return;
    if (host.size() > history.capacity) {
      cuda_check(cudaStreamSynchronize(stream_.get()));  // earlier samples may still read it
      history.capacity = 2 * host.size();
      history.bytes = allocate_device(static_cast<int64_t>(history.capacity), "sampling penalties");
    }
    // From pageable memory: read before the call returns.
    cuda_check(cudaMemcpyAsync(history.bytes.get(), host.data(), host.size(), cudaMemcpyHostToDevice, stream_.get()));
  }

  template <class T>
  [[nodiscard]] SlotData read(const T* device, Shape shape) {
    const int64_t count = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
    std::vector<T> values(static_cast<size_t>(count));
    cuda_check(
        cudaMemcpyAsync(values.data(), device, values.size() * sizeof(T), cudaMemcpyDeviceToHost, stream_.get()));
    cuda_check(cudaStreamSynchronize(stream_.get()));
    SlotData data{std::move(shape), std::vector<float>(values.size())};
    std::transform(values.begin(), values.end(), data.values.begin(), [](T value) {
      if constexpr (std::is_same_v<T, F16> || std::is_same_v<T, Bf16>) {
        return value.to_float();
      } else {
        return static_cast<float>(value);
      }
    });
    return data;
  }

  const BackendConfig config_;
  const Dims& dims_ = config_.dims;
  const MoeKernel moe_kernel_;
  const DeviceFacts facts_;
  const KernelTable kernels_;
  const Stream stream_;
  Attention attention_;
  LaunchCounts counts_{};
  LaunchTrace trace_;
  Launch on_{stream_.get(), &counts_, &trace_};
  const std::vector<MappedSource> files_;
  DeviceWeights weights_;
  DeviceBytes memory_;
  Arena at_;
  DeviceBytes gemm_memory_;
  std::optional<GemmPath> gemms_;
  std::optional<DecodePath> path_;
  std::optional<StepInputs> inputs_;
  std::optional<StepGraphs> graphs_;
  std::optional<Profiler> profiler_;
  bool graph_sinks_ = true;  // what the captured steps assume
  SamplePlan plan_;
  History shifts_, biases_, masks_;
  std::optional<Tickets> tickets_;
  int64_t tokens_ = 0, logit_rows_ = 0;
};

}  // namespace

std::unique_ptr<CudaBackend> make_cuda_backend(const BackendConfig& config, const CudaOptions& options) {
  return std::make_unique<StreamedCudaBackend>(config, options);
}

}  // namespace nibble::backend
