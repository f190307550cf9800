"""One cache for Nibble and for Python's huggingface_hub, unmodified: each reads what the other pulled from the stand-in Hub."""
import json
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import support  # noqa: E402
from hub_support import COMMIT, Hub  # noqa: E402
from support import TINY  # noqa: E402

NAME, GGUF = "openai/gpt-oss-20b", "ggml-org/gpt-oss-20b-GGUF"

DOWNLOAD = "import sys, huggingface_hub as h; print(h.snapshot_download(sys.argv[1], token=False))"
SCAN = """import json, huggingface_hub as h
found = h.scan_cache_dir()
print(json.dumps({"warnings": [str(w) for w in found.warnings], "size": found.size_on_disk,
                  "repos": {r.repo_id: {v.commit_hash: [sorted(v.refs), sorted(f.file_name for f in v.files)] for v in r.revisions} for r in found.repos}}))"""


class Cache(support.Case):
    def setUp(self):
        super().setUp()
        self.hub = Hub()
        self.addCleanup(self.hub.stop)
        self.repo = self.hub.add_folder(NAME, TINY)
        self.env = {**{k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}, "HF_HOME": str(self.dir / "hf"),
                    "HF_ENDPOINT": self.hub.url, "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1"}

    def python(self, program, *args, **env):
        done = subprocess.run([sys.executable, "-c", program, *args], capture_output=True, text=True, env={**self.env, **env}, timeout=300, check=False)
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        return done.stdout.strip().splitlines()[-1]

    def nibble(self, *args, **env):
        return self.ok(*args, env={**self.env, **env}, cwd=self.dir)

    def test_nibble_reads_what_python_pulled(self):
        path = self.python(DOWNLOAD, NAME)
        self.assertIn("Once", self.nibble("run", NAME, "-p", "Once", "-n", 2).out)
        listed = {m["name"]: m for m in self.nibble("list", "--json").json()["models"]}
        self.assertEqual((listed[NAME]["path"], listed[NAME]["refs"], listed[NAME]["lacks"]), (path, ["main"], ""))
        self.assertEqual(self.nibble("pull", NAME, "--json").json()["pulled_bytes"], 0)

    def test_python_reads_what_nibble_pulled(self):
        self.hub.add(GGUF, {"README.md": b"# x", "a/b/x.gguf": b"GGUF" * 1000})
        self.nibble("pull", NAME)
        self.nibble("pull", GGUF)
        self.hub.log.clear()
        self.assertEqual(self.python(DOWNLOAD, NAME, HF_HUB_OFFLINE="1"), str(self.dir / "hf/hub/models--openai--gpt-oss-20b/snapshots" / COMMIT))
        self.assertEqual(self.hub.log, [])
        found = json.loads(self.python(SCAN))
        self.assertEqual(found["warnings"], [])
        self.assertEqual(found["repos"], {NAME: {COMMIT: [["main"], sorted(self.repo.files)]}, GGUF: {COMMIT: [["main"], ["README.md", "x.gguf"]]}})
        self.assertEqual(found["size"], sum(len(data) for repo in self.hub.repos.values() for data in repo.files.values()))
        self.python(DOWNLOAD, NAME)  # online: nothing is fetched again
        self.assertEqual([url for _, method, url, _ in self.hub.log if method == "GET" and "/resolve/" in url or "/cdn/" in url and method == "GET"], [])

    def test_a_half_done_pull_is_no_trap(self):
        self.hub.faults = {"model-00001-of-00002.safetensors": ["wrong"]}
        self.assertEqual(support.nibble("pull", NAME, env=self.env).code, 4)
        self.hub.faults.clear()
        path = pathlib.Path(self.python(DOWNLOAD, NAME))
        for name, data in self.repo.files.items():
            self.assertEqual((path / name).read_bytes(), data, name)
        self.assertEqual(json.loads(self.python(SCAN))["warnings"], [])


if __name__ == "__main__":
    support.main()
