#!/usr/bin/env python3
"""Tests of check_spills.py, on what ptxas 13.0 prints."""

import contextlib
import io
import tempfile
import unittest
from pathlib import Path

import check_spills

GEMV = "_ZN6nibble7backend4cuda4gemvEi"  # nibble::backend::cuda::gemv(int)
ATTEND = "_ZN6nibble7backend4cuda22any_attend_prefill_fp8Ei"
GEMM = "_ZN6nibble7backend4cuda8any_gemmEi"


def said(symbol, arch="sm_121a", spill=(0, 0), used="Used 96 registers, used 9 barriers"):
    return f"""ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '{symbol}' for '{arch}'
ptxas info    : Function properties for {symbol}
    0 bytes stack frame, {spill[0]} bytes spill stores, {spill[1]} bytes spill loads
ptxas info    : {used}
ptxas info    : Compile time = 1.000 ms
"""


class CheckSpillsTest(unittest.TestCase):
    def check(self, *kernels, object_exists=True):
        """The exit status and what was printed for an object of these kernels."""
        with tempfile.TemporaryDirectory() as folder:
            objects = Path(folder, "src", "nibble_cuda_sm90.dir", "kernels")
            objects.mkdir(parents=True)
            (objects / "a.cu.o.ptxas").write_text("".join(kernels), encoding="utf-8")
            if object_exists:
                (objects / "a.cu.o").touch()
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                status = check_spills.main(["check_spills.py", folder])
            return status, out.getvalue(), err.getvalue()

    def test_kernels_that_spill_nothing_pass_and_are_listed(self):
        status, out, _ = self.check(said(GEMV), said(GEMV, arch="sm_90a"))
        self.assertEqual(status, 0)
        self.assertRegex(out, r"sm_121a +decode +gemv +1 +96 +0 +0")
        self.assertNotIn("sm_90a", out)
        self.assertIn("2 kernels, 0 problems", out)

    def test_a_decode_kernel_that_spills_for_sm121_fails(self):
        for spill in ((8, 0), (0, 8)):
            status, _, err = self.check(said(GEMV, spill=spill))
            self.assertEqual(status, 1)
            self.assertIn("gemv(int): want no spills on sm_121a, found 8 bytes", err)

    def test_spills_elsewhere_are_only_shown(self):
        status, out, _ = self.check(said(GEMV), said(GEMV, arch="sm_90a", spill=(4, 4)), said(GEMM, spill=(4, 4)))
        self.assertEqual(status, 0)
        self.assertRegex(out, r"sm_90a +decode +gemv .* 8\n")
        self.assertRegex(out, r"sm_121a +other +any_gemm .* 8\n")

    def test_attention_in_fp8_that_spills_for_sm121_fails(self):
        status, _, err = self.check(said(GEMV), said(ATTEND, spill=(4, 4)))
        self.assertEqual(status, 1)
        self.assertIn("any_attend_prefill_fp8(int): want no spills on sm_121a, found 8 bytes", err)
        status, out, _ = self.check(said(GEMV), said(ATTEND))
        self.assertEqual(status, 0)
        self.assertRegex(out, r"sm_121a +other +any_attend_prefill_fp8")

    def test_static_shared_memory_is_bounded(self):
        used = "Used 40 registers, used 1 barriers, {} bytes smem, 400 bytes cmem[0]"
        self.assertIn("want at most 0 bytes", self.check(said(GEMV, used=used.format(16)))[2])
        embed = "_ZN6nibble7backend4cuda5embedEi"
        self.assertEqual(self.check(said(embed, used=used.format(99 * 1024)))[0], 0)
        self.assertEqual(self.check(said(embed, used=used.format(99 * 1024 + 1)))[0], 1)

    def test_nothing_to_check_is_a_failure(self):
        for kernels, exists in (((), True), ((said(GEMV, arch="sm_90a"),), True), ((said(GEMV),), False)):
            status, _, err = self.check(*kernels, object_exists=exists)
            self.assertEqual(status, 1)
            self.assertIn("want decode kernels for sm_121a, found none", err)


if __name__ == "__main__":
    unittest.main()
