#pragma once
// The routes: which request gets which call. It answers from the start; routes that need the model answer 503 until
// publish().

#include "server/call_maker.h"
#include "server/engine_call.h"
#include "server/http.h"
#include "server/kept_answers.h"
#include "server/metrics.h"
#include "server/presenter.h"
#include "server/response_store.h"

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::server {

struct ApiOptions {
  std::vector<std::string> api_keys{};  // empty: everybody may call
  std::function<std::string()> date{};  // YYYY-MM-DD, told to the model
  RequestDefaults defaults{};
  LogLine log{};
  bool log_prompts = false;
  size_t stored_responses = 1024, stored_bytes = size_t{256} << 20;
  std::string version{}, commit{};
  std::function<int64_t()> dropped_log_lines{};  // so far; empty: none is ever dropped
  // Names of other models that begin so get the served one all the same; none: a name that is not served is refused.
  std::optional<std::string> other_names = "claude-";
};

class Api {
 public:
  explicit Api(ApiOptions options);

  // What /health reports until publish(). Any thread.
  void loading(std::string phase, double done_share);
  // From here on requests are served. Called once. Model and port must outlive the last call that handle() returned.
  void publish(ServedModel model, EnginePort port);

  // Any thread; never throws.
  [[nodiscard]] std::unique_ptr<Call> handle(const HttpRequest& request, Wake wake) noexcept;
  // Counts answers that the server gave by itself because bytes never became a request. Any thread.
  void answered_outside(int status);
  void connection_dropped() { metrics_.connection_dropped(); }

 private:
  struct Service {
    ServedModel model;
    EnginePort port;
    int64_t since;  // seconds since 1970
  };
  struct Ignored {  // guarded by mutex
    std::mutex mutex;
    std::set<std::string> told;
  };
  struct Loading {  // guarded by mutex
    std::mutex mutex;
    std::string phase = "starting";
    double done_share = 0;
  };
  // What a route gets.
  struct Visit {
    const HttpRequest& http;
    const std::string& id;
    std::chrono::steady_clock::time_point arrived;
    Wake& wake;
    const Service* service = nullptr;  // never null where the route needs the model
  };
  struct Route {
    std::string_view path;     // {…}: whatever stands there and behind it
    std::string_view methods;  // as in the header Allow; empty: all are refused
    std::unique_ptr<Call> (*answer)(Api& api, Visit& visit);
    bool needs_model = true, needs_key = true;

    [[nodiscard]] bool is_family() const { return path.ends_with('}'); }
    [[nodiscard]] std::string_view beginning() const { return path.substr(0, path.find('{')); }
    [[nodiscard]] bool leads_to(std::string_view to) const {
      return is_family() ? to.starts_with(beginning()) : to == path;
    }
  };
  static std::span<const Route> routes();
  static const Route* route_of(std::string_view path);        // null: there is none
  static std::string_view route_name(std::string_view path);  // for metrics: few names, whatever paths clients try
  static std::string_view methods_of(std::string_view path);  // REQUIRES a route
  // What stands for {…}. REQUIRES a family.
  static std::string member_of(const std::string& path) { return path.substr(route_of(path)->beginning().size()); }
  // Throws ApiError for a method that `what` does not take. REQUIRES a route.
  static void expect_method(const HttpRequest& http, std::string_view what);

  std::unique_ptr<Call> route(Visit& visit);
  std::unique_ptr<Call> page(Visit& visit);
  std::unique_ptr<Call> health(Visit& visit);
  std::unique_ptr<Call> model(Visit& visit);
  std::unique_ptr<Call> create_response(Visit& visit);
  std::unique_ptr<Call> stored_response(Visit& visit);
  std::unique_ptr<Call> ollama_answer(Visit& visit, OllamaFor what);
  std::unique_ptr<Call> ollama_model(Visit& visit);  // what it is, or a pull of it
  std::unique_ptr<Call> kept_answer(Visit& visit);
  std::unique_ptr<Call> tokenize(Visit& visit);
  std::unique_ptr<Call> detokenize(Visit& visit);
  // The call of a request for answers, which `present` makes a presenter of.
  template <class Request, class Present>
  std::unique_ptr<Call> generate(Visit& visit, const Json& body, Request request, std::string_view id_prefix,
                                 Present present);

  std::unique_ptr<Call> answer(const Visit& visit, HttpHead head, std::string body);
  std::unique_ptr<Call> answer(const Visit& visit, const Json& json);
  std::unique_ptr<Call> refuse(const std::string& id, const std::string& path, const ApiError& error);
  // Makes the call now, or in call_maker_ if that takes long. `make` may throw.
  enum class Making { kQuick, kLong };
  std::unique_ptr<Call> begin(Visit& visit, Making making, std::function<std::unique_ptr<Call>(Wake wake)> make);

  // The tokens of a turn's prompt. Throws ApiError, also for a model that is not here.
  [[nodiscard]] std::vector<int32_t> prompt_of(const Visit& visit, const TurnRequest& turn) const;
  // The name to answer under; x:latest is x. Throws ApiError for a model that is not here.
  [[nodiscard]] const std::string& served_name(const std::string& wanted, const Visit& visit) const;
  void tell_ignored(const Leniency& leniency);  // the first time that something is
  [[nodiscard]] PreviousResponse kept_turns() const;
  [[nodiscard]] KeepResponse keep_response(const std::string& id, const ResponsesRequest& request);
  void check_key(const HttpRequest& request) const;

  const ApiOptions options_;
  Metrics metrics_;
  ResponseStore store_;
  Loading loading_;
  Ignored ignored_;
  std::unique_ptr<const Service> service_owner_;
  std::atomic<const Service*> service_ = nullptr;
  KeptAnswers kept_;
  CallMaker call_maker_;  // last: its thread uses all of the above
};

}  // namespace nibble::server
