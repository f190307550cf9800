#include "backend/cuda/cuda_backend.h"

#include "backend/cuda/card_member.h"

#include "backend/cuda/memory/arena.h"
#include "backend/cuda/attention/attend_plan.h"
#include "backend/cuda/card/device.h"
#include "backend/cuda/program/choices.h"
#include "backend/cuda/memory/device_weights.h"
#include "backend/cuda/launch/launch.h"
#include "backend/cuda/quantise/round_blocks.h"
#include "backend/cuda/layout/mx_b_n8k64.h"
#include "backend/cuda/layout/wgmma_b.h"
#include "backend/cuda/card/profiler.h"
#include "backend/cuda/program/program.h"
#include "backend/cuda/sampling/sample.h"
#include "backend/cuda/program/step_graph.h"
#include "backend/cuda/program/step_inputs.h"
#include "backend/cuda/program/step_outputs.h"
#include "base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>

namespace nibble::backend {
namespace {

using namespace cuda;  // NOLINT: this file is the room's own

int to_int(int64_t value) { return static_cast<int>(value); }

class CudaBackend final : public Member {
 public:
  CudaBackend(const BackendConfig& config, const RunConfig& run, CudaSetup setup,
              const std::vector<Arch>& architectures, const CudaRank& rank)
      : config_(config),
        run_(resolved_cuda(config, run)),
        setup_(std::move(setup)),
        rank_(rank),
        family_(run_.family),
        card_(open_device(rank.device), architectures),
        stream_(make_stream()),
        weights_({config_, matrices_of(family_), setup_.files, run_.threads,
                  card_.facts.integrated ? Uploader::PageCache::kDropped : Uploader::PageCache::kUsed},
                 stream_.get()) {
    require_kernels(card_.facts);
    require_moe_tile(config_, run_, card_);
    const ArenaNeeds needs = arena_needs(config_, run_, card_);
    Carver measure(nullptr);
    static_cast<void>(carve(needs, measure));
    memory_ = allocate_device(measure.bytes(), "activations and KV pages");
    // All ones is NaN in every float type: reading what was never written shows at once.
    cuda_check(cudaMemsetAsync(memory_.get(), 0xff, static_cast<size_t>(measure.bytes()), stream_.get()));
    Carver place(memory_.get());
    at_ = carve(needs, place);
    if (needs.matrices == Matrices::kPacked) {
      zero(at_.down_finished, dims_.hidden / layout::kTileRows);
      if (at_.gemm_ranges.finished != nullptr) zero(at_.gemm_ranges.finished, 1);
    }
    if (!run_.eager && has_graphs(config_, needs))
      graphs_.emplace(on_, std::min(config_.max_rows, config_.max_tokens) + drafts_begin());
    if (needs.flash) zero(at_.attend_finished, at_.attend_counters);
    inputs_.emplace(config_, at_, stream_.get());
    const std::span freq(config_.rope_inv_freq);
    check(static_cast<int64_t>(freq.size()) == dims_.head_dim / 2, "one rope frequency per pair");
    cuda_check(
        cudaMemcpyAsync(at_.rope_inv_freq, freq.data(), freq.size_bytes(), cudaMemcpyHostToDevice, stream_.get()));
    if (at_.head.target_ids != nullptr) {
      const std::span ids(config_.head->target_ids);
      cuda_check(
          cudaMemcpyAsync(at_.head.target_ids, ids.data(), ids.size_bytes(), cudaMemcpyHostToDevice, stream_.get()));
    }
    if (rank_.comm != nullptr) share();
    tickets_.emplace(config_.max_rows, vocab(), stream_.get());
    if (!config_.taps.empty())
      tap_copies_.emplace(config_.max_tokens, std::ssize(config_.taps) * dims_.hidden, stream_.get());
    profiler_.emplace(on_, graphs_ ? &*graphs_ : nullptr, rank_.device);
  }

  ~CudaBackend() override { cudaStreamSynchronize(stream_.get()); }

  [[nodiscard]] std::string_view name() const override { return "cuda"; }
  [[nodiscard]] KernelFamily kernel_family() const override { return family_; }
  [[nodiscard]] std::string modes() const override {
    std::string arches;
    for (const Arch& arch : card_.arches) arches += (arches.empty() ? "" : ", then ") + std::string(arch.name);
    const Activations dense = run_.dense_activations;
    return fmt::format("experts {}, activations {}{}, attention {}{}, CUDA graphs {}, kernels of {}",
                       backend::name_of(family_), backend::name_of(run_.activations),
                       rounds(dense) ? fmt::format(" (dense layers' {})", backend::name_of(dense)) : "",
                       backend::name_of(run_.attention), run_.fp8_attention() ? " (operands fp8)" : "",
                       graphs_ ? "on" : "off", arches);
  }
  [[nodiscard]] int64_t graph_replays() const override { return graphs_ ? graphs_->replays() : 0; }

  [[nodiscard]] std::vector<KernelLaunches> launches() const override {
    std::vector<KernelLaunches> result;
    for (const auto& [kernel, count] : counts_) result.push_back({kernel, count});
    return result;
  }

  WeightHandle upload(const HostWeight& weight) override {
    HostWeight part = weight;
    if (rank_.comm != nullptr)
      part.slice = slice_of(weight, rank_.whole, shard_of(rank_.whole, rank_.ranks, rank_.comm->rank()));
    return weights_.upload(part);
  }
  void finish_upload() override { weights_.finish(); }

  void copy_page(const PageCopy& copy) override {
    for (size_t l = 0; l < at_.kv.size(); ++l) {
      if (config_.layer_kinds[l] != copy.kind) continue;
      const int64_t bytes = int64_t{kPageTokens} * dims_.kv_heads * page_row_bytes(at_.kv[l].type, dims_.head_dim);
      for (void* part : {at_.kv[l].keys, at_.kv[l].values}) {
        std::byte* pages = static_cast<std::byte*>(part);
        cuda_check(cudaMemcpyAsync(pages + copy.to * bytes, pages + copy.from * bytes, static_cast<size_t>(bytes),
                                   cudaMemcpyDeviceToDevice, stream_.get()));
      }
    }
  }

  void prepare(const StepArgs& step, bool watched) override {
    if (watched) {
      watched_ = step;
      return begin(step);
    }
    graph_ = graph_of(step);
    next_ = graph_ > 0 ? graphs_->next(graph_) : StepGraphs::Next::kRun;
    if (next_ == StepGraphs::Next::kReplay) return open(step, &graph_programs_.at(graph_));
    begin(step);
    if (next_ == StepGraphs::Next::kRun) return;
    program_ = &(graph_programs_[graph_] = *program_);
    graphs_->begin_capture(graph_);
    execute_all(on_);
    graphs_->end_capture();
  }

  [[nodiscard]] StepRun enqueue(const AfterStage& after) override {
    if (after) return {walk(*this, watched_, config_.layer_kinds, after)};
    switch (next_) {
      case StepGraphs::Next::kReplay: graphs_->replay(graph_); break;
      case StepGraphs::Next::kCapture: graphs_->launch(graph_); break;
      case StepGraphs::Next::kRun: execute_all(on_); break;
    }
    ran_ = Stage::kLogits;
    if (params_ == nullptr) return {};
    return {tickets_->hand_out(at_.sampled)};
  }

  void begin(const StepArgs& step) override {
    eager_program_ = make_program({.config = config_,
                                   .run = run_,
                                   .step = {.rows = step.rows, .logit_rows = std::ssize(step.logit_tokens)},
                                   .card = card_,
                                   .reduce = reduce_ ? &*reduce_ : setup_.reduce,
                                   .scales = weights_.scales(),
                                   .tuned = setup_.tuned,
                                   .fed_back = step.taps.empty()});
    open(step, &eager_program_);
    if (peers() != nullptr) load_kernels();
  }

  void embed(const EmbedArgs& /*args*/) override { execute(Stage::kEmbed, 0, on_); }
  void attn_in(const AttnInArgs& args) override { execute(Stage::kAttnIn, layer_ = args.layer_idx, on_); }
  void attend(const AttendArgs& args) override { execute(Stage::kAttend, args.layer_idx, on_); }
  void attn_out(const AttnOutArgs& /*args*/) override { execute(Stage::kAttnOut, layer_, on_); }
  void route(const RouteArgs& /*args*/) override { execute(Stage::kRoute, layer_, on_); }
  void moe(const MoeArgs& /*args*/) override { execute(Stage::kMoe, layer_, on_); }
  void logits(const LogitsArgs& /*args*/) override {
    picks_ = false;  // who calls verb by verb may look
    execute_logits(on_);
  }
  Ticket sample(const SampleArgs& /*args*/) override {
    enqueue_draw(on_);  // logits() has gathered
    return tickets_->hand_out(at_.sampled);
  }

  [[nodiscard]] std::vector<DrawnToken> wait(Ticket ticket) override {
    std::vector<DrawnToken> drawn = tickets_->wait(ticket);
    if (rank_.comm != nullptr) rank_.comm->require();
    if (config_.head)
      for (DrawnToken& each : drawn) each.token = config_.head->target_id(each.token);
    return drawn;
  }

  [[nodiscard]] bool keeps_taps(std::span<const int> boundaries) const override {
    return !boundaries.empty() && std::ranges::equal(boundaries, config_.taps);
  }
  [[nodiscard]] TapTicket copy_taps() override {
    check(tap_copies_.has_value(), "a backend that keeps taps");
    return tap_copies_->copy(at_.taps, program_->tokens);
  }
  [[nodiscard]] std::span<const float> wait_taps(TapTicket ticket) override { return tap_copies_->wait(ticket); }

  [[nodiscard]] KernelProfiler* kernel_profiler() override { return &*profiler_; }

  [[nodiscard]] SlotData peek(Slot slot) override {
    const Program& program = *program_;
    const int64_t tokens = program.tokens, pairs = tokens * dims_.topk;
    const SlotForm held = program.held[static_cast<size_t>(ran_)][static_cast<size_t>(slot)];
    if (held == SlotForm::kNothing) return {};
    switch (slot) {
      case Slot::kResidual:
        return read(held == SlotForm::kSum ? at_.residual_sum : at_.residual, {tokens, dims_.hidden});
      case Slot::kDelta: {
        SlotData delta = read(at_.delta, {tokens, dims_.hidden});
        if (held == SlotForm::kParts) {
          const SlotData more = read(at_.delta + tokens * dims_.hidden, delta.shape);
          std::transform(delta.values.begin(), delta.values.end(), more.values.begin(), delta.values.begin(),
                         std::plus());
        }
        return delta;
      }
      case Slot::kNormed:
        return held == SlotForm::kF16 ? read(at_.normed_f16, {tokens, dims_.hidden})
                                      : read(at_.normed, {tokens, dims_.hidden});
      case Slot::kQkv: return plain_qkv();
      case Slot::kQ: return read(at_.q, {tokens, dims_.q_width()});
      case Slot::kAttn: return held == SlotForm::kInput ? attn_input() : read(at_.attn, {tokens, dims_.q_width()});
      case Slot::kRouterLogits: return read(at_.router_logits, {tokens, dims_.experts});
      case Slot::kExpertIds: return read(at_.expert_ids, {tokens, dims_.topk});
      case Slot::kExpertWeights: return read(at_.expert_weights, {tokens, dims_.topk});
      case Slot::kExpertHidden: {
        const Shape shape = {tokens, dims_.topk, layout::block_pair_width(dims_.inter)};
        if (held == SlotForm::kPlaces) return placed_hidden();
        if (held == SlotForm::kCodes) return channels(mx_rows({at_.gemm_u, program.hidden_codes}, pairs, shape));
        if (held == SlotForm::kF16)
          return channels(
              read(program.hidden_in_gemm ? reinterpret_cast<const F16*>(at_.gemm_u) : at_.expert_hidden_f16, shape));
        return read(at_.expert_hidden, {tokens, dims_.topk, dims_.inter});
      }
      case Slot::kLogits:
        if (picks_) return {};  // nobody has all of them
        return read(all_logits(), {program.logit_rows, vocab()});
    }
    return {};
  }

 private:
  // Grows when a request with bias or penalties needs more; most have none.
  struct History {
    DeviceBytes bytes;
    size_t capacity = 0;
  };

  static Matrices matrices_of(KernelFamily kernel) {
    return kernel == KernelFamily::kReference ? Matrices::kRowOrder : Matrices::kPacked;
  }

  void zero(int* counters, int64_t count) {
    cuda_check(cudaMemsetAsync(counters, 0, static_cast<size_t>(count) * sizeof(int), stream_.get()));
  }

  // Rows of logits of all ranks, and what they are drawn from.
  [[nodiscard]] int64_t vocab() const { return rank_.comm == nullptr ? dims_.vocab : rank_.whole.vocab; }
  [[nodiscard]] float* all_logits() const {
    return rank_.comm == nullptr ? at_.logits : reinterpret_cast<float*>(gathered_.get());
  }

  void share() {
    const Comm* const comm = rank_.comm;
    reduce_ =
        Reduce{.ranks = rank_.ranks.count, .by_nccl = peers() == nullptr, .fused = peers() != nullptr, .launch = {}};
    if (const PeerComm* const near = peers()) {
      reduce_->ranks_on_card = near->ranks_on_card();
      reduce_->places = near->places();
      reduce_->exchange = near->exchange();
    }
    reduce_->launch = [comm, near = peers()](const DeltaValues& values, const Combine::Args* parts, const Launch& on) {
      parts == nullptr ? comm->reduce(values, on) : near->reduce(*parts, on);
    };
    gathered_ = allocate_device(gathered_bytes(config_, rank_.whole), "logits of all ranks");
    if (peers() == nullptr) gathering_ = allocate_device(gathered_bytes(config_, rank_.whole), "logits on their way");
    for (int rank = 0; rank < rank_.ranks.count; ++rank)
      columns_.push_back(shard_of(rank_.whole, rank_.ranks, rank).vocab);
  }

  // Whose memory the other ranks reach; null: there are none, or they are other processes.
  [[nodiscard]] const PeerComm* peers() const { return rank_.comm == nullptr ? nullptr : rank_.comm->peers(); }

  // A kernel that is loaded late waits for those that run, and these wait for the ranks that are still loading. So what
  // a step has not run before is recorded into a graph that nobody runs: that loads it. Ranks of other processes load
  // and enqueue whatever happens here.
  void load_kernels() {
    bool news = false;
    for (const Node& node : program_->nodes) news |= loaded_.insert(node.kernel + ", " + node.tile).second;
    if (params_ != nullptr) {
      const bool shifts = samples_.most_shifts > 0, masks = !samples_.masks.empty();
      news |= loaded_.insert(fmt::format("draw, {}, {}, {}, {}", shifts, samples_.filters, masks, picks_)).second;
    }
    if (!news) return;
    cuda_check(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeRelaxed));
    execute_all({.stream = stream_.get()});
    static_cast<void>(captured(stream_.get()));
  }

  // One draw per token, rows that decode attention takes, nothing that needs arrays of its own: steps of plain
  // decoding, and steps with guesses. Their launches follow from the number of tokens, whoever's they are.
  // The number of such a step's graph: its tokens. A head's draft begins with taps; of one sequence, which draws once,
  // such steps have graphs behind the others. 0: none.
  [[nodiscard]] int64_t graph_of(const StepArgs& step) {
    const bool begins = !step.taps.empty();
    const int64_t tokens = std::ssize(step.ids), draws = begins ? 1 : tokens;
    if (!graphs_ || tokens < 1 || std::ssize(step.logit_tokens) != draws || std::ssize(step.sample_rows) != draws ||
        !step.sinks)
      return 0;
    const int64_t others = graphs_->most_tokens() - drafts_begin();
    if (tokens > (begins ? drafts_begin() : others)) return 0;
    for (const Row& row : step.rows)
      if (row.tokens > kMaxDecodeTokens) return 0;
    for (const SampleRow& row : step.sample_rows)
      if (row.logprobs >= 0 || row.given >= 0) return 0;
    fill_sample_inputs(step.sample_rows, samples_);
    if (samples_.filters || samples_.most_shifts > 0 || !samples_.masks.empty()) return 0;
    return begins ? others + tokens : tokens;
  }
  // Most tokens of a step with which a head's draft begins and that has a graph.
  [[nodiscard]] int drafts_begin() const { return config_.head ? kMaxDecodeTokens : 0; }

  // Its arrays are on their way; `program` is what runs.
  void open(const StepArgs& step, const Program* program) {
    check(weights_.finished(), "finish_upload() comes before the first step");
    check(program->tokens <= config_.max_tokens, "a step holds at most max_tokens tokens");
    check(program->logit_rows <= config_.max_rows, "a step holds at most max_rows rows of logits");
    program_ = program;
    if (layers_.empty()) point_at(*step.weights);
    profiler_->begin_step();
    step_ = inputs_->put(step, program->shares);
    params_ = nullptr;
    picks_ = false;
    if (step.sample_rows.empty()) return;
    check(step.sample_rows.size() == step.logit_tokens.size(), "one sample row per row of logits");
    tickets_->open(step.sample_rows);
    fill_sample_inputs(step.sample_rows, samples_);
    params_ = inputs_->params(samples_);
    picks_ = peers() != nullptr && draws_by_columns(step.sample_rows);
    put_history(shifts_, std::as_bytes(std::span(samples_.shifts)));
    put_history(biases_, std::as_bytes(std::span(samples_.biases)));
    put_history(masks_, std::as_bytes(std::span(samples_.masks)));
  }

  void execute_all(const Launch& on) {
    execute(Stage::kEmbed, 0, on);
    for (int layer = 0; layer < dims_.layers; ++layer)
      for (const Stage stage : {Stage::kAttnIn, Stage::kAttend, Stage::kAttnOut, Stage::kRoute, Stage::kMoe})
        execute(stage, layer, on);
    if (picks_) {
      execute(Stage::kLogits, 0, on);
      return enqueue_pick(on);
    }
    execute_logits(on);
    if (params_ != nullptr) enqueue_draw(on);
  }

  // Whether the best of each rank's columns says whose token is drawn: all but a filter's sums and a row's own
  // log-probabilities is a token's alone.
  [[nodiscard]] bool draws_by_columns(std::span<const SampleRow> rows) const {
    return !samples_.filters && std::ranges::none_of(rows, [](const SampleRow& row) { return row.logprobs >= 0; });
  }

  void execute_logits(Launch on) {
    execute(Stage::kLogits, 0, on);
    if (rank_.comm == nullptr || program_->logit_rows == 0) return;
    on.stage = Stage::kLogits;
    rank_.comm->gather({.own = at_.logits,
                        .all = all_logits(),
                        .columns = columns_,
                        .rows = program_->logit_rows,
                        .width = vocab(),
                        .scratch = reinterpret_cast<float*>(gathering_.get())},
                       on);
  }

  void execute(Stage stage, int layer, const Launch& on) {
    program_->execute(stage,
                      {.config = config_,
                       .at = at_,
                       .step = step_,
                       .w = layers_[static_cast<size_t>(layer)],
                       .layer = layer,
                       .kind = config_.layer_kinds[static_cast<size_t>(layer)]},
                      on);
    ran_ = stage;
  }

  // From all logits.
  void enqueue_draw(Launch on) {
    on.stage = Stage::kLogits;
    tickets_->keep(all_logits());
    Sample::Args args = draw_args();
    args.logits = all_logits();
    args.tokens = at_.sampled;
    args.vocab = to_int(vocab());
    Sample::launch(args, on);
  }

  // From the rank's columns, and the first of all ranks'.
  void enqueue_pick(Launch on) {
    on.stage = Stage::kLogits;
    const Range& columns = columns_[static_cast<size_t>(rank_.comm->rank())];
    Sample::Args args = draw_args();
    args.logits = at_.logits;
    args.vocab = to_int(columns.count);
    args.first = to_int(columns.first);
    Sample::launch(args, on);
    peers()->pick({.value = at_.sample_part_value,
                   .token = at_.sample_part_token,
                   .tokens = at_.sampled,
                   .rows = args.rows,
                   .parts = sample_parts(args.rows),
                   .pitch = kSampleParts},
                  on);
  }

  // All but where the logits lie.
  [[nodiscard]] Sample::Args draw_args() const {
    return {.params = params_,
            .shifts = reinterpret_cast<const LogitShift*>(shifts_.bytes.get()),
            .biases = reinterpret_cast<const float*>(biases_.bytes.get()),
            .masks = reinterpret_cast<const uint32_t*>(masks_.bytes.get()),
            .threshold = at_.sample_threshold,
            .part_value = at_.sample_part_value,
            .part_token = at_.sample_part_token,
            .rows = to_int(program_->logit_rows),
            .mask_vocab = to_int(vocab()),
            .most_shifts = samples_.most_shifts,
            .filters = samples_.filters,
            .masked = !samples_.masks.empty()};
  }

  // Where the model's weights lie, layer by layer: a model's are uploaded once.
  void point_at(const Weights& weights) {
    const bool packed = matrices_of(family_) == Matrices::kPacked;
    const LayerWeights& outer = weights.outer;
    for (const LayerWeights& w : weights.layers) {
      if (config_.head) {
        layers_.push_back(head_layer(outer, w));
        continue;
      }
      LayerPointers own{.embedding = bf16(outer[WeightRole::kEmbedding]),
                        .final_norm = bf16(outer[WeightRole::kFinalNorm]),
                        .attn_norm = bf16(w[WeightRole::kAttnNorm]),
                        .sinks = bf16(w[WeightRole::kSinks]),
                        .mlp_norm = bf16(w[WeightRole::kMlpNorm]),
                        .o_bias = bf16(w[WeightRole::kOBias]),
                        .router = bf16(w[WeightRole::kRouter]),
                        .router_bias = bf16(w[WeightRole::kRouterBias]),
                        .gate_up_bias = bf16(w[WeightRole::kGateUpBias]),
                        .down_bias = bf16(w[WeightRole::kDownBias])};
      if (packed) {
        own.unembedding = weights_.matrix(outer[WeightRole::kUnembedding]);
        own.qkv = weights_.matrix(w[WeightRole::kQ]);
        own.o = weights_.matrix(w[WeightRole::kO]);
        own.gate_up = weights_.matrix(w[WeightRole::kGateUp]);
        own.down = weights_.matrix(w[WeightRole::kDown]);
        own.q_bias = weights_.qkv_bias(w[WeightRole::kQBias]);
      } else {
        own.unembedding_rows = bf16(outer[WeightRole::kUnembedding]);
        own.q = bf16(w[WeightRole::kQ]);
        own.k = bf16(w[WeightRole::kK]);
        own.v = bf16(w[WeightRole::kV]);
        own.o_rows = bf16(w[WeightRole::kO]);
        own.gate_up_rows = weights_.mxfp4(w[WeightRole::kGateUp]);
        own.down_rows = weights_.mxfp4(w[WeightRole::kDown]);
        own.q_bias = bf16(w[WeightRole::kQBias]);
        own.k_bias = bf16(w[WeightRole::kKBias]);
        own.v_bias = bf16(w[WeightRole::kVBias]);
      }
      layers_.push_back(own);
    }
  }
  [[nodiscard]] LayerPointers head_layer(const LayerWeights& outer, const LayerWeights& w) const {
    using enum WeightRole;
    const auto floats = [&](WeightHandle handle) { return handle.idx >= 0 ? weights_.floats(handle) : nullptr; };
    LayerPointers own;
    own.embedding = bf16(outer[kEmbedding]);
    own.unembedding_rows = bf16(outer[kUnembedding]);
    own.q = bf16(w[kQ]);
    own.o_rows = bf16(w[kO]);
    own.head = {.tap_fc = bf16(outer[kTapFc]),
                .gate_up = bf16(w[kGateUp]),
                .down = bf16(w[kDown]),
                .tap_norm = floats(outer[kTapNorm]),
                .attn_norm = floats(w[kAttnNorm]),
                .hidden_norm = floats(w[kHiddenNorm]),
                .mlp_norm = floats(w[kMlpNorm]),
                .final_norm = floats(outer[kFinalNorm]),
                .qkv_bias = floats(w[kQBias]),
                .o_bias = floats(w[kOBias]),
                .gate_up_bias = floats(w[kGateUpBias]),
                .down_bias = floats(w[kDownBias])};
    return own;
  }
  [[nodiscard]] const Bf16* bf16(WeightHandle handle) const {
    return handle.idx >= 0 ? weights_.bf16(handle) : nullptr;
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
  [[nodiscard]] std::vector<T> host_copy(const T* device, int64_t count) {
    std::vector<T> values(static_cast<size_t>(count));
    cuda_check(
        cudaMemcpyAsync(values.data(), device, values.size() * sizeof(T), cudaMemcpyDeviceToHost, stream_.get()));
    cuda_check(cudaStreamSynchronize(stream_.get()));
    return values;
  }

  [[nodiscard]] SlotData plain_qkv() {
    const int64_t tokens = program_->tokens;
    SlotData all{{tokens, dims_.q_width() + 2 * dims_.kv_width()}, {}};
    const std::vector<float> q = host_copy(at_.q, tokens * dims_.q_width()),
                             k = host_copy(at_.k, tokens * dims_.kv_width()),
                             v = host_copy(at_.v, tokens * dims_.kv_width());
    for (int64_t t = 0; t < tokens; ++t)
      for (const auto& [part, width] : {std::pair{&q, dims_.q_width()}, {&k, dims_.kv_width()}, {&v, dims_.kv_width()}})
        all.values.insert(all.values.end(), part->begin() + t * width, part->begin() + (t + 1) * width);
    return all;
  }

  template <class T>
  [[nodiscard]] SlotData read(const T* device, Shape shape) {
    const int64_t count = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
    const std::vector<T> values = host_copy(device, count);
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

  // What attention made, as o's GEMM takes it.
  [[nodiscard]] SlotData attn_input() {
    const GemmInput& input = program_->attn_input;
    const int64_t tokens = program_->tokens, cols = dims_.q_width(), rows = input.rows > 0 ? input.rows : tokens;
    const std::vector<uint16_t> bits = host_copy(at_.gemm_x, rows * cols);
    std::vector<float> values;
    values.reserve(static_cast<size_t>(tokens * cols));
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t k = 0; k < cols; ++k) {
        const int64_t at = input.rows > 0 ? layout::place_in_panels(rows, t, k) : t * cols + k;
        const uint16_t own = bits[static_cast<size_t>(at)];
        values.push_back(input.type == InputType::kF16 ? F16{own}.to_float() : Bf16{own}.to_float());
      }
    return {{tokens, cols}, std::move(values)};
  }

  // Rows of codes; cols: the last of shape.
  [[nodiscard]] SlotData mx_rows(const GemmInput& input, int64_t rows, Shape shape) {
    const MxFormat element = element_of(input.type);
    const int cols = to_int(shape.back()), pitch = layout::mx_row_bytes(element, cols);
    const std::vector<uint8_t> bytes = host_copy(reinterpret_cast<const uint8_t*>(input.at), rows * pitch);
    const int mask = (1 << layout::mx_code_bits(element)) - 1;
    SlotData data{std::move(shape), {}};
    data.values.reserve(static_cast<size_t>(rows * cols));
    for (int64_t row = 0; row < rows; ++row)
      for (int k = 0; k < cols; ++k) {
        const uint8_t* own = bytes.data() + row * pitch;
        const E8m0 scale{own[layout::mx_scale_offset(element, cols, k / layout::kBlockK)]};
        const int code = own[layout::mx_code_offset(element, k)] >> layout::mx_code_shift(element, k) & mask;
        data.values.push_back(mx_decode(element, static_cast<uint8_t>(code), scale));
      }
    return data;
  }

  // Without what is filled up after the last channel.
  [[nodiscard]] SlotData channels(SlotData rows) const {
    const int64_t width = std::exchange(rows.shape.back(), dims_.inter);
    const int64_t count = std::ssize(rows.values) / width;
    for (int64_t row = 0; row < count; ++row)
      std::copy_n(rows.values.begin() + row * width, dims_.inter, rows.values.begin() + row * dims_.inter);
    rows.values.resize(static_cast<size_t>(count * dims_.inter));
    return rows;
  }

  // What the experts' first product left by place.
  [[nodiscard]] SlotData placed_hidden() {
    const int64_t pairs = program_->tokens * dims_.topk, rows = max_places(pairs, dims_.experts);
    const std::vector<uint16_t> u = host_copy(at_.gemm_u, rows * layout::block_pair_width(dims_.inter));
    const std::vector<int32_t> places = host_copy(at_.gemm_places, pairs);
    std::vector<float> values;
    values.reserve(static_cast<size_t>(pairs * dims_.inter));
    for (int64_t pair = 0; pair < pairs; ++pair)
      for (int64_t i = 0; i < dims_.inter; ++i) {
        const int32_t place = places[static_cast<size_t>(pair)];  // -1: another rank's expert
        values.push_back(place < 0 ? 0
                                   : F16{u[static_cast<size_t>(layout::place_in_panels(rows, place, i))]}.to_float());
      }
    if (program_->hidden_to_round) round_activations(program_->activations, values);
    return {{program_->tokens, dims_.topk, dims_.inter}, std::move(values)};
  }

  const BackendConfig config_;
  const RunConfig run_;
  const CudaSetup setup_;
  const Dims& dims_ = config_.dims;
  const CudaRank rank_;
  const KernelFamily family_;
  const Card card_;
  const Stream stream_;
  LaunchCounts counts_{};
  LaunchTrace trace_;
  Launch on_{stream_.get(), &counts_, &trace_};
  DeviceWeights weights_;
  DeviceBytes memory_;
  Arena at_;
  std::vector<LayerPointers> layers_;
  std::optional<StepInputs> inputs_;
  std::optional<StepGraphs> graphs_;
  std::map<int64_t, Program> graph_programs_;  // as graph_of() numbers them
  std::optional<Profiler> profiler_;
  SampleInputs samples_;
  History shifts_, biases_, masks_;
  std::optional<Tickets> tickets_;
  std::optional<TapCopies> tap_copies_;  // with BackendConfig::taps
  // With other ranks.
  std::optional<Reduce> reduce_;
  DeviceBytes gathered_;          // [rows, whole.vocab] logits
  DeviceBytes gathering_;         // those logits, as they come from other processes
  std::vector<Range> columns_;    // of them, by rank
  std::set<std::string> loaded_;  // kernels, as they were cut
  // The step that is under way, or the last one.
  Program eager_program_;
  const Program* program_ = &eager_program_;
  StepPointers step_;
  StepArgs watched_;                         // a step with something to call behind each stage
  const SampleRowParams* params_ = nullptr;  // of its draws; null: it has none
  bool picks_ = false;                       // they need no more of other ranks than each one's best
  StepGraphs::Next next_ = StepGraphs::Next::kRun;
  int64_t graph_ = 0;  // graph_of() it
  int layer_ = 0;
  Stage ran_ = Stage::kEmbed;
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(const BackendConfig& config, const RunConfig& run, CudaSetup setup) {
  return make_cuda_backend(config, run, std::move(setup), architectures());
}

std::unique_ptr<Backend> make_cuda_backend(const BackendConfig& config, const RunConfig& run, CudaSetup setup,
                                           const std::vector<Arch>& architectures) {
  const std::vector<int>& devices = setup.devices;
  const bool first_alone = run.ranks.count == 1 && (devices.empty() || devices.front() == 0);
  if (first_alone) return make_card_member(config, run, std::move(setup), architectures, {});
  return make_cards_backend(config, run, setup, architectures);
}

std::unique_ptr<Member> make_cuda_member(const BackendConfig& whole, const RunConfig& run, const Comm& comm,
                                         CudaSetup setup) {
  RunConfig own = run;
  own.ranks = {};
  const CudaRank rank{.comm = &comm, .whole = whole.dims, .ranks = run.ranks};
  return make_card_member(cuda_config(whole, run.ranks, comm.rank()), own, std::move(setup), architectures(), rank);
}

std::unique_ptr<Member> cuda::make_card_member(const BackendConfig& config, const RunConfig& run, CudaSetup setup,
                                               const std::vector<Arch>& architectures, const CudaRank& rank) {
  return std::make_unique<CudaBackend>(config, run, std::move(setup), architectures, rank);
}

}  // namespace nibble::backend
