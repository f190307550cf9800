#include "hub/cache.h"

#include "base/error.h"
#include "base/read_json.h"
#include "checkpoint/gguf_checkpoint.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
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
constexpr int kModelFolders = 2;  // one below the other, of a model's files: somebody may name their home
constexpr size_t kMostIndexBytes = size_t{64} << 20;

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);  // false for a link to nothing
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

std::vector<GgufModel> ggufs_of(const fs::path& directory, const std::vector<fs::path>& files) {
  std::vector<RepoFile> named;
  for (const fs::path& file : files) {
    std::error_code error;
    const auto bytes = fs::file_size(file, error);  // of a link to nothing: none
    named.push_back({file.lexically_relative(directory).generic_string(), error ? 0 : static_cast<int64_t>(bytes)});
  }
  return gguf_models(named);
}

// A file of a GGUF model's that is not there.
std::string lacking_part(const fs::path& first) {
  const auto name = checkpoint::gguf_part_name(first);
  for (int64_t part = 0; name && part < name->parts; ++part) {
    const fs::path other = checkpoint::gguf_part_path(name->stem, part, name->parts);
    if (!is_there(other)) return other.filename().string();
  }
  return is_there(first) ? "" : first.filename().string();
}

Snapshot gguf_snapshot(const fs::path& directory, const GgufModel& model) {
  const fs::path path = directory / model.path;
  return {.path = path, .lacks = lacking_part(path), .bytes = model.bytes, .gguf = model};
}

// By commit the names that point to it: refs/main, refs/refs/pr/1.
std::map<std::string, std::vector<std::string>> refs_of(const fs::path& folder) {
  std::map<std::string, std::vector<std::string>> refs;
  const fs::path root = folder / "refs";
  for (const fs::path& file : files_below(root))
    if (fs::is_regular_file(file)) refs[start_of(file, 64)].push_back(file.lexically_relative(root).string());
  return refs;
}

// Bytes of files, and behind their links.
int64_t bytes_of(const std::vector<fs::path>& files) {
  int64_t bytes = 0;
  std::error_code error;
  for (const fs::path& file : files)
    if (const auto size = fs::is_regular_file(file, error) ? fs::file_size(file, error) : 0; !error)
      bytes += static_cast<int64_t>(size);
  return bytes;
}

fs::path locks_of(const fs::path& folder) { return folder.parent_path() / ".locks" / folder.filename(); }

void want_unlocked(const fs::path& folder, const std::string& repo) {
  for (const fs::path& file : files_below(locks_of(folder))) {
    const int fd = ::open(file.c_str(), O_RDWR | O_CLOEXEC);
    const bool held = fd >= 0 && ::flock(fd, LOCK_EX | LOCK_NB) != 0;
    if (fd >= 0) ::close(fd);
    if (held) throw Error(Code::kIo, "{}: another program writes to it; try again when that is done", repo);
  }
}

// Where a snapshot's link points to; empty where that is no blob of this model.
fs::path blob_of(const fs::path& folder, const fs::path& link) {
  if (!fs::is_symlink(link)) return {};
  const fs::path target = (link.parent_path() / fs::read_symlink(link)).lexically_normal();
  return target.parent_path() == (folder / "blobs").lexically_normal() ? target : fs::path();
}

std::vector<fs::path> paths_for(const std::string& name, const Settings& settings) {
  const fs::path last = fs::path(name).filename();
  std::vector<fs::path> paths = {settings.models / name};
  if (last != name) paths.push_back(settings.models / last);
  return paths;
}

// The one of them that is meant, all of one commit or folder: `which`, or the best of the whole ones.
std::optional<Snapshot> chosen(std::vector<Snapshot> models, const std::string& which, const Settings& settings) {
  std::vector<GgufModel> ggufs;
  const auto is_whole = [](const Snapshot& model) { return model.lacks.empty(); };
  const bool any_whole = std::ranges::any_of(models, is_whole);
  if (which.empty()) std::erase_if(models, [&](const Snapshot& model) { return any_whole && !is_whole(model); });
  for (const Snapshot& model : models)
    if (!model.gguf.path.empty()) ggufs.push_back(model.gguf);
  if (!which.empty()) ggufs = meant_by(which, ggufs);
  const bool has_safetensors = which.empty() && !models.empty() && models.front().gguf.path.empty();
  if (has_safetensors) return std::move(models.front());
  if (ggufs.empty()) return std::nullopt;
  const GgufModel& best = ggufs.size() == 1 ? ggufs.front() : best_of(ggufs, settings.memory());
  const auto it = std::ranges::find(models, best.path, [](const Snapshot& model) { return model.gguf.path; });
  if (ggufs.size() > 1) it->choice = fmt::format("taking {} of {}", best.which, listed(ggufs));
  return std::move(*it);
}

// models--openai--gpt-oss-20b itself, as one may find it in a file manager.
std::optional<Snapshot> cached_repo(const fs::path& path) {
  const fs::path folder = path.has_filename() ? path : path.parent_path();
  std::error_code ignored;
  if (!fs::is_directory(folder / "snapshots", ignored)) return std::nullopt;
  for (Snapshot& snapshot : all_snapshots(folder.has_parent_path() ? folder.parent_path() : fs::path(".")))
    if (repo_folder("", snapshot.repo).filename() == folder.filename()) return std::move(snapshot);
  return std::nullopt;
}

bool is_revision(const Snapshot& snapshot, const std::string& revision) {
  return snapshot.commit == revision || std::ranges::find(snapshot.refs, revision) != snapshot.refs.end();
}

}  // namespace

std::vector<fs::path> files_below(const fs::path& directory, int folders) {
  std::vector<fs::path> files;
  std::error_code error, ignored;
  for (fs::recursive_directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    if (it.depth() == folders) it.disable_recursion_pending();
    if (it->is_symlink(ignored) || it->is_regular_file(ignored)) files.push_back(it->path());
  }
  return files;
}

std::string start_of(const fs::path& file, size_t most) {
  std::error_code ignored;
  if (!fs::is_regular_file(file, ignored)) return {};  // a pipe would be waited for
  std::ifstream in(file, std::ios::binary);
  std::string text(most, '\0');
  in.read(text.data(), static_cast<std::streamsize>(most));
  text.resize(static_cast<size_t>(std::max<std::streamsize>(in.gcount(), 0)));
  return text;
}

fs::path repo_folder(const fs::path& cache, const std::string& repo) {
  const size_t slash = repo.find('/');
  return cache / (std::string(kPrefix) + repo.substr(0, slash) + std::string(kBetween) + repo.substr(slash + 1));
}

std::vector<Snapshot> models_in(const fs::path& directory) {
  std::vector<fs::path> files = files_below(directory, kModelFolders);
  const std::vector<GgufModel> ggufs = ggufs_of(directory, files);
  std::vector<Snapshot> models;
  for (const fs::path& path : {directory, directory / "original"}) {
    const bool is_model = is_there(path / "config.json") && (ggufs.empty() || holds(path, ".safetensors"));
    if (!is_model || !models.empty()) continue;
    std::erase_if(files, [](const fs::path& file) { return file.extension() == ".gguf"; });
    models.push_back({.path = path, .lacks = lacking_file(path), .bytes = bytes_of(files)});
  }
  for (const GgufModel& gguf : ggufs) models.push_back(gguf_snapshot(directory, gguf));
  return models;
}

std::string lacking_file(const fs::path& directory) {
  if (!is_there(directory / "config.json")) return "config.json";
  const std::string index_name = "model.safetensors.index.json";
  if (!is_there(directory / index_name)) return holds(directory, ".safetensors") ? "" : "model.safetensors";
  const auto index = read_json(start_of(directory / index_name, kMostIndexBytes));
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) return {};  // told later
  std::set<std::string> files;
  for (const auto& file : index["weight_map"])
    if (file.is_string()) files.insert(file.get<std::string>());
  for (const std::string& file : files)
    if (!is_there(directory / file)) return file;
  return {};
}

std::vector<Snapshot> snapshots_of(const fs::path& cache, const std::string& repo) {
  const fs::path folder = repo_folder(cache, repo);
  const auto refs = refs_of(folder);
  std::vector<std::pair<fs::file_time_type, Snapshot>> found;
  for (const fs::path& path : entries_of(folder / "snapshots")) {
    for (Snapshot& model : models_in(path)) {
      model.repo = repo;
      model.name = ModelName{.repo = repo, .which = model.gguf.which}.text();
      model.commit = path.filename().string();
      if (const auto it = refs.find(model.commit); it != refs.end()) model.refs = it->second;
      std::error_code ignored;
      found.emplace_back(fs::last_write_time(path, ignored), std::move(model));
    }
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
  std::vector<fs::path> files;
  for (const fs::path& path : entries_of(folder)) {
    std::error_code ignored;
    if (!fs::is_directory(path, ignored)) files.push_back(path);
    std::vector<Snapshot> of_it = models_in(path);
    for (Snapshot& model : of_it) {
      model.name = path.filename().string();
      if (of_it.size() > 1 && !model.gguf.which.empty()) model.name += ":" + model.gguf.which;
      models.push_back(std::move(model));
    }
  }
  for (const GgufModel& gguf : ggufs_of(folder, files)) {
    models.push_back(gguf_snapshot(folder, gguf));
    models.back().name = gguf.path;
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

Removal plan_removal(const fs::path& cache, const std::string& repo, const std::string& revision,
                     const std::string& which) {
  Removal removal{.folder = repo_folder(cache, repo)};
  const fs::path& folder = removal.folder;
  if (!fs::is_directory(folder))
    throw Error(Code::kInvalidRequest, "{} is not in {}; nibble list shows what is", repo, cache.string());
  if (fs::canonical(folder).parent_path() != fs::canonical(cache))
    throw Error(Code::kInvalidRequest, "{}: want a folder of the cache, found a link to {}; nothing is removed there",
                folder.string(), fs::canonical(folder).string());
  want_unlocked(folder, repo);
  std::vector<std::string> commits;
  for (const fs::path& path : entries_of(folder / "snapshots")) commits.push_back(path.filename().string());
  const auto refs = refs_of(folder);
  std::string commit = revision;
  for (const auto& [named, names] : refs)
    if (std::ranges::find(names, revision) != names.end()) commit = named;
  if (!revision.empty() && std::ranges::find(commits, commit) == commits.end())
    throw Error(Code::kInvalidRequest, "{} has no revision {} in the cache", repo, revision);
  std::set<fs::path> going;  // links
  std::vector<GgufModel> known;
  bool stays = false;  // another model
  for (const std::string& each : commits) {
    const fs::path snapshot = folder / "snapshots" / each;
    const bool is_asked = revision.empty() || each == commit;
    if (which.empty()) {
      for (const fs::path& file : files_below(snapshot))
        if (is_asked) going.insert(file);
      stays = stays || !is_asked;
      continue;
    }
    std::vector<GgufModel> ggufs = ggufs_of(snapshot, files_below(snapshot));
    const std::vector<GgufModel> meant = is_asked ? meant_by(which, ggufs) : std::vector<GgufModel>();
    for (const GgufModel& model : meant)
      for (const std::string& file : model.files) going.insert(snapshot / file);
    stays = stays || models_in(snapshot).size() > meant.size();
    std::ranges::move(ggufs, std::back_inserter(known));
  }
  if (!which.empty() && going.empty())
    throw Error(Code::kInvalidRequest, "{} has no {} in the cache; it has {}", repo, which,
                known.empty() ? "no GGUF files" : listed(known));
  removal.everything = !stays;
  if (removal.everything) {
    removal.commits = commits;
    for (const fs::path& file : files_below(folder))
      if (!fs::is_symlink(file)) removal.bytes += bytes_of({file});
    return removal;
  }
  std::set<fs::path> blobs;
  for (const fs::path& link : going) blobs.insert(blob_of(folder, link));
  for (const fs::path& link : files_below(folder / "snapshots"))
    if (!going.contains(link)) blobs.erase(blob_of(folder, link));
  blobs.erase(fs::path());
  removal.files.assign(blobs.begin(), blobs.end());
  removal.bytes = bytes_of(removal.files);
  if (!which.empty()) {
    removal.files.insert(removal.files.end(), going.begin(), going.end());
    return removal;
  }
  removal.commits = {commit};
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

std::optional<Snapshot> find_model(const std::string& asked, const Settings& settings, const std::string& of) {
  if (asked.empty()) return std::nullopt;
  if (of.empty() && is_there(asked)) {
    if (auto snapshot = cached_repo(asked)) return snapshot;
    std::vector<Snapshot> models = models_in(asked);
    if (models.empty()) return Snapshot{.path = asked};
    if (models.size() == 1 || models.front().gguf.path.empty()) return std::move(models.front());
    std::vector<std::string> paths;
    for (const Snapshot& model : models) paths.push_back(model.path.string());
    throw Error(Code::kInvalidRequest, "{}: want one model, found {}: name one of {}", asked, paths.size(),
                fmt::join(paths, ", "));
  }
  const auto name = parse_name(asked, settings.endpoint);
  if (!name) return std::nullopt;
  const std::string& revision = of.empty() ? name->revision : of;
  for (const fs::path& path : revision.empty() ? paths_for(name->repo, settings) : std::vector<fs::path>()) {
    if (auto model = chosen(models_in(path), name->which, settings)) return model;
    std::error_code ignored;
    for (const fs::path& file : {path, fs::path(path.string() + ".gguf")})
      if (name->which.empty() && fs::is_regular_file(file, ignored)) return Snapshot{.path = file};
  }
  std::optional<Snapshot> in_part;
  for (const std::string& repo : repos_of(*name)) {
    std::vector<Snapshot> snapshots = snapshots_of(settings.cache, repo);
    if (!revision.empty()) std::erase_if(snapshots, [&](const Snapshot& s) { return !is_revision(s, revision); });
    // Commit by commit. refs/main's is what is meant, whole or not; without refs/main, any that is whole.
    for (auto it = snapshots.begin(); it != snapshots.end();) {
      const auto begin = it;
      it = std::find_if(begin, snapshots.end(), [&](const Snapshot& s) { return s.commit != begin->commit; });
      auto model = chosen({std::make_move_iterator(begin), std::make_move_iterator(it)}, name->which, settings);
      if (!model) continue;
      if (model->lacks.empty()) return model;
      const bool is_main = is_revision(*model, "main");
      if (!in_part) in_part = std::move(model);
      if (is_main) break;
    }
  }
  if (in_part || !revision.empty()) return in_part;
  if (const auto blob = find_in_ollama(asked, settings))
    return Snapshot{.path = *blob, .choice = "taking Ollama's " + blob->string()};
  return std::nullopt;
}

std::vector<std::string> places_for(const std::string& name, const Settings& settings) {
  std::vector<std::string> places = {name};
  const auto parsed = parse_name(name, settings.endpoint);
  for (const fs::path& path : paths_for(parsed ? parsed->repo : name, settings)) places.push_back(path.string());
  places.push_back(settings.cache.string());
  for (const fs::path& store : settings.ollama) {
    const bool is_open = ::access((store / "manifests").c_str(), X_OK) == 0;
    if (is_open || errno == EACCES) places.push_back(store.string() + (is_open ? "" : " (closed to this user)"));
  }
  return places;
}

}  // namespace nibble::hub
