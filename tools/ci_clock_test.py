#!/usr/bin/env python3
"""Tests of ci_clock.py, with clocks of their own, and of .ci/run, with programs of their own."""

import contextlib
import io
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import ci_clock

ROOT = Path(__file__).resolve().parent.parent
ALL, ONE = (dict(ci_clock.COSTS)[preset] for preset in ("cuda", "h100"))
ARM, ASAN = (cost for _, _, cost in ci_clock.OTHERS)


class CiClockTest(unittest.TestCase):
    def test_with_time_all_architectures_are_built_and_the_rest_follows(self):
        self.assertEqual(ci_clock.choose(left=5000, seconds=3, jobs=2)[0], ["cuda", "arm", "asan"])

    def test_what_fits_is_chosen_by_the_machine_and_not_by_the_clock_alone(self):
        for jobs in (1, 2, 16):
            seconds = 4.0 * jobs
            for preset, cost in (("cuda", ALL), ("h100", ONE)):
                need = 4 * cost + ci_clock.SPARE_SECONDS
                self.assertEqual(ci_clock.choose(need, seconds, jobs)[0], [preset])
                self.assertNotIn(preset, ci_clock.choose(need - 1, seconds, jobs)[0])

    def test_arms_kernels_never_take_the_cuda_builds_time(self):
        need = 4 * ALL + ci_clock.SPARE_SECONDS
        self.assertEqual(ci_clock.choose(need + 4 * ARM, 4, 1)[0], ["cuda", "arm"])
        fits, lines = ci_clock.choose(need + 4 * ARM - 1, 4, 1)
        self.assertEqual(fits, ["cuda"])
        self.assertIn("Arm's kernels left out", lines[-2])

    def test_without_nvcc_what_needs_none_is_all(self):
        fits, lines = ci_clock.choose(left=5000, seconds=3, jobs=2, cuda=False)
        self.assertEqual(fits, ["arm", "asan"])
        self.assertEqual(lines, [f"Arm's kernels take about {round(ARM * 1.5)} s", f"unit tests under sanitizers take about {round(ASAN * 1.5)} s"])

    def test_sanitizers_keep_to_the_usual_time(self):
        need = ALL + ARM + ASAN + ci_clock.SPARE_SECONDS
        self.assertEqual(ci_clock.choose(5000, 1, 1, usual=need)[0], ["cuda", "arm", "asan"])
        self.assertEqual(ci_clock.choose(5000, 1, 1, usual=need - 1)[0], ["cuda", "arm"])

    def test_what_is_left_out_is_said_in_one_line(self):
        fits, lines = ci_clock.choose(left=100, seconds=60, jobs=2)
        self.assertEqual(fits, [])
        self.assertIn("CUDA build left out: 100 s are left", lines[0])
        self.assertIn("Arm's kernels left out", lines[1])
        self.assertIn("unit tests under sanitizers left out", lines[2])
        self.assertEqual(len(lines), 3)

    def test_no_time_left_at_all_is_no_error(self):
        self.assertEqual(ci_clock.choose(left=-5, seconds=3, jobs=2)[0], [])

    def test_what_fits_is_all_that_standard_output_says(self):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            self.assertEqual(ci_clock.main(["ci_clock.py", "5000", "--jobs", "2", "--probe", "3"]), 0)
        self.assertEqual(out.getvalue(), "cuda arm asan\n")
        self.assertIn("ci: the preset cuda takes about", err.getvalue())

    def test_the_probe_is_there(self):
        self.assertTrue((ROOT / ci_clock.PROBE).exists())


class CiRunTest(unittest.TestCase):
    """`make` and `nvcc` are stubs; `clock` stands for ci_clock.py."""

    def run_ci(self, clock, make="exit 0", limit="5400", setup="exit 0"):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (("bin/make", f'echo "make $*"; [ "$1" = test ] && exit 0; {make}'), ("bin/nvcc", ""), ("tools/ci_clock.py", clock),
                               ("tools/setup.sh", setup)):
                file = Path(folder, name)
                file.parent.mkdir(exist_ok=True)
                file.write_text("#!/bin/bash\n" + text + "\n", encoding="utf-8")
                file.chmod(0o755)
            Path(folder, ".ci").mkdir()
            shutil.copy(ROOT / ".ci/run", Path(folder, ".ci/run"))
            environment = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}", "NIBBLE_CI_SECONDS": limit}
            done = subprocess.run([f"{folder}/.ci/run"], env=environment, capture_output=True, text=True, timeout=60)
            return done.returncode, done.stdout + done.stderr

    def test_the_tests_come_first_and_the_chosen_preset_after(self):
        status, said = self.run_ci("echo h100")
        self.assertEqual(status, 0)
        self.assertLess(said.index("make test"), said.index("make cuda PRESET=h100"))

    def test_without_time_nothing_is_built_for_cuda_and_ci_passes(self):
        status, said = self.run_ci("echo 'ci: CUDA build left out' >&2; echo")
        self.assertEqual(status, 0)
        self.assertNotIn("make cuda", said)
        self.assertIn("ci: CUDA build left out", said)

    def test_a_build_that_outlasts_the_limit_is_ended_and_said(self):
        status, said = self.run_ci("echo cuda", make="sleep 30", limit="62")
        self.assertEqual(status, 0)
        self.assertIn("ci: cuda left out: it was not done", said)

    def test_arms_kernels_are_tested_where_their_packages_can_be_had(self):
        status, said = self.run_ci("echo cuda arm")
        self.assertEqual(status, 0)
        self.assertLess(said.index("make cuda PRESET=cuda"), said.index("make test-arm-kernels"))
        status, said = self.run_ci("echo arm", setup='[ "$*" = arm ] && exit 1')
        self.assertEqual(status, 0)
        self.assertNotIn("make test-arm-kernels", said)
        self.assertIn("ci: Arm's kernels left out", said)
        status, said = self.run_ci("echo arm", make="exit 2")
        self.assertEqual(status, 1)
        self.assertIn("make test-arm-kernels failed", said)

    def test_unit_tests_run_under_sanitizers(self):
        status, said = self.run_ci("echo asan")
        self.assertEqual(status, 0)
        self.assertIn("make asan ROOMS=", said)
        status, said = self.run_ci("echo asan", make="exit 2")
        self.assertEqual(status, 1)
        self.assertIn("make asan failed", said)

    def test_a_build_that_fails_fails(self):
        status, said = self.run_ci("echo cuda", make="exit 2")
        self.assertEqual(status, 1)
        self.assertIn("make cuda failed", said)

    def test_a_clock_that_fails_fails(self):
        status, said = self.run_ci("exit 1")
        self.assertEqual(status, 1)
        self.assertIn("ci_clock.py failed", said)


if __name__ == "__main__":
    unittest.main()
