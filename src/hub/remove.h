#pragma once
// Models out of the cache again.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace nibble::hub {

struct Removal {
  std::filesystem::path folder;  // of the model in the cache
  bool everything = false;       // no other revision stays
  std::vector<std::string> commits = {};
  std::vector<std::filesystem::path> files = {};  // refs, and blobs that no other revision uses
  int64_t bytes = 0;                              // that the disk gets back
};

// `revision`: a ref or a commit; empty: all. Throws Error(kInvalidRequest) where there is no such thing in the cache or
// its folder is really somewhere else, Error(kIo) while another program writes to it.
[[nodiscard]] Removal plan_removal(const std::filesystem::path& cache, const std::string& repo,
                                   const std::string& revision);
void remove(const Removal& removal);

}  // namespace nibble::hub
