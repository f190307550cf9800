#pragma once
// Hugging Face's cache of models on disk, as its Python library lays it out:
//   models--openai--gpt-oss-20b/refs/main                  a commit, as text
//                               snapshots/<commit>/<file>  a relative link to
//                               blobs/<etag>               SHA-256 of large files, git's SHA-1 of others
//   .locks/models--openai--gpt-oss-20b/<etag>.lock         held (flock) while a blob is written

#include "hub/http.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace nibble::hub {

// Whether this names a model of the Hub: ORG/NAME.
[[nodiscard]] bool is_repo(const std::string& name);
// As files and the Hub spell it: Ollama's gpt-oss:20b is gpt-oss-20b, other names are themselves.
[[nodiscard]] std::string plain_name(const std::string& name);
// The repositories that a name may mean, likeliest first: itself, or for a bare gpt-oss-20b OpenAI's and ggml-org's.
// Empty where it is no such name.
[[nodiscard]] std::vector<std::string> repos_of(const std::string& asked);

// models--openai--gpt-oss-20b, below the cache.
[[nodiscard]] std::filesystem::path repo_folder(const std::filesystem::path& cache, const std::string& repo);

// A model as far as it is here: one commit of the cache's, or a path without one.
struct Snapshot {
  std::string repo = {}, commit = {};  // where it came from the Hub
  std::filesystem::path path = {};     // of the model in it: the snapshot, or its original/; a directory or a file
  std::string lacks = {};              // a file of the model that is not there; empty where it is whole
  std::vector<std::string> refs = {};  // main, …
  int64_t bytes = 0;                   // of the files it links to
};

// The model in a directory: the directory itself, or original/ in it. None where there is no model.
[[nodiscard]] std::optional<std::filesystem::path> model_in(const std::filesystem::path& directory);
// The name of a file that a model in this directory wants and that is not there; empty where it is whole.
[[nodiscard]] std::string lacking_file(const std::filesystem::path& directory);

// What the cache holds of a model: refs/main's first, then by age, newest first. Snapshots without a model are left
// out. Nothing that is wrong with the cache throws: what cannot be read is not there.
[[nodiscard]] std::vector<Snapshot> snapshots_of(const std::filesystem::path& cache, const std::string& repo);
// Snapshots of all models, by name.
[[nodiscard]] std::vector<Snapshot> all_snapshots(const std::filesystem::path& cache);

// What a folder such as ./models holds: directories and .gguf files, by their names, without a commit.
[[nodiscard]] std::vector<Snapshot> models_below(const std::filesystem::path& folder);

// What removing a model, or a revision of it, takes away.
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

// The files that a model's name means. Looked for in this order: the path `asked`; NAME and NAME.gguf below ./models,
// with and without the organisation; the cache, where a bare gpt-oss-20b is OpenAI's or ggml-org's. A directory that
// holds a whole repository of the cache or only original/ is taken as the model in it. None where nothing is found.
// revision: a ref or a commit, of which the cache alone knows; empty: any, refs/main's first.
[[nodiscard]] std::optional<Snapshot> find_model(const std::string& asked, const Settings& settings,
                                                 const std::string& revision = "");

// The places that find_model() looked into, for a message.
[[nodiscard]] std::vector<std::string> places_for(const std::string& name, const Settings& settings);

}  // namespace nibble::hub
