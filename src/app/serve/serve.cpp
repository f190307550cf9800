// nibble serve, in order: refuse what cannot be served (the name, the backend, the flags; a model of the Hub is fetched
// here), open the port, load the model (too little memory and damaged files are refused here), publish it, serve until
// a signal comes. Once the port is open and until the model is published, the chat page, /ping, /version and /metrics
// answer; /health and requests get 503. A rank above 0 of several processes follows instead and opens no port.

#include "app/serve/server_record.h"

#include "app/options/build_facts.h"
#include "app/options/settings.h"
#include "app/setup/backend_choice.h"
#include "app/setup/commands.h"
#include "app/setup/interrupt.h"
#include "app/setup/loaded_model.h"
#include "app/setup/log_writer.h"
#include "app/setup/memory_budget.h"
#include "app/setup/named_model.h"
#include "app/setup/rank_group.h"
#include "app/setup/terminal.h"
#include "backend/cuda/cuda_backend.h"
#include "base/error.h"
#include "base/time_text.h"
#include "convert/inspect.h"
#include "engine/engine.h"
#include "engine/replicas.h"
#include "hub/model_name.h"
#include "server/api.h"
#include "server/http_server.h"
#include "server/kv_publisher.h"
#include "text/grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <unistd.h>

namespace nibble::app {
namespace {

using server::Json;

std::string milliseconds(const Json& value) {
  return value.is_number() ? fmt::format("{:.0f} ms", value.get<double>()) : std::string("-");
}

std::string request_text(const Json& e) {
  const auto tokens = e["completion_tokens"].get<int64_t>();
  std::string text =
      fmt::format("{} {}  {} tokens in ({} cached), {} out", e["status"].get<int>(), e["path"].get<std::string>(),
                  e["prompt_tokens"].get<int64_t>(), e["cached_tokens"].get<int64_t>(), tokens);
  if (const Json& first = e["ttft_ms"]; first.is_number()) text += ", first after " + milliseconds(first);
  if (const double each = e["tpot_ms"].get<double>(); each > 0) text += fmt::format(", then {:.1f} tok/s", 1000 / each);
  return text + fmt::format(", {}, {}", milliseconds(e["total_ms"]), e["reason"].get<std::string>());
}

std::string json_log_line(const Json& fields) {
  using namespace std::chrono;
  const auto now = system_clock::now();
  const auto ms = duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  const std::string time = time_text("%Y-%m-%dT%H:%M:%S", system_clock::to_time_t(now));
  Json line = {{"time", fmt::format("{}.{:03}", time, ms)}};
  line.update(fields);
  return server::to_text(line);
}

// One event as a line, without its end. Text from clients is escaped.
std::string text_log_line(const Json& event, std::string_view time) {
  const std::string kind = event["event"].get<std::string>();
  if (kind == "request") return fmt::format("{}  {}", time, request_text(event));
  std::string text = fmt::format("{}  {}", time, kind);
  for (const auto& [name, value] : event.items()) {
    if (name == "event" || value == "") continue;
    text += fmt::format("  {} {}", name, server::to_text(value));
  }
  return text;
}

// Writes events from any thread. The terminal's notes go there, too.
server::LogLine serve_log(LogFormat format, Terminal& terminal, LogWriter& log) {
  const bool on_terminal = isatty(STDERR_FILENO) == 1;
  const auto note = [&log](std::string_view text) {
    log.write(std::string(text));
    log.flush();  // before what is drawn next, and before an end
  };
  if (format == LogFormat::kText || (format == LogFormat::kAuto && on_terminal)) {
    const std::string_view fresh = on_terminal ? "\r\x1b[K" : "";  // overwrites the progress line of loading
    terminal.send_notes(note);
    return [fresh, &log](const Json& event) {
      log.write(fmt::format("{}{}", fresh, text_log_line(event, time_text("%H:%M:%S", std::time(nullptr)))));
    };
  }
  terminal.use_no_colors();
  terminal.send_notes([note](std::string_view text) {
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));  // what is indented for people
    note(json_log_line({{"event", "note"}, {"text", text}}));
  });
  return [&log](const Json& event) { log.write(json_log_line(event)); };
}

// http://127.0.0.1:8000: where it listens, and where this machine finds it
std::string http_address(const ServeOptions& o, std::string_view host, int port) {
  const bool v6 = host.find(':') != std::string_view::npos;
  return fmt::format("{}://{}{}{}:{}", o.certificate_file.empty() ? "http" : "https", v6 ? "[" : "", host,
                     v6 ? "]" : "", port);
}

bool on_all_addresses(const ServeOptions& o) { return o.host == "0.0.0.0" || o.host == "::"; }

std::string local_address(const ServeOptions& o, int port) {
  return http_address(o, on_all_addresses(o) ? "127.0.0.1" : o.host, port);
}

// An IPv4 address at which others find this machine; empty if it has none.
std::string network_address() {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return "";
  std::array<char, INET_ADDRSTRLEN> text{};
  for (const ifaddrs* each = all; each != nullptr && text[0] == 0; each = each->ifa_next) {
    const bool serves = each->ifa_addr != nullptr && each->ifa_addr->sa_family == AF_INET &&
                        (each->ifa_flags & IFF_UP) != 0 && (each->ifa_flags & IFF_LOOPBACK) == 0;
    if (serves)
      inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(each->ifa_addr)->sin_addr, text.data(), text.size());
  }
  freeifaddrs(all);
  return text.data();
}

// The addresses of a ready model, one line each.
std::vector<std::string> ways_in(const ServeOptions& o, int port) {
  const std::string address = local_address(o, port), outside = on_all_addresses(o) ? network_address() : "";
  const std::string_view key = o.api_keys.empty() ? "" : " -H 'Authorization: Bearer YOUR_KEY'";
  const std::string_view body = R"({"messages": [{"role": "user", "content": "Hello"}]})";
  const std::string others = outside.empty() ? "" : fmt::format("   for others: {}/", http_address(o, outside, port));
  return {fmt::format("  chat  {}/{}", address, others), fmt::format("  API   {}/v1", address),
          fmt::format("  try   curl {}/v1/chat/completions{} -d '{}'", address, key, body)};
}

server::HttpOptions http_options(const ServeOptions& o) {
  return {.host = o.host,
          .port = o.port,
          .threads = o.http_threads,
          .certificate_file = o.certificate_file,
          .key_file = o.key_file,
          .allowed_origin = o.allowed_origin,
          .max_header_bytes = static_cast<size_t>(o.max_header_bytes),
          .max_body_bytes = static_cast<size_t>(o.max_body_bytes),
          .max_connections = o.max_connections,
          .header_time = std::chrono::seconds(std::min(o.request_timeout, 10)),
          .body_time = std::chrono::seconds(o.request_timeout),
          .drain_time = std::chrono::seconds(o.shutdown_timeout)};
}

server::ApiOptions api_options(const ServeOptions& o, const server::LogLine& log_line, const LogWriter& writer) {
  const auto date = [fixed = o.date] { return fixed.empty() ? time_text("%Y-%m-%d", std::time(nullptr)) : fixed; };
  const bool log = o.log_requests || o.log_prompts;
  return {.api_keys = o.api_keys,
          .date = date,
          .defaults = {.sampling = o.sampling,
                       .effort = o.effort,
                       .include_usage = o.include_usage,
                       .leniency = {.unknown_fields = o.unknown_fields, .images = o.images}},
          .log = log ? log_line : server::LogLine([](const server::Json&) {}),
          .log_prompts = o.log_prompts,
          .version = NIBBLE_VERSION,
          .commit = std::string(build_facts().commit),
          .dropped_log_lines = [&writer] { return writer.dropped(); },
          .other_names = o.any_model_name == AnyModelName::kNone  ? std::nullopt
                         : o.any_model_name == AnyModelName::kAll ? std::optional("")
                                                                  : server::ApiOptions().other_names};
}

engine::EngineLimits engine_limits(const ServeOptions& o, const ModelOptions& model, const model::ModelConfig& config) {
  const int64_t context = context_length(model, config, config.dims.max_context);
  const bool some_are_long = o.max_long_partial_prefills > 0;
  const int64_t threshold = o.long_prefill_token_threshold;
  return {.max_context = context,
          .max_sequences = o.max_num_seqs,
          .max_batched_tokens = backend::with_defaults(model.run).max_num_batched_tokens,
          .max_waiting = o.max_waiting,
          .kv_tokens = o.kv_tokens,
          .max_partial_prefills = o.max_num_partial_prefills,
          .max_long_partial_prefills = some_are_long ? o.max_long_partial_prefills : o.max_num_partial_prefills,
          .long_prefill_tokens = threshold == 0 && some_are_long ? std::max<int64_t>(1, context / 25) : threshold,
          .target_itl_seconds = o.target_itl / 1000,
          .prefix_cache = o.prefix_cache,
          .speculation = model.speculation,
          .async_scheduling = o.async_scheduling.value_or(model.run.backend == BackendKind::kCuda)};
}

// The limits before anything is fitted to memory. If the context is open, at least one token of it must fit.
model::StepLimits least_limits(const ServeOptions& o, const ModelOptions& model, const model::ModelConfig& config) {
  engine::EngineLimits limits = engine_limits(o, model, config);
  if (model.run.max_model_len == kContextThatFits) limits.max_context = 1;
  return with_taps(engine::step_limits(limits, config.dims), model, config);
}

// How many replicas share a memory; replicas on cards have their own cards.
int in_one_memory(const ServeOptions& o, const ModelOptions& model) {
  return model.run.backend == BackendKind::kCuda ? 1 : o.replicas;
}

// Sizes that were left open become as large as fits: first the context (--max-model-len auto), then the KV cache. On a
// host the cache shares memory with the pages of the weights, so it is smaller.
engine::EngineLimits with_memory(const ServeOptions& options, const ModelOptions& o, const model::ModelConfig& config,
                                 engine::EngineLimits limits, std::span<const backend::HostWeight> weights = {}) {
  // Weights mapped from files do not count.
  const backend::CostModel cost = model::cost_of(config, stored_formats(o, weights));
  const auto budget_of_one = [&](int64_t context, int64_t tokens) {
    engine::EngineLimits with = limits;
    with.max_context = context;
    with.kv_tokens = tokens;
    const model::StepLimits steps = engine::step_limits(with, config.dims);
    return budget_of(o, model::backend_config(config, steps, o.run.dense), cost);
  };
  const auto budget = [&](int64_t context, int64_t tokens) {
    return times(in_one_memory(options, o), budget_of_one(context, tokens));
  };
  const int64_t least = o.run.max_model_len == kContextThatFits ? 1 : limits.max_context;
  const auto kv_bytes = [&](int64_t tokens) { return budget_of_one(1, tokens).needs.kv; };
  if (const int64_t bytes = options.kv_memory_bytes; bytes > 0) {
    const auto kv = [&](int64_t tokens) { return backend::MemoryNeeds{.kv = kv_bytes(tokens)}; };
    limits.kv_tokens = largest_that_fits({.bytes = bytes, .where = {}}, int64_t{1} << 30, kv).value_or(0);
    if (limits.kv_tokens < least)
      throw Error(Code::kInvalidRequest,
                  "--kv-cache-memory-bytes: want at least {}, for {} tokens (--max-model-len), found {}",
                  kv_bytes(least), least, bytes);
  }
  const MemoryLimit room = budget(1, 1).limit;
  if (o.run.max_model_len == kContextThatFits) {
    const int64_t most = limits.kv_tokens > 0 ? std::min(limits.kv_tokens, limits.max_context) : limits.max_context;
    const int64_t fits = kv_tokens_that_fit(room, 0, most, [&](int64_t n) { return budget(n, n).needs; });
    limits.max_context = fits > 0 ? fits : most;  // if nothing fits, the refusal is the one for the whole context
  }
  if (limits.kv_tokens > 0) {
    const auto fits = largest_that_fits(room, limits.kv_tokens, [&](int64_t n) { return budget(1, n).needs; });
    if (fits.value_or(0) >= least && *fits < limits.kv_tokens)
      require_fit(budget(1, limits.kv_tokens).needs, room,
                  std::array{options.kv_memory_bytes > 0 ? fmt::format("--kv-cache-memory-bytes {}", kv_bytes(*fits))
                                                         : fmt::format("--kv-tokens {}", *fits)});
    return limits;
  }
  const int64_t most = std::min(limits.max_context * limits.max_sequences,
                                o.run.backend == BackendKind::kCuda ? int64_t{1} << 19 : int64_t{1} << 17);
  limits.kv_tokens = kv_tokens_that_fit(room, limits.max_context, most,
                                        [&](int64_t tokens) { return budget(limits.max_context, tokens).needs; });
  return limits;
}

// What must outlive the HTTP server, whose calls use it.
struct Running {
  std::optional<ModelSource> source;
  std::vector<std::unique_ptr<LoadedModel>> replicas;
  int64_t max_context = 0;
  std::optional<text::GrammarCompiler> grammars;                // the masks of the engine's requests point into it
  std::vector<std::unique_ptr<server::KvPublisher>> kv_events;  // one per replica; empty: nobody asked for them
  std::optional<engine::Replicas> engines;
};

server::KvPublishOptions publish_options(const ServeOptions& o, int replica, const backend::Dims& dims) {
  return {.endpoint = o.kv_events.endpoint,
          .replay_endpoint = o.kv_events.replay_endpoint,
          .topic = o.kv_events.topic,
          .medium = o.model.run.backend == BackendKind::kCuda ? "GPU" : "CPU",
          .replica = replica,
          .window = dims.sliding_window,
          .wide_window = dims.wide_window,
          .maps = o.kv_events.maps,
          .kept_batches = o.kv_events.kept_batches,
          .most_unsent = o.kv_events.most_unsent};
}

// Checks all replicas together, since each one's own check sees only itself.
void require_replicas_fit(const ServeOptions& o, const ModelSource& source, const model::StepLimits& steps) {
  if (in_one_memory(o, o.model) == 1) return;
  const backend::CostModel cost = model::cost_of(source.config, stored_formats(o.model, source.weights));
  const Budget all =
      times(o.replicas, budget_of(o.model, model::backend_config(source.config, steps, o.model.run.dense), cost));
  require_fit(all.needs, all.limit,
              std::array{std::string("a smaller --data-parallel-size"), std::string("--kv-tokens")});
}

void load(const ServeOptions& o, Running& running, const LoadView& view) {
  running.source.emplace(open_model(o.model, view.terminal));
  const model::ModelConfig& config = running.source->config;
  const engine::EngineLimits limits = with_memory(
      o, o.model, config, with_head(engine_limits(o, o.model, config), *running.source), running.source->weights);
  running.max_context = limits.max_context;
  const model::StepLimits steps = engine::step_limits(limits, config.dims);
  require_replicas_fit(o, *running.source, steps);
  std::vector<std::unique_ptr<engine::Engine>> engines;
  for (int i = 0; i < o.replicas; ++i) {
    ModelOptions of = o.model;
    of.run.threads = backend::threads_of(i, {.count = o.replicas}, o.model.run.threads);
    if (!in_a_group(of)) of.cards = {int64_t{i} * of.run.ranks.count, of.run.ranks.count};
    LoadedModel& loaded =
        *running.replicas.emplace_back(std::make_unique<LoadedModel>(*running.source, of, steps, view));
    engine::KvEventSink sink = o.kv_events.on ? running.kv_events[static_cast<size_t>(i)]->sink() : nullptr;
    engines.push_back(
        std::make_unique<engine::Engine>(loaded.backend(), loaded.model(), loaded.with_draft(limits), std::move(sink)));
  }
  running.grammars.emplace(running.source->tokenizer);
  running.engines.emplace(std::move(engines), steps.kv_pages[static_cast<size_t>(backend::LayerKind::kFull)]);
}

server::ServedModel served_model(const Running& running, std::vector<std::string> names) {
  const ModelSource& source = *running.source;
  const auto id_of = [&source](std::string_view name) { return source.tokenizer.special_id(name); };
  const std::string ollama(model::ollama_name(source.config));
  if (!ollama.empty() && std::ranges::find(names, ollama) == names.end()) names.push_back(ollama);
  const convert::ClassNumbers numbers = convert::numbers_of(source.config, source.weights).total;
  const auto experts = std::ranges::find_if(
      source.weights, [](const backend::HostWeight& weight) { return is_expert_matrix(weight.role); });
  return {.tokenizer = &source.tokenizer,
          .grammars = &*running.grammars,
          .ids = text::HarmonyIds::from_names(id_of),
          .names = std::move(names),
          .eos_ids = source.config.eos_ids,
          .max_context = running.max_context,
          .vocab = source.config.dims.vocab,
          .facts = {.format = source.files.gguf ? "gguf" : "safetensors",
                    .quantization = hub::upper(name_of(experts->format)),
                    .bytes = numbers.bytes,
                    .parameters = numbers.parameters}};
}

// Another rank has gone: what runs fails, and the server ends as after SIGTERM.
class LostGroup {
 public:
  explicit LostGroup(bool on_card) : on_card_(on_card) {}
  void lose(const std::string& why) {
    const std::lock_guard lock(mutex_);
    why_ = why;
    if (serving_)
      kill(getpid(), SIGTERM);
    else if (on_card_)  // NCCL may be waiting for who is gone
      end_soon({.code = kExitIo, .within = kLostTime, .says = why});
  }
  void begin_serving() {
    const std::lock_guard lock(mutex_);
    serving_ = true;
    if (!why_.empty()) kill(getpid(), SIGTERM);
  }
  [[nodiscard]] std::string why() const {
    const std::lock_guard lock(mutex_);
    return why_;
  }

 private:
  const bool on_card_;
  mutable std::mutex mutex_;
  std::string why_;       // why_ and serving_ are guarded by mutex; empty: the group is complete
  bool serving_ = false;  // before that, loading ends with the error
};

}  // namespace

ServeOptions resolved_options(const ServeOptions& options, Terminal& terminal) {
  ServeOptions o = options;
  ModelOptions& model = o.model;
  for (const std::string& note : model.settings.notes) terminal.note(note);
  server::require_certificate(http_options(o));
  const bool asks_for_none = model.model.empty() && model.revision.empty();
  NamedModel named = asks_for_none ? own_model() : find_named(model, terminal);
  model.model = named.path;
  note_resolved(model.settings, "--model", named.path);
  if (o.served_names.empty()) o.served_names = std::move(named.names);
  find_draft(model, terminal);
  model = with_backend(model, [&o](const ModelOptions& with, const model::ModelConfig& config) {
    return least_limits(o, with, config);
  });
  if (o.replicas > 1 && model.run.backend == BackendKind::kCuda) {
    if (model.run.cpu_moe_layers > 0)
      throw Error(Code::kUnsupported, "--n-cpu-moe {}: want one card, found --data-parallel-size {}",
                  model.run.cpu_moe_layers, o.replicas);
    model.cards.count = int64_t{o.replicas} * model.run.ranks.count;
    backend::require_cards(
        static_cast<int>(model.cards.count),
        fmt::format("--data-parallel-size {} with --tensor-parallel-size {}", o.replicas, model.run.ranks.count));
  }
  if (o.replicas > 1 && in_a_group(model))
    throw Error(Code::kUnsupported, "--data-parallel-size {}: want 1 beside --nnodes {}: replicas are of one process",
                o.replicas, model.group.count);
  if (o.headless && !follows(model))
    throw Error(Code::kInvalidRequest, "--headless: want a --node-rank above 0, found 0, which serves");
  model = resolved_model(std::move(model));
  require_backend(model);
  require_speculation(model);
  const model::ModelConfig config = open_config(model).config;
  static_cast<void>(least_limits(o, model, config));  // refuses what is out of range
  backend::validate(o.sampling, config.dims.vocab);
  engine::EngineLimits limits = engine_limits(o, model, config);
  const bool takes_room_first = model.load_format == LoadFormat::kDummy || model.run.copy_weights;
  const bool knows_room = model.settings.print && !takes_room_first;  // else when weights are loaded
  if (o.kv_tokens > 0 && o.kv_memory_bytes > 0)
    throw Error(Code::kInvalidRequest, "--kv-tokens and --kv-cache-memory-bytes: want one of them");
  const bool sized = o.kv_tokens + o.kv_memory_bytes > 0 && model.run.max_model_len != kContextThatFits &&
                     !in_a_group(model);  // there rank 0's size counts
  if (knows_room || sized) limits = with_memory(o, model, config, limits);
  if (knows_room || model.run.max_model_len != kContextThatFits)
    note_resolved(model.settings, "--max-model-len", fmt::format("{}", limits.max_context));
  if (limits.kv_tokens > 0) note_resolved(model.settings, "--kv-tokens", fmt::format("{}", limits.kv_tokens));
  note_resolved(model.settings, "--async-scheduling", limits.async_scheduling ? "true" : "false");
  return o;
}

int execute(const ServeOptions& asked) {
  LogWriter log;
  Terminal terminal(asked.output);
  const server::LogLine log_line = serve_log(asked.log_format, terminal, log);
  const ServeOptions o = resolved_options(asked, terminal);  // refuses what can be before the port is open
  std::signal(SIGPIPE, SIG_IGN);                             // who reads the log may go before the server does
  const ModelOptions& model = o.model;
  const std::string& name = o.served_names.front();
  if (follows(model)) return follow(model, terminal, "serves no port");

  LostGroup lost_group(model.run.backend == BackendKind::kCuda);
  Running running;
  if (o.kv_events.on) {  // an address that cannot be bound is refused now, too
    if (!o.prefix_cache)
      throw Error(Code::kInvalidRequest, "--kv-events: want the prefix cache, found --no-enable-prefix-caching");
    const backend::Dims dims = open_config(model).config.dims;
    for (int i = 0; i < o.replicas; ++i)
      running.kv_events.push_back(std::make_unique<server::KvPublisher>(publish_options(o, i, dims)));
  }
  std::atomic<bool> loaded = false;
  server::Api api(api_options(o, log_line, log));
  const DeafAtTheEnd deaf;  // from when the server, which handles the signals, is gone
  server::HttpOptions options = http_options(o);
  options.on_signal = [&loaded] {
    if (!loaded) std::_Exit(kExitOk);  // nothing runs yet, and loading may take minutes
  };
  options.on_own_answer = [&api](int status) { api.answered_outside(status); };
  options.on_dropped = [&api] { api.connection_dropped(); };
  server::HttpServer http(std::move(options), [&api](const server::HttpRequest& request, server::Wake wake) {
    return api.handle(request, std::move(wake));
  });
  terminal.note("listening on " + http_address(o, o.host, http.port()));
  if (!o.host.starts_with("127.") && o.host != "localhost" && o.host != "::1" && o.api_keys.empty())
    terminal.note("whoever reaches this address may use the model: --api-key, or NIBBLE_API_KEY, asks for a key");
  std::optional<RecordedServer> record(std::in_place, o.records, local_address(o, http.port()), name);
  if (!record->problem().empty())
    terminal.note(fmt::format("nibble ps will not see this server: {}: {}", o.records.string(), record->problem()));
  api.loading("checking weights", 0);
  const auto on_load = [&api](const model::LoadProgress& p) {
    api.loading("loading weights",
                static_cast<double>(p.done_bytes) / static_cast<double>(std::max<int64_t>(p.total_bytes, 1)));
  };
  load(o, running, {terminal, on_load, [&lost_group](const std::string& why) { lost_group.lose(why); }});
  server::ServedModel served = served_model(running, o.served_names);
  served.root = asked.model.model.empty() ? own_model().names.front() : asked.model.model;
  served.by_priority = o.by_priority;
  served.facts.on_card = model.run.backend == BackendKind::kCuda;
  api.publish(std::move(served), server::port_of(*running.engines));
  loaded = true;
  lost_group.begin_serving();
  terminal.note(fmt::format("serving {} on {}, context {} tokens{}", name, running.replicas.front()->backend().name(),
                            running.max_context, o.replicas > 1 ? fmt::format(", {} replicas", o.replicas) : ""));
  if (o.any_model_name != AnyModelName::kNone)
    terminal.note(fmt::format("{} are answered by {} too (--any-model-name)",
                              o.any_model_name == AnyModelName::kAll ? "all other names of models" : "names claude-*",
                              name));
  terminal.note("modes: " + describe_modes(model, running.replicas.front()->backend()));
  for (const std::string& line : decisions(model)) terminal.note(line);
  for (const std::string& way : ways_in(o, http.port())) terminal.note(way);
  http.wait();
  record.reset();
  terminal.note("stopped");
  const std::string lost = lost_group.why();
  if (!lost.empty() && model.run.backend == BackendKind::kCuda) end_now(kExitIo, lost);  // not behind its card
  end_soon({.code = lost.empty() ? kExitOk : kExitIo});
  if (!lost.empty()) throw Error(Code::kIo, lost);
  running.replicas.front()->end_group();
  return kExitOk;
}

}  // namespace nibble::app
