#pragma once
// Files of the Hub into the cache: in parts, several at a time, kept across interruptions, checked before they count.

#include "hub/http.h"
#include "hub/listing.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace nibble::hub {

struct PullRequest {
  std::string repo, revision = "main";
  std::vector<std::string> include;  // globs over paths; empty: all but what the model does not need twice
};

struct PullPlan {
  Listing listing;             // of the files that are wanted
  std::filesystem::path path;  // the snapshot
  int64_t bytes = 0;           // of all files
  int64_t missing_bytes = 0;   // of those, not on disk
};

struct PullProgress {
  bool checking = false;  // all is there; hashes are computed
  int64_t done_bytes = 0, total_bytes = 0;
};

// Called back by the thread that called.
struct PullWatch {
  std::function<void(const PullProgress&)> progress;
  std::function<void(const std::string& note)> note;
  std::function<bool()> stop;
};

// Asks the Hub. Throws what list_repo() throws, Error(kInvalidRequest) where nothing or more than one GGUF model would
// be pulled, Error(kIo) under HF_HUB_OFFLINE. After a stop, a plan without files.
[[nodiscard]] PullPlan plan_pull(const PullRequest& request, const Settings& settings, const PullWatch& watch);

// False where it was stopped; what is there by then stays and is not fetched again. Throws Error(kIo) where the disk
// has too little room or the Hub gives up, Error(kCorrupt) for a file that is not what the Hub said: that one is gone.
[[nodiscard]] bool pull(const PullPlan& plan, const Settings& settings, const PullWatch& watch);

}  // namespace nibble::hub
