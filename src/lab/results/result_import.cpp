#include "lab/results/result_import.h"

#include "lab/bench/bench_report.h"
#include "lab/results/result_metadata.h"
#include "base/error.h"
#include "base/read_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <vector>

namespace nibble::app {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kNanoseconds = 1e9;

// A list, or one object per line; null if the text is neither.
Json objects_of(const std::string& text) {
  Json json = read_ordered_json(text);
  if (json.is_array()) return json;
  if (json.is_object()) return Json::array({json});
  Json lines = Json::array();
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.empty()) continue;
    lines.push_back(read_ordered_json(line));
    if (!lines.back().is_object()) return nullptr;
  }
  return lines;
}

bool has_all(const Json& json, std::initializer_list<const char*> fields) {
  return json.is_object() && std::ranges::all_of(fields, [&](const char* field) { return json.contains(field); });
}

Json row_json(const BenchRow& row) {
  return {{"test", row.name()}, {"prompt", row.prompt}, {"generate", row.generate},
          {"depth", row.depth}, {"batch", row.batch},   {"seconds", row.seconds}};
}

// A field's value, if all rows agree; otherwise all its values.
std::string said_by(const Json& rows, const char* field) {
  std::vector<std::string> values;
  for (const Json& row : rows) {
    const Json value = value_at(row, field);
    if (value.is_null()) continue;
    if (std::string text = text_of(value); !text.empty() && std::ranges::find(values, text) == values.end())
      values.push_back(std::move(text));
  }
  return fmt::format("{}", fmt::join(values, ", "));
}

// Keeps the first of several rows that differ only in a setting, since the comparison could not tell them apart.
void add_row(NamedResult& into, const BenchRow& row, const std::string& told) {
  const auto same = [&](const Json& other) { return other["test"] == row.name() && other["batch"] == row.batch; };
  if (std::ranges::any_of(into.json["rows"], same)) {
    into.no_counterpart.push_back(told + ": a second one, of other settings");
  } else {
    into.json["rows"].push_back(row_json(row));
  }
}

NamedResult of_llama_bench(const std::string& name, const Json& rows) {
  NamedResult result{name, {{"metadata", Json::object()}, {"rows", Json::array()}}, "llama-bench"};
  for (const Json& json : rows) {
    BenchRow row{.prompt = json.at("n_prompt"),
                 .generate = json.at("n_gen"),
                 .depth = json.value("n_depth", int64_t{0}),  // versions before April 2025 have no depth
                 .seconds = {}};
    if (row.prompt > 0 && row.generate > 0) {
      result.no_counterpart.push_back(
          fmt::format("pp{}+tg{}: a prompt and its answer in one time", row.prompt, row.generate));
      continue;
    }
    for (const Json& ns : json.value("samples_ns", Json::array({json.at("avg_ns")})))
      row.seconds.push_back(ns.get<double>() / kNanoseconds);
    add_row(result, row, row.name());
  }
  const std::string gpu = said_by(rows, "gpu_info"), cpu = said_by(rows, "cpu_info"), on = said_by(rows, "backends");
  Json& metadata = result.json["metadata"];
  metadata["date"] = said_by(rows, "test_time");
  metadata["build"] = {{"commit", said_by(rows, "build_commit")}};
  metadata["host"] = {{"cpu", cpu}};
  metadata["device"] = {{"name", gpu.empty() || on == "CPU" || on == "BLAS" ? cpu : gpu}};
  metadata["model"] = {{"name", std::filesystem::path(said_by(rows, "model_filename")).filename().string()},
                       {"type", said_by(rows, "model_type")}};
  return result;
}

void add_benchy_run(NamedResult& result, const Json& run, bool caches) {
  const int64_t context = run.at("context_size"), prompt = run.at("prompt_size"), generate = run.at("response_size");
  const int requests = run.at("concurrency");
  const bool of_context = run.at("is_context_prefill_phase");
  const std::string behind = context > 0 ? fmt::format(" @ d{}", context) : "";
  const std::string at_a_time = requests > 1 ? fmt::format(" (c{})", requests) : "";
  const auto rates = [&](const char* field) {
    const Json metric = value_at(run, field);
    return metric.is_null() ? std::vector<double>() : metric.at("values").get<std::vector<double>>();
  };
  const auto seconds = [](BenchRow row, const std::vector<double>& of) {
    for (const double rate : of) row.seconds.push_back(static_cast<double>(row.tokens()) / rate);
    return row;
  };
  if (const std::vector<double> of = rates("pp_throughput"); !of.empty()) {
    const std::string told = fmt::format("{}pp{}{}{}", of_context ? "ctx_" : "", prompt, behind, at_a_time);
    if (of_context || requests > 1) {
      result.no_counterpart.push_back(told + (of_context ? ": the context's own" : ": prompts of several requests"));
    } else {
      add_row(result,
              seconds({.prompt = prompt + (caches ? 0 : context), .depth = caches ? context : 0, .seconds = {}}, of),
              told);
    }
  }
  if (const std::vector<double> of = rates("tg_throughput"); !of.empty()) {
    const std::string told = fmt::format("{}tg{}{}{}", of_context ? "ctx_" : "", generate, behind, at_a_time);
    if (of_context) {
      result.no_counterpart.push_back(told + ": the context's own");
    } else {
      add_row(result, seconds({.generate = generate, .depth = context + prompt, .batch = requests, .seconds = {}}, of),
              told);
    }
  }
}

NamedResult of_llama_benchy(const std::string& name, const Json& report) {
  NamedResult result{name, {{"metadata", Json::object()}, {"rows", Json::array()}}, "llama-benchy"};
  for (const Json& run : report.at("benchmarks")) add_benchy_run(result, run, report.at("prefix_caching_enabled"));
  Json& metadata = result.json["metadata"];
  metadata["date"] = report.at("timestamp");
  metadata["model"] = {{"name", report.at("model")}};
  metadata["workload"] = {{"latency_mode", report.at("latency_mode")}, {"latency_ms", report.at("latency_ms")}};
  return result;
}

}  // namespace

std::optional<NamedResult> import_result(const std::string& name, const std::string& text) {
  const Json objects = objects_of(text);
  if (!objects.is_array() || objects.empty()) return std::nullopt;
  const bool bench = std::ranges::all_of(
      objects, [](const Json& row) { return has_all(row, {"build_commit", "n_prompt", "n_gen", "avg_ns"}); });
  const bool benchy =
      objects.size() == 1 && has_all(objects[0], {"benchmarks", "latency_mode", "prefix_caching_enabled"});
  if (!bench && !benchy) return std::nullopt;
  try {
    return bench ? of_llama_bench(name, objects) : of_llama_benchy(name, objects[0]);
  } catch (const Json::exception& e) {
    throw Error(Code::kInvalidRequest, "{}: it is not as {} writes it: {}", name,
                bench ? "llama-bench" : "llama-benchy", plain_json_error(e.what()));
  }
}

}  // namespace nibble::app
