#include "app/setup/commands.h"
#include "app/setup/interrupt.h"
#include "app/setup/terminal.h"
#include "base/error.h"
#include "base/read_json.h"
#include "lab/client/http_requests.h"
#include "lab/client/load_summary.h"
#include "lab/client/workload.h"
#include "lab/results/metadata.h"
#include "lab/verify/verify.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <string>
#include <vector>

namespace nibble::app {
namespace {

constexpr double kPatience = 30;                         // seconds for an answer that needs no model
constexpr uint64_t kWarmUpRequests = uint64_t{1} << 40;  // numbered from here on: no prompt comes twice

// A point of the sweep: a number of requests at a time, or of requests per second.
struct Point {
  int concurrency = 0;
  double request_rate = 0;
  int64_t prompts = 0, warm_ups = 0;  // conversations
};

std::vector<Point> points_of(const LoadOptions& o) {
  constexpr int64_t kOpenPrompts = 200;
  std::vector<Point> points;
  const auto or_usual = [](int64_t given, int64_t usual) { return given >= 0 ? given : usual; };
  if (o.request_rate > 0)
    return {{.request_rate = o.request_rate,
             .prompts = or_usual(o.num_prompts, kOpenPrompts),
             .warm_ups = or_usual(o.num_warmups, 2)}};
  for (const int64_t c : o.concurrency)
    points.push_back({.concurrency = static_cast<int>(c),
                      .prompts = or_usual(o.num_prompts, o.prompts_per_client * c),
                      .warm_ups = or_usual(o.num_warmups, o.warmups_per_client * c)});
  return points;
}

// {"version": …} as vLLM and nibble say it; null where the server does not.
Metadata version_of(const client::Server& server) {
  try {
    const auto json = read_ordered_json(client::get(server, "/version", kPatience).body);
    return json.is_object() && json.contains("version") ? json["version"] : Metadata();
  } catch (const Error&) {  // it need not have one
    return nullptr;
  }
}

class Load {
 public:
  Load(const LoadOptions& options, const client::Server& server, Terminal& terminal)
      : options_(options), server_(server), terminal_(terminal), check_(options.workload) {}

  // The points that were measured; the last one may have been cut short.
  [[nodiscard]] std::vector<client::LoadSummary> run() {
    std::vector<client::LoadSummary> summaries;
    for (const Point& point : points_of(options_)) {
      warm_up(point);
      if (cut()) break;
      summaries.push_back(measure(point));
      if (cut()) break;
    }
    terminal_.end_progress();
    return summaries;
  }
  [[nodiscard]] bool cut() const { return interrupt_.requested(); }

 private:
  [[nodiscard]] std::string name_of(const Point& point) const {
    return point.concurrency > 0 ? fmt::format("concurrency {}", point.concurrency)
                                 : fmt::format("{:g} requests/s", point.request_rate);
  }

  void warm_up(const Point& point) {
    if (point.warm_ups == 0) return;
    Point warm = point;
    warm.prompts = point.warm_ups;
    warm.concurrency = std::max(1, point.concurrency);
    warm.request_rate = 0;
    const auto outcomes = requests(warm, kWarmUpRequests, "warming up");
    const bool any = std::ranges::any_of(outcomes, [](const client::Outcome& o) { return o.ok() || !o.ended; });
    if (any) return;
    const client::Outcome& first = outcomes.front();
    const bool ids =
        options_.workload.api == client::Api::kCompletions && options_.workload.form == client::PromptForm::kIds;
    throw Error(Code::kIo, "{}{}: all {} warm-up requests failed, the first with {}: {}{}", server_.endpoint.base_url(),
                client::path_of(options_.workload.api), outcomes.size(), first.kind(), first.message,
                ids && first.failure == client::Failure::kStatus
                    ? fmt::format(" (the prompt is token ids below {}: --vocab-size; for servers that take none: "
                                  "--prompt-form text or --endpoint chat)",
                                  options_.workload.vocab_size)
                    : "");
  }

  client::LoadSummary measure(const Point& point) {
    std::vector<std::vector<client::Outcome>> repetitions;
    for (int r = 0; r < options_.repetitions && !cut(); ++r) {
      const std::string what = options_.repetitions > 1 ? fmt::format("repetition {}", r + 1) : "";
      repetitions.push_back(requests(point, next_request_, what));
      next_request_ += static_cast<uint64_t>(point.prompts * options_.workload.turns);
    }
    client::LoadSummary summary = client::summary_of(repetitions);
    summary.concurrency = point.concurrency;
    summary.request_rate = point.request_rate;
    summary.gpus = options_.gpus;
    return summary;
  }

  std::vector<client::Outcome> requests(const Point& point, uint64_t first, const std::string& what) {
    const client::Workload& w = options_.workload;
    const auto turns = static_cast<size_t>(w.turns), count = static_cast<size_t>(point.prompts) * turns;
    client::Conversations conversations(w, first, count);
    const bool keep_answer = turns > 1 || !w.tools.empty() || !w.json_schema.empty();
    const auto show = [&](size_t done) {
      terminal_.progress(name_of(point), static_cast<double>(done) / static_cast<double>(std::max<size_t>(count, 1)),
                         what);
      return !cut();
    };
    return client::run_requests(
        {.server = server_,
         .path = std::string(client::path_of(w.api)),
         .count = count,
         .body = [&](size_t i) { return conversations.body(i); },
         .options = [&](size_t) { return client::AnswerOptions{.keep_answer = keep_answer}; },
         .turns = turns,
         .pause = [&](size_t i) { return client::think_seconds(w.seed, first + i, options_.think_time); },
         .judge =
             [&](size_t i, client::Outcome& outcome) {
               check_.judge(outcome);
               conversations.ended(i, outcome);
             },
         .concurrency = point.concurrency,
         .arrivals = point.request_rate > 0
                         ? client::poisson_arrivals(count / turns, point.request_rate, w.seed + first)
                         : std::vector<double>(),
         .timeout_seconds = static_cast<double>(options_.timeout),
         .keep_going = show});
  }

  const LoadOptions& options_;
  const client::Server& server_;
  Terminal& terminal_;
  const client::AnswerCheck check_;
  const Interrupt interrupt_;
  uint64_t next_request_ = 0;
};

Metadata workload_json(const LoadOptions& o) {
  const client::Workload& w = o.workload;
  return {{"endpoint", name_of(w.api)},
          {"prompt_form", name_of(w.api == client::Api::kChat ? client::PromptForm::kText : w.form)},
          {"isl", w.isl},
          {"osl", w.osl},
          {"range_ratio", w.range_ratio},
          {"prefix_len", w.prefix_len},
          {"vocab_size", w.vocab_size},
          {"temperature", w.temperature},
          {"ignore_eos", w.ignore_eos},
          {"turns", w.turns},
          {"think_time", o.think_time},
          {"tools", w.tools.empty() ? Metadata() : read_ordered_json(w.tools)},
          {"tool_choice", w.tools.empty() ? Metadata() : Metadata(w.must_call ? "required" : "auto")},
          {"json_schema", w.json_schema.empty() ? Metadata() : read_ordered_json(w.json_schema)},
          {"seed", w.seed}};
}

std::string head_text(const LoadOptions& o, const client::Server& server, std::string_view vocab_from) {
  const client::Workload& w = o.workload;
  const auto range = [&](int64_t most) {
    const auto least = std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(most) * w.range_ratio));
    return least == most ? fmt::format("{}", most) : fmt::format("{} to {}", least, most);
  };
  const std::string ids = fmt::format("random ids below {}: {}", w.vocab_size, vocab_from);
  std::string chats;
  if (w.turns > 1)
    chats += fmt::format("- conversations of {} turns, {:g} s of thinking between them; each turn adds such a prompt\n",
                         w.turns, o.think_time);
  if (!w.tools.empty())
    chats += fmt::format("- tools: {}, tool_choice {}\n", o.tools, w.must_call ? "required" : "auto");
  if (!w.json_schema.empty()) chats += fmt::format("- answers by a JSON schema: {}\n", o.json_schema);
  return fmt::format(
      "nibble load {}{}, model {}: `{}`\n\n- prompts of {} tokens ({}{}), answers of {}{}\n{}- E2E is from "
      "sending to the last token, TTFT to the first, TPOT the mean of one answer's later tokens, ITL "
      "between two events\n\n",
      server.endpoint.base_url(), client::path_of(w.api), w.model, o.command, range(w.isl),
      w.api == client::Api::kChat || w.form == client::PromptForm::kText ? "about, a word each" : ids,
      w.prefix_len > 0 ? fmt::format(", the first {} shared", w.prefix_len) : "", range(w.osl),
      w.ignore_eos ? ", end tokens ignored" : " at most", chats);
}

Metadata result_json(const LoadOptions& o, const client::Server& server, std::span<const client::LoadSummary> points) {
  const std::string warm_up = o.num_warmups >= 0   ? fmt::format("{} requests", o.num_warmups)
                              : o.request_rate > 0 ? "2 requests"
                                                   : "2 requests per concurrent one, before each point";
  Metadata json = {{"metadata", metadata_of({.command = o.command,
                                             .settings = o.settings,
                                             .environment = o.environment,
                                             .workload = workload_json(o),
                                             .warm_up = warm_up})},
                   {"rows", Metadata::array()}};
  Metadata& meta = json["metadata"];
  meta["device"] = {{"name", nullptr}, {"gpus", o.gpus}};
  if (!o.device.empty()) meta["device"]["name"] = o.device;
  meta["model"] = {{"name", o.workload.model}};
  meta["server"] = {{"base_url", server.endpoint.base_url()}, {"version", version_of(server)}};
  for (const client::LoadSummary& point : points) json["rows"].push_back(client::json_of(point));
  return json;
}

}  // namespace

int execute(const LoadOptions& asked) {
  LoadOptions o = asked;
  Terminal terminal(o.output);
  require_writable("--report", o.report);
  const client::Server server{
      .endpoint = client::parse_base_url(o.base_url), .api_key = o.api_key, .cacert = o.cacert, .insecure = o.insecure};
  if (o.workload.prefix_len > o.workload.isl)
    throw Error(Code::kInvalidRequest, "--prefix-len: want at most --isl, {}, found {}", o.workload.isl,
                o.workload.prefix_len);
  client::Workload& w = o.workload;
  if (w.api != client::Api::kChat && (w.turns > 1 || !o.tools.empty() || !o.json_schema.empty()))
    throw Error(Code::kInvalidRequest, "--turns, --tools and --json-schema: want --endpoint chat, found completions");
  if (!o.tools.empty()) w.tools = tools_named(o.tools);
  if (!o.json_schema.empty()) w.json_schema = json_schema_named(o.json_schema);
  w.ignore_eos = w.ignore_eos && w.tools.empty() && w.json_schema.empty();
  std::string_view vocab_from = "as --vocab-size says";
  const bool asks_vocab = !o.vocab_given && w.api == client::Api::kCompletions && w.form == client::PromptForm::kIds;
  if (asks_vocab) vocab_from = "nobody says more";  // nearly every model has as many as the default
  if (w.model.empty() || asks_vocab) {
    try {
      const ListedModel listed = listed_model(server, w.model);
      w.model = listed.id;
      if (asks_vocab && listed.vocab_size > 0) {
        w.vocab_size = listed.vocab_size;
        vocab_from = "the server says so";
      }
    } catch (const Error&) {  // it need not list a model that is named; if there is no server, requests will show it
      if (w.model.empty()) throw;
    }
  }
  Load load(o, server, terminal);
  const std::vector<client::LoadSummary> points = load.run();
  Metadata json = result_json(o, server, points);
  json["interrupted"] = load.cut();
  std::string text =
      head_text(o, server, vocab_from) + client::throughput_table(points) + "\n" + client::latency_table(points);
  for (const std::string& table : {client::turn_table(points), client::failure_table(points)})
    if (!table.empty()) text += "\n" + table;
  if (!o.report.empty()) write_report(o.report, text + metadata_section(json["metadata"]));
  if (o.output.json) {
    terminal.print_json(json);
  } else {
    terminal.print(text);
    if (std::ranges::any_of(points, [](const client::LoadSummary& s) { return s.ok > 0 && !s.counted_by_server; }))
      terminal.note("the server told of no usage: each event counts as one token, and prompts are not counted");
  }
  if (load.cut()) {
    terminal.note("nibble: interrupted; what had not ended is left out");
    return kExitInterrupted;
  }
  return std::ranges::any_of(points, [](const client::LoadSummary& s) { return s.ok == 0; }) ? kExitFailure : kExitOk;
}

}  // namespace nibble::app
