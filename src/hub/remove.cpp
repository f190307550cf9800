#include "hub/remove.h"

#include "base/error.h"
#include "hub/cache.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

namespace nibble::hub {
namespace {

namespace fs = std::filesystem;

fs::path locks_of(const fs::path& folder) { return folder.parent_path() / ".locks" / folder.filename(); }

std::vector<fs::path> files_below(const fs::path& directory) {
  std::vector<fs::path> files;
  if (!fs::is_directory(directory)) return files;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.is_symlink() || entry.is_regular_file()) files.push_back(entry.path());
  }
  return files;
}

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

std::string ref_text(const fs::path& file) {
  if (!fs::is_regular_file(file)) return {};
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<std::string> commits_of(const fs::path& folder) {
  std::vector<std::string> commits;
  if (!fs::is_directory(folder / "snapshots")) return commits;
  for (const auto& entry : fs::directory_iterator(folder / "snapshots"))
    commits.push_back(entry.path().filename().string());
  return commits;
}

int64_t bytes_of(const fs::path& file) {
  std::error_code error;
  const auto bytes = fs::is_symlink(file) ? 0 : fs::file_size(file, error);
  return error ? 0 : static_cast<int64_t>(bytes);
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
  const std::vector<std::string> commits = commits_of(folder);
  const std::string ref = revision.find("..") == std::string::npos ? ref_text(folder / "refs" / revision) : "";
  const std::string commit = ref.empty() ? revision : ref;
  if (!revision.empty() && std::ranges::find(commits, commit) == commits.end())
    throw Error(Code::kInvalidRequest, "{} has no revision {} in the cache", repo, revision);
  removal.everything = revision.empty() || commits.size() == 1;
  if (removal.everything) {
    removal.commits = commits;
    for (const fs::path& file : files_below(folder)) removal.bytes += bytes_of(file);
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
  for (const fs::path& file : files_below(folder / "refs")) {
    if (ref_text(file) == commit) removal.files.push_back(file);
  }
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

}  // namespace nibble::hub
