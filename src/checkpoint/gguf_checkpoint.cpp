#include "checkpoint/gguf_checkpoint.h"

#include "base/ascii.h"
#include "base/error.h"
#include "checkpoint/strict_json.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <string_view>
#include <unordered_map>

namespace nibble::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxParts = 99999;  // five digits
constexpr const char* kPartKey = "split.no";
constexpr const char* kPartsKey = "split.count";
constexpr const char* kTensorsKey = "split.tensors.count";

std::string where_of(const fs::path& path) { return path.string(); }

struct PartNumber {
  int64_t part = 0, parts = 1;
};

PartNumber part_number_of(const GgufMetadata& metadata, const std::string& where) {
  const GgufFields fields(metadata, where);
  if (!fields.has(kPartsKey)) return {};
  const int64_t parts = fields.integer(kPartsKey, 0, kMaxParts);  // 0: gguf-py's spelling of a file that is whole
  if (parts <= 1) return {};
  return {.part = fields.integer(kPartKey, 0, parts - 1), .parts = parts};
}

// Only the first part describes the model; apart from its number, another part must say the same.
void check_says_nothing_else(const GgufMetadata& part, const GgufMetadata& first, const std::string& where) {
  for (const auto& [key, value] : part) {
    if (key.starts_with("split.") || key.starts_with("general.")) continue;
    const auto it = first.find(key);
    const bool same = it != first.end() && it->second.type == value.type && it->second.is_array == value.is_array &&
                      std::ranges::equal(it->second.bytes, value.bytes);
    if (same) continue;
    throw Error(Code::kCorrupt, "{}: metadata key {}: want what the first part says, {}, found {}", where,
                printable(key), it == first.end() ? "nothing" : describe(it->second), describe(value));
  }
}

void check_part(const PartNumber& found, const PartNumber& want, const std::string& where) {
  if (found.part == want.part && found.parts == want.parts) return;
  throw Error(Code::kCorrupt, "{}: want part {} of {}, found part {} of {}", where, want.part + 1, want.parts,
              found.part + 1, found.parts);
}

void check_tensors_differ(const std::vector<TensorEntry>& tensors, const std::string& where) {
  std::unordered_map<std::string_view, const TensorEntry*> seen;
  for (const TensorEntry& tensor : tensors)
    if (!seen.emplace(tensor.name, &tensor).second)
      throw Error(Code::kCorrupt, "{}: tensor {} lies in two of the parts", where, printable(tensor.name));
}

// The file to open first. A directory must hold the parts of one model and nothing else; missing parts are found later.
fs::path first_file(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) throw Error(Code::kIo, "{}: no such file or directory", where_of(path));
  if (!fs::is_directory(status)) return path;
  std::vector<fs::path> files;
  try {
    files = files_ending(path, ".gguf");
  } catch (const fs::filesystem_error& e) {
    throw Error(Code::kIo, "{}: {}", where_of(path), e.code().message());
  }
  if (files.empty()) throw Error(Code::kIo, "{}: want .gguf files, found none", where_of(path));
  const auto name = gguf_part_name(files.front());
  const bool one =
      name && std::ranges::all_of(files, [&](const fs::path& file) { return gguf_part_name(file) == name; });
  if (files.size() > 1 && !one)
    throw Error(Code::kInvalidRequest,
                "{}: want one model, found {} .gguf files that are not all parts of one: name one", where_of(path),
                files.size());
  return files.front();
}

}  // namespace

std::optional<GgufPartName> gguf_part_name(const fs::path& path) {
  constexpr std::string_view kPattern = "-00000-of-00000.gguf", kSuffix = ".gguf";
  constexpr std::ptrdiff_t kDigits = 5;
  const std::string text = path.string();
  if (text.size() < kPattern.size()) return std::nullopt;
  const size_t stem = text.size() - kPattern.size();
  const bool fits = std::equal(kPattern.begin(), kPattern.end(), text.begin() + static_cast<std::ptrdiff_t>(stem),
                               [](char want, char c) { return want == '0' ? is_digit(c) : c == want; });
  if (!fits) return std::nullopt;
  GgufPartName name{.stem = text.substr(0, stem)};
  const char* const end = text.data() + text.size() - kSuffix.size();
  std::from_chars(end - kDigits, end, name.parts);
  return name;
}

fs::path gguf_part_path(const fs::path& stem, int64_t part, int64_t parts) {
  return fmt::format("{}-{:05}-of-{:05}.gguf", stem.string(), part + 1, parts);
}

bool is_gguf(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    if (fs::exists(path / "config.json", error)) return false;
    const auto files = fs::directory_iterator(path, error);
    return !error && std::any_of(begin(files), end(files),
                                 [](const fs::directory_entry& entry) { return entry.path().extension() == ".gguf"; });
  }
  if (!fs::is_regular_file(path, error)) return false;
  return path.extension() == ".gguf" || begins_as_gguf(path);
}

bool begins_as_gguf(const fs::path& file) {
  std::array<char, 4> magic{};
  std::ifstream(file, std::ios::binary).read(magic.data(), magic.size());
  return std::string_view(magic.data(), magic.size()) == "GGUF";
}

void GgufCheckpoint::add(const fs::path& path, GgufContent content) {
  paths_.push_back(path);
  for (TensorEntry& tensor : content.tensors) {
    total_bytes_ += static_cast<int64_t>(tensor.tensor.bytes.size());
    tensors_.push_back(std::move(tensor));
  }
}

GgufCheckpoint GgufCheckpoint::open(const fs::path& path) {
  const fs::path named = first_file(path);
  GgufCheckpoint model;
  MmapFile file(named);
  GgufContent content = parse_gguf(file.bytes(), where_of(named));
  const PartNumber split = part_number_of(content.metadata, where_of(named));
  model.where_ = where_of(named);
  if (split.parts == 1) {
    model.metadata_ = content.metadata;
    model.add(named, std::move(content));
    model.files_.push_back(std::move(file));
    return model;
  }
  const auto name = gguf_part_name(named);
  if (!name || name->parts != split.parts)
    throw Error(Code::kCorrupt, "{}: it is part {} of {}: want a name that ends in -{:05}-of-{:05}.gguf", model.where_,
                split.part + 1, split.parts, split.part + 1, split.parts);
  for (int64_t i = 0; i < split.parts; ++i) {
    const fs::path part_path = gguf_part_path(name->stem, i, split.parts);
    const std::string where = where_of(part_path);
    if (!fs::exists(part_path)) throw Error(Code::kIo, "{}: part {} of {} is not there", where, i + 1, split.parts);
    const MmapFile& part_file = model.files_.emplace_back(part_path);
    GgufContent part = parse_gguf(part_file.bytes(), where);
    check_part(part_number_of(part.metadata, where), {.part = i, .parts = split.parts}, where);
    if (i == 0) {
      model.metadata_ = part.metadata;
      model.where_ = where;
    } else {
      check_says_nothing_else(part.metadata, model.metadata_, where);
    }
    model.add(part_path, std::move(part));
  }
  const auto found = static_cast<int64_t>(model.tensors_.size());
  const int64_t want = GgufFields(model.metadata_, model.where_).integer(kTensorsKey, 0, INT32_MAX);
  if (want != found)
    throw Error(Code::kCorrupt, "{}: {}: want the {} tensors that the parts hold, found {}", model.where_, kTensorsKey,
                found, want);
  check_tensors_differ(model.tensors_, model.where_);
  return model;
}

}  // namespace nibble::checkpoint
