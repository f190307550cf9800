#include "checkpoint/gguf.h"

#include "base/error.h"
#include "checkpoint/strict_json.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

namespace nibble::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "values are used as they lie in the file");

constexpr std::string_view kMagic = "GGUF";
constexpr uint32_t kFirstVersion = 2, kLastVersion = 3;  // 3 differs from 2 only in allowing big-endian files
constexpr uint64_t kMaxKeys = 65536, kMaxTensors = 65536;
constexpr uint64_t kMaxKeyBytes = 65535, kMaxNameBytes = 64, kMaxDimensions = 4;  // docs/gguf.md
constexpr uint64_t kMaxElements = uint64_t{1} << 24;                              // of one array
constexpr uint64_t kDefaultAlignment = 32, kMaxAlignment = 65536;
constexpr const char* kAlignmentKey = "general.alignment";

// The tensor types that are read, by the format's numbers (docs/gguf.md).
constexpr std::pair<uint32_t, DType> kDTypes[] = {
    {0, DType::kF32},         {1, DType::kF16},        {2, DType::kGgmlQ40},    {3, DType::kGgmlQ41},
    {4, DType::kOllamaMxfp4}, {6, DType::kGgmlQ50},    {7, DType::kGgmlQ51},    {8, DType::kGgmlQ8},
    {10, DType::kGgmlQ2K},    {11, DType::kGgmlQ3K},   {12, DType::kGgmlQ4K},   {13, DType::kGgmlQ5K},
    {14, DType::kGgmlQ6K},    {20, DType::kGgmlIq4Nl}, {23, DType::kGgmlIq4Xs}, {30, DType::kBf16},
    {39, DType::kGgmlMxfp4}};

// ggml's names of the others, for messages.
std::string ggml_name(uint32_t type) {
  constexpr std::pair<uint32_t, std::string_view> kNames[] = {
      {9, "Q8_1"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"},
      {21, "IQ3_S"}, {22, "IQ2_S"}, {24, "I8"},      {25, "I16"},    {26, "I32"},     {27, "I64"},
      {28, "F64"},   {29, "IQ1_M"}, {34, "TQ1_0"},   {35, "TQ2_0"},  {40, "NVFP4"}};
  for (const auto& [number, name] : kNames)
    if (number == type) return std::string(name);
  return fmt::format("number {}", type);
}

// Bytes of one element in the file; for a string the least, which is its length field.
constexpr uint64_t element_bytes(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool: return 1;
    case GgufType::kU16:
    case GgufType::kI16: return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32: return 4;
    case GgufType::kString:
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64: return 8;
    case GgufType::kArray: break;
  }
  return 0;
}

template <class T>
T element(const GgufValue& value, int64_t idx) {
  T result;
  std::memcpy(&result, value.bytes.data() + static_cast<size_t>(idx) * sizeof result, sizeof result);
  return result;
}

// The integer at `idx`; none if the type is no integer, or the value needs more than 63 bits.
std::optional<int64_t> integer_at(const GgufValue& value, int64_t idx) {
  switch (value.type) {
    case GgufType::kU8: return element<uint8_t>(value, idx);
    case GgufType::kI8: return element<int8_t>(value, idx);
    case GgufType::kU16: return element<uint16_t>(value, idx);
    case GgufType::kI16: return element<int16_t>(value, idx);
    case GgufType::kU32: return element<uint32_t>(value, idx);
    case GgufType::kI32: return element<int32_t>(value, idx);
    case GgufType::kI64: return element<int64_t>(value, idx);
    case GgufType::kU64: {
      const auto n = element<uint64_t>(value, idx);
      return n <= uint64_t{INT64_MAX} ? std::optional(static_cast<int64_t>(n)) : std::nullopt;
    }
    default: return std::nullopt;
  }
}

std::string_view string_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()) + 8, bytes.size() - 8};
}

constexpr std::string_view kTypeNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                           "bool", "string", "array", "u64", "i64", "f64"};

class Parser {
 public:
  Parser(std::span<const std::byte> file, std::string_view where) : file_(file), where_(where) {}

  GgufContent parse() {
    read_magic_and_version();
    const uint64_t tensors = read_count("tensors", kMaxTensors), keys = read_count("metadata keys", kMaxKeys);
    GgufContent content;
    for (uint64_t i = 0; i < keys; ++i) read_key(i, content.metadata);
    place_ = "";
    const uint64_t alignment = alignment_of(content.metadata);
    std::vector<uint64_t> offsets;
    for (uint64_t i = 0; i < tensors; ++i) content.tensors.push_back(read_tensor(i, offsets));
    place_tensors(content.tensors, offsets, alignment);
    return content;
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(Code code, fmt::format_string<Args...> format, Args&&... args) const {
    const std::string what = fmt::format(format, std::forward<Args>(args)...);
    throw Error(code, fmt::format("{}: {}{}{}", where_, place_, place_.empty() ? "" : ": ", what));
  }

  [[nodiscard]] uint64_t left() const { return file_.size() - at_; }

  std::span<const std::byte> take_bytes(uint64_t count, const char* what) {
    if (count > left())
      fail(Code::kCorrupt, "{} takes {} bytes at byte {}, but {} are left: is the file cut off?", what, count, at_,
           left());
    const auto bytes = file_.subspan(at_, static_cast<size_t>(count));
    at_ += static_cast<size_t>(count);
    return bytes;
  }

  template <class T>
  T take(const char* what) {
    T value;
    std::memcpy(&value, take_bytes(sizeof value, what).data(), sizeof value);
    return value;
  }

  std::string_view take_string(const char* what, uint64_t most) {
    const auto length = take<uint64_t>(what);
    if (length > most) fail(Code::kCorrupt, "{}: want at most {} bytes, found {} at byte {}", what, most, length, at_);
    const auto bytes = take_bytes(length, what);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  void read_magic_and_version() {
    if (file_.size() < kMagic.size())
      fail(Code::kCorrupt, "want a GGUF file, which begins with \"GGUF\", found {} bytes", file_.size());
    const std::string_view magic(reinterpret_cast<const char*>(file_.data()), kMagic.size());
    if (magic != kMagic)
      fail(Code::kCorrupt, "want a GGUF file, which begins with \"GGUF\", found \"{}\"", printable(magic));
    at_ = kMagic.size();
    const auto version = take<uint32_t>("the version");
    if (version != 0 && (version & 0xffff) == 0)
      fail(Code::kUnsupported, "want a little-endian file, found the version's bytes in big-endian order ({:#010x})",
           version);
    if (version < kFirstVersion || version > kLastVersion)
      fail(Code::kUnsupported, "want GGUF version {} or {}, found {}", kFirstVersion, kLastVersion, version);
  }

  uint64_t read_count(const char* what, uint64_t most) {
    const auto count = take<uint64_t>(what);
    if (count > most) fail(Code::kCorrupt, "want at most {} {}, found {}", most, what, count);
    return count;
  }

  void read_key(uint64_t idx, GgufMetadata& metadata) {
    place_ = fmt::format("metadata key {}", idx);
    const std::string_view key = take_string("its name", kMaxKeyBytes);
    const bool plain = std::ranges::all_of(key, [](char c) { return c > ' ' && c <= '~'; });
    if (key.empty() || !plain)
      fail(Code::kCorrupt, "want a name in ASCII without spaces, found \"{}\"", printable(key));
    place_ = fmt::format("metadata key {}", printable(key));
    if (!metadata.emplace(std::string(key), read_value()).second) fail(Code::kCorrupt, "it occurs twice");
  }

  GgufType read_type() {
    const auto type = take<uint32_t>("its type");
    if (type > static_cast<uint32_t>(GgufType::kF64)) fail(Code::kCorrupt, "want a type from 0 to 12, found {}", type);
    return static_cast<GgufType>(type);
  }

  GgufValue read_value() {
    GgufValue value{.type = read_type(), .is_array = false, .count = 1, .bytes = {}};
    if (value.type == GgufType::kArray) {
      value.is_array = true;
      value.type = read_type();
      if (value.type == GgufType::kArray) fail(Code::kUnsupported, "want no arrays in an array, found one");
      const auto count = take<uint64_t>("its length");
      if (count > kMaxElements) fail(Code::kCorrupt, "want at most {} elements, found {}", kMaxElements, count);
      value.count = static_cast<int64_t>(count);
    }
    value.bytes = read_elements(value.type, static_cast<uint64_t>(value.count));
    return value;
  }

  std::span<const std::byte> read_elements(GgufType type, uint64_t count) {
    const size_t begin = at_;
    if (count * element_bytes(type) > left())
      fail(Code::kCorrupt, "{} elements take at least {} bytes at byte {}, but {} are left: is the file cut off?",
           count, count * element_bytes(type), at_, left());
    if (type == GgufType::kString)
      for (uint64_t i = 0; i < count; ++i) take_string("a string", file_.size());
    else
      at_ += static_cast<size_t>(count * element_bytes(type));
    const auto bytes = file_.subspan(begin, at_ - begin);
    if (type == GgufType::kBool) {
      const auto wrong = std::ranges::find_if(bytes, [](std::byte b) { return b > std::byte{1}; });
      if (wrong != bytes.end()) fail(Code::kCorrupt, "want a bool, 0 or 1, found {}", static_cast<int>(*wrong));
    }
    return bytes;
  }

  [[nodiscard]] uint64_t alignment_of(const GgufMetadata& metadata) const {
    if (!metadata.contains(kAlignmentKey)) return kDefaultAlignment;
    const int64_t alignment = GgufFields(metadata, where_).integer(kAlignmentKey, 8, kMaxAlignment);
    if (!std::has_single_bit(static_cast<uint64_t>(alignment)))
      fail(Code::kCorrupt, "{}: want a power of two, found {}", kAlignmentKey, alignment);
    return static_cast<uint64_t>(alignment);
  }

  TensorEntry read_tensor(uint64_t idx, std::vector<uint64_t>& offsets) {
    place_ = fmt::format("tensor {}", idx);
    TensorEntry tensor;
    Shape& shape = tensor.tensor.shape;
    tensor.name = take_string("its name", kMaxNameBytes);
    place_ = fmt::format("tensor {}", printable(tensor.name));
    if (!names_.insert(tensor.name).second) fail(Code::kCorrupt, "it occurs twice");
    const auto rank = take<uint32_t>("its rank");
    if (rank < 1 || rank > kMaxDimensions)
      fail(Code::kCorrupt, "want 1 to {} dimensions, found {}", kMaxDimensions, rank);
    for (uint32_t d = 0; d < rank; ++d) shape.insert(shape.begin(), take<int64_t>("a dimension"));
    const auto type = take<uint32_t>("its type");
    const auto known = std::ranges::find(kDTypes, type, &std::pair<uint32_t, DType>::first);
    if (known == std::end(kDTypes))
      fail(Code::kUnsupported,
           "want MXFP4, a float, Q4_0 to Q8_0, Q2_K to Q6_K, IQ4_NL or IQ4_XS as its type, found {}", ggml_name(type));
    tensor.tensor.dtype = known->second;
    if (*std::ranges::min_element(shape) < 1)
      fail(Code::kCorrupt, "want 1 to {} dimensions of at least 1, found {}", kMaxDimensions,
           describe(known->second, shape));
    static_cast<void>(tensor_bytes(known->second, shape, fmt::format("{}: {}", where_, place_)));
    offsets.push_back(take<uint64_t>("its offset"));
    return tensor;
  }

  // Sorts the tensors by offset and finds their bytes. The data begin on the alignment, each tensor where the padded
  // one before it ended. After the last one the padding may be missing.
  void place_tensors(std::vector<TensorEntry>& tensors, const std::vector<uint64_t>& offsets, uint64_t alignment) {
    const auto aligned = [alignment](uint64_t n) { return (n + alignment - 1) / alignment * alignment; };
    place_ = "";
    const uint64_t begin = aligned(at_);
    std::vector<size_t> order(tensors.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::sort(order, {}, [&](size_t i) { return offsets[i]; });
    uint64_t at = 0, end = 0;  // of the data: where the next tensor begins, where the last one ends
    std::vector<TensorEntry> placed;
    for (const size_t i : order) {
      TensorEntry& tensor = tensors[i];
      place_ = fmt::format("tensor {}", printable(tensor.name));
      if (offsets[i] != at)
        fail(Code::kCorrupt, "want its bytes at offset {} of the data, where {}, found offset {}{}", at,
             placed.empty() ? "they begin"
                            : fmt::format("{} ends, aligned to {}", printable(placed.back().name), alignment),
             offsets[i], offsets[i] < at ? ": they overlap" : "");
      const auto bytes = static_cast<uint64_t>(tensor_bytes(tensor.tensor.dtype, tensor.tensor.shape, where_));
      const uint64_t room = begin > file_.size() ? 0 : file_.size() - begin;
      if (bytes > room || at > room - bytes)
        fail(Code::kCorrupt, "{} takes {} bytes at byte {}, but the file ends at byte {}: is it cut off?",
             describe(tensor.tensor.dtype, tensor.tensor.shape), bytes, begin + at, file_.size());
      tensor.tensor.bytes = file_.subspan(static_cast<size_t>(begin + at), static_cast<size_t>(bytes));
      end = at + bytes;
      at = aligned(end);
      placed.push_back(std::move(tensor));
    }
    place_ = "";
    tensors = std::move(placed);
    if (file_.size() > begin + at)
      fail(Code::kCorrupt, "{} bytes behind the last tensor belong to no tensor", file_.size() - begin - end);
  }

  std::span<const std::byte> file_;
  std::string_view where_;
  std::string place_;  // what is being read, for messages
  size_t at_ = 0;
  std::set<std::string, std::less<>> names_;
};

}  // namespace

uint32_t ggml_number(DType dtype) {
  const auto known = std::ranges::find(kDTypes, dtype, &std::pair<uint32_t, DType>::second);
  check(known != std::end(kDTypes), "a type that the format has");
  return known->first;
}

GgufContent parse_gguf(std::span<const std::byte> file, std::string_view where) {
  check(reinterpret_cast<uintptr_t>(file.data()) % 8 == 0, "a GGUF file lies on a multiple of 8");
  return Parser(file, where).parse();
}

std::string describe(const GgufValue& value) {
  const std::string_view type = kTypeNames[static_cast<size_t>(value.type)];
  if (value.is_array) return fmt::format("an array of {} {}", value.count, type);
  switch (value.type) {
    case GgufType::kString: return fmt::format("the string \"{}\"", printable(string_of(value.bytes).substr(0, 60)));
    case GgufType::kBool: return element<uint8_t>(value, 0) != 0 ? "true" : "false";
    case GgufType::kF32: return fmt::format("{} {}", type, element<float>(value, 0));
    case GgufType::kF64: return fmt::format("{} {}", type, element<double>(value, 0));
    case GgufType::kU64: return fmt::format("{} {}", type, element<uint64_t>(value, 0));
    default: return fmt::format("{} {}", type, integer_at(value, 0).value_or(0));
  }
}

const GgufValue& GgufFields::get(std::string_view key) const {
  const auto it = metadata_.find(key);
  if (it == metadata_.end()) throw Error(Code::kCorrupt, "{}: metadata key {} is missing", where_, key);
  return it->second;
}

void GgufFields::refuse(std::string_view key, std::string_view want, const GgufValue& found) const {
  throw Error(Code::kCorrupt, "{}: metadata key {}: want {}, found {}", where_, key, want, describe(found));
}

int64_t GgufFields::integer(std::string_view key, int64_t least, int64_t most) const {
  const GgufValue& value = get(key);
  const auto n = value.is_array ? std::nullopt : integer_at(value, 0);
  if (!n || *n < least || *n > most) refuse(key, fmt::format("an integer from {} to {}", least, most), value);
  return *n;
}

double GgufFields::number(std::string_view key, double least, double most) const {
  const GgufValue& value = get(key);
  const bool f32 = value.type == GgufType::kF32;
  if (!value.is_array && (f32 || value.type == GgufType::kF64)) {
    const double n = f32 ? element<float>(value, 0) : element<double>(value, 0);
    if (n >= least && n <= most) return n;  // false for NaN
  }
  refuse(key, fmt::format("a float from {} to {}", least, most), value);
}

bool GgufFields::boolean(std::string_view key) const {
  const GgufValue& value = get(key);
  if (value.is_array || value.type != GgufType::kBool) refuse(key, "true or false", value);
  return element<uint8_t>(value, 0) != 0;
}

std::string_view GgufFields::string(std::string_view key) const {
  const GgufValue& value = get(key);
  if (value.is_array || value.type != GgufType::kString) refuse(key, "a string", value);
  return string_of(value.bytes);
}

std::vector<std::string_view> GgufFields::strings(std::string_view key) const {
  const GgufValue& value = get(key);
  if (!value.is_array || value.type != GgufType::kString) refuse(key, "an array of strings", value);
  std::vector<std::string_view> result;
  result.reserve(static_cast<size_t>(value.count));
  auto rest = value.bytes;
  for (int64_t i = 0; i < value.count; ++i) {
    uint64_t length = 0;
    std::memcpy(&length, rest.data(), sizeof length);
    const auto bytes = static_cast<size_t>(length) + sizeof length;
    result.push_back(string_of(rest.first(bytes)));
    rest = rest.subspan(bytes);
  }
  return result;
}

std::vector<int64_t> GgufFields::integers(std::string_view key) const {
  const GgufValue& value = get(key);
  std::vector<int64_t> result;
  for (int64_t i = 0; value.is_array && i < value.count; ++i) {
    const auto n = integer_at(value, i);
    if (!n) refuse(key, "an array of integers", value);
    result.push_back(*n);
  }
  if (!value.is_array) refuse(key, "an array of integers", value);
  return result;
}

std::vector<bool> GgufFields::booleans(std::string_view key) const {
  const GgufValue& value = get(key);
  if (!value.is_array || value.type != GgufType::kBool) refuse(key, "an array of bools", value);
  std::vector<bool> result;
  for (const std::byte b : value.bytes) result.push_back(b != std::byte{0});
  return result;
}

}  // namespace nibble::checkpoint
