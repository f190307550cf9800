#pragma once
// What is asked of a server: requests of random prompts and wanted lengths; and what their answers must be. Pure: the
// same seed gives the same requests.

#include "lab/client/outcome.h"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::client {

enum class Api : uint8_t { kCompletions, kChat };
enum class PromptForm : uint8_t { kIds, kText };  // token ids: lengths are exact; a word per token: about right

[[nodiscard]] constexpr std::string_view name_of(Api api) { return api == Api::kChat ? "chat" : "completions"; }
[[nodiscard]] constexpr std::string_view name_of(PromptForm form) { return form == PromptForm::kIds ? "ids" : "text"; }
[[nodiscard]] constexpr std::string_view path_of(Api api) {
  return api == Api::kChat ? "/chat/completions" : "/completions";
}

struct Workload {
  std::string model{};
  Api api = Api::kCompletions;
  PromptForm form = PromptForm::kIds;  // kChat: text
  int64_t isl = 1024, osl = 1024;      // most tokens of a prompt and of an answer
  double range_ratio = 0.8;            // each length is uniform in [ratio * most, most]
  int64_t prefix_len = 0;              // of the prompt's tokens: those that all requests share
  int64_t vocab_size = 32000;          // ids are below
  double temperature = 0;
  bool ignore_eos = true;
  int turns = 1;              // of a conversation; the next four are of kChat, too
  std::string tools{};        // OpenAI's array of them; empty: none are offered
  bool must_call = true;      // one of the tools
  std::string json_schema{};  // of answers; empty: they are any text
  uint64_t seed = 1;
};

struct Lengths {
  int64_t prompt = 0, output = 0;
};
[[nodiscard]] Lengths lengths_of(const Workload& workload, uint64_t request);
// `said`: the messages before it in its conversation; none: it is the first.
[[nodiscard]] std::string body_of(const Workload& workload, uint64_t request,
                                  const nlohmann::ordered_json& said = nlohmann::ordered_json::array());

// Seconds that a user thinks before a request, `mean` on average, exponentially distributed.
[[nodiscard]] double think_seconds(uint64_t seed, uint64_t request, double mean);

// Seconds at which requests come, `rate` per second on average, as a Poisson process.
[[nodiscard]] std::vector<double> poisson_arrivals(size_t count, double rate, uint64_t seed);

// Conversations under way: what has been said in each, which its next request says again. Requests are counted as
// RequestPlan counts them.
class Conversations {
 public:
  // `first`: what the workload calls the first request of `count`.
  Conversations(const Workload& workload, uint64_t first, size_t count);

  [[nodiscard]] std::string body(size_t request) const;
  // The answer becomes part of what was said; calls of tools are answered. Takes the answer's text.
  void ended(size_t request, Outcome& outcome);

 private:
  [[nodiscard]] size_t conversation_of(size_t request) const { return request / static_cast<size_t>(workload_.turns); }

  const Workload& workload_;
  const uint64_t first_;
  std::vector<nlohmann::ordered_json> said_;  // arrays of messages; empty before the first turn and after the last
};

// Whether whole answers are what a workload with tools or a JSON schema asked for: calls of tools that were offered,
// and JSON. Whether JSON meets its schema is the server's to show.
class AnswerCheck {
 public:
  // Throws Error(kInvalidRequest) for tools or a schema that are none.
  explicit AnswerCheck(const Workload& workload);

  // Fails an answer that went well so far but is not as asked.
  void judge(Outcome& outcome) const;

 private:
  const bool must_call_, json_;
  std::set<std::string> tools_;  // names
};

}  // namespace nibble::client
