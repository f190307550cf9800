#include "text/harmony_parse.h"

#include "text/testing/harmony.h"
#include "base/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nibble::text {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

struct Parsed {
  std::vector<std::string> messages;  // header|text|end, see summary()
  std::vector<std::string> repairs;
  void add(const std::vector<Event>& events);
  bool open = false;
};

std::string summary(const MessageHeader& header) {
  std::string out(name_of(header.role));
  if (!header.name.empty()) out += ":" + header.name;
  if (header.recipient) out += " to=" + *header.recipient;
  if (header.channel) out += " #" + *header.channel;
  if (header.content_type) out += (header.content_type->constrained ? " !" : " ~") + header.content_type->name;
  return out;
}

constexpr std::string_view name_of(Repair repair) {
  constexpr std::string_view kNames[] = {"missing_start",   "missing_message", "missing_end",      "missing_channel",
                                         "unknown_channel", "unknown_role",    "abandoned_header", "stray_special"};
  return kNames[static_cast<size_t>(repair)];
}

std::string_view end_name(MessageEnd end) {
  switch (end) {
    case MessageEnd::kEnd: return "end";
    case MessageEnd::kReturn: return "return";
    case MessageEnd::kCall: return "call";
    case MessageEnd::kImplied: return "implied";
    case MessageEnd::kTruncated: return "truncated";
  }
  return "unknown";
}

void Parsed::add(const std::vector<Event>& events) {
  for (const Event& event : events) {
    if (const auto* started = std::get_if<MessageStarted>(&event)) {
      EXPECT_FALSE(open);
      open = true;
      messages.push_back(summary(started->header) + "|");
    } else if (const auto* delta = std::get_if<TextDelta>(&event)) {
      EXPECT_TRUE(open);
      EXPECT_FALSE(delta->text.empty());
      messages.back() += delta->text;
    } else if (const auto* ended = std::get_if<MessageEnded>(&event)) {
      EXPECT_TRUE(open);
      open = false;
      messages.back() += fmt::format("|{}", end_name(ended->kind));
    } else {
      repairs.emplace_back(name_of(std::get<Repair>(event)));
    }
  }
}

// `marked` is text with formatting tokens written out. Text is pushed `cut` bytes at a time; 0: as one piece.
Parsed parse(std::string_view marked, std::optional<Role> role = Role::kAssistant, size_t cut = 0) {
  HarmonyParser parser(role);
  Parsed out;
  const auto push_text = [&](std::string_view text) {
    for (size_t at = 0; at < text.size(); at += cut == 0 ? text.size() : cut)
      out.add(parser.push(text.substr(at, cut == 0 ? text.size() : cut)));
  };
  size_t text_begin = 0;
  for (size_t at = 0; at < marked.size();) {
    size_t token_bytes = 0;
    for (int i = 0; i < kSpecials && token_bytes == 0; ++i) {
      const auto special = static_cast<Special>(i);
      if (!marked.substr(at).starts_with(name_of(special))) continue;
      push_text(marked.substr(text_begin, at - text_begin));
      out.add(parser.push(special));
      token_bytes = name_of(special).size();
      text_begin = at + token_bytes;
    }
    at += token_bytes == 0 ? 1 : token_bytes;
  }
  push_text(marked.substr(text_begin));
  out.add(parser.finish());
  EXPECT_FALSE(out.open);
  EXPECT_EQ(parser.repairs(), static_cast<int64_t>(out.repairs.size()));
  return out;
}

struct Case {
  std::string marked;
  std::vector<std::string> messages, repairs;
};

void expect_all(const std::vector<Case>& cases, std::optional<Role> role = Role::kAssistant) {
  for (const Case& c : cases) {
    for (const size_t cut : {0, 1, 3}) {
      const Parsed got = parse(c.marked, role, cut);
      EXPECT_EQ(got.messages, c.messages) << c.marked << ", cut " << cut;
      EXPECT_EQ(got.repairs, c.repairs) << c.marked << ", cut " << cut;
    }
  }
}

// One golden: state and delta after every token, and the messages.
class GoldenRun {
 public:
  explicit GoldenRun(const nlohmann::ordered_json& golden) : golden_(golden), parser_(role_of(golden)) {}

  void run() {
    size_t token_idx = 0;
    for (const auto& id : golden_.at("ids")) {
      step(push(id.get<int32_t>()), golden_.at("steps").at(token_idx), token_idx);
      ++token_idx;
    }
    take(parser_.finish());
    EXPECT_EQ(parser_.repairs(), 0) << name();
    ASSERT_EQ(messages_.size(), golden_.at("messages").size()) << name();
    for (size_t i = 0; i < messages_.size(); ++i) EXPECT_EQ(messages_[i], want(golden_.at("messages").at(i))) << name();
  }

 private:
  static std::optional<Role> role_of(const nlohmann::ordered_json& golden) {
    return golden.at("role").is_null() ? std::nullopt : role_named(golden.at("role").get<std::string>());
  }
  static std::string want(const nlohmann::ordered_json& json) {
    MessageHeader header;
    header.role = role_named(json.at("role").get<std::string>()).value();
    if (!json.at("name").is_null()) header.name = json.at("name");
    if (!json.at("recipient").is_null()) header.recipient = json.at("recipient");
    if (!json.at("channel").is_null()) header.channel = json.at("channel");
    if (!json.at("content_type").is_null()) header.content_type = goldens::content_type_of(json.at("content_type"));
    return summary(header) + "|" + json.at("text").get<std::string>();
  }
  std::string name() const { return golden_.at("name").get<std::string>(); }

  std::vector<Event> push(int32_t id) {
    if (const auto special = goldens::harmony_ids().special_of(id)) return parser_.push(*special);
    const auto hex = goldens::document().at("bytes_of_tokens").at(std::to_string(id)).get<std::string>();
    std::string bytes;
    for (size_t i = 0; i < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    return parser_.push(bytes);
  }

  std::string take(const std::vector<Event>& events) {
    std::string delta;
    for (const Event& event : events) {
      if (const auto* started = std::get_if<MessageStarted>(&event)) {
        messages_.push_back(summary(started->header) + "|");
        state_ = 'C';
      } else if (const auto* text = std::get_if<TextDelta>(&event)) {
        messages_.back() += text->text;
        delta += text->text;
      } else if (std::holds_alternative<MessageEnded>(event)) {
        state_ = 'E';
      }
    }
    return delta;
  }

  void step(const std::vector<Event>& events, const nlohmann::ordered_json& want_step, size_t token_idx) {
    const std::string delta = take(events);
    // A header in the making is silent: whether it has begun cannot be seen.
    const char want_state = want_step.at(0).get<std::string>() == "C" ? 'C' : 'E';
    EXPECT_EQ(state_, want_state) << name() << ", token " << token_idx;
    EXPECT_EQ(delta, want_step.at(1).is_null() ? std::string() : want_step.at(1).get<std::string>())
        << name() << ", token " << token_idx;
  }

  const nlohmann::ordered_json& golden_;
  HarmonyParser parser_;
  std::vector<std::string> messages_;
  char state_ = 'E';
};

TEST(harmony_parse, equals_openai_harmony_token_by_token) {
  int compared = 0;
  for (const auto& golden : goldens::document().at("parse")) {
    if (golden.contains("error")) continue;
    GoldenRun(golden).run();
    ++compared;
  }
  EXPECT_GE(compared, 100);
}

TEST(harmony_parse, streams_that_openai_harmony_refuses_are_parsed) {
  for (const auto& golden : goldens::document().at("parse")) {
    if (!golden.contains("error")) continue;
    EXPECT_EQ(golden.at("name"), "rendered: keeps reasoning of a running chain");
  }
  expect_all({{"<|start|>functions.f<|message|>20<|end|>", {"tool:functions.f|20|end"}, {}},
              {"<|start|>user:alice<|message|>hi<|end|>", {"user:alice|hi|end"}, {}},
              {"<|start|>user:Übel<|message|>hi<|end|>", {"user:Übel|hi|end"}, {}}},
             std::nullopt);
}

TEST(harmony_parse, accepted_forms_of_a_call_header) {
  const std::string want = "assistant to=functions.f #commentary";
  expect_all(
      {{"<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>", {want + " !json|{}|call"}, {}},
       {"<|channel|>commentary to=functions.f<|constrain|>json<|message|>{}<|call|>", {want + " !json|{}|call"}, {}},
       {" to=functions.f<|channel|>commentary json<|message|>{}<|call|>", {want + " ~json|{}|call"}, {}},
       {" to=functions.f<|channel|>commentary<|message|>{}<|call|>", {want + "|{}|call"}, {}},
       {"<|channel|>commentary functions.f json<|message|>{}<|call|>", {want + " ~json|{}|call"}, {}},
       {"<|channel|>commentary json to=functions.f<|message|>{}<|call|>", {want + " ~json|{}|call"}, {}},
       {"<|constrain|>json to=functions.f<|channel|>commentary<|message|>{}<|call|>", {want + " !json|{}|call"}, {}},
       {"<|channel|>final <|constrain|>json<|message|>{}<|return|>", {"assistant #final !json|{}|return"}, {}},
       {"<|channel|>final json<|message|>{}<|return|>", {"assistant #final ~json|{}|return"}, {}},
       {"assistant<|channel|>final<|message|>x<|return|>", {"assistant #final|x|return"}, {}}});
}

TEST(harmony_parse, bare_text_is_final) {
  expect_all({
      {"Hello there, friend.<|return|>",
       {"assistant #final|Hello there, friend.|return"},
       {"missing_message", "missing_channel"}},
      {"Hello<|return|>", {"assistant #final|Hello|return"}, {"missing_message", "missing_channel"}},
      {"json<|return|>", {"assistant #final|json|return"}, {"missing_message", "missing_channel"}},
      {"assistant of mine", {"assistant #final|assistant of mine|truncated"}, {"missing_message", "missing_channel"}},
      {" \n{\"a\": 1}", {"assistant #final|{\"a\": 1}|truncated"}, {"missing_message", "missing_channel"}},
      {"to= the shop", {"assistant #final|to= the shop|truncated"}, {"missing_message", "missing_channel"}},
      {"Grüße", {"assistant #final|Grüße|truncated"}, {"missing_message", "missing_channel"}},
      {"Hello<|message|> there<|end|>", {"assistant #final|Hello there|end"}, {"missing_message", "missing_channel"}},
      {"<|message|>Hello<|return|>", {"assistant #final|Hello|return"}, {"missing_channel"}},
      {" to=functions.f<|message|>{}<|call|>", {"assistant to=functions.f #commentary|{}|call"}, {"missing_channel"}},
  });
}

TEST(harmony_parse, bare_text_streams_from_its_first_whole_word) {
  HarmonyParser parser;
  EXPECT_THAT(parser.push("Hel"), IsEmpty());
  Parsed got;
  got.add(parser.push("lo there"));
  EXPECT_THAT(got.messages, ElementsAre("assistant #final|Hello there"));
}

TEST(harmony_parse, free_text_after_the_channel_is_its_text) {
  expect_all({
      {"<|channel|>analysis We need to think<|end|>",
       {"assistant #analysis|We need to think|end"},
       {"missing_message"}},
      {"<|channel|>analysis\nWe need<|message|> more<|end|>",
       {"assistant #analysis|We need more|end"},
       {"missing_message", "stray_special"}},
      {"<|channel|>analysisWe need<|end|>", {"assistant #analysis|We need|end"}, {"missing_message"}},
      {"<|channel|>final{\"a\": 1}<|return|>", {"assistant #final|{\"a\": 1}|return"}, {"missing_message"}},
      {"<|channel|>The user wants<|end|>",
       {"assistant #final|The user wants|end"},
       {"missing_message", "missing_channel"}},
      {"<|channel|>commentary to=functions.f{\"a\":1}<|call|>",
       {"assistant to=functions.f #commentary|{\"a\":1}|call"},
       {"missing_message"}},
      {"<|channel|>commentary to=functions.f <|constrain|>json{\"a\":1}<|call|>",
       {"assistant to=functions.f #commentary !json|{\"a\":1}|call"},
       {"missing_message"}},
      {"<|channel|>final<|constrain|>The answer<|return|>",
       {"assistant #final|The answer|return"},
       {"missing_message"}},
      {"<|channel|>analysis to=functions.f to=functions.g<|message|>x<|end|>",
       {"assistant to=functions.f #analysis|to=functions.gx|end"},
       {"missing_message"}},
  });
}

TEST(harmony_parse, a_second_recipient_is_text) {
  expect_all({
      {"functions.f to=functions.g x",
       {"assistant #final|functions.f to=functions.g x|truncated"},
       {"missing_message", "missing_channel"}},
      {" to=functions.f<|channel|>commentary to=functions.f<|message|>x<|call|>",
       {"assistant to=functions.f #commentary|x|call"},
       {}},
  });
}

TEST(harmony_parse, a_second_content_type_is_text) {
  expect_all({
      {"<|channel|>commentary to=functions.f odd<|constrain|>json<|message|>x<|call|>",
       {"assistant to=functions.f #commentary ~odd|jsonx|call"},
       {"missing_message"}},
      {"<|channel|>commentary to=functions.f json<|constrain|>json<|message|>x<|call|>",
       {"assistant to=functions.f #commentary !json|x|call"},
       {}},
  });
}

TEST(harmony_parse, unknown_channels) {
  expect_all({
      {"<|channel|>?\?<|message|>hi<|return|>", {"assistant #final|hi|return"}, {"unknown_channel"}},
      {"<|channel|>reflection<|message|>hi<|end|>", {"assistant #final|hi|end"}, {"unknown_channel"}},
      {"<|channel|>commentary?<|message|>hi<|end|>", {"assistant #commentary|hi|end"}, {"unknown_channel"}},
      {"<|channel|>?? to=functions.f<|message|>{}<|call|>",
       {"assistant to=functions.f #commentary|{}|call"},
       {"unknown_channel"}},
      {"<|channel|>finally<|message|>hi<|end|>", {"assistant #final|hi|end"}, {"unknown_channel"}},
      {"<|channel|><|message|>hi<|end|>", {"assistant #final|hi|end"}, {"missing_channel"}},
      {"<|channel|>?\?<|end|>", {"assistant #final|??|end"}, {"missing_message", "missing_channel"}},
      {"<|channel|>analysis<|channel|>final<|message|>x<|end|>", {"assistant #final|x|end"}, {"stray_special"}},
      {"<|channel|>?\?<|channel|>final<|message|>x<|end|>", {"assistant #final|x|end"}, {"stray_special"}},
      {"<|channel|>Hi<|channel|>final<|message|>x<|end|>",
       {"assistant #final|Hi|implied", "assistant #final|x|end"},
       {"missing_message", "missing_channel", "missing_end"}},
      {"<|channel|>a<|constrain|>-<|channel|>final<|message|>x<|end|>",
       {"assistant #final|-|implied", "assistant #final|x|end"},
       {"missing_message", "unknown_channel", "missing_end"}},
      {"to=functions.f T<|channel|>a<|constrain|>-<|channel|>The<|end|>",
       {"assistant to=functions.f #commentary ~T|-|implied", "assistant #final|The|end"},
       {"missing_message", "unknown_channel", "missing_end", "missing_message", "missing_channel"}},
  });
}

TEST(harmony_parse, formatting_tokens_in_odd_places) {
  expect_all({
      {"<|channel|>analysis<|message|>a<|start|>assistant<|channel|>final<|message|>b<|return|>",
       {"assistant #analysis|a|implied", "assistant #final|b|return"},
       {"missing_end"}},
      {"<|channel|>analysis<|message|>a<|channel|>final<|message|>b<|return|>",
       {"assistant #analysis|a|implied", "assistant #final|b|return"},
       {"missing_end"}},
      {"<|channel|>final<|message|>a<|message|>b<|constrain|>c<|end|>",
       {"assistant #final|abc|end"},
       {"stray_special", "stray_special"}},
      {"<|channel|>final<|message|>a<|end|><|return|>", {"assistant #final|a|end"}, {"stray_special"}},
      {"<|channel|>analysis<|message|>a<|end|>assistant<|channel|>final<|message|>b<|return|>",
       {"assistant #analysis|a|end", "assistant #final|b|return"},
       {"missing_start"}},
      {"<|channel|>analysis<|message|>a<|end|><|channel|>final<|message|>b<|return|>",
       {"assistant #analysis|a|end", "assistant #final|b|return"},
       {"missing_start"}},
      {"<|channel|>analysis<|message|>a<|end|>\n\nSo it is<|return|>",
       {"assistant #analysis|a|end", "assistant #final|So it is|return"},
       {"missing_start", "missing_message", "missing_channel"}},
      {"<|channel|>analysis<|message|>a<|end|>\n", {"assistant #analysis|a|end"}, {}},
      {"<|start|>assistant<|channel|>final<|message|>b<|return|>", {"assistant #final|b|return"}, {"abandoned_header"}},
      {"<|channel|>final<|end|>", {}, {"abandoned_header"}},
      {"<|channel|>commentary to=functions.f<|call|>",
       {"assistant to=functions.f #commentary||call"},
       {"missing_message"}},
      {"<|start|><|start|><|message|>x<|end|>",
       {"assistant #final|x|end"},
       {"abandoned_header", "abandoned_header", "unknown_role", "missing_channel"}},
  });
}

TEST(harmony_parse, roles_after_start) {
  expect_all(
      {
          {"<|start|>user<|message|>q<|end|>", {"user|q|end"}, {}},
          {"<|start|>tool to=assistant<|message|>r<|end|>", {"tool:tool to=assistant|r|end"}, {}},
          {"<|start|>lookup to=assistant<|channel|>commentary<|message|>r<|end|>",
           {"tool:lookup to=assistant #commentary|r|end"},
           {}},
          {"<|start|>lookup<|message|>r<|end|>", {"tool:lookup|r|end"}, {"unknown_role"}},
          {"<|start|>Sure, here it is<|end|>",
           {"assistant #final|Sure, here it is|end"},
           {"missing_message", "unknown_role", "missing_channel"}},
          {"<|start|>lookup to=assistant hello there<|end|>",
           {"tool:lookup to=assistant|hello there|end"},
           {"missing_message"}},
          {"<|start|>user hello<|end|>", {"user|hello|end"}, {"missing_message"}},
          {"<|start|>assistant<|channel|>odd<|message|>x<|end|>", {"assistant #final|x|end"}, {"unknown_channel"}},
          {"<|start|>user<|channel|>odd<|message|>x<|end|>", {"user #odd|x|end"}, {}},
      },
      std::nullopt);
}

TEST(harmony_parse, a_stream_cut_in_a_header_gives_no_half_message) {
  expect_all({{"", {}, {}},
              {"<|channel|>", {}, {}},
              {"<|channel|>comm", {}, {"abandoned_header"}},
              {"<|channel|>commentary to=functions.ge", {}, {"abandoned_header"}},
              {"<|channel|>commentary to=functions.f <|constrain|>js", {}, {"abandoned_header"}},
              {"<|channel|>final<|message|>x<|end|><|start|>assis", {"assistant #final|x|end"}, {"abandoned_header"}},
              {"<|channel|>final<|message|>x", {"assistant #final|x|truncated"}, {}}});
}

TEST(harmony_parse, an_endless_header_becomes_text) {
  const std::string word(5000, 'x');
  expect_all(
      {{"<|channel|>" + word + "<|end|>",
        {"assistant #final|" + word + "|end"},
        {"missing_message", "missing_channel"}},
       {"<|channel|>analysis to=" + word + "<|end|>", {"assistant #analysis|to=" + word + "|end"}, {"missing_message"}},
       {"<|channel|>analysis" + std::string(600, ' ') + "<|message|>a<|end|>",
        {"assistant #analysis|" + std::string(95, ' ') + "a|end"},
        {"missing_message", "stray_special"}}});
}

TEST(harmony_parse, invalid_utf8_comes_out_repaired_and_stays_in_its_message) {
  const std::string open = "<|start|>assistant<|channel|>final<|message|>";
  expect_all({{open + "a\xF0\x9F<|end|>" + open + "b\xFF<|end|>",
               {"assistant #final|a\xEF\xBF\xBD|end", "assistant #final|b\xEF\xBF\xBD|end"},
               {}},
              {"<|start|>x\xFF<|end|>",
               {"assistant #final|x\xEF\xBF\xBD|end"},
               {"missing_message", "unknown_role", "missing_channel"}}},
             std::nullopt);
}

TEST(harmony_parse, a_character_may_straddle_tokens) {
  HarmonyParser parser;
  static_cast<void>(parser.push(Special::kMessage));
  EXPECT_THAT(parser.push("\xF0\x9F"), IsEmpty());
  const std::vector<Event> events = parser.push("\x92\x96!");
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(std::get<TextDelta>(events.front()).text, "\xF0\x9F\x92\x96!");
}

}  // namespace
}  // namespace nibble::text
