#include "server/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace nibble::server {
namespace {

constexpr std::string_view kOurs = "nibble:", kTheirs = "vllm:";
constexpr std::string_view kOursAlone[] = {"connections_dropped_total", "engine_steps_total", "harmony_repairs_total",
                                           "http_responses_total", "log_lines_dropped_total"};

std::vector<double> seconds() { return {0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480}; }
std::vector<double> short_seconds() {
  return {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80};
}
std::vector<double> token_seconds() {
  return {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5};
}
std::vector<double> tokens() {
  return {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};
}
std::vector<double> counts() { return {1, 2, 5, 10, 20}; }

struct HistogramRow {
  std::string_view name, kind_and_help;
  std::vector<double> (*bounds)();
};
constexpr HistogramRow kHistograms[] = {
    {"time_to_first_token_seconds", "histogram From the request's arrival", short_seconds},
    {"inter_token_latency_seconds", "histogram Between two tokens of one answer", token_seconds},
    {"e2e_request_latency_seconds", "histogram From arrival to the last token", seconds},
    {"request_queue_time_seconds", "histogram Before the first step", seconds},
    {"request_prefill_time_seconds", "histogram Computing the prompt", seconds},
    {"request_decode_time_seconds", "histogram From the first token to the last", seconds},
    {"request_inference_time_seconds", "histogram Both together", seconds},
    {"request_time_per_output_token_seconds", "histogram Mean of one answer", token_seconds},
    {"request_prompt_tokens", "histogram Prompt tokens per request", tokens},
    {"request_generation_tokens", "histogram Generated tokens per request", tokens},
    {"request_max_num_generation_tokens", "histogram The same", tokens},
    {"request_params_n", "histogram Answers asked for per request", counts}};
static_assert(std::size(kHistograms) == static_cast<size_t>(Measure::kChoices) + 1);

// A label's value: quotes, backslashes and line ends escaped.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return out;
}

// One family under our prefix and, if vLLM has it, under vLLM's: `lines` prints its samples under a name.
template <class Lines>
void family(std::string& out, std::string_view name, std::string_view kind_and_help, const Lines& lines) {
  const size_t blank = kind_and_help.find(' ');
  for (const std::string_view prefix : {kOurs, kTheirs}) {
    if (prefix == kTheirs && std::find(std::begin(kOursAlone), std::end(kOursAlone), name) != std::end(kOursAlone))
      continue;
    const std::string full = fmt::format("{}{}", prefix, name);
    out += fmt::format("# HELP {} {}\n# TYPE {} {}\n", full, kind_and_help.substr(blank + 1), full,
                       kind_and_help.substr(0, blank));
    lines(full);
  }
}

}  // namespace

void Histogram::add(double value) {
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  ++counts_[static_cast<size_t>(bucket)];
  sum_ += value;
}

void Histogram::print(std::string_view name, std::string_view labels, std::string& out) const {
  int64_t count = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    count += counts_[i];
    const std::string bound = i < bounds_.size() ? fmt::format("{}", bounds_[i]) : "+Inf";
    out += fmt::format("{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, bound, count);
  }
  out += fmt::format("{0}_sum{{{1}}} {2}\n{0}_count{{{1}}} {3}\n", name, labels, sum_, count);
}

std::string build_info_text(std::string_view version, std::string_view commit) {
  return fmt::format(
      "# HELP nibble:build_info What runs; always 1\n# TYPE nibble:build_info gauge\n"
      "nibble:build_info{{version=\"{}\",commit=\"{}\"}} 1\n",
      escaped(version), escaped(commit));
}

Metrics::Metrics()
    : state_{.mutex = {},
             .histograms = {},
             .finished = {{"stop", 0}, {"length", 0}, {"abort", 0}, {"shutdown", 0}, {"error", 0}},
             .responses = {}} {
  for (const HistogramRow& row : kHistograms) state_.histograms.emplace_back(row.bounds());
}

void Metrics::choice_finished(const ChoiceRecord& r) {
  const std::lock_guard lock(state_.mutex);
  ++state_.finished[std::string(r.finished_reason)];
  add(Measure::kEndToEnd, r.end_to_end_seconds);
  if (r.first_token_seconds < 0) return;
  add(Measure::kFirstToken, r.first_token_seconds);
  add(Measure::kQueue, r.queue_seconds);
  add(Measure::kPrefill, r.prefill_seconds);
  add(Measure::kDecode, r.decode_seconds);
  add(Measure::kInference, r.prefill_seconds + r.decode_seconds);
  if (r.completion_tokens > 1) add(Measure::kPerToken, r.decode_seconds / static_cast<double>(r.completion_tokens - 1));
  add(Measure::kPromptTokens, static_cast<double>(r.prompt_tokens));
  for (const Measure measure : {Measure::kCompletionTokens, Measure::kMostCompletionTokens})
    add(measure, static_cast<double>(r.completion_tokens));
}

std::string Metrics::text(const engine::EngineStats& stats, std::string_view model_name,
                          int64_t dropped_log_lines) const {
  const std::string labels = fmt::format("model_name=\"{}\",engine=\"0\"", escaped(model_name));
  const double used =
      stats.kv_pages > 0 ? static_cast<double>(stats.kv_pages_used) / static_cast<double>(stats.kv_pages) : 0;
  const std::lock_guard lock(state_.mutex);
  std::string out;
  const auto single = [&](std::string_view name, std::string_view kind_and_help, auto value) {
    family(out, name, kind_and_help,
           [&](const std::string& full) { out += fmt::format("{}{{{}}} {}\n", full, labels, value); });
  };
  single("num_requests_running", "gauge Requests being computed", stats.running);
  single("num_requests_waiting", "gauge Requests in the queue", stats.waiting);
  single("kv_cache_usage_perc", "gauge Share of the KV pages in use; 1 is all", used);
  single("prefix_cache_queries_total", "counter Prompt tokens looked up in the prefix cache", stats.prefix_queries);
  single("prefix_cache_hits_total", "counter Prompt tokens found there", stats.prefix_hits);
  single("num_preemptions_total", "counter Sequences put back for want of pages", stats.preemptions);
  single("engine_steps_total", "counter Forward passes", stats.steps);
  single("prompt_tokens_total", "counter Prompt tokens computed or found in the prefix cache, step by step",
         stats.prompt_tokens + stats.prefix_hits);
  single("generation_tokens_total", "counter Tokens generated, step by step", stats.generated_tokens);
  single("screened_steps_total", "counter Forward passes whose logits were screened", stats.screened_steps);
  single("screened_tiles_total", "counter Tiles of 16 rows of logits of which some were computed in them",
         stats.screened_tiles);
  single("spec_decode_num_drafts_total", "counter Drafts verified, of a sequence in one step", stats.drafts.drafts);
  single("spec_decode_num_draft_tokens_total", "counter Guesses verified", stats.drafts.tokens);
  single("spec_decode_num_accepted_tokens_total", "counter Guesses that were drawn", stats.drafts.accepted);
  single("connections_dropped_total", "counter Connections closed unanswered, since --max-connections were open",
         state_.dropped);
  single("log_lines_dropped_total", "counter Lines of the log that nobody read in time", dropped_log_lines);
  single("harmony_repairs_total", "counter Deviations from the Harmony format that were repaired", state_.repairs);
  for (size_t i = 0; i < std::size(kHistograms); ++i)
    family(out, kHistograms[i].name, kHistograms[i].kind_and_help,
           [&](const std::string& name) { state_.histograms[i].print(name, labels, out); });
  family(out, "cache_config_info", "gauge What the KV cache is; always 1", [&](const std::string& name) {
    out += fmt::format("{}{{{},block_size=\"{}\",num_gpu_blocks=\"{}\"}} 1\n", name, labels, stats.kv_page_tokens,
                       stats.kv_pages);
  });
  family(out, "spec_decode_num_accepted_tokens_per_pos_total", "counter Guesses that were drawn, by place in the draft",
         [&](const std::string& name) {
           for (int i = 0; i < stats.drafts.places; ++i)
             out += fmt::format("{}{{{},position=\"{}\"}} {}\n", name, labels, i,
                                stats.drafts.accepted_at[static_cast<size_t>(i)]);
         });
  family(out, "request_success_total", "counter Finished requests by reason", [&](const std::string& name) {
    for (const auto& [reason, count] : state_.finished)
      out += fmt::format("{}{{{},finished_reason=\"{}\"}} {}\n", name, labels, reason, count);
  });
  family(out, "http_responses_total", "counter Everything that was answered, by route and HTTP status",
         [&](const std::string& name) {
           for (const auto& [at, count] : state_.responses)
             out += fmt::format("{}{{{},route=\"{}\",status=\"{}\"}} {}\n", name, labels, at.first, at.second, count);
         });
  return out;
}

}  // namespace nibble::server
