#pragma once
// Which files a model's name means.

#include "hub/http.h"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace nibble::hub {

struct FoundModel {
  std::filesystem::path path;  // a directory, or a file
  std::string repo = {};       // where it came from the Hub
  std::string lacks = {};      // a file of it that is not there; empty where it is whole
};

// Looked for in this order: the path `asked`; NAME and NAME.gguf below ./models, with and without the organisation;
// the cache, where a bare gpt-oss-20b is OpenAI's or ggml-org's. A directory that holds a whole repository of the cache
// or only original/ is taken as the model in it. None where nothing is found.
// revision: a ref or a commit, of which the cache alone knows; empty: any, refs/main's first.
[[nodiscard]] std::optional<FoundModel> find_model(const std::string& asked, const Settings& settings,
                                                   const std::string& revision = "");

// The places that find_model() looked into, for a message.
[[nodiscard]] std::vector<std::string> places_for(const std::string& name, const Settings& settings);

}  // namespace nibble::hub
