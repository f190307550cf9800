#include "app/setup/commands.h"
#include "app/setup/terminal.h"
#include "base/error.h"
#include "hub/cache.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>

namespace nibble::app {
namespace {

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
