#include "text/grammar.h"

#include "text/conversation.h"
#include "text/header_trie.h"
#include "text/json_grammar.h"
#include "base/error.h"

#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <deque>
#include <iterator>
#include <unordered_set>
#include <utility>

namespace nibble::text {
namespace {

// How much of compiled grammars is kept. Masks grow with the vocabulary, automata do not. For o200k it is 155 MiB, of
// which the grammar of any JSON takes 20.
constexpr int64_t kCacheBytes = 32 << 20, kCacheBytesPerToken = 640;
constexpr size_t kMaxCalls = 1024;
constexpr size_t kMaxRecipientBytes = 128;
constexpr size_t kMaxTextBytes = 64;  // of a token in a header
constexpr int32_t kNothing = -1;

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
    for (int32_t id = 0; id <= of.max_id(); ++id) {
      if (of.contains(id) && !of.is_special(id)) set(ordinary, id);
    }
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
  for (int32_t id = 0; id <= vocabulary.tokenizer.max_id(); ++id) {
    if (vocabulary.is_ordinary(id)) bytes[static_cast<size_t>(id)] = vocabulary.tokenizer.token_bytes(id);
  }
  const auto size = static_cast<int>(bytes.size());
  // A matcher names its own stop ids; the list may not be empty.
  const std::vector<int32_t> stop_ids = {vocabulary.ids.id_of(Special::kReturn)};
  return {bytes, xgrammar::VocabType::RAW, size, stop_ids};
}

// Kinds of messages. If reasoning is bounded, a message may be followed only by those with lower bits.
constexpr HeaderTrie::Kinds kLast = 1, kPreamble = 2, kReasoning = 4;

struct MessageRule {
  std::optional<xgrammar::CompiledGrammar> content;  // empty: text
  std::vector<int32_t> end_ids;
  HeaderTrie::Kinds kind = kLast;
};

// All ways in which the models write the header of a call.
std::vector<std::vector<Segment>> call_headers(const CallRule& call) {
  const bool is_function = call.recipient.starts_with("functions.");
  const std::string to = " to=" + call.recipient;
  std::vector<std::string_view> channels = {kCommentaryChannel};
  if (!is_function) channels.push_back(kAnalysisChannel);
  std::vector<std::string> types = {"json"};
  if (call.arguments.kind == ContentRule::Kind::kText) types.emplace_back("code");
  std::vector<std::vector<Segment>> out;
  for (const std::string_view channel : channels) {
    const std::vector<Segment> after_channel = {Special::kChannel, std::string(channel) + to};
    const std::vector<Segment> in_role = {to, Special::kChannel, std::string(channel)};
    for (const std::vector<Segment>& begin : {after_channel, in_role}) {
      std::vector<std::vector<Segment>> ends = {{Special::kMessage}};
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
  if (answer.kind == ContentRule::Kind::kText) return out;
  out.push_back({Special::kChannel, channel + " json", Special::kMessage});
  out.push_back({Special::kChannel, channel + " ", Special::kConstrain, "json", Special::kMessage});
  return out;
}

}  // namespace

struct Grammar::Impl {
  std::shared_ptr<const Vocabulary> vocabulary;
  std::vector<MessageRule> messages;
  std::optional<HeaderTrie> headers;  // empty: the content of messages[0] comes at once
};

struct GrammarCompiler::Impl {
  explicit Impl(const Tokenizer& tokenizer)
      : vocabulary(std::make_shared<const Vocabulary>(tokenizer)),
        compiler(tokenizer_info(*vocabulary), /*max_threads=*/1, /*cache_enabled=*/true,
                 kCacheBytes + kCacheBytesPerToken * (tokenizer.max_id() + 1)) {}

  std::optional<xgrammar::CompiledGrammar> compiled(const ContentRule& rule) {
    if (rule.kind == ContentRule::Kind::kText) return std::nullopt;
    if (rule.kind == ContentRule::Kind::kJsonObject) return any_object;
    const std::string grammar = json_schema_grammar(rule.schema, rule.where);
    try {
      return compiler.CompileGrammar(grammar);
    } catch (const std::exception& error) {
      throw Error(Code::kInvalidRequest, "{}: the schema cannot be compiled: {}", rule.where, error.what());
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
  for (const int32_t id : end_ids) {
    if (!impl_->vocabulary->tokenizer.contains(id)) {
      throw Error(Code::kInvalidRequest, "[grammar] want token ids that end the text, found {}, which is none", id);
    }
  }
  auto grammar = std::make_shared<Grammar::Impl>(impl_->vocabulary);
  grammar->messages.push_back({.content = impl_->compiled(rule), .end_ids = std::move(end_ids)});
  return Grammar(std::move(grammar));
}

Grammar GrammarCompiler::turn(const TurnRules& rules) const {
  if (!rules.answer && rules.calls.empty()) {
    throw Error(Code::kInvalidRequest, "[grammar] want an answer or a function that may be called, found neither");
  }
  if (rules.calls.size() > kMaxCalls) {
    throw Error(Code::kInvalidRequest, "[grammar] want at most {} functions, found {}", kMaxCalls, rules.calls.size());
  }
  auto grammar = std::make_shared<Grammar::Impl>(impl_->vocabulary);
  HeaderTrie& headers = grammar->headers.emplace();
  const auto add = [&](const std::vector<std::vector<Segment>>& forms, MessageRule rule) {
    for (const std::vector<Segment>& form : forms) headers.add(form, grammar->messages.size(), rule.kind);
    grammar->messages.push_back(std::move(rule));
  };
  const auto plain = [](std::string_view channel) {
    return std::vector<std::vector<Segment>>{{Special::kChannel, std::string(channel), Special::kMessage}};
  };
  const std::vector<int32_t> end = {impl_->id_of(Special::kEnd)};
  add(plain(kAnalysisChannel), {.content = {}, .end_ids = end, .kind = kReasoning});
  if (rules.preamble) add(plain(kCommentaryChannel), {.content = {}, .end_ids = end, .kind = kPreamble});
  if (rules.answer) {
    add(answer_headers(*rules.answer),
        {.content = impl_->compiled(*rules.answer), .end_ids = {impl_->id_of(Special::kReturn)}});
  }
  std::unordered_set<std::string> recipients;
  for (const CallRule& call : rules.calls) {
    const bool is_word = !call.recipient.empty() && call.recipient.find_first_of(" \t\r\n<>|") == std::string::npos;
    if (!is_word || call.recipient.size() > kMaxRecipientBytes || !recipients.insert(call.recipient).second) {
      throw Error(Code::kInvalidRequest,
                  "[grammar] want names of functions that are one word of at most {} bytes, each once, found '{}'",
                  kMaxRecipientBytes, call.recipient.substr(0, kMaxRecipientBytes));
    }
    add(call_headers(call), {.content = impl_->compiled(call.arguments), .end_ids = {impl_->id_of(Special::kCall)}});
  }
  return Grammar(std::move(grammar));
}

struct GrammarMatcher::Impl {
  enum class State { kHeader, kContent, kFinished };

  Impl(std::shared_ptr<const Grammar::Impl> of, std::optional<int64_t> most_reasoning)
      : grammar(std::move(of)), reasoning_tokens(most_reasoning) {
    if (!grammar->headers) begin_content(0);
    if (is_spent()) kinds = kLast;
  }

  void begin_content(size_t rule) {
    state = State::kContent;
    message = rule;
    json.reset();
    const MessageRule& of = grammar->messages[rule];
    if (of.content) json.emplace(*of.content, of.end_ids);
  }
  [[nodiscard]] const MessageRule& rule() const { return grammar->messages[message]; }
  [[nodiscard]] bool is_spent() const { return reasoning_tokens && spent >= *reasoning_tokens; }
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

  void fill_header(std::span<uint32_t> mask) const;
  void fill_content(std::span<uint32_t> mask);
  bool accept_header(int32_t token);
  bool accept_content(int32_t token);
  void end_message() {
    json.reset();
    state = rule().kind == kLast ? State::kFinished : State::kHeader;
    if (!grammar->headers) return;
    node = grammar->headers->before_start();
    if (reasoning_tokens) kinds = is_spent() ? kLast : static_cast<HeaderTrie::Kinds>(rule().kind - 1);
  }

  std::shared_ptr<const Grammar::Impl> grammar;
  std::optional<int64_t> reasoning_tokens;
  State state = State::kHeader;
  HeaderTrie::Node node = HeaderTrie::kRoot;        // kHeader
  HeaderTrie::Kinds kinds = HeaderTrie::kAllKinds;  // of headers that may come
  int64_t spent = 0;                                // tokens of analysis and preambles
  size_t message = 0;                               // kContent: its rule
  std::optional<xgrammar::GrammarMatcher> json;     // kContent, unless it is text
  bool failed = false;

  // What accept() changes, as it was before each of the last tokens. Copies of a matcher of xgrammar share its state.
  struct Before {
    State state;
    HeaderTrie::Node node;
    HeaderTrie::Kinds kinds;
    int64_t spent;
    size_t message;
    std::optional<xgrammar::GrammarMatcher> json;
    bool failed;
    bool json_accepted = false;  // so that it has a token to take back
  };
  std::deque<Before> before;
  void remember() {
    before.push_back({state, node, kinds, spent, message, json, failed});
    if (before.size() > kMostUndone) before.pop_front();
  }
};

void GrammarMatcher::Impl::fill_header(std::span<uint32_t> mask) const {
  const Vocabulary& vocabulary = *grammar->vocabulary;
  grammar->headers->for_each_special(node, kinds, [&](Special special) { set(mask, vocabulary.ids.id_of(special)); });
  grammar->headers->for_each_text(node, kinds, kMaxTextBytes, [&](std::string_view text) {
    const int32_t token = vocabulary.tokenizer.id_of(text).value_or(kNothing);
    if (vocabulary.is_ordinary(token)) set(mask, token);
  });
}

void GrammarMatcher::Impl::fill_content(std::span<uint32_t> mask) {
  const Mask& ordinary = grammar->vocabulary->ordinary;
  if (!json) {
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
  if (!json->FillNextTokenBitmask(&tensor)) std::fill_n(mask.begin(), ordinary.size(), ~uint32_t{0});
  // xgrammar may leave the token set that ended the text if no other was named; only the rule's own ends count.
  std::vector<int32_t> ends;
  std::copy_if(rule().end_ids.begin(), rule().end_ids.end(), std::back_inserter(ends),
               [&](int32_t id) { return is_set(mask, id); });
  for (size_t w = 0; w < ordinary.size(); ++w) mask[w] &= ordinary[w];
  for (const int32_t id : ends) set(mask, id);
}

bool GrammarMatcher::Impl::accept_header(int32_t token) {
  const Vocabulary& vocabulary = *grammar->vocabulary;
  std::optional<HeaderTrie::Node> next;
  if (const auto special = vocabulary.ids.special_of(token)) {
    next = grammar->headers->after(node, *special, kinds);
  } else if (vocabulary.is_ordinary(token)) {
    next = grammar->headers->after(node, vocabulary.tokenizer.token_bytes(token), kinds);
  }
  if (!next) return false;
  node = *next;
  if (const auto rule = grammar->headers->message_rule(node)) begin_content(*rule);
  return true;
}

bool GrammarMatcher::Impl::accept_content(int32_t token) {
  if (json) {
    if (!grammar->vocabulary->is_ordinary(token) && !is_end(token)) return false;
    if (!json->AcceptToken(token)) return false;
    before.back().json_accepted = true;
    if (json->IsTerminated()) end_message();
    return true;
  }
  if (is_end(token)) {
    end_message();
    return true;
  }
  if (must_end() || !grammar->vocabulary->is_ordinary(token)) return false;
  ++spent;
  return true;
}

GrammarMatcher Grammar::matcher(std::optional<int64_t> reasoning_tokens) const { return {impl_, reasoning_tokens}; }

GrammarMatcher::GrammarMatcher(std::shared_ptr<const Grammar::Impl> grammar, std::optional<int64_t> reasoning_tokens)
    : impl_(std::make_unique<Impl>(std::move(grammar), reasoning_tokens)) {}
GrammarMatcher::~GrammarMatcher() = default;
GrammarMatcher::GrammarMatcher(GrammarMatcher&&) noexcept = default;
GrammarMatcher& GrammarMatcher::operator=(GrammarMatcher&&) noexcept = default;

bool GrammarMatcher::finished() const { return impl_->state == Impl::State::kFinished; }
bool GrammarMatcher::failed() const { return impl_->failed; }

void GrammarMatcher::fill(std::span<uint32_t> mask) {
  check(mask.size() >= impl_->grammar->vocabulary->ordinary.size(), "the mask has a bit for every token id");
  std::fill(mask.begin(), mask.end(), 0);
  if (!impl_->failed && impl_->state == Impl::State::kHeader) impl_->fill_header(mask);
  if (!impl_->failed && impl_->state == Impl::State::kContent) impl_->fill_content(mask);
  if (std::any_of(mask.begin(), mask.end(), [](uint32_t word) { return word != 0; })) return;
  if (!finished()) impl_->failed = true;
  set(mask, impl_->forced_end());
}

bool GrammarMatcher::accept(int32_t token) {
  impl_->remember();
  if (finished()) return false;
  if (impl_->failed) {
    if (token == impl_->forced_end()) impl_->state = Impl::State::kFinished;
    return finished();
  }
  const bool accepted =
      impl_->state == Impl::State::kHeader ? impl_->accept_header(token) : impl_->accept_content(token);
  if (!accepted) impl_->failed = true;
  return accepted;
}

void GrammarMatcher::undo(int tokens) {
  check(tokens >= 0 && tokens <= static_cast<int>(impl_->before.size()), "what is undone was accepted not long ago");
  for (; tokens > 0; --tokens) {
    Impl::Before& was = impl_->before.back();
    if (was.json_accepted) was.json->Rollback(1);
    impl_->state = was.state;
    impl_->node = was.node;
    impl_->kinds = was.kinds;
    impl_->spent = was.spent;
    impl_->message = was.message;
    impl_->json = std::move(was.json);
    impl_->failed = was.failed;
    impl_->before.pop_back();
  }
}

}  // namespace nibble::text
