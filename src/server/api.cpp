#include "server/api.h"

#include "server/chat_service.h"
#include "server/http_text.h"
#include "server/json_fields.h"
#include "server/page.h"
#include "server/parse_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>
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

struct Route {
  std::string_view path;
  bool get, post, needs_key;
};
constexpr std::array kRoutes = {Route{"/", true, false, false},
                                Route{"/health", true, false, false},
                                Route{"/ping", true, true, false},
                                Route{"/version", true, false, false},
                                Route{"/metrics", true, false, false},
                                Route{"/load", true, false, false},
                                Route{"/v1/models", true, false, true},
                                Route{"/tokenize", false, true, true},
                                Route{"/detokenize", false, true, true},
                                Route{"/v1/chat/completions", false, true, true},
                                Route{"/v1/completions", false, true, true},
                                Route{"/v1/responses", false, true, true},
                                Route{"/v1/messages", false, true, true},
                                Route{"/v1/messages/count_tokens", false, true, true}};
constexpr size_t kShortBody = size_t{64} << 10;  // longer ones are read by call_maker_
constexpr std::string_view kModelsPrefix = "/v1/models/";
constexpr std::string_view kResponsesPrefix = "/v1/responses/";
constexpr std::string_view kMessages = "/v1/messages";  // and below: errors in Anthropic's form
constexpr std::string_view kCancel = "/cancel";         // at the end of one of those

// For metrics: few names, whatever paths clients try.
std::string_view route_of(std::string_view path) {
  const auto* known = std::find_if(kRoutes.begin(), kRoutes.end(), [path](const Route& r) { return r.path == path; });
  if (known != kRoutes.end()) return known->path;
  return path.starts_with(kModelsPrefix)      ? "/v1/models/{model}"
         : path.starts_with(kResponsesPrefix) ? "/v1/responses/{id}"
                                              : kNoRoute;
}

// The methods that a path takes, as in the header Allow.
std::string_view methods_of(std::string_view path) {
  const auto* known = std::find_if(kRoutes.begin(), kRoutes.end(), [path](const Route& r) { return r.path == path; });
  if (known == kRoutes.end())
    return path.starts_with(kModelsPrefix) ? "GET, HEAD" : path.ends_with(kCancel) ? "POST" : "GET, HEAD, DELETE";
  return !known->get ? "POST" : known->post ? "GET, HEAD, POST" : "GET, HEAD";
}

void check_model(const std::string& wanted, const ServedModel& model) {
  const auto& names = model.names;
  if (wanted.empty() || std::find(names.begin(), names.end(), wanted) != names.end()) return;
  throw ApiError("model", fmt::format("there is no model {} here; served: {}", wanted, fmt::join(names, ", ")), 404,
                 "model_not_found");
}

bool has_grammar(const TurnRequest& turn) {
  return !turn.tools.empty() || turn.format.kind != OutputFormat::Kind::kText;
}

AnswerId answer_id(std::string_view prefix, const std::string& wanted, const ServedModel& model) {
  return {.id = make_id(prefix), .model = wanted.empty() ? model.names.front() : wanted, .created = now_seconds()};
}

}  // namespace

Api::Api(ApiOptions options) : options_(std::move(options)), store_(options_.stored_responses, options_.stored_bytes) {}

void Api::loading(std::string phase, double done_share) {
  const std::lock_guard lock(loading_.mutex);
  loading_.phase = std::move(phase);
  loading_.done_share = done_share;
}

void Api::publish(ServedModel model, EnginePort port) {
  served_owner_ = std::make_unique<const Served>(Served{std::move(model), std::move(port), now_seconds()});
  served_ = served_owner_.get();
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
  metrics_.response_sent(route_of(visit.http.path), head.status);
  return std::make_unique<ReadyCall>(std::move(head), std::move(body));
}

std::unique_ptr<Call> Api::answer(const Visit& visit, const Json& json) {
  return answer(visit, HttpHead(), to_text(json));
}

std::unique_ptr<Call> Api::refuse(const std::string& id, const std::string& path, const ApiError& error) {
  metrics_.response_sent(route_of(path), error.status());
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
  const std::string& path = http.path;
  const bool get = http.method == "GET" || http.method == "HEAD";
  const auto* known = std::find_if(kRoutes.begin(), kRoutes.end(), [&path](const Route& r) { return r.path == path; });
  const bool of_models = path.starts_with(kModelsPrefix), of_responses = path.starts_with(kResponsesPrefix);
  if (known == kRoutes.end() && !of_models && !of_responses)
    throw ApiError("", fmt::format("there is no {} here", path.substr(0, 200)), 404, "not_found");
  if (known == kRoutes.end() || known->needs_key) check_key(http);
  if (known != kRoutes.end() && !(get ? known->get : http.method == "POST" && known->post))
    throw ApiError("", fmt::format("{} takes {}", path, methods_of(path)), 405, "method_not_allowed");
  if (!http.content_encoding.empty() && http.content_encoding != "identity")
    throw ApiError("", "the body must not be compressed", 415, "unsupported_encoding");
  if (path == "/") {
    HttpHead head{.content_type = "text/html; charset=utf-8", .headers = {{"Vary", "Accept-Encoding"}}};
    if (!takes_gzip(http.accept_encoding)) return answer(visit, std::move(head), std::string(chat_page()));
    head.headers.emplace_back("Content-Encoding", "gzip");
    return answer(visit, std::move(head), std::string(gzipped_chat_page()));
  }
  if (path == "/health") return health(visit);
  if (path == "/ping") return answer(visit, Json::object());
  if (path == "/version") return answer(visit, {{"version", options_.version}});
  const Served* served = served_;
  if (path == "/metrics") {
    const std::string text =
        served == nullptr ? metrics_.text({}, "") : metrics_.text(served->port.stats(), served->model.names[0]);
    return answer(visit, HttpHead{.content_type = "text/plain; version=0.0.4; charset=utf-8"},
                  text + build_info_text(options_.version, options_.commit));
  }
  if (served == nullptr) throw ApiError("", "the model is still being loaded; /health tells how far", 503, "loading");
  if (http.body.size() <= kShortBody) return route_served(visit, *served);
  return begin(visit, Making::kLong, [this, served, http, id = visit.id, arrived = visit.arrived](Wake wake) {
    Visit later{.http = http, .id = id, .arrived = arrived, .wake = wake};
    return route_served(later, *served);
  });
}

std::unique_ptr<Call> Api::route_served(Visit& visit, const Served& served) {
  const std::string& path = visit.http.path;
  if (path == "/load") {
    const engine::EngineStats stats = served.port.stats();
    return answer(visit, {{"server_load", stats.running + stats.waiting},
                          {"running", stats.running},
                          {"waiting", stats.waiting},
                          {"kv_pages", stats.kv_pages},
                          {"kv_pages_used", stats.kv_pages_used}});
  }
  if (path.starts_with("/v1/models")) return models(visit, served);
  if (path == "/v1/chat/completions") return chat(visit, served);
  if (path == "/v1/completions") return completion(visit, served);
  if (path == "/v1/responses") return create_response(visit, served);
  if (path == kMessages) return messages(visit, served);
  if (path == "/v1/messages/count_tokens") return count_tokens(visit, served);
  if (path == "/tokenize") return tokenize(visit, served);
  if (path == "/detokenize") return detokenize(visit, served);
  return stored_response(visit);
}

std::unique_ptr<Call> Api::health(const Visit& visit) {
  if (served_ != nullptr) return answer(visit, {{"status", "ok"}});
  const std::lock_guard lock(loading_.mutex);
  HttpHead head{.status = 503, .headers = {{"Retry-After", "1"}}};
  const Json json = {{"status", "loading"},
                     {"phase", loading_.phase},
                     {"percent", static_cast<int>(std::clamp(loading_.done_share, 0.0, 1.0) * 100)}};
  return answer(visit, std::move(head), to_text(json));
}

std::unique_ptr<Call> Api::models(const Visit& visit, const Served& served) {
  const text::Tokenizer& tokenizer = *served.model.tokenizer;
  int32_t ordinary = tokenizer.max_id() + 1;  // tokens; special ones and gaps are behind them
  while (ordinary > 0 && (!tokenizer.contains(ordinary - 1) || tokenizer.is_special(ordinary - 1))) --ordinary;
  const auto entry = [&](const std::string& name) {
    return Json{{"id", name},
                {"object", "model"},
                {"created", served.since},
                {"owned_by", "nibble"},
                {"root", served.model.root},  // vLLM's; its benchmark takes the tokenizer from there
                {"parent", nullptr},
                {"max_model_len", served.model.max_context},
                {"vocab_size", ordinary}};
  };
  if (visit.http.path.size() > kModelsPrefix.size()) {
    if (visit.http.method != "GET" && visit.http.method != "HEAD")
      throw ApiError("", fmt::format("a model takes {}", methods_of(visit.http.path)), 405, "method_not_allowed");
    const std::string name = visit.http.path.substr(kModelsPrefix.size());
    check_model(name, served.model);
    return answer(visit, entry(name));
  }
  Json list = Json::array();
  for (const std::string& name : served.model.names) list.push_back(entry(name));
  return answer(visit, {{"object", "list"}, {"data", std::move(list)}});
}

CallContext Api::context(const Visit& visit, const Served& served) {
  return {.port = served.port,
          .metrics = metrics_,
          .log = options_.log,
          .request_id = visit.id,
          .path = visit.http.path,
          .arrived = visit.arrived};
}

void Api::log_prompt(const Visit& visit, const Json& body) const {
  if (options_.log_prompts && options_.log) options_.log({{"event", "prompt"}, {"id", visit.id}, {"body", body}});
}

std::unique_ptr<Call> Api::chat(Visit& visit, const Served& served) {
  const Json body = parse_json(visit.http.body);
  TurnRequest turn = parse_chat(body, options_.defaults);
  check_model(turn.generation.model, served.model);
  log_prompt(visit, body);
  const Making making = has_grammar(turn) ? Making::kLong : Making::kQuick;
  return begin(visit, making, [this, &served, context = context(visit, served), turn = std::move(turn)](Wake wake) {
    return std::make_unique<EngineCall>(
        context, present_chat(served.model, answer_id("chatcmpl-", turn.generation.model, served.model), turn),
        turn_requests(served.model, turn, options_.date()), turn.generation.stream, std::move(wake));
  });
}

std::unique_ptr<Call> Api::completion(Visit& visit, const Served& served) {
  const Json body = parse_json(visit.http.body);
  CompletionRequest request = parse_completion(body, options_.defaults);
  check_model(request.generation.model, served.model);
  log_prompt(visit, body);
  const Making making = request.format.kind != OutputFormat::Kind::kText ? Making::kLong : Making::kQuick;
  return begin(visit, making, [&served, context = context(visit, served), request = std::move(request)](Wake wake) {
    std::vector<engine::Request> requests = completion_requests(served.model, request);
    return std::make_unique<EngineCall>(
        context, present_completion(served.model, answer_id("cmpl-", request.generation.model, served.model), request),
        std::move(requests), request.generation.stream, std::move(wake));
  });
}

std::unique_ptr<Call> Api::create_response(Visit& visit, const Served& served) {
  const Json body = parse_json(visit.http.body);
  const auto previous = [this](const std::string& id) {
    auto entry = store_.get(id);
    if (!entry) {
      throw ApiError("previous_response_id", fmt::format("there is no response {}", id.substr(0, 100)), 404,
                     "previous_response_not_found");
    }
    return std::move(entry->turn);
  };
  ResponsesRequest request = parse_responses(body, previous, options_.defaults);
  check_model(request.turn.generation.model, served.model);
  log_prompt(visit, body);
  const Making making = has_grammar(request.turn) ? Making::kLong : Making::kQuick;
  return begin(
      visit, making, [this, &served, context = context(visit, served), request = std::move(request)](Wake wake) {
        AnswerId id = answer_id("resp_", request.turn.generation.model, served.model);
        KeepResponse keep = request.store ? keep_response(id.id, request) : KeepResponse();
        return std::make_unique<EngineCall>(context,
                                            present_response(served.model, std::move(id), request, std::move(keep)),
                                            turn_requests(served.model, request.turn, options_.date()),
                                            request.turn.generation.stream, std::move(wake));
      });
}

std::unique_ptr<Call> Api::messages(Visit& visit, const Served& served) {
  const Json body = parse_json(visit.http.body);
  TurnRequest turn = parse_messages(body, MessagesFor::kAnswer, options_.defaults);
  check_model(turn.generation.model, served.model);
  log_prompt(visit, body);
  const Making making = has_grammar(turn) ? Making::kLong : Making::kQuick;
  return begin(visit, making, [this, &served, context = context(visit, served), turn = std::move(turn)](Wake wake) {
    return std::make_unique<EngineCall>(
        context, present_message(served.model, answer_id("msg_", turn.generation.model, served.model), turn),
        turn_requests(served.model, turn, options_.date()), turn.generation.stream, std::move(wake));
  });
}

std::unique_ptr<Call> Api::count_tokens(const Visit& visit, const Served& served) {
  const TurnRequest turn = parse_messages(parse_json(visit.http.body), MessagesFor::kCount, options_.defaults);
  check_model(turn.generation.model, served.model);
  return answer(visit, {{"input_tokens", turn_prompt(served.model, turn, options_.date()).size()}});
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

std::unique_ptr<Call> Api::stored_response(const Visit& visit) {
  std::string id = visit.http.path.substr(kResponsesPrefix.size());
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
      throw ApiError("stream", "stream: a kept response is given whole", 400, "unsupported_value");
    return answer(visit, entry->response);
  }
  if (cancel || method != "DELETE")
    throw ApiError("", fmt::format("a response takes {}", methods_of(visit.http.path)), 405, "method_not_allowed");
  store_.remove(id);
  return answer(visit, {{"id", id}, {"object", "response.deleted"}, {"deleted", true}});
}

std::unique_ptr<Call> Api::tokenize(const Visit& visit, const Served& served) {
  const Json body = parse_json(visit.http.body);
  std::vector<int32_t> ids;
  bool with_text = false;
  if (body.is_object() && body.contains("messages")) {
    Fields fields(body, "");
    with_text = fields.boolean("return_token_strs").value_or(false);
    Json chat = body;
    chat.erase("return_token_strs");
    const TurnRequest turn = parse_chat(chat, options_.defaults);
    check_model(turn.generation.model, served.model);
    ids = turn_prompt(served.model, turn, options_.date());
  } else {
    Fields fields(body, "");
    check_model(fields.string("model").value_or(""), served.model);
    const std::string text = fields.required_string("prompt");
    const bool special = fields.boolean("add_special_tokens").value_or(true);
    with_text = fields.boolean("return_token_strs").value_or(false);
    fields.done();
    ids = served.model.tokenizer->encode(text, special ? text::SpecialTokens::kAllowed : text::SpecialTokens::kAsText);
  }
  Json json = {
      {"count", ids.size()}, {"max_model_len", served.model.max_context}, {"tokens", ids}, {"token_strs", nullptr}};
  if (with_text) {
    json["token_strs"] = Json::array();
    for (const int32_t id : ids) json["token_strs"].push_back(std::string(served.model.tokenizer->token_bytes(id)));
  }
  return answer(visit, json);
}

std::unique_ptr<Call> Api::detokenize(const Visit& visit, const Served& served) {
  const Json body = parse_json(visit.http.body);
  Fields fields(body, "");
  check_model(fields.string("model").value_or(""), served.model);
  const Json& tokens = array_of(fields.required("tokens", "an array of token ids"), "tokens");
  fields.done();
  std::string text;
  for (const Json& item : tokens) {
    const int64_t id = integer_of(item, "tokens");
    if (id < 0 || id >= served.model.vocab || !served.model.tokenizer->contains(static_cast<int32_t>(id)))
      throw ApiError("tokens", fmt::format("tokens: want token ids, found {}", id));
    text += served.model.tokenizer->token_bytes(static_cast<int32_t>(id));
  }
  return answer(visit, {{"prompt", text}});
}

}  // namespace nibble::server
