#include "server/listings.h"

#include "engine/pages.h"
#include "server/http.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace nibble::server {

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

Json codex_entry(const ServedModel& model, const std::string& name) {
  Json efforts = Json::array();
  for (const char* effort : {"low", "medium", "high"}) efforts.push_back({{"effort", effort}, {"description", effort}});
  return {
      {"slug", name},
      {"display_name", name},
      {"description", "served by Nibble"},
      {"default_reasoning_level", "medium"},
      {"supported_reasoning_levels", std::move(efforts)},
      {"shell_type", "unified_exec"},
      {"visibility", "list"},
      {"supported_in_api", true},
      {"priority", 1},
      {"base_instructions", "You work in a terminal on the user's files. Use the tools, and say briefly what you did."},
      {"supports_reasoning_summaries", true},
      {"default_reasoning_summary", "none"},
      {"support_verbosity", true},
      {"apply_patch_tool_type", "freeform"},
      {"truncation_policy", {{"mode", "tokens"}, {"limit", 10000}}},
      {"context_window", model.max_context},
      {"effective_context_window_percent", 95},
      {"experimental_supported_tools", Json::array()},
      {"input_modalities", {"text"}},
      {"supports_parallel_tool_calls", false}};
}

Json ollama_entry(const ServedModel& model, int64_t since, const std::string& name) {
  const ModelFacts& facts = model.facts;
  std::string digest;
  for (uint64_t hash = static_cast<uint64_t>(facts.bytes); digest.size() < 64;) {
    hash = engine::hashed(hash, static_cast<uint64_t>(facts.parameters));
    digest += fmt::format("{:016x}", hash);
  }
  return {{"name", name},
          {"model", name},
          {"modified_at", utc_time(since)},
          {"size", facts.bytes},
          {"digest", digest},
          {"details",
           {{"parent_model", ""},
            {"format", facts.format},
            {"family", "gptoss"},
            {"families", {"gptoss"}},
            {"parameter_size", fmt::format("{:.1f}B", static_cast<double>(facts.parameters) / 1e9)},
            {"quantization_level", facts.quantization}}}};
}

Json ollama_details(const ServedModel& model, Json entry) {
  return {{"modelfile", ""},
          {"parameters", ""},
          {"template", ""},
          {"license", ""},
          {"details", std::move(entry["details"])},
          {"model_info",
           {{"general.architecture", "gptoss"},
            {"general.parameter_count", model.facts.parameters},
            {"gptoss.context_length", model.max_context}}},
          {"capabilities", {"completion", "tools", "thinking"}},
          {"modified_at", std::move(entry["modified_at"])}};
}

std::string ollama_name(Fields& fields) {
  const auto model = fields.string("model"), name = fields.string("name");
  if (!model && !name) throw ApiError("model", "model: want a name, found nothing", 400, "missing_required_parameter");
  return model ? *model : *name;
}

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

std::string_view query_value(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    if (pair.starts_with(name) && pair.substr(name.size()).starts_with('=')) return pair.substr(name.size() + 1);
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
  }
  return {};
}

namespace {

// A request's input as items with ids, the last one first.
Json items_of(const std::string& response_id, const Json& input) {
  Json items = Json::array();
  const auto part = [](const Json& text) { return Json::array({{{"type", "input_text"}, {"text", text}}}); };
  for (const Json& given : input.is_string() ? Json::array({{{"role", "user"}, {"content", input}}}) : input) {
    Json item = {{"id", fmt::format("item_{}_{}", response_id, items.size())}, {"type", "message"}};
    item.update(given);
    if (item.value("content", Json()).is_string()) item["content"] = part(item["content"]);
    items.insert(items.begin(), std::move(item));
  }
  return items;
}

// A list as its client pages through it: `order`, `after` an id, `limit`. Throws ApiError.
Json page_of(Json items, std::string_view query) {
  const std::string_view order = query_value(query, "order"), limit = query_value(query, "limit"),
                         after = query_value(query, "after");
  if (!order.empty() && order != "asc" && order != "desc")
    throw invalid_value("order", "want asc or desc, found {}", order);
  if (order == "asc") std::reverse(items.begin(), items.end());
  size_t most = 20, first = 0;
  const auto [rest, error] = std::from_chars(limit.data(), limit.data() + limit.size(), most);
  if (!limit.empty() && (error != std::errc() || rest != limit.data() + limit.size() || most < 1 || most > 100))
    throw invalid_value("limit", "want 1 to 100, found {}", limit);
  while (!after.empty() && first < items.size() && items[first]["id"] != after) ++first;
  if (!after.empty() && first++ == items.size()) throw invalid_value("after", "there is no item {}", after);
  const size_t end = std::min(items.size(), first + most);
  Json data = Json::array();
  for (size_t i = first; i < end; ++i) data.push_back(std::move(items[i]));
  const Json first_id = data.empty() ? Json() : data.front()["id"], last_id = data.empty() ? Json() : data.back()["id"];
  return {{"object", "list"},
          {"data", std::move(data)},
          {"first_id", first_id},
          {"last_id", last_id},
          {"has_more", end < items.size()}};
}

}  // namespace

Json input_items(const std::string& response_id, const Json& input, std::string_view query) {
  return page_of(items_of(response_id, input), query);
}

}  // namespace nibble::server
