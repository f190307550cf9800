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

PrefixCache::PrefixCache(PagePool& pool, const backend::Dims& dims, Mode mode)
    : pool_(pool), dims_(dims), mode_(mode), nodes_(1) {
  const auto most = static_cast<size_t>(mode == Mode::kOn ? pool.total(LayerKind::kFull) : 0);
  nodes_.reserve(most + 1);
  free_nodes_.reserve(most);
  by_key_.reserve(most);
}

void PrefixCache::append(Order& order, Place& place, int32_t node) {
  check(!place, "a node is linked once");
  place = order.insert(order.end(), node);
}

void PrefixCache::unlink(Order& order, Place& place) {
  check(place.has_value(), "a node is linked");
  order.erase(*place);
  place.reset();
}

int64_t PrefixCache::first_page_seen(LayerKind kind, int64_t position) const {
  return std::max<int64_t>(0, position - dims_.window_of(kind) + 1) / kPageTokens;
}

int32_t PrefixCache::child(int32_t parent, std::span<const int32_t> page) const {
  const auto found = by_key_.find(key_of(parent, page));
  if (found == by_key_.end()) return kNone;
  const Node& node = at(found->second);
  return node.parent == parent && std::equal(page.begin(), page.end(), node.tokens.begin()) ? found->second : kNone;
}

// The page that shares the most tokens with the beginning of `rest`, among nodes that have all of their pages.
PrefixCache::Part PrefixCache::closest(int32_t parent, std::span<const int32_t> rest) const {
  Part best;
  const auto compare = [&](int32_t idx) {
    const Node& node = at(idx);
    if (std::ranges::any_of(windowed(), [&](LayerKind kind) { return node.page[kind] < 0; })) return;
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

void PrefixCache::note(KvEvent::What what, int32_t idx, LayerKind kind) {
  const Node& node = at(idx);
  if (!noted_ || node.count != kPageTokens) return;
  KvEvent& event = events_.emplace_back(KvEvent{.what = what, .kind = kind, .block = node.block});
  if (what != KvEvent::What::kStored) return;
  event.parent = at(node.parent).block;
  event.tokens = node.tokens;
}

// Also releases its pages, if it still has them.
void PrefixCache::remove(int32_t idx) {
  Node& node = at(idx);
  check(node.locks == 0 && node.children.empty() && node.tails.empty(), "only a leaf that nobody uses is removed");
  if (node.place) unlink(unused_, node.place);
  for (const LayerKind kind : kinds()) {
    if (Windowed& own = node.windowed[kind]; own.place) unlink(order_of(kind, node), own.place);
    if (node.page[kind] < 0) continue;
    pool_.give_back(kind, node.page[kind]);
    note(KvEvent::What::kRemoved, idx, kind);
  }
  const bool whole = node.count == kPageTokens;
  if (whole) by_key_.erase(node.key);
  std::erase(whole ? at(node.parent).children : at(node.parent).tails, idx);
  node = {};
  free_nodes_.push_back(idx);
}

void PrefixCache::lock(int32_t idx) {
  if (at(idx).locks++ == 0 && at(idx).place) unlink(unused_, at(idx).place);
}

// A sequence unlocks its deepest node first, so in the order of eviction a node comes after all its children.
void PrefixCache::unlock(int32_t idx) {
  check(at(idx).locks > 0, "a node is unlocked by who locked it");
  if (--at(idx).locks == 0) append(unused_, at(idx).place, idx);
}

void PrefixCache::lock(int32_t idx, LayerKind kind) {
  Windowed& own = at(idx).windowed[kind];
  if (own.locks++ == 0 && own.place) unlink(order_of(kind, at(idx)), own.place);
}

void PrefixCache::unlock(int32_t idx, LayerKind kind) {
  Windowed& own = at(idx).windowed[kind];
  check(own.locks > 0, "a page of a window is unlocked by who locked it");
  if (--own.locks == 0) append(order_of(kind, at(idx)), own.place, idx);
}

// A tail without one of its pages is of no use.
void PrefixCache::drop(int32_t idx, LayerKind kind) {
  Node& node = at(idx);
  if (node.count < kPageTokens) return remove(idx);
  unlink(order_of(kind, node), node.windowed[kind].place);
  pool_.give_back(kind, node.page[kind]);
  note(KvEvent::What::kRemoved, idx, kind);
  node.page[kind] = -1;
  node.windowed[kind].hot = false;
}

int32_t PrefixCache::take(LayerKind kind) {
  if (pool_.free_pages(kind) == 0) {
    const auto& [cold, hot] = idle_[kind];
    if (kind == LayerKind::kFull) {
      if (!unused_.empty()) remove(unused_.front());
    } else if (!cold.empty()) {
      drop(cold.front(), kind);
    } else if (!hot.empty()) {
      drop(hot.front(), kind);
    }
  }
  return pool_.take(kind);
}

int64_t PrefixCache::available(LayerKind kind) const {
  const auto& [cold, hot] = idle_[kind];
  return pool_.free_pages(kind) + (kind == LayerKind::kFull ? std::ssize(unused_) : std::ssize(cold) + std::ssize(hot));
}

// Gives the sequence a page that begins with the tokens of `part`: the node's own page if that is a tail shared whole,
// otherwise a copy. False: there is no page left, and nothing has changed.
bool PrefixCache::take_part(const Part& part, SequencePages& pages, Copies& copies) {
  const int32_t idx = part.node;
  if (part.count == at(idx).count && part.count < kPageTokens) {
    for (const LayerKind kind : kinds()) pages.ids[kind].push_back(std::exchange(at(idx).page[kind], -1));
    remove(idx);
    return true;
  }
  lock(idx);  // without the lock it might be evicted next
  for (const LayerKind kind : windowed()) lock(idx, kind);
  const bool left = std::ranges::all_of(kinds(), [&](LayerKind kind) { return available(kind) > 0; });
  if (left) {
    for (const LayerKind kind : kinds()) {
      copies.push_back({.kind = kind, .from = at(idx).page[kind], .to = take(kind)});
      pages.ids[kind].push_back(copies.back().to);
    }
  }
  for (const LayerKind kind : windowed()) unlock(idx, kind);
  unlock(idx);
  return left;
}

PrefixCache::Match PrefixCache::find(std::span<const int32_t> tokens) const {
  Match found;
  if (mode_ == Mode::kOff) return found;
  std::vector<int32_t>& path = found.path;
  PerKind<int64_t> kept;  // last pages of the path that have theirs
  const auto sees_enough = [&](int64_t length) {
    return std::ranges::all_of(windowed(), [&](LayerKind kind) {
      return kept[kind] >= static_cast<int64_t>(path.size()) - first_page_seen(kind, length);
    });
  };
  int32_t last = kRoot;
  while ((path.size() + 1) * kPageTokens <= tokens.size()) {
    const int32_t next = child(last, tokens.subspan(path.size() * kPageTokens, kPageTokens));
    if (next == kNone) break;
    path.push_back(last = next);
    for (const LayerKind kind : windowed()) kept[kind] = at(next).page[kind] >= 0 ? kept[kind] + 1 : 0;
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
  for (const LayerKind kind : windowed()) pages.first_seen[kind] = first_page_seen(kind, length);
  pages.resume_lengths[0] = length;
  for (size_t p = 0; p < path.size(); ++p) {
    lock(path[p]);
    for (const LayerKind kind : kinds()) {
      const bool seen = static_cast<int64_t>(p) >= pages.first_seen[kind];
      if (seen && kind != LayerKind::kFull) lock(path[p], kind);
      pages.ids[kind].push_back(seen ? at(path[p]).page[kind] : -1);
    }
  }
}

void PrefixCache::insert(std::span<const int32_t> tokens, SequencePages& pages) {
  if (mode_ == Mode::kOff) return;
  while ((pages.nodes.size() + 1) * kPageTokens <= tokens.size()) {
    const size_t p = pages.nodes.size();
    const auto page = tokens.subspan(p * kPageTokens, kPageTokens);
    const int32_t parent = p == 0 ? kRoot : pages.nodes.back();
    int32_t& full = pages.ids[LayerKind::kFull][p];
    int32_t idx = child(parent, page);
    if (idx == kNone) {
      idx = add_node(parent, page);
      if (idx == kNone) return;  // this page and what follows stay the sequence's own
      at(idx).page[LayerKind::kFull] = full;
      note(KvEvent::What::kStored, idx, LayerKind::kFull);
    } else {
      pool_.give_back(LayerKind::kFull, full);
      full = at(idx).page[LayerKind::kFull];
    }
    lock(idx);
    for (const LayerKind kind : windowed()) {
      int32_t &own = pages.ids[kind][p], &kept = at(idx).page[kind];
      if (own < 0) continue;
      if (kept >= 0) {
        pool_.give_back(kind, own);
      } else {
        kept = own;
        note(KvEvent::What::kStored, idx, kind);
      }
      own = kept;
      lock(idx, kind);
    }
    pages.nodes.push_back(idx);
  }
}

// Whether a sequence that resumes at one of the resume lengths sees the page. If it does not share the last page, which
// is not full, it resumes at that page's beginning and sees the window before that.
bool PrefixCache::seen_on_resume(LayerKind kind, int64_t page, const SequencePages& pages) const {
  return std::any_of(pages.resume_lengths.begin(), pages.resume_lengths.end(), [&](int64_t length) {
    return page * kPageTokens < length && page >= first_page_seen(kind, length / kPageTokens * kPageTokens);
  });
}

void PrefixCache::slide(int64_t next, SequencePages& pages) {
  for (const LayerKind kind : windowed()) {
    std::vector<int32_t>& ids = pages.ids[kind];
    int64_t& first = pages.first_seen[kind];
    for (const int64_t end = std::min(first_page_seen(kind, next), std::ssize(ids)); first < end; ++first) {
      const auto p = static_cast<size_t>(first);
      if (p < pages.nodes.size()) {
        at(pages.nodes[p]).windowed[kind].hot |= seen_on_resume(kind, first, pages);
        unlock(pages.nodes[p], kind);
      } else {
        pool_.give_back(kind, ids[p]);
      }
      ids[p] = -1;
    }
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
  if (same != tails.end())
    remove(*same);
  else if (tails.size() == kMaxTails)
    remove(tails.front());
  const int32_t idx = add_node(parent, rest);
  Node& node = at(idx);
  for (const LayerKind kind : kinds()) node.page[kind] = std::exchange(pages.ids[kind][p], -1);
  for (const LayerKind kind : windowed()) {
    node.windowed[kind].hot = true;
    append(order_of(kind, node), node.windowed[kind].place, idx);
  }
  append(unused_, node.place, idx);
}

void PrefixCache::release(std::span<const int32_t> tokens, SequencePages& pages) {
  insert(tokens, pages);
  slide(std::ssize(tokens), pages);  // the rest, of a long last step too, is not hot
  const bool has_tail = mode_ == Mode::kOn && tokens.size() % kPageTokens != 0;
  if (has_tail && tokens.size() / kPageTokens == pages.nodes.size()) add_tail(tokens, pages);
  for (const LayerKind kind : kinds())
    for (size_t p = pages.nodes.size(); p < pages.ids[kind].size(); ++p)
      if (pages.ids[kind][p] >= 0) pool_.give_back(kind, pages.ids[kind][p]);
  for (size_t p = pages.nodes.size(); p-- > 0;) {
    for (const LayerKind kind : windowed()) {
      if (static_cast<int64_t>(p) < pages.first_seen[kind]) continue;
      at(pages.nodes[p]).windowed[kind].hot = true;
      unlock(pages.nodes[p], kind);
    }
    unlock(pages.nodes[p]);
  }
  pages = {};
}

void PrefixCache::clear() {
  while (!unused_.empty()) remove(unused_.front());
  for (const LayerKind kind : windowed())
    for (const Order& order : idle_[kind])
      while (!order.empty()) drop(order.front(), kind);
}

}  // namespace nibble::engine
