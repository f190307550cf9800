#!/usr/bin/env python3
"""Holds the sources against the arrow table in src/README.md and the house rules that a script can check.

    tools/check_layers.py [repository root]

Prints `file:line: problem` for each violation and exits 1 when there is one; then, as information, the number of files
and lines and the longest files. Standard library only.
"""

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

SUFFIXES = {".h", ".cpp", ".cuh", ".cu"}
HEADERS = {".h", ".cuh"}
ENVIRONMENT_READER = "src/app/options/options.cpp"
BANNED_HEADERS = {"iostream", "iomanip", "sstream", "regex"}
TEST_HEADERS = ("gtest/", "gmock/")
# What only tests use: x_test.cpp, x_testing.h, and everything in a room's folders of these names, which are part of the room.
TEST_FILE = re.compile(r"(^|_)(test|testing)$")  # stems
TEST_FOLDERS = {"testing", "emulation"}
CUDA_HEADERS = ("cuda", "nccl", "nv/", "cub/", "cooperative_groups")
CUDA_ROOM = "backend/cuda"
# Libraries whose headers cost seconds per file that includes them (tools/compile_cost.py): who may.
CONFINED = {
    "isocline": re.compile(r"app/run/line_editor\.cpp"),
    "boost/": re.compile(r"server/http_(connection|server)\.(h|cpp)|lab/client/http_requests\.cpp|backend/ranks/process_group(_test)?\.cpp"),
    "xgrammar/": re.compile(r"text/grammar\.cpp"),
    "curl/": re.compile(r"hub/http\.cpp"),
}

INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]*)[">]')
ARROW_BLOCK = re.compile(r"^```arrows\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# Strings and characters are matched so that comment signs inside them are not.
TOKENS = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', re.DOTALL)


class TableError(Exception):
    """The arrow table itself is wrong."""


@dataclass
class Report:
    problems: list = field(default_factory=list)  # "file:line: text"
    file_lines: dict = field(default_factory=dict)  # path -> lines
    rooms: set = field(default_factory=set)  # with sources


def parse_arrows(readme_text):
    """Returns {room: set of rooms it may include}, own room included."""
    blocks = ARROW_BLOCK.findall(readme_text)
    if len(blocks) != 1:
        raise TableError(f"want one ```arrows block, found {len(blocks)}")
    arrows = {}
    for line in filter(None, map(str.strip, blocks[0].splitlines())):
        room, arrow, targets = line.partition("->")
        room = room.strip()
        if not arrow or not room or room in arrows:
            raise TableError(f"want one `room -> rooms` line per room, found: {line}")
        arrows[room] = targets.split()
    allowed = {}
    for room, targets in arrows.items():
        allowed[room] = {room}
        for target in targets:
            matches = {r for r in arrows if target.endswith("/*") and r.startswith(target[:-1])}
            if not matches and target not in arrows:
                raise TableError(f"`{room}` points to `{target}`, which has no line of its own")
            allowed[room] |= matches or {target}
    return allowed


def room_of(folder, rooms):
    """The longest listed prefix of a folder under src/; None when a listed room has to be named first."""
    parts = PurePosixPath(folder).parts
    if parts and parts[-1] in TEST_FOLDERS:
        parts = parts[:-1]
    for length in range(len(parts), 0, -1):
        room = "/".join(parts[:length])
        if room in rooms:
            has_sub_rooms = any(r.startswith(room + "/") for r in rooms)
            return None if has_sub_rooms and length < len(parts) else room
    return None


def is_test_file(path):
    path = PurePosixPath(path)
    return bool(TEST_FILE.search(path.stem)) or not TEST_FOLDERS.isdisjoint(path.parent.parts)


def without_comments(text):
    def blank(match):
        token = match.group()
        return re.sub(r"[^\n]", " ", token) if token.startswith("/") else token

    return TOKENS.sub(blank, text)


def check_confined(target, source):
    """Returns what is wrong with an include of a library that only some files may include, or None; `source` is below src/."""
    for library, files in CONFINED.items():
        if target.startswith(library) and not files.fullmatch(source):
            return f"<{target}>: only {files.pattern} includes {library}".replace("\\", "")
    return None


def check_include(quote, target, room, is_test, allowed):
    """Returns what is wrong with one include, or None."""
    first = target.split("/")[0]
    if quote == "<":
        if target in BANNED_HEADERS:
            return f"<{target}> is not used here: format with fmt, match by hand"
        if target.startswith(TEST_HEADERS) and not is_test:
            return f"<{target}> belongs in x_test files and testing/ folders"
        if target.startswith(CUDA_HEADERS) and room != CUDA_ROOM:
            return f"<{target}>: only {CUDA_ROOM} includes CUDA's headers"
        if "/" in target and room_of(PurePosixPath(target).parent, allowed):
            return f'<{target}>: own headers are included as "room/file.h"'
        return None
    if "/" not in target or first in (".", "..") or "/../" in target:
        return f'"{target}": headers are included as "room/file.h"'
    if is_test_file(target) and not is_test:
        return f'"{target}" is for tests only'
    target_room = room_of(PurePosixPath(target).parent, allowed)
    if target_room is None:
        return f'"{target}" is in no room of src/README.md'
    if target_room not in allowed[room]:
        return f'"{target}": {room} may not include {target_room} (may: {" ".join(sorted(allowed[room] - {room})) or "-"})'
    return None


def check_form(path, text, report):
    name, lines = path.as_posix(), text.splitlines()
    report.file_lines[name] = len(lines)
    if path.suffix in HEADERS and "#pragma once" not in lines:
        report.problems.append(f"{name}:1: a header starts with #pragma once")


def check_source(path, text, room, allowed, report):
    name = path.as_posix()
    is_test = is_test_file(path)
    check_form(path, text, report)
    for number, line in enumerate(without_comments(text).splitlines(), 1):
        include = INCLUDE.match(line)
        if include:
            problem = check_include(include[1], include[2], room, is_test, allowed)
            problem = problem or check_confined(include[2], name.removeprefix("src/"))
            if problem:
                report.problems.append(f"{name}:{number}: {problem}")
        if re.search(r"\b(secure_)?getenv\b|\benviron\b", line) and name != ENVIRONMENT_READER:
            report.problems.append(f"{name}:{number}: only {ENVIRONMENT_READER} reads the environment")


KERNEL_NAME = re.compile(r'static constexpr (?:Page)?Kernel \w+(?:\[\])?\s*(?:=\s*)?\{.*?;', re.DOTALL)
KERNEL_FUNCTION = re.compile(r"__global__\s+void\s+(?:__(?:launch_bounds|cluster_dims)__\((?:[^()]|\([^()]*\))*\)\s*)*(\w+)\(")


def check_kernel_names(root, report):
    """A kernel's name, up to its <, is that of a function: what profilers show."""
    room = root / "src" / CUDA_ROOM
    texts = {f: without_comments(f.read_text(encoding="utf-8")) for f in sorted(room.rglob("*")) if f.suffix in SUFFIXES and f.is_file()}
    functions = {name for text in texts.values() for name in KERNEL_FUNCTION.findall(text)}
    for file, text in texts.items():
        if is_test_file(file.relative_to(root)):
            continue
        for constants in KERNEL_NAME.findall(text):
            for name in re.findall(r'"([^"]*)"', constants):
                if name.split("<")[0] not in functions:
                    report.problems.append(f"{file.relative_to(root).as_posix()}:1: kernel {name}: no __global__ function of that name")


def check_tree(root):
    root = Path(root)
    report = Report()
    readme = root / "src" / "README.md"
    try:
        allowed = parse_arrows(readme.read_text(encoding="utf-8"))
    except (OSError, TableError) as error:
        report.problems.append(f"src/README.md:1: {error}")
        return report
    for file in sorted(f for folder in ("src", "tests", "bench") for f in (root / folder).rglob("*")):
        if file.suffix not in SUFFIXES or not file.is_file():
            continue
        path = file.relative_to(root)
        if path.parts[0] != "src":
            check_form(path, file.read_text(encoding="utf-8"), report)
            continue
        room = room_of(path.parent.relative_to("src"), allowed)
        if room is None:
            report.problems.append(f"{path.as_posix()}:1: its folder is no room of src/README.md")
            continue
        report.rooms.add(room)
        check_source(path, file.read_text(encoding="utf-8"), room, allowed, report)
    check_kernel_names(root, report)
    return report


def main(arguments):
    root = arguments[1] if len(arguments) > 1 else Path(__file__).resolve().parent.parent
    report = check_tree(root)
    for problem in report.problems:
        print(problem)
    longest = sorted(report.file_lines.items(), key=lambda item: -item[1])[:5]
    print("longest files:", ", ".join(f"{name} {lines}" for name, lines in longest))
    print(f"layers: {len(report.file_lines)} files, {sum(report.file_lines.values())} lines in {len(report.rooms)} rooms, {len(report.problems)} problems")
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
