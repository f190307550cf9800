#pragma once
// The message headers that may come, as a tree of bytes and formatting tokens. It is deterministic, and works for any
// cut of the text into tokens. Each query names a set of kinds of headers, as bits; headers of other kinds are ignored.

#include "base/error.h"
#include "text/harmony_tokens.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
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
  // Calls visit(special) for every formatting token that may come next.
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

inline HeaderTrie::HeaderTrie() {
  nodes_.push_back({.next = {}, .message_rule = {}, .kinds = kAllKinds});
  before_start_ = nodes_.size();
  nodes_.emplace_back();
  Node node = grow(before_start_, kByteValues + static_cast<int>(Special::kStart), kAllKinds);
  constexpr std::string_view kRole = "assistant";
  for (const char c : kRole.substr(0, kRole.size() - 1)) node = grow(node, static_cast<unsigned char>(c), kAllKinds);
  nodes_[node].next.emplace(static_cast<unsigned char>(kRole.back()), kRoot);
}

inline std::optional<HeaderTrie::Node> HeaderTrie::next(Node node, int symbol, Kinds kinds) const {
  const auto it = nodes_[node].next.find(symbol);
  if (it == nodes_[node].next.end() || !leads_to(it->second, kinds)) return std::nullopt;
  return it->second;
}

inline HeaderTrie::Node HeaderTrie::grow(Node node, int symbol, Kinds kinds) {
  const auto [it, is_new] = nodes_[node].next.try_emplace(symbol, nodes_.size());
  const Node to = it->second;
  if (is_new) nodes_.emplace_back();
  nodes_[to].kinds |= kinds;
  return to;
}

inline void HeaderTrie::add(std::span<const Segment> header, size_t message_rule, Kinds kind) {
  Node node = kRoot;
  for (const Segment& segment : header) {
    if (const auto* special = std::get_if<Special>(&segment)) {
      node = grow(node, kByteValues + static_cast<int>(*special), kind);
    } else {
      for (const char c : std::get<std::string>(segment)) node = grow(node, static_cast<unsigned char>(c), kind);
    }
    check(!nodes_[node].message_rule, "a header is the beginning of another");
  }
  check(nodes_[node].next.empty(), "a header is the beginning of another");
  nodes_[node].message_rule = message_rule;
}

inline std::optional<HeaderTrie::Node> HeaderTrie::after(Node node, std::string_view bytes, Kinds kinds) const {
  std::optional<Node> at = node;
  for (const char c : bytes) {
    if (at) at = next(*at, static_cast<unsigned char>(c), kinds);
  }
  return at;
}

}  // namespace nibble::text
