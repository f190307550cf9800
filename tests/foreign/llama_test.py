"""nibble verify and nibble load against a server that is not ours: llama-cpp-python's, unmodified, on the CPU, with a GGUF that
nibble convert writes. No network."""
import pathlib
import socket
import subprocess
import sys
import time
import unittest
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import support  # noqa: E402
from schema import problems  # noqa: E402

FAILED, PATIENCE_S = 1, 120


class LlamaCppPython:
    def __init__(self, model, *flags):
        with socket.create_server(("127.0.0.1", 0)) as s:
            self.port = s.getsockname()[1]
        command = [sys.executable, "-m", "llama_cpp.server", "--model", model, "--n_ctx", 4096, "--host", "127.0.0.1", "--port", self.port, *flags]
        self.process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.url = f"http://127.0.0.1:{self.port}"
        end = time.monotonic() + PATIENCE_S
        while not self.up():
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError("the server does not start")
            time.sleep(0.1)

    def up(self):
        try:
            with urllib.request.urlopen(f"{self.url}/v1/models", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def stop(self):
        self.process.terminate()
        self.process.wait()


class Foreign(support.Case):
    def server(self, *flags):
        model = self.dir / "nibble-tiny.gguf"
        self.ok("convert", "-m", support.TINY, "-o", model, "-q")
        server = LlamaCppPython(model, *flags)
        self.addCleanup(server.stop)
        return server

    def test_verify_passes_where_it_lets_requests_wait(self):
        server = self.server("--interrupt_requests", "False")
        result = support.nibble("verify", "--base-url", server.url, "--json")
        print(support.nibble("verify", "--base-url", server.url, "--level", "1,3,4").out)
        self.assertEqual(result.code, 0, result.out)
        found = result.json()
        self.assertEqual(problems(found), [])
        skipped = {check["check"] for check in found["checks"] if check["verdict"] == "skipped"}
        self.assertEqual(skipped, {"it counts tokens", "nothing is held", "this level"})

    def test_verify_sees_that_it_breaks_answers_off_for_others(self):
        result = support.nibble("verify", "--base-url", self.server().url, "--level", 3)
        self.assertEqual(result.code, FAILED)
        self.assertIn("no finish_reason", result.out)

    def test_load(self):
        server = self.server("--interrupt_requests", "False")
        load = ("load", "--base-url", server.url, "--isl", 60, "--osl", 16, "--no-ignore-eos", "--num-prompts", 8, "-c", "1,4")
        for flags in (("--prompt-form", "text"), ("--endpoint", "chat"), ("--endpoint", "chat", "--turns", 3, "--think-time", 0.01)):
            result = support.nibble(*load, *flags, "--json")
            self.assertEqual(result.code, 0, result.err)
            found = result.json()
            self.assertEqual(problems(found), [])
            for row in found["rows"]:
                self.assertEqual((row["requests"]["failed"], row["tokens_counted_by"]), (0, "events"), row["failures"])
            print(support.nibble(*load, *flags).out)
        ids = support.nibble(*load)  # it takes no token ids: the message says what helps
        self.assertEqual(ids.code, 5)
        self.assertIn("--prompt-form text", ids.err)


if __name__ == "__main__":
    support.main()
