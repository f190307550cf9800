#include "checkpoint/checkpoint.h"

#include "base/error.h"
#include "checkpoint/strict_json.h"

#include <nlohmann/json.hpp>

#include <map>
#include <set>
#include <string>

namespace nibble::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kMaxIndexBytes = 100'000'000;
constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kSingleName = "model.safetensors";

struct Index {
  std::map<std::string, std::string> shard_of;  // tensor name → file name
  std::set<std::string> shards;
};

// A shard is a plain file name: an index must not reach outside its directory.
void check_shard_name(const std::string& name, const std::string& where) {
  const bool plain = !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
                     name.find('\\') == std::string::npos && name.find('\0') == std::string::npos;
  if (!plain || !name.ends_with(".safetensors"))
    throw Error(Code::kCorrupt, "{}: want the name of a .safetensors file in the same directory, found {}", where,
                excerpt_of(json(name)));
}

Index read_index(const fs::path& path) {
  const std::string where = path.string();
  const json index = parse_strict_json(read_text_file(path, kMaxIndexBytes), where);
  if (!index.is_object()) throw Error(Code::kCorrupt, "{}: want an object, found {}", where, excerpt_of(index));
  const auto map = index.find("weight_map");
  if (map == index.end()) throw Error(Code::kCorrupt, "{}: weight_map is missing", where);
  if (!map->is_object() || map->empty())
    throw Error(Code::kCorrupt, "{}: weight_map: want an object of tensor names, found {}", where, excerpt_of(*map));
  Index result;
  for (const auto& [tensor, shard] : map->items()) {
    if (!shard.is_string())
      throw Error(Code::kCorrupt, "{}: weight_map: {}: want a file name, found {}", where, printable(tensor),
                  excerpt_of(shard));
    check_shard_name(shard.get_ref<const std::string&>(), where);
    result.shard_of.emplace(tensor, shard.get<std::string>());
    result.shards.insert(shard.get<std::string>());
  }
  return result;
}

void check_against_index(const Checkpoint& checkpoint, const Index& index, const std::string& where) {
  for (const TensorEntry& entry : checkpoint.entries()) {
    const std::string shard = checkpoint.file_of(entry).filename().string();
    const auto it = index.shard_of.find(entry.name);
    if (it == index.shard_of.end())
      throw Error(Code::kCorrupt, "{}: tensor {} of {} is not in weight_map", where, printable(entry.name), shard);
    if (it->second != shard)
      throw Error(Code::kCorrupt, "{}: weight_map puts tensor {} into {}, but it lies in {}", where,
                  printable(entry.name), it->second, shard);
  }
  for (const auto& [tensor, shard] : index.shard_of)
    if (checkpoint.find(tensor) == nullptr)
      throw Error(Code::kCorrupt, "{}: weight_map puts tensor {} into {}, which does not hold it", where,
                  printable(tensor), shard);
}

}  // namespace

Checkpoint Checkpoint::open(const fs::path& path) {
  Checkpoint checkpoint;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) throw Error(Code::kIo, "{}: no such file or directory", path.string());
  if (!fs::is_directory(status)) {
    checkpoint.directory_ = path.has_parent_path() ? path.parent_path() : fs::path(".");
    checkpoint.add(path);
    return checkpoint;
  }
  checkpoint.directory_ = path;
  try {
    const bool has_single = fs::exists(path / kSingleName);
    if (fs::exists(fs::symlink_status(path / kIndexName))) {  // a dead link counts as there
      const std::string where = (path / kIndexName).string();
      const Index index = read_index(path / kIndexName);
      if (has_single && !index.shards.contains(kSingleName))
        throw Error(Code::kCorrupt, "{}: does not name {}, which lies beside it: which one is the model?", where,
                    kSingleName);
      for (const std::string& shard : index.shards) {
        if (!fs::exists(path / shard)) throw Error(Code::kIo, "{}: shard {} is not there", where, printable(shard));
        checkpoint.add(path / shard);
      }
      check_against_index(checkpoint, index, where);
    } else if (has_single) {
      checkpoint.add(path / kSingleName);
    } else {
      for (const fs::path& file : files_ending(path, ".safetensors")) checkpoint.add(file);
    }
  } catch (const fs::filesystem_error& e) {
    throw Error(Code::kIo, "{}: {}", path.string(), e.code().message());
  }
  if (checkpoint.files_.empty())
    throw Error(Code::kIo, "{}: want {}, {} or other .safetensors files, found none", path.string(), kIndexName,
                kSingleName);
  return checkpoint;
}

void Checkpoint::add(const fs::path& path) {
  const size_t file_idx = files_.size();
  const SafetensorsFile& file = files_.emplace_back(path);
  for (const TensorEntry& entry : file.entries()) {
    const auto [it, fresh] = entry_idx_.emplace(entry.name, entries_.size());
    if (!fresh)
      throw Error(Code::kCorrupt, "tensor {} lies in {} and in {}", printable(entry.name),
                  files_[file_idx_[it->second]].path().string(), path.string());
    entries_.push_back(entry);
    file_idx_.push_back(file_idx);
    total_bytes_ += static_cast<int64_t>(entry.tensor.bytes.size());
  }
}

const TensorEntry* Checkpoint::find(std::string_view name) const {
  const auto it = entry_idx_.find(std::string(name));
  return it == entry_idx_.end() ? nullptr : &entries_[it->second];
}

const fs::path& Checkpoint::file_of(const TensorEntry& entry) const {
  const auto idx = static_cast<size_t>(&entry - entries_.data());
  check(idx < entries_.size(), "file_of takes an entry of this checkpoint");
  return files_[file_idx_[idx]].path();
}

}  // namespace nibble::checkpoint
