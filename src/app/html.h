#pragma once
// HTML that holds foreign text safely. Pure.

#include <string>
#include <string_view>
#include <vector>

namespace nibble::app {

// For text or a quoted attribute: markup becomes entities; control characters and invalid UTF-8 become U+FFFD.
[[nodiscard]] std::string html_escape(std::string_view text);

// Rows of plain text, each as long as the head. Columns listed in `numbers` are aligned to the right.
struct HtmlTable {
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;
  std::vector<size_t> numbers{};
};
[[nodiscard]] std::string html_table(const HtmlTable& table);
// HTML that may be wider than the window: it scrolls by itself, by keys too.
[[nodiscard]] std::string html_wide(std::string_view content);

// A whole page: it loads nothing, runs nothing, and follows the reader's choice of light or dark. `title` is plain
// text, `body` HTML.
[[nodiscard]] std::string html_page(std::string_view title, std::string_view body);

}  // namespace nibble::app
