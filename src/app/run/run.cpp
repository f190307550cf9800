#include "app/run/run.h"
#include "app/setup/backend_choice.h"
#include "app/setup/commands.h"
#include "app/setup/loaded_model.h"
#include "app/setup/named_model.h"
#include "app/setup/rank_group.h"
#include "base/error.h"
#include "text/text_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

namespace nibble::app {
namespace {

constexpr int64_t kRunContext = 4096;

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

std::string read_prompt(const TextInput& input, std::string_view between, Terminal& terminal) {
  std::string prompt = read_text(input);
  struct stat in{}, file{};
  if (!input.given || input.file == "-" || fstat(STDIN_FILENO, &in) != 0) return prompt;
  const bool is_stdin = stat(input.file.c_str(), &file) == 0 && file.st_dev == in.st_dev && file.st_ino == in.st_ino;
  if (is_stdin) return prompt;                                                                // -f /dev/stdin
  if (!S_ISFIFO(in.st_mode) && !S_ISREG(in.st_mode) && !S_ISSOCK(in.st_mode)) return prompt;  // a terminal, /dev/null
  pollfd until{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  if (poll(&until, 1, 1000) == 0)
    terminal.note("waiting for the end of standard input, which goes before the prompt; </dev/null gives none");
  std::string piped = read_text(TextInput{.text = {}, .file = "-"});
  if (!between.empty()) piped.erase(piped.find_last_not_of("\r\n") + 1);
  return piped.empty() ? prompt : fmt::format("{}{}{}", piped, between, prompt);
}

engine::Request make_request(const GenerateOptions& options, const model::ModelConfig& config, int64_t context,
                             std::vector<int32_t> prompt) {
  backend::validate(options.sampling, config.dims.vocab);
  if (std::ssize(prompt) >= context)
    throw Error(
        Code::kInvalidRequest,
        "want at most {} prompt tokens, found {}: the context (--max-model-len) of {} holds the prompt and what "
        "is generated",
        context - 1, prompt.size(), context);
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

RunOptions resolved_options(const RunOptions& options, Terminal& terminal) {
  RunOptions with = options;
  with.model = resolved_alone(with_files(options.model, terminal), kRunContext);
  return with;
}

int execute(const RunOptions& asked) {
  Terminal terminal(asked.output);
  const RunOptions options = resolved_options(asked, terminal);
  const ModelOptions& model = options.model;
  if (follows(model)) return follow(model, terminal, "prints no text");
  const std::string prompt_text = read_prompt(options.prompt, "", terminal);
  const ModelSource source = open_model(model, terminal);
  std::vector<int32_t> prompt = source.tokenizer.encode(
      prompt_text, options.special ? text::SpecialTokens::kAllowed : text::SpecialTokens::kAsText);
  if (prompt.empty())
    throw Error(Code::kInvalidRequest,
                "want a prompt of at least one token (-p TEXT, -f FILE or standard input), found an empty one");
  const int64_t wanted = static_cast<int64_t>(prompt.size()) + std::max<int64_t>(options.generate.max_tokens, 1);
  const int64_t context = context_length(model, source.config, std::max(kRunContext, wanted));
  const engine::Request request = make_request(options.generate, source.config, context, std::move(prompt));
  Runtime runtime(source, model, one_sequence(model, context), terminal);

  if (!options.output.json) terminal.print(terminal.dim(prompt_text));
  const Interrupt interrupt;
  text::Utf8Stream utf8;
  text::StopStrings stops(options.generate.stop);
  Outcome outcome;
  std::string text;
  std::vector<int32_t> output;
  const auto emit = [&](const std::string& piece) {
    text += piece;
    if (!options.output.json) terminal.print_foreign(piece);
  };
  const auto on_token = [&](const engine::TokenEvent& event) {
    const int32_t token = event.token;
    output.push_back(token);
    outcome.interrupted = interrupt.requested();
    if (source.tokenizer.is_special(token)) return !outcome.interrupted;
    const text::StopStrings::Step step = stops.push(utf8.push(token_text(source.tokenizer, token)));
    emit(step.text);
    outcome.stop_string = step.stop_idx.has_value();
    return !outcome.stop_string && !outcome.interrupted;
  };
  outcome.finished = runtime.loop().serve(request, on_token, show_prompt(terminal, interrupt));
  outcome.interrupted = outcome.interrupted || outcome.finished.generated_tokens == 0;
  if (!outcome.stop_string) {
    emit(stops.push(utf8.finish()).text);
    emit(stops.finish());
  }
  if (options.output.json) {
    nlohmann::ordered_json json = {{"text", text}, {"token_ids", output}, {"backend", name_of(model.run.backend)}};
    json.update(usage_json(outcome, options.generate));
    terminal.print_json(json);
  } else {
    terminal.print("\n");
    terminal.note(terminal.dim(summary(outcome, options.generate)));
  }
  return outcome.interrupted ? kExitInterrupted : kExitOk;
}

}  // namespace nibble::app
