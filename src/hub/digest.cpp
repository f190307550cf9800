#include "hub/digest.h"

#include "base/error.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>
#include <cerrno>
#include <memory>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

namespace nibble::hub {

std::string digest_of(const std::filesystem::path& file, DigestKind kind, const std::function<bool(int64_t)>& go_on) {
  const auto fail = [&file](const char* action) {
    return Error(Code::kIo, "{}: cannot {}: {}", file.string(), action, std::generic_category().message(errno));
  };
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  check(context && EVP_DigestInit_ex(context.get(), kind == DigestKind::kGit ? EVP_sha1() : EVP_sha256(), nullptr) == 1,
        "OpenSSL knows the digest");
  if (kind == DigestKind::kGit) {
    const std::string head = fmt::format("blob {}", std::filesystem::file_size(file));
    EVP_DigestUpdate(context.get(), head.c_str(), head.size() + 1);
  }
  const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw fail("open");
  const std::unique_ptr<const int, void (*)(const int*)> closer(&fd, [](const int* f) { ::close(*f); });
  std::vector<char> buffer(size_t{1} << 20);
  while (true) {
    const ssize_t bytes = ::read(fd, buffer.data(), buffer.size());
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) throw fail("read");
    if (bytes == 0) break;
    EVP_DigestUpdate(context.get(), buffer.data(), static_cast<size_t>(bytes));
    if (!go_on(bytes)) return {};
  }
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  EVP_DigestFinal_ex(context.get(), digest.data(), &size);
  std::string text;
  for (unsigned int i = 0; i < size; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

}  // namespace nibble::hub
