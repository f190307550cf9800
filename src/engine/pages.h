#pragma once
// Pages of the KV cache: which are free, and which a sequence has. A page that is in use has one holder: a sequence or
// a node of the prefix cache. It may be given back while a step that writes to it is still in flight: a backend runs
// steps and copies in order, so whoever gets it next uses it after that step.

#include "backend/args.h"
#include "backend/dims.h"
#include "base/error.h"

#include <array>
#include <cstdint>
#include <vector>

namespace nibble::engine {

using backend::LayerKind;

// Pages that hold the first `tokens` positions.
[[nodiscard]] constexpr int64_t pages_for(int64_t tokens) {
  return (tokens + backend::kPageTokens - 1) / backend::kPageTokens;
}

// One more value of a hash.
[[nodiscard]] constexpr uint64_t hashed(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
  return hash ^ hash >> 29;
}

// One value per kind of pages.
template <class T>
struct PerKind {
  std::array<T, backend::kLayerKinds> of{};
  T& operator[](LayerKind kind) { return of[static_cast<size_t>(kind)]; }
  const T& operator[](LayerKind kind) const { return of[static_cast<size_t>(kind)]; }
};

class PagePool {
 public:
  explicit PagePool(const std::array<int32_t, backend::kLayerKinds>& pages);

  // -1: none is free.
  [[nodiscard]] int32_t take(LayerKind kind);
  void give_back(LayerKind kind, int32_t page);
  [[nodiscard]] int64_t free_pages(LayerKind kind) const { return static_cast<int64_t>(free_[kind].size()); }
  [[nodiscard]] int64_t total(LayerKind kind) const { return static_cast<int64_t>(taken_[kind].size()); }

 private:
  PerKind<std::vector<int32_t>> free_;
  PerKind<std::vector<bool>> taken_;  // [pages]
};

inline PagePool::PagePool(const std::array<int32_t, backend::kLayerKinds>& pages) {
  for (const LayerKind kind : backend::kEachLayerKind) {
    const int32_t count = pages[static_cast<size_t>(kind)];
    taken_[kind].assign(static_cast<size_t>(count), false);
    free_[kind].reserve(static_cast<size_t>(count));
    for (int32_t page = count - 1; page >= 0; --page) free_[kind].push_back(page);  // the low ones go first
  }
}

inline int32_t PagePool::take(LayerKind kind) {
  if (free_[kind].empty()) return -1;
  const int32_t page = free_[kind].back();
  free_[kind].pop_back();
  taken_[kind][static_cast<size_t>(page)] = true;
  return page;
}

inline void PagePool::give_back(LayerKind kind, int32_t page) {
  check(page >= 0 && page < total(kind) && taken_[kind][static_cast<size_t>(page)], "a page is given back once");
  taken_[kind][static_cast<size_t>(page)] = false;
  free_[kind].push_back(page);
}

// The pages of one sequence. Page p holds the positions from p * kPageTokens on. The first nodes.size() pages belong to
// the prefix cache and are locked there; the others are the sequence's own.
struct SequencePages {
  PerKind<std::vector<int32_t>> ids;  // by page; -1: released, behind the window of the kind's layers
  std::vector<int32_t> nodes;         // of the prefix cache, by page
  PerKind<int64_t> first_seen;        // pages of a window before this one were released (PrefixCache::slide)
  // Lengths from which others are likely to resume: where it resumed itself, and the end of its prompt.
  std::array<int64_t, 2> resume_lengths{};
};

}  // namespace nibble::engine
