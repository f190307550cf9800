#pragma once
// What a folder, a file or a repository is that is no gpt-oss model, by the marks that tools leave: asked before a
// download and before a load.

#include "base/error.h"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace nibble::hub {

struct Marks {
  std::vector<std::string> files = {};    // paths below the folder, with /
  std::string config = {};                // config.json's text; empty: none
  std::vector<std::string> tensors = {};  // names, where they are known
  std::string architecture = {};          // that a GGUF file says it has; empty: not known
  bool is_file = false;                   // files is one file, not a folder's
};

struct OtherKind {
  bool is_family = false;  // a model, but of another family
  Error error;             // one sentence: what it is, and what to do
};

// None where nothing speaks against a gpt-oss model. `name`: for the message.
[[nodiscard]] std::optional<OtherKind> other_kind(const std::string& name, const Marks& marks);

// The marks of a folder or a file here; what cannot be read leaves none.
[[nodiscard]] Marks marks_of(const std::filesystem::path& path);
// Names of the tensors that model.safetensors.index.json lists.
[[nodiscard]] std::vector<std::string> tensors_of_index(const std::string& text);

}  // namespace nibble::hub
