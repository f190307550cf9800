#include "text/text_sets.h"

#include "base/error.h"
#include "text/text_stream.h"

#include <algorithm>

namespace nibble::text {
namespace {

constexpr size_t kMaxNodes = 400'000;  // of one schema: some 100 MB

bool holds(const CharacterRanges& set, uint32_t c) {
  const auto it = std::ranges::lower_bound(set, c, {}, &std::pair<uint32_t, uint32_t>::second);
  return it != set.end() && it->first <= c;
}

int64_t sum(int64_t a, int64_t b) {
  return a == TextSets::kUnbounded || b == TextSets::kUnbounded ? TextSets::kUnbounded : a + b;
}
// The states from which an end can be reached.
std::vector<bool> live_states(const std::vector<TextAutomaton::State>& states) {
  std::vector<std::vector<size_t>> before(states.size());
  std::vector<bool> live(states.size());
  std::vector<size_t> open;
  for (size_t i = 0; i < states.size(); ++i) {
    for (const auto& [set, next] : states[i].next) before[next].push_back(i);
    if (states[i].ends) open.push_back(i);
  }
  while (!open.empty()) {
    const size_t state = open.back();
    open.pop_back();
    if (live[state]) continue;
    live[state] = true;
    open.insert(open.end(), before[state].begin(), before[state].end());
  }
  return live;
}

}  // namespace

CharacterRanges normalised(CharacterRanges ranges) {
  std::sort(ranges.begin(), ranges.end());
  CharacterRanges out;
  for (const auto& [first, last] : ranges)
    if (!out.empty() && first <= out.back().second + 1)
      out.back().second = std::max(out.back().second, last);
    else
      out.emplace_back(first, last);
  return out;
}

CharacterRanges intersection(const CharacterRanges& a, const CharacterRanges& b) {
  CharacterRanges out;
  for (const auto& [first, last] : a)
    for (const auto& [other_first, other_last] : b) {
      const uint32_t from = std::max(first, other_first), to = std::min(last, other_last);
      if (from <= to) out.emplace_back(from, to);
    }
  return out;
}

CharacterRanges complement(const CharacterRanges& ranges) {
  CharacterRanges out;
  uint32_t from = 0;
  for (const auto& [first, last] : ranges) {
    if (first > from) out.emplace_back(from, first - 1);
    from = last + 1;
  }
  if (from <= kLastCharacter) out.emplace_back(from, kLastCharacter);
  return out;
}

TextSets::TextSets() {
  made({.kind = Kind::kNone, .longest = 0});
  made({.kind = Kind::kEmptyText, .has_empty = true, .longest = 0});
  made({.kind = Kind::kRepeated, .of = {kAnyCharacter}, .most = kUnbounded, .has_empty = true});
  characters({{0, kLastCharacter}});
}

TextSets::Id TextSets::made(Node node) {
  const auto [it, is_new] = ids_.try_emplace({node.kind, node.of, node.set, node.least, node.most}, nodes_.size());
  if (!is_new) return it->second;
  if (nodes_.size() >= kMaxNodes)
    throw Error(Code::kInvalidRequest, "the schema's patterns and names are too large together");
  for (const Id part : node.of) node.combined = node.combined || (part < nodes_.size() && nodes_[part].combined);
  nodes_.push_back(std::move(node));
  return it->second;
}

TextSets::Id TextSets::characters(CharacterRanges set) {
  if (set.empty()) return kNone;
  return made({.kind = Kind::kCharacters, .set = std::move(set), .shortest = 1, .longest = 1});
}

TextSets::Id TextSets::sequence(Id first, Id rest) {
  if (first == kNone || rest == kNone) return kNone;
  if (first == kEmptyText) return rest;
  if (rest == kEmptyText) return first;
  if (first == kAnything && rest == kAnything) return kAnything;
  if (nodes_[first].kind == Kind::kSequence) {  // one form of each sequence: the first part is none
    const std::vector<Id> of = nodes_[first].of;
    return sequence(of[0], sequence(of[1], rest));
  }
  const Node &a = nodes_[first], &b = nodes_[rest];
  return made({.kind = Kind::kSequence,
               .of = {first, rest},
               .has_empty = a.has_empty && b.has_empty,
               .shortest = a.shortest + b.shortest,
               .longest = sum(a.longest, b.longest)});
}

TextSets::Id TextSets::repeated(Id of, int64_t least, int64_t most) {
  if (nodes_[of].has_empty) least = 0;
  if (most == 0 || of == kEmptyText || (of == kNone && least == 0)) return kEmptyText;
  if (of == kNone || (least == 1 && most == 1) || of == kAnything) return of;
  const Node& node = nodes_[of];
  return made({.kind = Kind::kRepeated,
               .of = {of},
               .least = least,
               .most = most,
               .has_empty = least == 0,
               .shortest = node.shortest * least,
               .longest = node.longest == kUnbounded || most == kUnbounded ? kUnbounded : node.longest * most});
}

// Sorted, each once, none inside another of its kind: so that few sets have two forms.
TextSets::Id TextSets::combination(Kind kind, std::vector<Id> of) {
  const bool any = kind == Kind::kAnyOf;
  const Id neutral = any ? kNone : kAnything, absorbing = any ? kAnything : kNone;
  std::vector<Id> parts;
  for (const Id part : of) {
    if (part == absorbing) return absorbing;
    if (nodes_[part].kind == kind)
      parts.insert(parts.end(), nodes_[part].of.begin(), nodes_[part].of.end());
    else if (part != neutral)
      parts.push_back(part);
  }
  std::sort(parts.begin(), parts.end());
  parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
  if (parts.empty()) return neutral;
  if (parts.size() == 1) return parts[0];
  Node node{.kind = kind, .of = parts, .has_empty = !any, .combined = !any, .shortest = any ? INT64_MAX : 0};
  node.longest = any ? 0 : kUnbounded;
  for (const Id part : parts) {
    const Node& each = nodes_[part];
    node.has_empty = any ? node.has_empty || each.has_empty : node.has_empty && each.has_empty;
    node.shortest = any ? std::min(node.shortest, each.shortest) : std::max(node.shortest, each.shortest);
    const bool longer = node.longest != kUnbounded && (each.longest == kUnbounded || each.longest > node.longest);
    const bool shorter = each.longest != kUnbounded && (node.longest == kUnbounded || each.longest < node.longest);
    if (any ? longer : shorter) node.longest = each.longest;
  }
  return made(std::move(node));
}

TextSets::Id TextSets::others_than(Id of) {
  if (nodes_[of].kind == Kind::kOthers) return nodes_[of].of[0];
  if (of == kNone || of == kAnything) return of == kNone ? kAnything : kNone;
  return made({.kind = Kind::kOthers, .of = {of}, .has_empty = !nodes_[of].has_empty, .combined = true});
}

TextSets::Id TextSets::literal(std::string_view utf8) {
  std::vector<uint32_t> all;
  for (size_t i = 0; i < utf8.size();) all.push_back(next_character(utf8, i));
  Id out = kEmptyText;
  for (size_t i = all.size(); i-- > 0;) out = sequence(characters({{all[i], all[i]}}), out);
  return out;
}

TextSets::Id TextSets::after(Id id, uint32_t character) {
  if (const auto it = after_.find({id, character}); it != after_.end()) return it->second;
  const Node node = nodes_[id];
  Id out = kNone;
  switch (node.kind) {
    case Kind::kNone:
    case Kind::kEmptyText: break;
    case Kind::kCharacters: out = holds(node.set, character) ? kEmptyText : kNone; break;
    case Kind::kSequence:
      out = sequence(after(node.of[0], character), node.of[1]);
      if (nodes_[node.of[0]].has_empty) out = any_of({out, after(node.of[1], character)});
      break;
    case Kind::kRepeated:
      out = sequence(after(node.of[0], character),
                     id == kAnything ? id
                                     : repeated(node.of[0], std::max<int64_t>(node.least - 1, 0),
                                                node.most == kUnbounded ? kUnbounded : node.most - 1));
      break;
    case Kind::kOthers: out = others_than(after(node.of[0], character)); break;
    case Kind::kAnyOf:
    case Kind::kAllOf: {
      std::vector<Id> parts;
      for (const Id part : node.of) parts.push_back(after(part, character));
      out = combination(node.kind, std::move(parts));
      break;
    }
  }
  return after_[{id, character}] = out;
}

bool TextSets::has(Id id, std::string_view utf8) {
  for (size_t i = 0; i < utf8.size();) id = after(id, next_character(utf8, i));
  return nodes_[id].has_empty;
}

// The classes of characters that its texts may begin with: what comes after one is the same for all of a class.
void TextSets::add_heads(Id id, std::vector<const CharacterRanges*>& out) const {
  const Node& node = nodes_[id];
  if (node.kind == Kind::kCharacters) {
    if (std::ranges::none_of(out, [&](const CharacterRanges* o) { return *o == node.set; })) out.push_back(&node.set);
    return;
  }
  const bool first_only = node.kind == Kind::kSequence && !nodes_[node.of[0]].has_empty;
  for (const Id part : node.of) {
    add_heads(part, out);
    if (first_only) break;
  }
}

std::optional<TextAutomaton> TextSets::automaton(Id id, const CharacterRanges& within, size_t max_states) {
  std::map<Id, size_t> state_of = {{id, 0}};
  std::vector<Id> order = {id};
  std::vector<TextAutomaton::State> states;
  for (size_t at = 0; at < order.size(); ++at) {
    if (order.size() > max_states) return std::nullopt;
    std::vector<const CharacterRanges*> heads;
    add_heads(order[at], heads);
    std::vector<CharacterRanges> classes = {within};
    for (const CharacterRanges* head : heads) {
      std::vector<CharacterRanges> finer;
      for (const CharacterRanges& of : classes)
        for (CharacterRanges part : {intersection(of, *head), intersection(of, complement(*head))})
          if (!part.empty()) finer.push_back(std::move(part));
      classes = std::move(finer);
    }
    std::map<size_t, CharacterRanges> next;
    for (const CharacterRanges& of : classes) {
      const Id rest = after(order[at], of.front().first);
      if (rest == kNone) continue;
      const auto [it, is_new] = state_of.try_emplace(rest, order.size());
      if (is_new) order.push_back(rest);
      CharacterRanges& set = next[it->second];
      set.insert(set.end(), of.begin(), of.end());
    }
    TextAutomaton::State& state = states.emplace_back();
    state.ends = nodes_[order[at]].has_empty;
    for (auto& [to, set] : next) state.next.emplace_back(normalised(std::move(set)), to);
  }
  const std::vector<bool> live = live_states(states);
  std::vector<size_t> place(states.size());
  TextAutomaton out;
  for (size_t i = 0, count = 0; i < states.size(); ++i) place[i] = live[i] ? count++ : 0;
  if (!live[0]) return out;
  for (size_t i = 0; i < states.size(); ++i) {
    if (!live[i]) continue;
    std::erase_if(states[i].next, [&](const auto& edge) { return !live[edge.second]; });
    for (auto& [set, to] : states[i].next) to = place[to];
    out.states.push_back(std::move(states[i]));
  }
  return out;
}

}  // namespace nibble::text
