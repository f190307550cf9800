"""llama-benchy, unmodified, against nibble serve: its table has a row per test and nothing failed. No network."""
import hashlib
import os
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import support  # noqa: E402
from serve_support import Server  # noqa: E402

BOOK_URL = "http://127.0.0.1:9/book.txt"  # never asked: its text lies in the cache


class Benchy(support.Case):
    def test_it_measures(self):
        cache = self.dir / ".cache/llama-benchy"
        cache.mkdir(parents=True)
        (cache / (hashlib.md5(BOOK_URL.encode()).hexdigest() + ".txt")).write_text((support.TINY / "heldout.txt").read_text())
        server = Server("--served-model-name", "nibble-tiny")
        self.addCleanup(server.stop)
        environment = {**os.environ, "HOME": str(self.dir), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        benchy = pathlib.Path(sys.executable).parent / "llama-benchy"
        command = [benchy, "--base-url", f"http://127.0.0.1:{server.port}/v1", "--model", "nibble-tiny", "--tokenizer", support.TINY,
                   "--book-url", BOOK_URL, "--pp", "128", "--tg", "16", "--depth", "0", "256", "--runs", "2", "--concurrency", "1", "4",
                   "--latency-mode", "generation"]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment, timeout=600, check=False)
        self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-3000:])
        for row in ("pp128", "tg16", "pp128 @ d256", "tg16 @ d256"):
            self.assertIn(row, done.stdout, done.stdout[-3000:])
        print(done.stdout[-2500:])
        self.assertEqual(server.metric("nibble:request_success_total", finished_reason="error"), 0)


if __name__ == "__main__":
    support.main()
