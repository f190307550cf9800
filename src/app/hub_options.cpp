#include "app/hub_options.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <initializer_list>

namespace nibble::app {
namespace {

namespace fs = std::filesystem;

// The first of these variables that is set.
std::optional<std::string> first_of(const Environment& environment, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (auto value = environment(name); value && !value->empty()) return value;
  }
  return std::nullopt;
}

bool is_true(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text == "1" || text == "true" || text == "yes" || text == "on";
}

}  // namespace

hub::Settings hub_settings(const Environment& environment) {
  const std::string home = environment("HOME").value_or("");
  const auto expanded = [&home](const std::string& path) -> fs::path {
    return path.starts_with("~/") ? home + path.substr(1) : path;
  };
  const auto variable = [&](std::initializer_list<const char*> names) { return first_of(environment, names); };
  const fs::path caches = expanded(variable({"XDG_CACHE_HOME"}).value_or(home + "/.cache"));
  const auto hf_home = variable({"HF_HOME"});
  const fs::path root = hf_home ? expanded(*hf_home) : caches / "huggingface";
  hub::Settings settings;
  const auto cache = variable({"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"});
  settings.cache = cache ? expanded(*cache) : root / "hub";
  if (auto endpoint = variable({"HF_ENDPOINT"})) settings.endpoint = std::move(*endpoint);
  while (settings.endpoint.ends_with('/')) settings.endpoint.pop_back();
  settings.token = variable({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}).value_or("");
  const auto token_file = variable({"HF_TOKEN_PATH"});
  settings.token_file = token_file ? expanded(*token_file) : root / "token";
  settings.certificates = variable({"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE"}).value_or("");
  settings.offline = is_true(variable({"HF_HUB_OFFLINE"}).value_or(""));
  return settings;
}

}  // namespace nibble::app
