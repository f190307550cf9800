// Ollama's own spelling of gpt-oss (ollama/ollama, convert/convert_gptoss.go and model/models/gptoss/model.go): the
// architecture "gptoss", other names, gate and up in one tensor, and in its first files q, k and v too.

#include "base/error.h"
#include "convert/gguf.h"

#include <array>
#include <utility>

namespace nibble::convert {
namespace {

using checkpoint::GgufFields;
using checkpoint::GgufMetadata;
using checkpoint::GgufValue;
using checkpoint::TensorEntry;

constexpr std::string_view kOllamas = "gptoss";
constexpr std::pair<std::string_view, std::string_view> kNames[] = {
    {".attn_out.weight", ".attn_output.weight"},
    {".attn_out.bias", ".attn_output.bias"},
    {".attn_sinks", ".attn_sinks.weight"},
    {".ffn_norm.weight", ".post_attention_norm.weight"}};

// A string as it lies in a file: its length in 8 bytes, then it.
template <size_t size>
GgufValue text(const char (&stored)[size]) {
  return {.type = checkpoint::GgufType::kString, .bytes = std::as_bytes(std::span(stored, size - 1))};
}

GgufMetadata respelt(const GgufMetadata& metadata) {
  GgufMetadata result;
  for (const auto& [key, value] : metadata) {
    const bool own = key.starts_with(kOllamas) && key[kOllamas.size()] == '.';
    if (key == "tokenizer.ggml.eos_token_ids") continue;  // Harmony's, which every GGUF gets
    result.emplace(own ? fmt::format("gpt-oss{}", std::string_view(key).substr(kOllamas.size())) : key, value);
  }
  result.insert_or_assign("general.architecture", text("\7\0\0\0\0\0\0\0gpt-oss"));
  result.try_emplace("gpt-oss.rope.scaling.type", text("\4\0\0\0\0\0\0\0yarn"));
  result.insert_or_assign("tokenizer.ggml.pre", text("\6\0\0\0\0\0\0\0gpt-4o"));  // its converter knows no name of it
  return result;
}

// q, k and v of a tensor that holds their rows one behind the other.
void split_qkv(const TensorEntry& fused, const std::array<int64_t, 3>& rows, std::string_view where,
               std::vector<TensorEntry>& out) {
  const RawTensor& all = fused.tensor;
  const int64_t want = rows[0] + rows[1] + rows[2], found = all.shape.front();
  if (found != want)
    throw Error(Code::kCorrupt, "{}: {}: want {} rows, of q, k and v, found {}", where,
                checkpoint::printable(fused.name), want, found);
  const size_t row_bytes = all.bytes.size() / static_cast<size_t>(want);
  const size_t at = fused.name.find("qkv");
  int64_t first = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    TensorEntry& own = out.emplace_back(fused);
    own.name.replace(at, 3, 1, "qkv"[i]);
    own.tensor.shape.front() = rows[i];
    own.tensor.bytes =
        all.bytes.subspan(static_cast<size_t>(first) * row_bytes, static_cast<size_t>(rows[i]) * row_bytes);
    first += rows[i];
  }
}

}  // namespace

checkpoint::GgufCheckpoint open_gguf(const std::filesystem::path& path) {
  checkpoint::GgufCheckpoint file = checkpoint::GgufCheckpoint::open(path);
  if (const GgufFields fields(file.metadata(), file.where());
      !fields.has("general.architecture") || fields.string("general.architecture") != kOllamas)
    return file;
  GgufMetadata metadata = respelt(file.metadata());
  const GgufFields fields(metadata, file.where());
  const auto width = [&](std::string_view heads) {
    return fields.integer(heads, 1, 1 << 16) * fields.integer("gpt-oss.attention.key_length", 1, 1 << 16);
  };
  const int64_t q = width("gpt-oss.attention.head_count"), kv = width("gpt-oss.attention.head_count_kv");
  std::vector<TensorEntry> tensors;
  for (const TensorEntry& entry : file.tensors()) {
    if (entry.name.ends_with(".attn_qkv.weight") || entry.name.ends_with(".attn_qkv.bias")) {
      split_qkv(entry, {q, kv, kv}, file.where(), tensors);
      continue;
    }
    TensorEntry& own = tensors.emplace_back(entry);
    for (const auto& [theirs, ours] : kNames)
      if (entry.name.ends_with(theirs)) own.name.replace(own.name.size() - theirs.size(), theirs.size(), ours);
  }
  file.respell(std::move(metadata), std::move(tensors));
  return file;
}

}  // namespace nibble::convert
