#include "text/tokenizer.h"
#include "text/tokenizer_parts.h"

#include "base/error.h"
#include "base/mmap_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <functional>
#include <string>
#include <string_view>

namespace nibble::text {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

std::string tiny_text() { return read_text_file(NIBBLE_SOURCE_DIR "/tests/data/tiny_tokenizer.json", 1 << 20); }

void expect_refused(const std::string& json, Code code, std::string_view expected) {
  try {
    (void)Tokenizer::from_json(json, "tokenizer.json");
    ADD_FAILURE() << "accepted; expected: " << expected;
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    EXPECT_THAT(e.what(), HasSubstr(std::string(expected)));
    EXPECT_LT(std::string(e.what()).size(), 1200u);
  }
}

void expect_refused(const std::function<void(Json&)>& change, Code code, std::string_view expected) {
  Json file = Json::parse(tiny_text());
  change(file);
  expect_refused(file.dump(), code, expected);
}

TEST(byte_level, every_byte_has_a_character_and_back) {
  for (int b = 0; b < 256; ++b) {
    const std::string byte(1, static_cast<char>(b));
    std::string back;
    EXPECT_TRUE(from_byte_level(to_byte_level(byte), back));
    EXPECT_EQ(back, byte);
  }
  EXPECT_EQ(to_byte_level(" a\n"), "\u0120a\u010A");
  std::string unused;
  for (const char* bad : {" ", "\n", "\u00AD", "\u0144", "\u4E2D", "\xC4", "\xFF", "\xC0\x80",
                          "\xC4"
                          "a"}) {
    EXPECT_FALSE(from_byte_level(bad, unused)) << bad;
  }
}

TEST(tokenizer_json, the_o200k_file_gives_the_tokens_of_the_ranks) {
  const std::string file = make_o200k_tokenizer_json();
  const Tokenizer from_json = Tokenizer::from_json(file, "made"), from_ranks = Tokenizer::o200k_harmony();
  ASSERT_EQ(from_json.vocab_size(), from_ranks.vocab_size());
  for (int32_t id = 0; id <= from_ranks.max_id(); ++id) {
    ASSERT_EQ(from_json.token_bytes(id), from_ranks.token_bytes(id)) << id;
    ASSERT_EQ(from_json.is_special(id), from_ranks.is_special(id)) << id;
  }
  const std::string text =
      read_text_file(NIBBLE_SOURCE_DIR "/tests/data/o200k_goldens.jsonl", 1 << 24).substr(0, 400000);
  EXPECT_EQ(from_json.encode(text), from_ranks.encode(text));
  std::string merged = file;  // every o200k token is made by its merges, so the other rule agrees
  constexpr std::string_view kWhole = "\"ignore_merges\":true";
  merged.replace(merged.find(kWhole), kWhole.size(), "\"ignore_merges\":false");
  EXPECT_EQ(Tokenizer::from_json(merged, "made").encode(text), from_ranks.encode(text));
}

TEST(tokenizer_json, merges_may_be_strings_and_come_before_the_vocabulary) {
  Json file = Json::parse(tiny_text());
  for (Json& merge : file["model"]["merges"]) merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  const std::string sorted = nlohmann::json(file).dump();
  ASSERT_LT(sorted.find("\"merges\""), sorted.find("\"vocab\""));
  const std::string text = "for (auto& [k, v] : map) { std::cout << k; }";
  EXPECT_EQ(Tokenizer::from_json(sorted, "a").encode(text), Tokenizer::from_json(tiny_text(), "b").encode(text));
}

TEST(tokenizer_json, accepts_post_processors_that_add_nothing) {
  Json file = Json::parse(tiny_text());
  file["post_processor"] = {
      {"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", false}, {"use_regex", true}};
  EXPECT_NO_THROW((void)Tokenizer::from_json(file.dump(), "a"));
  const Json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
             bos = {{"SpecialToken", {{"id", "<|start|>"}, {"type_id", 0}}}};
  file["post_processor"] = {
      {"type", "TemplateProcessing"}, {"single", {text}}, {"pair", {text}}, {"special_tokens", Json::object()}};
  EXPECT_NO_THROW((void)Tokenizer::from_json(file.dump(), "a"));
  file["post_processor"]["single"] = {bos, text};
  expect_refused(file.dump(), Code::kUnsupported, "post_processor.single");
}

TEST(tokenizer_json, what_trainers_leave_behind_changes_no_token) {
  Json file = Json::parse(tiny_text());
  const Tokenizer plain = Tokenizer::from_json(file.dump(), "f");
  EXPECT_TRUE(plain.ignored().empty());
  file["truncation"] = {{"direction", "Right"}, {"max_length", 2}, {"strategy", "LongestFirst"}, {"stride", 0}};
  file["padding"] = {{"strategy", "BatchLongest"}, {"direction", "Left"}, {"pad_id", 1}, {"pad_token", "<pad>"}};
  const Tokenizer trained = Tokenizer::from_json(file.dump(), "f");
  EXPECT_EQ(trained.ignored(), (std::vector<std::string>{"truncation", "padding"}));
  EXPECT_EQ(trained.encode("Once upon a time"), plain.encode("Once upon a time"));
}

TEST(tokenizer_json, refuses_what_it_does_not_do) {
  const auto unsupported = [](const std::function<void(Json&)>& change, std::string_view expected) {
    expect_refused(change, Code::kUnsupported, expected);
  };
  unsupported([](Json& f) { f["model"]["type"] = "WordPiece"; }, "model.type");
  unsupported([](Json& f) { f["model"].erase("type"); }, "model.type");
  unsupported([](Json& f) { f["normalizer"] = {{"type", "NFC"}}; }, "normalizer");
  unsupported([](Json& f) { f["surprise"] = 1; }, "surprise");
  unsupported([](Json& f) { f["version"] = "2.0"; }, "version");
  unsupported([](Json& f) { f["model"]["surprise"] = 1; }, "surprise");
  unsupported([](Json& f) { f["model"]["dropout"] = 0.1; }, "model.dropout");
  unsupported([](Json& f) { f["model"]["unk_token"] = "x"; }, "model.unk_token");
  unsupported([](Json& f) { f["model"]["byte_fallback"] = true; }, "model.byte_fallback");
  unsupported([](Json& f) { f["model"]["continuing_subword_prefix"] = "##"; }, "model.continuing_subword_prefix");
  unsupported([](Json& f) { f["decoder"]["type"] = "Metaspace"; }, "decoder.type");
  unsupported([](Json& f) { f["pre_tokenizer"]["type"] = "ByteLevel"; }, "pre_tokenizer.type");
  unsupported([](Json& f) { f["pre_tokenizer"]["pretokenizers"].erase(0); }, "pre_tokenizer");
  unsupported([](Json& f) { f["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\s+"; },
              "pretokenizers[0].pattern");
  unsupported([](Json& f) { f["pre_tokenizer"]["pretokenizers"][0]["invert"] = true; }, "invert");
  unsupported([](Json& f) { f["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed"; }, "behavior");
  unsupported([](Json& f) { f["pre_tokenizer"]["pretokenizers"][1].erase("use_regex"); }, "use_regex");
  unsupported([](Json& f) { f["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true; }, "add_prefix_space");
  unsupported([](Json& f) { f["post_processor"] = {{"type", "BertProcessing"}}; }, "post_processor.type");
  unsupported([](Json& f) { f["added_tokens"][0]["lstrip"] = true; }, "added_tokens[0].lstrip");
  unsupported([](Json& f) { f["added_tokens"][0]["surprise"] = true; }, "added_tokens[0]");
}

TEST(tokenizer_json, refuses_what_contradicts_itself) {
  const auto corrupt = [](const std::function<void(Json&)>& change, std::string_view expected) {
    expect_refused(change, Code::kCorrupt, expected);
  };
  corrupt([](Json& f) { f.erase("model"); }, "model");
  corrupt([](Json& f) { f["model"] = 3; }, "model");
  corrupt([](Json& f) { f["model"].erase("vocab"); }, "model.vocab");
  corrupt([](Json& f) { f["model"]["vocab"] = nullptr; }, "model.vocab");
  corrupt([](Json& f) { f["model"].erase("merges"); }, "model.merges");
  corrupt([](Json& f) { f["model"]["vocab"]["zz"] = 300; }, "300");
  corrupt([](Json& f) { f["model"]["vocab"]["zz"] = -1; }, "-1");
  corrupt([](Json& f) { f["model"]["vocab"]["zz"] = 2147483647; }, "2147483647");
  corrupt([](Json& f) { f["model"]["vocab"]["zz"] = 100000; }, "100000");
  corrupt([](Json& f) { f["model"]["vocab"]["zz"] = UINT64_MAX; }, "\"zz\"");
  corrupt([](Json& f) { f["model"]["vocab"]["zz"] = 1.5; }, "a fraction");
  corrupt([](Json& f) { f["model"]["vocab"]["zz"] = "7"; }, "a string");
  corrupt([](Json& f) { f["model"]["vocab"]["zz"] = Json::array(); }, "an array");
  corrupt([](Json& f) { f["model"]["vocab"]["z z"] = 600; }, "alphabet");
  corrupt([](Json& f) { f["model"]["vocab"][""] = 600; }, "alphabet");
  corrupt(
      [](Json& f) {
        f["model"]["vocab"].erase("!");
        f["model"]["merges"] = Json::array();
      },
      "byte 0x21");
  corrupt([](Json& f) { f["model"]["vocab"]["<|start|>"] = 600; }, "has id 600, and 1 in added_tokens");
  corrupt([](Json& f) { f["model"]["merges"][3] = {"zz", "a"}; }, "model.merges[3]");
  corrupt([](Json& f) { f["model"]["merges"][3] = {"~", "~"}; }, "model.merges[3]");
  corrupt([](Json& f) { f["model"]["merges"][3] = f["model"]["merges"][2]; }, "model.merges[3]");
  corrupt([](Json& f) { f["model"]["merges"][3] = "ab"; }, "model.merges[3]");
  corrupt([](Json& f) { f["model"]["merges"][3] = "a b c"; }, "model.merges[3]");
  corrupt([](Json& f) { f["model"]["merges"][3] = {"a"}; }, "model.merges[3]");
  corrupt([](Json& f) { f["model"]["merges"][3] = {"a", "b", "c"}; }, "model.merges[3]");
  corrupt([](Json& f) { f["model"]["merges"][3] = {"a", 1}; }, "model.merges[3]");
  corrupt([](Json& f) { f["model"]["merges"][3] = 1; }, "model.merges[3]");
  corrupt([](Json& f) { f["model"]["merges"][3] = Json::object(); }, "model.merges[3]");
  corrupt([](Json& f) { f["model"]["ignore_merges"] = 1; }, "ignore_merges");
  corrupt([](Json& f) { f["added_tokens"] = 1; }, "added_tokens");
  corrupt([](Json& f) { f["added_tokens"][1] = 1; }, "added_tokens[1]");
  corrupt([](Json& f) { f["added_tokens"][1]["id"] = 5; }, "<|start|>");
  corrupt([](Json& f) { f["added_tokens"][1]["id"] = -5; }, "added_tokens[1]");
  corrupt([](Json& f) { f["added_tokens"][1]["id"] = "x"; }, "added_tokens[1].id");
  corrupt(
      [](Json& f) {
        f["added_tokens"][1]["content"] = "new";
        f["model"]["vocab"].erase("<|start|>");
        f["added_tokens"][1]["id"] = 7;
      },
      "id 7");
  corrupt([](Json& f) { f["added_tokens"][1]["content"] = "<|endoftext|>"; }, "added_tokens[1]");
  corrupt([](Json& f) { f["added_tokens"][1]["content"] = ""; }, "added_tokens[1].content");
  corrupt(
      [](Json& f) {
        f["added_tokens"][1].erase("special");
        f["added_tokens"][1]["special"] = 3;
      },
      "added_tokens[1].special");
}

TEST(tokenizer_json, refuses_broken_json) {
  const std::string tiny = tiny_text();
  for (const std::string& json : {std::string(), std::string("[]"), std::string("null"), std::string("3"), tiny + "x",
                                  std::string("{\"model\":{\"vocab\":{\"\xFF\":1}}}"), std::string(100000, '['),
                                  std::string("{\"a\":1,\"a\":2}"), "{\"a\":" + std::string(40, '[')}) {
    expect_refused(json, Code::kCorrupt, "tokenizer.json");
  }
  for (size_t cut = 0; cut < tiny.size() - 1; cut += 97)
    expect_refused(tiny.substr(0, cut), Code::kCorrupt, "tokenizer.json");
  expect_refused("{\"version\":" + std::string(40, '[') + std::string(40, ']') + "}", Code::kCorrupt, "levels");
  std::string twice = tiny;
  twice.replace(twice.find("\"#\":5"), 5, "\"!\":5");
  expect_refused(twice, Code::kCorrupt, "occurred before");
  twice = tiny;
  twice.insert(twice.find("\"vocab\""), "\"vocab\":{\"x\":1},");
  expect_refused(twice, Code::kCorrupt, "\"vocab\" again");
}

}  // namespace
}  // namespace nibble::text
