#include "text/grammar.h"

#include "base/error.h"
#include "text/conversation.h"
#include "text/grammar_rules.h"
#include "text/harmony_tokens.h"
#include "text/json_grammar.h"
#include "text/text_stream.h"

#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <deque>
#include <iterator>
#include <limits>
#include <unordered_set>
#include <utility>

namespace nibble::text {
namespace {

// How much of compiled grammars is kept. Masks grow with the vocabulary, automata do not. For o200k it is 155 MiB, of
// which the grammar of any JSON takes 20.
constexpr int64_t kCacheBytes = 32 << 20, kCacheBytesPerToken = 640;
constexpr size_t kMaxCalls = 1024;
constexpr size_t kMaxRecipientBytes = 288;  // a space and a name of 128 each, and some
constexpr size_t kMaxTextBytes = 64;        // of a token in a header
constexpr int32_t kNothing = -1;
// States of a parser that one token's mask looks at: about a second. Schemas of zod and pydantic take 1.7 million.
constexpr int64_t kMostMaskWork = 8'000'000;
// Content is ended within a limit if so many bytes end it; it is watched for the last so many tokens.
constexpr int64_t kMostEndBytes = 16'384, kWatchedTokens = 4096;
// A call's header has fewer in o200k, with what ends the message before it and begins this one.
constexpr int64_t kHeaderTokens = 24;

using Mask = std::vector<uint32_t>;

void set(std::span<uint32_t> mask, int32_t token) {
  mask[static_cast<size_t>(token) / 32] |= uint32_t{1} << (static_cast<size_t>(token) % 32);
}

bool is_set(std::span<const uint32_t> mask, int32_t token) {
  return (mask[static_cast<size_t>(token) / 32] >> (static_cast<size_t>(token) % 32) & 1) != 0;
}

// What every grammar of one tokenizer shares.
struct Vocabulary {
  explicit Vocabulary(const Tokenizer& of)
      : tokenizer(of), ids(HarmonyIds::from_names([&](std::string_view name) { return of.special_id(name); })) {
    ordinary.resize(static_cast<size_t>(of.max_id()) / 32 + 1);
    for (int32_t id = 0; id <= of.max_id(); ++id)
      if (of.contains(id) && !of.is_special(id)) set(ordinary, id);
  }
  [[nodiscard]] bool is_ordinary(int32_t id) const {
    return id >= 0 && id <= tokenizer.max_id() && is_set(ordinary, id);
  }

  const Tokenizer& tokenizer;
  HarmonyIds ids;
  Mask ordinary;  // every token that is not special
};

xgrammar::TokenizerInfo tokenizer_info(const Vocabulary& vocabulary) {
  std::vector<std::string> bytes(static_cast<size_t>(vocabulary.tokenizer.max_id()) + 1);  // empty: never allowed
  for (int32_t id = 0; id <= vocabulary.tokenizer.max_id(); ++id)
    if (vocabulary.is_ordinary(id)) bytes[static_cast<size_t>(id)] = vocabulary.tokenizer.token_bytes(id);
  const auto size = static_cast<int>(bytes.size());
  // A matcher names its own stop ids; the list may not be empty.
  const std::vector<int32_t> stop_ids = {vocabulary.ids.id_of(Special::kReturn)};
  return {bytes, xgrammar::VocabType::RAW, size, stop_ids};
}

// Cuts a text into tokens, each the longest that fits. Empty where the vocabulary lacks one of its bytes.
std::optional<std::deque<int32_t>> tokens_of(const Vocabulary& vocabulary, std::string_view text) {
  std::deque<int32_t> tokens;
  while (!text.empty()) {
    size_t size = std::min(text.size(), kMaxTextBytes);
    const auto token = [&] { return vocabulary.tokenizer.id_of(text.substr(0, size)).value_or(kNothing); };
    while (size > 0 && !vocabulary.is_ordinary(token())) --size;
    if (size == 0) return std::nullopt;
    tokens.push_back(token());
    text.remove_prefix(size);
  }
  return tokens;
}

// Returns the tokens that end the content soonest, without the one that ends the message; empty if they are too many.
std::optional<std::deque<int32_t>> shortest_text(const Vocabulary& vocabulary, xgrammar::GrammarMatcher& content) {
  const int64_t bytes = content.BytesToEnd();
  if (bytes == 0) return std::deque<int32_t>();
  const std::string text = bytes <= kMostEndBytes ? content.ShortestEnd() : std::string();
  return text.empty() ? std::nullopt : tokens_of(vocabulary, text);
}

// Kinds of messages, as bits. If reasoning is bounded, a message may be followed only by those with lower ones.
using Kinds = uint8_t;
constexpr Kinds kLast = 1, kPreamble = 2, kReasoning = 4, kAllKinds = 0xFF;

// The message headers that may come. Works for any cut of their text into tokens.
class Headers {
 public:
  // Headers that begin with the same `depth` bytes.
  struct Place {
    size_t first = 0, last = 0, depth = 0;
  };

  // REQUIRES that no header is the beginning of another, and that texts have no byte that UTF-8 has not.
  void add(const std::vector<Segment>& header, size_t message_rule, Kinds kind) {
    std::string bytes(kOpening);
    for (const Segment& segment : header) {
      const auto* special = std::get_if<Special>(&segment);
      bytes += special != nullptr ? std::string(1, byte_of(*special)) : std::get<std::string>(segment);
    }
    headers_.push_back({std::move(bytes), message_rule, kind});
  }
  void sort() {
    std::ranges::sort(headers_, {}, &Header::bytes);
    for (size_t i = 1; i < headers_.size(); ++i)
      check(!headers_[i].bytes.starts_with(headers_[i - 1].bytes), "a header is the beginning of another");
  }

  [[nodiscard]] Place before_start() const { return {0, headers_.size(), 0}; }
  [[nodiscard]] Place after_role() const { return {0, headers_.size(), kOpening.size()}; }  // <|start|>assistant
  static std::string text_of(Special special) { return {byte_of(special)}; }

  [[nodiscard]] std::optional<Place> after(Place place, std::string_view bytes, Kinds kinds) const {
    for (const char byte : bytes) {
      const auto at_depth = [depth = place.depth](const Header& h) {
        return depth < h.bytes.size() ? static_cast<int>(static_cast<unsigned char>(h.bytes[depth])) : -1;
      };
      const auto range = std::ranges::equal_range(std::span(headers_).subspan(place.first, place.last - place.first),
                                                  static_cast<int>(static_cast<unsigned char>(byte)), {}, at_depth);
      const auto first = static_cast<size_t>(range.data() - headers_.data());
      place = {first, first + range.size(), place.depth + 1};
    }
    const auto of_kind = [kinds](const Header& h) { return (h.kind & kinds) != 0; };
    const auto begin = headers_.begin();
    if (std::none_of(begin + static_cast<int64_t>(place.first), begin + static_cast<int64_t>(place.last), of_kind))
      return std::nullopt;
    return place;
  }
  // Set if a header ended here.
  [[nodiscard]] std::optional<size_t> message_rule(Place place) const {
    const Header& header = headers_[place.first];
    return header.bytes.size() == place.depth ? std::optional(header.message_rule) : std::nullopt;
  }
  // Calls visit(special) or visit(text) for all that may come next; for a text, for each beginning of it.
  template <class Visit>
  void for_each_next(Place place, Kinds kinds, Visit&& visit) const {
    std::string_view before;
    for (size_t i = place.first; i < place.last; ++i) {
      if ((headers_[i].kind & kinds) == 0) continue;
      const std::string_view rest = std::string_view(headers_[i].bytes).substr(place.depth);
      const auto known = static_cast<size_t>(std::ranges::mismatch(rest, before).in1 - rest.begin());
      before = rest;
      if (is_special(rest[0]) && known == 0) visit(static_cast<Special>(rest[0] - kFirstSpecial));
      for (size_t n = 1; n <= std::min(kMaxTextBytes, rest.size()) && !is_special(rest[n - 1]); ++n)
        if (n > known) visit(rest.substr(0, n));
    }
  }

 private:
  struct Header {
    std::string bytes;  // formatting tokens as bytes that UTF-8 has not
    size_t message_rule;
    Kinds kind;
  };
  static constexpr char kFirstSpecial = '\xF8';
  static constexpr char byte_of(Special special) {
    return static_cast<char>(kFirstSpecial + static_cast<int>(special));
  }
  static bool is_special(char byte) { return static_cast<unsigned char>(byte) >= 0xF8; }
  static constexpr std::string_view kOpening =  // <|start|>assistant

      "\xF8"
      "assistant";

  std::vector<Header> headers_;
};

struct MessageRule {
  std::optional<xgrammar::CompiledGrammar> content;  // empty: text
  std::vector<int32_t> end_ids;
  Kinds kind = kLast;
  bool whole = true;  // ends within TurnLimits::all, rather than being cut
};

// All ways in which the models write the header of a call. `as`: what its content is.
std::vector<std::vector<Segment>> call_headers(const CallRule& call, ContentRule::Kind as) {
  const bool is_function = call.recipient.starts_with("functions.");
  const std::string to = " to=" + call.recipient;
  std::vector<std::string_view> channels = {kCommentaryChannel};
  if (!is_function) channels.push_back(kAnalysisChannel);
  std::vector<std::string> types;  // none: raw text under a grammar, which no JSON may stand for
  using Kind = ContentRule::Kind;
  if (as == Kind::kText) types.emplace_back("code");
  if (as == Kind::kJsonObject || as == Kind::kJsonSchema) types.emplace_back("json");
  std::vector<std::vector<Segment>> out;
  for (const std::string_view channel : channels) {
    const std::vector<Segment> after_channel = {Special::kChannel, std::string(channel) + to};
    const std::vector<Segment> in_role = {to, Special::kChannel, std::string(channel)};
    for (const std::vector<Segment>& begin : {after_channel, in_role}) {
      std::vector<std::vector<Segment>> ends;
      if (as == call.arguments.kind) ends.push_back({Special::kMessage});
      for (const std::string& type : types) {
        ends.push_back({" " + type, Special::kMessage});
        ends.push_back({" ", Special::kConstrain, type, Special::kMessage});
      }
      for (const std::vector<Segment>& end : ends) {
        out.push_back(begin);
        out.back().insert(out.back().end(), end.begin(), end.end());
      }
    }
  }
  return out;
}

std::vector<std::vector<Segment>> answer_headers(const ContentRule& answer) {
  const std::string channel(kFinalChannel);
  std::vector<std::vector<Segment>> out = {{Special::kChannel, channel, Special::kMessage}};
  if (answer.kind == ContentRule::Kind::kText || answer.kind == ContentRule::Kind::kGrammar) return out;
  out.push_back({Special::kChannel, channel + " json", Special::kMessage});
  out.push_back({Special::kChannel, channel + " ", Special::kConstrain, "json", Special::kMessage});
  return out;
}

}  // namespace

struct Grammar::Impl {
  std::shared_ptr<const Vocabulary> vocabulary;
  std::vector<MessageRule> messages{};
  std::optional<Headers> headers{};  // empty: the content of messages[0] comes at once
  int64_t reserve = 0;               // tokens of a turn that what must come has for itself, if it needs them
  std::vector<std::string> widened{};
};

struct GrammarCompiler::Impl {
  explicit Impl(const Tokenizer& tokenizer)
      : vocabulary(std::make_shared<const Vocabulary>(tokenizer)),
        compiler(tokenizer_info(*vocabulary), /*max_threads=*/1, /*cache_enabled=*/true,
                 kCacheBytes + kCacheBytesPerToken * (tokenizer.max_id() + 1)) {}

  // What of the rule is not kept is added to `widened`.
  std::optional<xgrammar::CompiledGrammar> compiled(const ContentRule& rule, std::vector<std::string>& widened) {
    if (rule.kind == ContentRule::Kind::kText) return std::nullopt;
    if (rule.kind == ContentRule::Kind::kJsonObject) return any_object;
    std::string grammar = rule.grammar;
    if (rule.kind == ContentRule::Kind::kJsonSchema) {
      JsonGrammar of_schema = json_schema_grammar(rule.schema, rule.where);
      grammar = std::move(of_schema.text);
      for (const std::string& pointer : of_schema.widened) widened.push_back(rule.where + pointer);
    }
    try {
      return compiler.CompileGrammar(grammar);
    } catch (const std::exception& error) {
      throw Error(Code::kInvalidRequest, "{}: it cannot be compiled: {}", rule.where, error.what());
    }
  }
  [[nodiscard]] int32_t id_of(Special special) const { return vocabulary->ids.id_of(special); }

  std::shared_ptr<const Vocabulary> vocabulary;
  xgrammar::GrammarCompiler compiler;  // thread-safe
  // What every schema's grammar contains, mostly strings. Compiled at once, so that no request waits for it, and kept,
  // so that grammars share its masks.
  const xgrammar::CompiledGrammar any_object = compiler.CompileGrammar(json_object_grammar());
};

GrammarCompiler::GrammarCompiler(const Tokenizer& tokenizer) : impl_(std::make_unique<Impl>(tokenizer)) {}
GrammarCompiler::~GrammarCompiler() = default;

int64_t GrammarCompiler::cached_bytes() const { return impl_->compiler.GetCacheSizeBytes(); }

Grammar GrammarCompiler::content(const ContentRule& rule, std::vector<int32_t> end_ids) const {
  check(!end_ids.empty(), "a grammar needs a token that ends it");
  for (const int32_t id : end_ids)
    if (!impl_->vocabulary->tokenizer.contains(id))
      throw Error(Code::kInvalidRequest, "[grammar] want token ids that end the text, found {}, which is none", id);
  auto grammar = std::make_shared<Grammar::Impl>(impl_->vocabulary);
  grammar->messages.push_back({.content = impl_->compiled(rule, grammar->widened), .end_ids = std::move(end_ids)});
  return Grammar(std::move(grammar));
}

Grammar GrammarCompiler::turn(const TurnRules& rules) const {
  if (!rules.answer && rules.calls.empty())
    throw Error(Code::kInvalidRequest, "[grammar] want an answer or a function that may be called, found neither");
  if (rules.calls.size() > kMaxCalls)
    throw Error(Code::kInvalidRequest, "[grammar] want at most {} functions, found {}", kMaxCalls, rules.calls.size());
  auto grammar = std::make_shared<Grammar::Impl>(impl_->vocabulary);
  Headers& headers = grammar->headers.emplace();
  const auto add = [&](const std::vector<std::vector<Segment>>& forms, MessageRule rule) {
    for (const std::vector<Segment>& form : forms) headers.add(form, grammar->messages.size(), rule.kind);
    if (rule.content && rule.whole) {
      xgrammar::GrammarMatcher content(*rule.content, rule.end_ids);
      if (const auto least = shortest_text(*impl_->vocabulary, content))
        grammar->reserve = std::max(grammar->reserve, std::ssize(*least) + kHeaderTokens);
    }
    grammar->messages.push_back(std::move(rule));
  };
  const auto plain = [](std::string_view channel) {
    return std::vector<std::vector<Segment>>{{Special::kChannel, std::string(channel), Special::kMessage}};
  };
  const std::vector<int32_t> end = {impl_->id_of(Special::kEnd)};
  add(plain(kAnalysisChannel), {.content = {}, .end_ids = end, .kind = kReasoning});
  if (rules.preamble) add(plain(kCommentaryChannel), {.content = {}, .end_ids = end, .kind = kPreamble});
  if (rules.answer)
    add(answer_headers(*rules.answer),
        {.content = impl_->compiled(*rules.answer, grammar->widened), .end_ids = {impl_->id_of(Special::kReturn)}});
  std::unordered_set<std::string> recipients;
  for (const CallRule& call : rules.calls) {
    const bool is_word = !call.recipient.empty() && call.recipient.find_first_of(" \t\r\n<>|") == std::string::npos &&
                         valid_utf8_prefix(call.recipient) == call.recipient.size();
    if (!is_word || call.recipient.size() > kMaxRecipientBytes || !recipients.insert(call.recipient).second)
      throw Error(Code::kInvalidRequest,
                  "[grammar] want names of functions that are one word of at most {} bytes, each once, found '{}'",
                  kMaxRecipientBytes, call.recipient.substr(0, kMaxRecipientBytes));
    const std::vector<int32_t> call_ends = {impl_->id_of(Special::kCall)};
    add(call_headers(call, call.arguments.kind),
        {.content = impl_->compiled(call.arguments, grammar->widened), .end_ids = call_ends, .whole = !rules.answer});
    if (call.arguments.kind != ContentRule::Kind::kText) continue;
    const ContentRule as_json{.kind = ContentRule::Kind::kGrammar,
                              .grammar = shared_rules() + "root ::= \"{\" ws string \":\" ws string ws \"}\"\n",
                              .where = call.recipient};
    add(call_headers(call, ContentRule::Kind::kJsonObject),
        {.content = impl_->compiled(as_json, grammar->widened), .end_ids = call_ends, .whole = !rules.answer});
  }
  headers.sort();
  return Grammar(std::move(grammar));
}

struct GrammarMatcher::Impl {
  enum class State { kHeader, kContent, kFinished };
  // What accept() changes. Copies of a matcher of xgrammar share its state.
  struct Position {
    State state = State::kHeader;
    Headers::Place header{};                         // kHeader
    Kinds kinds = kAllKinds;                         // of headers that may come
    int64_t spent = 0;                               // tokens of analysis and preambles
    size_t message = 0;                              // kContent: its rule
    std::optional<xgrammar::GrammarMatcher> json{};  // kContent, unless it is text
    bool failed = false;
    int64_t taken = 0;                            // tokens
    bool can_close = false;                       // kContent: it can end within the limit
    bool cut = false;                             // the shortest way to the end was taken
    std::deque<int32_t> closing{};                // the rest of the shortest way to the end, still to come
    int64_t walked_bytes = 0, walked_tokens = 0;  // of the shortest way when it was last walked
    bool json_accepted = false;                   // the token that came next, which undo() takes back
  };

  Impl(std::shared_ptr<const Grammar::Impl> of, TurnLimits most) : grammar(std::move(of)), limits(most) {
    if (grammar->headers)
      at.header = grammar->headers->after_role();
    else
      begin_content(0);
    if (is_spent()) at.kinds = kLast;
  }

  void begin_content(size_t rule) {
    at.state = State::kContent;
    at.message = rule;
    at.json.reset();
    const MessageRule& of = grammar->messages[rule];
    if (of.content) at.json.emplace(*of.content, of.end_ids);
    at.can_close = at.json && of.whole && limits.all && shortest_end().has_value();
  }
  [[nodiscard]] const MessageRule& rule() const { return grammar->messages[at.message]; }
  // Whether the answer or the call must come now. It has half of the limit for itself, if it needs that.
  [[nodiscard]] bool is_spent() const {
    if (limits.reasoning && at.spent >= *limits.reasoning) return true;
    return grammar->reserve > 0 && limits.all && *limits.all - at.taken <= std::min(grammar->reserve, *limits.all / 2);
  }
  [[nodiscard]] bool is_end(int32_t token) const {
    return std::find(rule().end_ids.begin(), rule().end_ids.end(), token) != rule().end_ids.end();
  }
  // Whether this is text before the answer or the call that has used up its tokens.
  [[nodiscard]] bool must_end() const { return rule().kind != kLast && is_spent(); }
  // The only token that may come when nothing fits.
  [[nodiscard]] int32_t forced_end() const {
    if (!grammar->headers) return rule().end_ids.front();
    return grammar->vocabulary->ids.id_of(Special::kReturn);
  }

  // Whether the content can end within the limit, which is looked at only near to it; and the tokens that end it
  // soonest, its end token the last, unless they are more than may come.
  [[nodiscard]] bool closes() {
    const int64_t left = *limits.all - at.taken, bytes = at.json->BytesToEnd();
    if (left > kWatchedTokens || bytes < left) return true;
    // The way is walked only where it may be too long: a quarter for ways whose bytes make more tokens than that one's.
    const int64_t about = at.walked_tokens + std::max(int64_t{0}, bytes - at.walked_bytes);
    return about + about / 4 < left || shortest_end();
  }

  [[nodiscard]] std::optional<std::deque<int32_t>> shortest_end() {
    auto tokens = shortest_text(*grammar->vocabulary, *at.json);
    if (!tokens) return std::nullopt;
    tokens->push_back(rule().end_ids.front());
    at.walked_bytes = at.json->BytesToEnd();
    at.walked_tokens = std::ssize(*tokens);
    return at.walked_tokens <= *limits.all - at.taken ? std::move(tokens) : std::nullopt;
  }

  void fill_header(std::span<uint32_t> mask) const {
    const Vocabulary& vocabulary = *grammar->vocabulary;
    grammar->headers->for_each_next(at.header, at.kinds, [&]<class Next>(Next next) {
      if constexpr (std::is_same_v<Next, Special>) {
        set(mask, vocabulary.ids.id_of(next));
      } else {
        const int32_t token = vocabulary.tokenizer.id_of(next).value_or(kNothing);
        if (vocabulary.is_ordinary(token)) set(mask, token);
      }
    });
  }

  void fill_content(std::span<uint32_t> mask) {
    const Mask& ordinary = grammar->vocabulary->ordinary;
    if (!at.json) {
      if (!must_end()) std::copy(ordinary.begin(), ordinary.end(), mask.begin());
      for (const int32_t id : rule().end_ids) set(mask, id);
      return;
    }
    int64_t words = static_cast<int64_t>(ordinary.size());
    DLTensor tensor{};
    tensor.data = mask.data();
    tensor.device = {kDLCPU, 0};
    tensor.ndim = 1;
    tensor.dtype = {kDLInt, 32, 1};
    tensor.shape = &words;
    at.json->BoundWork(kMostMaskWork);
    try {
      if (!at.json->FillNextTokenBitmask(&tensor)) std::fill_n(mask.begin(), ordinary.size(), ~uint32_t{0});
    } catch (const xgrammar::TooMuchWork&) {
      throw Error(
          Code::kInvalidRequest,
          "grammar: too ambiguous: want at most {} steps to tell which tokens may come next, found more at token {} of "
          "the answer; write it so that a text matches in fewer ways",
          kMostMaskWork, at.taken + 1);
    }
    at.json->BoundWork(std::numeric_limits<int64_t>::max());
    // xgrammar may leave the token set that ended the text if no other was named; only the rule's own ends count.
    std::vector<int32_t> ends;
    std::copy_if(rule().end_ids.begin(), rule().end_ids.end(), std::back_inserter(ends),
                 [&](int32_t id) { return is_set(mask, id); });
    for (size_t w = 0; w < ordinary.size(); ++w) mask[w] &= ordinary[w];
    for (const int32_t id : ends) set(mask, id);
  }

  bool accept_header(int32_t token) {
    const Vocabulary& vocabulary = *grammar->vocabulary;
    const auto special = vocabulary.ids.special_of(token);
    if (!special && !vocabulary.is_ordinary(token)) return false;
    const std::string bytes =
        special ? Headers::text_of(*special) : std::string(vocabulary.tokenizer.token_bytes(token));
    const auto next = grammar->headers->after(at.header, bytes, at.kinds);
    if (!next) return false;
    at.header = *next;
    if (const auto rule = grammar->headers->message_rule(*next)) begin_content(*rule);
    return true;
  }

  bool accept_content(int32_t token, bool must_have_ended) {
    if (at.json) {
      if (!grammar->vocabulary->is_ordinary(token) && !is_end(token)) return false;
      if (!at.json->AcceptToken(token)) return false;
      before.back().json_accepted = true;
      if (at.json->IsTerminated()) end_message();
      return true;
    }
    if (is_end(token)) {
      end_message();
      return true;
    }
    if (must_have_ended || !grammar->vocabulary->is_ordinary(token)) return false;
    ++at.spent;
    return true;
  }

  void end_message() {
    at.json.reset();
    at.state = rule().kind == kLast ? State::kFinished : State::kHeader;
    if (!grammar->headers) return;
    at.header = grammar->headers->before_start();
    if (limits.reasoning) at.kinds = static_cast<Kinds>(rule().kind - 1);
    if (is_spent()) at.kinds = kLast;
  }

  std::shared_ptr<const Grammar::Impl> grammar;
  TurnLimits limits;
  Position at;
  std::deque<Position> before;  // each of the last tokens
};

const std::vector<std::string>& Grammar::widened() const { return impl_->widened; }

GrammarMatcher Grammar::matcher(TurnLimits limits) const { return {impl_, limits}; }

GrammarMatcher::GrammarMatcher(std::shared_ptr<const Grammar::Impl> grammar, TurnLimits limits)
    : impl_(std::make_unique<Impl>(std::move(grammar), limits)) {}
GrammarMatcher::~GrammarMatcher() = default;
GrammarMatcher::GrammarMatcher(GrammarMatcher&&) noexcept = default;
GrammarMatcher& GrammarMatcher::operator=(GrammarMatcher&&) noexcept = default;

bool GrammarMatcher::finished() const { return impl_->at.state == Impl::State::kFinished; }
bool GrammarMatcher::cut() const { return impl_->at.cut; }
bool GrammarMatcher::failed() const { return impl_->at.failed; }

void GrammarMatcher::fill(std::span<uint32_t> mask) {
  check(mask.size() >= impl_->grammar->vocabulary->ordinary.size(), "the mask has a bit for every token id");
  std::fill(mask.begin(), mask.end(), 0);
  if (!impl_->at.closing.empty()) return set(mask, impl_->at.closing.front());
  if (!impl_->at.failed && impl_->at.state == Impl::State::kHeader) impl_->fill_header(mask);
  if (!impl_->at.failed && impl_->at.state == Impl::State::kContent) impl_->fill_content(mask);
  if (std::any_of(mask.begin(), mask.end(), [](uint32_t word) { return word != 0; })) return;
  if (!finished()) impl_->at.failed = true;
  set(mask, impl_->forced_end());
}

bool GrammarMatcher::accept(int32_t token) {
  impl_->before.push_back(impl_->at);
  if (impl_->before.size() > kMostUndone) impl_->before.pop_front();
  if (finished()) return false;
  const bool in_header = impl_->at.state == Impl::State::kHeader, must_have_ended = !in_header && impl_->must_end();
  ++impl_->at.taken;
  if (!impl_->at.closing.empty()) impl_->at.closing.pop_front();
  if (impl_->at.failed) {
    if (token == impl_->forced_end()) impl_->at.state = Impl::State::kFinished;
    return finished();
  }
  const bool accepted = in_header ? impl_->accept_header(token) : impl_->accept_content(token, must_have_ended);
  if (!accepted) impl_->at.failed = true;
  return accepted;
}

int32_t GrammarMatcher::take(int32_t drawn) {
  Impl::Position& at = impl_->at;
  const bool watched = at.can_close && at.closing.empty() && at.state == Impl::State::kContent;
  accept(drawn);
  if (!watched || finished() || failed() || impl_->closes()) return drawn;
  undo(1);
  auto closing = impl_->shortest_end();
  if (!closing) {  // equally short ways may be cut into different numbers of tokens
    accept(drawn);
    return drawn;
  }
  at.closing = *std::move(closing);
  at.cut = true;
  const int32_t token = at.closing.front();
  accept(token);
  return token;
}

void GrammarMatcher::undo(int tokens) {
  check(tokens >= 0 && tokens <= static_cast<int>(impl_->before.size()), "what is undone was accepted not long ago");
  for (; tokens > 0; --tokens) {
    impl_->at = std::move(impl_->before.back());
    if (std::exchange(impl_->at.json_accepted, false)) impl_->at.json->Rollback(1);
    impl_->before.pop_back();
  }
}

}  // namespace nibble::text
