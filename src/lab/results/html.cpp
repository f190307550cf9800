#include "lab/results/report_page.h"

#include "base/read_json.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace nibble::app {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

std::string valid_utf8(std::string_view text) {
  const nlohmann::json quoted = std::string(text);
  return read_json(quoted.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

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
th{color:var(--faint);font-weight:600;white-space:nowrap}td.pass,td.fail,td.faint{white-space:nowrap}td.name{min-width:16rem}.wide{overflow-x:auto}.plots{display:flex;flex-wrap:wrap;gap:1.5rem}figure{margin:0;max-width:100%}
svg{display:block;max-width:100%;height:auto}svg text{fill:var(--ink);font:12px system-ui,sans-serif}svg .faint{fill:var(--faint)}
svg .grid{stroke:var(--line)}svg .axis{stroke:var(--faint)}figcaption{font-weight:600;margin-bottom:.25rem}
pre{margin:0;font-size:.85rem}.pass{color:var(--good)}.fail{color:var(--bad);font-weight:700}.faint{color:var(--faint)}
)";

}  // namespace

std::string html_escape(std::string_view text) {
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
        if (byte < 0x20 || byte == 0x7F) {
          out += kReplacement;
        } else {
          out += c;
        }
      }
    }
  }
  return out;
}

std::string html_table(const HtmlTable& table) {
  const auto row = [&](const std::vector<std::string>& cells, const char* tag) {
    std::string out = "<tr>";
    for (size_t i = 0; i < cells.size(); ++i) {
      const bool number = std::ranges::find(table.numbers, i) != table.numbers.end();
      out += fmt::format("<{}{}>{}</{}>", tag, number ? " class=\"n\"" : "", html_escape(cells[i]), tag);
    }
    return out + "</tr>\n";
  };
  std::string rows;
  if (std::ranges::any_of(table.head, [](const std::string& cell) { return !cell.empty(); }))
    rows += row(table.head, "th");
  for (const std::vector<std::string>& cells : table.rows) rows += row(cells, "td");
  return html_wide("<table>\n" + rows + "</table>");
}

std::string html_wide(std::string_view content) {
  return fmt::format("<div class=\"wide\" tabindex=\"0\">{}</div>\n", content);
}

std::string html_page(std::string_view title, std::string_view body) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>{}</title>\n<style>{}</style>\n"
      "</head>\n<body>\n<main>\n{}</main>\n</body>\n</html>\n",
      html_escape(title), kStyle, body);
}

}  // namespace nibble::app
