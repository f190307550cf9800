#pragma once
// Models of the Hub into the cache: what it says of a model, its commit and its files with sizes and hashes; and the
// files themselves, in parts, several at a time, kept across interruptions, checked before they count.

#include "hub/http.h"
#include "hub/model_name.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace nibble::hub {

struct PullRequest {
  std::string repo, revision = "main";
  std::vector<std::string> include = {};  // globs over paths; empty: all but what the model does not need twice
  std::string which = {};                 // the GGUF model that is meant (ModelName::which); empty: not said
  std::string hint = {};                  // for the user, where there is no such repository
};

struct PullPlan {
  std::string repo, revision, commit;
  std::vector<RepoFile> files;  // those that are wanted
  std::filesystem::path path;   // the snapshot
  int64_t bytes = 0;            // of all files
  int64_t missing_bytes = 0;    // of those, not on disk
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

// Asks the Hub. Of several GGUF models it takes the best_of() and notes which. What is missing is looked at before:
// config.json, or the start of the GGUF file. Throws Error(kInvalidRequest) for a model or a revision that is not there
// or not for us, what other_kind() finds, Error(kIo) where the Hub cannot be reached and under HF_HUB_OFFLINE,
// Error(kCorrupt) for an answer that is none. After a stop, a plan without files.
[[nodiscard]] PullPlan plan_pull(const PullRequest& request, const Settings& settings, const PullWatch& watch);

// False where it was stopped; what is there by then stays and is not fetched again. Throws Error(kIo) where the disk
// has too little room or the Hub gives up, Error(kCorrupt) for a file that is not what the Hub said: that one is gone.
[[nodiscard]] bool pull(const PullPlan& plan, const Settings& settings, const PullWatch& watch);

}  // namespace nibble::hub
