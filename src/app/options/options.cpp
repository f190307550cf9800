#include "app/options/options.h"

#include "app/options/build_facts.h"
#include "app/options/command_line.h"
#include "app/options/foreign.h"
#include "app/options/help.h"
#include "app/options/settings.h"
#include "backend/cpu/isa.h"
#include "base/error.h"
#include "base/random.h"
#include "base/read_json.h"
#include "base/time_text.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

#include <unistd.h>

namespace nibble::app {
namespace {

std::optional<std::string> environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

// What the variable names, if it is set.
template <class T>
std::optional<T> named_by(const char* variable, T (*read)(std::string_view)) {
  const auto name = environment(variable);
  if (!name || name->empty()) return std::nullopt;
  try {
    return read(*name);
  } catch (const Error& e) {
    throw Error(e.code(), "{}: {}", variable, e.what());
  }
}

// All variables; entries that are not NAME=VALUE are left out.
Variables all_variables() {
  Variables all;
  for (char** at = environ; at != nullptr && *at != nullptr; ++at) {
    const std::string_view pair = *at;
    if (const size_t mark = pair.find('='); mark != std::string_view::npos)
      all.emplace(pair.substr(0, mark), pair.substr(mark + 1));
  }
  return all;
}

// The variables that may change what runs or how fast, for results to record. No secrets.
Variables telling_variables() {
  Variables telling;
  for (const auto& [name, value] : all_variables()) {
    const auto begins = [&name](std::string_view with) { return name.starts_with(with); };
    const auto holds = [&name](std::string_view part) { return name.find(part) != std::string::npos; };
    if (holds("KEY") || holds("TOKEN") || holds("SECRET") || holds("PASSWORD")) continue;
    for (const char* prefix :
         {"NIBBLE_", "CUDA_", "NVIDIA_", "NCCL_", "OMP_", "GOMP_", "KMP_", "MALLOC_", "LD_PRELOAD", "VLLM_"})
      if (begins(prefix)) telling.emplace(name, value);
  }
  return telling;
}

// As it was typed, without secrets.
std::string typed_command(int argc, const char* const* argv) {
  std::string command = "nibble";
  bool secret = false;
  for (const std::string_view word : std::span(argv, static_cast<size_t>(argc)).subspan(1)) {
    const bool holds_key = word.starts_with("--api-key=");
    command += secret || holds_key ? (secret ? " (secret)" : " --api-key=(secret)") : fmt::format(" {}", word);
    secret = word == "--api-key";
  }
  return command;
}

// Where input is kept; empty if the environment names no place.
std::filesystem::path history_path() {
  const std::filesystem::path state = environment("XDG_STATE_HOME").value_or("");
  if (state.is_absolute()) return state / "nibble/history";  // others are ignored: XDG Base Directory Specification
  const std::filesystem::path home = environment("HOME").value_or("");
  return home.is_absolute() ? home / ".local/state/nibble/history" : std::filesystem::path();
}

// Where servers record themselves: per login session if there are sessions, otherwise where state is kept.
std::filesystem::path server_records_path() {
  const std::filesystem::path runtime = environment("XDG_RUNTIME_DIR").value_or("");
  if (runtime.is_absolute()) return runtime / "nibble";
  const std::filesystem::path history = history_path();
  return history.empty() ? history : history.parent_path() / "servers";
}

template <size_t... kAt>
Command made_at(size_t at, std::index_sequence<kAt...> /*all*/) {
  Command command;
  ((at == kAt ? static_cast<void>(command.emplace<kAt>()) : static_cast<void>(0)), ...);
  return command;
}

// What the environment says where no option does.
template <class Options>
void add_surroundings(Options& o) {
  const auto set_hub = [](hub::Settings& hub) { hub = hub_settings(all_variables()); };
  if constexpr (requires { o.hub; }) set_hub(o.hub);
  if constexpr (requires { o.model.hub; }) set_hub(o.model.hub);
  if constexpr (requires { o.profiles; }) o.profiles = history_path().parent_path() / "launch";
  if constexpr (requires { o.records; }) o.records = server_records_path();
  if constexpr (requires { o.history; }) o.history = history_path(), o.date = time_text("%Y-%m-%d", std::time(nullptr));
  if constexpr (requires { o.api_key; }) o.api_key = environment("OPENAI_API_KEY").value_or("");
  if constexpr (requires { o.server_key; }) o.server_key = environment("NIBBLE_API_KEY").value_or("");
  if constexpr (requires { o.environment; }) o.environment = telling_variables();
  if constexpr (requires { o.output; }) {
    o.output.dumb_terminal = environment("TERM") == "dumb";
    if (!environment("NO_COLOR").value_or("").empty()) o.output.color = ColorMode::kNever;  // https://no-color.org
  }
  if constexpr (requires { o.generate; }) {
    std::array<uint8_t, 4> seed{};
    fill_unguessable(seed);
    o.generate.sampling.seed = std::bit_cast<uint32_t>(seed);
  }
}

// Chooses the levels that the flags of single levels imply.
void settle_levels(VerifyOptions& o, bool given) {
  const bool regression = !o.baseline.empty() || !o.save_baseline.empty();
  const bool features = !o.presets.empty();
  if (given && regression && std::ranges::find(o.levels, VerifyLevel::kRegression) == o.levels.end())
    throw Error(Code::kInvalidRequest, "nibble verify: --level: want 5 with {}, found none (nibble verify --help)",
                o.baseline.empty() ? "--save-baseline" : "--baseline");
  if (given || (!regression && !features)) return;
  o.levels.clear();
  if (regression) o.levels.push_back(VerifyLevel::kRegression);
  if (features) o.levels.push_back(VerifyLevel::kFeatures);
}

std::variant<Command, GreetOptions, Exit> parse_words(std::vector<std::string> words, const std::string& typed) {
  const HelpTopic topic = take_help_topic(words);
  respell_foreign_words(words);
  const CommandWords found = find_command(words);
  if (found.wants_version)
    return Exit{kExitOk,
                fmt::format("nibble {} (commit {}), licence Apache-2.0\n", NIBBLE_VERSION, build_facts().commit)};
  if (found.wants_help) return Exit{kExitOk, help_text(found.command, topic)};
  Command command = made(*found.command);
  std::visit([](auto& options) { add_surroundings(options); }, command);
  const Parts parts = parts_of(command);
  Arguments arguments(*found.command, parts);
  if (!arguments.read(std::span(words).subspan(found.first), found.unknown))
    return Exit{kExitOk, help_text(found.command, topic)};
  if (arguments.find("--print-config") != nullptr)  // it runs a model
    resolve_settings(arguments, parts, all_variables());
  else if (found.command == CommandId::kLoad)
    resolve_settings(arguments, parts, {});  // serve's variables are not load's own
  if (auto* const o = std::get_if<BenchOptions>(&command); o != nullptr) {
    if (o->output.json) o->format = BenchFormat::kJson;
    o->command = typed;
  } else if (auto* const l = std::get_if<LoadOptions>(&command); l != nullptr) {
    l->vocab_given = arguments.given("--vocab-size");
    l->command = typed;
  } else if (auto* const v = std::get_if<VerifyOptions>(&command); v != nullptr) {
    settle_levels(*v, arguments.given("--level"));
    v->command = typed;
  } else if (const auto* const r = std::get_if<RunOptions>(&command);
             r != nullptr && !r->prompt.given && isatty(STDIN_FILENO) == 1 && r->model.group.count == 1) {
    words[found.first - 1] = text_of(CommandId::kChat).name;  // whoever sits there wants to talk
    return parse_words(std::move(words), typed);
  }
  return command;
}

constexpr const char* kBuiltIn = "builtin";
// The built-in tools and schema are short and have no free text, so that a small model's answers end.
constexpr std::string_view kBuiltInTools =
#include "app/options/builtin_tools.txt"
    ;
constexpr std::string_view kBuiltInSchema =
#include "app/options/builtin_schema.txt"
    ;

std::string document_named(const char* flag, const std::string& name, std::string_view built_in) {
  const nlohmann::ordered_json json = name == kBuiltIn ? read_ordered_json(built_in) : read_json_file(flag, name);
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

constexpr size_t kMaxTextBytes = size_t{1} << 30;

std::string read_stream(std::FILE* stream, const std::string& name) {
  std::string text;
  char buffer[1 << 16];
  for (size_t n = 0; (n = std::fread(buffer, 1, sizeof buffer, stream)) > 0;) {
    text.append(buffer, n);
    if (text.size() > kMaxTextBytes)
      throw Error(Code::kInvalidRequest, "{}: want at most {} bytes, found more", name, kMaxTextBytes);
  }
  if (std::ferror(stream) != 0) throw Error(Code::kIo, "{}: cannot read: {}", name, std::strerror(errno));
  return text;
}

}  // namespace

Command made(CommandId id) {
  return made_at(static_cast<size_t>(id), std::make_index_sequence<std::variant_size_v<Command>>());
}

std::variant<Command, GreetOptions, Exit> parse_command_line(int argc, const char* const* argv) {
  std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  if (words.empty()) {
    GreetOptions greet;
    add_surroundings(greet);
    return greet;
  }
  return parse_words(std::move(words), typed_command(argc, argv));
}

backend::CpuIsa cpu_mask() { return named_by("NIBBLE_CPU_MASK", backend::isa_named).value_or(backend::CpuIsa::kAuto); }

std::optional<backend::cuda::CardArch> card_mask() { return named_by("NIBBLE_CUDA_ARCH", backend::cuda::card_arch); }

std::string read_text(const TextInput& input) {
  if (input.file.empty() && input.given) return input.text;
  if (input.file.empty() || input.file == "-") return read_stream(stdin, "standard input");
  return read_text(input.file);
}

std::string read_text(const std::filesystem::path& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (file == nullptr) throw Error(Code::kIo, "{}: cannot open: {}", path.string(), std::strerror(errno));
  return read_stream(file.get(), path.string());
}

nlohmann::ordered_json read_json_file(std::string_view flag, const std::filesystem::path& path) {
  const std::string text = read_text(path);
  nlohmann::ordered_json json = read_ordered_json(text);
  if (json.is_discarded()) refuse_value(fmt::format("{} {}", flag, path.string()), "want JSON; " + why_no_json(text));
  return json;
}

std::string tools_named(const std::string& name) { return document_named("--tools", name, kBuiltInTools); }
std::string json_schema_named(const std::string& name) { return document_named("--json-schema", name, kBuiltInSchema); }

}  // namespace nibble::app
