#pragma once
// Whether the engine lost a page, or gave one to two: each page has one holder, and the prefix cache's tree does not
// contradict itself. These members are declared with their classes, whose insides they see.

#include "base/error.h"
#include "engine/draft_model_proposer.h"
#include "engine/loop.h"
#include "engine/prefix_cache.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace nibble::engine {

inline void PrefixCache::check_integrity(PerKind<std::vector<int>>& holders) const {
  size_t children = 0, tails = 0;
  PerKind<int64_t> unused;
  size_t whole = 0, free = 0;
  for (size_t i = 1; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    if (node.count == 0) {
      ++free;
      continue;
    }
    const bool is_whole = node.count == backend::kPageTokens;
    const std::vector<int32_t>& siblings = is_whole ? at(node.parent).children : at(node.parent).tails;
    check(std::count(siblings.begin(), siblings.end(), static_cast<int32_t>(i)) == 1, "its parent knows it");
    whole += is_whole ? 1 : 0;
    check(node.parent == kRoot || at(node.parent).count == backend::kPageTokens, "a tail has no children");
    check(node.page[LayerKind::kFull] >= 0, "a node has its page");
    check(node.parent == kRoot || at(node.parent).locks >= node.locks, "who uses a node uses those above it");
    check(node.place.has_value() == (node.locks == 0), "what nobody uses may go");
    for (const LayerKind kind : windowed()) {
      const Windowed& own = node.windowed[kind];
      check(node.locks >= own.locks, "who uses the page of a window uses the node");
      check(own.place.has_value() == (node.page[kind] >= 0 && own.locks == 0),
            "and its page of a window is linked unless it is locked");
      unused[kind] += own.place ? 1 : 0;
    }
    for (const LayerKind kind : kinds())
      if (node.page[kind] >= 0) ++holders[kind][static_cast<size_t>(node.page[kind])];
    unused[LayerKind::kFull] += node.place ? 1 : 0;
    if (node.count == backend::kPageTokens)
      check(child(node.parent, node.tokens) == static_cast<int32_t>(i), "it is found");
  }
  for (const Node& node : nodes_) {
    children += node.children.size();
    tails += node.tails.size();
  }
  check(whole == by_key_.size() && free == free_nodes_.size(), "all nodes are found or free");
  check(children == whole && children + tails + free + 1 == nodes_.size(), "a parent knows none but its own");
  for (const LayerKind kind : kinds())
    check(unused[kind] == available(kind) - pool_.free_pages(kind), "the orders of eviction hold all that may go");
}

// Aborts when a page is lost, or has two holders among the cache and sequences, whose pages `of` are all there are.
inline void check_pages(const PagePool& pool, const PrefixCache& cache, std::span<const SequencePages* const> of) {
  PerKind<std::vector<int>> holders;
  for (const LayerKind kind : cache.kinds()) holders[kind].assign(static_cast<size_t>(pool.total(kind)), 0);
  cache.check_integrity(holders);
  for (const SequencePages* const pages : of) {
    for (const LayerKind kind : cache.kinds()) {
      for (size_t p = pages->nodes.size(); p < pages->ids[kind].size(); ++p)
        if (pages->ids[kind][p] >= 0) ++holders[kind][static_cast<size_t>(pages->ids[kind][p])];
    }
  }
  for (const LayerKind kind : cache.kinds()) {
    int64_t held = 0;
    for (const int count : holders[kind]) {
      check(count <= 1, "a page has one holder");
      held += count;
    }
    check(held + pool.free_pages(kind) == pool.total(kind), "a page is held or free");
  }
}

inline void Loop::check_integrity() const {
  std::vector<const SequencePages*> of;
  for (const auto& [id, s] : sequences_) of.push_back(&s->pages);
  check_pages(pool_, cache_, of);
}

inline void DraftModelProposer::check_integrity() const {
  std::vector<const SequencePages*> held;
  for (const auto& [id, state] : of_) held.push_back(&state.sequence.pages);
  check_pages(pool_, cache_, held);
}

}  // namespace nibble::engine
