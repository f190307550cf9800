"""nibble on CPUs that lack what others have, by qemu-user's: an instruction that such a CPU has not ends the program, which
NIBBLE_CPU_MASK cannot show. Skipped, and counted as skipped, where that qemu is not installed."""
import os
import shutil
import subprocess
import sys
import unittest

from support import NIBBLE, SANITIZED, TINY

PROCESSOR = "aarch64" if os.environ.get("NIBBLE_PROCESSOR") in ("aarch64", "arm64") else "x86_64"
QEMU = shutil.which(f"qemu-{PROCESSOR}") or shutil.which(f"qemu-{PROCESSOR}-static")
# What multiplies each one's experts.
CPUS = {"x86_64": {"core2duo": "f32_mxfp4 (baseline)", "Nehalem": "f32_mxfp4 (baseline)", "SandyBridge": "f32_mxfp4 (baseline)",
                   "Haswell": "int8_mxfp4 (avx2)"},
        "aarch64": {"cortex-a72": "f32_mxfp4 (neon)", "cortex-a76": "int8_mxfp4 (neon dotprod)", "max": "int8_mxfp4 (neon i8mm)"}}[PROCESSOR]
TELLERS = ("Nehalem", "Haswell") if PROCESSOR == "x86_64" else CPUS
PLAN = ("inspect", "-m", TINY, "--plan", "-p", 64, "-b", 1)
STORY = ("run", "-m", TINY, "-p", "Once upon a time", "-n", 2, "--temperature", 0, "-t", 1, "-q")


class OldCpus(unittest.TestCase):
    def run_on(self, cpu, *arguments):
        done = subprocess.run([QEMU, "-cpu", cpu, NIBBLE, *map(str, arguments)], capture_output=True, timeout=600, check=False)
        self.assertEqual(done.returncode, 0, f"{cpu} {arguments}: {done.stderr.decode()}")
        return done.stdout.decode()

    def test_each_takes_the_best_it_has(self):
        for cpu, product in CPUS.items():
            self.assertIn(f"multiply_{product}", self.run_on(cpu, *PLAN), cpu)

    def test_a_story_is_told(self):
        for cpu in TELLERS:
            self.assertEqual(self.run_on(cpu, *STORY), "Once upon a time, there\n", cpu)


if __name__ == "__main__":
    if QEMU is None or SANITIZED:
        print(f"skipped: CPUs that have less: want qemu-{PROCESSOR} (Debian's qemu-user) and a build without sanitizers")
        sys.exit(77)
    unittest.main(verbosity=1)
