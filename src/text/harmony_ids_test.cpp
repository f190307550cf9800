// The goldens' token ids, with the real tokenizer.
#include "text/harmony_goldens.h"
#include "text/harmony_parse.h"
#include "text/harmony_render.h"
#include "text/tokenizer.h"

#include <gtest/gtest.h>

namespace nibble::text {
namespace {

TEST(harmony_ids, equal_openai_harmony_on_every_golden) {
  const Tokenizer tokenizer = Tokenizer::o200k_harmony();
  const HarmonyIds ids = HarmonyIds::from_names([&](std::string_view name) { return tokenizer.special_id(name); });
  const Encoder encode = [&](std::string_view text) { return tokenizer.encode(text); };
  for (const auto& golden : goldens::document().at("render")) {
    if (golden.contains("error")) continue;
    const Conversation conversation = goldens::conversation_of(golden.at("messages"));
    const auto name = golden.at("name").get<std::string>();
    EXPECT_EQ(to_tokens(render_for_completion(conversation), ids, encode), goldens::rendered(golden).ids) << name;
  }
}

TEST(harmony_ids, the_vocabulary_has_the_goldens_special_ids) {
  const Tokenizer tokenizer = Tokenizer::o200k_harmony();
  for (int i = 0; i < kSpecials; ++i) {
    const auto special = static_cast<Special>(i);
    EXPECT_EQ(tokenizer.special_id(name_of(special)), goldens::harmony_ids().id_of(special)) << name_of(special);
  }
}

TEST(harmony_ids, what_was_rendered_parses_back_through_the_tokenizers_bytes) {
  const Tokenizer tokenizer = Tokenizer::o200k_harmony();
  const HarmonyIds ids = goldens::harmony_ids();
  const Conversation conversation{{{.role = Role::kAssistant,
                                    .recipient = "functions.f",
                                    .channel = "commentary",
                                    .content_type = ContentType{"json", true},
                                    .content = {"{\"a\": \"👩‍🔬\"}"}}}};
  HarmonyParser parser(std::nullopt);
  std::string text;
  for (const int32_t id :
       to_tokens(render_for_completion(conversation), ids, [&](std::string_view t) { return tokenizer.encode(t); })) {
    const auto special = ids.special_of(id);
    for (const Event& event : special ? parser.push(*special) : parser.push(tokenizer.token_bytes(id))) {
      if (const auto* delta = std::get_if<TextDelta>(&event)) text += delta->text;
      if (const auto* started = std::get_if<MessageStarted>(&event)) {
        EXPECT_EQ(started->header.recipient, "functions.f");
        EXPECT_EQ(started->header.content_type, (ContentType{"json", true}));
      }
    }
  }
  EXPECT_EQ(text, "{\"a\": \"👩‍🔬\"}");
  EXPECT_EQ(parser.repairs(), 0);
}

}  // namespace
}  // namespace nibble::text
