#pragma once
// The first half of reading a tokenizer.json: one pass that keeps the two big tables flat and the rest as a small tree.

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::text {

struct VocabEntry {
  size_t offset;  // into TokenizerScan::text
  size_t length;
  int64_t id;
};

// Left and right lie one after the other at `offset`, already as bytes.
struct MergeEntry {
  size_t offset;
  size_t left;
  size_t right;
};

struct TokenizerScan {
  nlohmann::json root;  // the file without model.vocab and model.merges
  std::string text;
  std::vector<VocabEntry> vocab;  // as written: not yet decoded, duplicates possible
  std::vector<MergeEntry> merges;
  bool has_vocab = false, has_merges = false;
};

// Throws Error(kCorrupt): no JSON, a repeated key, nested too deeply, an id or merge of another type.
[[nodiscard]] TokenizerScan scan_tokenizer_json(std::string_view json, std::string_view name);

}  // namespace nibble::text
