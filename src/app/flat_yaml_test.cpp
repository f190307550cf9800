#include "app/flat_yaml.h"

#include "base/error.h"

#include <gtest/gtest.h>

namespace nibble::app {
namespace {

std::string shown(std::string_view text) {
  std::string out;
  for (const YamlSetting& s : parse_flat_yaml(text)) {
    out += s.name + "=";
    for (const std::string& value : s.values) out += "<" + value + ">";
    out += ";";
  }
  return out;
}

TEST(flat_yaml, names_values_lists_and_comments) {
  EXPECT_EQ(shown(""), "");
  EXPECT_EQ(shown("---\n# all\n\nport: 8000\nhost: 0.0.0.0   # every address\r\nmodel: \"openai/gpt-oss-20b\"\n"),
            "port=<8000>;host=<0.0.0.0>;model=<openai/gpt-oss-20b>;");
  EXPECT_EQ(shown("a: [x, 'y z', \"q\\\"q\"]\nb: []\nc: [ 1 ]"), "a=<x><y z><q\"q>;b=;c=<1>;");
  EXPECT_EQ(shown("served-model-name:\n  - one\n  # between\n  - 'it''s'\nport: 1"),
            "served-model-name=<one><it's>;port=<1>;");
  EXPECT_EQ(shown("names:\n- one\n- two"), "names=<one><two>;");
  EXPECT_EQ(shown("url: http://x:1/y#z\nconfig: '{\"a\": [1, 2]}'"), "url=<http://x:1/y#z>;config=<{\"a\": [1, 2]}>;");
}

TEST(flat_yaml, what_is_more_than_flat_is_refused_with_its_line) {
  for (const std::string_view text :
       {"a: 1\nport", "a: 1\n: 1", "a: 1\nb: {c: 1}", "a: 1\nb: |\n  text", "a: 1\n  b: 2", "a: 1\na: 2", "a: 1\nb: 'x",
        "a: 1\nb: [1, 2", "a: 1\nb: &x 1", "a: 1\nb: c: d", "a: 1\nb: 'x' y", "a: 1\nb: \"\\n\"", "a: 1\nb:1",
        "a: 1\n\tb: 1", "a: 1\nb: [1 2, [3]]", "a: 1\n- 1"}) {
    try {
      (void)parse_flat_yaml(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kInvalidRequest);
      EXPECT_EQ(std::string(error.what()).rfind("line 2: ", 0), 0U) << error.what();
    }
  }
}

}  // namespace
}  // namespace nibble::app
