#!/usr/bin/env python3
"""tools/check_links.py [root]: whether every relative link of the Markdown pages leads to a file, and its anchor to a heading, whether a page or
a source names every file of bench/results, and whether the sources have each function, type and file that a README.md of src names."""

import re
import sys
from pathlib import Path

FOLDERS = ("docs", "src", "bench", "models", "deploy")
OTHERS = {"llama.cpp", "SiLU", "file.h", "x_test.cpp"}  # names in the maps of src that no source has


def lines_of(page):
    """The page's lines with their numbers, without code blocks."""
    code = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            code = not code
        elif not code:
            yield number, line


def anchors_of(page):
    """GitHub's names of the page's headings; the second of two equal ones has -1 added."""
    found = []
    for _, line in lines_of(page):
        if heading := re.match(r"#+ (.*)", line):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).strip().lower()
            name = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
            found.append(f"{name}-{found.count(name)}" if name in found else name)
    return found


def unknown_names(root, sources):
    """Functions, types and files that the maps of src name and that are not there."""
    code = "".join(source.read_text(encoding="utf-8") for source in sources)
    known = set(re.findall(r"\w+", code)) | {path.name for folder in ("src", "tests", "tools", "bench", "cmake") for path in (root / folder).rglob("*.*")}
    for page in sorted((root / "src").rglob("README.md")):
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            files = re.findall(r"\b[a-z0-9]\w*\.(?:cpp|h|cuh?|py)\b", line)
            functions = re.findall(r"\b(\w+)\(\)", line)
            types = re.findall(r"\b[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]*)+\b|(?<=~)[A-Z]\w+", line)
            for name in {*files, *functions, *types} - known - OTHERS:
                yield f"{page.relative_to(root)}:{number}: {name}: no source has it"


def problems_of(root):
    pages = sorted([*root.glob("*.md"), *(page for folder in FOLDERS for page in (root / folder).rglob("*.md"))])
    anchors = {page.resolve(): anchors_of(page) for page in pages}
    for page in pages:
        for number, line in lines_of(page):
            for target in re.findall(r"\]\(([^)\s]+)\)", line):
                path, _, anchor = target.partition("#")
                if re.match(r"[a-z]+:", target):
                    continue
                file = (page.parent / path).resolve() if path else page.resolve()
                if not file.exists():
                    yield f"{page.relative_to(root)}:{number}: {target}: there is no such file"
                elif anchor and anchor not in anchors.get(file, [anchor]):
                    yield f"{page.relative_to(root)}:{number}: {target}: there is no such heading"
    sources = [source for kind in ("*.cpp", "*.h", "*.cu", "*.cuh") for source in (root / "src").rglob(kind)]
    told = "".join(file.read_text(encoding="utf-8") for file in (*pages, *sources))
    yield from unknown_names(root, sources)
    for result in sorted((root / "bench/results").glob("*")):
        if result.name not in told:
            yield f"{result.relative_to(root)}: no page and no source tells its figures: name it there, or delete it"


if __name__ == "__main__":
    found = list(problems_of(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent).resolve()))
    print("\n".join(found) or "links: 0 problems")
    sys.exit(bool(found))
