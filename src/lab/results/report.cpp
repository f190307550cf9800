#include "lab/results/report.h"

#include "base/error.h"
#include "base/read_json.h"
#include "lab/results/metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

namespace nibble::app {
namespace {

// Colours that most people with colour-blindness can tell apart, on light and dark (after Okabe and Ito).
constexpr std::string_view kStyle = R"(
:root{color-scheme:light dark;--ground:#fff;--ink:#1c1c1e;--faint:#6b6b70;--line:#d9d9de;--good:#1a7f37;--bad:#c62828;
--s0:#0072b2;--s1:#d55e00;--s2:#009e73;--s3:#b8589a;--s4:#8a6d00;--s5:#3f8fc4}
@media(prefers-color-scheme:dark){:root{--ground:#161618;--ink:#ececf0;--faint:#a0a0a8;--line:#3a3a40;--good:#4cc26d;--bad:#ff7b72;
--s0:#56b4e9;--s1:#f08a4b;--s2:#2fcf9f;--s3:#dd95c3;--s4:#e0c341;--s5:#9ad1f5}}
body{margin:0 auto;max-width:75rem;padding:1.5rem;background:var(--ground);color:var(--ink);font:15px/1.45 system-ui,sans-serif}
h1{font-size:1.5rem;margin:0 0 .5rem}h2{font-size:1.15rem;margin:2rem 0 .5rem}
table{border-collapse:collapse;font-size:.9rem}td,th{border-bottom:1px solid var(--line);padding:.25rem .7rem .25rem 0;text-align:left;
vertical-align:top;overflow-wrap:anywhere}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
th{color:var(--faint);font-weight:600;white-space:nowrap}td.pass,td.fail,td.faint{white-space:nowrap}.wide{overflow-x:auto}
.plots{display:flex;flex-wrap:wrap;gap:1.5rem}figure{margin:0;max-width:100%}svg{display:block;max-width:100%;height:auto}
svg text{fill:var(--ink);font:12px system-ui,sans-serif}svg .faint{fill:var(--faint)}svg .grid{stroke:var(--line)}
svg .axis{stroke:var(--faint)}figcaption{font-weight:600;margin-bottom:.25rem}
.pass{color:var(--good)}.fail{color:var(--bad);font-weight:700}.faint{color:var(--faint)}
)";

std::vector<std::string_view> cells_of(std::string_view row) {
  std::vector<std::string_view> cells;
  for (size_t at = 0; at + 1 < row.size();) {
    const size_t end = std::min(row.find('|', at + 1), row.size());
    std::string_view cell = row.substr(at + 1, end - at - 1);
    cell.remove_prefix(std::min(cell.find_first_not_of(' '), cell.size()));
    cells.push_back(cell.substr(0, cell.find_last_not_of(' ') + 1));
    at = end;
  }
  return cells;
}

// Verdicts of verify are coloured.
std::string_view look_of(std::string_view cell) {
  return cell == "pass" ? "pass" : cell == "FAIL" ? "fail" : cell == "skipped" ? "faint" : "";
}

// Markdown to HTML, line by line.
class Converter {
 public:
  void line(std::string_view text) {
    if (text.starts_with('|')) {
      const bool first = open_ != kTable;
      open(kTable);
      table_line(cells_of(text), first);
    } else if (text.starts_with("- ")) {
      open(kList);
      out_ += fmt::format("<li>{}</li>\n", html_escape(text.substr(2)));
    } else {
      open({});
      const size_t marks = std::min(text.find_first_not_of('#'), text.size());
      if (marks >= 1 && marks <= 3 && text.substr(marks).starts_with(' '))
        out_ += fmt::format("<h{0}>{1}</h{0}>\n", marks, html_escape(text.substr(marks + 1)));
      else if (!text.empty())
        out_ += fmt::format("<p>{}</p>\n", html_escape(text));
    }
  }
  std::string finish() {
    open({});
    return std::move(out_);
  }

 private:
  struct Element {
    std::string_view begin{}, end{};
    friend bool operator==(const Element&, const Element&) = default;
  };
  // What may be wider than the window scrolls by itself, by keys too.
  static constexpr Element kTable{"<div class=\"wide\" tabindex=\"0\"><table>\n", "</table></div>\n"},
      kList{"<ul>\n", "</ul>\n"};

  void open(Element element) {
    if (element == open_) return;
    out_ += open_.end;
    out_ += element.begin;
    open_ = element;
  }
  // The line below a table's head says which columns are numbers.
  void table_line(std::vector<std::string_view> cells, bool first) {
    if (first) {
      head_ = std::move(cells);
    } else if (!head_.empty()) {
      numbers_.clear();
      for (const std::string_view cell : cells) numbers_.push_back(cell.ends_with(':') && !cell.starts_with(':'));
      if (std::ranges::any_of(head_, [](std::string_view cell) { return !cell.empty(); })) row(head_, "th");
      head_.clear();
    } else {
      row(cells, "td");
    }
  }
  void row(const std::vector<std::string_view>& cells, std::string_view tag) {
    out_ += "<tr>";
    for (size_t i = 0; i < cells.size(); ++i) {
      const std::string_view look = i < numbers_.size() && numbers_[i] ? "n" : look_of(cells[i]);
      out_ += fmt::format("<{0}{1}>{2}</{0}>", tag, look.empty() ? "" : fmt::format(" class=\"{}\"", look),
                          html_escape(cells[i]));
    }
    out_ += "</tr>\n";
  }

  std::string out_;
  Element open_;                        // what the lines before are part of
  std::vector<std::string_view> head_;  // of a table whose second line is still to come
  std::vector<bool> numbers_;           // by column
};

std::string valid_utf8(std::string_view text) {
  const nlohmann::json quoted = std::string(text);
  return read_json(quoted.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace

std::string html_escape(std::string_view text) {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD
  std::string out;
  for (const char c : valid_utf8(text)) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      case '\n':
      case '\t': out += c; break;
      default: {
        const auto byte = static_cast<unsigned char>(c);
        const bool control = byte < 0x20 || byte == 0x7F;
        out += control ? kReplacement : std::string_view(&c, 1);
      }
    }
  }
  return out;
}

std::string html_page(const ReportPage& page) {
  Converter converter;
  const std::string_view text = page.text;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    converter.line(text.substr(begin, end - begin));
    begin = end + 1;
  }
  const std::string title = html_escape(page.title);
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>{}</title>\n<style>{}</style>\n"
      "</head>\n<body>\n<main>\n{}{}{}</main>\n</body>\n</html>\n",
      title, kStyle, text.starts_with("# ") ? "" : fmt::format("<h1>{}</h1>\n", title),
      page.plots.empty() ? "" : fmt::format("<div class=\"plots\">\n{}</div>\n", page.plots), converter.finish());
}

void write_report(const std::filesystem::path& path, const ReportPage& page) {
  std::ofstream file(path, std::ios::binary);
  file << (path.extension() == ".html" ? html_page(page) : page.text) << std::flush;
  if (!file) throw Error(Code::kIo, "--report {}: it cannot be written", path.string());
}

void require_writable(std::string_view flag, const std::filesystem::path& path) {
  if (path.empty()) return;
  std::error_code ignored;
  const bool was_there = std::filesystem::exists(path, ignored);
  if (!std::ofstream(path, std::ios::app)) throw Error(Code::kIo, "{} {}: it cannot be written", flag, path.string());
  if (!was_there) std::filesystem::remove(path, ignored);
}

std::string metadata_section(const nlohmann::ordered_json& metadata) {
  std::string out = "\n## Where this comes from\n\n| | |\n| :-- | :-- |\n";
  for (const auto& [path, value] : flat_metadata(metadata))
    out += fmt::format("| {} | {} |\n", markdown_cell(path), markdown_cell(value));
  return out;
}

std::string markdown_cell(std::string text) {
  for (char& c : text)
    if (c == '|' || c == '\n') c = c == '|' ? '/' : ' ';
  return text;
}

}  // namespace nibble::app
