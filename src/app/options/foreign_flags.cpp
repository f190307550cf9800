#include "app/options/foreign_flags.h"

#include "base/error.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace nibble::app {
namespace {

// The same flag under another name, if the command has that one.
constexpr std::pair<std::string_view, std::string_view> kSame[] = {
    {"-c", "--max-model-len"},
    {"--ctx-size", "--max-model-len"},
    {"--num-ctx", "--max-model-len"},
    {"--n-predict", "--max-tokens"},
    {"--predict", "--max-tokens"},
    {"--num-predict", "--max-tokens"},
    {"--temp", "--temperature"},
    {"--repeat-penalty", "--repetition-penalty"},
    {"-s", "--seed"},
    {"-np", "--max-num-seqs"},
    {"--parallel", "--max-num-seqs"},
    {"-a", "--served-model-name"},
    {"--alias", "--served-model-name"},
    {"-sys", "--instructions"},
    {"--system-prompt", "--instructions"},
    {"--system", "--instructions"},
    {"--reasoning-effort", "--reasoning"},
    {"--think", "--reasoning"},
    {"--chat-template-kwargs", "--default-chat-template-kwargs"},
    {"--ubatch-size", "--max-num-batched-tokens"},
    {"-ub", "--max-num-batched-tokens"},
    {"--ssl-cert-file", "--ssl-certfile"},
    {"--ssl-key-file", "--ssl-keyfile"}};

// What to use instead.
constexpr std::pair<std::string_view, std::string_view> kInstead[] = {
    {"-ngl", "a model lies on the card as a whole or in memory: --backend cuda or cpu; auto chooses"},
    {"--gpu-layers", "a model lies on the card as a whole or in memory: --backend cuda or cpu; auto chooses"},
    {"--n-gpu-layers", "a model lies on the card as a whole or in memory: --backend cuda or cpu; auto chooses"},
    {"--n-cpu-moe", "a model lies on the card as a whole or in memory: --backend cuda or cpu; auto chooses"},
    {"--cpu-moe", "a model lies on the card as a whole or in memory: --backend cuda or cpu; auto chooses"},
    {"-fa", "such kernels run by themselves; leave it out"},
    {"--flash-attn", "such kernels run by themselves; leave it out"},
    {"--jinja", "gpt-oss's format, Harmony, is built in; leave it out"},
    {"--chat-template-kwargs", "gpt-oss's format, Harmony, is built in: --reasoning"},
    {"-ctk", "keys and values have one type: --kv-cache-dtype fp8 or int8"},
    {"-ctv", "keys and values have one type: --kv-cache-dtype fp8 or int8"},
    {"--cache-type-k", "keys and values have one type: --kv-cache-dtype fp8 or int8"},
    {"--cache-type-v", "keys and values have one type: --kv-cache-dtype fp8 or int8"},
    {"-cnv", "nibble chat is for conversations"},
    {"--conversation", "nibble chat is for conversations"},
    {"-i", "nibble chat is for conversations"},
    {"--interactive", "nibble chat is for conversations"},
    {"--mlock", "--no-mmap copies the weights to memory of their own"},
    {"-b", "prompt tokens of one step are --max-num-batched-tokens"},
    {"--batch-size", "prompt tokens of one step are --max-num-batched-tokens"},
    {"-cb", "requests are computed together anyway; leave it out"},
    {"--cont-batching", "requests are computed together anyway; leave it out"},
    {"--verbose", "the summary at the end has the times; -q leaves it out"},
    {"--hidethinking", "the reasoning is one line already; leave it out"},
    {"--keepalive", "a model stays for as long as its server; leave it out"},
    {"--models-dir", "HF_HOME or HF_HUB_CACHE names the folder of models"}};

// Other programs' commands.
constexpr std::pair<std::string_view, std::string_view> kCommands[] = {
    {"ls", "list"},
    {"show", "inspect"},
    {"download", "pull"},
    {"remove", "rm"},
    {"delete", "rm"},
    {"start", "serve"},
    {"server", "serve"},
    {"generate", "run"},
    {"complete", "run"},
    {"ppl", "perplexity"},
    {"benchmark", "bench"},
    {"ask", "chat"},
    {"stop", "serve, which Ctrl-C or SIGTERM stops"}};

template <size_t kCount>
std::string_view found_in(const std::pair<std::string_view, std::string_view> (&table)[kCount], std::string_view word) {
  const auto* const it = std::ranges::find(table, word, &std::pair<std::string_view, std::string_view>::first);
  return it == std::end(table) ? std::string_view() : it->second;
}

}  // namespace

void respell_foreign_flags(const CommandLine& line, std::vector<std::string>& arguments) {
  if (arguments.empty()) return;
  if (arguments[0] == "version" || arguments[0] == "-V" || arguments[0] == "-v") arguments[0] = "--version";
  if (arguments[0] == "help") {  // help COMMAND
    arguments.erase(arguments.begin());
    if (arguments.empty() || line.find(arguments[0])) arguments.emplace_back("--help");
  }
  const std::string name = arguments[0];
  const std::optional<Flags> command = line.find(name);
  if (!command) {
    if (const std::string_view ours = found_in(kCommands, name); !ours.empty())
      throw Error(Code::kInvalidRequest, "there is no command {}; want nibble {}", name, ours);
    return;
  }
  for (size_t i = 1; i < arguments.size() && arguments[i] != "--"; ++i) {
    const size_t end = std::min(arguments[i].find('='), arguments[i].size());
    const std::string flag = arguments[i].substr(0, end);
    if (!flag.starts_with("-")) continue;
    if (const auto own = command->find(flag)) {
      if (!own->is_switch() && end == arguments[i].size()) ++i;  // its value, whatever that looks like
      continue;
    }
    if (flag == "-hf" || flag == "-hfr" || flag == "--hf-repo") {  // ORG/NAME:QUANTISATION
      std::string model = end < arguments[i].size()  ? arguments[i].substr(end + 1)
                          : i + 1 < arguments.size() ? arguments[i + 1]
                                                     : "";
      const bool is_next = end == arguments[i].size() && i + 1 < arguments.size();
      if (command->find("--pull")) arguments.insert(arguments.begin() + static_cast<std::ptrdiff_t>(i), "--pull"), ++i;
      arguments[i] = "--model=" + model.substr(0, model.find(':'));
      if (is_next) arguments.erase(arguments.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      continue;
    }
    if (const std::string_view same = found_in(kSame, flag); !same.empty() && command->find(std::string(same))) {
      arguments[i].replace(0, end, same);
      const bool endless = same == "--max-tokens" && i + 1 < arguments.size() && arguments[i + 1] == "-1";
      if (endless) arguments[i + 1] = "0";  // until the model stops
      const bool whole = same == "--max-model-len" && i + 1 < arguments.size() && arguments[i + 1] == "0";
      if (whole) arguments[i + 1] = "auto";  // as much of the model's as fits
      continue;
    }
    if (const std::string_view instead = found_in(kInstead, flag); !instead.empty())
      throw Error(Code::kInvalidRequest, "nibble {} has no {}: {} (nibble {} --help)", name, flag, instead, name);
  }
}

}  // namespace nibble::app
