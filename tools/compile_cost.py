#!/usr/bin/env python3
"""What each file of a build costs to compile: CPU seconds and peak memory.

    tools/compile_cost.py build/cpu [target] [-j N] [--top N] [--json FILE] [--before FILE]

Compiles every source of a ninja target (all without one) once more, into a scratch folder and past any ccache, and prints
one row per file, dearest first, and the sum. CPU seconds are user and system time of the compiler and of what it starts, so
a busy machine changes them less than the wall clock; -j 1, the default, disturbs them least. --json keeps the figures,
--before FILE shows them beside those of an earlier run. In place of the build folder such a file may be given: then nothing
is compiled. The build folder must be configured, not built. Standard library and ninja.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

LAUNCHERS = {"ccache", "sccache", "keep_ptxas.sh"}


def compile_of(command, root):
    """(name of the source, command without launchers) of one line of `ninja -t commands`; None for what compiles nothing."""
    words = shlex.split(command)
    while words and Path(words[0]).name in LAUNCHERS:
        del words[0]
    if "-c" not in words or "-o" not in words:
        return None
    source = Path(words[words.index("-c") + 1])
    return source.relative_to(root).as_posix() if source.is_relative_to(root) else source.as_posix(), words


def redirected(words, folder):
    """The same command, with its object and its dependencies below `folder`."""
    words = list(words)
    for flag, name in (("-o", "object.o"), ("-MF", "object.d")):
        if flag in words:
            words[words.index(flag) + 1] = str(Path(folder, name))
    return words


def measure(words, build):
    """What one compilation took; None where it failed, which is then printed."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+", errors="replace") as said:
        environment = {**os.environ, "CCACHE_DISABLE": "1"}
        process = subprocess.Popen(redirected(words, folder), cwd=build, env=environment, stdout=said, stderr=said)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            said.seek(0)
            sys.stderr.write(said.read())
            return None
    return {"cpu_seconds": round(used.ru_utime + used.ru_stime, 2), "peak_mib": round(used.ru_maxrss / 1024)}


def measure_all(build, target, jobs):
    """{source: cost} of a build folder's target; a source that several targets compile has its costs added."""
    listed = subprocess.run(["ninja", "-C", build, "-t", "commands", target], capture_output=True, text=True)
    if listed.returncode != 0:
        raise SystemExit(f"compile_cost: {build}, target {target}: {(listed.stderr or listed.stdout).strip()}")
    root = Path(__file__).resolve().parent.parent
    cache = Path(build, "CMakeCache.txt")
    for line in cache.read_text(encoding="utf-8").splitlines() if cache.exists() else ():
        if line.startswith("CMAKE_HOME_DIRECTORY:"):  # of another checkout's folder
            root = Path(line.partition("=")[2])
    found = list(filter(None, (compile_of(line, root) for line in listed.stdout.splitlines())))
    costs = {}
    with ThreadPoolExecutor(jobs) as pool:
        for (source, _), cost in zip(found, pool.map(lambda job: measure(job[1], build), found)):
            if cost is None:
                raise SystemExit(f"compile_cost: {source} does not compile")
            print(f"{cost['cpu_seconds']:8.2f} s  {source}", file=sys.stderr)
            add(costs, source, cost)
    return costs


def add(costs, source, cost):
    known = costs.setdefault(source, {"cpu_seconds": 0, "peak_mib": 0})
    known["cpu_seconds"] = round(known["cpu_seconds"] + cost["cpu_seconds"], 2)
    known["peak_mib"] = max(known["peak_mib"], cost["peak_mib"])


def table(costs, before=None, top=None):
    """Lines of Markdown, dearest first (before or now); `top`: so many files, the rest in one row."""
    nothing = {"cpu_seconds": 0, "peak_mib": 0}
    total = sum(cost["cpu_seconds"] for cost in costs.values())
    total_before = sum(cost["cpu_seconds"] for cost in before.values()) if before is not None else 0

    def row(name, sources):
        now, peak = sum(costs.get(s, nothing)["cpu_seconds"] for s in sources), max((costs.get(s, nothing)["peak_mib"] for s in sources), default=0)
        cells = [name]
        if before is not None:
            cells.append(f"{sum(before.get(s, nothing)['cpu_seconds'] for s in sources):.1f}")
        cells += [f"{now:.1f}", f"{100 * now / total if total else 0:.1f} %", f"{peak}"]
        return "| " + " | ".join(cells) + " |"

    sources = sorted(set(costs) | set(before or {}), key=lambda s: (-max(costs.get(s, nothing)["cpu_seconds"], (before or {}).get(s, nothing)["cpu_seconds"]), s))
    shown, rest = sources[:top], sources[top:] if top is not None else []
    yield "| file | " + ("s before | " if before is not None else "") + "CPU s | share | peak MiB |"
    yield "| --- |" + " ---: |" * (4 if before is not None else 3)
    for source in shown:
        yield row(source, [source])
    if rest:
        yield row(f"{len(rest)} more", rest)
    yield row(f"all {len(costs)}", sources)
    if before is not None and total_before > 0:
        yield f"\n{total_before:.1f} s before, {total:.1f} s now: {total / total_before:.2f} of it"


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", help="a configured build folder, or a file that --json wrote")
    parser.add_argument("target", nargs="?", default="all")
    parser.add_argument("-j", "--jobs", type=int, default=1)
    parser.add_argument("--top", type=int, help="only so many files, the rest in one row")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--before", metavar="FILE")
    options = parser.parse_args(arguments[1:])
    before = json.loads(Path(options.before).read_text(encoding="utf-8")) if options.before else None
    if Path(options.build).is_file():
        costs = json.loads(Path(options.build).read_text(encoding="utf-8"))
    else:
        costs = measure_all(options.build, options.target, options.jobs)
    if options.json:
        Path(options.json).write_text(json.dumps(costs, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print("\n".join(table(costs, before, options.top)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
