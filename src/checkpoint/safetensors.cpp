#include "checkpoint/safetensors.h"

#include "base/error.h"
#include "checkpoint/part_file.h"
#include "checkpoint/strict_json.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

namespace nibble::checkpoint {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "tensor bytes are used as they lie in the file");

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the reference reader's limit: safetensors/src/tensor.rs

struct Range {
  int64_t begin, end;  // of the data part
};

struct Described {
  TensorEntry entry;
  Range range;
};

std::optional<DType> dtype_named(std::string_view name) {
  const auto known = std::ranges::find(kDTypes, name, &DTypeInfo::name);
  if (known == std::end(kDTypes) || known->values > 1) return std::nullopt;
  return static_cast<DType>(known - std::begin(kDTypes));
}

// A list of integers in [0, 2^63).
std::vector<int64_t> sizes_of(const json& value, const std::string& where) {
  if (!value.is_array()) throw Error(Code::kCorrupt, "{}: want a list, found {}", where, excerpt_of(value));
  std::vector<int64_t> sizes;
  sizes.reserve(value.size());
  for (const json& item : value) {
    if (!item.is_number_unsigned() || item.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()})
      throw Error(Code::kCorrupt, "{}: want integers from 0 to 2^63-1, found {}", where, excerpt_of(item));
    sizes.push_back(item.get<int64_t>());
  }
  return sizes;
}

// `data` is the part of the file behind the header.
Described describe_entry(const std::string& name, const json& fields, std::span<const std::byte> data,
                         std::string_view file) {
  const std::string where = fmt::format("{}: tensor {}", file, printable(name));
  JsonObject described(fields, where);
  const json& type = described.get("dtype");
  if (!type.is_string()) throw Error(Code::kCorrupt, "{}: dtype: want a string, found {}", where, excerpt_of(type));
  const auto dtype = dtype_named(type.get_ref<const std::string&>());
  if (!dtype) throw Error(Code::kUnsupported, "{}: dtype {} is not known here", where, excerpt_of(type));

  Shape shape = sizes_of(described.get("shape"), where + ": shape");
  const std::vector<int64_t> offsets = sizes_of(described.get("data_offsets"), where + ": data_offsets");
  if (const std::vector<std::string> unknown = described.unread(""); !unknown.empty())
    throw Error(Code::kCorrupt, "{}: unknown field {}", where, printable(unknown.front()));
  if (offsets.size() != 2)
    throw Error(Code::kCorrupt, "{}: data_offsets: want 2 numbers, found {}", where, offsets.size());
  const Range range{offsets[0], offsets[1]};
  if (range.begin > range.end)
    throw Error(Code::kCorrupt, "{}: data_offsets run backwards: [{}, {}]", where, range.begin, range.end);
  if (range.end > static_cast<int64_t>(data.size()))
    throw Error(Code::kCorrupt, "{}: ends at byte {} of the data, but the file holds {}: is it cut off?", where,
                range.end, data.size());
  const int64_t want = tensor_bytes(*dtype, shape, where);
  if (range.end - range.begin != want)
    throw Error(Code::kCorrupt, "{}: {} takes {} bytes, but data_offsets give {}", where, describe(*dtype, shape), want,
                range.end - range.begin);
  const auto bytes = data.subspan(static_cast<size_t>(range.begin), static_cast<size_t>(want));
  return {.entry = {name, {.dtype = *dtype, .shape = std::move(shape), .bytes = bytes}}, .range = range};
}

Metadata metadata_of(const json& value, std::string_view where) {
  if (!value.is_object())
    throw Error(Code::kCorrupt, "{}: __metadata__: want an object, found {}", where, excerpt_of(value));
  Metadata metadata;
  for (const auto& [key, item] : value.items()) {
    if (!item.is_string())
      throw Error(Code::kCorrupt, "{}: __metadata__: {}: want a string, found {}", where, printable(key),
                  excerpt_of(item));
    metadata.emplace(key, item.get<std::string>());
  }
  return metadata;
}

// The format forbids holes and overlaps: sorted by offset, each tensor begins where the one before ended.
void check_coverage(const std::vector<Described>& tensors, int64_t data_bytes, std::string_view where) {
  int64_t at = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& [entry, range] = tensors[i];
    if (range.begin < at)
      throw Error(Code::kCorrupt, "{}: tensors {} and {} overlap at byte {} of the data", where,
                  printable(tensors[i - 1].entry.name), printable(entry.name), range.begin);
    if (range.begin > at)
      throw Error(Code::kCorrupt, "{}: {} bytes before tensor {} belong to no tensor", where, range.begin - at,
                  printable(entry.name));
    at = range.end;
  }
  if (at != data_bytes)
    throw Error(Code::kCorrupt, "{}: {} bytes behind the last tensor belong to no tensor", where, data_bytes - at);
}

// Views are read by element, so an address that does not suit the type must not leave this file.
void check_alignment(const std::vector<Described>& tensors, size_t data_start, std::string_view where) {
  for (const auto& [entry, range] : tensors) {
    const int64_t at = static_cast<int64_t>(data_start) + range.begin;
    const int64_t size = bytes_of(entry.tensor.dtype);
    if (!entry.tensor.bytes.empty() && at % size != 0)
      throw Error(Code::kUnsupported, "{}: tensor {}: {} at byte {} of the file is not aligned to {}", where,
                  printable(entry.name), name_of(entry.tensor.dtype), at, size);
  }
}

constexpr size_t kHeaderAlignment = 8;  // safetensors README: the data part begins on a multiple of 8

// Tensor indices in file order. Larger elements first keeps every tensor aligned without holes.
std::vector<size_t> file_order(std::span<const TensorSpec> tensors) {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto place = [&](size_t idx) { return std::pair(-bytes_of(tensors[idx].dtype), idx); };
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return place(a) < place(b); });
  return order;
}

std::vector<int64_t> checked_sizes(std::span<const TensorSpec> tensors, const std::string& where) {
  std::set<std::string_view> names;
  std::vector<int64_t> sizes;
  int64_t total = 0;
  for (const TensorSpec& t : tensors) {
    if (t.name == "__metadata__" || !names.insert(t.name).second)
      throw Error(Code::kInvalidRequest, "{}: tensor name {} is reserved or given twice", where, t.name);
    try {
      sizes.push_back(tensor_bytes(t.dtype, t.shape, where));
    } catch (const Error& e) {
      throw Error(Code::kInvalidRequest, std::string(e.what()));
    }
    if (__builtin_add_overflow(total, sizes.back(), &total))
      throw Error(Code::kInvalidRequest, "{}: the tensors' bytes overflow 63 bits", where);
  }
  return sizes;
}

}  // namespace

int64_t tensor_bytes(DType dtype, const Shape& shape, std::string_view where) {
  int64_t bytes = bytes_of(dtype);
  const int64_t values = info_of(dtype).values;
  if (values > 1 && (shape.empty() || shape.back() % values != 0))
    throw Error(Code::kCorrupt, "{}: want rows of whole blocks of {} values, found {}", where, values,
                describe(dtype, shape));
  bool overflows = false, empty = false;
  for (size_t i = 0; i < shape.size(); ++i) {
    const int64_t d = i + 1 < shape.size() ? shape[i] : shape[i] / values;
    if (d < 0) throw Error(Code::kCorrupt, "{}: negative dimension in {}", where, describe(dtype, shape));
    empty |= d == 0;
    // A zero elsewhere does not excuse the others: strides are products of a part of the shape.
    overflows |= __builtin_mul_overflow(bytes, std::max(d, int64_t{1}), &bytes);
  }
  if (overflows) throw Error(Code::kCorrupt, "{}: {} overflows 63 bits", where, describe(dtype, shape));
  return empty ? 0 : bytes;
}

std::string describe(DType dtype, const Shape& shape) {
  constexpr size_t kMostPrinted = 8;  // a file may claim any rank
  if (shape.size() > kMostPrinted) return fmt::format("{} of rank {}", name_of(dtype), shape.size());
  return fmt::format("{} [{}]", name_of(dtype), fmt::join(shape, ","));
}

SafetensorsContent parse_safetensors(std::span<const std::byte> file, std::string_view where) {
  check(reinterpret_cast<uintptr_t>(file.data()) % 8 == 0, "a safetensors file lies on a multiple of 8");
  uint64_t header_bytes = 0;
  if (file.size() < sizeof header_bytes)
    throw Error(Code::kCorrupt, "{}: want a safetensors file of at least 8 bytes, found {}", where, file.size());
  std::memcpy(&header_bytes, file.data(), sizeof header_bytes);
  const auto rest = file.subspan(sizeof header_bytes);
  if (header_bytes > kMaxHeaderBytes)
    throw Error(Code::kCorrupt, "{}: header of {} bytes, more than {}: is this a safetensors file?", where,
                header_bytes, kMaxHeaderBytes);
  if (header_bytes > rest.size())
    throw Error(Code::kCorrupt, "{}: header of {} bytes, but only {} follow: is the file cut off?", where, header_bytes,
                rest.size());
  const std::string in_header = fmt::format("{}: header", where);
  const json header =
      parse_strict_json({reinterpret_cast<const char*>(rest.data()), static_cast<size_t>(header_bytes)}, in_header);
  if (!header.is_object()) throw Error(Code::kCorrupt, "{}: want an object, found {}", in_header, excerpt_of(header));

  const auto data = rest.subspan(static_cast<size_t>(header_bytes));
  SafetensorsContent content;
  std::vector<Described> tensors;
  for (const auto& [name, fields] : header.items())
    if (name == "__metadata__")
      content.metadata = metadata_of(fields, where);
    else
      tensors.push_back(describe_entry(name, fields, data, where));
  std::sort(tensors.begin(), tensors.end(), [](const Described& a, const Described& b) {
    return std::pair(a.range.begin, a.range.end) < std::pair(b.range.begin, b.range.end);
  });
  check_coverage(tensors, static_cast<int64_t>(data.size()), where);
  check_alignment(tensors, sizeof header_bytes + static_cast<size_t>(header_bytes), where);
  content.entries.reserve(tensors.size());
  for (Described& tensor : tensors) content.entries.push_back(std::move(tensor.entry));
  return content;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : path_(path), file_(path), content_(parse_safetensors(file_.bytes(), path.string())) {}

void write_safetensors(const std::filesystem::path& path, const SafetensorsPlan& plan,
                       const std::function<void(const TensorPiece&)>& fill) {
  check(plan.piece_bytes > 0, "a piece has bytes");
  const std::vector<int64_t> sizes = checked_sizes(plan.tensors, path.string());
  const std::vector<size_t> order = file_order(plan.tensors);

  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!plan.metadata.empty()) header["__metadata__"] = plan.metadata;
  int64_t at = 0;
  for (const size_t idx : order) {
    const TensorSpec& t = plan.tensors[idx];
    header[t.name] = {{"dtype", name_of(t.dtype)}, {"shape", t.shape}, {"data_offsets", {at, at + sizes[idx]}}};
    at += sizes[idx];
  }
  std::string text = header.dump();
  text.resize((text.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');

  PartFile file(path);
  const uint64_t header_bytes = text.size();
  file.append(std::as_bytes(std::span(&header_bytes, 1)));
  file.append(std::as_bytes(std::span(text)));
  std::vector<std::byte> piece;
  for (const size_t idx : order) {
    for (int64_t offset = 0; offset < sizes[idx]; offset += plan.piece_bytes) {
      piece.resize(static_cast<size_t>(std::min(plan.piece_bytes, sizes[idx] - offset)));
      fill({.tensor_idx = idx, .offset_bytes = offset, .bytes = piece});
      file.append(piece);
    }
  }
  file.commit();
}

}  // namespace nibble::checkpoint
