#include "engine/prefix_cache.h"

#include "base/error.h"

#include <algorithm>

namespace nibble::engine {
namespace {

using backend::kPageTokens;

uint64_t hash_of(uint64_t before, std::span<const int32_t> tokens) {
  uint64_t hash = before + 1;
  for (const int32_t token : tokens) hash = hashed(hash, static_cast<uint32_t>(token));
  return hash;
}
uint64_t key_of(int32_t parent, std::span<const int32_t> tokens) {
  return hash_of(static_cast<uint64_t>(parent), tokens);
}

}  // namespace

PrefixCache::PrefixCache(PagePool& pool, int64_t window, Mode mode)
    : pool_(pool), window_(window), mode_(mode), nodes_(1) {
  const auto most = static_cast<size_t>(mode == Mode::kOn ? pool.total(LayerKind::kFull) : 0);
  nodes_.reserve(most + 1);
  free_nodes_.reserve(most);
  by_key_.reserve(most);
}

void PrefixCache::append(Order order, int32_t node) {
  auto& place = order == kNodes ? at(node).by_node : at(node).by_sliding;
  check(!place, "a node is linked once");
  place = lists_[order].insert(lists_[order].end(), node);
}

void PrefixCache::unlink(Order order, int32_t node) {
  auto& place = order == kNodes ? at(node).by_node : at(node).by_sliding;
  check(place.has_value(), "a node is linked");
  lists_[order].erase(*place);
  place.reset();
}

int64_t PrefixCache::first_page_seen(int64_t position) const {
  return std::max<int64_t>(0, position - window_ + 1) / kPageTokens;
}

int32_t PrefixCache::child(int32_t parent, std::span<const int32_t> page) const {
  const auto found = by_key_.find(key_of(parent, page));
  if (found == by_key_.end()) return kNone;
  const Node& node = at(found->second);
  return node.parent == parent && std::equal(page.begin(), page.end(), node.tokens.begin()) ? found->second : kNone;
}

// The page that shares the most tokens with the beginning of `rest`, among nodes that have both of their pages.
PrefixCache::Part PrefixCache::closest(int32_t parent, std::span<const int32_t> rest) const {
  Part best;
  const auto compare = [&](int32_t idx) {
    const Node& node = at(idx);
    if (node.sliding < 0) return;
    const auto end = node.tokens.begin() + std::min<int64_t>(node.count, std::ssize(rest));
    const auto count = std::mismatch(node.tokens.begin(), end, rest.begin()).first - node.tokens.begin();
    if (count > best.count) best = {idx, static_cast<int32_t>(count)};
  };
  const Node& above = at(parent);
  const int64_t compared = std::min(std::ssize(above.children), kMostCompared);
  std::for_each(above.tails.begin(), above.tails.end(), compare);
  std::for_each(above.children.end() - compared, above.children.end(), compare);
  return best;
}

// With no page and no lock; kNone when another page has the same hash.
int32_t PrefixCache::add_node(int32_t parent, std::span<const int32_t> tokens) {
  const bool whole = tokens.size() == kPageTokens;
  const uint64_t key = key_of(parent, tokens);
  if (whole && by_key_.contains(key)) return kNone;
  int32_t idx = static_cast<int32_t>(nodes_.size());
  if (free_nodes_.empty()) {
    nodes_.emplace_back();
  } else {
    idx = free_nodes_.back();
    free_nodes_.pop_back();
  }
  Node& node = at(idx);
  node.parent = parent;
  node.count = static_cast<int32_t>(tokens.size());
  std::copy(tokens.begin(), tokens.end(), node.tokens.begin());
  node.key = key;
  if (whole) {
    by_key_.emplace(key, idx);
    node.block = std::max<uint64_t>(1, hash_of(at(parent).block, tokens));
  }
  (whole ? at(parent).children : at(parent).tails).push_back(idx);
  return idx;
}

void PrefixCache::stored(int32_t idx, LayerKind kind) {
  const Node& node = at(idx);
  if (noted_ && node.count == kPageTokens)
    events_.push_back({.what = KvEvent::What::kStored,
                       .kind = kind,
                       .block = node.block,
                       .parent = at(node.parent).block,
                       .tokens = node.tokens});
}

void PrefixCache::removed(int32_t idx, LayerKind kind) {
  const Node& node = at(idx);
  if (noted_ && node.count == kPageTokens)
    events_.push_back({.what = KvEvent::What::kRemoved, .kind = kind, .block = node.block});
}

// Also releases its pages, if it still has them.
void PrefixCache::remove(int32_t idx) {
  Node& node = at(idx);
  check(node.locks == 0 && node.children.empty() && node.tails.empty(), "only a leaf that nobody uses is removed");
  if (node.by_node) unlink(kNodes, idx);
  if (node.by_sliding) unlink(node.hot ? kHotSliding : kColdSliding, idx);
  for (const auto& [kind, page] : {std::pair{LayerKind::kFull, node.full}, {LayerKind::kSliding, node.sliding}}) {
    if (page < 0) continue;
    pool_.give_back(kind, page);
    removed(idx, kind);
  }
  const bool whole = node.count == kPageTokens;
  if (whole) by_key_.erase(node.key);
  std::erase(whole ? at(node.parent).children : at(node.parent).tails, idx);
  node = {};
  free_nodes_.push_back(idx);
}

void PrefixCache::lock(int32_t idx) {
  if (at(idx).locks++ == 0 && at(idx).by_node) unlink(kNodes, idx);
}

// A sequence unlocks its deepest node first, so in the order of eviction a node comes after all its children.
void PrefixCache::unlock(int32_t idx) {
  check(at(idx).locks > 0, "a node is unlocked by who locked it");
  if (--at(idx).locks == 0) append(kNodes, idx);
}

void PrefixCache::lock_sliding(int32_t idx) {
  Node& node = at(idx);
  if (node.sliding_locks++ == 0 && node.by_sliding) unlink(node.hot ? kHotSliding : kColdSliding, idx);
}

void PrefixCache::unlock_sliding(int32_t idx) {
  Node& node = at(idx);
  check(node.sliding_locks > 0, "a sliding page is unlocked by who locked it");
  if (--node.sliding_locks == 0) append(node.hot ? kHotSliding : kColdSliding, idx);
}

// A tail without its sliding page is of no use.
void PrefixCache::drop_sliding(int32_t idx) {
  Node& node = at(idx);
  if (node.count < kPageTokens) return remove(idx);
  unlink(node.hot ? kHotSliding : kColdSliding, idx);
  pool_.give_back(LayerKind::kSliding, node.sliding);
  removed(idx, LayerKind::kSliding);
  node.sliding = -1;
  node.hot = false;
}

int32_t PrefixCache::take(LayerKind kind) {
  if (pool_.free_pages(kind) == 0) {
    if (kind == LayerKind::kFull) {
      if (!lists_[kNodes].empty()) remove(lists_[kNodes].front());
    } else if (!lists_[kColdSliding].empty()) {
      drop_sliding(lists_[kColdSliding].front());
    } else if (!lists_[kHotSliding].empty()) {
      drop_sliding(lists_[kHotSliding].front());
    }
  }
  return pool_.take(kind);
}

int64_t PrefixCache::available(LayerKind kind) const {
  return pool_.free_pages(kind) + (kind == LayerKind::kFull
                                       ? std::ssize(lists_[kNodes])
                                       : std::ssize(lists_[kColdSliding]) + std::ssize(lists_[kHotSliding]));
}

// Gives the sequence a page that begins with the tokens of `part`: the node's own page if that is a tail shared whole,
// otherwise a copy. False: there is no page left, and nothing has changed.
bool PrefixCache::take_part(const Part& part, SequencePages& pages, Copies& copies) {
  const int32_t idx = part.node;
  if (part.count == at(idx).count && part.count < kPageTokens) {
    Node& tail = at(idx);
    unlink(kHotSliding, idx);
    pages.ids[LayerKind::kFull].push_back(std::exchange(tail.full, -1));
    pages.ids[LayerKind::kSliding].push_back(std::exchange(tail.sliding, -1));
    remove(idx);
    return true;
  }
  lock(idx);  // without the lock it might be evicted next
  lock_sliding(idx);
  const bool left = available(LayerKind::kSliding) > 0 && available(LayerKind::kFull) > 0;
  if (left) {
    for (const auto& [kind, from] :
         {std::pair{LayerKind::kSliding, at(idx).sliding}, {LayerKind::kFull, at(idx).full}}) {
      copies.push_back({.kind = kind, .from = from, .to = take(kind)});
      pages.ids[kind].push_back(copies.back().to);
    }
  }
  unlock_sliding(idx);
  unlock(idx);
  return left;
}

PrefixCache::Match PrefixCache::find(std::span<const int32_t> tokens) const {
  Match found;
  if (mode_ == Mode::kOff) return found;
  std::vector<int32_t>& path = found.path;
  int64_t sliding = 0;  // last pages of the path that have theirs
  const auto sees_enough = [&](int64_t length) {
    return sliding >= static_cast<int64_t>(path.size()) - first_page_seen(length);
  };
  int32_t last = kRoot;
  while ((path.size() + 1) * kPageTokens <= tokens.size()) {
    const int32_t next = child(last, tokens.subspan(path.size() * kPageTokens, kPageTokens));
    if (next == kNone) break;
    path.push_back(last = next);
    sliding = at(next).sliding >= 0 ? sliding + 1 : 0;
    if (sees_enough(found.path_tokens())) found.depth = path.size();
  }
  found.part = closest(last, tokens.subspan(static_cast<size_t>(found.path_tokens())));
  if (!sees_enough(found.path_tokens() + found.part.count)) found.part = {};
  return found;
}

int64_t PrefixCache::resumable(std::span<const int32_t> tokens) const {
  const Match found = find(tokens);
  if (found.part.count > 0) return found.path_tokens() + found.part.count;
  return static_cast<int64_t>(found.depth) * kPageTokens;
}

int64_t PrefixCache::resume(std::span<const int32_t> tokens, SequencePages& pages, Copies& copies) {
  if (mode_ == Mode::kOff) return 0;
  const Match found = find(tokens);
  if (found.part.count > 0) {
    hold(found.path, found.path_tokens() + found.part.count, pages);
    if (take_part(found.part, pages, copies)) return pages.resume_lengths[0];
    release({}, pages);
  }
  hold(std::span(found.path).first(found.depth), static_cast<int64_t>(found.depth) * kPageTokens, pages);
  return pages.resume_lengths[0];
}

// Gives `pages`, which are empty, the pages of `path`. Computing resumes at `length`.
void PrefixCache::hold(std::span<const int32_t> path, int64_t length, SequencePages& pages) {
  pages.nodes.assign(path.begin(), path.end());
  pages.first_sliding = first_page_seen(length);
  pages.resume_lengths[0] = length;
  for (size_t p = 0; p < path.size(); ++p) {
    lock(path[p]);
    const bool seen = static_cast<int64_t>(p) >= pages.first_sliding;
    if (seen) lock_sliding(path[p]);
    pages.ids[LayerKind::kFull].push_back(at(path[p]).full);
    pages.ids[LayerKind::kSliding].push_back(seen ? at(path[p]).sliding : -1);
  }
}

void PrefixCache::insert(std::span<const int32_t> tokens, SequencePages& pages) {
  if (mode_ == Mode::kOff) return;
  while ((pages.nodes.size() + 1) * kPageTokens <= tokens.size()) {
    const size_t p = pages.nodes.size();
    const auto page = tokens.subspan(p * kPageTokens, kPageTokens);
    const int32_t parent = p == 0 ? kRoot : pages.nodes.back();
    int32_t& full = pages.ids[LayerKind::kFull][p];
    int32_t& sliding = pages.ids[LayerKind::kSliding][p];
    int32_t idx = child(parent, page);
    if (idx == kNone) {
      idx = add_node(parent, page);
      if (idx == kNone) return;  // this page and what follows stay the sequence's own
      at(idx).full = full;
      stored(idx, LayerKind::kFull);
    } else {
      pool_.give_back(LayerKind::kFull, full);
      full = at(idx).full;
    }
    lock(idx);
    if (sliding >= 0) {
      Node& node = at(idx);
      if (node.sliding >= 0) {
        pool_.give_back(LayerKind::kSliding, sliding);
      } else {
        node.sliding = sliding;
        stored(idx, LayerKind::kSliding);
      }
      sliding = node.sliding;
      lock_sliding(idx);
    }
    pages.nodes.push_back(idx);
  }
}

// Whether a sequence that resumes at one of the resume lengths sees the page. If it does not share the last page, which
// is not full, it resumes at that page's beginning and sees the window before that.
bool PrefixCache::seen_on_resume(int64_t page, const SequencePages& pages) const {
  return std::any_of(pages.resume_lengths.begin(), pages.resume_lengths.end(), [&](int64_t length) {
    return page * kPageTokens < length && page >= first_page_seen(length / kPageTokens * kPageTokens);
  });
}

void PrefixCache::slide(int64_t next, SequencePages& pages) {
  std::vector<int32_t>& ids = pages.ids[LayerKind::kSliding];
  const int64_t first = std::min(first_page_seen(next), static_cast<int64_t>(ids.size()));
  for (; pages.first_sliding < first; ++pages.first_sliding) {
    const auto p = static_cast<size_t>(pages.first_sliding);
    if (p < pages.nodes.size()) {
      at(pages.nodes[p]).hot |= seen_on_resume(pages.first_sliding, pages);
      unlock_sliding(pages.nodes[p]);
    } else {
      pool_.give_back(LayerKind::kSliding, ids[p]);
    }
    ids[p] = -1;
  }
}

// The last page, if not full, becomes a tail. The oldest tail of the same parent makes room.
void PrefixCache::add_tail(std::span<const int32_t> tokens, SequencePages& pages) {
  const size_t p = pages.nodes.size();
  const auto rest = tokens.subspan(p * kPageTokens);
  const int32_t parent = p == 0 ? kRoot : pages.nodes.back();
  std::vector<int32_t>& tails = at(parent).tails;
  const auto same = std::find_if(tails.begin(), tails.end(), [&](int32_t idx) {
    return static_cast<size_t>(at(idx).count) == rest.size() &&
           std::equal(rest.begin(), rest.end(), at(idx).tokens.begin());
  });
  if (same != tails.end()) {
    remove(*same);
  } else if (tails.size() == kMaxTails) {
    remove(tails.front());
  }
  const int32_t idx = add_node(parent, rest);
  Node& node = at(idx);
  node.full = std::exchange(pages.ids[LayerKind::kFull][p], -1);
  node.sliding = std::exchange(pages.ids[LayerKind::kSliding][p], -1);
  node.hot = true;
  append(kHotSliding, idx);
  append(kNodes, idx);
}

void PrefixCache::release(std::span<const int32_t> tokens, SequencePages& pages) {
  insert(tokens, pages);
  slide(std::ssize(tokens), pages);  // the rest, of a long last step too, is not hot
  const bool has_tail = mode_ == Mode::kOn && tokens.size() % kPageTokens != 0;
  if (has_tail && tokens.size() / kPageTokens == pages.nodes.size()) add_tail(tokens, pages);
  for (const LayerKind kind : kKinds) {
    for (size_t p = pages.nodes.size(); p < pages.ids[kind].size(); ++p) {
      if (pages.ids[kind][p] >= 0) pool_.give_back(kind, pages.ids[kind][p]);
    }
  }
  for (size_t p = pages.nodes.size(); p-- > 0;) {
    if (static_cast<int64_t>(p) >= pages.first_sliding) {
      at(pages.nodes[p]).hot = true;
      unlock_sliding(pages.nodes[p]);
    }
    unlock(pages.nodes[p]);
  }
  pages = {};
}

void PrefixCache::clear() {
  while (!lists_[kNodes].empty()) remove(lists_[kNodes].front());
  for (const Order order : {kColdSliding, kHotSliding}) {
    while (!lists_[order].empty()) drop_sliding(lists_[order].front());
  }
}

}  // namespace nibble::engine
