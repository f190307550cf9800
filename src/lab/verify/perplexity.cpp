#include "app/setup/backend_choice.h"
#include "app/setup/commands.h"
#include "app/setup/named_model.h"
#include "app/setup/terminal.h"
#include "base/error.h"
#include "lab/verify/verify.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <iterator>

namespace nibble::app {
namespace {

constexpr int kStepRows = 64;  // of logits in a step: bounds memory

}  // namespace

Score score(const ScoreArgs& args, Terminal& terminal) {
  engine::EngineLimits limits = one_sequence(args.model, args.window);
  limits.max_batched_tokens = limits.max_logit_rows = std::min(kStepRows, limits.max_batched_tokens);
  limits.prefix_cache = false;
  Runtime runtime(args.source, args.model, limits, terminal);
  Score sum;
  const auto window = static_cast<size_t>(args.window);
  for (size_t begin = 0; begin + 1 < args.ids.size(); begin += window) {
    const std::span<const int32_t> part = args.ids.subspan(begin, std::min(window, args.ids.size() - begin));
    const auto add = [&](const engine::TokenEvent& event) {
      sum.nats -= event.logprobs->value;
      sum.bytes += std::ssize(token_text(args.source.tokenizer, event.token));
      return ++sum.scored > 0;
    };
    runtime.loop().serve({.prompt = {part.begin(), part.end()}, .prompt_logprobs = 0}, add);
    terminal.progress("scoring", static_cast<double>(begin + part.size()) / static_cast<double>(args.ids.size()),
                      fmt::format("perplexity {:.3f}", sum.perplexity()));
  }
  terminal.end_progress();
  return sum;
}

PerplexityOptions resolved_options(const PerplexityOptions& options, Terminal& terminal) {
  PerplexityOptions with = options;
  with.model = resolved_alone(with_files(options.model, terminal), options.context);
  return with;
}

int execute(const PerplexityOptions& asked) {
  Terminal terminal(asked.output);
  const std::string input = read_text(asked.input);
  const PerplexityOptions options = resolved_options(asked, terminal);
  const ModelOptions& model = options.model;
  const ModelSource source = open_model(model, terminal);
  const std::vector<int32_t> ids = source.tokenizer.encode(input);
  if (ids.size() < 2) throw Error(Code::kInvalidRequest, "want a text of at least 2 tokens, found {}", ids.size());
  const int64_t window = context_length(model, source.config, options.context);
  if (window < 2)
    throw Error(Code::kInvalidRequest, "--max-model-len: want windows of at least 2 tokens, found {}", window);
  const Score found = score({source, model, ids, window}, terminal);
  const double perplexity = found.perplexity(), bits_per_byte = found.bits_per_byte();
  if (options.output.json) {
    terminal.print_json(nlohmann::ordered_json{{"perplexity", perplexity},
                                               {"bits_per_byte", bits_per_byte},
                                               {"scored_tokens", found.scored},
                                               {"window", window},
                                               {"backend", name_of(model.run.backend)},
                                               {"attention_sinks", model.run.sinks}});
  } else {
    terminal.print(fmt::format("perplexity {:.4f} over {} tokens ({:.4f} bits per byte, windows of {})\n", perplexity,
                               found.scored, bits_per_byte, window));
  }
  return kExitOk;
}

}  // namespace nibble::app
