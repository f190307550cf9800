// nibble list and rm: the models on this machine.

#include "app/models/here.h"

#include "app/setup/commands.h"
#include "app/setup/loaded_model.h"
#include "app/setup/named_model.h"
#include "app/setup/terminal.h"
#include "base/error.h"
#include "base/read_json.h"
#include "hub/kind.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

namespace nibble::app {
namespace {

// A model here, and what it is for this machine.
struct Here {
  std::string quant;
  hub::Snapshot model;
  std::string verdict = "runs here";
  std::string why = {};  // where it does not run
};

const char* format_of(const hub::Snapshot& model) { return model.gguf.path.empty() ? "safetensors" : "gguf"; }

// As the GGUF file's name says it, or config.json.
std::string quant_of(const hub::Snapshot& model) {
  if (!model.gguf.path.empty()) return model.gguf.quant;
  const nlohmann::json config = read_json(hub::start_of(model.path / "config.json", size_t{1} << 20));
  std::string quant;
  if (config.is_object() && config.contains("quantization_config"))
    quant = text_at(config["quantization_config"], "quant_method");
  for (const char* key : {"dtype", "torch_dtype"})
    if (quant.empty()) quant = text_at(config, key);
  return hub::upper(quant);
}

// None for models of other families, which a cache may hold.
std::optional<Here> described(hub::Snapshot model, int64_t memory) {
  if (const auto other = hub::other_kind(model.name, hub::marks_of(model.path)); other && other->is_family)
    return std::nullopt;
  Here here{.quant = quant_of(model), .model = std::move(model)};
  if (!here.model.lacks.empty())
    here.verdict = "in part", here.why = "in part: lacks " + here.model.lacks;
  else if (!hub::fits(here.model.bytes, memory))
    here.verdict = "too large", here.why = "this machine has " + format_bytes(static_cast<double>(memory));
  try {
    ModelOptions options;
    options.model = here.model.path.string();
    if (here.model.lacks.empty()) static_cast<void>(open_config(options));
  } catch (const Error& e) {
    here.verdict = "no", here.why = e.what();
  }
  return here;
}

std::vector<Here> models_here(const hub::Settings& settings) {
  std::vector<hub::Snapshot> models = hub::models_below(settings.models);
  try {
    const std::filesystem::path own = std::filesystem::path(own_model().path).parent_path();
    std::error_code ignored;
    if (!std::filesystem::equivalent(own, settings.models, ignored))
      for (hub::Snapshot& model : hub::models_below(own)) models.push_back(std::move(model));
  } catch (const Error&) {  // there is none next to the program
  }
  for (hub::Snapshot& snapshot : hub::all_snapshots(settings.cache)) models.push_back(std::move(snapshot));
  std::vector<Here> here;
  const int64_t memory = models.empty() ? 0 : settings.memory();
  for (hub::Snapshot& model : models)
    if (auto one = described(std::move(model), memory)) here.push_back(std::move(*one));
  return here;
}

// The one in the cache that the name means.
std::string cached_repo(const RemoveOptions& options, const std::optional<hub::ModelName>& name) {
  std::vector<std::string> cached;
  for (const std::string& repo : name ? hub::repos_of(*name) : std::vector<std::string>())
    if (std::filesystem::is_directory(hub::repo_folder(options.hub.cache, repo))) cached.push_back(repo);
  if (cached.size() == 1) return cached.front();
  if (cached.empty())
    throw Error(Code::kInvalidRequest,
                "{} is no model of {}; only those are removed here. nibble list shows what is where", options.model,
                options.hub.cache.string());
  throw Error(Code::kInvalidRequest, "{} may be {}: say which", options.model, fmt::join(cached, " or "));
}

}  // namespace

std::vector<hub::Snapshot> models_that_run(const hub::Settings& settings) {
  std::vector<hub::Snapshot> models;
  for (Here& here : models_here(settings))
    if (here.why.empty()) models.push_back(std::move(here.model));
  return models;
}

int execute(const ListOptions& options) {
  Terminal terminal(options.output);
  const std::vector<Here> models = models_here(options.hub);
  if (options.output.json) {
    nlohmann::ordered_json json = {{"models", nlohmann::json::array()}};
    for (const auto& [quant, m, verdict, why] : models)
      json["models"].push_back({{"name", m.name},
                                {"format", format_of(m)},
                                {"quantization", quant},
                                {"bytes", m.bytes},
                                {"commit", m.commit},
                                {"refs", m.refs},
                                {"path", m.path.string()},
                                {"lacks", m.lacks},
                                {"verdict", verdict},
                                {"why", why}});
    terminal.print_json(json);
    return kExitOk;
  }
  size_t width = 4;
  for (const Here& each : models) width = std::max(width, each.model.name.size());
  const auto row = [&](const auto&... cells) {
    terminal.print(fmt::format("{:<{}}  {:<11}  {:<10}  {:>8}  {:<16}  {:<9}  {}\n", cells...));
  };
  if (!models.empty()) row("NAME", width, "FORMAT", "QUANT", "SIZE", "REVISION", "HERE", "WHERE");
  for (const auto& [quant, m, verdict, why] : models) {
    const std::string refs = m.refs.empty() ? "" : fmt::format(" {}", fmt::join(m.refs, ","));
    row(m.name, width, format_of(m), quant, format_bytes(static_cast<double>(m.bytes)), m.commit.substr(0, 8) + refs,
        verdict, m.path.string() + (why.empty() ? "" : fmt::format("  ({})", why)));
  }
  if (models.empty()) terminal.note("no model is on this machine; nibble pull openai/gpt-oss-20b gets one");
  return kExitOk;
}

int execute(const RemoveOptions& options) {
  Terminal terminal(options.output);
  const auto name = parsed(options.model, options.hub);
  const std::string repo = cached_repo(options, name);
  const hub::Removal removal = hub::plan_removal(
      options.hub.cache, repo, options.revision.empty() ? name->revision : options.revision, name->which);
  const std::string bytes = format_bytes(static_cast<double>(removal.bytes));
  const std::string what = removal.everything     ? removal.folder.string()
                           : !name->which.empty() ? name->text()
                                                  : fmt::format("revision {} of {}", removal.commits.front(), repo);
  if (!options.yes) {
    if (!terminal.can_ask())
      throw Error(Code::kInvalidRequest, "want -y, or a terminal to ask on: {} would be removed ({})", what, bytes);
    if (!terminal.ask(fmt::format("Remove {} ({})?", what, bytes))) return kExitOk;
  }
  hub::remove(removal);
  if (options.output.json)
    terminal.print_json({{"model", repo}, {"commits", removal.commits}, {"bytes", removal.bytes}});
  else
    terminal.note(fmt::format("removed {}: {}", what, bytes));
  return kExitOk;
}

}  // namespace nibble::app
