#pragma once
// Sets of texts: regular expressions over Unicode characters, with intersection and complement, and their automata.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace nibble::text {

// Unicode scalar values in ascending, disjoint ranges.
using CharacterRanges = std::vector<std::pair<uint32_t, uint32_t>>;
inline constexpr uint32_t kLastCharacter = 0x10FFFF;
[[nodiscard]] CharacterRanges normalised(CharacterRanges ranges);  // of any order
[[nodiscard]] CharacterRanges intersection(const CharacterRanges& a, const CharacterRanges& b);
[[nodiscard]] CharacterRanges complement(const CharacterRanges& ranges);

// Deterministic; every state leads to an end. No state: there is no text.
struct TextAutomaton {
  struct State {
    bool ends = false;
    std::vector<std::pair<CharacterRanges, size_t>> next{};
  };
  std::vector<State> states;  // the first is where a text begins
};

// Owns sets; equal expressions are one set. Throws Error(kInvalidRequest) when they are too many.
class TextSets {
 public:
  using Id = size_t;
  static constexpr Id kNone = 0, kEmptyText = 1, kAnything = 2, kAnyCharacter = 3;
  static constexpr int64_t kUnbounded = -1;
  enum class Kind : uint8_t { kNone, kEmptyText, kCharacters, kSequence, kRepeated, kAnyOf, kAllOf, kOthers };
  struct Node {
    Kind kind{};
    std::vector<Id> of{};
    CharacterRanges set{};         // kCharacters
    int64_t least = 0, most = 0;   // kRepeated
    bool has_empty = false;        // the empty text is one
    bool combined = false;         // by all_of or others_than, also inside: no expression says it
    int64_t shortest = 0;          // characters; at least
    int64_t longest = kUnbounded;  // at most
  };

  TextSets();
  Id characters(CharacterRanges set);
  Id sequence(Id first, Id rest);
  Id repeated(Id of, int64_t least, int64_t most);
  Id any_of(std::vector<Id> of) { return combination(Kind::kAnyOf, std::move(of)); }
  Id all_of(std::vector<Id> of) { return combination(Kind::kAllOf, std::move(of)); }
  Id others_than(Id of);
  Id literal(std::string_view utf8);

  [[nodiscard]] const Node& node(Id id) const { return nodes_[id]; }
  [[nodiscard]] bool has(Id id, std::string_view utf8);
  // The automaton of the set's texts that have only characters of `within`. None where it has more than `max_states`.
  [[nodiscard]] std::optional<TextAutomaton> automaton(Id id, const CharacterRanges& within, size_t max_states);

 private:
  Id made(Node node);
  Id combination(Kind kind, std::vector<Id> of);
  Id after(Id id, uint32_t character);  // the rests of its texts that begin so
  void add_heads(Id id, std::vector<const CharacterRanges*>& out) const;

  std::vector<Node> nodes_;
  std::map<std::tuple<Kind, std::vector<Id>, CharacterRanges, int64_t, int64_t>, Id> ids_;
  std::map<std::pair<Id, uint32_t>, Id> after_;
};

}  // namespace nibble::text
