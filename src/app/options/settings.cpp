#include "app/options/settings.h"

#include "app/options/flat_config.h"
#include "app/options/option_parts.h"
#include "app/options/vllm.h"
#include "base/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

namespace nibble::app {

std::string variable_of(const std::string& flag) {
  std::string name = "NIBBLE_";
  for (const char c : flag.substr(2)) name += c == '-' ? '_' : static_cast<char>(std::toupper(c));
  return name;
}

namespace {

// Kubernetes sets NIBBLE_PORT=tcp://10.0.0.1:8000 where a service is called nibble; Docker's links did so, too.
bool is_of_a_service(const std::string& variable, const std::string& value) {
  return variable.ends_with("_PORT") && (value.starts_with("tcp://") || value.starts_with("udp://"));
}

// What a layer below the command line says about one option.
struct Layered {
  std::vector<std::string> values;
  std::string origin;
};
using Layers = std::map<std::string, Layered>;  // by flag

// YAML if its name says so, otherwise TOML.
std::vector<FlatSetting> config_settings(const std::string& path, const std::string& text) {
  return path.ends_with(".yaml") || path.ends_with(".yml") ? parse_flat_yaml(text) : parse_flat_toml(text);
}

Layers read_config(const Flags& flags, const std::string& path) {
  Layers layers;
  if (path.empty()) return layers;
  const auto refuse = [&path](const std::string& what) {
    return Error(Code::kInvalidRequest, "--config {}: {}", path, what);
  };
  const std::string text = read_text(std::filesystem::path(path));
  std::vector<FlatSetting> settings;
  try {
    settings = config_settings(path, text);
  } catch (const Error& e) {
    throw refuse(e.what());
  }
  for (FlatSetting& setting : settings) {
    std::string flag = "--" + setting.name;
    std::replace(flag.begin(), flag.end(), '_', '-');
    const std::optional<Flag> option = flags.find(flag);
    const bool known = option && flag != "--config" && flag != "--help" && flag != "--print-config";
    if (!known) throw refuse("nibble serve has no setting " + setting.name);
    if (setting.values.empty()) throw refuse(setting.name + ": want a value, found none");
    if (option->is_switch() && setting.values.size() == 1) {
      if (const std::string wrong = option->wrong_for_switch(setting.values[0]); !wrong.empty())
        throw refuse(fmt::format("{}: {}", setting.name, wrong));
      setting.values = {option->switched(flag, setting.values[0])};  // --no-…: true is false
    }
    const bool is_new = layers.emplace(option->name(), Layered{std::move(setting.values), "file " + path}).second;
    if (!is_new) throw refuse(fmt::format("{} stands there twice", option->name()));
  }
  return layers;
}

// NIBBLE_… first, then what other programs' variables mean here.
Layers read_environment(Flags flags, const std::vector<ForeignSetting>& foreign, const SettingSources& sources) {
  Layers layers;
  for (const Flag& option : flags.all()) {
    if (option.positional() || !sources.known.find(option.name())) continue;
    const auto found = sources.environment.find(variable_of(option.name()));
    if (found == sources.environment.end() || found->second.empty()) continue;
    if (is_of_a_service(found->first, found->second)) continue;
    layers[option.name()] = {{found->second}, "environment " + found->first};
  }
  Layers theirs;
  for (const ForeignSetting& s : foreign) {
    const std::string value = our_value(s.flag, s.value);
    const auto [at, is_new] = theirs.emplace(s.flag, Layered{{value}, "environment " + s.variable});
    if (!is_new && at->second.values.front() != value)
      throw Error(Code::kInvalidRequest, "{} and {}: want one of them, found {} {} and {}", at->second.origin,
                  s.variable, s.flag, at->second.values.front(), value);
  }
  layers.merge(theirs);
  return layers;
}

// A line for each NIBBLE_… that sets no flag: a typo, a flag that has no variable, or the address of a service.
void note_unknown_variables(Settings& settings, const SettingSources& sources) {
  constexpr std::string_view kPrefix = "NIBBLE_";
  std::vector<std::string> names = {"CPU_MASK", "CUDA_ARCH"};  // options.cpp reads them
  for (const Flag& option : sources.known.all())
    if (!option.positional()) names.push_back(variable_of(option.name()).substr(kPrefix.size()));
  for (const auto& [variable, value] : sources.environment) {
    if (!variable.starts_with(kPrefix) || value.empty()) continue;
    if (is_of_a_service(variable, value)) {
      settings.notes.push_back(fmt::format("{} makes no difference: {} is the address of a service", variable, value));
      continue;
    }
    const std::string name = variable.substr(kPrefix.size());
    if (std::ranges::find(names, name) != names.end()) continue;
    settings.notes.push_back(
        fmt::format("{} makes no difference: no setting is called {}{}", variable, name, suggestion(name, names)));
  }
}

std::string shown(const Flag& option) {
  if (!option.given()) return option.usual();
  const std::string flag = option.name();
  if (flag == "--api-key" || flag == "--hf-token") return "(secret)";
  const std::string value = fmt::format("{}", fmt::join(option.values(), ","));
  return flag == "--max-model-len" && value == fmt::format("{}", kContextThatFits) ? "auto" : value;
}

}  // namespace

void add_print_config(Flags flags, Settings& settings) {
  flags.turn("--print-config", settings.print, "Show the settings and where each came from, and exit");
}

void resolve_settings(Flags flags, Settings& settings, const SettingSources& sources) {
  const auto path = sources.environment.find("NIBBLE_CONFIG");
  if (flags.find("--config") && settings.file.empty() && path != sources.environment.end())
    settings.file = path->second;
  std::vector<ForeignSetting> foreign = read_vllm_variables(sources.environment, settings.notes);
  note_unknown_variables(settings, sources);
  std::erase_if(foreign, [&](const ForeignSetting& s) {
    return !flags.find(s.flag);
  });  // flags that only a server has, such as its key
  Layers layers = read_environment(flags, foreign, sources);
  layers.merge(read_config(flags, settings.file));
  std::map<std::string, std::string> origins;
  const auto fill = [&](const std::string& name, const Layered& layer) {
    Flag option = flags.get(name);
    if (option.given()) return;
    option.set(layer.values, layer.origin);
    origins[name] = layer.origin;
  };
  for (const auto& [name, layer] : layers) fill(name, layer);
  for (const ForeignSetting& s : foreign)  // NIBBLE_… and the command line count before these
    if (origins[s.flag] == "environment " + s.variable && s.flag != "--api-key")
      settings.notes.push_back(
          fmt::format("{} is taken as {} {}", s.variable, s.flag, flags.get(s.flag).values().front()));
  for (const Setting& s : settings.implied) fill(s.flag, {{s.value}, s.origin});
  for (const Flag& option : flags.all()) {
    if (option.positional()) continue;
    const std::string flag = option.name();
    if (flag == "--help" || flag == "--config" || flag == "--print-config") continue;
    if (!option.given() && option.usual().empty()) continue;
    const auto layer = origins.find(flag);
    std::string origin = layer != origins.end() ? layer->second : option.given() ? "command line" : "default";
    if (const auto word = settings.foreign_words.find(flag); word != settings.foreign_words.end())
      origin += fmt::format(", vLLM's {}", word->second);
    settings.all.push_back({flag, shown(option), std::move(origin)});
  }
}

void note_resolved(Settings& settings, const std::string& flag, const std::string& value) {
  const auto it = std::ranges::find(settings.all, flag, &Setting::flag);
  if (it == settings.all.end()) return settings.all.push_back({flag, value, "default"});
  if (it->value != value) it->resolved = value;
}

std::string settings_text(const Settings& settings, bool json) {
  if (json) {
    nlohmann::ordered_json all = nlohmann::ordered_json::object();
    for (const Setting& s : settings.all) {
      nlohmann::ordered_json& setting = all[s.flag.substr(2)] = {{"value", s.value}, {"origin", s.origin}};
      if (!s.resolved.empty()) setting["resolved"] = s.resolved;
    }
    return all.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  }
  std::string text;
  for (const Setting& s : settings.all)
    text += fmt::format("{:<32} {:<24} {}\n", s.flag, s.resolved.empty() ? s.value : s.value + " → " + s.resolved,
                        s.origin);
  return text;
}

namespace {

namespace fs = std::filesystem;

// The first of these variables that is set.
std::optional<std::string> first_of(const Environment& environment, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (auto value = environment(name); value && !value->empty()) return value;
  }
  return std::nullopt;
}

bool is_true(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text == "1" || text == "true" || text == "yes" || text == "on";
}

}  // namespace

hub::Settings hub_settings(const Environment& environment) {
  const std::string home = environment("HOME").value_or("");
  const auto expanded = [&home](const std::string& path) -> fs::path {
    return path.starts_with("~/") ? home + path.substr(1) : path;
  };
  const auto variable = [&](std::initializer_list<const char*> names) { return first_of(environment, names); };
  const fs::path caches = expanded(variable({"XDG_CACHE_HOME"}).value_or(home + "/.cache"));
  const auto hf_home = variable({"HF_HOME"});
  const fs::path root = hf_home ? expanded(*hf_home) : caches / "huggingface";
  hub::Settings settings;
  const auto cache = variable({"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"});
  settings.cache = cache ? expanded(*cache) : root / "hub";
  if (auto endpoint = variable({"HF_ENDPOINT"})) settings.endpoint = std::move(*endpoint);
  while (settings.endpoint.ends_with('/')) settings.endpoint.pop_back();
  settings.token = variable({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}).value_or("");
  const auto token_file = variable({"HF_TOKEN_PATH"});
  settings.token_file = token_file ? expanded(*token_file) : root / "token";
  settings.certificates = variable({"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE"}).value_or("");
  settings.offline = is_true(variable({"HF_HUB_OFFLINE"}).value_or(""));
  return settings;
}

}  // namespace nibble::app
