#include "app/serve_options.h"

#include "app/flat_yaml.h"
#include "app/parse_error.h"
#include "base/error.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <fstream>
#include <iterator>
#include <map>
#include <string_view>
#include <vector>

namespace nibble::app {
namespace {

// Flags of vLLM's that need nothing from us. `values`: those that are accepted, all where empty; a flag without a
// value where "-".
struct Foreign {
  const char* flag;
  const char* values;
  const char* why;
};
constexpr Foreign kWithoutEffect[] = {
    {"--trust-remote-code", "-", "no code is ever loaded with a model"},
    {"--enable-auto-tool-choice", "-", "tool calls are always recognised"},
    {"--tool-call-parser", "openai", "Harmony is the only format"},
    {"--reasoning-parser", "openai_gptoss", "Harmony is the only format"},
    {"--enable-reasoning", "-", "reasoning is always told apart"},
    {"--quantization", "mxfp4", "the experts are MXFP4 as they come"},
    {"--dtype", "auto bfloat16", "activations are 16 bits wide with sums in 32"},
    {"--tensor-parallel-size", "1", "one device serves"},
    {"--pipeline-parallel-size", "1", "one device serves"},
    {"--data-parallel-size", "1", "one device serves"},
    {"--api-server-count", "1", "one process serves"},
    {"--distributed-executor-backend", "", "one process serves"},
    {"--block-size", "", "a page has the size that the backend wants"},
    {"--swap-space", "", "nothing is swapped out"},
    {"--enable-chunked-prefill", "-", "prompts are always computed in chunks"},
    {"--moe-tile", "", "tiles are planned from the shapes"},
    {"--attention-config", "", "there is one attention per device"},
    {"--compilation-config", "", "nothing is compiled at run time"},
    {"--cuda-graph-sizes", "", "nothing is compiled at run time"},
    {"--max-seq-len-to-capture", "", "nothing is compiled at run time"},
    {"--disable-custom-all-reduce", "-", "one device serves"},
    {"--uvicorn-log-level", "", "there is no uvicorn"},
    {"--disable-uvicorn-access-log", "-", "there is no uvicorn"},
    {"--disable-log-stats", "-", "figures are under /metrics"},
    {"--max-log-len", "", "prompts are logged with --log-prompts only"},
    {"--enable-server-load-tracking", "-", "/load is always there"},
    {"--enable-prompt-tokens-details", "-", "cached tokens are always told"},
    {"--enable-force-include-usage", "-", "ask with stream_options"},
    {"--generation-config", "", "requests say how to sample; the default is temperature 1"},
    {"--tokenizer-mode", "auto", "there is one tokenizer"},
    {"--guided-decoding-backend", "", "there is one grammar engine"},
    {"--structured-outputs-config", "", "there is one grammar engine"},
    {"--download-dir", "", "nothing is downloaded"},
    {"--revision", "", "nothing is downloaded"},
    {"--hf-token", "", "nothing is downloaded"},
    {"--seed", "", "each request has its own seed"},
    {"--stream-interval", "1", "every token is sent at once"},
};
constexpr Foreign kRefused[] = {
    {"--speculative-config", "", "speculative decoding is not built yet"},
    {"--enable-expert-parallel", "-", "one device serves"},
    {"--enable-lora", "-", "adapters are not supported"},
    {"--lora-modules", "", "adapters are not supported"},
    {"--tool-server", "", "built-in tools are not supported"},
    {"--chat-template", "", "gpt-oss speaks Harmony"},
    {"--override-generation-config", "", "requests say how to sample"},
    {"--kv-transfer-config", "", "the KV cache stays where it is"},
    {"--cpu-offload-gb", "", "weights stay on one device"},
    {"--tokenizer", "", "the tokenizer comes with the model"},
    {"--root-path", "", "put it into the proxy"},
    {"--uds", "", "want --host and --port"},
};

// vLLM's and FlashInfer's variables, as aliases of flags.
constexpr std::pair<const char*, const char*> kAliases[] = {
    {"VLLM_API_KEY", "--api-key"},
    {"VLLM_MXFP4_MOE_KERNEL", "--moe-kernel"},
    {"VLLM_MXFP4_ACTIVATION", "--moe-activation"},
    {"FLASHINFER_MOE_TILE", "--moe-tile"},
    {"VLLM_ATTENTION_SINKS", "--attention-sinks"},
    {"VLLM_ATTENTION_BACKEND", "--attention-backend"},
};

std::string variable_of(std::string flag) {  // --max-model-len → NIBBLE_MAX_MODEL_LEN
  std::string name = "NIBBLE_";
  for (const char c : flag.substr(2)) name += c == '-' ? '_' : static_cast<char>(std::toupper(c));
  return name;
}

void add_foreign(CLI::App& app, ServeOptions& o) {
  for (const Foreign& foreign : kWithoutEffect) {
    const auto note = [&o, foreign](const std::string& value) {
      const std::string accepted = fmt::format(" {} ", foreign.values);
      if (*foreign.values != '\0' && *foreign.values != '-' && accepted.find(" " + value + " ") == std::string::npos)
        throw CLI::ValidationError(
            foreign.flag, fmt::format("only {} is supported, found {}: {}", foreign.values, value, foreign.why));
      o.notes.push_back(fmt::format("{} makes no difference: {}", foreign.flag, foreign.why));
    };
    CLI::Option* option = *foreign.values == '-' ? app.add_flag_callback(foreign.flag, [note] { note(""); })
                                                 : app.add_option_function<std::string>(foreign.flag, note);
    option->description(fmt::format("No effect: {}", foreign.why))->group("Accepted from vLLM's command lines");
  }
  for (const Foreign& foreign : kRefused) {
    const auto refuse = [foreign](const std::string&) {
      throw CLI::ValidationError(foreign.flag, fmt::format("is not supported: {}", foreign.why));
    };
    CLI::Option* option = *foreign.values == '-' ? app.add_flag_callback(foreign.flag, [refuse] { refuse(""); })
                                                 : app.add_option_function<std::string>(foreign.flag, refuse);
    option->group("");  // not in --help
  }
}

// What a layer below the command line says of one option.
struct Layered {
  std::vector<std::string> values;
  std::string origin;
};

std::optional<Layered> from_environment(const std::string& flag, const Environment& environment) {
  std::vector<std::string> names = {variable_of(flag)};
  for (const auto& [variable, alias] : kAliases) {
    if (alias == flag) names.emplace_back(variable);
  }
  for (const std::string& name : names) {
    if (auto value = environment(name); value && !value->empty()) {
      if (flag == "--attention-sinks") {  // vLLM's variable is a boolean
        if (*value == "1" || *value == "true") value = "on";
        if (*value == "0" || *value == "false") value = "off";
      }
      if (flag == "--moe-activation" && *value == "bf16") value = "auto";  // what auto means where there is a choice
      if (flag == "--attention-backend" && (value->starts_with("FLASH") || value->starts_with("TRITON")))
        value = "auto";  // vLLM's names for its own fast kernels
      return Layered{{*value}, "environment " + name};
    }
  }
  return std::nullopt;
}

// By its name YAML, else TOML.
std::vector<CLI::ConfigItem> config_items(const std::string& path) {
  if (!path.ends_with(".yaml") && !path.ends_with(".yml")) return CLI::ConfigTOML().from_file(path);
  std::ifstream file(path, std::ios::binary);
  if (!file) throw CLI::FileError::Missing(path);
  std::vector<CLI::ConfigItem> items;
  for (YamlSetting& setting : parse_flat_yaml(std::string(std::istreambuf_iterator<char>(file), {})))
    items.push_back({.parents = {}, .name = std::move(setting.name), .inputs = std::move(setting.values)});
  return items;
}

std::map<std::string, Layered> read_config(const CLI::App& app, const std::string& path) {
  std::map<std::string, Layered> layers;
  if (path.empty()) return layers;
  const auto refuse = [&path](const std::string& what) {
    return Error(Code::kInvalidRequest, "[options] --config {}: {}", path, what);
  };
  std::vector<CLI::ConfigItem> items;
  try {
    items = config_items(path);
  } catch (const std::exception& e) {
    throw refuse(e.what());
  }
  for (CLI::ConfigItem& item : items) {
    std::string flag = "--" + item.name;
    std::replace(flag.begin(), flag.end(), '_', '-');
    const bool known = app.get_option_no_throw(flag) != nullptr && flag != "--config" && flag != "--help";
    if (!item.parents.empty() || !known) throw refuse(fmt::format("nibble serve has no setting {}", item.fullname()));
    layers[flag] = {std::move(item.inputs), "file " + path};
  }
  return layers;
}

std::string shown(const CLI::Option& option, const std::string& flag) {
  if (option.count() == 0) return option.get_default_str();
  if (flag == "--api-key") return "(secret)";
  return fmt::format("{}", fmt::join(option.results(), ","));
}

}  // namespace

void add_serve_flags(CLI::App& app, ServeOptions& o) {
  app.option_defaults()->always_capture_default();
  app.add_option("-m,--model,model", o.model.model,
                 "Model directory, or a name such as openai/gpt-oss-20b that is looked for in ./models and in Hugging "
                 "Face's cache; default: the small model that comes with nibble")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--served-model-name", o.served_names, "Names that requests may use; default: the model's");
  app.add_option("--host", o.host, "Address to listen on; 0.0.0.0: all");
  app.add_option("--port", o.port, "Port to listen on; 0: any free one")->check(CLI::Range(0, 65535));
  app.add_option("--max-num-seqs", o.max_num_seqs, "Most sequences computed at the same time")
      ->check(CLI::Range(1, 1024));
  app.add_option("--max-waiting", o.max_waiting, "Most requests in the queue; more get a 429")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  app.add_option("--kv-tokens", o.kv_tokens, "Tokens that the KV cache holds, of all sequences; 0: one context's")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30));
  app.add_flag("--enable-prefix-caching,!--no-enable-prefix-caching", o.prefix_cache,
               "Do not compute again what a prompt shares with earlier ones (default)");
  app.add_flag_function(
      "--async-scheduling,!--no-async-scheduling", [&o](int64_t count) { o.async_scheduling = count > 0; },
      "Begin a step before the last one's tokens are read; default: on cuda");
  app.add_option("--api-key", o.api_keys, "Key that clients must give; repeatable")->allow_extra_args(false);
  app.add_option("--ssl-certfile", o.certificate_file, "Certificate chain (PEM): serve HTTPS");
  app.add_option("--ssl-keyfile", o.key_file, "Its private key (PEM)");
  app.add_option("--allowed-origin,--allowed-origins", o.allowed_origin,
                 "Origin of web pages that may call; * any, empty none");
  app.add_option("--http-threads", o.http_threads, "Threads for HTTP")->check(CLI::Range(1, 64));
  app.add_option("--max-connections", o.max_connections, "Most open connections")->check(CLI::Range(1, 1 << 20));
  app.add_option("--max-body-bytes", o.max_body_bytes, "Largest request body")
      ->check(CLI::Range(int64_t{1} << 10, int64_t{1} << 30));
  app.add_option("--max-header-bytes,--h11-max-incomplete-event-size", o.max_header_bytes, "Largest request header")
      ->check(CLI::Range(int64_t{1} << 10, int64_t{1} << 20));
  app.add_option("--request-timeout", o.request_timeout, "Seconds for a request's body to arrive")
      ->check(CLI::Range(1, 3600));
  app.add_option("--shutdown-timeout", o.shutdown_timeout, "Seconds that running requests get after SIGTERM")
      ->check(CLI::Range(0, 86400));
  app.add_flag("--log-requests,!--disable-log-requests,!--no-enable-log-requests", o.log_requests,
               "One line per request on standard error (default)");
  app.add_flag("--log-prompts", o.log_prompts, "Log the text of requests too");
  app.add_option("--config", o.config_file, "TOML or YAML file (by its name) with settings named like the flags");
  app.add_flag("--print-config", o.print_config, "Show the settings and where each came from, and leave");
  add_foreign(app, o);
  app.footer(
      "Every flag can be set by a variable: NIBBLE_PORT for --port. The command line comes before the environment,\n"
      "and the environment before --config. docs/serving.md lists vLLM's variables that are understood.\n"
      "Example: nibble serve openai/gpt-oss-20b --host 0.0.0.0 --api-key secret");
}

void resolve_serve_settings(CLI::App& app, ServeOptions& o, const Environment& environment) {
  const auto home = environment("HOME"), huggingface = environment("HF_HOME"), hub = environment("HF_HUB_CACHE");
  o.huggingface_cache = hub ? *hub : (huggingface ? *huggingface : home.value_or("") + "/.cache/huggingface") + "/hub";
  if (const auto path = environment("NIBBLE_CONFIG"); path && o.config_file.empty()) o.config_file = *path;
  std::map<std::string, Layered> file = read_config(app, o.config_file);
  for (CLI::Option* option : app.get_options()) {
    if (option->get_lnames().empty()) continue;
    const std::string flag = "--" + option->get_lnames()[0];
    if (flag == "--help" || flag == "--config" || flag == "--print-config") continue;
    std::string origin = "command line";
    if (option->count() == 0) {
      std::optional<Layered> layer = from_environment(flag, environment);
      if (!layer && file.contains(flag)) layer = file[flag];
      origin = layer ? layer->origin : "default";
      try {
        if (layer) {
          option->add_result(layer->values);
          option->run_callback();
        }
      } catch (const CLI::ParseError& e) {
        throw Error(Code::kInvalidRequest, "[options] {}: {}", origin, e.what());
      }
    }
    if (option->count() > 0 || !option->get_default_str().empty())
      o.settings.push_back({flag, shown(*option, flag), std::move(origin)});
  }
}

}  // namespace nibble::app
