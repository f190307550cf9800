#include "app/text_input.h"

#include "base/error.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

namespace nibble::app {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;

std::string read_stream(std::FILE* stream, const std::string& name) {
  std::string text;
  char buffer[1 << 16];
  for (size_t n = 0; (n = std::fread(buffer, 1, sizeof buffer, stream)) > 0;) {
    text.append(buffer, n);
    if (text.size() > kMaxTextBytes)
      throw Error(Code::kInvalidRequest, "{}: want at most {} bytes, found more", name, kMaxTextBytes);
  }
  if (std::ferror(stream) != 0) throw Error(Code::kIo, "{}: cannot read: {}", name, std::strerror(errno));
  return text;
}

}  // namespace

std::string read_text(const TextInput& input) {
  if (input.file.empty() && input.given) return input.text;
  if (input.file.empty() || input.file == "-") return read_stream(stdin, "standard input");
  return read_text(input.file);
}

std::string read_text(const std::filesystem::path& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (file == nullptr) throw Error(Code::kIo, "{}: cannot open: {}", path.string(), std::strerror(errno));
  return read_stream(file.get(), path.string());
}

}  // namespace nibble::app
