#include "lab/verify/verify.h"

#include "app/options/option.h"
#include "base/error.h"
#include "base/read_json.h"
#include "lab/client/load_summary.h"
#include "lab/client/workload.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <thread>
#include <vector>

namespace nibble::app {
namespace {

constexpr double kAnswerPatience = 30;                    // seconds, for answers that need no model
constexpr auto kIdlePatience = std::chrono::seconds(30);  // until a server holds nothing
constexpr int64_t kLongPrompt = 2000;                     // words: every server has this much context

// A completion whose prompt is words: any server takes it, and its token ids need not be known. Answers may end early.
struct Batch {
  size_t count = 1;
  int concurrency = 1;
  int64_t isl = 24, osl = 8, close_after = 0;
  uint64_t first = 0;
};

std::vector<client::Outcome> ask(const ServerSubject& subject, const Batch& batch) {
  const client::Workload workload{.model = subject.model,
                                  .form = client::PromptForm::kText,
                                  .isl = batch.isl,
                                  .osl = batch.osl,
                                  .ignore_eos = false};
  return client::run_requests(
      {.server = subject.server,
       .path = std::string(client::path_of(workload.api)),
       .count = batch.count,
       .body = [&](size_t i) { return client::body_of(workload, batch.first + i); },
       .options = [&](size_t) { return client::AnswerOptions{.close_after = batch.close_after}; },
       .concurrency = batch.concurrency});
}

std::string failures_of(const std::vector<client::Outcome>& outcomes) {
  const std::array runs = {outcomes};
  std::string text;
  for (const auto& [kind, failure] : client::summary_of(runs).failures)
    text += fmt::format("{}{} x {}: {}", text.empty() ? "" : "; ", failure.count, kind, failure.first_message);
  return text;
}

// A gauge from Prometheus' text, by the end of its name, summed over all labels; none if it is not there.
std::optional<double> gauge(const std::string& metrics, std::string_view name) {
  std::optional<double> sum;
  for (const std::string& line : split(metrics, '\n')) {
    if (line.starts_with('#') || !line.substr(0, line.find_first_of("{ ")).ends_with(name)) continue;
    sum = sum.value_or(0) + std::strtod(line.substr(line.rfind(' ') + 1).c_str(), nullptr);
  }
  return sum;
}

struct ServerLoad {
  std::optional<double> running, waiting, cache;
  [[nodiscard]] bool any() const { return running.value_or(0) > 0 || waiting.value_or(0) > 0 || cache.value_or(0) > 0; }
};

// By vLLM's names, which nibble serve uses as well.
ServerLoad load_of(const client::Server& server) {
  try {
    const client::PlainAnswer answer = client::get(server, "/metrics", kAnswerPatience);
    if (answer.status != 200) return {};
    return {.running = gauge(answer.body, "num_requests_running"),
            .waiting = gauge(answer.body, "num_requests_waiting"),
            .cache = gauge(answer.body, "kv_cache_usage_perc")};
  } catch (const Error&) {  // not every server has this page
    return {};
  }
}

void all_well(const std::string& name, const std::vector<client::Outcome>& outcomes, VerifyChecks& checks) {
  int64_t tokens = 0;
  for (const client::Outcome& o : outcomes) tokens += o.tokens();
  checks.add_unless(name, failures_of(outcomes), fmt::format("{} tokens", tokens));
}

}  // namespace

ListedModel listed_model(const client::Server& server, std::string_view name) {
  constexpr int64_t kMostVocab = 1 << 24;
  const std::string path = server.endpoint.prefix + "/models";
  const client::PlainAnswer answer = client::get(server, path, kAnswerPatience);
  const auto json = read_json(answer.body);
  if (answer.status != 200 || !json.is_object() || !json.contains("data") || !json["data"].is_array())
    throw Error(Code::kIo, "{}{}: want a list of models, found HTTP {}{}", server.endpoint.root_url(), path,
                answer.status, answer.status == 401 ? ", which asks for --api-key" : "; name one");
  for (const auto& entry : json["data"]) {
    if (!entry.is_object() || !entry.contains("id") || !entry["id"].is_string()) continue;
    if (!name.empty() && entry["id"] != name) continue;
    const auto size = entry.value("vocab_size", nlohmann::json());
    return {entry["id"], size.is_number_unsigned() && size > 1 && size <= kMostVocab ? size.get<int64_t>() : 0};
  }
  throw Error(Code::kIo, "{}: it lists no model; name one", server.endpoint.base_url());
}

void verify_server_smoke(const ServerSubject& subject, VerifyChecks& checks) {
  checks.begin(VerifyLevel::kSmoke);
  const auto outcomes = ask(subject, {});
  all_well("one request", outcomes, checks);
  const client::Outcome& o = outcomes.front();
  if (!o.ok()) return;
  checks.add("it says why it ended", !o.finish_reason.empty(),
             o.finish_reason.empty() ? "no finish_reason" : o.finish_reason);
  const bool counts = o.prompt_tokens > 0 && o.output_tokens > 0 && o.output_tokens <= 8;
  if (o.output_tokens < 0) {
    checks.skip("it counts tokens", "no usage, although stream_options asks for it");
  } else {
    checks.add("it counts tokens", counts,
               fmt::format("{} of the prompt, {} of at most 8", o.prompt_tokens, o.output_tokens));
  }
}

void verify_server_stress(const ServerSubject& subject, VerifyChecks& checks) {
  checks.begin(VerifyLevel::kStress);
  all_well("100 requests, one after another", ask(subject, {.count = 100}), checks);
  for (const int many : {2, 4, 32})
    all_well(fmt::format("{} requests at a time", many),
             ask(subject, {.count = static_cast<size_t>(many), .concurrency = many}), checks);
  all_well(fmt::format("a prompt of {} words", kLongPrompt), ask(subject, {.isl = kLongPrompt, .first = 1000}), checks);
  const auto left = ask(subject, {.count = 16, .concurrency = 16, .osl = 512, .close_after = 2, .first = 2000});
  checks.add_unless("16 requests that are left", failures_of(left),
                    fmt::format("{} closed after two events, the others had ended",
                                std::ranges::count(left, true, &client::Outcome::cancelled)));
  all_well("one request after them", ask(subject, {.first = 3000}), checks);
  const auto end = std::chrono::steady_clock::now() + kIdlePatience;
  ServerLoad held = load_of(subject.server);
  while (held.any() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    held = load_of(subject.server);
  }
  if (!held.running) return checks.skip("nothing is held", "the server has no /metrics with num_requests_running");
  checks.add("nothing is held", !held.any(),
             fmt::format("{:g} running, {:g} waiting, cache {}", *held.running, held.waiting.value_or(0),
                         held.cache ? fmt::format("{:.1f} % in use", 100 * *held.cache) : "not told of"));
}

void verify_server_performance(const ServerSubject& subject, VerifyChecks& checks) {
  checks.begin(VerifyLevel::kPerformance);
  for (const int many : {1, 4, 16}) {
    const Batch batch{.count = static_cast<size_t>(4 * many),
                      .concurrency = many,
                      .isl = 128,
                      .osl = 64,
                      .first = 4000 + static_cast<uint64_t>(many) * 100};
    const std::array runs = {ask(subject, batch)};
    const client::LoadSummary s = client::summary_of(runs);
    checks.add(fmt::format("{} at a time, 128 words in, 64 tokens out", many), s.failed == 0 && s.ok > 0,
               fmt::format("{:.1f} tok/s, TTFT p50 {:.1f} p99 {:.1f} ms, TPOT p50 {:.2f} p99 {:.2f} ms",
                           s.output_rate(), s.ttft.p50 * 1e3, s.ttft.p99 * 1e3, s.tpot.p50 * 1e3, s.tpot.p99 * 1e3));
  }
}

}  // namespace nibble::app
