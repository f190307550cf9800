#pragma once
// Settings in the YAML that configuration files of servers are written in: one `name: value` per line, lists as `[a,
// b]` or one `- item` per line. What else YAML knows (nesting, anchors, tags, texts of several lines) is refused.

#include <string>
#include <string_view>
#include <vector>

namespace nibble::app {

struct YamlSetting {
  std::string name;
  std::vector<std::string> values;
};

// Throws Error(kInvalidRequest) naming the line.
[[nodiscard]] std::vector<YamlSetting> parse_flat_yaml(std::string_view text);

}  // namespace nibble::app
