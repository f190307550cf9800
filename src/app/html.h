#pragma once
// HTML that holds foreign text safely. Pure.

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::app {

// As text or within a quoted attribute: markup becomes entities; control characters and what is no UTF-8 U+FFFD.
[[nodiscard]] std::string html_escape(std::string_view text);

// Rows of plain text, each as long as the head; what `numbers` lists by column is aligned to the right.
struct HtmlTable {
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;
  std::vector<size_t> numbers{};
};
[[nodiscard]] std::string html_table(const HtmlTable& table);

// A whole page: it loads nothing, runs nothing, and follows the reader's choice of light or dark. `title` is plain
// text, `body` HTML.
[[nodiscard]] std::string html_page(std::string_view title, std::string_view body);

}  // namespace nibble::app
