#include "lab/client/workload.h"

#include "base/error.h"
#include "base/random.h"
#include "base/read_json.h"
#include "lab/client/answer_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace nibble::client {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Words that most tokenizers know as one token, with the blank before them.
constexpr std::array<std::string_view, 32> kWords = {
    "time",  "year", "people", "way",   "day",   "man",   "thing",  "world", "life",  "hand", "part",
    "place", "case", "week",   "work",  "fact",  "group", "number", "night", "point", "home", "water",
    "room",  "area", "money",  "story", "month", "right", "study",  "book",  "eye",   "job"};

// Streams of random numbers beside each other under one seed.
enum class Draw : uint64_t { kLengths, kPrompt, kPrefix, kArrivals, kThink };

uint64_t key_of(uint64_t seed, Draw draw) { return seed * 8 + static_cast<uint64_t>(draw); }

int64_t uniform(int64_t least, int64_t most, uint32_t bits) {
  return least + static_cast<int64_t>((static_cast<uint64_t>(bits) * static_cast<uint64_t>(most - least + 1)) >> 32);
}

struct Prompt {
  uint64_t request;
  int64_t prefix_len;
  int64_t many;  // numbers to draw from
};

// Calls on_token with a number for each of the prompt's tokens.
template <class OnToken>
void draw_prompt(const Workload& w, const Prompt& prompt, const OnToken& on_token) {
  const auto& [request, prefix_len, many] = prompt;
  const int64_t tokens = lengths_of(w, request).prompt;
  Philox4 bits{};
  for (int64_t i = 0; i < tokens; ++i) {
    const bool shared = i < prefix_len;
    if (i % 4 == 0 || i == prefix_len)
      bits = philox(key_of(w.seed, shared ? Draw::kPrefix : Draw::kPrompt), shared ? 0 : request,
                    static_cast<uint64_t>(i / 4));
    on_token(uniform(0, many - 1, bits[static_cast<size_t>(i % 4)]));
  }
}

std::string text_of(const Workload& w, uint64_t request, int64_t prefix_len) {
  std::string text;
  draw_prompt(w, {request, prefix_len, static_cast<int64_t>(kWords.size())}, [&](int64_t word) {
    if (!text.empty()) text += ' ';
    text += kWords[static_cast<size_t>(word)];
  });
  return text;
}

std::vector<int64_t> ids_of(const Workload& w, uint64_t request) {
  std::vector<int64_t> ids;
  draw_prompt(w, {request, w.prefix_len, w.vocab_size}, [&](int64_t id) { ids.push_back(id); });
  return ids;
}

OrderedJson user_message(const Workload& w, uint64_t request, bool first) {
  return {{"role", "user"}, {"content", text_of(w, request, first ? w.prefix_len : 0)}};
}

}  // namespace

Lengths lengths_of(const Workload& w, uint64_t request) {
  const Philox4 bits = philox(key_of(w.seed, Draw::kLengths), request);
  const auto length = [&](int64_t most, uint32_t random) {
    const auto least = static_cast<int64_t>(std::floor(static_cast<double>(most) * w.range_ratio));
    return uniform(std::max<int64_t>(1, least), most, random);
  };
  return {.prompt = length(w.isl, bits[0]), .output = length(w.osl, bits[1])};
}

std::string body_of(const Workload& w, uint64_t request, const OrderedJson& said) {
  OrderedJson body = {{"model", w.model},
                      {"max_tokens", lengths_of(w, request).output},
                      {"temperature", w.temperature},
                      {"stream", true},
                      {"stream_options", {{"include_usage", true}}}};
  if (w.ignore_eos) body["ignore_eos"] = true;
  if (w.api == Api::kCompletions) {
    body["prompt"] =
        w.form == PromptForm::kIds ? OrderedJson(ids_of(w, request)) : OrderedJson(text_of(w, request, w.prefix_len));
  } else {
    body["messages"] = said;
    body["messages"].push_back(user_message(w, request, said.empty()));
  }
  if (!w.tools.empty()) {
    body["tools"] = read_ordered_json(w.tools);
    body["tool_choice"] = w.must_call ? "required" : "auto";
  }
  if (!w.json_schema.empty())
    body["response_format"] = {
        {"type", "json_schema"},
        {"json_schema", {{"name", "answer"}, {"strict", true}, {"schema", read_ordered_json(w.json_schema)}}}};
  return body.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

double think_seconds(uint64_t seed, uint64_t request, double mean) {
  return -std::log1p(-static_cast<double>(uniform_float(philox(key_of(seed, Draw::kThink), request)[0]))) * mean;
}

std::vector<double> poisson_arrivals(size_t count, double rate, uint64_t seed) {
  std::vector<double> at(count);
  double now = 0;
  for (size_t i = 0; i < count; ++i) {
    at[i] = now;  // the first at once
    now -= std::log1p(-static_cast<double>(uniform_float(philox(key_of(seed, Draw::kArrivals), i)[0]))) / rate;
  }
  return at;
}

Conversations::Conversations(const Workload& workload, uint64_t first, size_t count)
    : workload_(workload), first_(first), said_(count / static_cast<size_t>(workload.turns), OrderedJson::array()) {}

std::string Conversations::body(size_t request) const {
  return body_of(workload_, first_ + request, said_[conversation_of(request)]);
}

void Conversations::ended(size_t request, Outcome& outcome) {
  OrderedJson& said = said_[conversation_of(request)];
  const bool last = request % static_cast<size_t>(workload_.turns) + 1 == static_cast<size_t>(workload_.turns);
  if (last || !outcome.ok()) {
    said = OrderedJson::array();
  } else {
    said.push_back(user_message(workload_, first_ + request, said.empty()));
    OrderedJson& answer = said.emplace_back(OrderedJson{{"role", "assistant"}, {"content", outcome.text}});
    for (const ToolCall& call : outcome.calls)
      answer["tool_calls"].push_back(
          {{"id", call.id}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
    for (const ToolCall& call : outcome.calls)
      said.push_back({{"role", "tool"}, {"tool_call_id", call.id}, {"content", "done"}});
  }
  outcome.text = {};
  outcome.calls = {};
}

AnswerCheck::AnswerCheck(const Workload& workload)
    : must_call_(workload.must_call), json_(!workload.json_schema.empty()) {
  if (json_ && !read_json(workload.json_schema).is_object())
    throw Error(Code::kInvalidRequest, "--json-schema: want a JSON object, found {}", short_text(workload.json_schema));
  if (workload.tools.empty()) return;
  const auto refuse = [](const std::string& found) -> Error {
    return {Code::kInvalidRequest,
            "--tools: want an array as OpenAI's \"tools\", each {{\"type\":\"function\",\"function\":{{\"name\":…, "
            "\"parameters\":…}}}}, found {}",
            short_text(found)};
  };
  const nlohmann::json tools = read_json(workload.tools);
  if (!tools.is_array() || tools.empty()) throw refuse(workload.tools);
  for (const nlohmann::json& tool : tools) {
    const nlohmann::json::json_pointer name("/function/name");
    if (!tool.is_object() || !tool.contains(name) || !tool[name].is_string()) throw refuse(tool.dump());
    if (!tools_.insert(tool[name]).second) throw refuse(fmt::format("two of the name {}", tool[name].dump()));
  }
}

void AnswerCheck::judge(Outcome& outcome) const {
  if (!outcome.ok()) return;
  const auto fail = [&](Failure failure, const std::string& message) {
    outcome.failure = failure;
    outcome.message = short_text(message);
  };
  // An answer that ran into max_tokens is seldom whole.
  const auto expect_json = [&](const std::string& what, const std::string& text) {
    if (read_json(text).is_discarded())
      fail(Failure::kInvalidJson,
           fmt::format("{}, ended by {}: {}", what,
                       outcome.finish_reason.empty() ? "nothing that it says" : outcome.finish_reason, text));
  };
  if (json_ && tools_.empty()) return expect_json("the answer", outcome.text);
  if (!tools_.empty() && outcome.calls.empty() && must_call_)
    return fail(Failure::kNoCall,
                fmt::format("ended by {}, with the text \"{}\"", outcome.finish_reason, outcome.text));
  for (const ToolCall& call : outcome.calls) {
    if (tools_.empty() || !outcome.ok()) return;
    if (!tools_.contains(call.name)) return fail(Failure::kUnknownTool, fmt::format("a call of \"{}\"", call.name));
    expect_json("arguments of " + call.name, call.arguments.empty() ? "{}" : call.arguments);
  }
}

}  // namespace nibble::client
