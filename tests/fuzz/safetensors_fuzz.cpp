// Any bytes are either described or refused by an Error; what is described can be read by element.

#include "base/error.h"
#include "checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace {

using nibble::checkpoint::TensorEntry;

// Reads the tensor as its element type would: an address or a length that is wrong shows up in the sanitizers.
template <class T>
uint64_t sum_of(const TensorEntry& entry) {
  const T* values = reinterpret_cast<const T*>(entry.tensor.bytes.data());
  uint64_t sum = 0;
  for (size_t i = 0; i < entry.tensor.bytes.size() / sizeof(T); ++i) sum += values[i];
  return sum;
}

uint64_t read(const TensorEntry& entry) {
  switch (nibble::bytes_of(entry.tensor.dtype)) {
    case 1: return sum_of<uint8_t>(entry);
    case 2: return sum_of<uint16_t>(entry);
    case 4: return sum_of<uint32_t>(entry);
    default: return sum_of<uint64_t>(entry);
  }
}

// Input that begins with a brace is a header, and behind a newline the data; a right length is put before it, which
// mutation alone would seldom find. Other input is a file as it is.
std::vector<std::byte> file_of(std::string_view input) {
  std::string text(input);
  if (text.starts_with('{')) {
    const size_t cut = std::min(text.find('\n'), text.size());
    const std::string data = text.substr(std::min(cut + 1, text.size()));
    text.resize(cut);
    text.resize((cut + 7) / 8 * 8, ' ');
    const uint64_t length = text.size();
    text = std::string(reinterpret_cast<const char*>(&length), sizeof length) + text + data;
  }
  std::vector<std::byte> file(text.size());  // aligned, as a mapping is
  if (!file.empty()) std::memcpy(file.data(), text.data(), text.size());
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::vector<std::byte> file = file_of({reinterpret_cast<const char*>(data), size});
  try {
    const auto content = nibble::checkpoint::parse_safetensors(file, "fuzz");
    uint64_t sum = 0, bytes = 0;
    for (const TensorEntry& entry : content.entries) {
      sum += read(entry);
      bytes += entry.tensor.bytes.size();
    }
    nibble::check(bytes <= file.size(), "tensors lie in the file");
    volatile uint64_t keep = sum;
    static_cast<void>(keep);
  } catch (const nibble::Error&) {
  }
  return 0;
}
