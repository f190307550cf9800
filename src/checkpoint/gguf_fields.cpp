#include "checkpoint/gguf_fields.h"

#include "base/error.h"
#include "checkpoint/strict_json.h"

#include <cstring>
#include <optional>

namespace nibble::checkpoint {
namespace {

template <class T>
T element(const GgufValue& value, int64_t idx) {
  T result;
  std::memcpy(&result, value.bytes.data() + static_cast<size_t>(idx) * sizeof result, sizeof result);
  return result;
}

// The integer at `idx`; none for a type that is none, or beyond 63 bits.
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

}  // namespace

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
