#include "base/error.h"

#include <cstdio>
#include <cstdlib>

namespace nibble {

std::string_view name_of(Code code) {
  switch (code) {
    case Code::kInvalidRequest: return "invalid request";
    case Code::kUnsupported: return "unsupported";
    case Code::kCorrupt: return "corrupt";
    case Code::kIo: return "io";
    case Code::kOutOfMemory: return "out of memory";
    case Code::kDevice: return "device";
    case Code::kBusy: return "busy";
  }
  return "unknown";
}

void check_failed(std::string_view message, std::source_location where) {
  fmt::print(stderr, "nibble: broken invariant at {}:{} ({}): {}\n", where.file_name(), where.line(),
             where.function_name(), message);
  std::abort();
}

}  // namespace nibble
