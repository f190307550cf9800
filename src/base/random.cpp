#include "base/random.h"

#include "base/error.h"

#include <cerrno>
#include <cstring>

namespace nibble {

void fill_unguessable(std::span<uint8_t> bytes) {
  if (getentropy(bytes.data(), bytes.size()) != 0)
    throw Error(Code::kIo, "want {} bytes from the system's random generator: {}", bytes.size(), std::strerror(errno));
}

}  // namespace nibble
