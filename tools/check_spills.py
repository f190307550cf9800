#!/usr/bin/env python3
"""Holds the CUDA kernels of a build with the preset cuda against what GB10 (SM121) has.

    tools/check_spills.py [build folder, build/cuda without one]

Reads what ptxas said of each kernel (tools/keep_ptxas.sh keeps it beside the objects). Fails when a kernel of a decode
step, or attention in FP8, spills registers for sm_121a, or asks there for more static shared memory than a block has, or for any where its
launches plan the whole of a block's (plan_test.cpp holds those plans to what a block has). Prints a table of these
kernels, and of any other that spills. Standard library and c++filt.
"""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

CHECKED = "sm_121a"
BLOCK_BYTES = 99 * 1024  # of shared memory that a block may have
PLANNED = {"gemv", "any_attend_decode"}  # launches may plan all of them as dynamic ones
# Only these are not for decode steps: prompts, uploads, measuring.
OTHER = re.compile(r"(any|sm\d+)_(gemm|attend_prefill|route_sums|peak|read_all|moe_group_tiles|nothing)|pack_|(quantize|translate)$")

UNSPILLED = {"any_attend_prefill_fp8"}  # of these, but as near to the last register

TEST_CODE = re.compile(r"nibble_cuda\w*_(emulated|probe|twin)\.dir")

ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(\S+)'")
SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")


@dataclass
class Kernel:
    symbol: str
    arch: str
    name: str = ""
    registers: int = 0
    static: int = 0
    spilled: int = 0

    @property
    def family(self):
        return re.sub(r"^void ", "", self.name).split("(")[0].split("<")[0]

    @property
    def decodes(self):
        return not OTHER.match(self.family)

    @property
    def checked(self):
        return self.arch == CHECKED and (self.decodes or self.family in UNSPILLED)


def parse(text):
    kernels = []
    for line in text.splitlines():
        if entry := ENTRY.search(line):
            kernels.append(Kernel(symbol=entry[1], arch=entry[2]))
        elif spills := SPILLS.search(line):
            # A function that was not inlined has properties too: its spills are the kernel's.
            kernels[-1].spilled += int(spills[1]) + int(spills[2])
        elif used := USED.search(line):
            kernels[-1].registers, kernels[-1].static = int(used[1]), int(used[2] or 0)
    return kernels


def demangle(symbols):
    said = subprocess.run(["c++filt"], input="\n".join(symbols), capture_output=True, text=True, check=True).stdout
    return [re.sub(r"nibble::backend::cuda::|\(anonymous namespace\)::", "", name) for name in said.splitlines()]


def problems(kernels):
    checked = [k for k in kernels if k.checked]
    if not any(k.decodes for k in checked):
        return [f"want decode kernels for {CHECKED}, found none: build with the preset cuda (make cuda)"]
    found = []
    for k in checked:
        limit = 0 if k.family in PLANNED else BLOCK_BYTES
        if k.spilled:
            found.append(f"{k.name}: want no spills on {k.arch}, found {k.spilled} bytes")
        if k.static > limit:
            found.append(f"{k.name}: want at most {limit} bytes of static shared memory on {k.arch}, found {k.static}")
    return found


def table(kernels):
    families = {}
    for k in kernels:
        families.setdefault((k.arch, not k.decodes, k.family), []).append(k)
    yield f"{'':8} {'':7} {'kernel':28} {'instances':>9} {'registers':>9} {'static B':>8} {'spilled B':>9}"
    for (arch, other, family), own in sorted(families.items()):
        if own[0].checked or any(k.spilled for k in own):
            yield (
                f"{arch:8} {'other' if other else 'decode':7} {family[:28]:28} {len(own):9} {max(k.registers for k in own):9}"
                f" {max(k.static for k in own):8} {sum(k.spilled for k in own):9}"
            )


def main(arguments):
    build = Path(arguments[1] if len(arguments) > 1 else "build/cuda")
    kernels = []
    for file in sorted(build.rglob("nibble_cuda*.dir/**/*.ptxas")):
        if file.with_suffix("").exists() and not TEST_CODE.search(str(file)):  # of an object that there is
            kernels += parse(file.read_text())
    for kernel, name in zip(kernels, demangle([k.symbol for k in kernels])):
        kernel.name = name
    print("\n".join(table(kernels)))
    found = problems(kernels)
    for problem in found:
        print(f"check_spills: {problem}", file=sys.stderr)
    print(f"check_spills: {len(kernels)} kernels, {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
