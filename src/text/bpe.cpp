#include "text/bpe.h"

#include "base/error.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <queue>
#include <utility>

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

constexpr size_t kShort = 64;  // up to here scanning all pairs beats a heap

uint64_t pair_of(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

size_t hash_of(uint64_t pair) {
  pair = (pair ^ pair >> 32) * 0xD6E8FEB86659FD93u;
  pair = (pair ^ pair >> 32) * 0xD6E8FEB86659FD93u;
  return pair ^ pair >> 32;
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

void require_all_bytes(const TokenTable& tokens, std::string_view name) {
  for (int b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    if (tokens.find({&byte, 1}) == kNoToken)
      throw Error(Code::kCorrupt, "{}: want every byte to be a token, found none for byte 0x{:02X}", name, b);
  }
}

Bpe::Bpe(TokenTable tokens, std::span<const Merge> merges, WholePiece whole_piece)
    : tokens_(std::move(tokens)),
      slots_(std::bit_ceil(std::max<size_t>(merges.size(), 4) * 2), Slot{0, kNever, kNoToken}),
      whole_piece_(whole_piece) {
  for (int b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    byte_tokens_[static_cast<size_t>(b)] = tokens_.find({&byte, 1});
    check(byte_tokens_[static_cast<size_t>(b)] != kNoToken, "a byte that is no token");
  }
  const size_t mask = slots_.size() - 1;
  for (const Merge& m : merges) {
    const uint64_t pair = pair_of(m.left, m.right);
    size_t slot = hash_of(pair) & mask;
    while (slots_[slot].priority != kNever) {
      check(slots_[slot].pair != pair, "a merge that occurs twice");
      slot = (slot + 1) & mask;
    }
    slots_[slot] = {pair, m.priority, m.result};
  }
}

const Bpe::Slot& Bpe::find(int32_t left, int32_t right) const {
  const uint64_t pair = pair_of(left, right);
  const size_t mask = slots_.size() - 1;
  size_t slot = hash_of(pair) & mask;
  while (slots_[slot].priority != kNever && slots_[slot].pair != pair) slot = (slot + 1) & mask;
  return slots_[slot];
}

void Bpe::encode(std::string_view piece, std::vector<int32_t>& out) const {
  if (whole_piece_ == WholePiece::kIsToken) {
    const int32_t id = tokens_.find(piece);
    if (id != kNoToken) {
      out.push_back(id);
      return;
    }
  }
  merge_below(kNever, piece, out);
}

void Bpe::merge_below(uint32_t limit, std::string_view piece, std::vector<int32_t>& out) const {
  check(piece.size() < size_t{1} << 31, "a piece of 2 GiB");
  if (piece.size() <= kShort)
    merge_short(limit, piece, out);
  else
    merge_long(limit, piece, out);
}

void Bpe::merge_short(uint32_t limit, std::string_view piece, std::vector<int32_t>& out) const {
  struct Part {
    int32_t token;
    uint32_t priority;  // of the merge with the next part
    int32_t merged;
  };
  std::array<Part, kShort> parts;
  size_t count = piece.size();
  for (size_t i = 0; i < count; ++i) parts[i].token = byte_tokens_[static_cast<uint8_t>(piece[i])];
  const auto look_up = [&](size_t i) {
    if (i + 1 >= count) {
      parts[i].priority = kNever;
      return;
    }
    const Slot& slot = find(parts[i].token, parts[i + 1].token);
    parts[i].priority = slot.priority;
    parts[i].merged = slot.result;
  };
  for (size_t i = 0; i < count; ++i) look_up(i);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i)
      if (parts[i].priority < parts[best].priority) best = i;
    if (parts[best].priority >= limit) break;
    parts[best].token = parts[best].merged;
    for (size_t i = best + 1; i + 1 < count; ++i) parts[i] = parts[i + 1];
    --count;
    look_up(best);
    if (best > 0) look_up(best - 1);
  }
  for (size_t i = 0; i < count; ++i) out.push_back(parts[i].token);
}

void Bpe::merge_long(uint32_t limit, std::string_view piece, std::vector<int32_t>& out) const {
  struct Part {
    int32_t token;      // kNoToken: merged into the part before
    uint32_t priority;  // of the merge with the next part; a heap entry of another priority is stale
    int32_t merged;
    uint32_t previous, next;
  };
  const auto count = static_cast<uint32_t>(piece.size());
  std::vector<Part> parts(count);
  for (uint32_t i = 0; i < count; ++i)
    parts[i] = {byte_tokens_[static_cast<uint8_t>(piece[i])], kNever, kNoToken, i - 1, i + 1};
  std::vector<uint64_t> entries;  // priority << 32 | position
  entries.reserve(count);
  const auto look_up = [&](uint32_t i) {
    const uint32_t next = parts[i].next;
    const Slot* slot = next < count ? &find(parts[i].token, parts[next].token) : nullptr;
    parts[i].priority = slot != nullptr && slot->priority < limit ? slot->priority : kNever;
    if (parts[i].priority == kNever) return false;
    parts[i].merged = slot->result;
    return true;
  };
  const auto entry = [&](uint32_t i) { return uint64_t{parts[i].priority} << 32 | i; };
  for (uint32_t i = 0; i < count; ++i)
    if (look_up(i)) entries.push_back(entry(i));
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> heap({}, std::move(entries));
  while (!heap.empty()) {
    const auto i = static_cast<uint32_t>(heap.top());
    const auto priority = static_cast<uint32_t>(heap.top() >> 32);
    heap.pop();
    Part& part = parts[i];
    if (part.token == kNoToken || part.priority != priority) continue;
    part.token = part.merged;
    parts[part.next].token = kNoToken;
    part.next = parts[part.next].next;
    if (part.next < count) parts[part.next].previous = i;
    if (look_up(i)) heap.push(entry(i));
    if (i > 0 && look_up(part.previous)) heap.push(entry(part.previous));
  }
  for (uint32_t i = 0; i < count; i = parts[i].next) out.push_back(parts[i].token);
}

}  // namespace nibble::text
