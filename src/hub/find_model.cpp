#include "hub/find_model.h"

#include "hub/cache.h"

#include <algorithm>
#include <system_error>

namespace nibble::hub {
namespace {

namespace fs = std::filesystem;

bool is_known_place(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::vector<fs::path> paths_for(const std::string& name, const Settings& settings) {
  const fs::path last = fs::path(name).filename();
  std::vector<fs::path> paths = {settings.models / name};
  if (last != name) paths.push_back(settings.models / last);
  return paths;
}

// models--openai--gpt-oss-20b itself, as one may find it in a file manager.
std::optional<Snapshot> cached_repo(const fs::path& path) {
  const fs::path folder = path.has_filename() ? path : path.parent_path();
  std::error_code ignored;
  if (!fs::is_directory(folder / "snapshots", ignored)) return std::nullopt;
  for (Snapshot& snapshot : all_snapshots(folder.has_parent_path() ? folder.parent_path() : fs::path("."))) {
    if (repo_folder("", snapshot.repo).filename() == folder.filename()) return std::move(snapshot);
  }
  return std::nullopt;
}

bool is_revision(const Snapshot& snapshot, const std::string& revision) {
  return snapshot.commit == revision || std::ranges::find(snapshot.refs, revision) != snapshot.refs.end();
}

FoundModel from(Snapshot snapshot) {
  return {.path = std::move(snapshot.path), .repo = std::move(snapshot.repo), .lacks = std::move(snapshot.lacks)};
}

}  // namespace

std::optional<FoundModel> find_model(const std::string& asked, const Settings& settings, const std::string& revision) {
  if (asked.empty()) return std::nullopt;
  if (revision.empty() && is_known_place(asked)) {
    if (auto snapshot = cached_repo(asked)) return from(std::move(*snapshot));
    return FoundModel{.path = model_in(asked).value_or(asked)};
  }
  const std::string name = plain_name(asked);
  if (repos_of(name).empty()) return std::nullopt;
  for (const fs::path& path : revision.empty() ? paths_for(name, settings) : std::vector<fs::path>()) {
    if (const auto model = model_in(path)) return FoundModel{.path = *model};
    if (const fs::path file = path.string() + ".gguf"; is_known_place(file)) return FoundModel{.path = file};
  }
  std::optional<FoundModel> in_part;
  for (const std::string& repo : repos_of(name)) {
    std::vector<Snapshot> snapshots = snapshots_of(settings.cache, repo);
    if (!revision.empty()) std::erase_if(snapshots, [&](const Snapshot& s) { return !is_revision(s, revision); });
    // refs/main's is what is meant, whole or not; without refs/main, any that is whole.
    const auto whole =
        std::ranges::find_if(snapshots, [](const Snapshot& s) { return s.lacks.empty() || is_revision(s, "main"); });
    if (whole != snapshots.end() && whole->lacks.empty()) return from(std::move(*whole));
    if (!in_part && !snapshots.empty()) in_part = from(std::move(snapshots.front()));
  }
  return in_part;
}

std::vector<std::string> places_for(const std::string& name, const Settings& settings) {
  std::vector<std::string> places = {name};
  for (const fs::path& path : paths_for(plain_name(name), settings)) places.push_back(path.string());
  places.push_back(settings.cache.string());
  return places;
}

}  // namespace nibble::hub
