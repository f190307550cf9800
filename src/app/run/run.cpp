#include "app/setup/backend_choice.h"
#include "app/setup/commands.h"
#include "app/setup/interrupt.h"
#include "app/setup/loaded_model.h"
#include "app/setup/named_model.h"
#include "app/setup/rank_group.h"
#include "app/run/single_request.h"
#include "app/setup/terminal.h"
#include "base/error.h"
#include "text/text_stream.h"

#include <algorithm>

namespace nibble::app {
namespace {

constexpr int64_t kRunContext = 4096;

}  // namespace

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
  const std::string prompt_text = read_text(options.prompt);
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
