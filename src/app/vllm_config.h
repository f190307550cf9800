#pragma once
// vLLM's flags that hold several settings: --compilation-config and its like.

#include <string>
#include <vector>

namespace nibble::app {

struct ConfigField {
  std::string name, value;  // a number alone, as of -O3, has no name
};
// A JSON object, name=value or, of --compilation-config, a number. Ends the parse for anything else.
[[nodiscard]] std::vector<ConfigField> config_fields(const std::string& flag, const std::string& value);

}  // namespace nibble::app
