#include "server/api.h"

#include "base/time_text.h"
#include "server/chat_service.h"
#include "server/json_fields.h"
#include "server/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

namespace nibble::server {
namespace {

int64_t now_seconds() { return static_cast<int64_t>(std::time(nullptr)); }

// Takes the same time wherever the first difference is.
bool same_secret(std::string_view a, std::string_view b) {
  unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i)
    difference |= static_cast<unsigned char>(a[i] ^ (b.empty() ? '\0' : b[i % b.size()]));
  return difference == 0;
}

// The client's id, if it may stand in a log and a header; otherwise a new one.
std::string request_id_of(const HttpRequest& request) {
  const auto plain = [](char c) { return c > ' ' && c < 0x7F && c != '"' && c != '\\'; };
  const std::string& id = request.client_id;
  const bool good = !id.empty() && id.size() <= 128 && std::all_of(id.begin(), id.end(), plain);
  return good ? id : make_id("req_");
}

constexpr size_t kShortBody = size_t{64} << 10;  // longer ones are read by call_maker_
// Seconds that the engine may be busy without ending a step. A first step that reads a large model from a slow disk
// takes minutes.
constexpr double kLongestTurn = 600;
constexpr std::string_view kMessages = "/v1/messages";  // and below: errors in Anthropic's form
constexpr std::string_view kOllama = "/api/";           // in Ollama's
constexpr std::string_view kCancel = "/cancel";         // at the end of a response's path
constexpr std::string_view kInputItems = "/input_items";

// What a request asks the model for.
const TurnRequest& asked(const ResponsesRequest& request) { return request.turn; }
const auto& asked(const auto& request) { return request; }

bool has_grammar(const CompletionRequest& request) { return request.format.kind != OutputFormat::Kind::kText; }
bool has_grammar(const TurnRequest& turn) {
  return !turn.tools.empty() || turn.format.kind != OutputFormat::Kind::kText;
}

using Today = std::function<std::string()>;
std::vector<engine::Request> engine_requests(const ServedModel& model, const CompletionRequest& request,
                                             const Today& /*date*/, Leniency& told) {
  return completion_requests(model, request, told);
}
std::vector<engine::Request> engine_requests(const ServedModel& model, const TurnRequest& turn, const Today& date,
                                             Leniency& told) {
  const bool says_nothing = turn.history.empty() && turn.instructions.empty();
  return says_nothing ? std::vector<engine::Request>() : turn_requests(model, turn, date(), told);
}

Json model_entry(const ServedModel& model, int64_t since, const std::string& name) {
  int32_t ordinary = model.tokenizer->max_id() + 1;  // tokens; special ones and gaps are behind them
  while (ordinary > 0 && (!model.tokenizer->contains(ordinary - 1) || model.tokenizer->is_special(ordinary - 1)))
    --ordinary;
  return {{"id", name},
          {"object", "model"},
          {"type", "model"},  // this and the next two are Anthropic's
          {"display_name", name},
          {"created_at", utc_time(since)},
          {"created", since},
          {"owned_by", "nibble"},
          {"root", model.root},  // vLLM's; its benchmark takes the tokenizer from there
          {"parent", nullptr},
          {"max_model_len", model.max_context},
          {"vocab_size", ordinary}};
}

// A model as Codex wants to know it; without these fields it offers no patches and counts no context.
Json codex_entry(const ServedModel& model, const std::string& name) {
  Json entry = {{"slug", name}, {"display_name", name}, {"context_window", model.max_context}};
  entry.update(parse_json(R"({
    "description": "served by Nibble", "visibility": "list", "supported_in_api": true, "priority": 1,
    "base_instructions": "You work in a terminal on the user's files. Use the tools, and say briefly what you did.",
    "default_reasoning_level": "medium",
    "supported_reasoning_levels": [{"effort": "low", "description": "low"}, {"effort": "medium", "description": "medium"},
                                   {"effort": "high", "description": "high"}],
    "supports_reasoning_summaries": true, "default_reasoning_summary": "none", "support_verbosity": true,
    "shell_type": "unified_exec", "apply_patch_tool_type": "freeform", "supports_parallel_tool_calls": false,
    "truncation_policy": {"mode": "tokens", "limit": 10000}, "effective_context_window_percent": 95,
    "experimental_supported_tools": [], "input_modalities": ["text"]})"));
  return entry;
}

// A path in OpenAPI's words.
Json openapi_path(std::string_view path, std::string_view methods) {
  Json item = Json::object();
  if (const size_t at = path.find('{'); at != std::string_view::npos)
    item["parameters"] = {{{"name", path.substr(at + 1, path.size() - at - 2)},
                           {"in", "path"},
                           {"required", true},
                           {"schema", {{"type", "string"}}}}};
  for (size_t at = 0; at < methods.size();) {
    std::string method(methods.substr(at, methods.find(',', at) - at));
    at += method.size() + 2;
    for (char& c : method) c = static_cast<char>(c | 0x20);
    item[method] = {{"responses", {{"200", {{"description", "docs/api.md says what is in it"}}}}}};
  }
  return item;
}

ApiError not_found(fmt::format_string<std::string> text, std::string what) {
  return {"", fmt::format(text, std::move(what)), 404, "not_found"};
}

bool allows(std::string_view methods, std::string_view method) {
  return fmt::format(" {},", methods).find(fmt::format(" {},", method)) != std::string::npos;
}

}  // namespace

std::span<const Api::Route> Api::routes() {
  static constexpr Route kRoutes[] = {
      {"/", "GET, HEAD", [](Api& a, Visit& v) { return a.page(v); }, false, false},
      {"/health", "GET, HEAD", [](Api& a, Visit& v) { return a.health(v); }, false, false},
      {"/ping", "GET, HEAD, POST", [](Api& a, Visit& v) { return a.answer(v, Json::object()); }, false, false},
      {"/version", "GET, HEAD", [](Api& a, Visit& v) { return a.answer(v, {{"version", a.options_.version}}); }, false,
       false},
      {"/metrics", "GET, HEAD",
       [](Api& a, Visit& v) {
         const int64_t dropped = a.options_.dropped_log_lines ? a.options_.dropped_log_lines() : 0;
         const std::string text = v.service == nullptr
                                      ? a.metrics_.text({}, "", dropped)
                                      : a.metrics_.text(v.service->port.stats(), v.service->model.names[0], dropped);
         return a.answer(v, HttpHead{.content_type = "text/plain; version=0.0.4; charset=utf-8"},
                         text + build_info_text(a.options_.version, a.options_.commit));
       },
       false, false},
      {"/openapi.json", "GET, HEAD",
       [](Api& a, Visit& v) {
         Json paths = Json::object();
         for (const Route& one : routes())
           if (!one.methods.empty()) paths[std::string(one.path)] = openapi_path(one.path, one.methods);
         return a.answer(v, {{"openapi", "3.1.0"},
                             {"info", {{"title", "Nibble"}, {"version", a.options_.version}}},
                             {"paths", std::move(paths)}});
       },
       false, false},
      {"/load", "GET, HEAD",
       [](Api& a, Visit& v) {
         const engine::EngineStats stats = v.service->port.stats();
         return a.answer(v, {{"server_load", stats.running + stats.waiting},
                             {"running", stats.running},
                             {"waiting", stats.waiting},
                             {"kv_pages", stats.kv_pages},
                             {"kv_pages_used", stats.kv_pages_used}});
       },
       true, false},
      {"/v1/models", "GET, HEAD",
       [](Api& a, Visit& v) {
         const ServedModel& model = v.service->model;
         Json list = Json::array(), codex = Json::array();
         for (const std::string& name : model.names) {
           list.push_back(model_entry(model, v.service->since, name));
           codex.push_back(codex_entry(model, name));
         }
         return a.answer(v, {{"object", "list"},
                             {"data", std::move(list)},
                             {"first_id", model.names.front()},
                             {"last_id", model.names.back()},
                             {"has_more", false},
                             {"models", std::move(codex)}});
       }},
      // Ollama's API, with a version that Codex takes.
      {"/api/version", "GET, HEAD", [](Api& a, Visit& v) { return a.answer(v, {{"version", "0.13.4"}}); }, false,
       false},
      {"/api/tags", "GET, HEAD",
       [](Api& a, Visit& v) {
         Json list = Json::array();
         for (const std::string& name : v.service->model.names)
           list.push_back(ollama_entry(v.service->model, v.service->since, name));
         return a.answer(v, {{"models", std::move(list)}});
       }},
      {"/api/ps", "GET, HEAD",
       [](Api& a, Visit& v) {
         const ServedModel& model = v.service->model;
         Json entry = ollama_entry(model, v.service->since, model.names.front());
         entry.update({{"size_vram", model.facts.on_card ? model.facts.bytes : 0},
                       {"expires_at", "2300-01-01T00:00:00Z"},  // it stays loaded
                       {"context_length", model.max_context}});
         return a.answer(v, {{"models", Json::array({std::move(entry)})}});
       }},
      {"/api/show", "POST", [](Api& a, Visit& v) { return a.ollama_model(v); }},
      {"/api/pull", "POST", [](Api& a, Visit& v) { return a.ollama_model(v); }},
      {"/api/chat", "POST", [](Api& a, Visit& v) { return a.ollama_answer(v, OllamaFor::kChat); }},
      {"/api/generate", "POST", [](Api& a, Visit& v) { return a.ollama_answer(v, OllamaFor::kGenerate); }},
      {"/api/{other}", "",
       [](Api&, Visit& v) -> std::unique_ptr<Call> {
         throw ApiError("", fmt::format("{} is not served: one model is, which has no embeddings", v.http.path), 400,
                        "unsupported_endpoint");
       },
       false},
      {"/v1/models/{model}", "GET, HEAD", [](Api& a, Visit& v) { return a.model(v); }},
      {"/tokenize", "POST", [](Api& a, Visit& v) { return a.tokenize(v); }},
      {"/detokenize", "POST", [](Api& a, Visit& v) { return a.detokenize(v); }},
      {"/v1/chat/completions", "POST",
       [](Api& a, Visit& v) {
         const Json body = parse_json(v.http.body);
         return a.generate(v, body, parse_chat(body, a.options_.defaults), "chatcmpl-", present_chat);
       }},
      {"/v1/chat/completions/{id}", "DELETE, GET, HEAD", [](Api& a, Visit& v) { return a.kept_answer(v); }},
      {"/v1/completions", "POST",
       [](Api& a, Visit& v) {
         const Json body = parse_json(v.http.body);
         return a.generate(v, body, parse_completion(body, a.options_.defaults), "cmpl-", present_completion);
       }},
      {"/v1/responses", "POST", [](Api& a, Visit& v) { return a.create_response(v); }},
      {"/v1/responses/input_tokens", "POST",
       [](Api& a, Visit& v) {
         const TurnRequest turn = parse_responses(parse_json(v.http.body), a.kept_turns(), a.options_.defaults).turn;
         return a.answer(v, {{"object", "response.input_tokens"}, {"input_tokens", a.prompt_of(v, turn).size()}});
       }},
      {"/v1/responses/{id}", "GET, HEAD, DELETE", [](Api& a, Visit& v) { return a.stored_response(v); }},
      {"/v1/messages", "POST",
       [](Api& a, Visit& v) {
         const Json body = parse_json(v.http.body);
         return a.generate(v, body, parse_messages(body, MessagesFor::kAnswer, a.options_.defaults), "msg_",
                           present_message);
       }},
      {"/v1/messages/count_tokens", "POST",
       [](Api& a, Visit& v) {
         const TurnRequest turn = parse_messages(parse_json(v.http.body), MessagesFor::kCount, a.options_.defaults);
         return a.answer(v, {{"input_tokens", a.prompt_of(v, turn).size()}});
       }},
  };
  return kRoutes;
}

const Api::Route* Api::route_of(std::string_view path) {
  const auto found = std::ranges::find_if(routes(), [path](const Route& route) { return route.leads_to(path); });
  return found == routes().end() ? nullptr : &*found;
}

std::string_view Api::route_name(std::string_view path) {
  const Route* route = route_of(path);
  return route == nullptr ? kNoRoute : route->path;
}

std::string_view Api::methods_of(std::string_view path) {
  const Route* route = route_of(path);
  if (!route->is_family() || !route->methods.ends_with("DELETE")) return route->methods;
  return path.ends_with(kCancel) ? "POST" : path.ends_with(kInputItems) ? "GET, HEAD" : route->methods;
}

Api::Api(ApiOptions options) : options_(std::move(options)), store_(options_.stored_responses, options_.stored_bytes) {}

void Api::loading(std::string phase, double done_share) {
  const std::lock_guard lock(loading_.mutex);
  loading_.phase = std::move(phase);
  loading_.done_share = done_share;
}

void Api::publish(ServedModel model, EnginePort port) {
  service_owner_ = std::make_unique<const Service>(Service{std::move(model), std::move(port), now_seconds()});
  service_ = service_owner_.get();
}

std::unique_ptr<Call> Api::handle(const HttpRequest& request, Wake wake) noexcept {
  const std::string id = request_id_of(request);
  if (const std::string path = "/v1" + request.path; route_of(request.path) == nullptr && route_of(path) != nullptr) {
    HttpRequest full = request;  // for clients that leave it out
    full.path = path;
    return handle(full, std::move(wake));
  }
  Visit visit{.http = request, .id = id, .arrived = std::chrono::steady_clock::now(), .wake = wake};
  try {
    return route(visit);
  } catch (const std::exception& e) {
    return refuse(id, request.path, api_error_of(e));
  }
}

std::unique_ptr<Call> Api::begin(Visit& visit, Making making, std::function<std::unique_ptr<Call>(Wake wake)> make) {
  if (making == Making::kQuick) return make(std::move(visit.wake));
  const auto refused = [this, id = visit.id, path = visit.http.path](const ApiError& error) {
    return refuse(id, path, error);
  };
  const auto guarded = [refused, make = std::move(make), wake = visit.wake] {
    try {
      return make(wake);
    } catch (const std::exception& e) {
      return refused(api_error_of(e));
    }
  };
  return call_maker_.defer(guarded, [refused] { return refused(shutting_down()); }, visit.wake);
}

void Api::answered_outside(int status) {
  metrics_.response_sent(kNoRoute, status);
  if (status >= 400 && options_.log) options_.log({{"event", "refused"}, {"status", status}});
}

std::unique_ptr<Call> Api::answer(const Visit& visit, HttpHead head, std::string body) {
  metrics_.response_sent(route_name(visit.http.path), head.status);
  return std::make_unique<ReadyCall>(std::move(head), std::move(body));
}

std::unique_ptr<Call> Api::answer(const Visit& visit, const Json& json) {
  return answer(visit, HttpHead(), to_text(json));
}

std::unique_ptr<Call> Api::refuse(const std::string& id, const std::string& path, const ApiError& error) {
  metrics_.response_sent(route_name(path), error.status());
  HttpHead head{.status = error.status(), .headers = {{"X-Request-Id", id}}};
  if (error.status() == 429 || error.status() == 503) head.headers.emplace_back("Retry-After", "1");
  if (error.status() == 405) head.headers.emplace_back("Allow", methods_of(path));
  if (error.status() == 401) head.headers.emplace_back("WWW-Authenticate", "Bearer");
  const bool quiet = path == "/health" || error.status() == 404;
  if (!quiet && options_.log) {
    options_.log({{"event", "refused"},
                  {"id", id},
                  {"path", path.substr(0, 100)},
                  {"status", error.status()},
                  {"param", error.param().substr(0, 100)}});  // the message may quote the request
  }
  if (path.starts_with(kOllama)) return std::make_unique<ReadyCall>(std::move(head), to_text(ollama_error(error)));
  if (!path.starts_with(kMessages)) return std::make_unique<ReadyCall>(std::move(head), to_text(error.json()));
  Json json = message_error(error);
  json["request_id"] = id;
  return std::make_unique<ReadyCall>(std::move(head), to_text(json));
}

void Api::check_key(const HttpRequest& request) const {
  if (options_.api_keys.empty()) return;
  constexpr std::string_view kBearer = "Bearer ";
  std::string_view given = request.authorization;
  const auto same_letter = [](char a, char b) { return (a | 0x20) == (b | 0x20); };
  const bool bearer =
      given.size() >= kBearer.size() && std::equal(kBearer.begin(), kBearer.end(), given.begin(), same_letter);
  if (bearer) given.remove_prefix(kBearer.size());
  const bool alone = given.empty() && !request.api_key.empty();  // x-api-key, as Anthropic's clients send it
  if (alone) given = request.api_key;
  bool known = false;
  for (const std::string& key : options_.api_keys) known |= same_secret(given, key);
  if ((bearer || alone) && known) return;
  const std::string_view found = given.empty()     ? "no key"
                                 : bearer || alone ? "one that is not valid here"
                                                   : "another form";
  throw ApiError("", fmt::format("want an API key (Authorization: Bearer KEY), found {}", found), 401,
                 "invalid_api_key");
}

std::unique_ptr<Call> Api::route(Visit& visit) {
  const HttpRequest& http = visit.http;
  const Route* const route = route_of(http.path);
  if (route == nullptr) throw not_found("there is no {} here", http.path.substr(0, 200));
  if (route->needs_key) check_key(http);
  if (!route->is_family()) expect_method(http, http.path);  // a family first looks for what it has
  if (!http.content_encoding.empty() && http.content_encoding != "identity")
    throw ApiError("", "the body must not be compressed", 415, "unsupported_encoding");
  visit.service = service_;
  if (!route->needs_model) return route->answer(*this, visit);
  if (visit.service == nullptr)
    throw ApiError("", "the model is still being loaded; /health tells how far", 503, "loading");
  if (http.body.size() <= kShortBody) return route->answer(*this, visit);
  return begin(visit, Making::kLong,
               [this, route, service = visit.service, http, id = visit.id, arrived = visit.arrived](Wake wake) {
                 Visit later{.http = http, .id = id, .arrived = arrived, .wake = wake, .service = service};
                 return route->answer(*this, later);
               });
}

const std::string& Api::served_name(const std::string& wanted, const Visit& visit) const {
  const auto& names = visit.service->model.names;
  constexpr std::string_view kLatest = ":latest";
  const std::string plain = wanted.ends_with(kLatest) ? wanted.substr(0, wanted.size() - kLatest.size()) : wanted;
  for (const std::string& name : {wanted, plain})
    if (const auto it = std::ranges::find(names, name); it != names.end()) return *it;
  const bool other = options_.other_names && wanted.starts_with(*options_.other_names);
  if (wanted.empty() || other) return names.front();
  throw ApiError("model",
                 visit.http.path.starts_with(kOllama)
                     ? fmt::format("model '{}' not found", wanted)
                     : fmt::format("there is no model {} here; served: {}", wanted, fmt::join(names, ", ")),
                 404, "model_not_found");
}

std::vector<int32_t> Api::prompt_of(const Visit& visit, const TurnRequest& turn) const {
  static_cast<void>(served_name(turn.generation.model, visit));
  return turn_prompt(visit.service->model, turn, options_.date());
}

void Api::tell_ignored(const Leniency& leniency) {
  constexpr size_t kMostTold = 256;
  Json fields = Json::array();
  {
    const std::lock_guard lock(ignored_.mutex);
    for (const std::string& name : leniency.ignored)
      if (ignored_.told.size() < kMostTold && ignored_.told.insert(name).second) fields.push_back(name);
  }
  if (!fields.empty() && options_.log) options_.log({{"event", "ignored"}, {"fields", std::move(fields)}});
}

std::unique_ptr<Call> Api::page(Visit& visit) {
  HttpHead head{.content_type = "text/html; charset=utf-8", .headers = {{"Vary", "Accept-Encoding"}}};
  if (!takes_gzip(visit.http.accept_encoding)) return answer(visit, std::move(head), std::string(chat_page()));
  head.headers.emplace_back("Content-Encoding", "gzip");
  return answer(visit, std::move(head), std::string(gzipped_chat_page()));
}

std::unique_ptr<Call> Api::health(Visit& visit) {
  HttpHead head{.status = 503, .headers = {{"Retry-After", "1"}}};
  if (const Service* const service = service_; service != nullptr) {
    const double seconds = service->port.stats().turn_seconds;
    if (seconds < kLongestTurn) return answer(visit, {{"status", "ok"}});
    return answer(visit, std::move(head), to_text({{"status", "stuck"}, {"seconds", std::llround(seconds)}}));
  }
  const std::lock_guard lock(loading_.mutex);
  const Json json = {{"status", "loading"},
                     {"phase", loading_.phase},
                     {"percent", static_cast<int>(std::clamp(loading_.done_share, 0.0, 1.0) * 100)}};
  return answer(visit, std::move(head), to_text(json));
}

void Api::expect_method(const HttpRequest& http, std::string_view what) {
  if (!allows(methods_of(http.path), http.method))
    throw ApiError("", fmt::format("{} takes {}", what, methods_of(http.path)), 405, "method_not_allowed");
}

std::unique_ptr<Call> Api::model(Visit& visit) {
  expect_method(visit.http, "a model");
  const std::string& served = served_name(member_of(visit.http.path), visit);
  return answer(visit, model_entry(visit.service->model, visit.service->since, served));
}

template <class Request, class Present>
std::unique_ptr<Call> Api::generate(Visit& visit, const Json& body, Request request, std::string_view id_prefix,
                                    Present present) {
  const GenerationFields& fields = asked(request).generation;
  AnswerId id{make_id(id_prefix), served_name(fields.model, visit), now_seconds()};
  tell_ignored(fields.leniency);
  if (options_.log_prompts && options_.log) options_.log({{"event", "prompt"}, {"id", visit.id}, {"body", body}});
  const CallContext context{.port = visit.service->port,
                            .metrics = metrics_,
                            .log = options_.log,
                            .request_id = visit.id,
                            .path = visit.http.path,
                            .leniency = fields.leniency,
                            .arrived = visit.arrived};
  const Making making = has_grammar(asked(request)) ? Making::kLong : Making::kQuick;
  const bool kept = fields.background;
  const auto make = [this, context, &model = visit.service->model, id = std::move(id), request = std::move(request),
                     present](Wake wake) {
    CallContext with_told = context;
    std::unique_ptr<Presenter> presenter = present(model, id, request);
    const bool stream = asked(request).generation.stream;
    std::vector<engine::Request> requests;
    std::optional<ApiError> failure;
    try {
      requests = engine_requests(model, asked(request), options_.date, with_told.leniency);
      tell_ignored(with_told.leniency);
    } catch (const ApiError& e) {
      if (!stream || !presenter->streams_overflow() || !e.prompt_tokens()) throw;
      failure = e;
    }
    return std::make_unique<EngineCall>(std::move(with_told), std::move(presenter), std::move(requests), stream,
                                        std::move(wake), std::move(failure));
  };
  if (!kept) return begin(visit, making, make);
  return kept_.open(visit.id, visit.wake, [&](Wake wake) {
    visit.wake = std::move(wake);
    return begin(visit, making, make);
  });
}

std::unique_ptr<Call> Api::ollama_answer(Visit& visit, OllamaFor what) {
  const Json body = parse_json(visit.http.body);
  return generate(visit, body, parse_ollama(body, what, options_.defaults), "", present_ollama);
}

std::unique_ptr<Call> Api::ollama_model(Visit& visit) {
  const Json body = parse_json(visit.http.body);
  Fields fields(body, "");
  const auto older = fields.string("name");
  const bool is_older = older && fields.find("model") == nullptr;
  const std::string& name = served_name(is_older ? *older : fields.required_string("model"), visit);
  HttpHead head;
  if (fields.boolean("stream").value_or(true)) head.content_type = kLines;
  fields.ignore_booleans({"verbose", "insecure"});
  fields.refuse({"system", "template", "options", "username", "password"}, "this server does not do it");
  fields.done();
  if (visit.http.path == "/api/show")
    return answer(visit, ollama_details(visit.service->model, visit.service->since, name));
  return answer(visit, std::move(head), to_text({{"status", "success"}}) + "\n");  // a pull of what is here
}

PreviousResponse Api::kept_turns() const {
  return [this](const std::string& id) {
    auto entry = store_.get(id);
    if (!entry)
      throw ApiError("previous_response_id", fmt::format("there is no response {}", id.substr(0, 100)), 404,
                     "previous_response_not_found");
    return std::move(entry->turn);
  };
}

std::unique_ptr<Call> Api::create_response(Visit& visit) {
  const Json body = parse_json(visit.http.body);
  return generate(visit, body, parse_responses(body, kept_turns(), options_.defaults), "resp_",
                  [this](const ServedModel& model, AnswerId id, const ResponsesRequest& request) {
                    KeepResponse keep = request.store ? keep_response(id.id, request) : KeepResponse();
                    return present_response(model, std::move(id), request, std::move(keep));
                  });
}

KeepResponse Api::keep_response(const std::string& id, const ResponsesRequest& request) {
  StoredTurn before{.instructions = request.lasting, .history = request.turn.history, .calls = {}};
  std::ranges::copy_if(request.turn.tools, std::back_inserter(before.loaded),
                       [](const Tool& tool) { return tool.told == Tool::Told::kInHistory; });
  return [this, id, before = std::move(before), input = request.input](
             const Json& response, const std::vector<text::Message>& added, const CallNames& calls) {
    StoredTurn turn = before;
    turn.calls = calls;
    turn.history.insert(turn.history.end(), added.begin(), added.end());
    store_.put(id, {.response = response, .input = input, .turn = std::move(turn)});
  };
}

std::unique_ptr<Call> Api::stored_response(Visit& visit) {
  std::string id = member_of(visit.http.path);
  const auto takes = [&id](std::string_view end) {
    const bool found = id.ends_with(end);
    if (found) id.resize(id.size() - end.size());
    return found;
  };
  const bool cancel = takes(kCancel), input = !cancel && takes(kInputItems);
  if (id.find('/') != std::string::npos) throw not_found("there is no {} here", visit.http.path.substr(0, 200));
  const auto entry = store_.get(id);
  if (!entry) throw not_found("there is no response {}", id.substr(0, 100));
  const std::string& method = visit.http.method;
  if (cancel && method == "POST")  // none is running: closing the connection ends a running one
    throw ApiError("", "only background responses can be cancelled, and there are none", 400, "not_cancellable");
  const bool reads = !cancel && (method == "GET" || method == "HEAD");
  if (reads && input) return answer(visit, input_items(id, entry->input, visit.http.query));
  if (reads) {
    if (query_value(visit.http.query, "stream") == "true")
      throw unsupported_value("stream", "a kept response is given whole");
    return answer(visit, entry->response);
  }
  expect_method(visit.http, "a response");
  store_.remove(id);
  return answer(visit, {{"id", id}, {"object", "response.deleted"}, {"deleted", true}});
}

std::unique_ptr<Call> Api::kept_answer(Visit& visit) {
  const std::string id = member_of(visit.http.path), &method = visit.http.method;
  if (method == "DELETE") {
    if (!kept_.remove(id)) throw not_found("no answer {} is kept", id.substr(0, 100));
    return answer(visit, {{"id", id}, {"object", "chat.completion.deleted"}, {"deleted", true}});
  }
  expect_method(visit.http, "an answer");
  auto call = kept_.read(id, visit.wake);
  if (!call) throw not_found("no answer {} is kept", id.substr(0, 100));
  metrics_.response_sent(route_name(visit.http.path), 200);
  return call;
}

std::unique_ptr<Call> Api::tokenize(Visit& visit) {
  const ServedModel& model = visit.service->model;
  const Json body = parse_json(visit.http.body);
  Fields fields(body, "");
  const bool with_text = fields.boolean("return_token_strs").value_or(false);
  std::vector<int32_t> ids;
  if (body.contains("messages")) {
    Json chat = body;
    chat.erase("return_token_strs");
    ids = prompt_of(visit, parse_chat(chat, options_.defaults));
  } else {
    static_cast<void>(served_name(fields.string("model").value_or(""), visit));
    const std::string text = fields.required_string("prompt");
    const bool special = fields.boolean("add_special_tokens").value_or(true);
    fields.done();
    ids = model.tokenizer->encode(text, special ? text::SpecialTokens::kAllowed : text::SpecialTokens::kAsText);
  }
  Json json = {{"count", ids.size()}, {"max_model_len", model.max_context}, {"tokens", ids}, {"token_strs", nullptr}};
  if (with_text) {
    json["token_strs"] = Json::array();
    for (const int32_t id : ids) json["token_strs"].push_back(std::string(model.tokenizer->token_bytes(id)));
  }
  return answer(visit, json);
}

std::unique_ptr<Call> Api::detokenize(Visit& visit) {
  const ServedModel& model = visit.service->model;
  const Json body = parse_json(visit.http.body);
  Fields fields(body, "");
  static_cast<void>(served_name(fields.string("model").value_or(""), visit));
  const Json& tokens = fields.required("tokens", "an array of token ids");
  fields.done();
  std::string text;
  for (const int32_t id : token_ids_of(tokens, "tokens")) {
    if (id >= model.vocab || !model.tokenizer->contains(id))
      throw invalid_value("tokens", "want token ids, found {}", id);
    text += model.tokenizer->token_bytes(id);
  }
  return answer(visit, {{"prompt", text}});
}

}  // namespace nibble::server
