#include "app/backend_choice.h"
#include "app/commands.h"
#include "app/loaded_model.h"
#include "app/named_model.h"
#include "app/terminal.h"
#include "app/text_input.h"
#include "base/error.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace nibble::app {
namespace {

constexpr int kRows = 64;  // of logits in a step: bounds memory

}  // namespace

PerplexityOptions resolved(const PerplexityOptions& options, Terminal& terminal) {
  PerplexityOptions with = options;
  with.model = resolved_alone(with_files(options.model, terminal), options.context);
  return with;
}

int execute(const PerplexityOptions& asked) {
  Terminal terminal(asked.output);
  const std::string input = read_text(asked.input);
  const PerplexityOptions options = resolved(asked, terminal);
  const ModelOptions& model = options.model;
  const ModelSource source = open_model(model, terminal);
  const std::vector<int32_t> ids = source.tokenizer.encode(input);
  if (ids.size() < 2) throw Error(Code::kInvalidRequest, "want a text of at least 2 tokens, found {}", ids.size());
  const auto window = static_cast<size_t>(context_length(model, source.config, options.context));
  if (window < 2)
    throw Error(Code::kInvalidRequest, "--max-model-len: want windows of at least 2 tokens, found {}", window);
  engine::EngineLimits limits = one_sequence(model, static_cast<int64_t>(window));
  limits.max_batched_tokens = limits.max_logit_rows = std::min(kRows, limits.max_batched_tokens);
  limits.prefix_cache = false;
  Runtime runtime(source, model, limits, terminal);
  double nats = 0;
  int64_t scored = 0;
  for (size_t begin = 0; begin + 1 < ids.size(); begin += window) {
    const std::span<const int32_t> part = std::span(ids).subspan(begin, std::min(window, ids.size() - begin));
    const auto add = [&](const engine::TokenEvent& event) {
      nats -= event.logprobs->value;
      return ++scored > 0;
    };
    runtime.loop().serve({.prompt = {part.begin(), part.end()}, .prompt_logprobs = 0}, add);
    terminal.progress("scoring", static_cast<double>(begin + part.size()) / static_cast<double>(ids.size()),
                      fmt::format("perplexity {:.3f}", std::exp(nats / static_cast<double>(scored))));
  }
  terminal.end_progress();
  const double perplexity = std::exp(nats / static_cast<double>(scored));
  const double bits_per_byte = nats / std::log(2.0) / static_cast<double>(input.size());
  if (options.output.json) {
    terminal.print_json(nlohmann::ordered_json{{"perplexity", perplexity},
                                               {"bits_per_byte", bits_per_byte},
                                               {"scored_tokens", scored},
                                               {"window", window},
                                               {"backend", name_of(model.run.backend)},
                                               {"attention_sinks", model.run.sinks}});
  } else {
    terminal.print(fmt::format("perplexity {:.4f} over {} tokens ({:.4f} bits per byte, windows of {})\n", perplexity,
                               scored, bits_per_byte, window));
  }
  return kExitOk;
}

}  // namespace nibble::app
