#include "lab/client/workload.h"

#include "base/random.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>

namespace nibble::client {
namespace {

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

std::string ids_of(const Workload& w, uint64_t request) {
  std::string ids = "[";
  draw_prompt(w, {request, w.prefix_len, w.vocab_size}, [&](int64_t id) {
    if (ids.size() > 1) ids += ',';
    ids += fmt::format_int(id).c_str();
  });
  return ids + "]";
}

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
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

std::string message_of(const Workload& w, uint64_t request, bool first) {
  return fmt::format(R"({{"role":"user","content":{}}})", quoted(text_of(w, request, first ? w.prefix_len : 0)));
}

std::string body_of(const Workload& w, uint64_t request, std::string_view said) {
  std::string prompt;
  if (w.api == Api::kChat) {
    prompt = fmt::format(R"("messages":[{}{}{}])", said, said.empty() ? "" : ",", message_of(w, request, said.empty()));
    if (!w.tools.empty())
      prompt += fmt::format(R"(,"tools":{},"tool_choice":"{}")", w.tools, w.must_call ? "required" : "auto");
    if (!w.json_schema.empty())
      prompt += fmt::format(
          R"(,"response_format":{{"type":"json_schema","json_schema":{{"name":"answer","strict":true,"schema":{}}}}})",
          w.json_schema);
  } else {
    prompt =
        "\"prompt\":" + (w.form == PromptForm::kIds ? ids_of(w, request) : quoted(text_of(w, request, w.prefix_len)));
  }
  return fmt::format(
      R"({{"model":{},{},"max_tokens":{},"temperature":{},"stream":true,"stream_options":{{"include_usage":true}}{}}})",
      quoted(w.model), prompt, lengths_of(w, request).output, w.temperature,
      w.ignore_eos ? R"(,"ignore_eos":true)" : "");
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

namespace {

using Json = nlohmann::json;

std::string json_text(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string answer_message(const Outcome& outcome) {
  Json message = {{"role", "assistant"}, {"content", outcome.text}};
  for (const ToolCall& call : outcome.calls)
    message["tool_calls"].push_back(
        {{"id", call.id}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  std::string text = json_text(message);
  for (const ToolCall& call : outcome.calls)
    text += "," + json_text({{"role", "tool"}, {"tool_call_id", call.id}, {"content", "done"}});
  return text;
}

}  // namespace

Conversations::Conversations(const Workload& workload, uint64_t first, size_t count)
    : workload_(workload), first_(first), said_(count / static_cast<size_t>(workload.turns)) {}

std::string Conversations::body(size_t request) const {
  return body_of(workload_, first_ + request, said_[conversation_of(request)]);
}

void Conversations::ended(size_t request, Outcome& outcome) {
  std::string& said = said_[conversation_of(request)];
  const bool last = request % static_cast<size_t>(workload_.turns) + 1 == static_cast<size_t>(workload_.turns);
  if (last || !outcome.ok()) {
    said = {};
  } else {
    const bool first = said.empty();
    said += (first ? "" : ",") + message_of(workload_, first_ + request, first) + "," + answer_message(outcome);
  }
  outcome.text = {};
  outcome.calls = {};
}

}  // namespace nibble::client
