#pragma once
// The message headers that may come, as a tree of bytes and formatting tokens. It is deterministic, and works for any
// cut of the text into tokens. Each query names a set of kinds of headers, as bits; headers of other kinds are ignored.

#include "text/harmony_tokens.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace nibble::text {

class HeaderTrie {
 public:
  using Node = size_t;
  static constexpr Node kRoot = 0;  // after <|start|>assistant

  using Kinds = uint8_t;
  static constexpr Kinds kAllKinds = 0xFF;

  HeaderTrie();
  // REQUIRES that no header is the beginning of another.
  void add(std::span<const Segment> header, size_t message_rule, Kinds kind);
  // The node before a <|start|>assistant, which leads to the root.
  [[nodiscard]] Node before_start() const { return before_start_; }

  [[nodiscard]] std::optional<Node> after(Node node, Special special, Kinds kinds) const {
    return next(node, kByteValues + static_cast<int>(special), kinds);
  }
  [[nodiscard]] std::optional<Node> after(Node node, std::string_view bytes, Kinds kinds) const;
  // Set if a header ended here.
  [[nodiscard]] std::optional<size_t> message_rule(Node node) const { return nodes_[node].message_rule; }

  // Calls visit(bytes) for every text that may come next, each beginning of it included, up to max_bytes long.
  template <class Visit>
  void for_each_text(Node node, Kinds kinds, size_t max_bytes, Visit&& visit) const {
    std::string text;
    walk(node, kinds, max_bytes, text, visit);
  }
  // Visits the formatting tokens that may follow.
  template <class Visit>
  void for_each_special(Node node, Kinds kinds, Visit&& visit) const {
    for (const auto& [symbol, next] : nodes_[node].next) {
      if (symbol >= kByteValues && leads_to(next, kinds)) visit(static_cast<Special>(symbol - kByteValues));
    }
  }

 private:
  static constexpr int kByteValues = 256;  // symbols from there on are formatting tokens
  struct Entry {
    std::map<int, Node> next;
    std::optional<size_t> message_rule;
    Kinds kinds = 0;  // of the headers that pass here
  };

  [[nodiscard]] bool leads_to(Node node, Kinds kinds) const { return (nodes_[node].kinds & kinds) != 0; }
  [[nodiscard]] std::optional<Node> next(Node node, int symbol, Kinds kinds) const;
  Node grow(Node node, int symbol, Kinds kinds);
  template <class Visit>
  void walk(Node node, Kinds kinds, size_t max_bytes, std::string& text, Visit& visit) const {
    if (text.size() >= max_bytes) return;
    for (const auto& [symbol, next] : nodes_[node].next) {
      if (symbol >= kByteValues || !leads_to(next, kinds)) continue;
      text.push_back(static_cast<char>(symbol));
      visit(std::string_view(text));
      walk(next, kinds, max_bytes, text, visit);
      text.pop_back();
    }
  }

  std::vector<Entry> nodes_;
  Node before_start_ = 0;
};

}  // namespace nibble::text
