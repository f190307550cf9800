#include "backend/cuda/cuda_backend.h"

#include "backend/cuda/card_member.h"

#include "backend/cuda/memory/arena.h"
#include "backend/cuda/attention/attend_plan.h"
#include "backend/cuda/card/device.h"
#include "backend/cuda/program/choices.h"
#include "backend/cuda/memory/device_weights.h"
#include "backend/cuda/memory/expert_copies.h"
#include "backend/cuda/memory/host_link.h"
#include "backend/cuda/memory/screen_weights.h"
#include "backend/cuda/launch/launch.h"
#include "backend/cuda/card/profiler.h"
#include "backend/cuda/program/program.h"
#include "backend/cuda/sampling/sample.h"
#include "backend/cuda/program/step_graph.h"
#include "backend/cuda/program/step_exchange.h"
#include "base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
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
    for (const std::span<std::byte> zeros : place.zeros())
      cuda_check(cudaMemsetAsync(zeros.data(), 0, zeros.size(), stream_.get()));
    if (!run_.eager && has_graphs(config_, needs))
      graphs_.emplace(on_, std::min(config_.max_rows, config_.max_tokens) + drafts_begin());
    if (needs.screen) {
      screen_.emplace(dims_.vocab, dims_.hidden);
      at_.screen->shown = screen_->counts();
    }
    if (const int layers = host_layers(run_, dims_.layers); layers > 0) {
      if (rank_.comm != nullptr)
        throw Error(Code::kUnsupported, "--n-cpu-moe {}: want one card, found {} ranks", layers, rank_.ranks.count);
      check(static_cast<bool>(setup_.host_experts), "who leaves experts to the host says who computes them");
      host_.emplace(setup_.host_experts(config_), config_, layers, stream_.get());
      at_.host = host_->at();
      if (at_.expert_slots) copies_.emplace(config_, setup_.files, run_.threads, *at_.expert_slots, stream_.get());
    }
    inputs_.emplace(config_, at_, stream_.get());
    const std::span freq(config_.rope_inv_freq);
    check(static_cast<int64_t>(freq.size()) == dims_.head_dim / 2, "one rope frequency per pair");
    cuda_check(
        cudaMemcpyAsync(at_.rope.inv_freq, freq.data(), freq.size_bytes(), cudaMemcpyHostToDevice, stream_.get()));
    if (at_.head && at_.head->target_ids != nullptr) {
      const std::span ids(config_.head->target_ids);
      cuda_check(
          cudaMemcpyAsync(at_.head->target_ids, ids.data(), ids.size_bytes(), cudaMemcpyHostToDevice, stream_.get()));
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
    const std::string on_host =
        host_ ? fmt::format(" (of {} layers on the host: {})", host_->layers(), host_->experts().modes()) : "";
    return fmt::format("experts {}{}, activations {}{}, attention {}{}, CUDA graphs {}, kernels of {}",
                       backend::name_of(family_), on_host, backend::name_of(run_.activations),
                       rounds(dense) ? fmt::format(" (dense layers' {})", backend::name_of(dense)) : "",
                       backend::name_of(run_.attention), run_.fp8_attention() ? " (operands fp8)" : "",
                       graphs_ ? "on" : "off", arches);
  }
  [[nodiscard]] int64_t graph_replays() const override { return graphs_ ? graphs_->replays() : 0; }

  [[nodiscard]] ScreenCounts screen_counts() const override {
    if (!screen_) return {};
    const auto now = [](int64_t& count) { return std::atomic_ref(count).load(); };  // the card writes it
    return {now(screen_->counts()->steps), now(screen_->counts()->tiles)};
  }

  [[nodiscard]] std::vector<KernelLaunches> launches() const override {
    std::vector<KernelLaunches> result;
    for (const auto& [kernel, count] : counts_) result.push_back({kernel, count});
    return result;
  }

  WeightHandle upload(const HostWeight& weight) override {
    if (is_on_host(weight.layer) && has_experts(weight.role)) {
      host_->experts().upload(weight);
      if (!copies_) return {};
      if (is_expert_matrix(weight.role)) {
        copies_->add(weight);
        return {};
      }
    }
    HostWeight part = weight;
    if (rank_.comm != nullptr)
      part.slice = slice_of(weight, rank_.whole, shard_of(rank_.whole, rank_.ranks, rank_.comm->rank()));
    const WeightHandle handle = weights_.upload(part);
    if (part.role == WeightRole::kUnembedding) unembedding_ = handle;
    return handle;
  }
  void finish_upload() override {
    const bool news = !weights_.finished();
    weights_.finish();
    if (news && screen_ && unembedding_.idx >= 0) screen_->make(weights_.matrix(unembedding_).packed, stream_.get());
  }

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
    plan(step, screen_ && (graph_ > 0 || draws_by_temperature(step.sample_rows)));  // steps of graphs are such
    if (next_ == StepGraphs::Next::kRun) return;
    program_ = &(graph_programs_[graph_] = *program_);
    graphs_->begin_capture(graph_);
    execute_all(on_);
    graphs_->end_capture();
  }

  [[nodiscard]] StepRun enqueue(const AfterStage& after) override {
    if (after) return {walk(*this, watched_, config_.layer_kinds, after)};
    if (host_ && next_ != StepGraphs::Next::kRun) host_->expect_layers();
    switch (next_) {
      case StepGraphs::Next::kReplay: graphs_->replay(graph_); break;
      case StepGraphs::Next::kCapture: graphs_->launch(graph_); break;
      case StepGraphs::Next::kRun: execute_all(on_); break;
    }
    ran_ = Stage::kLogits;
    if (params_ == nullptr) return {};
    return {tickets_->hand_out(at_.sample.tokens)};
  }

  void begin(const StepArgs& step) override { plan(step, false); }

  // screened: nobody reads its logits but a draw by temperature.
  void plan(const StepArgs& step, bool screened) {
    eager_program_ = make_program({.config = config_,
                                   .run = run_,
                                   .step = {.rows = step.rows, .logit_rows = std::ssize(step.logit_tokens)},
                                   .card = card_,
                                   .reduce = reduce_ ? &*reduce_ : setup_.reduce,
                                   .scales = weights_.scales(),
                                   .tuned = setup_.tuned,
                                   .screened = screened,
                                   .fed_back = step.taps.empty(),
                                   .host_call = host_call(),
                                   .expert_copy = expert_copy(),
                                   .may_copy = copies_ && copies_->able()});
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
    return tickets_->hand_out(at_.sample.tokens);
  }

  [[nodiscard]] std::vector<DrawnToken> wait(Ticket ticket) override {
    std::vector<DrawnToken> drawn = tickets_->wait(ticket);
    if (rank_.comm != nullptr) rank_.comm->require();
    if (host_) host_->require();
    if (copies_) copies_->require();
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
    const Held& held = program_->held(ran_, slot);
    if (held.at == nullptr) return {};
    if (slot == Slot::kLogits) {
      if (picks_) return {};  // nobody has all of them
      return {{held.rows, vocab()}, host_copy(all_logits(), held.rows * vocab())};
    }
    if (slot == Slot::kQkv) return plain_qkv();  // it lies in three places
    const auto memory = host_copy(static_cast<const std::byte*>(held.at(at_)), held.bytes());
    std::vector<int32_t> places;
    if (held.places != nullptr) places = host_copy(static_cast<const int32_t*>(held.places(at_)), held.rows);
    Shape shape = {held.rows, held.cols};
    if (slot == Slot::kExpertHidden) shape = {held.rows / dims_.topk, dims_.topk, held.cols};
    return {std::move(shape), held.values(memory, places)};
  }

 private:
  // Grows when a request with bias or penalties needs more; most have none.
  struct History {
    DeviceBytes bytes;
    size_t capacity = 0;
  };

  [[nodiscard]] bool is_on_host(int layer) const { return layer >= 0 && host_ && layer < host_->layers(); }
  [[nodiscard]] std::function<void(const HostCall&, const Launch&)> host_call() {
    if (!host_) return {};
    return [host = &*host_](const HostCall& call, const Launch& on) { host->launch(call, on); };
  }

  [[nodiscard]] bool copies(const StepArgs& step) const {
    return copies_ && copies_->able() && copies_experts(config_, run_, std::ssize(step.ids));
  }
  [[nodiscard]] std::function<void(const ExpertCopy&, const Launch&)> expert_copy() {
    if (!copies_) return {};
    return [copies = &*copies_](const ExpertCopy& part, const Launch& on) { copies->copy(part, on); };
  }

  static Matrices matrices_of(KernelFamily kernel) {
    return kernel == KernelFamily::kReference ? Matrices::kRowOrder : Matrices::kPacked;
  }

  // Rows of logits of all ranks, and what they are drawn from.
  [[nodiscard]] int64_t vocab() const { return rank_.comm == nullptr ? dims_.vocab : rank_.whole.vocab; }
  [[nodiscard]] float* all_logits() const {
    return rank_.comm == nullptr ? at_.logits : reinterpret_cast<float*>(gathered_.get());
  }

  void share() {
    const Comm* const comm = rank_.comm;
    reduce_ = Reduce{.ranks = rank_.ranks.count,
                     .by_nccl = peers() == nullptr,
                     .launch = [comm](const DeltaValues& values, const Launch& on) { comm->reduce(values, on); }};
    if (const PeerComm* const near = peers()) {
      reduce_->ranks_on_card = near->ranks_on_card();
      reduce_->places = near->places();
      reduce_->exchange = near->exchange();
      if (rank_.ranks.count == 2) {
        at_.both_of_o = reduce_->exchange.both(comm->rank(), 0);
        at_.both_of_experts = reduce_->exchange.both(comm->rank(), 1);
      }
    }
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
        !step.sinks || copies(step))
      return 0;
    const int64_t others = graphs_->most_tokens() - drafts_begin();
    if (tokens > (begins ? drafts_begin() : others)) return 0;
    for (const Row& row : step.rows)
      if (row.tokens > kMaxDecodeTokens) return 0;
    if (!draws_by_temperature(step.sample_rows)) return 0;
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
    args.tokens = at_.sample.tokens;
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
    peers()->pick({.value = at_.sample.part_value,
                   .token = at_.sample.part_token,
                   .tokens = at_.sample.tokens,
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
            .threshold = at_.sample.threshold,
            .part_value = at_.sample.part_value,
            .part_token = at_.sample.part_token,
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
    using enum WeightRole;
    for (const LayerWeights& w : weights.layers) {
      if (config_.head) {
        layers_.push_back(head_layer(outer, w));
        continue;
      }
      const auto product = [&](WeightHandle matrix, const Bf16* bias) {
        if (packed) {
          const auto [own, wide] = weights_.matrix(matrix);
          return ProductPointers{.packed = own, .wide = wide, .bias = bias};
        }
        return ProductPointers{.rows = bf16(matrix), .bias = bias};
      };
      const auto experts = [&](WeightRole role, WeightRole bias) {
        if (w[role].idx < 0) {  // the host has them
          if (copies_) return ExpertsPointers{.bias = bf16(w[bias])};
          return ExpertsPointers{};
        }
        if (packed) return ExpertsPointers{.packed = weights_.matrix(w[role]).packed, .bias = bf16(w[bias])};
        return ExpertsPointers{.rows = weights_.mxfp4(w[role]), .bias = bf16(w[bias])};
      };
      LayerPointers own{.embedding = bf16(outer[kEmbedding]),
                        .attn_norm = bf16(w[kAttnNorm]),
                        .sinks = bf16(w[kSinks]),
                        .mlp_norm = bf16(w[kMlpNorm]),
                        .final_norm = bf16(outer[kFinalNorm]),
                        .o = product(w[kO], bf16(w[kOBias])),
                        .router = {.rows = bf16(w[kRouter]), .bias = bf16(w[kRouterBias])},
                        .unembedding = product(outer[kUnembedding], nullptr),
                        .gate_up = experts(kGateUp, kGateUpBias),
                        .down = experts(kDown, kDownBias)};
      if (packed) {
        if (screen_) own.screen = screen_->copy();
        own.qkv = product(w[kQ], weights_.qkv_bias(w[kQBias]));
      } else {
        own.q = product(w[kQ], bf16(w[kQBias]));
        own.k = product(w[kK], bf16(w[kKBias]));
        own.v = product(w[kV], bf16(w[kVBias]));
      }
      layers_.push_back(own);
    }
  }
  [[nodiscard]] LayerPointers head_layer(const LayerWeights& outer, const LayerWeights& w) const {
    using enum WeightRole;
    const auto floats = [&](WeightHandle handle) { return handle.idx >= 0 ? weights_.floats(handle) : nullptr; };
    LayerPointers own;
    own.embedding = bf16(outer[kEmbedding]);
    own.head = {.tap_fc = {bf16(outer[kTapFc])},
                .qkv = {bf16(w[kQ]), floats(w[kQBias])},
                .o = {bf16(w[kO]), floats(w[kOBias])},
                .gate_up = {bf16(w[kGateUp]), floats(w[kGateUpBias])},
                .down = {bf16(w[kDown]), floats(w[kDownBias])},
                .unembedding = {bf16(outer[kUnembedding])},
                .tap_norm = floats(outer[kTapNorm]),
                .attn_norm = floats(w[kAttnNorm]),
                .hidden_norm = floats(w[kHiddenNorm]),
                .mlp_norm = floats(w[kMlpNorm]),
                .final_norm = floats(outer[kFinalNorm])};
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
                             k = host_copy(at_.row_order->k, tokens * dims_.kv_width()),
                             v = host_copy(at_.row_order->v, tokens * dims_.kv_width());
    for (int64_t t = 0; t < tokens; ++t)
      for (const auto& [part, width] : {std::pair{&q, dims_.q_width()}, {&k, dims_.kv_width()}, {&v, dims_.kv_width()}})
        all.values.insert(all.values.end(), part->begin() + t * width, part->begin() + (t + 1) * width);
    return all;
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
  WeightHandle unembedding_{-1};
  std::optional<ScreenWeights> screen_;  // where logits are screened
  DeviceBytes memory_;
  Arena at_;
  std::optional<HostLink> host_;        // with experts on the host
  std::optional<ExpertCopies> copies_;  // where steps of many tokens copy them
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
