#!/usr/bin/env python3
"""Tests of check_layers.py: each rule on a small tree that breaks it, and on one that does not."""

import contextlib
import io
import tempfile
import unittest
from pathlib import Path

import check_layers

README = """# Map
```arrows
app               -> engine backend backend/* base
engine            -> backend base
backend           -> base
backend/reference -> backend base
backend/cuda      -> backend base
base              ->
```
"""


class CheckLayersTest(unittest.TestCase):
    def problems(self, files, readme=README):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in {"src/README.md": readme, **files}.items():
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            return check_layers.check_tree(folder).problems

    def assert_one(self, files, *parts, readme=README):
        problems = self.problems(files, readme)
        self.assertEqual(len(problems), 1, problems)
        for part in parts:
            self.assertIn(part, problems[0])

    def test_a_clean_tree_passes(self):
        self.assertEqual(
            self.problems(
                {
                    "src/base/error.h": "#pragma once\n#include <string>\n",
                    "src/backend/backend.h": '#pragma once\n#include "base/error.h"\n',
                    "src/backend/reference/oracle.cpp": '#include "backend/backend.h"\n#include "backend/reference/oracle.h"\n',
                    "src/backend/cuda/kernels/moe.cu": '#include "base/error.h"\n#include <cuda_runtime.h>\n',
                    "src/engine/speculative/draft.cpp": '#include "backend/backend.h"\n#include "engine/engine.h"\n',
                    "src/engine/engine_test.cpp": '#include "engine/testing/loop.h"\n#include <gtest/gtest.h>\n',
                    "src/engine/testing/loop.h": "#pragma once\n#include <gmock/gmock.h>\n",
                    "src/backend/testing/dims.h": '#pragma once\n#include "backend/backend.h"\n',
                    "src/backend/cuda/testing/gemm.h": '#pragma once\n#include "backend/testing/dims.h"\n',
                    "src/app/main.cpp": '#include "backend/cuda/cuda_backend.h"\n#include "backend/backend.h"\n',
                    "src/app/options/options.cpp": 'const char* v = std::getenv("NIBBLE");\n',
                }
            ),
            [],
        )

    def test_a_kernel_is_called_as_its_function_is(self):
        names = '#pragma once\nstruct A {\n  static constexpr Kernel kA{"any_a"}, kB{"any_b<bf16>"};\n};\n'
        functions = "__global__ void __launch_bounds__(f(1), 2) any_a(int x) {}\n"
        self.assert_one({"src/backend/cuda/names.h": names, "src/backend/cuda/a.cu": functions}, "kernel any_b<bf16>: no __global__")
        both = functions + "template <class T>\n__global__ void any_b(T x) {}\n"
        self.assertEqual(self.problems({"src/backend/cuda/names.h": names, "src/backend/cuda/a.cu": both}), [])

    def test_an_arrow_against_the_table_is_named_by_file_and_line(self):
        self.assert_one(
            {"src/base/error.cpp": '\n#include "engine/engine.h"\n'}, "src/base/error.cpp:2:", "base may not include engine"
        )

    def test_arrows_are_not_transitive(self):
        readme = README.replace("app               -> engine backend backend/* base", "app -> engine")
        self.assert_one({"src/app/main.cpp": '#include "base/error.h"\n'}, "app may not include base", readme=readme)

    def test_siblings_do_not_see_each_other(self):
        self.assert_one({"src/backend/cuda/a.cpp": '#include "backend/reference/a.h"\n'}, "may not include backend/reference")

    def test_the_contract_does_not_see_its_backends(self):
        self.assert_one({"src/backend/a.cpp": '#include "backend/cuda/a.h"\n'}, "backend may not include backend/cuda")

    def test_an_arrow_to_the_contract_does_not_reach_a_backend(self):
        self.assert_one({"src/engine/a.cpp": '#include "backend/cuda/a.h"\n'}, "engine may not include backend/cuda")

    def test_tests_follow_the_arrows_too(self):
        self.assert_one({"src/base/a_test.cpp": '#include "engine/a.h"\n'}, "base may not include engine")

    def test_test_libraries_and_helpers_stay_in_tests(self):
        self.assert_one({"src/base/a.cpp": "#include <gtest/gtest.h>\n"}, "src/base/a.cpp:1:", "x_test")
        for helper in ("base/testing.h", "base/a_testing.h", "base/testing/a.h", "base/emulation/a.h"):
            self.assert_one({"src/base/a.cpp": f'#include "{helper}"\n'}, "src/base/a.cpp:1:", "for tests only")
        self.assert_one({"src/backend/testing/a.h": '#pragma once\n#include "engine/a.h"\n'}, "backend may not include engine")

    def test_a_folder_that_is_no_room_fails(self):
        self.assert_one({"src/misc/a.cpp": ""}, "src/misc/a.cpp:1:", "no room")
        self.assert_one({"src/a.cpp": ""}, "src/a.cpp:1:", "no room")

    def test_a_backend_that_is_not_listed_fails(self):
        self.assert_one({"src/backend/metal/a.cpp": ""}, "no room")

    def test_an_include_of_no_room_fails(self):
        self.assert_one({"src/base/a.cpp": '#include "misc/a.h"\n'}, "no room")

    def test_includes_have_the_form_room_and_file(self):
        for target in ("error.h", "../base/error.h", "base/../engine/a.h", "./error.h"):
            self.assert_one({"src/base/a.cpp": f'#include "{target}"\n'}, '"room/file.h"')
        self.assert_one({"src/engine/a.cpp": "#include <base/error.h>\n"}, '"room/file.h"')

    def test_spaces_in_the_directive_hide_nothing(self):
        self.assert_one({"src/base/a.cpp": ' #  include  "engine/a.h"\n'}, "may not include")

    def test_the_environment_has_one_reader(self):
        self.assert_one({"src/engine/a.cpp": '\n\nauto v = getenv("X");\n'}, "src/engine/a.cpp:3:", "environment")
        self.assert_one({"src/app/main.cpp": 'auto v = ::secure_getenv("X");\n'}, "environment")

    def test_comments_are_not_code(self):
        source = '// getenv\n/* #include "engine/a.h"\ngetenv */ const char* url = "http://x";  // getenv\n'
        self.assertEqual(self.problems({"src/base/a.cpp": source}), [])

    def test_a_comment_sign_in_a_string_hides_nothing(self):
        self.assert_one({"src/base/a.cpp": 'f("//"); g(\'"\'); getenv("X");\n'}, "src/base/a.cpp:1:", "environment")

    def test_iostream_formatting_and_std_regex_are_refused(self):
        for header in ("iostream", "sstream", "iomanip", "regex"):
            self.assert_one({"src/base/a.cpp": f"#include <{header}>\n"}, header)

    def test_cuda_headers_stay_in_the_cuda_room(self):
        self.assert_one({"src/engine/a.cpp": "#include <cuda_runtime.h>\n"}, "CUDA")

    def test_dear_libraries_have_few_readers(self):
        self.assert_one({"src/app/run/run.cpp": "#include <isocline.h>\n"}, "src/app/run/run.cpp:1:", "only app/run/line_editor.cpp includes isocline")
        self.assert_one({"src/engine/a.cpp": "#include <boost/asio.hpp>\n"}, "includes boost/")
        self.assertEqual(self.problems({"src/app/run/line_editor.cpp": "#include <isocline.h>\n"}), [])

    def test_headers_start_with_pragma_once(self):
        self.assert_one({"src/base/a.h": "int x;\n"}, "src/base/a.h:1:", "#pragma once")
        self.assert_one({"src/backend/cuda/a.cuh": "// #pragma once\n"}, "#pragma once")

    def test_benches_are_checked_too(self):
        self.assert_one({"bench/timer.h": "int n;\n"}, "bench/timer.h:1:", "#pragma once")

    def test_a_broken_table_is_named(self):
        self.assert_one({}, "src/README.md:1:", "one ```arrows block", readme="# Map\n")
        self.assert_one({}, "`a` points to `b`", readme="```arrows\na -> b\n```\n")
        self.assert_one({}, "one `room -> rooms` line", readme="```arrows\na ->\na ->\n```\n")
        self.assert_one({}, "one `room -> rooms` line", readme="```arrows\na b\n```\n")

    def test_the_program_prints_and_returns_failure(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as out:
            Path(folder, "src/base").mkdir(parents=True)
            Path(folder, "src/README.md").write_text(README, encoding="utf-8")
            self.assertEqual(check_layers.main(["", folder]), 0)
            Path(folder, "src/base/a.h").write_text("", encoding="utf-8")
            self.assertEqual(check_layers.main(["", folder]), 1)
        self.assertIn("src/base/a.h:1:", out.getvalue())
        self.assertIn("longest files: src/base/a.h 0", out.getvalue())

    def test_the_house_table_itself_parses(self):
        readme = Path(__file__).resolve().parent.parent / "src" / "README.md"
        allowed = check_layers.parse_arrows(readme.read_text(encoding="utf-8"))
        self.assertEqual(allowed["base"], {"base"})
        self.assertIn("backend/cpu", allowed["app"])
        self.assertNotIn("text", allowed["engine"])


if __name__ == "__main__":
    unittest.main()
