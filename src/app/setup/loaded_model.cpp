#include "app/setup/loaded_model.h"

#include "app/options/option.h"
#include "app/setup/memory_budget.h"
#include "app/setup/rank_group.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/measure.h"
#include "backend/cuda/card/measure.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/ranks/followers.h"
#include "backend/ranks/ranks_backend.h"
#include "backend/reference/reference_backend.h"
#include "base/error.h"
#include "base/ggml_blocks.h"
#include "base/thread_pool.h"
#include "checkpoint/strict_json.h"
#include "convert/gguf.h"
#include "engine/draft_model_proposer.h"
#include "hub/kind.h"
#include "model/hf_config.h"
#include "text/tokenizer_parts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <utility>

namespace nibble::app {
namespace {

namespace fs = std::filesystem;

// OpenAI's original/ names no end tokens, a GGUF file only one; these are the ones that generation_config.json lists
// for the same model.
void add_end_tokens(const text::Tokenizer& tokenizer, std::vector<int32_t>& ids) {
  for (const char* name : {"<|return|>", "<|endoftext|>", "<|call|>"}) {
    const auto id = tokenizer.special_id(name);
    if (id && std::find(ids.begin(), ids.end(), *id) == ids.end()) ids.push_back(*id);
  }
}

checkpoint::GgufFields fields_of(const checkpoint::GgufCheckpoint& gguf) { return {gguf.metadata(), gguf.where()}; }

bool is_preset(const ModelOptions& options) {
  return options.load_format == LoadFormat::kDummy && !fs::exists(options.model);
}

text::Tokenizer open_tokenizer(const ModelOptions& options, const model::ModelConfig& config) {
  const fs::path path = options.model;
  const fs::path file = (fs::is_directory(path) ? path : path.parent_path()) / "tokenizer.json";
  constexpr int64_t kO200kVocab = 201088;
  if (is_preset(options) || (!fs::exists(file) && config.dims.vocab == kO200kVocab))
    return text::Tokenizer::o200k_harmony();
  text::Tokenizer tokenizer = text::Tokenizer::from_file(file);
  if (tokenizer.max_id() >= config.dims.vocab) {
    throw Error(Code::kCorrupt, "{}: want token ids below the model's vocabulary of {}, found {}", file.string(),
                config.dims.vocab, tokenizer.max_id());
  }
  return tokenizer;
}

OpenedConfig config_of(const checkpoint::GgufCheckpoint& gguf) {
  const checkpoint::GgufFields fields = fields_of(gguf);
  OpenedConfig opened{convert::config_from_gguf(fields), {}};
  const std::vector<std::string> unknown = convert::unknown_keys(fields);
  if (!unknown.empty())
    opened.notes = {fmt::format("{}: not known here, so without effect: {}", gguf.where(), fmt::join(unknown, ", "))};
  return opened;
}

OpenedConfig config_of(const fs::path& directory) {
  const model::HfConfig hf = model::read_hf_config(directory);
  return {hf.config, hf.notes};
}

void refuse_other_kinds(const ModelOptions& options, const hub::Marks& marks) {
  if (const auto other = hub::other_kind(options.model, marks)) throw Error(other->error);
}

// An id that is not a token cannot end a text.
void check_end_tokens(const text::Tokenizer& tokenizer, const ModelOptions& options, std::span<const int32_t> ids) {
  for (const int32_t id : ids) {
    if (tokenizer.contains(id)) continue;
    throw Error(Code::kCorrupt, "{}: eos_token_id: want ids of the tokenizer's tokens, found {}, which is none",
                options.model, id);
  }
}

OnLoad show_loading(Terminal& terminal) {
  const auto start = std::chrono::steady_clock::now();
  return [&terminal, start](const model::LoadProgress& p) {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const auto done = static_cast<double>(p.done_bytes);
    std::string told = format_bytes(done);
    if (seconds > 0.5) told += fmt::format(" at {}/s", format_bytes(done / seconds));  // before, it would be a guess
    terminal.progress("loading", done / static_cast<double>(std::max<int64_t>(p.total_bytes, 1)), told);
    if (p.done_bytes == p.total_bytes) terminal.end_progress();
  };
}

}  // namespace

bool is_gguf(const ModelOptions& options) {
  if (options.load_format == LoadFormat::kGguf) return true;
  return options.load_format != LoadFormat::kSafetensors && checkpoint::is_gguf(options.model);
}

OpenedConfig open_config(const ModelOptions& options) {
  if (is_preset(options)) return {model::preset(options.model), {}};
  if (fs::exists(options.model)) refuse_other_kinds(options, hub::marks_of(options.model));
  if (is_gguf(options)) return config_of(convert::open_gguf(options.model));
  const fs::path path = options.model;
  if (!fs::is_directory(path) && !fs::is_regular_file(path)) {
    throw Error(Code::kIo,
                "{}: want a model directory or a .gguf file, found {} (for random weights: "
                "--load-format dummy with gpt-oss-20b, gpt-oss-120b, gpt-oss-puzzle-88b or tiny)",
                options.model, fs::exists(path) ? "neither" : "nothing there");
  }
  if (fs::is_directory(path)) return config_of(path);
  if (!fs::exists(path.parent_path() / "config.json")) {
    throw Error(Code::kIo, "{}: want a GGUF file, or one of safetensors with a config.json beside it, found {}",
                options.model, checkpoint::begins_as_gguf(path) ? "GGUF under --load-format safetensors" : "neither");
  }
  return config_of(path.parent_path());
}

ModelFiles::ModelFiles(const ModelOptions& options) {
  if (is_gguf(options))
    gguf.emplace(convert::open_gguf(options.model));
  else if (options.load_format != LoadFormat::kDummy)
    checkpoint.emplace(checkpoint::Checkpoint::open(options.model));
}

std::vector<MappedSource> ModelSource::mapped_files() const {
  std::vector<MappedSource> mapped;
  if (files.checkpoint)
    for (const checkpoint::SafetensorsFile& file : files.checkpoint->files())
      mapped.push_back({file.bytes(), file.path()});
  if (files.gguf)
    for (size_t i = 0; i < files.gguf->files().size(); ++i)
      mapped.push_back({files.gguf->files()[i].bytes(), files.gguf->paths()[i]});
  return mapped;
}

namespace {

// --no-mmap
void copy_files(const ModelSource& source, ThreadPool& pool, Terminal& terminal) {
  const std::vector<MappedSource> files = source.mapped_files();
  if (files.empty()) throw Error(Code::kInvalidRequest, "--no-mmap: want weights in files, found --load-format dummy");
  int64_t bytes = 0, done = 0;
  for (const MappedSource& file : files) bytes += static_cast<int64_t>(file.bytes.size());
  require_fit({.weights = bytes}, host_limit(), std::array{std::string("the same without --no-mmap")});
  for (const MappedSource& file : files) {
    terminal.progress("copying weights", static_cast<double>(done) / static_cast<double>(bytes), "");
    copy_in_place(file.bytes, pool);
    done += static_cast<int64_t>(file.bytes.size());
  }
}

void require_experts(const ModelOptions& options, std::span<const backend::HostWeight> weights) {
  if (options.run.backend != BackendKind::kCuda) return;
  using enum backend::WeightFormat;
  for (const backend::HostWeight& w : weights)  // gate and up are bound in one format
    if (backend::is_expert_matrix(w.role) && w.layer >= options.run.cpu_moe_layers && w.format != kMxfp4 &&
        w.format != kGgmlMxfp4)
      throw Error(Code::kUnsupported,
                  "{}: want MXFP4 experts for a card, found {} in layer {}: --expert-format mxfp4 rounds them to "
                  "MXFP4, --backend cpu runs them as they are",
                  options.model, name_of(w.format), w.layer);
}

}  // namespace

ModelSource open_model(const ModelOptions& options, Terminal& terminal) {
  require_speculation(options);
  require_backend(options);  // refuse what will be refused before all weights are read
  OpenedConfig opened;
  if (is_gguf(options))
    refuse_other_kinds(options, hub::marks_of(options.model));
  else
    opened = open_config(options);
  ModelFiles files(options);
  if (files.gguf) opened = config_of(*files.gguf);
  if (files.checkpoint) {
    hub::Marks marks{.files = {"model.safetensors"}};
    for (const checkpoint::TensorEntry& tensor : files.tensors()) marks.tensors.push_back(tensor.name);
    refuse_other_kinds(options, marks);
  }
  auto& [config, notes] = opened;
  text::Tokenizer tokenizer = files.gguf
                                  ? tokenizer_from_gguf(fields_of(*files.gguf), files.gguf->paths().front().string())
                                  : open_tokenizer(options, config);
  check_end_tokens(tokenizer, options, config.eos_ids);
  if (files.gguf || config.eos_ids.empty()) add_end_tokens(tokenizer, config.eos_ids);
  ModelSource source{.config = std::move(config), .tokenizer = std::move(tokenizer), .files = std::move(files)};
  ThreadPool pool(thread_count(options));
  if (options.run.copy_weights && options.run.backend == BackendKind::kCpu) copy_files(source, pool, terminal);
  if (options.load_format == LoadFormat::kDummy) {
    require_fit({.weights = dummy_bytes(options, source.config)}, host_limit(), {});
    terminal.progress("making dummy weights", 0, "");
    source.dummy.emplace(source.config, options.dummy_seed, &pool);
    source.weights = source.dummy->weights();
  } else {
    terminal.progress("checking weights", 0, options.model);
    source.weights = model::bind_weights(source.files.tensors(), source.config,
                                         {.where = options.model, .pool = &pool, .experts = options.expert_format});
    require_experts(options, source.weights);
    const auto scales = model::bind_kv_scales(source.files.tensors(), source.config, options.model);
    const bool fp8 = options.run.kv_type() == backend::KvDtype::kE4m3;
    if (!scales.empty() && fp8 && !options.run.fp8_attention()) {
      model::scale_keys_and_values(scales, source.weights);
    } else if (!scales.empty()) {  // queries times a scale would be too small for E4M3
      notes.emplace_back(
          "the checkpoint's KV scales have an effect with --kv-cache-dtype fp8 alone, and not with "
          "--attention-activation fp8");
    }
  }
  source.head = open_head(options, source);
  source.draft = open_draft(options, source, terminal);
  if (!source.tokenizer.ignored().empty())
    notes.push_back(fmt::format("tokenizer.json: {}: settings for training, without effect here",
                                fmt::join(source.tokenizer.ignored(), ", ")));
  for (const std::string& note : notes) terminal.note(note);
  terminal.end_progress();
  return source;
}

int thread_count(const ModelOptions& options) { return backend::with_defaults(options.run).threads; }

void require_backend(const ModelOptions& options) {
  if (options.run.backend == BackendKind::kCuda) static_cast<void>(fullest_card(options));
}

std::vector<std::string> decisions(const ModelOptions& options) {
  const std::vector<RunSetting> settings = run_settings(options.run);
  std::vector<std::string> lines;
  for (const Setting& s : options.settings.all) {
    const auto known = std::ranges::find(settings, s.flag, &RunSetting::flag);
    if (s.origin == "default" || known == settings.end() || !known->on.has(options.run.backend)) continue;
    const std::string became = s.resolved.empty() ? "" : ", that is " + s.resolved;
    lines.push_back(fmt::format("  {} {}{} ({})", s.flag, s.value, became, s.origin));
  }
  return lines;
}

std::string describe_modes(const ModelOptions& options, const backend::Backend& be) {
  const backend::RunConfig& run = options.run;
  std::vector<std::string> dense;
  for (const auto& [name, format] :
       {std::pair{"qkv", run.dense.qkv}, {"o", run.dense.o}, {"lm_head", run.dense.lm_head}})
    if (format) dense.push_back(fmt::format("{} {}", name, name_of(*format)));
  const bool rounds = run.backend == BackendKind::kCpu && backend::rounds(run.activations);
  return fmt::format("{}{}, layers {}, KV cache {}, attention sinks {}, {}", be.modes(),
                     rounds ? "; exact with --moe-activation f32" : "",
                     dense.empty() ? "as they come" : fmt::format("{}", fmt::join(dense, " ")),
                     backend::type_of(run.kv_type()).word, run.sinks ? "on" : "off",
                     describe_speculation(options.speculation));
}

backend::DevicePeaks measured(const ModelOptions& options) {
  if (options.run.backend != BackendKind::kCuda) return backend::measure_cpu(options.run.threads);
  std::vector<backend::DevicePeaks> cards;
  for (const int card : cards_of(options)) cards.push_back(backend::measure_cuda(card));
  backend::DevicePeaks peaks = backend::together(cards);
  if (const int layers = options.run.cpu_moe_layers; layers > 0) {
    const backend::DevicePeaks host = backend::measure_cpu(options.run.threads);
    const double all = static_cast<double>(open_config(options).config.dims.layers);
    const auto most = std::ranges::max_element(host.matrix, {}, &backend::MatrixPeak::flops_per_s);
    peaks.host = {
        .layers = layers / all,
        .read_bytes_per_s = host.read_bytes_per_s,
        .flops_per_s = most == host.matrix.end() ? backend::expert_flops_per_s(options.run) : most->flops_per_s,
        .link_bytes_per_s = backend::measure_link(cards_of(options).front())};
  }
  return peaks;
}

namespace {

// A host whose experts are worth the half second that measuring its reads takes; else nobody watches it.
backend::WatchedHost watched_host(const ModelOptions& options, const backend::CostModel& cost,
                                  std::function<void(const std::string&)> say) {
  constexpr int64_t kWorthwhileBytes = 1 << 30;
  const backend::RunConfig& run = options.run;
  const bool cpu = run.backend == BackendKind::kCpu;
  const int64_t bytes = cpu ? cost.weight_bytes() : cost.expert_bytes(run.cpu_moe_layers);
  if (bytes < kWorthwhileBytes || run.ranks.count > 1 || run.backend == BackendKind::kReference) return {};
  const backend::Activations experts = cpu ? run.activations : run.cpu_moe_activations;
  return {.say = std::move(say),
          .read_bytes_per_s = backend::ReadMeter(run.threads).measure(3),
          .flops_per_s = backend::expert_flops_per_s({.threads = run.threads, .activations = experts, .isa = run.isa}),
          .weight_bytes = bytes,
          .threads = run.threads};
}

}  // namespace

std::unique_ptr<backend::Backend> make_backend(BackendKind kind, const backend::RunConfig& run,
                                               const backend::BackendConfig& config, BackendSetup setup) {
  if (run.ranks.count > 1 && kind != BackendKind::kCuda) {
    const int all = backend::with_defaults(run).threads;
    return backend::make_ranks_backend(config, run.ranks, all,
                                       [kind, run](const backend::BackendConfig& of, int /*rank*/, int threads) {
                                         backend::RunConfig alone = run;
                                         alone.ranks = {};
                                         alone.threads = threads;
                                         return make_backend(kind, alone, of);
                                       });
  }
  if (kind == BackendKind::kReference) return backend::make_reference_backend(config, run);
  if (kind != BackendKind::kCuda) return backend::make_cpu_backend(config, run, setup.watched);
  const auto experts = [run, watched = std::move(setup.watched)](const backend::BackendConfig& of) {
    return backend::make_cpu_experts(of, {.threads = run.threads, .activations = run.cpu_moe_activations}, watched);
  };
  return backend::make_cuda_backend(
      config, run, {.devices = std::move(setup.cards), .files = std::move(setup.files), .host_experts = experts});
}

backend::StoredFormats stored_formats(const ModelOptions& options, std::span<const backend::HostWeight> weights) {
  if (options.run.backend == BackendKind::kCuda)
    weights = {};  // as OpenAI's checkpoints hold them, whatever the file's format
  return backend::StoredFormats::of(weights, options.run.dense);
}

backend::RunConfig head_run(const backend::RunConfig& run) {
  const bool exact = run.activations != backend::Activations::kAuto && run.activations != backend::Activations::kInt8;
  return {.backend = run.backend,
          .threads = run.threads,
          .activations = run.backend == BackendKind::kCpu && exact ? backend::Activations::kF32
                         : run.backend == BackendKind::kCpu        ? run.activations
                                                                   : backend::Activations::kAuto,
          .isa = run.isa,
          .eager = run.eager};
}

namespace {

// Drafts for a text of no meaning until all that a lone text's drafts run is loaded and captured, and reads a prompt:
// drafts are timed from the first on.
void warm_up(const engine::DraftModel& drafts) {
  using engine::Proposer;
  constexpr int64_t kPrompt = engine::DraftModelProposer::kPassRows;
  const int64_t width = drafts.head->reads.taps * drafts.head->reads.target_hidden;
  const std::vector<float> residuals(static_cast<size_t>(kPrompt * width));
  engine::DraftModelProposer proposer(drafts);
  std::vector<int32_t> tokens = {0};
  const auto draft = [&](int64_t rows, int64_t prompt) {
    const int64_t from = std::ssize(tokens) - 1;
    tokens.resize(tokens.size() + static_cast<size_t>(rows));
    const Proposer::Text text{.id = 0, .tokens = tokens, .prompt_tokens = prompt, .shares = false};
    const Proposer::News news{
        .text = text,
        .residuals = {
            .from = from, .count = rows, .values = std::span(residuals).first(static_cast<size_t>(rows * width))}};
    proposer.saw({&news, 1});
    engine::Draft made;
    proposer.propose(text, 3, made);
  };
  draft(kPrompt, kPrompt);
  // Up to 8 rows have graphs; more of them, which waited while nobody drafted, have other products and attention.
  for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 12, 24, 48})
    for (int times = 0; times < 2; ++times) draft(rows, kPrompt);
}

}  // namespace

LoadedHead::LoadedHead(const model::eagle3::Head& head, const ModelOptions& options, const model::StepLimits& of_model)
    : be(make_backend(options.run.backend, head_run(options.run),
                      model::eagle3::backend_config(head, engine::head_step_limits(of_model)),
                      {.cards = {cards_of(options).front()}})),
      model(model::load(*be, head.config, head.weights)),
      drafts{.be = *be, .model = model, .limits = engine::head_step_limits(of_model), .head = &head} {
  if (options.run.backend == BackendKind::kCuda) warm_up(drafts);
}

LoadedModel::LoadedModel(const ModelSource& source, const ModelOptions& options, const model::StepLimits& limits,
                         const LoadView& view) {
  const backend::BackendConfig config = model::backend_config(source.config, limits, options.run.dense);
  const backend::CostModel cost = model::cost_of(source.config, stored_formats(options, source.weights));
  const Budget budget = check_budget(options, config, cost);
  const bool card = options.run.backend == BackendKind::kCuda;
  const auto note = [&terminal = view.terminal, whose = std::string(view.whose)](const std::string& text) {
    terminal.note(terminal.dim(whose + text));
  };
  for (const std::string& why : {options.backend_why, options.fast_why, options.offload_why, options.left_out})
    if (!why.empty() && !view.terminal.is_json()) note(why);
  const std::string_view each = options.run.ranks.count > 1 ? " of each card" : "";
  if (card) note(fmt::format("memory{}: {}; {}", each, describe(budget.needs), budget.limit.where));
  if (const std::string text = describe_host_layers(options, cost, source.config.layer_kinds); !text.empty()) {
    const MemoryLimit host = host_limit();
    note(text);
    if (cost.expert_bytes(options.run.cpu_moe_layers) > host.bytes)
      note(fmt::format("{}: what has no room is read from the file again, at its speed", host.where));
  }
  if (const std::string made = weight_conversions(source.weights, options); !made.empty())
    note(fmt::format("weights: {}", made));
  if (in_a_group(options)) {
    rank_ = std::make_unique<GroupRank>(source, options, view.terminal, view.on_lost);
    backend::tell_room(rank_->group(), config);
    be_ = backend::make_ranks_backend(config, options.run.ranks, rank_->group(),
                                      rank_->make_member(options, config, source), card ? "a card" : "a rank");
  } else {
    be_ = make_backend(
        options.run.backend, options.run, config,
        {.files = source.mapped_files(), .cards = cards_of(options), .watched = watched_host(options, cost, note)});
  }
  const OnLoad show = show_loading(view.terminal);
  const auto start = std::chrono::steady_clock::now();
  double bytes = 0;
  model_ = model::load(*be_, source.config, source.weights, [&](const model::LoadProgress& p) {
    bytes = static_cast<double>(p.total_bytes);
    show(p);
    if (view.on_load) view.on_load(p);
  });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (card)
    note(fmt::format("loaded: {} in {:.2f} s, {}/s", format_bytes(bytes), seconds, format_bytes(bytes / seconds)));
  model_.attention_sinks = options.run.sinks;
  if (source.head) {
    head_ = std::make_unique<LoadedHead>(*source.head, options, limits);
    draft_model_.emplace(head_->drafts);
  }
  if (!source.draft) return;
  const model::StepLimits steps = engine::draft_step_limits(limits);
  draft_ = std::make_unique<LoadedModel>(
      *source.draft, draft_options(options), steps,
      LoadView{.terminal = view.terminal, .on_load = view.on_load, .whose = "draft model: "});
  draft_model_.emplace(engine::DraftModel{.be = draft_->backend(), .model = draft_->model(), .limits = steps});
}

engine::EngineLimits LoadedModel::with_draft(engine::EngineLimits limits) {
  if (!draft_model_) return limits;
  draft_model_->prefix_cache = limits.prefix_cache;
  limits.speculation.draft_model = &*draft_model_;
  return limits;
}

LoadedModel::~LoadedModel() = default;

void LoadedModel::end_group() {
  if (rank_) rank_->group().end();
}

Runtime::Runtime(const ModelSource& source, const ModelOptions& options, const engine::EngineLimits& limits,
                 Terminal& terminal)
    : loaded_(source, options, engine::step_limits(with_head(limits, source), source.config.dims), {terminal, {}}),
      loop_(loaded_.backend(), loaded_.model(), loaded_.with_draft(with_head(limits, source))) {
  if (!terminal.is_verbose()) return;
  terminal.note(terminal.dim(fmt::format("modes: {}", describe_modes(options, loaded_.backend()))));
  for (const std::string& line : decisions(options)) terminal.note(terminal.dim(line));
}

engine::EngineLimits one_sequence(const ModelOptions& options, int64_t context) {
  return {.max_context = context,
          .max_sequences = 1,
          .max_batched_tokens = backend::with_defaults(options.run).max_num_batched_tokens,
          .speculation = options.speculation,
          .async_scheduling = options.run.backend == BackendKind::kCuda};
}

std::unique_ptr<model::eagle3::Head> open_head(const ModelOptions& options, const ModelSource& source) {
  if (options.speculation.method != engine::DraftMethod::kEagle3) return nullptr;
  return std::make_unique<model::eagle3::Head>(
      model::eagle3::load(options.speculative_model, {source.config, source.weights}, options.tap_reading));
}

namespace {

void require_vocabulary(const ModelOptions& options, const model::ModelConfig& config,
                        const model::ModelConfig& draft) {
  if (draft.dims.vocab != config.dims.vocab)
    throw Error(Code::kInvalidRequest, "--speculative-model {}: want the vocabulary of {}, {} tokens, found {}",
                options.speculative_model.string(), options.model, config.dims.vocab, draft.dims.vocab);
}

}  // namespace

std::unique_ptr<ModelSource> open_draft(const ModelOptions& options, const ModelSource& source, Terminal& terminal) {
  if (options.speculation.method != engine::DraftMethod::kDraft) return nullptr;
  const ModelOptions of = draft_options(options);
  require_vocabulary(options, source.config, open_config(of).config);
  auto draft = std::make_unique<ModelSource>(open_model(of, terminal));
  for (int32_t id = 0; id < source.config.dims.vocab; ++id)
    if (token_text(source.tokenizer, id) != token_text(draft->tokenizer, id))
      throw Error(Code::kInvalidRequest, "--speculative-model {}: want the tokens of {}, found another token {}",
                  options.speculative_model.string(), options.model, id);
  if (options.run.ranks.count > 1)
    backend::validate(options.run.ranks, draft->config.dims, draft->config.layer_experts);
  return draft;
}

model::StepLimits with_taps(model::StepLimits limits, const ModelOptions& options, const model::ModelConfig& config) {
  if (options.speculation.method == engine::DraftMethod::kDraft) {
    require_speculation(options);
    require_vocabulary(options, config, open_config(draft_options(options)).config);
  }
  if (options.speculation.method != engine::DraftMethod::kEagle3) return limits;
  require_speculation(options);
  limits.taps = model::eagle3::boundaries_of(model::eagle3::read_head_config(options.speculative_model, config.dims),
                                             config.dims.layers, options.tap_reading);
  return limits;
}

engine::EngineLimits with_head(engine::EngineLimits limits, const ModelSource& source) {
  limits.speculation.head = source.head.get();
  return limits;
}

int64_t context_length(const ModelOptions& options, const model::ModelConfig& config, int64_t fallback) {
  if (options.run.max_model_len > config.dims.max_context) {
    throw Error(Code::kInvalidRequest, "--max-model-len: want at most {} (the model's context), found {}",
                config.dims.max_context, options.run.max_model_len);
  }
  return std::min(options.run.max_model_len > 0 ? options.run.max_model_len : fallback,
                  int64_t{config.dims.max_context});
}

std::string_view token_text(const text::Tokenizer& tokenizer, int32_t token) {
  return tokenizer.contains(token) ? tokenizer.token_bytes(token) : std::string_view();
}

namespace {

using checkpoint::GgufFields;

constexpr std::string_view kPrefix = "tokenizer.ggml.";
// Keys that are read here, or that do not affect the tokens of a text; ids of single tokens (…_token_id) are accepted
// too. The add_… keys tell llama.cpp what to put around a prompt; here Harmony's rendering decides that.
constexpr std::array<std::string_view, 9> kKnown = {kGgufModel,
                                                    kGgufPre,
                                                    kGgufTokens,
                                                    kGgufKinds,
                                                    kGgufMerges,
                                                    "tokenizer.ggml.scores",
                                                    "tokenizer.ggml.add_bos_token",
                                                    "tokenizer.ggml.add_eos_token",
                                                    "tokenizer.ggml.add_sep_token"};

void require(const GgufFields& fields, std::string_view key, std::string_view want) {
  const std::string_view found = fields.string(key);
  if (found == want) return;
  throw Error(Code::kUnsupported, "{}: metadata key {}: want \"{}\", found \"{}\"", fields.where(), key, want,
              checkpoint::printable(found));
}

}  // namespace

text::Tokenizer tokenizer_from_gguf(const GgufFields& fields, const std::string& path) {
  require(fields, kGgufModel, "gpt2");  // byte-level BPE
  require(fields, kGgufPre, "gpt-4o");  // llama.cpp's name of the o200k split
  for (const auto& [key, value] : fields.metadata()) {
    if (!key.starts_with(kPrefix) || key.ends_with("_token_id")) continue;
    if (std::ranges::find(kKnown, key) != kKnown.end()) continue;
    throw Error(Code::kUnsupported, "{}: metadata key {}: not known here, found {}", fields.where(), key,
                checkpoint::describe(value));
  }
  text::TokenList list;
  for (const std::string_view token : fields.strings(kGgufTokens)) list.tokens.emplace_back(token);
  for (const int64_t kind : fields.integers(kGgufKinds)) {
    if (kind != static_cast<int32_t>(kind)) {
      throw Error(Code::kCorrupt, "{}: metadata key {}: want kinds of tokens, found {}", fields.where(), kGgufKinds,
                  kind);
    }
    list.kinds.push_back(static_cast<text::TokenKind>(kind));
  }
  for (const std::string_view merge : fields.strings(kGgufMerges)) list.merges.emplace_back(merge);
  return text::Tokenizer::from_list(list, path);
}

std::string weight_conversions(std::span<const backend::HostWeight> weights, const ModelOptions& options) {
  using backend::WeightFormat;
  const bool card = options.run.backend == BackendKind::kCuda;
  std::vector<std::pair<std::string, std::vector<std::string_view>>> roles;  // by conversion, as they come
  const auto add = [&](backend::WeightRole role, const backend::WeightPart& part) {
    const DType stored = part.values->dtype;
    const WeightFormat on_card = backend::is_expert_matrix(role) ? part.format : WeightFormat::kBf16;
    const WeightFormat to = card ? options.run.dense.of(role).value_or(on_card) : part.format;
    const bool twice = card && options.run.dense.q8_copies && options.run.dense.of(role) == WeightFormat::kGgmlQ8;
    // As it is; of experts on a card at most the order of their nibbles changes.
    const bool kept = part.recoded ? backend::is_float(stored) && backend::format_of(stored) == to : part.format == to;
    if (kept && !twice) return;
    const std::optional<DType> exact = exact_type(stored);
    const std::string conversion =
        fmt::format("{}{}{}{}", part.recoded ? name_of(stored) : backend::name_of(part.format),
                    kept ? "" : fmt::format(" to {}", backend::name_of(to)),
                    part.recoded && exact && backend::format_of(*exact) == to ? ", exactly" : "",
                    twice ? ", and bf16 for more than 8 tokens" : "");
    auto it = std::ranges::find(roles, conversion, &decltype(roles)::value_type::first);
    if (it == roles.end()) it = roles.insert(it, {conversion, {}});
    if (std::ranges::find(it->second, backend::name_of(role)) == it->second.end())
      it->second.push_back(backend::name_of(role));
  };
  for (const backend::HostWeight& w : weights)
    for (const backend::WeightPart& part : backend::parts_of(w)) add(w.role, part);
  std::vector<std::string> parts;
  for (const auto& [conversion, names] : roles)
    parts.push_back(fmt::format("{}: {}", conversion, fmt::join(names, ", ")));
  return fmt::format("{}", fmt::join(parts, "; "));
}

}  // namespace nibble::app
