#include "app/vllm_config.h"

#include "app/flags.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cctype>

namespace nibble::app {

std::vector<ConfigField> config_fields(const std::string& flag, const std::string& value) {
  const auto digit = [](unsigned char c) { return std::isdigit(c) != 0; };
  if (flag == "--compilation-config" && !value.empty() && std::all_of(value.begin(), value.end(), digit))
    return {{"", value}};
  if (const size_t mark = value.find('='); mark != std::string::npos && mark > 0 && value[0] != '{') {
    std::string name = value.substr(0, mark);
    std::replace(name.begin(), name.end(), '-', '_');
    return {{name, value.substr(mark + 1)}};
  }
  const nlohmann::json json = nlohmann::json::parse(value, nullptr, false);
  if (!json.is_object()) refuse_value(flag, "want a JSON object such as {\"name\": \"value\"}, found " + value);
  std::vector<ConfigField> fields;
  for (const auto& [name, field] : json.items())
    fields.push_back({name, field.is_string() ? field.get<std::string>() : field.dump()});
  return fields;
}

}  // namespace nibble::app
