#pragma once
// Pages that outlive their sequence, and are found again by the tokens they hold; docs/decisions/0004.
//
// The cache is a tree. A node is one page of tokens that follow its parent's. It has the page of full attention and,
// while there is room, the pages of layers with a window of the same positions. A tail is a leaf with less than a page:
// the last page of a sequence that ended before filling it. Whole pages never change once they are in the tree, so any
// number of sequences may share them: a sequence writes only at positions from its `computed` on, and what it shares
// lies before. A tail is handed to the one sequence that resumes at its end. A sequence that shares only the beginning
// of a page gets a copy.
//
// Which pages of a window stay: all in that of a running sequence, and as many others as there is room for. Cold
// ones, inside a text, are evicted first. Hot ones are evicted last: the window before the end of a prompt, before the
// end of a sequence, and before a length at which one resumed.

#include "engine/pages.h"

#include <array>
#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace nibble::engine {

// What the cache began or ceased to keep. With it, a router can send a request to the server that has its prompt's
// beginning. A block is a whole page of tokens together with all tokens before it. Each kind of layers has pages of its
// own.
struct KvEvent {
  enum class What : uint8_t { kStored, kRemoved };
  What what = What::kStored;
  LayerKind kind = LayerKind::kFull;
  uint64_t block = 0;                                  // a hash of the tokens up to its end; never 0
  uint64_t parent = 0;                                 // kStored: the block before it; 0: it is the first
  std::array<int32_t, backend::kPageTokens> tokens{};  // kStored
};

// Called on the engine's thread after each step, in order; must neither block nor throw.
using KvEventSink = std::function<void(std::span<const KvEvent> events)>;

class PrefixCache {
 public:
  enum class Mode : uint8_t { kOff, kOn };        // off: keeps nothing, only hands out pages
  using Copies = std::vector<backend::PageCopy>;  // in this order
  // `dims`: of the model, whose windows they say. The pool outlives the cache.
  PrefixCache(PagePool& pool, const backend::Dims& dims, Mode mode);

  // The kinds of pages that a sequence has.
  [[nodiscard]] std::span<const LayerKind> kinds() const { return backend::kinds_of(dims_); }
  // A page for a sequence. If none is free, evicts the least recently used one. -1: sequences hold them all.
  [[nodiscard]] int32_t take(LayerKind kind);
  // How many pages take() could give: free ones, and those in the tree that no sequence uses.
  [[nodiscard]] int64_t available(LayerKind kind) const;

  // How many of `tokens` resume() would give now, if there are pages for what it copies.
  [[nodiscard]] int64_t resumable(std::span<const int32_t> tokens) const;
  // Fills `pages`, which are empty, with the longest part of `tokens` in the tree at which computing can resume: all
  // its pages of full attention, and the pages of each window that the next token sees. Returns its length. The
  // `copies` that it adds must be made before anything else is computed.
  [[nodiscard]] int64_t resume(std::span<const int32_t> tokens, SequencePages& pages, Copies& copies);
  // Shares the pages that `tokens`, all settled, have filled. If the tree already has a page of the same tokens, the
  // sequence switches to that one; a page of a window that the tree has dropped is put back.
  void insert(std::span<const int32_t> tokens, SequencePages& pages);
  // Releases the pages of windows that a token at position `next` or later does not see: the sequence's own go back to
  // the pool; those of a node stay there, unlocked, until take() needs them.
  void slide(int64_t next, SequencePages& pages);
  // Takes all pages from a sequence, keeps those that `tokens`, all settled, fill, and empties `pages`.
  void release(std::span<const int32_t> tokens, SequencePages& pages);

  // Forgets everything that no sequence holds.
  void clear();

  // From now on, records for take_events() which whole pages it keeps and drops. REQUIRES that it keeps none yet.
  void note_events() { noted_ = true; }
  // The events since the last call, in order.
  [[nodiscard]] std::vector<KvEvent> take_events() { return std::exchange(events_, {}); }
  // Aborts when the tree contradicts itself; marks every page that the cache holds. For tests: testing/integrity.h.
  void check_integrity(PerKind<std::vector<int>>& holders) const;

 private:
  static constexpr int32_t kRoot = 0, kNone = -1;
  static constexpr size_t kMaxTails = 16;       // of one node; they are searched one by one
  static constexpr int64_t kMostCompared = 64;  // of one node's pages: the newest

  using Order = std::list<int32_t>;  // of eviction: the first to go in front
  using Place = std::optional<Order::iterator>;
  // What a node's page of a kind with a window is besides.
  struct Windowed {
    int32_t locks = 0;  // sequences that use it
    bool hot = false;   // visible from where others may resume, so it is evicted last; set while the page stays
    Place place{};      // in the cold or the hot order. None: it is in neither
  };
  struct Node {
    int32_t parent = kNone;
    int32_t count = 0;  // tokens; less than a page: a tail; 0: free, or the root
    std::array<int32_t, backend::kPageTokens> tokens{};
    PerKind<int32_t> page{{-1, -1, -1}};
    int32_t locks = 0;  // sequences that use it
    PerKind<Windowed> windowed{};
    std::vector<int32_t> tails, children;  // the children are whole pages
    Place place{};                         // in unused_. None: it is not
    uint64_t key = 0;                      // in by_key_
    uint64_t block = 0;                    // KvEvent's; 0: the root, and tails
  };

  [[nodiscard]] Node& at(int32_t node) { return nodes_[static_cast<size_t>(node)]; }
  [[nodiscard]] const Node& at(int32_t node) const { return nodes_[static_cast<size_t>(node)]; }
  static void append(Order& order, Place& place, int32_t node);
  static void unlink(Order& order, Place& place);

  [[nodiscard]] std::span<const LayerKind> windowed() const {
    static constexpr std::array kWindowed = {LayerKind::kSliding, LayerKind::kWide};
    return std::span(kWindowed).first(dims_.wide_window > 0 ? 2 : 1);
  }
  [[nodiscard]] Order& order_of(LayerKind kind, const Node& node) {
    return idle_[kind][node.windowed[kind].hot ? 1 : 0];
  }
  [[nodiscard]] int64_t first_page_seen(LayerKind kind, int64_t position) const;
  [[nodiscard]] int32_t child(int32_t parent, std::span<const int32_t> page) const;
  // The beginning of a node's page.
  struct Part {
    int32_t node = kNone;
    int32_t count = 0;  // tokens
  };
  [[nodiscard]] Part closest(int32_t parent, std::span<const int32_t> rest) const;
  struct Match {
    std::vector<int32_t> path;  // nodes of whole pages
    size_t depth = 0;           // of them one can go on from
    Part part;                  // of the page after the path, if one can go on from there
    [[nodiscard]] int64_t path_tokens() const { return static_cast<int64_t>(path.size()) * backend::kPageTokens; }
  };
  [[nodiscard]] Match find(std::span<const int32_t> tokens) const;
  void hold(std::span<const int32_t> path, int64_t length, SequencePages& pages);
  [[nodiscard]] bool take_part(const Part& part, SequencePages& pages, Copies& copies);
  [[nodiscard]] int32_t add_node(int32_t parent, std::span<const int32_t> tokens);
  void remove(int32_t node);
  void add_tail(std::span<const int32_t> tokens, SequencePages& pages);
  void lock(int32_t node);
  void unlock(int32_t node);
  // The next three act on a node's page of a kind with a window.
  void lock(int32_t node, LayerKind kind);
  void unlock(int32_t node, LayerKind kind);
  void drop(int32_t node, LayerKind kind);
  void note(KvEvent::What what, int32_t node, LayerKind kind);
  [[nodiscard]] bool seen_on_resume(LayerKind kind, int64_t page, const SequencePages& pages) const;

  PagePool& pool_;
  const backend::Dims dims_;
  const Mode mode_;
  std::vector<Node> nodes_;  // [0] the root
  std::vector<int32_t> free_nodes_;
  std::unordered_map<uint64_t, int32_t> by_key_;  // nodes of whole pages, by hash of parent and tokens
  Order unused_;                                  // nodes
  PerKind<std::array<Order, 2>> idle_;            // nodes whose page of a window nobody uses: cold, hot
  bool noted_ = false;
  std::vector<KvEvent> events_;
};

}  // namespace nibble::engine
