#include "app/model_options.h"
#include "app/settings.h"
#include "base/error.h"
#include "checkpoint/testing.h"

#include <gtest/gtest.h>

#include <map>

namespace nibble::app {
namespace {

std::string shown(const std::vector<FlatSetting>& settings) {
  std::string out;
  for (const FlatSetting& s : settings) {
    out += s.name + "=";
    for (const std::string& value : s.values) out += "<" + value + ">";
    out += ";";
  }
  return out;
}

std::string shown_yaml(std::string_view text) { return shown(parse_flat_yaml(text)); }
std::string shown_toml(std::string_view text) { return shown(parse_flat_toml(text)); }

TEST(flat_config, yaml_has_names_values_lists_and_comments) {
  EXPECT_EQ(shown_yaml(""), "");
  EXPECT_EQ(shown_yaml("---\n# all\n\nport: 8000\nhost: 0.0.0.0   # every address\r\nmodel: \"openai/gpt-oss-20b\"\n"),
            "port=<8000>;host=<0.0.0.0>;model=<openai/gpt-oss-20b>;");
  EXPECT_EQ(shown_yaml("a: [x, 'y z', \"q\\\"q\"]\nb: []\nc: [ 1 ]"), "a=<x><y z><q\"q>;b=;c=<1>;");
  EXPECT_EQ(shown_yaml("served-model-name:\n  - one\n  # between\n  - 'it''s'\nport: 1"),
            "served-model-name=<one><it's>;port=<1>;");
  EXPECT_EQ(shown_yaml("names:\n- one\n- two"), "names=<one><two>;");
  EXPECT_EQ(shown_yaml("url: http://x:1/y#z\nconfig: '{\"a\": [1, 2]}'"),
            "url=<http://x:1/y#z>;config=<{\"a\": [1, 2]}>;");
}

TEST(flat_config, yaml_has_objects_as_blocks_and_as_json) {
  EXPECT_EQ(
      shown_yaml(
          "spec:\n  model: \"a/b-v2\"  # a head\n  tokens: 3\n\n  deep:\n    on: true\n    x: '3'\n  list: [1, a]\nport: 1"),
      R"(spec=<{"deep":{"on":true,"x":"3"},"list":[1,"a"],"model":"a/b-v2","tokens":3}>;port=<1>;)");
  EXPECT_EQ(shown_yaml("a:\n    b: False\nc: {\"d\": [1, {\"e\": null}]}\nf:\n  g: 1"),
            R"(a=<{"b":false}>;c=<{"d": [1, {"e": null}]}>;f=<{"g":1}>;)");
}

TEST(flat_config, toml_has_the_same_in_its_own_way) {
  EXPECT_EQ(shown_toml("# all\n\nport = 8000\r\n  rate=0.5#near\nhost = \"a#b\"\t# far\nkey = 'x\\y'\non=true"),
            "port=<8000>;rate=<0.5>;host=<a#b>;key=<x\\y>;on=<true>;");
  EXPECT_EQ(shown_toml("names = [\"a b\", 'c', 1,]\nnone = []"), "names=<a b><c><1>;none=;");
}

TEST(flat_config, what_is_more_than_flat_is_refused_with_its_line) {
  const auto refused = [](const auto& parse, std::string_view text) {
    try {
      (void)parse(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kInvalidRequest);
      EXPECT_EQ(std::string(error.what()).rfind("line 2: ", 0), 0U) << error.what();
    }
  };
  for (const std::string_view text :
       {"a: 1\nport", "a: 1\n: 1", "a: 1\nb: {c: 1}", "a: 1\nb: |\n  text", "a: 1\n  b: 2", "a: 1\na: 2", "a: 1\nb: 'x",
        "a: 1\nb: [1, 2", "a: 1\nb: &x 1", "a: 1\nb: c: d", "a: 1\nb: 'x' y", "a: 1\nb: \"\\n\"", "a: 1\nb:1",
        "a: 1\n\tb: 1", "a: 1\nb: [1 2, [3]]", "a: 1\n- 1", "a:\n  - b: 1", "a: {\"b\": 1}\n  c: 2", "a:\n  b"})
    refused(parse_flat_yaml, text);
  for (const std::string_view text :
       {"a:\n  b: 1\n   c: 2", "a:\n  b: 1\n c: 2", "a:\n  b: 1\n  b: 2", "a:\n  b: 1\n  - 2", "a:\n  b: 1\n- 2"})
    EXPECT_THROW((void)parse_flat_yaml(text), Error) << text;
  for (const std::string_view text : {"a = 1\n[serve]", "a = 1\nb.c = 2", "a = 1\nb = {c = 1}", "a = 1\na = 2",
                                      "a = 1\nb = \"x", "a = 1\nb = \"\"\"x", "a = 1\nb = [1,\n2]", "a = 1\nb =",
                                      "a = 1\nb 2", "a = 1\n= 2", "a = 1\nb: 2", "a = 1\nb = x y", "a = 1\n- 1"})
    refused(parse_flat_toml, text);
}

TEST(GroupOptions, a_rank_of_a_machine_has_a_card_of_its_own) {
  EXPECT_EQ(card_of({}), "") << "the first that it sees";
  EXPECT_EQ(card_of({{"CUDA_VISIBLE_DEVICES", "2,3"}}), "");
  EXPECT_EQ(card_of({{"LOCAL_RANK", "1"}}), "1");
  EXPECT_EQ(card_of({{"OMPI_COMM_WORLD_LOCAL_RANK", "3"}}), "3");
  EXPECT_EQ(card_of({{"LOCAL_RANK", "1"}, {"CUDA_VISIBLE_DEVICES", "2,3"}}), "3");
  EXPECT_EQ(card_of({{"LOCAL_RANK", "1"}, {"CUDA_VISIBLE_DEVICES", "GPU-8f,GPU-2a"}}), "GPU-2a");
}

TEST(GroupOptions, a_process_that_is_shown_one_card_or_none_keeps_it) {
  EXPECT_EQ(card_of({{"LOCAL_RANK", "1"}, {"CUDA_VISIBLE_DEVICES", "5"}}), "");
  EXPECT_EQ(card_of({{"LOCAL_RANK", "1"}, {"CUDA_VISIBLE_DEVICES", ""}}), "");
}

TEST(GroupOptions, cards_that_are_too_few_are_refused_by_name) {
  test::expect_error([] { (void)card_of({{"LOCAL_RANK", "2"}, {"CUDA_VISIBLE_DEVICES", "2,3"}}); },
                     Code::kInvalidRequest,
                     "environment CUDA_VISIBLE_DEVICES 2,3: want a card for LOCAL_RANK 2, found 2");
  test::expect_error([] { (void)card_of({{"LOCAL_RANK", "x"}}); }, Code::kInvalidRequest, "environment LOCAL_RANK");
  test::expect_error([] { (void)card_of({{"LOCAL_RANK", "2147483647"}}); }, Code::kInvalidRequest,
                     "environment LOCAL_RANK: want a whole number from 0 to 1048576, found 2147483647");
}

TEST(GroupOptions, a_head_is_refused_where_each_process_has_a_card) {
  ModelOptions options;
  options.speculation.method = engine::DraftMethod::kEagle3;
  options.speculative_model = "a head";
  options.run.backend = BackendKind::kCuda;
  EXPECT_NO_THROW(require_speculation(options));
  options.group.count = 2;
  test::expect_error([&] { require_speculation(options); }, Code::kUnsupported,
                     "--speculative eagle3: want one process where cards compute, found --nnodes 2");
  options.run.backend = BackendKind::kCpu;
  EXPECT_NO_THROW(require_speculation(options));
}

TEST(GroupOptions, a_draft_model_is_refused_where_ranks_are_processes_or_cards) {
  ModelOptions options;
  options.speculation.method = engine::DraftMethod::kDraft;
  test::expect_error([&] { require_speculation(options); }, Code::kInvalidRequest,
                     "--speculative draft: want --speculative-model MODEL");
  options.speculative_model = "a model";
  options.run.backend = BackendKind::kCuda;
  EXPECT_NO_THROW(require_speculation(options));
  options.run.ranks.count = 2;
  test::expect_error([&] { require_speculation(options); }, Code::kUnsupported,
                     "--speculative draft: want one card, found --tensor-parallel-size 2");
  options.run.backend = BackendKind::kCpu;
  EXPECT_NO_THROW(require_speculation(options));
  options.group.count = 2;
  test::expect_error([&] { require_speculation(options); }, Code::kUnsupported,
                     "--speculative draft: want one process, found --nnodes 2");
}

hub::Settings with(const std::map<std::string, std::string>& variables) {
  return hub_settings([&variables](const std::string& name) {
    const auto it = variables.find(name);
    return it == variables.end() ? std::nullopt : std::optional(it->second);
  });
}

TEST(hub_settings, find_the_cache_as_hugging_faces_tools_do) {
  EXPECT_EQ(with({{"HOME", "/h"}}).cache, "/h/.cache/huggingface/hub");
  EXPECT_EQ(with({{"HOME", "/h"}, {"XDG_CACHE_HOME", "/x"}}).cache, "/x/huggingface/hub");
  EXPECT_EQ(with({{"HOME", "/h"}, {"XDG_CACHE_HOME", "/x"}, {"HF_HOME", "/hf"}}).cache, "/hf/hub");
  EXPECT_EQ(with({{"HOME", "/h"}, {"HF_HOME", "~/hf"}}).cache, "/h/hf/hub");
  EXPECT_EQ(with({{"HF_HOME", "/hf"}, {"HUGGINGFACE_HUB_CACHE", "/old"}}).cache, "/old");
  EXPECT_EQ(with({{"HF_HOME", "/hf"}, {"HUGGINGFACE_HUB_CACHE", "/old"}, {"HF_HUB_CACHE", "/c"}}).cache, "/c");
  EXPECT_EQ(with({{"HF_HOME", "/hf"}, {"HF_HUB_CACHE", ""}}).cache, "/hf/hub");
}

TEST(hub_settings, find_endpoint_token_and_mode) {
  EXPECT_EQ(with({{"HF_HOME", "/hf"}}).endpoint, "https://huggingface.co");
  EXPECT_EQ(with({{"HF_ENDPOINT", "http://mirror:1/"}}).endpoint, "http://mirror:1");
  EXPECT_EQ(with({{"HF_HOME", "/hf"}}).token_file, "/hf/token");
  EXPECT_EQ(with({{"HF_HOME", "/hf"}, {"HF_TOKEN_PATH", "/t"}}).token_file, "/t");
  EXPECT_EQ(with({{"HF_TOKEN", "hf_x"}}).token, "hf_x");
  EXPECT_FALSE(with({{"HF_HUB_OFFLINE", "0"}}).offline);
  for (const char* yes : {"1", "true", "YES", "on"}) EXPECT_TRUE(with({{"HF_HUB_OFFLINE", yes}}).offline) << yes;
}

}  // namespace
}  // namespace nibble::app
