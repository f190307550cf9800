#include "hub/cache.h"

#include "base/error.h"
#include "base/read_json.h"
#include "checkpoint/gguf_checkpoint.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

namespace nibble::hub {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "models--", kBetween = "--";
constexpr size_t kMostNameBytes = 96;  // the Hub's own limit
constexpr size_t kMostIndexBytes = size_t{64} << 20;

std::string start_of(const fs::path& file, size_t most) {
  std::ifstream in(file, std::ios::binary);
  std::string text(most, '\0');
  in.read(text.data(), static_cast<std::streamsize>(most));
  text.resize(static_cast<size_t>(std::max<std::streamsize>(in.gcount(), 0)));
  return text;
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);  // false for a link to nothing
}

bool is_part_of_name(std::string_view part) {
  const auto is_known = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.';
  };
  return !part.empty() && std::ranges::all_of(part, is_known) && part.find("--") == part.npos &&
         part.find("..") == part.npos && part.front() != '.' && part.front() != '-' && part.back() != '.' &&
         part.back() != '-';
}

std::vector<fs::path> entries_of(const fs::path& directory) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error))
    entries.push_back(it->path());
  std::sort(entries.begin(), entries.end());
  return entries;
}

bool holds(const fs::path& directory, std::string_view extension) {
  return std::ranges::any_of(entries_of(directory), [&](const fs::path& p) { return p.extension() == extension; });
}

std::string lacking_gguf_part(const fs::path& directory) {
  for (const fs::path& file : entries_of(directory)) {
    const auto name = checkpoint::gguf_part_name(file);
    for (int64_t part = 0; name && part < name->parts; ++part) {
      const fs::path other = checkpoint::gguf_part_path(name->stem, part, name->parts);
      if (!is_there(other)) return other.filename().string();
    }
  }
  return {};
}

// Files and links to some; nothing where the directory cannot be read.
std::vector<fs::path> files_below(const fs::path& directory) {
  std::vector<fs::path> files;
  std::error_code error, ignored;
  for (fs::recursive_directory_iterator it(directory, error), end; !error && it != end; it.increment(error))
    if (it->is_symlink(ignored) || it->is_regular_file(ignored)) files.push_back(it->path());
  return files;
}

// By commit the names that point to it: refs/main, refs/refs/pr/1.
std::map<std::string, std::vector<std::string>> refs_of(const fs::path& folder) {
  std::map<std::string, std::vector<std::string>> refs;
  const fs::path root = folder / "refs";
  for (const fs::path& file : files_below(root))
    if (fs::is_regular_file(file)) refs[start_of(file, 64)].push_back(file.lexically_relative(root).string());
  return refs;
}

// Bytes of a file, or of those below a directory and behind their links.
int64_t bytes_of(const fs::path& path) {
  int64_t bytes = 0;
  std::error_code error;
  std::vector<fs::path> files = files_below(path);
  if (fs::is_regular_file(path, error)) files = {path};
  for (const fs::path& file : files)
    if (const auto size = fs::is_regular_file(file, error) ? fs::file_size(file, error) : 0; !error)
      bytes += static_cast<int64_t>(size);
  return bytes;
}

}  // namespace

bool is_repo(const std::string& name) {
  const size_t slash = name.find('/');
  if (slash == std::string::npos || name.size() > kMostNameBytes) return false;
  const std::string_view text = name;
  return is_part_of_name(text.substr(0, slash)) && is_part_of_name(text.substr(slash + 1));
}

std::string plain_name(const std::string& name) {
  constexpr std::string_view kFamily = "gpt-oss:";
  if (!name.starts_with(kFamily)) return name;
  const std::string size = name.substr(kFamily.size());
  return "gpt-oss-" + (size == "latest" ? "20b" : size);  // which Ollama means by it
}

std::vector<std::string> repos_of(const std::string& asked) {
  const std::string name = plain_name(asked);
  if (is_repo(name)) return {name};
  if (!is_repo("openai/" + name)) return {};
  return {"openai/" + name, "ggml-org/" + name + "-GGUF"};
}

fs::path repo_folder(const fs::path& cache, const std::string& repo) {
  const size_t slash = repo.find('/');
  return cache / (std::string(kPrefix) + repo.substr(0, slash) + std::string(kBetween) + repo.substr(slash + 1));
}

std::optional<fs::path> model_in(const fs::path& directory) {
  if (is_there(directory / "config.json") || holds(directory, ".gguf")) return directory;
  if (is_there(directory / "original" / "config.json")) return directory / "original";
  return std::nullopt;
}

std::string lacking_file(const fs::path& directory) {
  if (!is_there(directory / "config.json"))
    return holds(directory, ".gguf") ? lacking_gguf_part(directory) : "config.json";
  const std::string index_name = "model.safetensors.index.json";
  if (!is_there(directory / index_name)) return holds(directory, ".safetensors") ? "" : "model.safetensors";
  const auto index = read_json(start_of(directory / index_name, kMostIndexBytes));
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) return {};  // told later
  std::set<std::string> files;
  for (const auto& file : index["weight_map"]) {
    if (file.is_string()) files.insert(file.get<std::string>());
  }
  for (const std::string& file : files) {
    if (!is_there(directory / file)) return file;
  }
  return {};
}

std::vector<Snapshot> snapshots_of(const fs::path& cache, const std::string& repo) {
  const fs::path folder = repo_folder(cache, repo);
  const auto refs = refs_of(folder);
  std::vector<std::pair<fs::file_time_type, Snapshot>> found;
  for (const fs::path& path : entries_of(folder / "snapshots")) {
    const auto model = model_in(path);
    if (!model) continue;
    Snapshot snapshot{.repo = repo, .commit = path.filename().string(), .path = *model, .lacks = lacking_file(*model)};
    if (const auto it = refs.find(snapshot.commit); it != refs.end()) snapshot.refs = it->second;
    snapshot.bytes = bytes_of(path);
    std::error_code ignored;
    found.emplace_back(fs::last_write_time(path, ignored), std::move(snapshot));
  }
  const auto is_main = [](const Snapshot& s) { return std::ranges::find(s.refs, "main") != s.refs.end(); };
  std::stable_sort(found.begin(), found.end(), [&](const auto& a, const auto& b) {
    return std::pair(is_main(a.second), a.first) > std::pair(is_main(b.second), b.first);
  });
  std::vector<Snapshot> snapshots;
  for (auto& [time, snapshot] : found) snapshots.push_back(std::move(snapshot));
  return snapshots;
}

std::vector<Snapshot> models_below(const fs::path& folder) {
  std::vector<Snapshot> models;
  for (const fs::path& path : entries_of(folder)) {
    const auto model = path.extension() == ".gguf" ? std::optional(path) : model_in(path);
    if (!model) continue;
    models.push_back({.repo = path.filename().string(),
                      .commit = {},
                      .path = *model,
                      .lacks = path == *model && path.extension() == ".gguf" ? "" : lacking_file(*model)});
    models.back().bytes = bytes_of(*model);
  }
  return models;
}

std::vector<Snapshot> all_snapshots(const fs::path& cache) {
  std::vector<Snapshot> all;
  for (const fs::path& folder : entries_of(cache)) {
    std::string name = folder.filename().string();
    if (!name.starts_with(kPrefix)) continue;
    name = name.substr(kPrefix.size());
    const size_t between = name.find(kBetween);
    if (between == std::string::npos) continue;
    name.replace(between, kBetween.size(), "/");
    if (!is_repo(name)) continue;
    for (Snapshot& snapshot : snapshots_of(cache, name)) all.push_back(std::move(snapshot));
  }
  return all;
}

namespace {

fs::path locks_of(const fs::path& folder) { return folder.parent_path() / ".locks" / folder.filename(); }

void want_unlocked(const fs::path& folder, const std::string& repo) {
  for (const fs::path& file : files_below(locks_of(folder))) {
    const int fd = ::open(file.c_str(), O_RDWR | O_CLOEXEC);
    const bool held = fd >= 0 && ::flock(fd, LOCK_EX | LOCK_NB) != 0;
    if (fd >= 0) ::close(fd);
    if (held) throw Error(Code::kIo, "{}: another program writes to it; try again when that is done", repo);
  }
}

// The blobs that a snapshot's links point to; only those of this model.
std::set<fs::path> blobs_of_snapshot(const fs::path& folder, const std::string& commit) {
  std::set<fs::path> blobs;
  for (const fs::path& file : files_below(folder / "snapshots" / commit)) {
    if (!fs::is_symlink(file)) continue;
    const fs::path target = (file.parent_path() / fs::read_symlink(file)).lexically_normal();
    if (target.parent_path() == (folder / "blobs").lexically_normal()) blobs.insert(target);
  }
  return blobs;
}

}  // namespace

Removal plan_removal(const fs::path& cache, const std::string& repo, const std::string& revision) {
  Removal removal{.folder = repo_folder(cache, repo)};
  const fs::path& folder = removal.folder;
  if (!fs::is_directory(folder))
    throw Error(Code::kInvalidRequest, "{} is not in {}; nibble list shows what is", repo, cache.string());
  if (fs::canonical(folder).parent_path() != fs::canonical(cache)) {
    throw Error(Code::kInvalidRequest, "{}: want a folder of the cache, found a link to {}; nothing is removed there",
                folder.string(), fs::canonical(folder).string());
  }
  want_unlocked(folder, repo);
  std::vector<std::string> commits;
  for (const fs::path& path : entries_of(folder / "snapshots")) commits.push_back(path.filename().string());
  const auto refs = refs_of(folder);
  std::string commit = revision;
  for (const auto& [named, names] : refs)
    if (std::ranges::find(names, revision) != names.end()) commit = named;
  if (!revision.empty() && std::ranges::find(commits, commit) == commits.end())
    throw Error(Code::kInvalidRequest, "{} has no revision {} in the cache", repo, revision);
  removal.everything = revision.empty() || commits.size() == 1;
  if (removal.everything) {
    removal.commits = commits;
    for (const fs::path& file : files_below(folder))
      if (!fs::is_symlink(file)) removal.bytes += bytes_of(file);
    return removal;
  }
  removal.commits = {commit};
  std::set<fs::path> blobs = blobs_of_snapshot(folder, commit);
  for (const std::string& other : commits) {
    if (other == commit) continue;
    for (const fs::path& used : blobs_of_snapshot(folder, other)) blobs.erase(used);
  }
  removal.files.assign(blobs.begin(), blobs.end());
  for (const fs::path& blob : blobs) removal.bytes += bytes_of(blob);
  if (const auto it = refs.find(commit); it != refs.end())
    for (const std::string& name : it->second) removal.files.push_back(folder / "refs" / name);
  return removal;
}

void remove(const Removal& removal) {
  if (removal.everything) {
    fs::remove_all(removal.folder);  // links, not what they point to
    fs::remove_all(locks_of(removal.folder));
    return;
  }
  for (const std::string& commit : removal.commits) fs::remove_all(removal.folder / "snapshots" / commit);
  for (const fs::path& file : removal.files) fs::remove(file);
}

namespace {

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

}  // namespace

std::optional<Snapshot> find_model(const std::string& asked, const Settings& settings, const std::string& revision) {
  if (asked.empty()) return std::nullopt;
  if (revision.empty() && is_there(asked)) {
    if (auto snapshot = cached_repo(asked)) return snapshot;
    return Snapshot{.path = model_in(asked).value_or(asked)};
  }
  const std::string name = plain_name(asked);
  if (repos_of(name).empty()) return std::nullopt;
  for (const fs::path& path : revision.empty() ? paths_for(name, settings) : std::vector<fs::path>()) {
    if (const auto model = model_in(path)) return Snapshot{.path = *model};
    if (const fs::path file = path.string() + ".gguf"; is_there(file)) return Snapshot{.path = file};
  }
  std::optional<Snapshot> in_part;
  for (const std::string& repo : repos_of(name)) {
    std::vector<Snapshot> snapshots = snapshots_of(settings.cache, repo);
    if (!revision.empty()) std::erase_if(snapshots, [&](const Snapshot& s) { return !is_revision(s, revision); });
    // refs/main's is what is meant, whole or not; without refs/main, any that is whole.
    const auto whole =
        std::ranges::find_if(snapshots, [](const Snapshot& s) { return s.lacks.empty() || is_revision(s, "main"); });
    if (whole != snapshots.end() && whole->lacks.empty()) return std::move(*whole);
    if (!in_part && !snapshots.empty()) in_part = std::move(snapshots.front());
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
