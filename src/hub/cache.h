#pragma once
// Hugging Face's cache of models on disk, as its Python library lays it out:
//   models--openai--gpt-oss-20b/refs/main                  a commit, as text
//                               snapshots/<commit>/<file>  a relative link to
//                               blobs/<etag>               SHA-256 of large files, git's SHA-1 of others
//   .locks/models--openai--gpt-oss-20b/<etag>.lock         held (flock) while a blob is written

#include "hub/http.h"
#include "hub/model_name.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace nibble::hub {

// models--openai--gpt-oss-20b, below the cache.
[[nodiscard]] std::filesystem::path repo_folder(const std::filesystem::path& cache, const std::string& repo);

// A model as far as it is here: one of a commit of the cache's, or a path without one.
struct Snapshot {
  std::string repo = {}, commit = {};  // where it came from the Hub
  std::filesystem::path path = {};     // the directory of safetensors; of GGUF the first part's file
  std::string lacks = {};              // a file of the model that is not there; empty where it is whole
  std::vector<std::string> refs = {};  // main, …
  int64_t bytes = 0;                   // of the files it links to
  GgufModel gguf = {};                 // without a path: safetensors
  std::string name = {};               // as one can type it
  std::string choice = {};             // for the user, where nobody said which of several; else empty
};

// The models in a directory: that of safetensors, in it or in its original/, then GGUF files, in any folder.
[[nodiscard]] std::vector<Snapshot> models_in(const std::filesystem::path& directory);
// The name of a file that safetensors in this directory want and that is not there; empty where all are.
[[nodiscard]] std::string lacking_file(const std::filesystem::path& directory);

// What the cache holds of a repository, a model each: refs/main's first, then by age, newest first. Nothing that is
// wrong with the cache throws: what cannot be read is not there.
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
  std::vector<std::filesystem::path> files = {};  // refs, links, and blobs that nothing that stays uses
  int64_t bytes = 0;                              // that the disk gets back
};

// `revision`: a ref or a commit; empty: all. `which`: only the GGUF model of that name (ModelName::which), of these
// revisions. Throws Error(kInvalidRequest) where there is no such thing in the cache or its folder is really somewhere
// else, Error(kIo) while another program writes to it.
[[nodiscard]] Removal plan_removal(const std::filesystem::path& cache, const std::string& repo,
                                   const std::string& revision, const std::string& which = "");
void remove(const Removal& removal);

// The files that a model's name means. Looked for in this order: the path `asked`; NAME and NAME.gguf below ./models,
// with and without the organisation; the cache, where a bare gpt-oss-20b is OpenAI's or ggml-org's; Ollama's stores.
// Where there are several GGUF models, best_of() chooses. A directory that holds a whole repository of the cache or
// only original/ is taken as the model in it. None where nothing is found. revision: a ref or a commit, of which the
// cache alone knows; empty: the name's, or any, refs/main's first. Throws Error(kInvalidRequest) for a path to several
// models, and what find_in_ollama() throws.
[[nodiscard]] std::optional<Snapshot> find_model(const std::string& asked, const Settings& settings,
                                                 const std::string& revision = "");

// The places that find_model() looked into, for a message.
[[nodiscard]] std::vector<std::string> places_for(const std::string& name, const Settings& settings);

// A model in one of Ollama's stores by the name that Ollama has for it (gpt-oss:20b, hf.co/ORG/REPO:QUANT), a GGUF file
// without that ending. None where no store lists it. Throws Error(kIo) where one does and the file cannot be read,
// Error(kCorrupt) for a manifest without a model.
[[nodiscard]] std::optional<std::filesystem::path> find_in_ollama(const std::string& asked, const Settings& settings);

// Files and links to some, in a directory and in so many levels of folders; nothing where it cannot be read.
[[nodiscard]] std::vector<std::filesystem::path> files_below(const std::filesystem::path& directory, int folders = 8);
// At most so many bytes; nothing of what is no file or cannot be read.
[[nodiscard]] std::string start_of(const std::filesystem::path& file, size_t most);

}  // namespace nibble::hub
