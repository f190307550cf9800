#pragma once
// A cache of models to write to, gone again at the end.

#include "hub/cache.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace nibble::hub {

inline void put(const std::filesystem::path& file, std::string_view content) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary) << content;
}

class TestCache {
 public:
  TestCache() {
    std::string name = std::filesystem::temp_directory_path() / "nibble_hub_XXXXXX";
    path_ = mkdtemp(name.data());
  }
  ~TestCache() { std::filesystem::remove_all(path_); }
  TestCache(const TestCache&) = delete;
  TestCache& operator=(const TestCache&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::filesystem::path folder(const std::string& repo) const { return repo_folder(path_, repo); }
  // Made where it is not there.
  std::filesystem::path snapshot(const std::string& repo, const std::string& commit) const {
    const std::filesystem::path path = folder(repo) / "snapshots" / commit;
    std::filesystem::create_directories(path);
    return path;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace nibble::hub
