#include "app/options/settings.h"

#include "app/options/foreign.h"
#include "app/options/option.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/shards.h"
#include "base/error.h"
#include "base/machine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <initializer_list>
#include <iterator>
#include <map>
#include <utility>

namespace nibble::app {

std::string variable_of(const std::string& flag) {
  std::string name = "NIBBLE_";
  for (const char c : flag.substr(2)) name += c == '-' ? '_' : static_cast<char>(std::toupper(c));
  return name;
}

namespace {

const std::string kEnvironment = "environment ";  // how a variable's origin begins

std::string value_of(const Variables& environment, const char* name) {
  const auto found = environment.find(name);
  return found == environment.end() ? std::string() : found->second;
}

// Kubernetes sets NIBBLE_PORT=tcp://10.0.0.1:8000 where a service is called nibble; Docker's links did so, too.
bool is_of_a_service(const std::string& variable, const std::string& value) {
  return variable.ends_with("_PORT") && (value.starts_with("tcp://") || value.starts_with("udp://"));
}

// What a layer below the command line says about one option.
struct LowerSetting {
  std::string flag, origin;
  std::vector<std::string> values;
};
using Layers = std::vector<LowerSetting>;  // the first that names a flag counts

void add_config(const Arguments& arguments, const std::string& path, Layers& layers) {
  if (path.empty()) return;
  const auto refuse = [&path](const std::string& what) {
    return Error(Code::kInvalidRequest, "--config {}: {}", path, what);
  };
  const std::string text = read_text(std::filesystem::path(path));
  std::vector<FlatSetting> settings;
  try {
    settings = path.ends_with(".yaml") || path.ends_with(".yml") ? parse_flat_yaml(text) : parse_flat_toml(text);
  } catch (const Error& e) {
    throw refuse(e.what());
  }
  const size_t above = layers.size();
  for (FlatSetting& setting : settings) {
    std::string flag = "--" + setting.name;
    std::ranges::replace(flag, '_', '-');
    const Argument* const argument = arguments.find(flag);
    const bool known = argument != nullptr && flag != "--config" && flag != "--help" && flag != "--print-config";
    if (!known) {
      std::vector<std::string> names;
      for (const Argument& each : arguments.all())
        if (!each.is_place()) names.push_back(each.name.substr(each.name.find_first_not_of('-')));
      throw refuse(fmt::format("nibble serve has no setting {}{}", setting.name, suggestion(flag.substr(2), names)));
    }
    if (setting.values.empty()) throw refuse(setting.name + ": want a value, found none");
    if (argument->is_switch && setting.values.size() == 1) {
      if (const std::string wrong = neither_yes_nor_no(setting.values[0]); !wrong.empty())
        throw refuse(fmt::format("{}: {}", setting.name, wrong));
      setting.values = {argument->switched(flag, setting.values[0])};  // --no-…: true is false
    }
    if (std::ranges::find(layers.begin() + static_cast<std::ptrdiff_t>(above), layers.end(), argument->name,
                          &LowerSetting::flag) != layers.end())
      throw refuse(fmt::format("{} stands there twice", argument->name));
    layers.push_back({argument->name, "file " + path, std::move(setting.values)});
  }
}

// NIBBLE_… first, then what other programs' variables mean here.
void add_environment(const Arguments& arguments, const std::vector<Setting>& foreign, const Arguments& known,
                     const Variables& environment, Layers& layers) {
  for (const Argument& argument : arguments.all()) {
    if (argument.is_place() || known.find(argument.name) == nullptr) continue;
    const auto found = environment.find(variable_of(argument.name));
    if (found == environment.end() || found->second.empty()) continue;
    if (is_of_a_service(found->first, found->second)) continue;
    layers.push_back({argument.name, kEnvironment + found->first, {found->second}});
  }
  for (const Setting& s : foreign) {
    const auto first = std::ranges::find(foreign, s.flag, &Setting::flag);
    if (first->value != s.value)
      throw Error(Code::kInvalidRequest, "{} and {}: want one of them, found {} {} and {}", first->origin,
                  s.origin.substr(kEnvironment.size()), s.flag, first->value, s.value);
    if (&*first == &s) layers.push_back({s.flag, s.origin, {s.value}});
  }
}

// A line for each NIBBLE_… that sets no flag: a typo, a flag that has no variable, or the address of a service.
void note_unknown_variables(Settings& settings, const Arguments& known, const Variables& environment) {
  constexpr std::string_view kPrefix = "NIBBLE_";
  std::vector<std::string> names = {"CPU_MASK", "CUDA_ARCH"};  // options.cpp reads them
  for (const Argument& argument : known.all())
    if (!argument.is_place()) names.push_back(variable_of(argument.name).substr(kPrefix.size()));
  for (const auto& [variable, value] : environment) {
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

struct LauncherWords {
  const char *rank, *size, *local_rank, *local_size;
};
constexpr LauncherWords kLaunchers[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"}};

int number_of(const Variables& environment, const char* name) {
  constexpr int kMost = 1 << 20;
  const std::string found = value_of(environment, name);
  const std::optional<int> value = number_in<int>(found);
  if (!value || *value < 0 || *value > kMost)
    throw Error(Code::kInvalidRequest, "environment {}: want a whole number from 0 to {}, found {}", name, kMost,
                found.empty() ? "none" : found);
  return *value;
}

// Ranks of one machine share its processors.
void add_threads(const LauncherWords& words, const Variables& environment, std::vector<Setting>& settings) {
  if (value_of(environment, words.local_size).empty()) return;
  const int size = number_of(environment, words.local_size), rank = number_of(environment, words.local_rank);
  if (rank >= size)
    throw Error(Code::kInvalidRequest, "environment {}: want less than {}, {}, found {}", words.local_rank,
                words.local_size, size, rank);
  if (size == 1) return;
  const int threads = backend::threads_of(rank, {.count = size}, available_processors());
  settings.push_back({"--threads", fmt::format("{}", threads), kEnvironment + words.local_size});
}

// The flags that the variables stand for, if they describe more than one rank or --nnodes is given.
std::vector<Setting> group_settings(const Arguments& arguments, const Variables& environment) {
  std::vector<Setting> settings;
  for (const LauncherWords& words : kLaunchers) {
    const std::string size = value_of(environment, words.size);
    if (size.empty() || number_of(environment, words.size) <= 1) continue;
    if (value_of(environment, words.rank).empty())
      throw Error(Code::kInvalidRequest, "environment {} {}: want {} beside it, found none", words.size, size,
                  words.rank);
    settings.push_back({"--nnodes", size, kEnvironment + words.size});
    settings.push_back({"--node-rank", value_of(environment, words.rank), kEnvironment + words.rank});
    add_threads(words, environment, settings);
    break;
  }
  const bool several =
      !settings.empty() || arguments.given("--nnodes") || !value_of(environment, "NIBBLE_NNODES").empty();
  if (!several) return settings;
  if (const std::string address = value_of(environment, "MASTER_ADDR"); !address.empty())
    settings.push_back({"--master-addr", address, "environment MASTER_ADDR"});
  if (!value_of(environment, "MASTER_PORT").empty()) {
    // Then torchrun's own store already uses the port.
    const bool taken = value_of(environment, "TORCHELASTIC_USE_AGENT_STORE") == "True";
    const int port = number_of(environment, "MASTER_PORT") + (taken ? 1 : 0);
    settings.push_back({"--master-port", fmt::format("{}", port), "environment MASTER_PORT"});
  }
  return settings;
}

// Once all settings are known: a process is one rank of --tensor-parallel-size, and has one card, of several that it
// sees the one that the variables choose.
void take_group(const Arguments& arguments, const Variables& environment, ModelOptions& o) {
  const GroupOptions& group = o.group;
  if (group.rank >= group.count)
    throw Error(Code::kInvalidRequest, "--node-rank: want less than --nnodes, {}, found {}", group.count, group.rank);
  if (group.count == 1) return;
  if (group.address.empty())
    throw Error(Code::kInvalidRequest, "--nnodes {}: want --master-addr or MASTER_ADDR, where rank 0 is, found none",
                group.count);
  if (arguments.given("--tensor-parallel-size") && o.run.ranks.count != group.count)
    throw Error(Code::kInvalidRequest, "--tensor-parallel-size {}: want {}, one rank in each of --nnodes, found {}",
                o.run.ranks.count, group.count, o.run.ranks.count);
  o.run.ranks.count = group.count;
  o.group.card = card_of(environment);
  o.cards = {0, 1};
}

}  // namespace

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

namespace fs = std::filesystem;

hub::Settings hub_settings(const Variables& environment) {
  const std::string home = value_of(environment, "HOME");
  const auto expanded = [&home](const std::string& path) -> fs::path {
    return path.starts_with("~/") ? home + path.substr(1) : path;
  };
  // Value of the first variable that is set.
  const auto variable = [&](std::initializer_list<const char*> names) -> std::optional<std::string> {
    for (const char* name : names)
      if (std::string value = value_of(environment, name); !value.empty()) return value;
    return std::nullopt;
  };
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
  if (const auto store = variable({"OLLAMA_MODELS"})) settings.ollama.push_back(expanded(*store));
  for (const fs::path& owner : {fs::path(home), fs::path("/usr/share/ollama")})
    settings.ollama.push_back(owner / ".ollama/models");
  settings.memory = memory_for_models;
  return settings;
}

int64_t memory_for_models() {
  const int64_t host = available_memory().value_or(INT64_MAX);
  if (backend::cuda_cards() == 0) return host;
  const auto card = static_cast<double>(backend::cuda_memory().total_bytes) * backend::kGpuMemoryUtilization;
  return std::max(host, static_cast<int64_t>(card));
}

std::string card_of(const Variables& environment) {
  for (const LauncherWords& words : kLaunchers) {
    if (value_of(environment, words.local_rank).empty()) continue;
    const int rank = number_of(environment, words.local_rank);
    const auto listed = environment.find("CUDA_VISIBLE_DEVICES");
    if (listed == environment.end()) return fmt::format("{}", rank);
    const std::vector<std::string> cards = split(listed->second, ',');
    if (cards.size() <= 1) return "";  // the launcher's choice
    if (std::cmp_less(rank, cards.size())) return cards[static_cast<size_t>(rank)];
    throw Error(Code::kInvalidRequest, "environment CUDA_VISIBLE_DEVICES {}: want a card for {} {}, found {}",
                listed->second, words.local_rank, rank, cards.size());
  }
  return "";
}

void resolve_settings(Arguments& arguments, const Parts& parts, const Variables& environment) {
  Settings& settings = *std::get<Settings*>(parts);
  const bool in_a_group = arguments.find("--nnodes") != nullptr;
  if (in_a_group) std::ranges::move(group_settings(arguments, environment), std::back_inserter(settings.implied));
  Command serve = made(CommandId::kServe);
  const Arguments known(CommandId::kServe, parts_of(serve));
  const auto path = environment.find("NIBBLE_CONFIG");
  if (arguments.find("--config") != nullptr && settings.file.empty() && path != environment.end())
    settings.file = path->second;
  std::vector<Setting> foreign = read_foreign_variables(environment, settings.notes);
  note_unknown_variables(settings, known, environment);
  std::erase_if(foreign, [&](const Setting& s) {
    return arguments.find(s.flag) == nullptr;
  });  // flags that only a server has, such as its key
  Layers layers;
  add_environment(arguments, foreign, known, environment, layers);
  add_config(arguments, settings.file, layers);
  std::map<std::string, std::string> origins;
  const auto fill = [&](const LowerSetting& layer) {
    Argument* const argument = arguments.find(layer.flag);
    check(argument != nullptr, "an option of the command");
    if (argument->given()) return;
    arguments.set(*argument, layer.values, layer.origin);
    origins[argument->name] = layer.origin;
  };
  std::ranges::for_each(layers, fill);
  for (const Setting& s : foreign)  // NIBBLE_… and the command line count before these
    if (origins[s.flag] == s.origin && s.flag != "--api-key")
      settings.notes.push_back(fmt::format("{} is taken as {} {}", s.origin.substr(kEnvironment.size()), s.flag,
                                           arguments.find(s.flag)->values.front()));
  for (const Setting& s : settings.implied) fill({s.flag, s.origin, {s.value}});
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
  if (in_a_group) take_group(arguments, environment, *std::get<ModelOptions*>(parts));
}

}  // namespace nibble::app
