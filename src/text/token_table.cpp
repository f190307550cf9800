#include "text/token_table.h"

#include "base/error.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace nibble::text {
namespace {

constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15u;

uint64_t hash_of(std::string_view bytes) {
  uint64_t hash = bytes.size() * kMultiplier;
  const auto mix = [&hash](uint64_t word) {
    hash = (hash ^ word) * kMultiplier;
    hash ^= hash >> 29;
  };
  size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, 8);
    mix(word);
  }
  uint64_t word = 0;
  if (at < bytes.size()) std::memcpy(&word, bytes.data() + at, bytes.size() - at);
  mix(word);
  return hash ^ hash >> 32;
}

}  // namespace

TokenTable::TokenTable(size_t expected, int32_t id_limit)
    : tokens_(static_cast<size_t>(id_limit)), slots_(std::bit_ceil(std::max<size_t>(expected, 4) * 2), kNoToken) {}

size_t TokenTable::slot_of(std::string_view wanted) const {
  const size_t mask = slots_.size() - 1;
  size_t slot = hash_of(wanted) & mask;
  while (slots_[slot] != kNoToken && bytes(slots_[slot]) != wanted) slot = (slot + 1) & mask;
  return slot;
}

TokenTable::Insert TokenTable::insert(int32_t id, std::string_view token_bytes, Lookup lookup) {
  check(id >= 0 && static_cast<size_t>(id) < tokens_.size(), "token id beyond the table");
  Token& token = tokens_[static_cast<size_t>(id)];
  if (token.used) return Insert::kDuplicateId;
  if (lookup == Lookup::kByBytes) {
    check(2 * size_ < slots_.size(), "more tokens than announced");
    const size_t slot = slot_of(token_bytes);
    if (slots_[slot] != kNoToken) return Insert::kDuplicateBytes;
    slots_[slot] = id;
  }
  token = {.offset = arena_.size(), .length = static_cast<uint32_t>(token_bytes.size()), .used = true};
  arena_ += token_bytes;
  ++size_;
  max_id_ = std::max(max_id_, id);
  return Insert::kDone;
}

int32_t TokenTable::find(std::string_view wanted) const { return slots_[slot_of(wanted)]; }

void require_all_bytes(const TokenTable& tokens, std::string_view name) {
  for (int b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    if (tokens.find({&byte, 1}) == kNoToken) {
      throw Error(Code::kCorrupt, "{}: want every byte to be a token, found none for byte 0x{:02X}", name, b);
    }
  }
}

}  // namespace nibble::text
