#!/usr/bin/env python3
"""Tests of compile_cost.py."""

import contextlib
import io
import json
import tempfile
import unittest
from pathlib import Path

import compile_cost

CXX = "c++ -O3 -MD -MT a.cpp.o -MF a.cpp.o.d -o a.cpp.o -c /repo/src/a.cpp"


def cost(seconds, mib=100):
    return {"cpu_seconds": seconds, "peak_mib": mib}


class CompileCostTest(unittest.TestCase):
    def test_launchers_are_stripped_and_the_source_is_named_from_the_root(self):
        for launchers in ("", "/usr/bin/ccache ", "/repo/tools/keep_ptxas.sh /usr/bin/ccache "):
            source, words = compile_cost.compile_of(launchers + CXX, "/repo")
            self.assertEqual(source, "src/a.cpp")
            self.assertEqual(words[0], "c++")

    def test_what_compiles_nothing_is_left_out(self):
        for command in ("ar qc libx.a a.o", ": && c++ a.o -o nibble && :", "cmake -E touch x"):
            self.assertIsNone(compile_cost.compile_of(command, "/repo"))

    def test_nothing_is_written_into_the_build(self):
        words = compile_cost.redirected(compile_cost.compile_of(CXX, "/repo")[1], "/scratch")
        self.assertEqual(words[words.index("-o") + 1], "/scratch/object.o")
        self.assertEqual(words[words.index("-MF") + 1], "/scratch/object.d")
        self.assertEqual(words[-1], "/repo/src/a.cpp")

    def test_a_compilation_is_measured_with_what_it_starts(self):
        burn = "x = 0\nfor i in range(3000000): x += i"
        used = compile_cost.measure(["sh", "-c", f"python3 -c '{burn}'; true"], ".")
        self.assertGreater(used["cpu_seconds"], 0.05)
        self.assertGreater(used["peak_mib"], 1)
        self.assertIsNone(compile_cost.measure(["false"], "."))

    def test_a_source_of_two_targets_counts_twice(self):
        costs = {}
        compile_cost.add(costs, "a", cost(1.5, 10))
        compile_cost.add(costs, "a", cost(2, 30))
        self.assertEqual(costs, {"a": cost(3.5, 30)})

    def test_the_dearest_come_first_and_the_rest_in_one_row(self):
        rows = list(compile_cost.table({"a": cost(1), "b": cost(6, 200), "c": cost(3)}, top=1))
        self.assertEqual(rows[2:], ["| b | 6.0 | 60.0 % | 200 |", "| 2 more | 4.0 | 40.0 % | 100 |", "| all 3 | 10.0 | 100.0 % | 200 |"])

    def test_before_and_now_stand_in_one_row_also_of_files_that_are_gone_or_new(self):
        rows = list(compile_cost.table({"a": cost(1), "new": cost(4)}, before={"a": cost(2), "gone": cost(8)}))
        self.assertEqual(rows[2], "| gone | 8.0 | 0.0 | 0.0 % | 0 |")
        self.assertEqual(rows[3], "| new | 0.0 | 4.0 | 80.0 % | 100 |")
        self.assertEqual(rows[4], "| a | 2.0 | 1.0 | 20.0 % | 100 |")
        self.assertEqual(rows[5], "| all 2 | 10.0 | 5.0 | 100.0 % | 100 |")
        self.assertIn("10.0 s before, 5.0 s now: 0.50 of it", rows[6])

    def test_a_file_of_an_earlier_run_is_shown_without_compiling(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "costs.json")
            file.write_text(json.dumps({"a": cost(1)}), encoding="utf-8")
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                self.assertEqual(compile_cost.main(["compile_cost.py", str(file), "--before", str(file)]), 0)
            self.assertIn("1.00 of it", out.getvalue())


if __name__ == "__main__":
    unittest.main()
