#!/usr/bin/env python3
"""Holds the kernels of arch/sm121 against the instructions that they are written for.

    tools/check_native.py [build folder, build/cuda without one]

Reads the device code in the objects (ELF files for the card, not compressed: src/backend/cuda/CMakeLists.txt) and counts
opcodes. Fails where a kernel of SM121's own lacks its block-scaled product, multiplies in another way, or makes codes
without the conversion of the hardware; and where the instance that tests run on other cards, with an emulated product,
has other copies, loads, stores or barriers than it. Prints a table. Standard library and c++filt.
"""

import re
import struct
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from check_spills import demangle

OBJECTS = ("nibble_cuda_sm121{}.dir/**/mx_gemm*.o", "nibble_cuda_sm121{}.dir/**/attend*.o")  # of the product; of the tests with _twin
CUDA_MACHINE, CARDS = 190, (120, 121)  # e_machine of device code; compute capability, in e_flags
OPCODE_BITS = 0xFFF  # of an instruction's 16 bytes, the first
# As nvdisasm 13 names them for sm_121a. F2FP is any conversion of two floats; nothing else is converted so in gate_up.
OPCODES = {0x47A: "QMMA.SF", 0x47F: "OMMA.SF", 0x23C: "HMMA", 0x23E: "F2FP"}
# What moves data and waits: the same whatever multiplies.
AROUND = {0xFAE: "LDGSTS", 0x981: "LDG", 0x984: "LDS", 0x388: "STS", 0x986: "STG", 0x9AF: "LDGDEPBAR", 0x91A: "DEPBAR", 0xB1D: "BAR"}
# A family's instances must have its product and no other. InputType 4 is MXFP4 codes; of MxResults 0 results leave as
# codes.
FAMILIES = ("sm121_mx_gemm", "any_attend_prefill_fp8")
TWINS = ("sm121_mx_gemm",)  # that tests run on other cards
NIBBLES = re.compile(r"InputType\)4")
ROUNDING = re.compile(r"MxResults\)0")
FORBIDDEN = "HMMA"


@dataclass
class Kernel:
    symbol: str
    card: int  # compute capability
    name: str = ""
    counts: Counter = field(default_factory=Counter)
    instructions: int = 0

    @property
    def family(self):
        return re.sub(r"^void ", "", self.name).split("(")[0].split("<")[0]


def kernels_of(data):
    """Every kernel of the ELF files for a card within these bytes."""
    at = data.find(b"\x7fELF", 1)
    while at >= 0:
        (machine,), (flags,) = struct.unpack_from("<H", data, at + 18), struct.unpack_from("<I", data, at + 48)
        if machine == CUDA_MACHINE and flags >> 8 & 0xFF in CARDS:
            yield from kernels_of_elf(data[at:], flags >> 8 & 0xFF)
        at = data.find(b"\x7fELF", at + 1)


def kernels_of_elf(elf, card):
    (headers,) = struct.unpack_from("<Q", elf, 40)
    size, count, names_idx = struct.unpack_from("<HHH", elf, 58)
    sections = [struct.unpack_from("<IIQQQQ", elf, headers + i * size) for i in range(count)]
    names = sections[names_idx][4]
    for section in sections:
        name = elf[names + section[0] : elf.index(b"\0", names + section[0])].decode()
        if not name.startswith(".text."):
            continue
        code = elf[section[4] : section[4] + section[5]]
        kernel = Kernel(name.removeprefix(".text."), card, instructions=len(code) // 16)
        for (first,) in struct.iter_unpack("<H14x", code):
            opcode = first & OPCODE_BITS
            kernel.counts[OPCODES.get(opcode) or AROUND.get(opcode, "other")] += 1
        yield kernel


def problems(kernels):
    found = [f"want {family}, found none" for family in FAMILIES if family not in {k.family for k in kernels}]
    for k in kernels:
        if k.family not in FAMILIES:
            continue
        own, other = ("OMMA.SF", "QMMA.SF") if NIBBLES.search(k.name) else ("QMMA.SF", "OMMA.SF")
        rounds = ROUNDING.search(k.name) or k.family == "any_attend_prefill_fp8"
        wanted = (own, "F2FP") if rounds else (own,)
        found += [f"{k.name}: want {opcode}, found none" for opcode in wanted if not k.counts[opcode]]
        found += [f"{k.name}: want no {opcode}, found {k.counts[opcode]}" for opcode in (other, FORBIDDEN) if k.counts[opcode]]
    return found


def differences(kernels, emulated):
    """Of the instances that tests run from those of the product."""
    twins = {(k.card, k.name.replace("EmulatedMx", "NativeMx")): k for k in emulated}
    for k in kernels:
        if k.family not in TWINS:
            continue
        if (k.card, k.name) not in twins:
            yield f"{k.name}: want an instance with EmulatedMx, found none"
            continue
        for opcode in AROUND.values():
            if k.counts[opcode] != (other := twins[k.card, k.name].counts[opcode]):
                yield f"{k.name}: want {k.counts[opcode]} {opcode} with EmulatedMx too, found {other}"


def named_kernels(build, kind):
    kernels = [k for objects in OBJECTS for file in sorted(build.rglob(objects.format(kind))) for k in kernels_of(file.read_bytes())]
    for kernel, name in zip(kernels, demangle([k.symbol for k in kernels])):
        kernel.name = name
    return kernels


def main(arguments):
    build = Path(arguments[1] if len(arguments) > 1 else "build/cuda")
    kernels, emulated = named_kernels(build, ""), named_kernels(build, "_twin")
    shown = [*OPCODES.values(), *AROUND.values()]
    print(f"{'card':4} {'kernel':64} {'instructions':>12} " + " ".join(f"{opcode:>7}" for opcode in shown))
    for k in kernels + emulated:
        short = re.sub(r"\(layout::|\(int\)|\(GemmArgs\)|^void ", "", k.name)
        print(f"{k.card:4} {short[:64]:64} {k.instructions:12} " + " ".join(f"{k.counts[opcode]:7}" for opcode in shown))
    found = problems(kernels) + list(differences(kernels, emulated))
    for problem in found:
        print(f"check_native: {problem}", file=sys.stderr)
    print(f"check_native: {len(kernels)} kernels, {len(emulated)} with an emulated product, {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
