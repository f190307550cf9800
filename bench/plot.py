#!/usr/bin/env python3
"""Draws docs/images/speed.svg from bench/results: Nibble beside llama.cpp and vLLM. Needs matplotlib.

    bench/plot.py            # writes the picture
    bench/plot.py --table    # prints its figures
"""

import argparse
import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
COLOURS = {"Nibble": "#2f6fde", "vLLM 0.23": "#d98b2b", "llama.cpp": "#7a7f87"}
TEXT = "#6b7280"  # readable on white and on a dark page


def read(name):
    return json.loads((RESULTS / name).read_text())


def speeds_of_cards():
    """{model: {program: {(test, batch): tokens per second}}} on one H100."""
    out = {"20b": {"Nibble": {}, "vLLM 0.23": {}, "llama.cpp": {}}, "120b": {"Nibble": {}, "vLLM 0.23": {}}}
    for row in read("2026-11-23-h100-llama.json")["rows"]:
        out["20b"]["llama.cpp"][row["test"], row["batch"]] = row["llama_cpp_tokens_per_s"]
    for row in read("2026-11-23-h100-vllm.json")["rows"]:
        for model in out:
            out[model]["vLLM 0.23"][row["test"], row["batch"]] = row[model]
    rows = read("2026-11-26-h100-lines-of-256.json")["rows"]
    for model in out:
        for row in rows[model] + rows.get(f"{model}, by 256 bytes", []):  # the latter with the kernels of today
            out[model]["Nibble"][row["test"], row["batch"]] = row["tok_s"]
    return out


def speeds_of_processors():
    """{program: {row: tokens per second}} with AVX2 alone, 8 threads."""
    table = next(t for t in read("2026-11-23-xeon-cpus-llama.json")["tables"]
                 if t["threads"] == 8 and t["cpu_isa"] == "avx2" and t["rows"][0]["row"] == "tg128")
    return {"Nibble": {r["row"]: r["nibble"][0]["tok_per_s"] for r in table["rows"]},
            "llama.cpp": {r["row"]: r["llama_cpp"][0]["tok_per_s"] for r in table["rows"]}}


def panels():
    cards, processors = speeds_of_cards(), speeds_of_processors()
    rows = {"1 sequence": ("tg64", 1), "8 sequences": ("tg64", 8), "32 sequences": ("tg64", 32),
            "256 sequences": ("tg64", 256), "prompt of 2048": ("pp2048", 1), "prompt of 8192": ("pp8192", 1)}
    titles = {"20b": "gpt-oss-20b, one H100", "120b": "gpt-oss-120b, one H100"}
    for model, title in titles.items():
        yield title, {label: {program: speeds[key] for program, speeds in cards[model].items() if key in speeds}
                      for label, key in rows.items()}
    labels = {"1 sequence": "tg128", "8 sequences": "tg32b8", "prompt of 512": "pp512"}
    yield "gpt-oss-20b, 8 threads of a Xeon, AVX2", {
        label: {program: speeds[key] for program, speeds in processors.items()} for label, key in labels.items()}


def number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def draw(path):
    import matplotlib
    matplotlib.use("svg")
    from matplotlib import pyplot as plt
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "nibble", "font.family": "sans-serif", "font.size": 9,
                         "text.color": TEXT, "axes.labelcolor": TEXT, "xtick.color": TEXT, "ytick.color": TEXT})
    all_panels = list(panels())
    # As high as a panel has bars, so that all bars are alike.
    heights = [sum(len(bars) + 0.8 for bars in rows.values()) for _, rows in all_panels]
    figure, axes = plt.subplots(len(all_panels), 1, figsize=(7.5, sum(heights) * 0.15 + 1.2), layout="constrained",
                                gridspec_kw={"height_ratios": heights})
    for axis, (title, rows) in zip(axes, all_panels):
        ticks, y = [], 0.0
        for label, bars in rows.items():
            most = max(bars.values())
            ticks.append((y + (len(bars) - 1) / 2, label))
            for program, value in bars.items():
                axis.barh(y, value / most, height=0.85, color=COLOURS[program])
                axis.text(value / most + 0.01, y, number(value), va="center")
                y += 1
            y += 0.8
        axis.set_yticks([t for t, _ in ticks], [name for _, name in ticks])
        axis.tick_params(length=0)
        axis.set_xlim(0, 1.12)
        axis.set_xticks([])
        axis.invert_yaxis()
        axis.set_title(f"{title}: tokens per second", loc="left", color=TEXT, fontweight="bold")
        for spine in axis.spines.values():
            spine.set_visible(False)
    figure.legend([plt.Rectangle((0, 0), 1, 1, color=c) for c in COLOURS.values()], COLOURS.keys(), loc="outside upper left",
                  ncols=len(COLOURS), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, transparent=True, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="print the figures instead")
    if parser.parse_args().table:
        for title, rows in panels():
            for label, bars in rows.items():
                print(title, label, *(f"{program} {number(value)}" for program, value in bars.items()), sep=" | ")
        return
    draw(ROOT / "docs" / "images" / "speed.svg")


if __name__ == "__main__":
    main()
