"""nibble ps, and that the dashboard names what the server tells."""
import json
import os
import re
import signal
import stat
import subprocess
import unittest

from serve_support import Server
from support import SOURCE, Case


class Ps(Case):
    def setUp(self):
        super().setUp()
        self.env = {**os.environ, "XDG_RUNTIME_DIR": str(self.dir), "http_proxy": "http://127.0.0.1:9"}
        self.records = self.dir / "nibble"

    def server(self, *flags):
        server = Server(*flags, env={"XDG_RUNTIME_DIR": str(self.dir)})
        self.addCleanup(server.process.kill)
        return server

    def listed(self):
        return self.ok("ps", "--json", env=self.env).json()["servers"]

    def test_none_runs(self):
        self.assertEqual(self.listed(), [])
        self.assertIn("nibble serve", self.ok("ps", env=self.env).err)
        self.assertEqual(self.ok("ps", "--json", env={k: v for k, v in self.env.items() if k not in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "HOME")}).json()["servers"], [])

    def test_servers_their_load_and_their_end(self):
        first, second = self.server("--api-key", "secret"), self.server("--served-model-name", "mine")
        (record,) = self.records.glob(f"{first.process.pid}.json")
        self.assertEqual(stat.S_IMODE(record.stat().st_mode), 0o600)
        self.assertEqual(stat.S_IMODE(self.records.stat().st_mode), 0o700)
        rows = {row["pid"]: row for row in self.listed()}
        self.assertEqual(set(rows), {first.process.pid, second.process.pid})
        row = rows[second.process.pid]
        self.assertEqual((row["model"], row["url"], row["state"], row["running"]), ("mine", f"http://127.0.0.1:{second.port}", "serving", 0))
        stream = second.connect()
        stream.request("POST", "/v1/completions", json.dumps({"prompt": "Once", "max_tokens": 100_000, "ignore_eos": True, "stream": True}))
        try:
            Server.until(lambda: next(r for r in self.listed() if r["model"] == "mine")["running"] == 1)
            row = next(r for r in self.listed() if r["model"] == "mine")
            self.assertGreater(row["tokens_per_second"], 1)
            table = self.ok("ps", env=self.env).out.splitlines()
            self.assertEqual(len(table), 3)
            self.assertRegex(table[2], rf"^ *{second.process.pid}  mine +http://127.0.0.1:{second.port} .* serving +1 ")
        finally:
            stream.close()
        self.assertEqual(first.stop(), 0)
        self.assertEqual([row["model"] for row in self.listed()], ["mine"])
        second.process.send_signal(signal.SIGSTOP)
        self.assertEqual(self.listed()[0]["state"], "no answer")
        second.process.kill()
        second.process.wait()
        self.assertEqual(self.listed(), [])
        self.assertEqual(list(self.records.iterdir()), [])  # what it left is taken away

    def test_files_that_are_no_records(self):
        self.records.mkdir()
        other = subprocess.Popen(["sleep", "100"])
        self.addCleanup(other.kill)
        texts = ("", "{", "[]", '{"pid": "x"}', json.dumps({"pid": other.pid, "started_ticks": 1, "since": 0, "url": "http://127.0.0.1:1", "model": "m"}))
        for at, text in enumerate(texts):
            (self.records / f"{at}.json").write_text(text)
        self.assertEqual(self.listed(), [])
        self.assertEqual(list(self.records.iterdir()), [])

    def test_what_is_no_file_is_left_alone(self):
        self.records.mkdir(parents=True)
        (self.records / "1.json").mkdir()
        os.mkfifo(self.records / "2.json")  # reading it would wait
        self.assertEqual(self.listed(), [])
        self.assertEqual(len(list(self.records.iterdir())), 2)

    def test_a_folder_that_cannot_be_written_is_told(self):
        self.records.write_text("no folder")
        server = self.server()
        server.wait_log("nibble ps will not see this server: ")
        self.assertEqual(server.stop(), 0)

    def test_the_dashboard_names_what_the_server_tells(self):
        server = self.server()
        told = set(re.findall(r"^(nibble:\w+)", server.get("/metrics").raw.decode(), re.MULTILINE))
        board = json.loads((SOURCE / "docs/grafana.json").read_text())
        named = {name for panel in board["panels"] for target in panel["targets"] for name in re.findall(r"nibble:\w+", target["expr"])}
        self.assertIn("nibble:build_info", named)
        server.request("POST", "/v1/completions", {"prompt": "Once", "max_tokens": 2})
        told |= set(re.findall(r"^(nibble:\w+)", server.get("/metrics").raw.decode(), re.MULTILINE))
        self.assertEqual(named - told, set())
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()
