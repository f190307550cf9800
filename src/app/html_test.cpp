#include "app/html.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nibble::app {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Html, markup_becomes_text) {
  EXPECT_EQ(html_escape("<script>\"a\" & 'b'</script>"),
            "&lt;script&gt;&quot;a&quot; &amp; &#39;b&#39;&lt;/script&gt;");
}

TEST(Html, control_characters_and_broken_utf8_are_replaced) {
  EXPECT_EQ(html_escape(std::string("a\0b\x1b\x7f\tc\nd", 9)),
            "a\xEF\xBF\xBD"
            "b\xEF\xBF\xBD\xEF\xBF\xBD\tc\nd");
  EXPECT_EQ(html_escape("x\xFFy\xC3"), "x\xEF\xBF\xBDy\xEF\xBF\xBD");
  EXPECT_EQ(html_escape("é—"), "é—");
}

TEST(Html, cells_of_a_table_are_text) {
  const std::string table = html_table({.head = {"<h>", "n"}, .rows = {{"</td>", "1"}}, .numbers = {1}});
  EXPECT_THAT(table, HasSubstr("<th>&lt;h&gt;</th><th class=\"n\">n</th>"));
  EXPECT_THAT(table, HasSubstr("<td>&lt;/td&gt;</td><td class=\"n\">1</td>"));
}

TEST(Html, a_page_loads_and_runs_nothing) {
  const std::string page = html_page("</title>", "<p>body</p>");
  EXPECT_THAT(page, HasSubstr("<title>&lt;/title&gt;</title>"));
  EXPECT_THAT(page, HasSubstr("default-src 'none'; style-src 'unsafe-inline'"));
  EXPECT_THAT(page, HasSubstr("prefers-color-scheme:dark"));
  for (const char* word : {"<script", "http://", "https://", "url(", "@import", "@font-face", " src="})
    EXPECT_THAT(page, Not(HasSubstr(word)));
}

}  // namespace
}  // namespace nibble::app
