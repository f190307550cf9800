#include "app/options/settings.h"

#include "base/error.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace nibble::app
