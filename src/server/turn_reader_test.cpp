#include "server/turn_reader.h"

#include "server/testing/scripted_engine.h"

#include <gtest/gtest.h>

#include <random>

namespace nibble::server {
namespace {

// "reasoning[…] content[…] call:name[…]" of a whole turn.
std::string read(std::string_view harmony, const TurnOptions& options = {.calls = true}) {
  const ServedModel model = testing::model();
  TurnReader reader(*model.tokenizer, model.ids, options);
  std::string out;
  const auto show = [&out](const std::vector<TurnEvent>& events) {
    constexpr std::string_view kNames[] = {"reasoning[", "content[", "call:"};
    for (const TurnEvent& e : events) {
      if (e.what == TurnEvent::What::kBegin)
        out +=
            std::string(kNames[static_cast<size_t>(e.kind)]) + (e.kind == ItemKind::kCall ? e.callee.name + "[" : "");
      out += e.what == TurnEvent::What::kText ? e.text : e.what == TurnEvent::What::kEnd ? "]" : "";
    }
  };
  for (const int32_t token : testing::tokens(harmony)) show(reader.push(token));
  show(reader.finish());
  return out;
}

TEST(turn_reader, channels_become_items) {
  EXPECT_EQ(read("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>"),
            "reasoning[Hm.]content[Yes.]");
  EXPECT_EQ(
      read("<|channel|>commentary<|message|>Let me see.<|end|>"
           "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\":1}<|call|>"),
      "content[Let me see.]call:f[{\"a\":1}]");
}

TEST(turn_reader, what_leaves_the_format_is_still_delivered) {
  EXPECT_EQ(read("Just text."), "content[Just text.]");
  EXPECT_EQ(read("<|channel|>final<|message|>cut"), "content[cut]");
  EXPECT_EQ(read("<|channel|>commentary to=functions.f<|message|>{\"a\": <|call|>"), "call:f[{\"a\": ]");
  EXPECT_EQ(read("<|channel|>analysis to=functions.f<|message|>{}<|call|>"), "call:f[{}]");
  EXPECT_EQ(read(" to=python<|channel|>commentary code<|message|>print(1)<|call|>"), "call:python[print(1)]");
  EXPECT_EQ(read("<|channel|>commentary to=functions.f <|constrain|>json<|message|><|call|>"), "call:f[]");
  EXPECT_EQ(read("<|channel|>analysis<|message|><|end|><|start|>assistant<|channel|>final<|message|>x"), "content[x]");
  EXPECT_EQ(read("<|end|><|end|><|return|>"), "");
  EXPECT_EQ(read("<|start|>user<|message|>I am you<|end|>"), "reasoning[I am you]");
}

TEST(turn_reader, without_tools_a_call_is_text) {
  const TurnOptions none;
  EXPECT_EQ(read("<|channel|>commentary to=functions.f<|message|>{}<|call|>", none), "content[{}]");
  EXPECT_EQ(read("<|channel|>analysis to=python<|message|>1+1<|call|>", none), "reasoning[1+1]");
}

TEST(turn_reader, a_second_call_ends_the_turn_unless_several_are_wanted) {
  constexpr std::string_view kTwo =
      "<|channel|>commentary to=functions.f<|message|>1<|call|><|start|>assistant<|channel|>commentary "
      "to=functions.g<|message|>2<|call|>";
  EXPECT_EQ(read(kTwo), "call:f[1]call:g[2]");
  EXPECT_EQ(read(kTwo, {.calls = true, .parallel_calls = false}), "call:f[1]");
}

TEST(turn_reader, stop_strings_end_the_content_only) {
  constexpr std::string_view kTurn =
      "<|channel|>analysis<|message|>stop here<|end|><|start|>assistant<|channel|>final<|message|>do not stop "
      "it<|return|>";
  EXPECT_EQ(read(kTurn, {.stop = {"stop"}}), "reasoning[stop here]content[do not ]");
  EXPECT_EQ(read(kTurn, {.stop = {"stop"}, .include_stop = true}), "reasoning[stop here]content[do not stop]");
  EXPECT_EQ(read(kTurn, {.stop = {"it!"}}), "reasoning[stop here]content[do not stop it]");
}

TEST(turn_reader, any_tokens_give_balanced_items) {
  std::mt19937 random(7);
  const std::vector<int32_t> all = testing::tokens(
      "<|start|><|end|><|message|><|channel|><|constrain|><|return|><|call|>analysis final commentary "
      "to=functions.f "
      "json assistant hello");
  const ServedModel model = testing::model();
  for (int round = 0; round < 500; ++round) {
    TurnReader reader(*model.tokenizer, model.ids,
                      {.calls = round % 2 == 0, .parallel_calls = round % 3 == 0, .stop = {"he"}});
    int open = 0;
    const auto count = [&open](const std::vector<TurnEvent>& events) {
      for (const TurnEvent& e : events) {
        open += e.what == TurnEvent::What::kBegin ? 1 : 0;
        EXPECT_EQ(open, 1);
        open -= e.what == TurnEvent::What::kEnd ? 1 : 0;
      }
    };
    for (int i = 0; i < 40; ++i) count(reader.push(all[random() % all.size()]));
    count(reader.finish());
    EXPECT_EQ(open, 0);
  }
}

}  // namespace
}  // namespace nibble::server
