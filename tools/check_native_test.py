#!/usr/bin/env python3
"""Tests of check_native.py, on ELF files as nvcc 13.0 puts them into objects."""

import contextlib
import io
import struct
import tempfile
import unittest
from pathlib import Path

import check_native

MANGLED = "_ZN6nibble7backend4cuda13sm121_mx_gemmINS1_8NativeMxENS1_6MxTileILi64EEELNS1_6layout8RowOrderE{}EEEvNS1_8GemmArgsE"
DOWN, GATE_UP = MANGLED.format(0), MANGLED.format(1)
QMMA, HMMA, F2FP, NOP = 0x747A, 0x723C, 0x723E, 0x7918


def elf(kernels, machine=190):
    """kernels: symbol -> first halves of its instructions."""
    names, body, sections = b"\0", b"", [bytes(64)]
    for symbol, opcodes in kernels.items():
        code = b"".join(struct.pack("<H14x", opcode) for opcode in opcodes)
        sections.append(struct.pack("<IIQQQQ", len(names), 1, 0, 0, 64 + len(body), len(code)) + bytes(24))
        names += f".text.{symbol}".encode() + b"\0"
        body += code
    sections.append(struct.pack("<IIQQQQ", 0, 3, 0, 0, 64 + len(body), len(names)) + bytes(24))
    body += names
    head = b"\x7fELF" + bytes(14) + struct.pack("<H", machine) + bytes(20) + struct.pack("<Q", 64 + len(body)) + bytes(10)
    return head + struct.pack("<HHH", 64, len(sections), len(sections) - 1) + body + b"".join(sections)


class CheckNativeTest(unittest.TestCase):
    def check(self, *elves):
        """The exit status and what was printed for an object with these in it, behind its own head."""
        with tempfile.TemporaryDirectory() as folder:
            objects = Path(folder, "src", "nibble_cuda_sm121.dir", "arch")
            objects.mkdir(parents=True)
            (objects / "mx_gemm.cu.o").write_bytes(b"\x7fELF of the host " + b"".join(elves))
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                status = check_native.main(["check_native.py", folder])
            return status, out.getvalue(), err.getvalue()

    def test_kernels_of_native_products_pass_and_are_listed(self):
        status, out, _ = self.check(elf({DOWN: [QMMA, QMMA, NOP], GATE_UP: [QMMA, F2FP]}))
        self.assertEqual(status, 0)
        self.assertRegex(out, r"sm121_mx_gemm.* 3 +2 +0 +0 +0")
        self.assertIn("2 kernels, 0 problems", out)

    def test_a_kernel_without_its_product_fails(self):
        status, _, err = self.check(elf({DOWN: [NOP], GATE_UP: [QMMA, F2FP]}))
        self.assertEqual(status, 1)
        self.assertIn("want QMMA.SF, found none", err)

    def test_an_emulated_product_fails(self):
        status, _, err = self.check(elf({DOWN: [QMMA, HMMA]}))
        self.assertEqual(status, 1)
        self.assertIn("want no HMMA, found 1", err)

    def test_rounding_without_the_hardware_s_conversion_fails(self):
        status, _, err = self.check(elf({GATE_UP: [QMMA]}))
        self.assertEqual(status, 1)
        self.assertIn("want F2FP, found none", err)

    def test_files_of_other_machines_and_no_kernels_fail(self):
        for elves in ((), (elf({DOWN: [QMMA]}, machine=62),)):
            status, _, err = self.check(*elves)
            self.assertEqual(status, 1)
            self.assertIn("want sm121_mx_gemm, found none", err)


if __name__ == "__main__":
    unittest.main()
