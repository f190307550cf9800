#include "app/options/settings.h"

#include "app/options/flat_config.h"
#include "app/options/foreign.h"
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

Layers read_config(const Arguments& arguments, const std::string& path) {
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
    const Argument* const argument = arguments.find(flag);
    const bool known = argument != nullptr && flag != "--config" && flag != "--help" && flag != "--print-config";
    if (!known) throw refuse("nibble serve has no setting " + setting.name);
    if (setting.values.empty()) throw refuse(setting.name + ": want a value, found none");
    if (argument->is_switch && setting.values.size() == 1) {
      if (const std::string wrong = neither_yes_nor_no(setting.values[0]); !wrong.empty())
        throw refuse(fmt::format("{}: {}", setting.name, wrong));
      setting.values = {argument->switched(flag, setting.values[0])};  // --no-…: true is false
    }
    const bool is_new = layers.emplace(argument->name, Layered{std::move(setting.values), "file " + path}).second;
    if (!is_new) throw refuse(fmt::format("{} stands there twice", argument->name));
  }
  return layers;
}

// NIBBLE_… first, then what other programs' variables mean here.
Layers read_environment(Arguments& arguments, const std::vector<ForeignSetting>& foreign,
                        const SettingSources& sources) {
  Layers layers;
  for (const Argument& argument : arguments.all()) {
    if (argument.is_place() || sources.known.find(argument.name) == nullptr) continue;
    const auto found = sources.environment.find(variable_of(argument.name));
    if (found == sources.environment.end() || found->second.empty()) continue;
    if (is_of_a_service(found->first, found->second)) continue;
    layers[argument.name] = {{found->second}, "environment " + found->first};
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
  for (const Argument& argument : sources.known.all())
    if (!argument.is_place()) names.push_back(variable_of(argument.name).substr(kPrefix.size()));
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

std::string shown(const Argument& argument) {
  const bool is_secret = argument.option != nullptr ? argument.option->traits.secret : argument.name == "--hf-token";
  return is_secret ? "(secret)" : fmt::format("{}", fmt::join(argument.values, ","));
}

}  // namespace

void resolve_settings(Arguments& arguments, Settings& settings, const SettingSources& sources) {
  const auto path = sources.environment.find("NIBBLE_CONFIG");
  if (arguments.find("--config") != nullptr && settings.file.empty() && path != sources.environment.end())
    settings.file = path->second;
  std::vector<ForeignSetting> foreign = read_foreign_variables(sources.environment, settings.notes);
  note_unknown_variables(settings, sources);
  std::erase_if(foreign, [&](const ForeignSetting& s) {
    return arguments.find(s.flag) == nullptr;
  });  // flags that only a server has, such as its key
  Layers layers = read_environment(arguments, foreign, sources);
  layers.merge(read_config(arguments, settings.file));
  std::map<std::string, std::string> origins;
  const auto fill = [&](const std::string& name, const Layered& layer) {
    Argument* const argument = arguments.find(name);
    check(argument != nullptr, "an option of the command");
    if (argument->given()) return;
    arguments.set(*argument, layer.values, layer.origin);
    origins[argument->name] = layer.origin;
  };
  for (const auto& [name, layer] : layers) fill(name, layer);
  for (const ForeignSetting& s : foreign)  // NIBBLE_… and the command line count before these
    if (origins[s.flag] == "environment " + s.variable && s.flag != "--api-key")
      settings.notes.push_back(
          fmt::format("{} is taken as {} {}", s.variable, s.flag, arguments.find(s.flag)->values.front()));
  for (const Setting& s : settings.implied) fill(s.flag, {{s.value}, s.origin});
  for (const Argument& argument : arguments.all()) {
    const std::string& flag = argument.name;
    if (argument.is_place() || flag == "--help" || flag == "--config" || flag == "--print-config") continue;
    const std::string usual = argument.option == nullptr ? "" : shown_default(*argument.option, arguments.command());
    if (!argument.given() && usual.empty()) continue;
    const auto layer = origins.find(flag);
    std::string origin = layer != origins.end() ? layer->second : argument.given() ? "command line" : "default";
    if (const auto word = settings.foreign_words.find(flag); word != settings.foreign_words.end())
      origin += fmt::format(", vLLM's {}", word->second);
    settings.all.push_back({flag, argument.given() ? shown(argument) : usual, std::move(origin)});
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
