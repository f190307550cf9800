"""tools/check_package.py on what objdump and ninja say of programs that would not run elsewhere."""
import unittest

import check_package as package

SYMBOLS = """
0000000000000000      DF *UND*	0000000000000000 (GLIBC_2.34) pthread_create
0000000000000000      DF *UND*	0000000000000000 (GLIBC_{}) arc4random
0000000000000000      DF *UND*	0000000000000000 (OPENSSL_3.0.0) SSL_new
0000000000a3f2c0 g    DO .bss	0000000000000008  NIBBLE_9.9 own
"""
LISTED = [{"name": "fmt", "licence": "MIT", "text": "fmt.txt", "headers": ["fmt"]},
          {"name": "libc", "licence": "LGPL", "contained": False, "libraries": ["libc.so.6"]}]


class Package(unittest.TestCase):
    def test_the_newest_symbol_counts(self):
        symbols = package.versions(SYMBOLS.format("2.36"))
        self.assertEqual(symbols, {"GLIBC": (2, 36), "OPENSSL": (3, 0, 0)})
        self.assertEqual(package.program_faults([], symbols), ["wants a symbol of GLIBC_2.36: want at most GLIBC_2.35"])
        self.assertEqual(package.program_faults([], package.versions(SYMBOLS.format("2.4"))), [])  # not 2.40
        self.assertEqual(package.program_faults([], symbols, {}), [])  # where nothing older is at hand
        (fault,) = package.program_faults([], package.versions("0000 DF *UND*	0000 (CURL_OPENSSL_4) curl_free"))
        self.assertIn("CURL_OPENSSL_4", fault)

    def test_libraries_that_differ_are_named(self):
        libraries = package.needed("  NEEDED               libfmt.so.9\n  NEEDED               libc.so.6\n  SONAME  x.so\n")
        self.assertEqual(libraries, ["libfmt.so.9", "libc.so.6"])
        (fault,) = package.program_faults(libraries, {})
        self.assertIn("libfmt.so.9", fault)

    def test_folders_of_headers(self):
        deps = "x.o: #deps 4\n    /usr/include/fmt/core.h\n    /usr/include/x86_64-linux-gnu/curl/curl.h\n    /usr/include/stdio.h\n    ../src/a.h\n"
        self.assertEqual(package.included_folders(deps), {"fmt", "curl"})

    def test_what_no_notice_names(self):
        faults = package.notice_faults(LISTED, {"fmt", "curl"}, ["libc.so.6", "libz.so.1"], {"fmt", "katex"}, lambda path: path not in ("fmt.txt", "third_party/katex/LICENSE"))
        self.assertEqual([next(word for word in ("curl", "libz", "katex", "fmt.txt") if word in fault) for fault in faults],
                         ["curl", "libz", "katex", "fmt.txt"])
        self.assertEqual(package.notice_faults(LISTED, {"fmt"}, ["libc.so.6"], {"fmt"}, lambda path: True), [])
        bare = [{"name": "x", "licence": "MIT"}]
        self.assertEqual(package.notice_faults(bare, set(), [], set(), lambda path: True), ["x: want its licence's text"])


if __name__ == "__main__":
    unittest.main()
