#include "text/header_trie.h"

#include "base/error.h"

#include <string>

namespace nibble::text {

HeaderTrie::HeaderTrie() {
  nodes_.push_back({.next = {}, .message_rule = {}, .kinds = kAllKinds});
  before_start_ = nodes_.size();
  nodes_.emplace_back();
  Node node = grow(before_start_, kByteValues + static_cast<int>(Special::kStart), kAllKinds);
  constexpr std::string_view kRole = "assistant";
  for (const char c : kRole.substr(0, kRole.size() - 1)) node = grow(node, static_cast<unsigned char>(c), kAllKinds);
  nodes_[node].next.emplace(static_cast<unsigned char>(kRole.back()), kRoot);
}

std::optional<HeaderTrie::Node> HeaderTrie::next(Node node, int symbol, Kinds kinds) const {
  const auto it = nodes_[node].next.find(symbol);
  if (it == nodes_[node].next.end() || !leads_to(it->second, kinds)) return std::nullopt;
  return it->second;
}

HeaderTrie::Node HeaderTrie::grow(Node node, int symbol, Kinds kinds) {
  const auto [it, is_new] = nodes_[node].next.try_emplace(symbol, nodes_.size());
  const Node to = it->second;
  if (is_new) nodes_.emplace_back();
  nodes_[to].kinds |= kinds;
  return to;
}

void HeaderTrie::add(std::span<const Segment> header, size_t message_rule, Kinds kind) {
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

std::optional<HeaderTrie::Node> HeaderTrie::after(Node node, std::string_view bytes, Kinds kinds) const {
  std::optional<Node> at = node;
  for (const char c : bytes) {
    if (at) at = next(*at, static_cast<unsigned char>(c), kinds);
  }
  return at;
}

}  // namespace nibble::text
