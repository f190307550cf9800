#include "app/run/run.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble::app {
namespace {

std::string whole(std::string_view text) {
  MarkdownStream stream;
  std::string shown = stream.push(text);
  return shown + stream.finish();
}

// Escapes as letters: [b]old, [i]talic, [u]nderlined, [d]im, [c]ode, [/] back to plain.
std::string readable(std::string text) {
  const std::pair<std::string, std::string> codes[] = {{"\x1b[1m", "[b]"}, {"\x1b[2m", "[d]"},  {"\x1b[3m", "[i]"},
                                                       {"\x1b[4m", "[u]"}, {"\x1b[36m", "[c]"}, {"\x1b[0m", "[/]"}};
  for (const auto& [code, letter] : codes)
    for (size_t at; (at = text.find(code)) != std::string::npos;) text.replace(at, code.size(), letter);
  return text;
}

const std::vector<std::pair<std::string, std::string>> kCases = {
    {"plain text\nof two lines", "plain text\nof two lines"},
    {"**Bold** and *italic*, __bold__ and _italic_, ***both***.",
     "[b]Bold[/] and [i]italic[/], [b]bold[/] and [i]italic[/], [b][i]both[/]."},
    {"**one *two* `three`** four", "[b]one [/][b][i]two[/][b] [/][b][c]three[/] four"},
    {"call `f(*x, **y)` or ``a ` b``.", "call [c]f(*x, **y)[/] or [c]a ` b[/]."},
    {"**a `**` b**", "[b]a [/][b][c]**[/][b] b[/]"},
    {"这是**重点**内容", "这是[b]重点[/]内容"},
    // marks that mark nothing
    {"2 * 3 * 4 = 2*3*4, 2**10 and snake_case_name", "2 * 3 * 4 = 2*3*4, 2**10 and snake_case_name"},
    {"use **kwargs and *args", "use **kwargs and *args"},
    {"an open ` tick\nand **an open mark\nof _three", "an open ` tick\nand **an open mark\nof _three"},
    {"\\*no\\* \\`code\\` \\(x_1\\) \\\\ c:\\dir\\", "*no* `code` \\(x_1\\) \\\\ c:\\dir\\"},
    {"**** ****x**** `` ` ``", "**** ****x**** [c] ` [/]"},
    {"**" + std::string(450, 'a') + "** b", "**" + std::string(450, 'a') + "** b"},
    // blocks
    {"# One\n## Two **2** `c`\n#three\n####### seven", "[b][u]One[/]\n[b]Two 2 [/][b][c]c[/]\n#three\n####### seven"},
    {"- a\n* **b**\n  + c\n1. d\n-e\n*f*", "• a\n• [b]b[/]\n  • c\n1. d\n-e\n[i]f[/]"},
    {"> said\n> - so\n>\n>tight", "[d]│ [/]said\n[d]│ [/]• so\n[d]│ [/]\n[d]│ [/]tight"},
    {"a\n---\n***\n___ \n--- x\n--", "a\n[d]────────[/]\n[d]────────[/]\n[d]────────[/]\n--- x\n--"},
    {"```python\ndef f(*a):\n\n  return `x` # **no**\n```\nafter",
     "[d]python[/]\n[c]def f(*a):[/]\n\n[c]  return `x` # **no**[/]\nafter"},
    {"~~~\n```\n~~\n~~~ \nafter", "[c]```[/]\n[c]~~[/]\nafter"},
    {"````\n```\n````", "[c]```[/]\n"},
    {"   ```\n   x\n   ```\ny", "[c]   x[/]\ny"},
    {"```inline``` code\n```", "[c]inline[/] code\n"},
    {"```\nnever closed", "[c]never closed[/]"},
    {"| a | b |\n|---|---|\n[text](link) ~~x~~", "| a | b |\n|---|---|\n[text](link) ~~x~~"},
    {"", ""},
    {"\n\n  \n", "\n\n  \n"},
};

TEST(Markdown, is_shown_as_a_terminal_can) {
  for (const auto& [text, want] : kCases) EXPECT_EQ(readable(whole(text)), want) << text;
}

TEST(Markdown, does_not_depend_on_where_the_stream_was_cut) {
  for (const auto& [text, want] : kCases) {
    const std::string expected = whole(text);
    MarkdownStream bytes;
    std::string shown;
    for (const char c : text) shown += bytes.push(std::string_view(&c, 1));
    EXPECT_EQ(shown + bytes.finish(), expected) << text;
    for (size_t cut = 0; cut <= text.size(); ++cut) {
      MarkdownStream stream;
      std::string parts = stream.push(std::string_view(text).substr(0, cut));
      parts += stream.push(std::string_view(text).substr(cut));
      ASSERT_EQ(parts + stream.finish(), expected) << text << " cut at " << cut;
    }
  }
}

TEST(Markdown, random_marks_lose_nothing_and_do_not_depend_on_cuts) {
  std::mt19937 random(18);
  constexpr std::string_view kPieces = "`*_\\#->~ \n ab1";
  for (int i = 0; i < 3000; ++i) {
    std::string text(random() % 60, ' ');
    for (char& c : text) c = kPieces[random() % kPieces.size()];
    if (i % 100 == 0) text += std::string(380, 'x') + text + std::string(30, '*') + text;
    const std::string expected = whole(text);
    MarkdownStream stream;
    std::string shown;
    for (size_t at = 0; at < text.size();) {
      const size_t size = 1 + random() % 3;
      shown += stream.push(std::string_view(text).substr(at, size));
      at += size;
    }
    ASSERT_EQ(shown + stream.finish(), expected) << text;
    const auto letters = [](std::string_view of) { return std::count_if(of.begin(), of.end(), ::isalnum); };
    if (text.find("```") == std::string::npos && text.find("~~~") == std::string::npos) {
      const std::string plain = readable(expected);
      std::string bare;
      for (size_t at = 0; at < plain.size(); ++at)  // without [b] and the like: no brackets are in the pieces
        if (plain[at] == '[')
          at = plain.find(']', at);
        else
          bare += plain[at];
      ASSERT_EQ(letters(bare), letters(text)) << text;
    }
  }
}

TEST(Markdown, holds_back_no_more_than_it_must) {
  MarkdownStream stream;
  EXPECT_EQ(stream.push("Hello"), "Hello");
  EXPECT_EQ(stream.push(", **wor"), ", ");
  EXPECT_EQ(readable(stream.push("ld**!")), "[b]world[/]!");
  EXPECT_EQ(stream.push("\n```c"), "\n");
  EXPECT_EQ(readable(stream.push("\nint")), "[d]c[/]\n[c]int");
  EXPECT_EQ(readable(stream.push(" x;")), " x;");
  EXPECT_EQ(readable(stream.finish()), "[/]");
  EXPECT_EQ(stream.push("next"), "next");
}

}  // namespace
}  // namespace nibble::app
