#pragma once
// Which model `nibble serve` means.

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace nibble::app {

struct NamedModel {
  std::string directory;
  std::vector<std::string> names;  // under which it is served
};

// A directory, or a name like openai/gpt-oss-20b: looked for in ./models and in Hugging Face's cache. Empty: the small
// model that comes with nibble. Throws Error(kIo) saying where it looked.
[[nodiscard]] NamedModel find_model(const std::string& name, const std::string& huggingface_cache);

}  // namespace nibble::app
