#include "checkpoint/gguf.h"

#include "checkpoint/part_file.h"

#include <type_traits>

namespace nibble::checkpoint {
namespace {

constexpr uint64_t kAlignment = 32;  // the format's default, so the file need not say it
constexpr uint32_t kVersion = 3;

// Appends values as the format stores them.
class Header {
 public:
  template <class T>
    requires std::is_arithmetic_v<T>
  void put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void put(const std::string& text) {
    put(uint64_t{text.size()});
    bytes_ += text;
  }
  template <class T>
  void put_value(const T& value) {
    put(static_cast<uint32_t>(type_of<T>()));
    put(value);
  }
  template <class T>
  void put_value(const std::vector<T>& values) {
    put(static_cast<uint32_t>(GgufType::kArray));
    put(static_cast<uint32_t>(type_of<T>()));
    put(uint64_t{values.size()});
    for (const T& value : values) put(value);
  }
  void pad() { bytes_.resize((bytes_.size() + kAlignment - 1) / kAlignment * kAlignment, '\0'); }
  [[nodiscard]] std::span<const std::byte> bytes() const { return std::as_bytes(std::span(bytes_)); }

 private:
  template <class T>
  static constexpr GgufType type_of() {
    if constexpr (std::is_same_v<T, bool>) return GgufType::kBool;
    if constexpr (std::is_same_v<T, uint16_t>) return GgufType::kU16;
    if constexpr (std::is_same_v<T, uint32_t>) return GgufType::kU32;
    if constexpr (std::is_same_v<T, int32_t>) return GgufType::kI32;
    if constexpr (std::is_same_v<T, float>) return GgufType::kF32;
    if constexpr (std::is_same_v<T, std::string>) return GgufType::kString;
  }
  std::string bytes_ = "GGUF";
};

}  // namespace

void write_gguf(const std::filesystem::path& path, const GgufPlan& plan,
                const std::function<void(size_t tensor_idx, std::span<std::byte> bytes)>& fill) {
  Header header;
  header.put(kVersion);
  header.put(uint64_t{plan.tensors.size()});
  header.put(uint64_t{plan.metadata.size()});
  for (const GgufEntry& entry : plan.metadata) {
    header.put(entry.key);
    std::visit([&](const auto& value) { header.put_value(value); }, entry.value);
  }
  const auto padded = [](uint64_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; };
  uint64_t offset = 0;
  std::vector<size_t> sizes;
  for (const TensorSpec& tensor : plan.tensors) {
    header.put(tensor.name);
    header.put(static_cast<uint32_t>(tensor.shape.size()));
    for (size_t d = tensor.shape.size(); d-- > 0;) header.put(static_cast<uint64_t>(tensor.shape[d]));
    header.put(ggml_number(tensor.dtype));
    header.put(offset);
    sizes.push_back(static_cast<size_t>(tensor_bytes(tensor.dtype, tensor.shape, tensor.name)));
    offset = padded(offset + sizes.back());
  }
  header.pad();

  PartFile file(path);
  file.append(header.bytes());
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < sizes.size(); ++i) {
    bytes.assign(static_cast<size_t>(padded(sizes[i])), std::byte{0});
    fill(i, std::span(bytes).first(sizes[i]));
    file.append(bytes);
  }
  file.commit();
}

}  // namespace nibble::checkpoint
