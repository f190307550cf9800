#include "app/options/help.h"

#include "base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>

namespace nibble::app {
namespace {

constexpr std::string_view kExamples = R"(  nibble run nibble-tiny "Once upon a time"
  nibble pull openai/gpt-oss-20b
  nibble chat gpt-oss-20b --reasoning low
  nibble serve openai/gpt-oss-20b --port 8000
  nibble inspect gpt-oss-120b --load-format dummy)";

// In the order of CommandId.
constexpr CommandText kCommands[] = {
    {"run", "Continue a text", R"(  nibble run nibble-tiny "Once upon a time" -n 100 --temperature 0.7)"},
    {"chat", "Talk to the model; piped text is one question",
     R"(  nibble chat gpt-oss-20b --reasoning low
  nibble chat gpt-oss-20b "What is the capital of France?"
  git diff | nibble chat gpt-oss-20b --instructions "Review this")"},
    {"serve", "OpenAI's API and a chat page over HTTP",
     R"(  nibble serve openai/gpt-oss-20b --host 0.0.0.0 --api-key secret

A variable sets a flag, too: NIBBLE_PORT is --port. The command line comes first,
then the environment, then --config. vLLM's flags are understood: docs/serving.md.)"},
    {"inspect", "What a model holds and needs: tensors, bytes, memory per context",
     R"(  nibble inspect -m ~/gpt-oss-20b --context 8192
  nibble inspect -m gpt-oss-120b --load-format dummy --plan --backend cuda -b 1,8,32 -p 512,8192 -d 0,32768
  nibble inspect -m gpt-oss-120b --load-format dummy --plan --backend cuda --card gb10 --mxfp4-layers all)"},
    {"tokenize", "Text to token ids and back",
     R"(  nibble tokenize -p "Hello, world"
  nibble tokenize -m models/nibble-tiny --count -f README.md
  nibble tokenize --decode -p "13225 11 2375")"},
    {"quantize", "Quantise tensors to an MX format",
     R"(  nibble quantize ~/gpt-oss-20b-bf16 -o ~/gpt-oss-20b
  nibble quantize in.safetensors -o out.safetensors --format mxfp8_e4m3 --tensors "*.weight")"},
    {"synth", "Write a checkpoint of true shapes with random weights",
     R"(  nibble synth --preset gpt-oss-20b --layers 2 -o ~/gpt-oss-20b-2
  nibble synth --preset tiny -o tiny.gguf)"},
    {"convert", "Write a model as llama.cpp's GGUF file",
     R"(  nibble convert models/nibble-tiny -o tiny.gguf
  nibble convert ~/gpt-oss-120b -o gpt-oss-120b.gguf --dense bf16 --part-bytes 50000000000)"},
    {"perplexity", "How well the model predicts a text",
     R"(  nibble perplexity models/nibble-tiny -f models/nibble-tiny/heldout.txt --kv-cache-dtype fp8)"},
    {"compare", "Run one step on two backends and name the first difference",
     R"(  nibble compare models/nibble-tiny --a reference --b cpu)"},
    {"pull", "Get a model from Hugging Face's Hub into its cache",
     R"(  nibble pull openai/gpt-oss-20b
  nibble pull ggml-org/gpt-oss-20b-GGUF
  nibble pull openai/gpt-oss-120b --include "original/*"

Files that are there are not fetched again, and an interrupted download resumes. HF_HOME is where models are kept,
HF_TOKEN the access token, HF_ENDPOINT a mirror; https_proxy and HF_HUB_OFFLINE work, too: docs/models.md.)"},
    {"list", "The models on this machine: where, format, size, revision", "  nibble list --json"},
    {"ps", "Your servers on this machine: model, load, tokens per second", "  nibble ps\n  watch nibble ps"},
    {"rm", "Remove a model from Hugging Face's cache",
     R"(  nibble rm openai/gpt-oss-20b
  nibble rm ggml-org/gpt-oss-20b-GGUF --revision main -y)"},
    {"predict", "Expected tokens per second on a card that need not be here",
     R"(  nibble predict --card gb10
  nibble predict gpt-oss-20b --card 4090 -b 1,8 -p 2048 -d 4096
  nibble predict --card a100 --kv-cache-dtype fp8 --json)"},
    {"bench", "Tokens per second, and their share of the machine's limit",
     R"(  nibble bench -m gpt-oss-20b --load-format dummy -p 512,2048 -n 128 -d 0,4096 -b 1,8
  nibble bench -m gpt-oss-120b --load-format dummy --backend cuda -p 0 -n 64 -b 1,2,4,8 --mxfp4-layers all --json
  nibble bench -m ~/gpt-oss-20b -p 0 -n 64 -d 32768 --profile
  nibble bench --compare before.json after.json)"},
    {"load", "Requests to a server over HTTP: throughput and latencies, by concurrency",
     R"(  nibble load --base-url http://127.0.0.1:8000 --isl 1024 --osl 1024 -c 1,2,4,8,16,32,64
  nibble load --base-url http://127.0.0.1:8000 --endpoint chat --request-rate 4 --num-prompts 500
  nibble load --base-url http://gpu:8000 -c 64 -r 3 --device "1 x H100" --json --report load.md > load.json

The protocol is InferenceX's: random prompts, lengths from 0.8 of the most up to it, 10 requests per concurrent one
after 2 for warming up, end tokens ignored. Every failure is counted by its kind: docs/verify.md. Conversations of
many turns, tools and JSON schemas: --help expert.)"},
    {"verify", "Check kernels, results, behaviour under stress, and speed",
     R"(  nibble verify
  nibble verify -m gpt-oss-20b --backend cuda --level 1,1.5,2 --report verify.md
  nibble verify --base-url http://127.0.0.1:8000 --level 3

Ends with 0 when all checks hold, else with 1. What each level checks: docs/verify.md.)"},
    {"features", "Every feature: its flag, its values, where they run",
     "  nibble features\n  nibble features --markdown >feature-matrix.md"},
    {"man", "Print the manual page", "  nibble man | man -l -"},
    {"completion", "Print a script that completes nibble's flags in a shell",
     R"(  nibble completion bash >~/.local/share/bash-completion/completions/nibble
  nibble completion zsh >~/.zfunc/_nibble
  nibble completion fish >~/.config/fish/completions/nibble.fish)"}};
static_assert(std::size(kCommands) == std::variant_size_v<Command>);

constexpr std::string_view kExitCodes = R"(exit codes: 0 done, 1 failed, 2 bad command line or request, 3 not
supported here, 4 corrupt file, 5 file or system error, 6 out of memory, 7 device
error, 8 compare found a difference, 130 interrupted)";

constexpr std::string_view kAllTopics = "sampling, performance, expert or all";
constexpr size_t kWidth = 80, kIndent = 28;

// "  -n, --max-tokens INT"; of several long names, the first and any --no-….
std::string left_side(const FlagFacts& flag) {
  std::string left = "  ";
  bool has_long = false;
  for (const std::string& name : flag.names) {
    if (has_long && !name.starts_with("--no-")) continue;
    left += (left.size() > 2 ? ", " : "") + name;
    if (has_long) break;
    has_long = name.starts_with("--");
  }
  return flag.value.empty() || flag.names[0][0] != '-' ? left : left + " " + flag.value;
}

// The words in lines of kWidth, behind what stands on the left.
std::string in_columns(const std::string& left, std::string_view text) {
  std::string out = left;
  size_t column = left.size();
  if (column + 2 > kIndent) out += "\n", column = 0;
  out.append(kIndent - column, ' ');
  column = kIndent;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    if (column > kIndent && column + 1 + word.size() > kWidth) {
      out += "\n" + std::string(kIndent, ' ');
      column = kIndent;
    }
    if (column > kIndent) out += ' ', ++column;
    out += word;
    column += word.size();
  }
  return out + "\n";
}

std::string flag_text(const FlagFacts& flag) {
  return in_columns(left_side(flag), flag.usual.empty() ? flag.help : fmt::format("{} [{}]", flag.help, flag.usual));
}

std::string group_text(const CommandFacts& command, HelpGroup group) {
  std::string out;
  for (const FlagFacts& flag : command.flags) {
    if (flag.group == group) out += flag_text(flag);
  }
  return out;
}

std::string command_help(CommandId id, const HelpTopic& topic) {
  const CommandFacts command = facts_of(id);
  std::string usage = fmt::format("nibble {} [flags]", command.name);
  for (const FlagFacts& flag : command.flags) {
    if (flag.names[0][0] != '-') usage += " [" + flag.names[0] + "]";
  }
  std::string out = fmt::format("{}\n\n{}\n", command.about, usage);
  bool has_more = false;
  for (const HelpGroup group :
       {HelpGroup::kCommon, HelpGroup::kSampling, HelpGroup::kPerformance, HelpGroup::kExpert}) {
    const std::string flags = group_text(command, group);
    if (flags.empty()) continue;
    if (!topic.all && topic.group != group) {
      has_more = true;
      continue;
    }
    out += fmt::format("\n{}:\n{}", group == HelpGroup::kCommon ? "flags" : name_of(group), flags);
  }
  if (!topic.all && topic.group != HelpGroup::kCommon) return out;
  out += fmt::format("\nexamples:\n{}\n", text_of(id).examples);
  if (has_more) out += fmt::format("\nMore flags: nibble {} --help {}\n", command.name, kAllTopics);
  return out;
}

}  // namespace

std::span<const CommandText> command_texts() { return kCommands; }
const CommandText& text_of(CommandId command) { return kCommands[static_cast<size_t>(command)]; }

HelpTopic take_help_topic(std::vector<std::string>& arguments) {
  HelpTopic topic;
  const auto take = [&topic](std::string_view word) {
    const std::optional<HelpGroup> group = group_named(word);
    topic.all = word == "all";
    if (group) topic.group = *group;
    return group || topic.all;
  };
  for (auto it = arguments.begin(); it != arguments.end() && *it != "--"; ++it) {
    if (it->starts_with("--help=")) {
      if (!take(std::string_view(*it).substr(7)))
        throw Error(Code::kInvalidRequest, "--help: want {}, or nothing behind it, found {}", kAllTopics,
                    it->substr(7));
      *it = "--help";
    } else if ((*it == "--help" || *it == "-h") && it + 1 != arguments.end() && take(*(it + 1))) {
      arguments.erase(it + 1);
      return topic;
    }
  }
  return topic;
}

std::string greeting_text() {
  return R"(Nibble: the fastest gpt-oss on the machine you own.

  nibble chat                           talk to the small model that comes along
  nibble pull openai/gpt-oss-20b        get a model that knows something (14 GB)
  nibble chat gpt-oss-20b               talk to it
  nibble serve gpt-oss-20b              OpenAI's API, and a chat page in the browser
  nibble bench gpt-oss-20b              how fast it is, and what this machine allows

nibble --help lists every command, nibble COMMAND --help its flags.
)";
}

std::string help_text(std::optional<CommandId> command, const HelpTopic& topic) {
  if (command) return command_help(*command, topic);
  std::string out = "Nibble: the fastest gpt-oss on the machine you own.\n\nnibble COMMAND [flags]\n\ncommands:\n";
  for (const CommandText& each : kCommands) out += fmt::format("  {:<12}{}\n", each.name, each.about);
  return out +
         fmt::format("\nnibble COMMAND --help shows its flags, nibble --version the version.\n\nexamples:\n{}\n\n{}\n",
                     kExamples, kExitCodes);
}

namespace {

// Text as roff prints it: a \ or - for itself, and no line that looks like a request.
std::string escaped(std::string_view text) {
  std::string out;
  bool begins = true;
  for (const char c : text) {
    if (begins && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
    begins = c == '\n';
  }
  return out;
}

std::string flag_entry(const FlagFacts& flag) {
  std::string names;
  for (const std::string& name : flag.names) names += (names.empty() ? "" : ", ") + name;
  const bool place = flag.names[0][0] != '-';
  std::string out = fmt::format(".TP\n\\fB{}\\fR", escaped(names));
  if (!flag.value.empty() && !place) out += fmt::format(" \\fI{}\\fR", escaped(flag.value));
  out += fmt::format("\n{}", escaped(flag.help));
  if (!flag.usual.empty()) out += fmt::format(" (default: {})", escaped(flag.usual));
  return out + "\n";
}

std::string example_block(std::string_view text) { return fmt::format(".nf\n{}\n.fi\n", escaped(text)); }

}  // namespace

std::string man_page_text() {
  std::string out = fmt::format(
      ".TH NIBBLE 1 \"\" \"nibble {}\" \"User commands\"\n.SH NAME\nnibble \\- run and serve gpt\\-oss\n"
      ".SH SYNOPSIS\n.B nibble\n.I command\n[flags]\n.SH DESCRIPTION\nThe fastest gpt\\-oss on the machine you own: "
      "engine, chat and a server of OpenAI's API, in one program.\n.SH EXAMPLES\n{}",
      NIBBLE_VERSION, example_block(kExamples));
  for (size_t at = 0; at < std::size(kCommands); ++at) {
    const CommandFacts command = facts_of(static_cast<CommandId>(at));
    out += fmt::format(".SH NIBBLE {}\n{}.\n", escaped(command.name), escaped(command.about));
    for (const FlagFacts& flag : command.flags) out += flag_entry(flag);
    out += ".PP\n" + example_block(kCommands[at].examples);
  }
  return out + fmt::format(".SH EXIT STATUS\n{}\n", escaped(kExitCodes));
}

}  // namespace nibble::app
