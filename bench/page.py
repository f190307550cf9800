#!/usr/bin/env python3
"""Makes a page of HTML of a result (--json of nibble bench, load, verify or bench --compare): plots as inline SVG, and
the text of --report FILE.md below them, if it is given. The page loads nothing and runs nothing.

    nibble bench -m gpt-oss-20b --json --report bench.md > bench.json
    bench/page.py bench.json bench.md > bench.html
"""

import argparse
import html
import json
import math
import pathlib
import re

# Colours that most people with colour-blindness can tell apart, on light and dark (after Okabe and Ito).
STYLE = """
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
"""
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 300, 70, 20, 12, 46
BAR, GAP, LETTER, VALUE = 14, 6, 6.4, 64  # a letter of the axis' font is about so wide


def escaped(text):
    """Text or a quoted attribute: markup becomes entities, control characters U+FFFD."""
    text = str(text).encode("utf-8", "replace").decode()  # no lone surrogates
    return html.escape(re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", "\ufffd", text)).replace("&#x27;", "&#39;")


# Markdown, as far as our reports have it: headings, tables, lists and lines.

def row_html(cells, tag, numbers):
    look = {"pass": "pass", "FAIL": "fail", "skipped": "faint"}
    out = ""
    for i, cell in enumerate(cells):
        kind = "n" if i < len(numbers) and numbers[i] else look.get(cell, "")
        out += f"<{tag}" + (f' class="{kind}"' if kind else "") + f">{escaped(cell)}</{tag}>"
    return f"<tr>{out}</tr>\n"


def table_html(lines):
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    numbers = [cell.endswith(":") and not cell.startswith(":") for cell in rows[1]] if len(rows) > 1 else []
    head = row_html(rows[0], "th", numbers) if any(rows[0]) else ""
    return head + "".join(row_html(cells, "td", numbers) for cells in rows[2:])


def text_html(text):
    out, lines = "", text.split("\n")
    while lines:
        line = lines.pop(0)
        if line.startswith(("|", "- ")):
            mark, block = line[0], [line]
            while lines and lines[0].startswith(mark):
                block.append(lines.pop(0))
            if mark == "|":  # what may be wider than the window scrolls by itself, by keys too
                out += f'<div class="wide" tabindex="0"><table>\n{table_html(block)}</table></div>\n'
            else:
                out += "<ul>\n" + "".join(f"<li>{escaped(item[2:])}</li>\n" for item in block) + "</ul>\n"
        elif heading := re.match(r"(#{1,3}) (.*)", line):
            out += f"<h{len(heading[1])}>{escaped(heading[2])}</h{len(heading[1])}>\n"
        elif line:
            out += f"<p>{escaped(line)}</p>\n"
    return out


# Plots. Every axis begins at 0 and names its unit.

def axis_marks(low, high):
    """Their distance is 1, 2 or 5 times a power of ten; 0 is among them, and the outermost reach both ends."""
    low, high = min(low, 0), max(high, 0)
    if not high > low:
        return [0, 1]
    power = 10 ** math.floor(math.log10((high - low) / 6))
    step = next((times * power for times in (1, 2, 5) if (high - low) / (times * power) <= 6), 10 * power)
    return [i * step for i in range(math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9) + 1)]


def axis(marks, begin, end):
    """The place of a value."""
    return lambda value: begin + (value - marks[0]) / (marks[-1] - marks[0]) * (end - begin)


def mark_text(value):
    return f"{value / 1e6:.4g}M" if abs(value) >= 1e6 else f"{value:.6g}"


def text_at(x, y, attributes, text):
    return f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{escaped(text)}</text>\n'


def line(x1, y1, x2, y2, attributes):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {attributes}/>\n'


def figure(title, height, inside):
    return (f'<figure><figcaption>{escaped(title)}</figcaption>\n<svg viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" role="img" '
            f'aria-label="{escaped(title)}">\n{inside}</svg></figure>\n')


def kind_of_line(mark):
    return 'class="axis"' if mark == 0 else 'class="grid"'


def lines_svg(title, x_name, y_name, series):
    """series: {name: [(x, y, spread, note)]}, joined in this order."""
    points = [point for each in series.values() for point in each]
    if not points:
        return ""
    x_marks, y_marks = axis_marks(0, max(p[0] for p in points)), axis_marks(0, max(p[1] + p[2] for p in points))
    x, y = axis(x_marks, LEFT, WIDTH - RIGHT), axis(y_marks, HEIGHT - BOTTOM, TOP)
    out = ""
    for mark in y_marks:
        out += line(LEFT, y(mark), WIDTH - RIGHT, y(mark), kind_of_line(mark))
        out += text_at(LEFT - 6, y(mark) + 4, 'text-anchor="end" class="faint"', mark_text(mark))
    for mark in x_marks:
        out += line(x(mark), HEIGHT - BOTTOM, x(mark), HEIGHT - BOTTOM + 4, 'class="axis"')
        out += text_at(x(mark), HEIGHT - BOTTOM + 17, 'text-anchor="middle" class="faint"', mark_text(mark))
    out += line(LEFT, TOP, LEFT, HEIGHT - BOTTOM, 'class="axis"')
    out += text_at((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, 'text-anchor="middle"', x_name)
    out += (f'<text transform="translate(14 {(TOP + HEIGHT - BOTTOM) / 2:.1f}) rotate(-90)" text-anchor="middle">'
            f'{escaped(y_name)}</text>\n')
    legend, place, height = "", LEFT, HEIGHT + 12
    for i, (name, own) in enumerate(series.items()):
        color = f"var(--s{i % 6})"
        path = " ".join(f"{x(p[0]):.1f},{y(p[1]):.1f}" for p in own)
        out += f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>\n'
        for at, value, spread, note in own:
            if spread > 0:
                out += line(x(at), y(max(0, value - spread)), x(at), y(value + spread), f'stroke="{color}"')
            out += (f'<circle cx="{x(at):.1f}" cy="{y(value):.1f}" r="3.5" fill="{color}"><title>'
                    f'{escaped(f"{name}: {at:g}, {value:.5g}")}</title></circle>\n')
            if note:
                out += text_at(x(at) + 6, y(value) - 6, 'class="faint"', note)
        if place > LEFT and place + 24 + LETTER * len(name) > WIDTH:
            place, height = LEFT, height + 16
        legend += f'<rect x="{place:.1f}" y="{height - 9:.1f}" width="10" height="10" fill="{color}"/>\n'
        legend += text_at(place + 14, height, "", name)
        place += 24 + LETTER * len(name)
    return figure(title, height + 6, out + legend)


def bars_svg(title, unit, bars, least_top=0):
    """bars: [(label, value, interval or None)], from the top."""
    if not bars:
        return ""
    ends = [end for _, value, interval in bars for end in (value, *(interval or ()))]
    left = min(max(LETTER * max(len(bar[0]) for bar in bars) + 12, LEFT), WIDTH / 2)
    marks = axis_marks(min(ends), max(*ends, least_top))
    x, bottom = axis(marks, left, WIDTH - VALUE), TOP + (BAR + GAP) * len(bars)
    out = ""
    for mark in marks:
        out += line(x(mark), TOP, x(mark), bottom, kind_of_line(mark))
        out += text_at(x(mark), bottom + 14, 'text-anchor="middle" class="faint"', mark_text(mark))
    for i, (label, value, interval) in enumerate(bars):
        y, begin, end = TOP + (BAR + GAP) * i, x(min(0, value)), x(max(0, value))
        out += text_at(left - 6, y + 11, 'text-anchor="end"', label)
        out += f'<rect x="{begin:.1f}" y="{y:.1f}" width="{end - begin:.1f}" height="{BAR}" fill="var(--s0)"/>\n'
        if interval:
            low, high = map(x, interval)
            out += line(low, y + BAR / 2, high, y + BAR / 2, 'stroke="var(--ink)" stroke-width="1.5"')
            end = max(end, high)
        out += text_at(end + 5, y + 11, 'class="faint"', f"{value:.5g}")
    return figure(title, bottom + 40, out + text_at((left + WIDTH - VALUE) / 2, bottom + 32, 'text-anchor="middle"', unit))


def number(row, path):
    for name in path.split("."):
        row = row.get(name) if isinstance(row, dict) else None
    return row if isinstance(row, (int, float)) and math.isfinite(row) else 0


def label(row):
    return str(row["test"]) if number(row, "prompt") > 0 else f"{row['test']}, batch {row['batch']}"


def bench_lines(rows, title, along, unit, prompts):
    series = {}
    for row in rows:
        if (number(row, "prompt") > 0) != prompts:
            continue
        test = f"pp{number(row, 'prompt')}" if prompts else f"tg{number(row, 'generate')}"
        name = (test if prompts else f"{test}, batch {number(row, 'batch')}" if along == "depth"
                else f"{test} @ d{number(row, 'depth')}")
        rate = row.get("tokens_per_second")
        series.setdefault(name, []).append((number(row, along), number(rate, "mean"), number(rate, "sd"), ""))
    several = len({point[0] for points in series.values() for point in points}) > 1
    return lines_svg(title, unit, "tokens per second", series) if several else ""


def bench_bars(rows, title, prompts):
    bars = []
    for row in rows:
        if (number(row, "prompt") > 0) == prompts:
            mean, sd = number(row, "tokens_per_second.mean"), number(row, "tokens_per_second.sd")
            bars.append((label(row), mean, (max(0, mean - sd), mean + sd)))
    return bars_svg(title, "tokens per second", bars)


def bench_plots(rows):
    return (bench_lines(rows, "Prompts: throughput against depth", "depth", "depth, tokens", True)
            + bench_lines(rows, "Generation: throughput against depth", "depth", "depth, tokens", False)
            + bench_lines(rows, "Generation: throughput against batch", "batch", "batch, sequences", False)
            + bench_bars(rows, "Prompts, ± standard deviation", True) + bench_bars(rows, "Generation, ± standard deviation", False)
            + bars_svg("Share of what the device allows", "% of the limit",
                       [(label(row), 100 * number(row, "of_limit"), None) for row in rows if "of_limit" in row], 100))


def load_plots(rows):
    along = "request_rate" if "request_rate" in rows[0] else "concurrency"
    unit = "requests per second" if along == "request_rate" else "concurrency, requests"
    users = [(number(row, "tokens_per_second_per_user.p50"), number(row, "output_tokens_per_second_per_gpu"), 0,
              f"{number(row, along):g}" + ("/s" if along == "request_rate" else "")) for row in rows]
    out = lines_svg("Throughput and interactivity", "tokens per second of a user, median", "output tokens per second and GPU",
                    {"each point a concurrency": [point for point in users if point[0] > 0]})
    for word, name in (("ttft", "Time to the first token (TTFT)"), ("tpot", "Time per output token (TPOT)"),
                       ("itl", "Time between events (ITL)"), ("e2e", "Until the last token (E2E)")):
        known = [row for row in rows if number(row, f"{word}.count") > 0]
        out += lines_svg(name, unit, "ms", {at: [(number(row, along), number(row, f"{word}.{at}_ms"), 0, "") for row in known]
                                            for at in ("p50", "p90", "p99")})
    return out


def comparison_plots(rows):
    return bars_svg("B beside A, 95 % interval of Welch's t", "change, %",
                    [(f"{row['row']}, {row['metric']}", 100 * row["change"], [100 * end for end in row["interval"] or ()])
                     for row in rows])


def plots(result):
    rows = result.get("rows")
    if not isinstance(rows, list) or not rows:
        return ""
    return (comparison_plots if "verdict" in rows[0] else bench_plots if "test" in rows[0] else load_plots)(rows)


def page(result, text, title):
    drawn = plots(result)
    heading = "" if text.startswith("# ") else f"<h1>{escaped(title)}</h1>\n"
    drawn = f'<div class="plots">\n{drawn}</div>\n' if drawn else ""
    return ('<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; style-src \'unsafe-inline\'">\n'
            f'<meta name="viewport" content="width=device-width,initial-scale=1">\n<title>{escaped(title)}</title>\n'
            f"<style>{STYLE}</style>\n</head>\n<body>\n<main>\n{heading}{drawn}{text_html(text)}</main>\n</body>\n</html>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=pathlib.Path, help="what --json printed")
    parser.add_argument("text", type=pathlib.Path, nargs="?", help="what --report FILE.md wrote")
    parser.add_argument("--title", default="nibble")
    args = parser.parse_args()
    text = args.text.read_text(errors="replace") if args.text else ""
    print(page(json.loads(args.result.read_text(errors="replace")), text, args.title), end="")


if __name__ == "__main__":
    main()
