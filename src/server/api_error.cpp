#include "server/api_error.h"

#include "text/text_stream.h"

#include <algorithm>
#include <new>

namespace nibble::server {
namespace {

std::string_view type_of(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    default: return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

int status_of(Code code) {
  switch (code) {
    case Code::kInvalidRequest:
    case Code::kUnsupported: return 400;
    case Code::kBusy: return 429;
    case Code::kCorrupt:
    case Code::kIo:
    case Code::kOutOfMemory:
    case Code::kDevice: return 500;
  }
  return 500;
}

std::string shortened(std::string_view text) {
  std::string out(text::beginning_of(text, 1000));
  if (out.size() < text.size()) out += "…";
  std::replace(out.begin(), out.end(), '\0', '?');  // what() would end there
  return out;
}

}  // namespace

ApiError::ApiError(std::string_view param, std::string_view message, int status, std::string code)
    : Error(Code::kInvalidRequest, shortened(message)),
      param_(shortened(param)),
      code_(code.empty() && !param.empty() ? "invalid_value" : std::move(code)),
      status_(status) {}

Json ApiError::json() const {
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  return {{"error",
           {{"message", what()}, {"type", type_of(status_)}, {"param", or_null(param_)}, {"code", or_null(code_)}}}};
}

ApiError shutting_down() { return {"", "the server is shutting down", 503, "shutting_down"}; }

ApiError api_error_of(const std::exception& error) {
  if (const auto* known = dynamic_cast<const ApiError*>(&error)) return *known;
  if (const auto* ours = dynamic_cast<const Error*>(&error)) {
    const int status = status_of(ours->code());
    return {"", ours->what(), status, status == 429 ? "queue_full" : ""};
  }
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return {"", "out of memory", 503};
  return {"", "internal error", 500};
}

std::string to_text(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace nibble::server
