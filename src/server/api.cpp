#include "server/api.h"

#include "server/chat_service.h"
#include "server/http.h"
#include "server/json_fields.h"
#include "server/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
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

constexpr size_t kShortBody = size_t{64} << 10;         // longer ones are read by call_maker_
constexpr std::string_view kMessages = "/v1/messages";  // and below: errors in Anthropic's form
constexpr std::string_view kCancel = "/cancel";         // at the end of one of those

void check_model(const std::string& wanted, const ServedModel& model) {
  const auto& names = model.names;
  if (wanted.empty() || std::find(names.begin(), names.end(), wanted) != names.end()) return;
  throw ApiError("model", fmt::format("there is no model {} here; served: {}", wanted, fmt::join(names, ", ")), 404,
                 "model_not_found");
}

const GenerationFields& generation_in(const TurnRequest& turn) { return turn.generation; }
const GenerationFields& generation_in(const ResponsesRequest& request) { return request.turn.generation; }
const GenerationFields& generation_in(const CompletionRequest& request) { return request.generation; }

bool has_grammar(const CompletionRequest& request) { return request.format.kind != OutputFormat::Kind::kText; }
bool has_grammar(const TurnRequest& turn) {
  return !turn.tools.empty() || turn.format.kind != OutputFormat::Kind::kText;
}
bool has_grammar(const ResponsesRequest& request) { return has_grammar(request.turn); }

AnswerId answer_id(std::string_view prefix, const std::string& wanted, const ServedModel& model) {
  return {.id = make_id(prefix), .model = wanted.empty() ? model.names.front() : wanted, .created = now_seconds()};
}

bool allows(std::string_view methods, std::string_view method) {
  return fmt::format(" {},", methods).find(fmt::format(" {},", method)) != std::string::npos;
}

}  // namespace

const Api::Route* Api::route_of(std::string_view path) {
  static constexpr Route kRoutes[] = {
      {"/", "GET, HEAD", &Api::page, false, false},
      {"/health", "GET, HEAD", &Api::health, false, false},
      {"/ping", "GET, HEAD, POST", &Api::ping, false, false},
      {"/version", "GET, HEAD", &Api::version, false, false},
      {"/metrics", "GET, HEAD", &Api::metrics, false, false},
      {"/load", "GET, HEAD", &Api::load, true, false},
      {"/v1/models", "GET, HEAD", &Api::models},
      {"/v1/models/{model}", "GET, HEAD", &Api::model},
      {"/tokenize", "POST", &Api::tokenize},
      {"/detokenize", "POST", &Api::detokenize},
      {"/v1/chat/completions", "POST", &Api::chat},
      {"/v1/completions", "POST", &Api::completion},
      {"/v1/responses", "POST", &Api::create_response},
      {"/v1/responses/{id}", "GET, HEAD, DELETE", &Api::stored_response},
      {"/v1/messages", "POST", &Api::messages},
      {"/v1/messages/count_tokens", "POST", &Api::count_tokens},
  };
  const auto* found = std::ranges::find_if(kRoutes, [path](const Route& route) { return route.leads_to(path); });
  return found == std::end(kRoutes) ? nullptr : found;
}

std::string_view Api::route_name(std::string_view path) {
  const Route* route = route_of(path);
  return route == nullptr ? kNoRoute : route->path;
}

std::string_view Api::methods_of(std::string_view path) {
  const Route* route = route_of(path);
  return route->answer == &Api::stored_response && path.ends_with(kCancel) ? "POST" : route->methods;
}

std::string Api::member_of(const std::string& path) { return path.substr(route_of(path)->beginning().size()); }

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
  Visit visit{.http = request, .id = id, .arrived = Generation::Clock::now(), .wake = wake};
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
  if (route == nullptr)
    throw ApiError("", fmt::format("there is no {} here", http.path.substr(0, 200)), 404, "not_found");
  if (route->needs_key) check_key(http);
  if (!route->is_family() && !allows(route->methods, http.method))  // a family first looks for what it has
    throw ApiError("", fmt::format("{} takes {}", http.path, route->methods), 405, "method_not_allowed");
  if (!http.content_encoding.empty() && http.content_encoding != "identity")
    throw ApiError("", "the body must not be compressed", 415, "unsupported_encoding");
  visit.service = service_;
  if (!route->needs_model) return (this->*route->answer)(visit);
  if (visit.service == nullptr)
    throw ApiError("", "the model is still being loaded; /health tells how far", 503, "loading");
  if (http.body.size() <= kShortBody) return (this->*route->answer)(visit);
  return begin(visit, Making::kLong,
               [this, route, service = visit.service, http, id = visit.id, arrived = visit.arrived](Wake wake) {
                 Visit later{.http = http, .id = id, .arrived = arrived, .wake = wake, .service = service};
                 return (this->*route->answer)(later);
               });
}

std::unique_ptr<Call> Api::page(Visit& visit) {
  HttpHead head{.content_type = "text/html; charset=utf-8", .headers = {{"Vary", "Accept-Encoding"}}};
  if (!takes_gzip(visit.http.accept_encoding)) return answer(visit, std::move(head), std::string(chat_page()));
  head.headers.emplace_back("Content-Encoding", "gzip");
  return answer(visit, std::move(head), std::string(gzipped_chat_page()));
}

std::unique_ptr<Call> Api::ping(Visit& visit) { return answer(visit, Json::object()); }

std::unique_ptr<Call> Api::version(Visit& visit) { return answer(visit, {{"version", options_.version}}); }

std::unique_ptr<Call> Api::metrics(Visit& visit) {
  const Service* service = visit.service;
  const std::string text =
      service == nullptr ? metrics_.text({}, "") : metrics_.text(service->port.stats(), service->model.names[0]);
  return answer(visit, HttpHead{.content_type = "text/plain; version=0.0.4; charset=utf-8"},
                text + build_info_text(options_.version, options_.commit));
}

std::unique_ptr<Call> Api::load(Visit& visit) {
  const engine::EngineStats stats = visit.service->port.stats();
  return answer(visit, {{"server_load", stats.running + stats.waiting},
                        {"running", stats.running},
                        {"waiting", stats.waiting},
                        {"kv_pages", stats.kv_pages},
                        {"kv_pages_used", stats.kv_pages_used}});
}

std::unique_ptr<Call> Api::health(Visit& visit) {
  if (service_ != nullptr) return answer(visit, {{"status", "ok"}});
  const std::lock_guard lock(loading_.mutex);
  HttpHead head{.status = 503, .headers = {{"Retry-After", "1"}}};
  const Json json = {{"status", "loading"},
                     {"phase", loading_.phase},
                     {"percent", static_cast<int>(std::clamp(loading_.done_share, 0.0, 1.0) * 100)}};
  return answer(visit, std::move(head), to_text(json));
}

namespace {

Json model_entry(const ServedModel& model, int64_t since, const std::string& name) {
  int32_t ordinary = model.tokenizer->max_id() + 1;  // tokens; special ones and gaps are behind them
  while (ordinary > 0 && (!model.tokenizer->contains(ordinary - 1) || model.tokenizer->is_special(ordinary - 1)))
    --ordinary;
  return {{"id", name},
          {"object", "model"},
          {"created", since},
          {"owned_by", "nibble"},
          {"root", model.root},  // vLLM's; its benchmark takes the tokenizer from there
          {"parent", nullptr},
          {"max_model_len", model.max_context},
          {"vocab_size", ordinary}};
}

}  // namespace

std::unique_ptr<Call> Api::models(Visit& visit) {
  Json list = Json::array();
  for (const std::string& name : visit.service->model.names)
    list.push_back(model_entry(visit.service->model, visit.service->since, name));
  return answer(visit, {{"object", "list"}, {"data", std::move(list)}});
}

std::unique_ptr<Call> Api::model(Visit& visit) {
  if (!allows(methods_of(visit.http.path), visit.http.method))
    throw ApiError("", fmt::format("a model takes {}", methods_of(visit.http.path)), 405, "method_not_allowed");
  const std::string name = member_of(visit.http.path);
  check_model(name, visit.service->model);
  return answer(visit, model_entry(visit.service->model, visit.service->since, name));
}

CallContext Api::context(const Visit& visit) {
  return {.port = visit.service->port,
          .metrics = metrics_,
          .log = options_.log,
          .request_id = visit.id,
          .path = visit.http.path,
          .arrived = visit.arrived};
}

template <class Request, class Make>
std::unique_ptr<Call> Api::generate(Visit& visit, const Json& body, Request request, Make make) {
  check_model(generation_in(request).model, visit.service->model);
  if (options_.log_prompts && options_.log) options_.log({{"event", "prompt"}, {"id", visit.id}, {"body", body}});
  const Making making = has_grammar(request) ? Making::kLong : Making::kQuick;
  return begin(visit, making,
               [context = context(visit), request = std::move(request), make = std::move(make)](Wake wake) {
                 Answering of = make(request);
                 return std::make_unique<EngineCall>(context, std::move(of.presenter), std::move(of.requests),
                                                     generation_in(request).stream, std::move(wake));
               });
}

std::unique_ptr<Call> Api::chat(Visit& visit) {
  const Json body = parse_json(visit.http.body);
  return generate(visit, body, parse_chat(body, options_.defaults),
                  [this, &model = visit.service->model](const TurnRequest& turn) -> Answering {
                    return {turn_requests(model, turn, options_.date()),
                            present_chat(model, answer_id("chatcmpl-", turn.generation.model, model), turn)};
                  });
}

std::unique_ptr<Call> Api::completion(Visit& visit) {
  const Json body = parse_json(visit.http.body);
  return generate(visit, body, parse_completion(body, options_.defaults),
                  [&model = visit.service->model](const CompletionRequest& request) -> Answering {
                    return {completion_requests(model, request),
                            present_completion(model, answer_id("cmpl-", request.generation.model, model), request)};
                  });
}

std::unique_ptr<Call> Api::messages(Visit& visit) {
  const Json body = parse_json(visit.http.body);
  return generate(visit, body, parse_messages(body, MessagesFor::kAnswer, options_.defaults),
                  [this, &model = visit.service->model](const TurnRequest& turn) -> Answering {
                    return {turn_requests(model, turn, options_.date()),
                            present_message(model, answer_id("msg_", turn.generation.model, model), turn)};
                  });
}

std::unique_ptr<Call> Api::count_tokens(Visit& visit) {
  const ServedModel& model = visit.service->model;
  const TurnRequest turn = parse_messages(parse_json(visit.http.body), MessagesFor::kCount, options_.defaults);
  check_model(turn.generation.model, model);
  return answer(visit, {{"input_tokens", turn_prompt(model, turn, options_.date()).size()}});
}

std::unique_ptr<Call> Api::create_response(Visit& visit) {
  const Json body = parse_json(visit.http.body);
  const auto previous = [this](const std::string& id) {
    auto entry = store_.get(id);
    if (!entry) {
      throw ApiError("previous_response_id", fmt::format("there is no response {}", id.substr(0, 100)), 404,
                     "previous_response_not_found");
    }
    return std::move(entry->turn);
  };
  return generate(visit, body, parse_responses(body, previous, options_.defaults),
                  [this, &model = visit.service->model](const ResponsesRequest& request) -> Answering {
                    AnswerId id = answer_id("resp_", request.turn.generation.model, model);
                    KeepResponse keep = request.store ? keep_response(id.id, request) : KeepResponse();
                    return {turn_requests(model, request.turn, options_.date()),
                            present_response(model, std::move(id), request, std::move(keep))};
                  });
}

KeepResponse Api::keep_response(const std::string& id, const ResponsesRequest& request) {
  StoredTurn before{.instructions = request.lasting, .history = request.turn.history, .calls = {}};
  return [this, id, before = std::move(before)](const Json& response, const std::vector<text::Message>& added,
                                                const CallNames& calls) {
    StoredTurn turn = before;
    turn.calls = calls;
    turn.history.insert(turn.history.end(), added.begin(), added.end());
    store_.put(id, {.response = response, .turn = std::move(turn)});
  };
}

std::unique_ptr<Call> Api::stored_response(Visit& visit) {
  std::string id = member_of(visit.http.path);
  const bool cancel = id.ends_with(kCancel);
  if (cancel) id.resize(id.size() - kCancel.size());
  if (id.find('/') != std::string::npos)
    throw ApiError("", fmt::format("there is no {} here", visit.http.path.substr(0, 200)), 404, "not_found");
  const auto entry = store_.get(id);
  if (!entry) throw ApiError("", fmt::format("there is no response {}", id.substr(0, 100)), 404, "not_found");
  const std::string& method = visit.http.method;
  if (cancel && method == "POST")  // none is running: closing the connection ends a running one
    throw ApiError("", "only background responses can be cancelled, and there are none", 400, "not_cancellable");
  if (!cancel && (method == "GET" || method == "HEAD")) {
    if (visit.http.query.find("stream=true") != std::string::npos)
      throw unsupported_value("stream", "a kept response is given whole");
    return answer(visit, entry->response);
  }
  if (cancel || method != "DELETE")
    throw ApiError("", fmt::format("a response takes {}", methods_of(visit.http.path)), 405, "method_not_allowed");
  store_.remove(id);
  return answer(visit, {{"id", id}, {"object", "response.deleted"}, {"deleted", true}});
}

std::unique_ptr<Call> Api::tokenize(Visit& visit) {
  const ServedModel& model = visit.service->model;
  const Json body = parse_json(visit.http.body);
  std::vector<int32_t> ids;
  bool with_text = false;
  if (body.is_object() && body.contains("messages")) {
    Fields fields(body, "");
    with_text = fields.boolean("return_token_strs").value_or(false);
    Json chat = body;
    chat.erase("return_token_strs");
    const TurnRequest turn = parse_chat(chat, options_.defaults);
    check_model(turn.generation.model, model);
    ids = turn_prompt(model, turn, options_.date());
  } else {
    Fields fields(body, "");
    check_model(fields.string("model").value_or(""), model);
    const std::string text = fields.required_string("prompt");
    const bool special = fields.boolean("add_special_tokens").value_or(true);
    with_text = fields.boolean("return_token_strs").value_or(false);
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
  check_model(fields.string("model").value_or(""), model);
  const Json& tokens = array_of(fields.required("tokens", "an array of token ids"), "tokens");
  fields.done();
  std::string text;
  for (const Json& item : tokens) {
    const int64_t id = integer_of(item, "tokens");
    if (id < 0 || id >= model.vocab || !model.tokenizer->contains(static_cast<int32_t>(id)))
      throw invalid_value("tokens", "want token ids, found {}", id);
    text += model.tokenizer->token_bytes(static_cast<int32_t>(id));
  }
  return answer(visit, {{"prompt", text}});
}

}  // namespace nibble::server
