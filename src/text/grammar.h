#pragma once
// Which tokens may come next: JSON documents of a schema, alone or as the messages of a whole Harmony turn. Formatting
// tokens are matched as ids, never as text; the vocabulary's other special tokens never may come.
//
// A turn begins after the prompt's `<|start|>assistant` and is
//   (<|channel|>analysis<|message|> text <|end|> <|start|>assistant)*      as often as the model likes, or as bounded
//   then the answer:  <|channel|>final<|message|> content <|return|>
//   or a call:        <|channel|>commentary to=NAME<|message|> content <|call|>
// Where the models vary the header, all their forms may come: to= in the role's part, ` <|constrain|>json`, ` json` or
// nothing. The text of a call (kText) comes as it is, or behind such a ` json` as an object with one string.

#include "text/tokenizer.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nibble::text {

struct ContentRule {
  enum class Kind { kText, kJsonObject, kJsonSchema, kGrammar };
  Kind kind = Kind::kText;
  nlohmann::ordered_json schema = {};  // kJsonSchema; what is served: json_grammar.h
  std::string grammar = {};            // kGrammar: rules of raw text, as raw_grammar.h writes them
  std::string where = {};              // begins the messages about it, e.g. `tool get_weather`
};

struct CallRule {
  std::string recipient;  // functions.get_weather; a built-in tool such as python may be called in analysis, too
  ContentRule arguments = {};
};

struct TurnRules {
  std::optional<ContentRule> answer = ContentRule{};  // empty: the turn must end with one of the calls
  std::vector<CallRule> calls = {};
  bool preamble = true;  // commentary without a recipient may come before the end of the turn
};

// Limits in tokens; an empty one limits nothing.
struct TurnLimits {
  // Reasoning has at most so many: before the answer or the call come at most one analysis and then one preamble, which
  // share them; then they end, at any place.
  std::optional<int64_t> reasoning{};
  // A turn, its end included, has at most so many. An answer that follows a grammar ends within them, if it can at all,
  // and so does a call that must come; reasoning leaves them what they need. A call that the model was free to make is
  // cut there instead: half of a command must not look like a whole one.
  std::optional<int64_t> all{};
};

class GrammarMatcher;

// Rules, compiled. Immutable; copies share one.
class Grammar {
 public:
  struct Impl;
  explicit Grammar(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  [[nodiscard]] GrammarMatcher matcher(TurnLimits limits = {}) const;
  // Keywords of its schemas that it does not keep: ContentRule::where and a JSON pointer, `tool f#/properties/a/not`.
  [[nodiscard]] const std::vector<std::string>& widened() const;

 private:
  std::shared_ptr<const Impl> impl_;
};

// Thread-safe. Keeps what was compiled last. Grammars share equal parts, so another grammar of a small schema costs
// some 50 KB.
class GrammarCompiler {
 public:
  // `tokenizer` must outlive this and every grammar and matcher made by it. Throws kUnsupported where it lacks
  // Harmony's tokens.
  explicit GrammarCompiler(const Tokenizer& tokenizer);
  ~GrammarCompiler();
  GrammarCompiler(const GrammarCompiler&) = delete;
  GrammarCompiler& operator=(const GrammarCompiler&) = delete;

  // Throw Error(kInvalidRequest) naming the keyword or the name at fault.
  [[nodiscard]] Grammar turn(const TurnRules& rules) const;
  // Only the content, then one of `end_ids`: for text completion.
  [[nodiscard]] Grammar content(const ContentRule& rule, std::vector<int32_t> end_ids) const;
  [[nodiscard]] int64_t cached_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// One generation. Not thread-safe.
class GrammarMatcher {
 public:
  GrammarMatcher(std::shared_ptr<const Grammar::Impl> grammar, TurnLimits limits);
  ~GrammarMatcher();
  GrammarMatcher(GrammarMatcher&&) noexcept;
  GrammarMatcher& operator=(GrammarMatcher&&) noexcept;

  // Sets bit t % 32 of word t / 32 if token t may come next, and clears the others. At least one bit is set.
  // REQUIRES that the mask has a bit for every id of the tokenizer.
  void fill(std::span<uint32_t> mask);
  // Takes the token that came. False: it was not allowed, and from now on only the end is.
  bool accept(int32_t token);
  // Takes the token that was drawn. Where the content could not end within TurnLimits::all after it, takes the first
  // token of the shortest way to its end instead, and from now on only the rest of that way may come. Returns which.
  int32_t take(int32_t drawn);
  // Takes back the last `tokens` tokens, at most kMostUndone.
  void undo(int tokens);
  static constexpr int kMostUndone = 32;
  // Whether the last token ended the turn.
  [[nodiscard]] bool finished() const;
  // Whether take() is leading, or has led, to the end.
  [[nodiscard]] bool cut() const;
  // Whether the end was forced, so that the output is not valid: no token fitted (a vocabulary without some byte), or
  // one came that was not allowed.
  [[nodiscard]] bool failed() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble::text
