#include "app/serve_options.h"

#include "app/flat_config.h"
#include "app/model_options.h"
#include "app/option_parts.h"
#include "app/text_input.h"
#include "app/vllm_flags.h"
#include "base/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <map>
#include <string_view>
#include <vector>

namespace nibble::app {
namespace {

std::string variable_of(std::string flag) {  // --max-model-len → NIBBLE_MAX_MODEL_LEN
  std::string name = "NIBBLE_";
  for (const char c : flag.substr(2)) name += c == '-' ? '_' : static_cast<char>(std::toupper(c));
  return name;
}

// What a layer below the command line says of one option.
struct Layered {
  std::vector<std::string> values;
  std::string origin;
};

std::optional<Layered> from_environment(const std::string& flag, const Environment& environment) {
  std::vector<std::string> names = {variable_of(flag)};
  for (const auto& [variable, alias] : vllm_variables()) {
    if (alias == flag) names.emplace_back(variable);
  }
  for (const std::string& name : names) {
    if (const auto value = environment(name); value && !value->empty()) return Layered{{*value}, "environment " + name};
  }
  return std::nullopt;
}

// By its name YAML, else TOML.
std::vector<FlatSetting> config_settings(const std::string& path) {
  const std::string text = read_text(std::filesystem::path(path));
  return path.ends_with(".yaml") || path.ends_with(".yml") ? parse_flat_yaml(text) : parse_flat_toml(text);
}

std::map<std::string, Layered> read_config(const Flags& flags, const std::string& path) {
  std::map<std::string, Layered> layers;
  if (path.empty()) return layers;
  const auto refuse = [&path](const std::string& what) {
    return Error(Code::kInvalidRequest, "--config {}: {}", path, what);
  };
  std::vector<FlatSetting> settings;
  try {
    settings = config_settings(path);
  } catch (const Error&) {
    throw;  // what cannot be read
  } catch (const std::exception& e) {
    throw refuse(e.what());
  }
  for (FlatSetting& setting : settings) {
    std::string flag = "--" + setting.name;
    std::replace(flag.begin(), flag.end(), '_', '-');
    const std::optional<Flag> option = flags.find(flag);
    const bool known = option && flag != "--config" && flag != "--help" && flag != "--print-config";
    if (!known) throw refuse("nibble serve has no setting " + setting.name);
    if (option->is_switch() && setting.values.size() == 1)  // --no-…: true is false
      setting.values = {option->switched(flag, setting.values[0])};
    const bool is_new = layers.emplace(option->name(), Layered{std::move(setting.values), "file " + path}).second;
    if (!is_new) throw refuse(fmt::format("{} stands there twice", option->name()));
  }
  return layers;
}

std::string shown(const Flag& option) {
  if (!option.given()) return option.usual();
  const std::string flag = option.name();
  if (flag == "--api-key" || flag == "--hf-token") return "(secret)";
  const std::string value = fmt::format("{}", fmt::join(option.values(), ","));
  return flag == "--max-model-len" && value == fmt::format("{}", kContextThatFits) ? "auto" : value;
}

}  // namespace

void add_serve_flags(Flags flags, ServeOptions& o) {
  flags.show_defaults(true);
  add_model_name(flags, o.model.model, "; default: the small one that comes along");
  flags.value("--served-model-name", o.served_names, "Names that requests may use; default: the model's");
  flags.value("--host", o.host, "Address to listen on; 0.0.0.0: all").not_empty();
  flags.value("--port", o.port, "Port to listen on; 0: any free one").whole(0, 65535);
  flags.value("--max-num-seqs", o.max_num_seqs, "Most sequences computed at the same time").whole(1, 1024);
  flags.group(HelpGroup::kPerformance);
  flags
      .value("--max-waiting", o.max_waiting,
             "Most requests in the queue, beside those that are computed; more get a 429")
      .whole(1, 1 << 20);
  flags
      .value("--kv-tokens", o.kv_tokens,
             "Tokens that the KV cache holds, of all sequences; 0: one context's, and up to 131,072, with "
             "--backend cuda 524,288, where they fit and the sequences can use them")
      .whole(0, 1 << 30);
  flags
      .value("--max-num-partial-prefills", o.max_num_partial_prefills,
             "Most prompts that are read in parts at the same time")
      .whole(1, 1024);
  flags
      .value("--max-long-partial-prefills", o.max_long_partial_prefills,
             "Most long ones among them; 0: no limit of their own")
      .whole(0, 1024);
  flags
      .value("--long-prefill-token-threshold", o.long_prefill_token_threshold,
             "A prompt with more tokens to read is long, and gets at most so many in a step; 0: none is, or with "
             "--max-long-partial-prefills 4 % of the context")
      .whole(0, 1 << 24);
  flags
      .value("--target-itl", o.target_itl,
             "Milliseconds between a stream's tokens that are aimed at while prompts are read; 0: from measured "
             "times, so that streams keep 27 % of their speed")
      .within(0, 60000);
  add_choice<bool>(flags, "--scheduling-policy", {o.by_priority, {{"fcfs", false}, {"priority", true}}},
                   "priority: requests with a lower number in their field priority go first");
  flags.turn("--enable-prefix-caching,!--no-enable-prefix-caching", o.prefix_cache,
             "Do not compute again what a prompt shares with earlier ones (default)");
  flags
      .turn("--async-scheduling,!--no-async-scheduling", o.async_scheduling,
            "Begin a step before the last one's tokens are read; default: on cuda")
      .yes_or_no()
      .last_counts();
  flags.group(HelpGroup::kCommon);
  flags.value("--api-key", o.api_keys, "Key that clients must give; repeatable").one_value().not_empty();
  flags.value("--ssl-certfile", o.certificate_file, "Certificate chain (PEM): serve HTTPS").not_empty();
  flags.value("--ssl-keyfile", o.key_file, "Its private key (PEM)").not_empty();
  flags.group(HelpGroup::kExpert);
  flags
      .value("--allowed-origin,--allowed-origins", o.allowed_origin,
             "Origin of web pages that may call; * any, empty none")
      .check([](const std::string& origin) {
        return origin.starts_with("[") ? "want one origin, found the list " + origin : std::string();
      });
  flags.value("--http-threads", o.http_threads, "Threads for HTTP").whole(1, 64);
  flags.value("--max-connections", o.max_connections, "Most open connections").whole(1, 1 << 20);
  flags.value("--max-body-bytes", o.max_body_bytes, "Largest request body").whole(1 << 10, 1 << 30);
  flags.value("--max-header-bytes,--h11-max-incomplete-event-size", o.max_header_bytes, "Largest request header")
      .whole(1 << 10, 1 << 20);
  flags.value("--request-timeout", o.request_timeout, "Seconds for a request's body to arrive").whole(1, 3600);
  flags.value("--shutdown-timeout", o.shutdown_timeout, "Seconds that running requests get after SIGTERM")
      .whole(0, 86400);
  flags.turn(
      "--log-requests,--enable-log-requests,!--no-log-requests,!--disable-log-requests,!--no-enable-log-requests",
      o.log_requests, "One line per request on standard error (default)");
  flags.turn("--log-prompts", o.log_prompts, "Log the text of requests too");
  add_choice<LogFormat>(
      flags, "--log-format",
      {o.log_format, {{"auto", LogFormat::kAuto}, {"text", LogFormat::kText}, {"json", LogFormat::kJson}}},
      "Lines on standard error; auto: text on a terminal, elsewhere one JSON object a line");
  flags.group(HelpGroup::kCommon);
  flags.value("--config", o.config_file, "TOML or YAML file (by its name) with settings named like the flags")
      .not_empty();
  flags.turn("--print-config", o.print_config, "Show the settings and where each came from, and leave");
}

void resolve_serve_settings(Flags flags, ServeOptions& o, const Environment& environment) {
  if (const auto path = environment("NIBBLE_CONFIG"); path && o.config_file.empty()) o.config_file = *path;
  std::map<std::string, Layered> file = read_config(flags, o.config_file);
  for (Flag option : flags.all()) {
    if (option.positional()) continue;
    const std::string flag = option.name();
    if (flag == "--help" || flag == "--config" || flag == "--print-config") continue;
    std::string origin = "command line";
    if (!option.given()) {
      std::optional<Layered> layer = from_environment(flag, environment);
      if (!layer && file.contains(flag)) layer = file[flag];
      origin = layer ? layer->origin : "default";
      if (layer) option.set(layer->values, origin);
    }
    if (option.given() || !option.usual().empty()) o.settings.push_back({flag, shown(option), std::move(origin)});
  }
}

}  // namespace nibble::app
