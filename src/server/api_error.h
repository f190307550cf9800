#pragma once
// What a client is told if its request is not served: OpenAI's error object and an HTTP status.

#include "base/error.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace nibble::server {

using Json = nlohmann::ordered_json;

class ApiError : public Error {
 public:
  // For a field that is wrong or not served: status 400, or another one. An error without a code of its own has
  // "invalid_value". Texts longer than 1000 bytes are cut, since both may repeat the request's own words.
  ApiError(std::string_view param, std::string_view message, int status = 400, std::string code = "");

  [[nodiscard]] int status() const { return status_; }
  [[nodiscard]] const std::string& param() const { return param_; }
  [[nodiscard]] const std::string& openai_code() const { return code_; }  // empty: none
  // The tokens of a prompt that is too long; none: another error.
  [[nodiscard]] std::optional<int64_t> prompt_tokens() const { return prompt_tokens_; }
  ApiError&& with_prompt(int64_t tokens) && {
    prompt_tokens_ = tokens;
    return std::move(*this);
  }
  // {"error": {message, type, param, code}}
  [[nodiscard]] Json json() const;

 private:
  std::string param_;  // path of the field; empty: none
  std::string code_;   // OpenAI's short name of the error; empty: none
  int status_;
  std::optional<int64_t> prompt_tokens_;
};

// About the field at `path`, which the message begins with.
template <class... Args>
[[nodiscard]] ApiError invalid_value(std::string_view path, fmt::format_string<Args...> text, Args&&... args) {
  return {path, fmt::format("{}: {}", path, fmt::format(text, std::forward<Args>(args)...))};
}
template <class... Args>
[[nodiscard]] ApiError unsupported_value(std::string_view path, fmt::format_string<Args...> text, Args&&... args) {
  return {path, fmt::format("{}: {}", path, fmt::format(text, std::forward<Args>(args)...)), 400, "unsupported_value"};
}
// For requests that were under way when the server ended.
[[nodiscard]] ApiError shutting_down();
// What the client may see of any exception.
[[nodiscard]] ApiError api_error_of(const std::exception& error);

// JSON text; invalid UTF-8 becomes U+FFFD.
[[nodiscard]] std::string to_text(const Json& json);

}  // namespace nibble::server
