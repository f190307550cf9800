#pragma once
// What the Hub says of a model: its commit, and its files with sizes and hashes.

#include "hub/http.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace nibble::hub {

struct RepoFile {
  std::string path;  // below the repository, as safe as it looks
  int64_t bytes = 0;
  std::string digest = {};  // which also names its blob
  bool large = false;       // the digest is SHA-256 of an LFS file, else git's
};

struct Listing {
  std::string repo, revision, commit;
  std::vector<RepoFile> files;
};

// How often to ask again where the Hub does not answer, and whom to tell.
struct Patience {
  int attempts = 4;
  std::function<void(const std::string& note)> note;
  std::function<bool()> stop;
};

// Throws Error(kInvalidRequest) for a model or a revision that is not there or not for us, Error(kUnsupported) for
// another family of models, Error(kIo) where the Hub cannot be reached, Error(kCorrupt) for an answer that is none.
[[nodiscard]] Listing list_repo(Http& http, const Settings& settings, const std::string& repo,
                                const std::string& revision, const Patience& patience);

// What an answer that is no success means for `what`, in the user's words.
[[noreturn]] void refuse_answer(const HttpAnswer& answer, const Settings& settings, const std::string& repo,
                                const std::string& what);
// False once `stop` says so.
bool wait_for(double seconds, const std::function<bool()>& stop);

}  // namespace nibble::hub
