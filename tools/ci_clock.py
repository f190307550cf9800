#!/usr/bin/env python3
"""What still fits into CI's time: a CUDA build, "cuda" (all architectures) or "h100" (one), then "arm", Arm's kernels, and
"asan", unit tests under sanitizers.

    tools/ci_clock.py <seconds left> [--usual SECONDS] [--no-cuda] [--jobs N] [--probe SECONDS]

Prints them on standard output, in their order, and why on standard error. What a build takes is told by a probe: one known
source, compiled once per job at the same time and past any ccache, so neither a warm cache nor a quick test run promises too
much. --usual: what is left of the time that CI should take, which the sanitizers keep to. --no-cuda: there is no nvcc. --probe: what it took, instead of trying. Standard library and c++.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROBE = "src/checkpoint/strict_json.cpp"
# CPU seconds of a build, nothing of it cached, over those of the probe: "cuda" in a cold run of CI on 2026-11-26, 665 s on
# two cores where the probe took 5.6; "h100" in its old proportion to that.
COSTS = (("cuda", 240), ("h100", 120))
# The same of what follows, tests included: Arm's kernels estimated from some of their files, 2026-11-25; sanitizers took 925 CPU
# seconds beside other builds, 2026-11-30.
OTHERS = (("arm", "Arm's kernels", 30), ("asan", "unit tests under sanitizers", 240))
SPARE_SECONDS = 300  # to link, and because an estimate is one


def probe(jobs):
    """Seconds that `jobs` compilations of the probe take side by side."""
    command = ["c++", "-std=c++20", "-O2", "-Isrc", "-c", PROBE, "-o", os.devnull]
    started = time.monotonic()
    running = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) for _ in range(jobs)]
    failed = [process.wait() for process in running]
    if any(failed):
        raise SystemExit(f"ci_clock: {' '.join(command)} fails")
    return time.monotonic() - started


def choose(left, seconds, jobs, cuda=True, usual=None):
    """(what fits, a line about each)."""
    fits, lines, spent = [], [], SPARE_SECONDS
    estimates = [(preset, round(cost * seconds / jobs)) for preset, cost in (COSTS if cuda else ())]
    for preset, estimate in estimates:
        if estimate + spent <= left:
            fits.append(preset)
            lines.append(f"the preset {preset} takes about {estimate} s of {left} s left")
            spent += estimate
            break
    if cuda and not fits:
        lines.append(f"CUDA build left out: {left} s are left, for one architecture it wants about {estimates[-1][1] + SPARE_SECONDS} s")
    for name, what, cost in OTHERS:
        estimate = round(cost * seconds / jobs)
        if estimate + spent <= (left if name == "arm" or usual is None else min(left, usual)):
            fits.append(name)
            lines.append(f"{what} take about {estimate} s")
            spent += estimate
        else:
            lines.append(f"{what} left out: they want about {estimate} s")
    return fits, lines


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("left", type=int)
    parser.add_argument("--usual", type=int)
    parser.add_argument("--no-cuda", action="store_true")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--probe", type=float)
    options = parser.parse_args(arguments[1:])
    seconds = options.probe if options.probe is not None else probe(options.jobs)
    fits, lines = choose(options.left, seconds, options.jobs, cuda=not options.no_cuda, usual=options.usual)
    for line in lines:
        print(f"ci: {line}", file=sys.stderr)
    print(*fits)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
