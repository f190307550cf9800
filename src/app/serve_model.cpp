#include "app/serve_model.h"

#include "base/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

namespace nibble::app {
namespace {

namespace fs = std::filesystem;

bool is_model(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path / "config.json", ignored);
}

// Beside the program: in its source tree, or installed as ../share/nibble.
std::optional<fs::path> own_model() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error) return std::nullopt;
  for (fs::path folder = program.parent_path(); folder.has_relative_path(); folder = folder.parent_path()) {
    for (const char* place : {"models/nibble-tiny", "share/nibble/models/nibble-tiny"}) {
      if (is_model(folder / place)) return folder / place;
    }
  }
  return std::nullopt;
}

// hub/models--openai--gpt-oss-20b/snapshots/<commit>: the newest.
std::optional<fs::path> snapshot_of(const fs::path& cache, std::string name) {
  for (size_t at = 0; (at = name.find('/', at)) != std::string::npos;) name.replace(at, 1, "--");
  std::error_code error;
  std::optional<fs::path> newest;
  for (const auto& entry : fs::directory_iterator(cache / ("models--" + name) / "snapshots", error)) {
    if (!is_model(entry.path())) continue;
    if (!newest || fs::last_write_time(entry.path(), error) > fs::last_write_time(*newest, error))
      newest = entry.path();
  }
  return newest;
}

}  // namespace

NamedModel find_model(const std::string& name, const std::string& huggingface_cache) {
  if (name.empty()) {
    const auto own = own_model();
    if (!own) throw Error(Code::kIo, "want a model (nibble serve DIRECTORY): nibble-tiny is not beside the program");
    return {own->string(), {"nibble-tiny"}};
  }
  std::string last = fs::path(name).filename().string();
  if (last.empty()) last = fs::path(name).parent_path().filename().string();
  std::vector<std::string> names = {name};
  if (last != name && !last.empty()) names.push_back(last);
  std::error_code ignored;
  if (fs::exists(name, ignored)) {
    std::reverse(names.begin(), names.end());  // the last part says enough
    return {name, names};
  }
  std::vector<std::string> looked = {name};
  for (const fs::path& place : {fs::path("models") / name, fs::path("models") / last}) {
    if (is_model(place)) return {place.string(), names};
    if (looked.back() != place.string()) looked.push_back(place.string());
  }
  if (const auto snapshot = snapshot_of(huggingface_cache, name)) return {snapshot->string(), names};
  looked.push_back(huggingface_cache);
  throw Error(Code::kIo, "there is no model {} on this machine; looked in {}. Nothing is downloaded", name,
              fmt::join(looked, ", "));
}

}  // namespace nibble::app
