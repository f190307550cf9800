#include "app/options/option.h"
#include "app/run/run.h"
#include "app/setup/backend_choice.h"
#include "app/setup/commands.h"
#include "app/setup/interrupt.h"
#include "app/setup/loaded_model.h"
#include "app/setup/named_model.h"
#include "app/setup/terminal.h"
#include "base/error.h"
#include "text/harmony_parse.h"
#include "text/harmony_render.h"
#include "text/text_stream.h"

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <string_view>
#include <variant>

namespace nibble::app {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kDefaultContext = 8192;

struct ChatCommand {
  std::string_view name, argument, what;
};
constexpr ChatCommand kChatCommands[] = {
    {"/help", "", "this list"},
    {"/clear", "", "forget the conversation"},
    {"/reasoning", "", "show the reasoning of the last answer"},
    {"/reasoning", "low", "how much to reason: low, medium or high"},
    {"/reasoning", "medium", ""},
    {"/reasoning", "high", ""},
    {"/instructions", "TEXT", "what the model should keep to; nothing: none"},
    {"/stats", "", "tokens and speed of the last answer"},
    {"/quit", "", "leave; so do /exit, /bye, Ctrl-D, and Ctrl-C twice"},
};
constexpr std::string_view kLeave[] = {"/quit", "/exit", "/bye"};
constexpr std::string_view kKeysHelp = R"(
Alt-Enter, Ctrl-J            a new line; """ before and after a text with many
Up, Down, Ctrl-R             what was typed before; Tab completes commands
Ctrl-C                       stops an answer, drops what was typed
)";

std::string help_text() {
  std::string text;
  for (const ChatCommand& c : kChatCommands)
    if (!c.what.empty()) text += fmt::format("{:<29}{}\n", fmt::format("{} {}", c.name, c.argument), c.what);
  return text.append(kKeysHelp);
}

std::vector<std::string> completions() {
  std::vector<std::string> lines;
  for (const ChatCommand& c : kChatCommands) {
    const std::string_view word = c.argument == "TEXT" ? "" : c.argument;
    lines.push_back(fmt::format("{}{}{}", c.name, c.argument.empty() ? "" : " ", word));
  }
  return lines;
}

// What begins like one and has many lines is a text: a pasted path, a diff.
bool is_command(const std::string& line) {
  if (line[0] != '/') return false;
  const std::string_view name = std::string_view(line).substr(0, line.find_first_of(" \n"));
  return line.find('\n') == std::string::npos ||
         std::any_of(std::begin(kChatCommands), std::end(kChatCommands), [&](const auto& c) { return c.name == name; });
}

// One turn of the model while it arrives: printed, and kept as messages.
class TurnPrinter {
 public:
  struct Setup {
    bool prints = true;
    bool shows_reasoning = false;  // while it arrives; otherwise a terminal gets one line about it, a pipe nothing
  };
  TurnPrinter(Terminal& terminal, const Setup& setup) : terminal_(terminal), setup_(setup) {}
  void take(const std::vector<text::Event>& events) {
    for (const text::Event& event : events) std::visit([this](const auto& e) { on(e); }, event);
  }
  void count_token() { ++tokens_; }  // one of text came
  [[nodiscard]] std::vector<text::Message> messages() && { return std::move(messages_); }

 private:
  void on(const text::MessageStarted& started) {
    messages_.push_back(started.header.message());
    text_.clear();
    tokens_ = 0;
    started_ = std::chrono::steady_clock::now();
    if (const auto& recipient = started.header.recipient) show(fmt::format("→ {} ", *recipient));
  }

  void on(const text::TextDelta& delta) {
    text_ += delta.text;
    if (folds())
      terminal_.status(fmt::format("thinking, {} tokens", tokens_));
    else
      show(delta.text);
  }

  void on(const text::MessageEnded&) {
    messages_.back().content = {text_};
    if (!setup_.prints) return;
    terminal_.end_progress();
    if (folds()) {
      if (!terminal_.on_terminal()) return;  // a pipe gets the answer
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - started_;
      terminal_.print(terminal_.dim(fmt::format("thought for {:.1f} s, {} tokens", took.count(), tokens_)) + "\n");
    } else {
      terminal_.print(markdown_.finish() + "\n");
    }
  }

  void on(text::Repair) {}
  [[nodiscard]] bool folds() const {
    const text::Message& m = messages_.back();
    return !setup_.shows_reasoning && m.channel == text::kAnalysisChannel && !m.recipient;
  }

  void show(const std::string& text) {
    if (!setup_.prints) return;
    const bool answer = messages_.back().channel == text::kFinalChannel;
    if (answer && terminal_.colors())
      terminal_.print(markdown_.push(terminal_.safe(text)));
    else
      terminal_.print_foreign(text, !answer);
  }

  Terminal& terminal_;
  const Setup setup_;
  MarkdownStream markdown_;  // of the answer, where there are colours
  std::vector<text::Message> messages_;
  std::string text_;    // of the open message
  int64_t tokens_ = 0;  // so far
  std::chrono::steady_clock::time_point started_{};
};

class Chat {
 public:
  // All of it outlives the chat.
  Chat(const ChatOptions& options, std::vector<text::ToolSpec> tools, const ModelSource& source, Runtime& runtime,
       Terminal& terminal, int64_t context)
      : options_(options),
        source_(source),
        runtime_(runtime),
        terminal_(terminal),
        context_(context),
        instructions_(options.instructions),
        effort_(options.effort),
        ids_(text::HarmonyIds::from_names([&](std::string_view name) { return source_.tokenizer.special_id(name); })),
        tools_(std::move(tools)) {}

  int ask_once(const std::string& question) {
    const std::vector<text::Message> turn = answer({.role = text::Role::kUser, .content = {question}});
    if (options_.output.json)
      terminal_.print_json(turn_json(turn));
    else
      terminal_.note(terminal_.dim(summary(outcome_, options_.generate)));
    return outcome_.interrupted ? kExitInterrupted : kExitOk;
  }

  int talk() {
    terminal_.note("Type a message, /help for commands, Ctrl-D to leave.");
    LineEditor editor(
        terminal_, interrupt_,
        {.completions = completions(), .history = options_.keeps_history ? options_.history : std::filesystem::path()});
    std::string line;
    bool leaving = false;  // Ctrl-C was the last key
    while (true) {
      const LineEditor::Got got = editor.read(waiting_for_ ? fmt::format("result of {}", *waiting_for_) : "", line);
      if (got == LineEditor::Got::kEnd || (got == LineEditor::Got::kInterrupted && leaving)) break;
      leaving = got == LineEditor::Got::kInterrupted;
      if (leaving) terminal_.note("Ctrl-C again, or Ctrl-D, leaves.");
      if (got != LineEditor::Got::kLine || line.empty()) continue;
      if (std::ranges::find(kLeave, line) != std::end(kLeave)) break;
      try {
        is_command(line) ? command(line) : turn(line);
      } catch (const Error& e) {
        if (e.code() != Code::kInvalidRequest) throw;
        terminal_.note(fmt::format("nibble: {}{}", e.what(), history_.empty() ? "" : "; /clear forgets what was said"));
      }
      interrupt_.clear();  // what ended the answer
    }
    return kExitOk;
  }

 private:
  void turn(const std::string& line) {
    text::Message input{.role = text::Role::kUser, .content = {line}};
    if (waiting_for_)
      input = {.role = text::Role::kTool,
               .name = *waiting_for_,
               .recipient = "assistant",
               .channel = std::string(text::kCommentaryChannel),
               .content = {line}};
    const size_t before = history_.size();
    try {
      answer(std::move(input));
    } catch (const Error&) {
      history_.resize(before);
      throw;
    }
    if (outcome_.finished.reason == engine::FinishReason::kContext)
      terminal_.note(fmt::format("the context of {} tokens is full: /clear forgets what was said", context_));
    waiting_for_.reset();
    if (!history_.empty() && history_.back().role == text::Role::kAssistant && history_.back().recipient)
      waiting_for_ = history_.back().recipient;
  }

  std::vector<text::Message> answer(text::Message input) {
    history_.push_back(std::move(input));
    std::vector<int32_t> prompt = text::to_tokens(text::render_for_completion(conversation()), ids_,
                                                  [&](std::string_view t) { return source_.tokenizer.encode(t); });
    engine::Request request = make_request(options_.generate, source_.config, context_, std::move(prompt));
    if (!options_.generate.ignore_eos) {  // a turn ends here, whatever the model's files list
      request.stop_ids.push_back(ids_.id_of(text::Special::kReturn));
      request.stop_ids.push_back(ids_.id_of(text::Special::kCall));
    }
    interrupt_.clear();
    text::HarmonyParser parser(text::Role::kAssistant);
    TurnPrinter printer(terminal_, {.prints = !options_.output.json, .shows_reasoning = options_.show_reasoning});
    text::StopStrings stops(options_.generate.stop);
    outcome_ = {};
    const auto on_token = [&](const engine::TokenEvent& event) {
      const int32_t token = event.token;
      outcome_.interrupted = interrupt_.requested();
      if (const auto special = ids_.special_of(token)) {
        printer.take(parser.push(stops.finish()));  // a stop string does not reach over a message's end
        printer.take(parser.push(*special));
      } else if (!source_.tokenizer.is_special(token)) {
        printer.count_token();
        const text::StopStrings::Step step = stops.push(token_text(source_.tokenizer, token));
        printer.take(parser.push(step.text));
        outcome_.stop_string = step.stop_idx.has_value();
      }
      return !outcome_.interrupted && !outcome_.stop_string;
    };
    outcome_.finished = runtime_.loop().serve(request, on_token, show_prompt(terminal_, interrupt_));
    outcome_.interrupted = outcome_.interrupted || outcome_.finished.generated_tokens == 0;
    printer.take(parser.push(stops.finish()));
    printer.take(parser.finish());
    std::vector<text::Message> messages = std::move(printer).messages();
    history_.insert(history_.end(), messages.begin(), messages.end());
    return messages;
  }

  [[nodiscard]] text::Conversation conversation() const {
    const auto instructions = instructions_.empty() ? std::nullopt : std::optional(instructions_);
    return text::conversation_of({.current_date = options_.date, .effort = effort_},
                                 {.instructions = instructions, .tools = tools_, .response_formats = {}}, history_);
  }

  void show_reasoning() {
    const auto is_reasoning = [](const text::Message& m) { return m.channel == text::kAnalysisChannel; };
    const auto last_input = std::find_if(history_.rbegin(), history_.rend(),
                                         [](const text::Message& m) { return m.role != text::Role::kAssistant; });
    bool any = false;
    for (auto m = last_input.base(); m != history_.end(); ++m) {
      if (!is_reasoning(*m)) continue;
      terminal_.print_foreign(std::get<std::string>(m->content.at(0)) + "\n", true);
      any = true;
    }
    if (!any) terminal_.note("the last answer came without reasoning");
  }

  void command(const std::string& line) {
    const size_t space = line.find_first_of(" \n");
    const std::string name = line.substr(0, space), rest = space == std::string::npos ? "" : line.substr(space + 1);
    if (name == "/help") {
      terminal_.print(help_text());
    } else if (name == "/clear") {
      history_.clear();
      waiting_for_.reset();
      terminal_.note("the conversation is forgotten");
    } else if (name == "/reasoning") {
      if (const Word* const effort = option_named(CommandId::kChat, "--reasoning")->word_named(rest))
        effort_ = static_cast<text::ReasoningEffort>(effort->value), terminal_.note("reasoning: " + rest);
      else if (rest.empty())
        show_reasoning();
      else
        terminal_.note(fmt::format("/reasoning: want low, medium, high or nothing, found {}", rest));
    } else if (name == "/instructions") {
      instructions_ = rest;
      terminal_.note(rest.empty() ? "no instructions" : "instructions, from the next answer on: " + rest);
    } else if (name == "/stats") {
      terminal_.print(summary(outcome_, options_.generate) + "\n");
    } else {
      std::vector<std::string> names;
      for (const ChatCommand& c : kChatCommands) names.emplace_back(c.name);
      const std::string near = suggestion(name, names);
      terminal_.note(fmt::format("{}: no such command{}", name, near.empty() ? "; /help lists them" : near));
    }
  }

  [[nodiscard]] nlohmann::ordered_json turn_json(const std::vector<text::Message>& turn) const {
    nlohmann::ordered_json messages = nlohmann::ordered_json::array();
    for (const text::Message& m : turn) {
      nlohmann::ordered_json item = {{"role", text::name_of(m.role)}};
      if (m.channel) item["channel"] = *m.channel;
      if (m.recipient) item["recipient"] = *m.recipient;
      item["content"] = std::get<std::string>(m.content.at(0));
      messages.push_back(std::move(item));
    }
    nlohmann::ordered_json json = {{"messages", std::move(messages)}};
    json["backend"] = name_of(options_.model.run.backend);
    json.update(usage_json(outcome_, options_.generate));
    return json;
  }

  const ChatOptions& options_;
  const ModelSource& source_;
  Runtime& runtime_;
  Terminal& terminal_;
  const int64_t context_;
  Interrupt interrupt_;
  std::string instructions_;
  text::ReasoningEffort effort_;
  text::HarmonyIds ids_;
  std::vector<text::ToolSpec> tools_;
  std::vector<text::Message> history_;
  std::optional<std::string> waiting_for_;  // the function whose result the model waits for
  Outcome outcome_;
};

// OpenAI's "tools" array, or a plain array of functions. Throws Error(kInvalidRequest) naming the entry.
std::vector<text::ToolSpec> read_tools(const std::filesystem::path& path) {
  const auto refuse = [&path](const std::string& what) {
    return Error(Code::kInvalidRequest, "--tools {}: {}", path.string(), what);
  };
  const Json json = read_json_file("--tools", path);
  if (!json.is_array()) throw refuse("want a JSON array of functions");
  std::vector<text::ToolSpec> tools;
  for (size_t i = 0; i < json.size(); ++i) {
    const auto& function = json[i].is_object() && json[i].contains("function") ? json[i]["function"] : json[i];
    const auto string_of = [&](const char* key) -> std::string {
      if (!function.is_object() || !function.contains(key)) return {};
      if (!function[key].is_string()) throw refuse(fmt::format("entry {}: want a string as {}", i, key));
      return function[key].get<std::string>();
    };
    text::ToolSpec tool{.name = string_of("name"), .description = string_of("description"), .parameters = {}};
    if (tool.name.empty()) throw refuse(fmt::format("entry {}: want an object with a name", i));
    if (function.contains("parameters") && !function["parameters"].is_null()) {
      if (!function["parameters"].is_object())
        throw refuse(fmt::format("entry {}: want a schema, an object, as parameters", i));
      tool.parameters = function["parameters"];
    }
    const auto same = [&tool](const text::ToolSpec& other) { return other.name == tool.name; };
    if (std::ranges::any_of(tools, same))
      throw refuse(fmt::format("entry {}: another one is called {}, too", i, tool.name));
    tools.push_back(std::move(tool));
  }
  return tools;
}

}  // namespace

ChatOptions resolved_options(const ChatOptions& options, Terminal& terminal) {
  ChatOptions with = options;
  if (options.model.model.empty()) {
    with.model.model = own_model().path;
    terminal.note("nibble-tiny answers, which knows little; nibble pull openai/gpt-oss-20b gets more");
  }
  with.model = resolved_alone(with_files(std::move(with.model), terminal), kDefaultContext);
  return with;
}

int execute(const ChatOptions& asked) {
  ChatOptions options = asked;
  const bool one_question = options.prompt.given || isatty(STDIN_FILENO) == 0;
  if (options.output.json && !one_question)
    throw Error(Code::kInvalidRequest,
                "--json: want one question (-p, -f or piped into standard input), found a conversation");
  Terminal terminal(options.output);
  std::string question = one_question ? read_prompt(options.prompt, "\n\n", terminal) : std::string();
  if (!options.prompt.given) question.erase(question.find_last_not_of("\r\n") + 1);  // `echo` and files end in one
  if (one_question && question.empty())
    throw Error(Code::kInvalidRequest, "want a question (-p, -f or piped into standard input), found an empty one");
  std::vector<text::ToolSpec> tools;
  if (!options.tools.empty()) tools = read_tools(options.tools);
  options = resolved_options(options, terminal);
  const ModelOptions& model = options.model;
  const ModelSource source = open_model(model, terminal);
  const int64_t context = context_length(model, source.config, kDefaultContext);
  Runtime runtime(source, model, one_sequence(model, context), terminal);
  Chat chat(options, std::move(tools), source, runtime, terminal, context);
  return one_question ? chat.ask_once(question) : chat.talk();
}

}  // namespace nibble::app
