#include "text/tokenizer.h"
#include "text/tokenizer_parts.h"

#include "base/error.h"
#include "base/mmap_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace nibble::text {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

// All bytes, then "ab", "abc", an unused id, a user-defined and a special token.
TokenList small_list() {
  TokenList list;
  for (int b = 0; b < 256; ++b) list.tokens.push_back(to_byte_level(std::string(1, static_cast<char>(b))));
  list.kinds.assign(256, TokenKind::kNormal);
  const auto add = [&](const char* token, TokenKind kind) {
    list.tokens.emplace_back(token);
    list.kinds.push_back(kind);
  };
  add("ab", TokenKind::kNormal);
  add("abc", TokenKind::kNormal);
  add("[PAD258]", TokenKind::kUnused);
  add("<user>", TokenKind::kUserDefined);
  add("<|start|>", TokenKind::kControl);
  list.merges = {"a b", "ab c"};
  return list;
}

TEST(TokenList, merges_and_recognises_added_tokens_by_kind) {
  const Tokenizer tokenizer = Tokenizer::from_list(small_list(), "f");
  EXPECT_THAT(tokenizer.encode("abcab"), ElementsAre(257, 256));
  EXPECT_THAT(tokenizer.encode("a<user>"), ElementsAre('a', 259));
  EXPECT_THAT(tokenizer.encode("<|start|>", SpecialTokens::kAllowed), ElementsAre(260));
  EXPECT_EQ(tokenizer.encode("<|start|>").size(), 9u);
  EXPECT_EQ(tokenizer.special_id("<|start|>"), 260);
  EXPECT_FALSE(tokenizer.contains(258));
  EXPECT_EQ(tokenizer.vocab_size(), 260u);
}

TEST(TokenList, is_the_list_it_was_made_from) {
  const TokenList list = small_list();
  const TokenList again = list_from_parts(parts_from_list(list, "f"), list.tokens.size());
  EXPECT_EQ(again.tokens, list.tokens);
  EXPECT_EQ(again.kinds, list.kinds);
  EXPECT_EQ(again.merges, list.merges);
  EXPECT_THROW(static_cast<void>(list_from_parts(parts_from_list(list, "f"), 260)), Error);
}

TEST(TokenList, of_o200k_gives_the_tokens_of_the_ranks) {
  const TokenizerParts parts = read_tokenizer_json(make_o200k_tokenizer_json(), "f");
  const Tokenizer listed = Tokenizer::from_list(list_from_parts(parts, 201088), "f"), own = Tokenizer::o200k_harmony();
  for (const char* text : {"Hello, world! 12345", "Zürich är \xE4\xBD\xA0\xE5\xA5\xBD 🙂\n\n  if (x) { return; }",
                           "<|start|>user<|message|>hi<|end|>", "internationalization"}) {
    for (const SpecialTokens mode : {SpecialTokens::kAsText, SpecialTokens::kAllowed})
      EXPECT_EQ(listed.encode(text, mode), own.encode(text, mode)) << text;
  }
  for (int32_t id = 0; id < 199998; id += 11) {  // a token, as a piece of its own, is merged to itself
    const std::string_view bytes = own.token_bytes(id);
    if (own.encode(bytes) != std::vector<int32_t>{id}) continue;  // the split cuts it
    ASSERT_THAT(listed.encode(bytes), ElementsAre(id));
  }
}

struct Hostile {
  const char* name;
  void (*damage)(TokenList&);
  const char* says;
};

const Hostile kHostile[] = {
    {"a kind too few", [](TokenList& l) { l.kinds.pop_back(); },
     "token_type: want one for each of 261 tokens, found 260"},
    {"an unknown kind", [](TokenList& l) { l.kinds[7] = static_cast<TokenKind>(9); },
     "token_type[7]: want 1 (normal), 3 (control), 4 (user-defined) or 5 (unused), found 9"},
    {"a byte that is no token", [](TokenList& l) { l.kinds['q'] = TokenKind::kUnused; }, "0x71"},
    {"a token twice", [](TokenList& l) { l.tokens[257] = "ab"; }, "tokens[257]: \"ab\" occurred before"},
    {"an added token twice", [](TokenList& l) { l.tokens[259] = "<|start|>"; }, "tokens[260]: \"<|start|>\" occurred"},
    {"an added token of nothing", [](TokenList& l) { l.tokens[260] = ""; }, "tokens[260]: want a text"},
    {"a token of nothing", [](TokenList& l) { l.tokens[256] = ""; }, "tokens[256]: want characters of"},
    {"a token outside the alphabet", [](TokenList& l) { l.tokens[256] = "a b"; }, "tokens[256]: want characters of"},
    {"a token that is no UTF-8", [](TokenList& l) { l.tokens[256] = "a\xFF"; }, "tokens[256]: want characters of"},
    {"a merge of one", [](TokenList& l) { l.merges[0] = "ab"; }, "merges[0]: want two tokens and what they make"},
    {"a merge of three", [](TokenList& l) { l.merges[0] = "a b c"; }, "merges[0]: want two tokens"},
    {"a merge of nothing", [](TokenList& l) { l.merges[0] = ""; }, "merges[0]: want two tokens"},
    {"a merge into no token", [](TokenList& l) { l.merges[1] = "c c"; }, "merges[1]: want two tokens"},
    {"a merge of an added token", [](TokenList& l) { l.merges[1] = "<user> c"; }, "merges[1]: want two tokens"},
    {"a merge twice", [](TokenList& l) { l.merges[1] = "a b"; }, "merges[1]: \"a b\" occurred before"},
};

TEST(TokenList, that_contradicts_itself_is_refused_with_the_place) {
  for (const Hostile& hostile : kHostile) {
    SCOPED_TRACE(hostile.name);
    TokenList list = small_list();
    hostile.damage(list);
    try {
      static_cast<void>(parts_from_list(list, "f"));
      ADD_FAILURE() << "want an error with: " << hostile.says;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Code::kCorrupt);
      EXPECT_THAT(e.what(), HasSubstr(hostile.says));
      EXPECT_THAT(e.what(), StartsWith("f: "));
    }
  }
}

}  // namespace
}  // namespace nibble::text
