#include "app/run/single_request.h"

#include "base/error.h"

#include <fmt/format.h>

#include <limits>
#include <utility>

namespace nibble::app {
namespace {

double per_second(int64_t tokens, double seconds) { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }

struct Rates {
  double prompt_per_second;
  double decode_per_second;  // the first token belongs to the prompt's computation
};

Rates rates_of(const engine::Finished& f) {
  return {per_second(f.prompt_tokens - f.cached_tokens, f.prefill_seconds),
          per_second(f.generated_tokens - 1, f.decode_seconds)};
}

}  // namespace

engine::Request make_request(const GenerateOptions& options, const model::ModelConfig& config, int64_t context,
                             std::vector<int32_t> prompt) {
  backend::validate(options.sampling, config.dims.vocab);
  if (std::ssize(prompt) >= context) {
    throw Error(
        Code::kInvalidRequest,
        "want at most {} prompt tokens, found {}: the context (--max-model-len) of {} holds the prompt and what "
        "is generated",
        context - 1, prompt.size(), context);
  }
  return {.prompt = std::move(prompt),
          .max_tokens = options.max_tokens > 0 ? options.max_tokens : std::numeric_limits<int64_t>::max(),
          .sampling = options.sampling,
          .stop_ids = options.ignore_eos ? std::vector<int32_t>() : config.eos_ids};
}

engine::Loop::OnPrompt show_prompt(Terminal& terminal, const Interrupt& interrupt) {
  return [&terminal, &interrupt](int64_t done, int64_t total) {
    const bool go_on = done == total || !interrupt.requested();  // the first token is there: its receiver decides
    if (done < total && go_on)
      terminal.progress("reading the prompt", static_cast<double>(done) / static_cast<double>(total), "");
    else
      terminal.end_progress();
    return go_on;
  };
}

std::string finish_reason(const Outcome& outcome) {
  if (outcome.interrupted) return "interrupted";
  if (outcome.stop_string) return "stop";
  return std::string(engine::name_of(outcome.finished.reason));
}

std::string summary(const Outcome& outcome, const GenerateOptions& options) {
  const engine::Finished& f = outcome.finished;
  const Rates r = rates_of(f);
  const std::string guesses =
      f.drafted_tokens > 0 ? fmt::format(" · guessed {} tokens, {} right", f.drafted_tokens, f.accepted_tokens) : "";
  return fmt::format(
      "prompt {} tokens ({} cached), {:.1f} tok/s · generated {} tokens, {:.1f} tok/s{} · finished: {} · seed {}",
      f.prompt_tokens, f.cached_tokens, r.prompt_per_second, f.generated_tokens, r.decode_per_second, guesses,
      finish_reason(outcome), options.sampling.seed);
}

nlohmann::ordered_json usage_json(const Outcome& outcome, const GenerateOptions& options) {
  const engine::Finished& f = outcome.finished;
  const Rates r = rates_of(f);
  nlohmann::ordered_json usage = {{"prompt_tokens", f.prompt_tokens},
                                  {"cached_tokens", f.cached_tokens},
                                  {"completion_tokens", f.generated_tokens}};
  if (f.drafted_tokens > 0) {
    usage["drafted_tokens"] = f.drafted_tokens;
    usage["accepted_tokens"] = f.accepted_tokens;
  }
  return {{"finish_reason", finish_reason(outcome)},
          {"seed", options.sampling.seed},
          {"usage", std::move(usage)},
          {"timings",
           {{"prompt_seconds", f.prefill_seconds},
            {"prompt_tokens_per_second", r.prompt_per_second},
            {"decode_seconds", f.decode_seconds},
            {"decode_tokens_per_second", r.decode_per_second}}}};
}

}  // namespace nibble::app
