#!/usr/bin/env python3
"""Tests of check_native.py, on ELF files as nvcc 13.0 puts them into objects."""

import contextlib
import io
import struct
import tempfile
import unittest
from pathlib import Path

import check_native

# (MxResults, InputType)
DOWN, GATE_UP, DOWN_OF_NIBBLES = (1, 3), (0, 3), (1, 4)
ATTEND = "attention"
QMMA, OMMA, HMMA, F2FP, NOP, LDG = 0x747A, 0x747F, 0x723C, 0x723E, 0x7918, 0x7981


def symbol(instance, policy):
    if instance == ATTEND:
        return f"_ZN6nibble7backend4cuda22any_attend_prefill_fp8INS1_7Fp8TileINS1_9ScaledFp8INS1_{len(policy)}{policy}EEEEEEEvNS1_13AttentionArgsE"
    results, codes = instance
    return f"_ZN6nibble7backend4cuda13sm121_mx_gemmINS1_{len(policy)}{policy}ENS1_6MxTileILNS1_6layout7PackingE2ELNS1_9InputTypeE{codes}ELi64EEELNS1_9MxResultsE{results}EEEvNS1_8GemmArgsE"


def elf(kernels, policy, machine=190, card=121):
    """kernels: instance -> first halves of its instructions."""
    names, body, sections = b"\0", b"", [bytes(64)]
    for instance, opcodes in kernels.items():
        code = b"".join(struct.pack("<H14x", opcode) for opcode in opcodes)
        sections.append(struct.pack("<IIQQQQ", len(names), 1, 0, 0, 64 + len(body), len(code)) + bytes(24))
        names += f".text.{symbol(instance, policy)}".encode() + b"\0"
        body += code
    sections.append(struct.pack("<IIQQQQ", 0, 3, 0, 0, 64 + len(body), len(names)) + bytes(24))
    body += names
    head = b"\x7fELF" + bytes(14) + struct.pack("<H", machine) + bytes(20) + struct.pack("<QI", 64 + len(body), card << 8 | 2) + bytes(6)
    return head + struct.pack("<HHH", 64, len(sections), len(sections) - 1) + body + b"".join(sections)


class CheckNativeTest(unittest.TestCase):
    def check(self, kernels, emulated=None, attend=(QMMA, F2FP), **kind):
        """The exit status and what was printed for objects of these kernels, and of the tests' (the same without them)."""
        with tempfile.TemporaryDirectory() as folder:
            for suffix, policy, own in (("", "NativeMx", kernels), ("_twin", "EmulatedMx", kernels if emulated is None else emulated)):
                objects = Path(folder, "src", f"nibble_cuda_sm121{suffix}.dir", "arch")
                objects.mkdir(parents=True)
                other_card = elf({DOWN: [NOP]}, policy, card=90)  # a fatbin's other code
                (objects / f"mx_gemm{suffix}.cu.o").write_bytes(b"\x7fELF of the host " + other_card + elf(own, policy, **kind))
                if policy == "NativeMx":
                    (objects / "attend.cu.o").write_bytes(b"\x7fELF of the host " + elf({ATTEND: attend}, policy, **kind))
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                status = check_native.main(["check_native.py", folder])
            return status, out.getvalue(), err.getvalue()

    def test_kernels_of_native_products_pass_and_are_listed(self):
        status, out, _ = self.check({DOWN: [QMMA, QMMA, NOP], GATE_UP: [QMMA, F2FP, LDG]})
        self.assertEqual(status, 0)
        self.assertRegex(out, r"sm121_mx_gemm<NativeMx.* 3 +2 +0 +0 +0")
        self.assertIn("3 kernels, 2 with an emulated product, 0 problems", out)

    def test_attention_without_its_product_or_conversion_fails(self):
        for attend, said in (((NOP, F2FP), "want QMMA.SF, found none"), ((QMMA, NOP), "want F2FP, found none"), ((QMMA, F2FP, HMMA), "want no HMMA, found 1")):
            status, _, err = self.check({DOWN: [QMMA]}, attend=attend)
            self.assertEqual(status, 1)
            self.assertIn("any_attend_prefill_fp8", err)
            self.assertIn(said, err)

    def test_a_kernel_without_its_product_fails(self):
        status, _, err = self.check({DOWN: [NOP], GATE_UP: [QMMA, F2FP]})
        self.assertEqual(status, 1)
        self.assertIn("want QMMA.SF, found none", err)

    def test_another_product_fails(self):
        status, _, err = self.check({DOWN: [QMMA, HMMA]})
        self.assertEqual(status, 1)
        self.assertIn("want no HMMA, found 1", err)

    def test_nibbles_have_a_product_of_their_own(self):
        status, _, _ = self.check({DOWN_OF_NIBBLES: [OMMA]})
        self.assertEqual(status, 0)
        status, _, err = self.check({DOWN_OF_NIBBLES: [QMMA]})
        self.assertEqual(status, 1)
        self.assertIn("want OMMA.SF, found none", err)
        self.assertIn("want no QMMA.SF, found 1", err)

    def test_rounding_without_the_hardware_s_conversion_fails(self):
        status, _, err = self.check({GATE_UP: [QMMA]})
        self.assertEqual(status, 1)
        self.assertIn("want F2FP, found none", err)

    def test_tests_that_run_another_kernel_fail(self):
        status, _, err = self.check({DOWN: [QMMA, LDG]}, emulated={DOWN: [HMMA, LDG, LDG]})
        self.assertEqual(status, 1)
        self.assertIn("want 1 LDG with EmulatedMx too, found 2", err)
        status, _, err = self.check({DOWN: [QMMA]}, emulated={GATE_UP: [HMMA]})
        self.assertEqual(status, 1)
        self.assertIn("want an instance with EmulatedMx, found none", err)

    def test_code_of_other_machines_and_cards_is_none(self):
        for kind in ({"machine": 62}, {"card": 90}):
            status, _, err = self.check({DOWN: [QMMA]}, **kind)
            self.assertEqual(status, 1)
            self.assertIn("want sm121_mx_gemm, found none", err)


if __name__ == "__main__":
    unittest.main()
