// nibble list and rm: the models on this machine.

#include "app/setup/commands.h"
#include "app/setup/loaded_model.h"
#include "app/setup/named_model.h"
#include "app/setup/terminal.h"
#include "base/error.h"
#include "hub/cache.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

namespace nibble::app {
namespace {

// A cache may hold models of other families.
bool is_served(const hub::Snapshot& snapshot) {
  ModelOptions options;
  options.model = snapshot.path.string();
  try {
    static_cast<void>(open_config(options));
    return true;
  } catch (const Error&) {
    return false;
  }
}

std::vector<hub::Snapshot> models_here(const hub::Settings& settings) {
  std::vector<hub::Snapshot> models = hub::models_below(settings.models);
  try {
    const std::filesystem::path own = std::filesystem::path(own_model().path).parent_path();
    std::error_code ignored;
    if (!std::filesystem::equivalent(own, settings.models, ignored))
      for (hub::Snapshot& model : hub::models_below(own)) models.push_back(std::move(model));
  } catch (const Error&) {  // there is none next to the program
  }
  for (hub::Snapshot& snapshot : hub::all_snapshots(settings.cache)) models.push_back(std::move(snapshot));
  std::erase_if(models, [](const hub::Snapshot& s) { return !is_served(s); });
  return models;
}

std::string format_of(const hub::Snapshot& snapshot) {
  ModelOptions options;
  options.model = snapshot.path.string();
  return is_gguf(options) ? "gguf" : "safetensors";
}

// The one in the cache that the name means.
std::string cached_repo(const RemoveOptions& options) {
  std::vector<std::string> cached;
  for (const std::string& repo : hub::repos_of(options.model)) {
    if (std::filesystem::is_directory(hub::repo_folder(options.hub.cache, repo))) cached.push_back(repo);
  }
  if (cached.size() == 1) return cached.front();
  if (cached.empty()) {
    throw Error(Code::kInvalidRequest,
                "{} is no model of {}; only those are removed here. nibble list shows what is where", options.model,
                options.hub.cache.string());
  }
  throw Error(Code::kInvalidRequest, "{} may be {}: say which", options.model, fmt::join(cached, " or "));
}

}  // namespace

int execute(const ListOptions& options) {
  Terminal terminal(options.output);
  const std::vector<hub::Snapshot> models = models_here(options.hub);
  if (options.output.json) {
    nlohmann::ordered_json json = {{"models", nlohmann::json::array()}};
    for (const hub::Snapshot& m : models) {
      json["models"].push_back({{"name", m.repo},
                                {"format", format_of(m)},
                                {"bytes", m.bytes},
                                {"commit", m.commit},
                                {"refs", m.refs},
                                {"path", m.path.string()},
                                {"lacks", m.lacks}});
    }
    terminal.print_json(json);
    return kExitOk;
  }
  size_t width = 4;
  for (const hub::Snapshot& m : models) width = std::max(width, m.repo.size());
  if (!models.empty())
    terminal.print(
        fmt::format("{:<{}}  {:<11}  {:>8}  {:<16}  {}\n", "NAME", width, "FORMAT", "SIZE", "REVISION", "WHERE"));
  for (const hub::Snapshot& m : models) {
    const std::string refs = m.refs.empty() ? "" : fmt::format(" {}", fmt::join(m.refs, ","));
    terminal.print(fmt::format("{:<{}}  {:<11}  {:>8}  {:<16}  {}{}\n", m.repo, width, format_of(m),
                               format_bytes(static_cast<double>(m.bytes)), m.commit.substr(0, 8) + refs,
                               m.path.string(), m.lacks.empty() ? "" : fmt::format("  (in part: lacks {})", m.lacks)));
  }
  if (models.empty()) terminal.note("no model is on this machine; nibble pull openai/gpt-oss-20b gets one");
  return kExitOk;
}

int execute(const RemoveOptions& options) {
  Terminal terminal(options.output);
  const std::string repo = cached_repo(options);
  const hub::Removal removal = hub::plan_removal(options.hub.cache, repo, options.revision);
  const std::string bytes = format_bytes(static_cast<double>(removal.bytes));
  const std::string what =
      removal.everything ? removal.folder.string() : fmt::format("revision {} of {}", removal.commits.front(), repo);
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
