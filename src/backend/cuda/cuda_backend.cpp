#include "backend/cuda/cuda_backend.h"

#include "backend/cuda/arena.h"
#include "backend/cuda/attention.h"
#include "backend/cuda/device.h"
#include "backend/cuda/kernel_table.h"
#include "backend/cuda/plan.h"
#include "backend/cuda/sample_plan.h"
#include "backend/cuda/staging.h"
#include "backend/cuda/upload.h"
#include "base/error.h"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>

namespace nibble::backend {
namespace {

using namespace cuda;  // NOLINT: this file is the room's own

constexpr int kTickets = 4;  // that may wait at the same time

int to_int(int64_t value) { return static_cast<int>(value); }

KernelTable kernels_for(const DeviceFacts& facts) {
  const cudaError_t status = any_kernels_fit_device();
  if (status == cudaSuccess) return any_kernels();
  throw Error(Code::kUnsupported, "[cuda] {} (compute capability {}.{}): this build has kernels for {} ({})",
              facts.name, facts.major, facts.minor, NIBBLE_CUDA_ARCHS, cudaGetErrorString(status));
}

// The most that one step's arrays take, twice over.
int64_t staging_bytes(const BackendConfig& config, int64_t page_ids) {
  const int64_t ints = 6 * int64_t{config.max_tokens} + config.max_rows + kLayerKinds * page_ids;
  return 2 * (ints * 4 + config.max_rows * static_cast<int64_t>(sizeof(SampleRowParams)) +
              Attention::staging_bytes(config.max_tokens)) +
         4096;
}

class PlainCudaBackend final : public CudaBackend {
 public:
  PlainCudaBackend(const BackendConfig& config, const CudaOptions& options)
      : config_(config),
        facts_(open_device(options.device)),
        kernels_(kernels_for(facts_)),
        stream_(make_stream()),
        attention_(config_, options, stream_.get()),
        files_(options.files),
        upload_threads_(options.upload_threads) {
    Carver measure(nullptr);
    const int64_t page_ids = carve(config_, options.kv, measure).page_ids;
    memory_ = allocate_device(measure.bytes(), "activations and KV pages");
    // All ones is NaN in every float type: reading what was never written shows at once.
    cuda_check(cudaMemsetAsync(memory_.get(), 0xff, static_cast<size_t>(measure.bytes()), stream_.get()));
    Carver place(memory_.get());
    at_ = carve(config_, options.kv, place);
    staging_.emplace(staging_bytes(config_, page_ids), stream_.get());
    const std::span freq(config_.rope_inv_freq);
    check(static_cast<int64_t>(freq.size()) == dims_.head_dim / 2, "one rope frequency per pair");
    cuda_check(
        cudaMemcpyAsync(at_.rope_inv_freq, freq.data(), freq.size_bytes(), cudaMemcpyHostToDevice, stream_.get()));
    const int64_t tokens = config_.max_tokens, rows = config_.max_rows;
    ids_.emplace(at_.ids, tokens);
    positions_.emplace(at_.positions, tokens);
    token_row_.emplace(at_.token_row, tokens);
    last_key_.emplace(at_.last_key, tokens);
    for (size_t kind = 0; kind < kLayerKinds; ++kind) {
      kv_slots_[kind].emplace(at_.kv_slots[kind], tokens);
      pages_[kind].emplace(at_.pages[kind], page_ids);
    }
    logit_tokens_.emplace(at_.logit_tokens, rows);
    for (Sampled& s : sampled_) {
      s.tokens = allocate_pinned(rows * 4, "sampled tokens");
      s.done = make_event();
    }
    host_row_.reserve(static_cast<size_t>(tokens));
    host_last_.reserve(static_cast<size_t>(tokens));
  }

  ~PlainCudaBackend() override { cudaStreamSynchronize(stream_.get()); }

  [[nodiscard]] std::string_view name() const override { return "cuda"; }
  [[nodiscard]] std::string_view device_name() const override { return facts_.name; }

  [[nodiscard]] std::vector<KernelLaunches> launches() const override {
    std::vector<KernelLaunches> result;
    for (size_t k = 0; k < counts_.size(); ++k) {
      if (counts_[k] > 0) result.push_back({cuda::name_of(static_cast<Kernel>(k)), counts_[k]});
    }
    return result;
  }

  WeightHandle upload(const HostWeight& weight) override {
    const bool experts = weight.role == WeightRole::kGateUp || weight.role == WeightRole::kDown;
    if (weight.format != (experts ? WeightFormat::kMxfp4 : WeightFormat::kBf16) || config_.dense.of(weight.role)) {
      throw Error(Code::kUnsupported, "[cuda] {}: want {}, found {}", backend::name_of(weight.role),
                  experts ? "mxfp4" : "bf16", backend::name_of(config_.dense.of(weight.role).value_or(weight.format)));
    }
    if (!uploader_) uploader_.emplace(files_, upload_threads_);
    const auto put = [&](const RawTensor& tensor) {
      if (tensor.bytes.empty()) return DeviceBytes();
      DeviceBytes bytes = allocate_device(static_cast<int64_t>(tensor.bytes.size()), backend::name_of(weight.role));
      uploader_->copy(bytes.get(), tensor.bytes, stream_.get());
      return bytes;
    };
    Uploaded uploaded{put(weight.values), put(weight.scales)};
    weights_.push_back(std::move(uploaded));
    return {static_cast<int32_t>(weights_.size()) - 1};
  }

  void embed(const EmbedArgs& args) override {
    uploader_.reset();  // its pinned memory is not needed any more
    tokens_ = static_cast<int64_t>(args.ids.size());
    check(tokens_ <= config_.max_tokens, "a step holds at most max_tokens tokens");
    staging_->begin_step();
    kernels_.embed({.table = bf16(args.table),
                    .ids = ids_->put(args.ids, *staging_),
                    .sampled = at_.sampled,
                    .out = at_.residual,
                    .tokens = to_int(tokens_),
                    .hidden = to_int(dims_.hidden)},
                   on_);
  }

  void attn_in(const AttnInArgs& args) override {
    const LayerWeights& w = args.layer;
    norm({.x = at_.residual, .scale = bf16(w[WeightRole::kAttnNorm])}, tokens_);
    linear({.weight = bf16(w[WeightRole::kQ]), .bias = bf16(w[WeightRole::kQBias]), .x = at_.normed, .out = at_.q},
           {tokens_, dims_.q_width(), dims_.hidden});
    linear({.weight = bf16(w[WeightRole::kK]), .bias = bf16(w[WeightRole::kKBias]), .x = at_.normed, .out = at_.k},
           {tokens_, dims_.kv_width(), dims_.hidden});
    linear({.weight = bf16(w[WeightRole::kV]), .bias = bf16(w[WeightRole::kVBias]), .x = at_.normed, .out = at_.v},
           {tokens_, dims_.kv_width(), dims_.hidden});
    const auto kind = static_cast<size_t>(config_.layer_kinds[static_cast<size_t>(args.layer_idx)]);
    kernels_.rope_kv({.q = at_.q,
                      .k = at_.k,
                      .v = at_.v,
                      .positions = positions_->put(args.positions, *staging_),
                      .kv_slots = kv_slots_[kind]->put(args.kv_slots, *staging_),
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
    host_row_.clear();
    host_last_.clear();
    for (size_t r = 0; r < args.rows.size(); ++r) {
      const Row& row = args.rows[r];
      check(row.first_token == static_cast<int32_t>(host_row_.size()), "rows cover the step's tokens in order");
      for (int32_t i = 0; i < row.tokens; ++i) {
        host_row_.push_back(static_cast<int32_t>(r));
        host_last_.push_back(row.context - row.tokens + i);
      }
    }
    check(static_cast<int64_t>(host_row_.size()) == tokens_, "rows cover the step's tokens");
    const AttendLaunch launch{.q = at_.q,
                              .out = at_.attn,
                              .sinks = args.sinks ? bf16(args.layer[WeightRole::kSinks]) : nullptr,
                              .token_row = token_row_->put(host_row_, *staging_),
                              .positions = last_key_->put(host_last_, *staging_),
                              .pages = pages_[static_cast<size_t>(args.kind)]->put(args.pages.ids, *staging_),
                              .kv = at_.kv[static_cast<size_t>(args.layer_idx)],
                              .pages_per_row = args.pages.pages_per_row,
                              .tokens = to_int(tokens_),
                              .heads = to_int(dims_.heads),
                              .kv_heads = to_int(dims_.kv_heads),
                              .head_dim = to_int(dims_.head_dim),
                              .window = args.kind == LayerKind::kSliding ? to_int(dims_.sliding_window) : 0};
    if (attention_.flash()) return attention_.attend(args.rows, launch, *staging_, on_);
    kernels_.attend(launch, on_);
  }

  void attn_out(const AttnOutArgs& args) override {
    linear({.weight = bf16(args.layer[WeightRole::kO]),
            .bias = bf16(args.layer[WeightRole::kOBias]),
            .x = at_.attn,
            .out = at_.residual,
            .store = LinearLaunch::Store::kAdd},
           {tokens_, dims_.hidden, dims_.q_width()});
  }

  void route(const RouteArgs& args) override {
    const LayerWeights& w = args.layer;
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
    const LayerWeights& w = args.layer;
    kernels_.moe({.x = at_.normed,
                  .expert_ids = at_.expert_ids,
                  .expert_weights = at_.expert_weights,
                  .gate_up = mxfp4(w[WeightRole::kGateUp]),
                  .down = mxfp4(w[WeightRole::kDown]),
                  .gate_up_bias = bf16(w[WeightRole::kGateUpBias]),
                  .down_bias = bf16(w[WeightRole::kDownBias]),
                  .hidden_out = at_.expert_hidden,
                  .residual = at_.residual,
                  .pairs = at_.moe_pairs,
                  .tiles = at_.moe_tiles,
                  .tile_count = at_.moe_tile_count,
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
    logit_rows_ = static_cast<int64_t>(args.tokens.size());
    check(logit_rows_ <= config_.max_rows, "a step holds at most max_rows rows of logits");
    norm({.x = at_.residual, .which = logit_tokens_->put(args.tokens, *staging_), .scale = bf16(args.norm)},
         logit_rows_);
    linear({.weight = bf16(args.table), .x = at_.normed, .out = at_.logits}, {logit_rows_, dims_.vocab, dims_.hidden});
  }

  Ticket sample(const SampleArgs& args) override {
    check(static_cast<int64_t>(args.rows.size()) == logit_rows_, "one sample row per row of logits");
    Sampled& out = sampled_[static_cast<size_t>(++ticket_ % kTickets)];
    check(out.ticket == 0, "at most four tickets wait at the same time");
    out.ticket = ticket_;
    keep_logits(args.rows, out);
    plan_samples(args.rows, plan_);
    staging_->copy(at_.sample_params, std::as_bytes(std::span(plan_.params)));
    put_history(shifts_, std::as_bytes(std::span(plan_.shifts)));
    put_history(biases_, std::as_bytes(std::span(plan_.biases)));
    put_history(masks_, std::as_bytes(std::span(plan_.masks)));
    kernels_.sample({.logits = at_.logits,
                     .params = at_.sample_params,
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
    cuda_check(cudaMemcpyAsync(out.tokens.get(), at_.sampled, static_cast<size_t>(logit_rows_) * 4,
                               cudaMemcpyDeviceToHost, stream_.get()));
    cuda_check(cudaEventRecord(out.done.get(), stream_.get()));
    return ticket_;
  }

  [[nodiscard]] std::vector<Drawn> wait(Ticket ticket) override {
    Sampled& out = sampled_[static_cast<size_t>(ticket % kTickets)];
    check(ticket > 0 && out.ticket == ticket, "a ticket is read once");
    cuda_check(cudaEventSynchronize(out.done.get()));
    const auto* tokens = reinterpret_cast<const int32_t*>(out.tokens.get());
    out.ticket = 0;
    std::vector<Drawn> drawn(out.rows.size());
    for (size_t r = 0; r < drawn.size(); ++r) drawn[r] = read_drawn(out.rows[r], tokens[r], out);
    return drawn;
  }

  void mark() override {
    if (marks_used_ == marks_.size()) marks_.push_back(make_timer());
    cuda_check(cudaEventRecord(marks_[marks_used_++].get(), stream_.get()));
  }

  [[nodiscard]] std::vector<double> take_marks_us() override {
    std::vector<double> us;
    for (size_t i = 0; i < marks_used_; ++i) {
      float ms = 0;
      cuda_check(cudaEventSynchronize(marks_[i].get()));
      cuda_check(cudaEventElapsedTime(&ms, marks_[0].get(), marks_[i].get()));
      us.push_back(1e3 * double{ms});
    }
    marks_used_ = 0;
    return us;
  }

  [[nodiscard]] SlotData peek(Slot slot) override {
    switch (slot) {
      case Slot::kResidual: return read(at_.residual, {tokens_, dims_.hidden});
      case Slot::kNormed: return read(at_.normed, {tokens_, dims_.hidden});
      case Slot::kQ: return read(at_.q, {tokens_, dims_.q_width()});
      case Slot::kAttn: return read(at_.attn, {tokens_, dims_.q_width()});
      case Slot::kRouterLogits: return read(at_.router_logits, {tokens_, dims_.experts});
      case Slot::kExpertIds: return read(at_.expert_ids, {tokens_, dims_.topk});
      case Slot::kExpertWeights: return read(at_.expert_weights, {tokens_, dims_.topk});
      case Slot::kExpertHidden: return read(at_.expert_hidden, {tokens_, dims_.topk, dims_.inter});
      case Slot::kLogits: return read(at_.logits, {logit_rows_, dims_.vocab});
    }
    return {};
  }

 private:
  struct Uploaded {
    DeviceBytes values, scales;
  };
  // What is asked of a row beyond its token.
  struct SampledRow {
    int64_t position = 0;
    int32_t given = -1;
    int logprobs = -1;
    bool masked = false;
    int64_t logits = -1;  // its place in Sampled::logits, in rows
  };
  struct Sampled {
    PinnedBytes tokens;
    Event done;
    Ticket ticket = 0;  // 0: free
    std::vector<SampledRow> rows{};
    PinnedBytes logits{};  // as the model gave them; grows when logprobs are asked for
    int64_t logits_rows = 0;
  };
  // Grows when a request with bias or penalties needs more; most have none.
  struct History {
    DeviceBytes bytes;
    size_t capacity = 0;
  };
  struct LinearShape {
    int64_t tokens, rows, cols;
  };

  [[nodiscard]] const Bf16* bf16(WeightHandle handle) const {
    return reinterpret_cast<const Bf16*>(weights_[static_cast<size_t>(handle.idx)].values.get());
  }
  [[nodiscard]] MxfpMatrix mxfp4(WeightHandle handle) const {
    const Uploaded& w = weights_[static_cast<size_t>(handle.idx)];
    return {.codes = reinterpret_cast<const uint8_t*>(w.values.get()),
            .scales = reinterpret_cast<const uint8_t*>(w.scales.get())};
  }

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

  // Notes what the rows ask for and copies the logits of those that want logprobs before sampling changes them.
  void keep_logits(std::span<const SampleRow> rows, Sampled& out) {
    out.rows.clear();
    int64_t kept = 0;
    for (const SampleRow& row : rows) {
      out.rows.push_back({.position = row.position,
                          .given = row.given,
                          .logprobs = row.logprobs,
                          .masked = !row.mask.empty(),
                          .logits = row.logprobs >= 0 ? kept++ : -1});
    }
    const int64_t row_bytes = dims_.vocab * static_cast<int64_t>(sizeof(float));
    if (kept > out.logits_rows) {
      out.logits = allocate_pinned(kept * row_bytes, "logits for logprobs");
      out.logits_rows = kept;
    }
    for (size_t r = 0; r < out.rows.size(); ++r) {
      if (out.rows[r].logits < 0) continue;
      cuda_check(cudaMemcpyAsync(out.logits.get() + out.rows[r].logits * row_bytes,
                                 at_.logits + static_cast<int64_t>(r) * dims_.vocab, static_cast<size_t>(row_bytes),
                                 cudaMemcpyDeviceToHost, stream_.get()));
    }
  }

  [[nodiscard]] Drawn read_drawn(const SampledRow& row, int32_t token, const Sampled& from) const {
    Drawn drawn;
    if (token == kNothingAllowed && row.masked && row.given < 0) {
      drawn.error = nothing_allowed(row.position);
    } else if (token == kNotFinite || (token == kNothingAllowed && !row.masked)) {
      drawn.error = not_finite("NaN or infinity");
    } else {
      drawn.token = row.given >= 0 ? row.given : token;
    }
    if (!drawn.error && row.logprobs >= 0) {
      const auto* logits = reinterpret_cast<const float*>(from.logits.get()) + row.logits * dims_.vocab;
      drawn.logprobs = logprobs_of({logits, static_cast<size_t>(dims_.vocab)}, drawn.token, row.logprobs);
    }
    return drawn;
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
    return {std::move(shape), std::vector<float>(values.begin(), values.end())};
  }

  const BackendConfig config_;
  const Dims& dims_ = config_.dims;
  const DeviceFacts facts_;
  const KernelTable kernels_;
  const Stream stream_;
  Attention attention_;
  LaunchCounts counts_{};
  const Launch on_{stream_.get(), &counts_};
  const std::vector<MappedSource> files_;
  const int upload_threads_;
  std::optional<Uploader> uploader_;
  std::vector<Uploaded> weights_;
  std::vector<Event> marks_;  // kept for the next profile
  size_t marks_used_ = 0;
  DeviceBytes memory_;
  Arena at_;
  std::optional<Staging> staging_;
  std::optional<StepArray<int32_t>> ids_, positions_, token_row_, last_key_, logit_tokens_;
  std::array<std::optional<StepArray<int32_t>>, kLayerKinds> kv_slots_, pages_;
  std::vector<int32_t> host_row_, host_last_;
  SamplePlan plan_;
  History shifts_, biases_, masks_;
  std::array<Sampled, kTickets> sampled_;
  int64_t tokens_ = 0, logit_rows_ = 0;
  Ticket ticket_ = 0;
};

}  // namespace

CudaAvailable cuda_available(int device) {
  try {
    static_cast<void>(kernels_for(open_device(device)));
    return {.yes = true, .reason = {}};
  } catch (const Error& error) {
    return {.yes = false, .reason = error.what()};
  }
}

std::optional<CudaPlanDevice> cuda_plan_device() {
  if (!cuda_available().yes) return std::nullopt;
  const DeviceFacts facts = open_device(0);
  int smem = 0;
  cuda_check(cudaDeviceGetAttribute(&smem, cudaDevAttrMaxSharedMemoryPerMultiprocessor, 0));
  return CudaPlanDevice{facts.name, {.sms = facts.multiprocessors, .sm_smem_bytes = smem}};
}

CudaMemory cuda_memory(int device) {
  static_cast<void>(kernels_for(open_device(device)));
  size_t free = 0, total = 0;
  cuda_check(cudaMemGetInfo(&free, &total));
  return {.free_bytes = static_cast<int64_t>(free), .total_bytes = static_cast<int64_t>(total)};
}

MemoryNeeds cuda_memory_needs(const BackendConfig& config, const CudaOptions& options) {
  Carver measure(nullptr);
  static_cast<void>(carve(config, options.kv, measure));
  using Kv = CudaOptions::Kv;
  const int64_t kv = kv_bytes(config, options.kv == Kv::kF32 ? 4 : options.kv == Kv::kE4m3 ? 1 : 2);
  return {.weights = 0, .kv = kv, .activations = measure.bytes() - kv, .upload = Uploader::kRingBytes};
}

std::unique_ptr<CudaBackend> make_cuda_backend(const BackendConfig& config, const CudaOptions& options) {
  return std::make_unique<PlainCudaBackend>(config, options);
}

}  // namespace nibble::backend
