#pragma once
// Settings from servers' configuration files, in the flat part of YAML and of TOML: one `name: value` or `name = value`
// per line, lists as `[a, b]` or, in YAML, one `- item` per line; in YAML also an object, in JSON or as an indented
// block of `name: value`, whose value is its JSON. Everything else (tables, anchors, tags, values of several lines) is
// refused.

#include <string>
#include <string_view>
#include <vector>

namespace nibble::app {

struct FlatSetting {
  std::string name;
  std::vector<std::string> values;
};

// Throw Error(kInvalidRequest) naming the line.
[[nodiscard]] std::vector<FlatSetting> parse_flat_yaml(std::string_view text);
[[nodiscard]] std::vector<FlatSetting> parse_flat_toml(std::string_view text);

}  // namespace nibble::app
