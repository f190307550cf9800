"""nibble pull, list and rm against a stand-in Hub that cuts connections, lies and refuses."""
import fcntl
import os
import pathlib
import pty
import random
import shutil
import signal
import struct
import subprocess
import tempfile
import termios
import time
import urllib.parse

import support
from hub_support import COMMIT, FOREVER, Hub
from support import NIBBLE, TINY, Case

def gguf_head(architecture):
    """The start of a GGUF file without tensors: one key."""
    text = lambda t: struct.pack("<Q", len(t)) + t.encode()
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("general.architecture") + struct.pack("<I", 8) + text(architecture)


NAME, PART = "openai/gpt-oss-20b", 32 << 20
BIG = random.Random(1).randbytes(2 * PART + 12_345)


class HubCase(Case):
    def setUp(self):
        super().setUp()
        self.hub = Hub()
        self.addCleanup(self.hub.stop)
        self.env = {**{k: v for k, v in os.environ.items() if not k.startswith("HF_") and not k.lower().endswith("_proxy")},
                    "HOME": str(self.dir), "HF_ENDPOINT": self.hub.url}
        self.cache = self.dir / ".cache/huggingface/hub"
        self.folder = self.cache / "models--openai--gpt-oss-20b"
        self.snapshot = self.folder / "snapshots" / COMMIT

    def ok(self, *args, **options):
        return super().ok(*args, **{"env": self.env, "cwd": self.dir, **options})

    def refused(self, code, *args, says=(), **options):
        return super().refused(code, *args, says=says, **{"env": self.env, "cwd": self.dir, **options})

    def fails(self, code, *args, says=()):
        """As refused(), where notes come before the error."""
        result = support.nibble(*args, env=self.env, cwd=self.dir)
        self.assertEqual(result.code, code, result.err)
        last = result.err.splitlines()[-1]
        self.assertTrue(last.startswith("nibble: "), result.err)
        for words in [says] if isinstance(says, str) else says:
            self.assertIn(words, last)
        return result

    def whole(self, files):
        """The snapshot is these files, as links into blobs named by hash, and nothing half done is left."""
        repo = self.hub.repos[NAME]
        found = {str(f.relative_to(self.snapshot)) for f in self.snapshot.rglob("*") if not f.is_dir()}
        self.assertEqual(found, set(files))
        for path in files:
            self.assertFalse(os.path.isabs(os.readlink(self.snapshot / path)))
            self.assertEqual((self.snapshot / path).resolve(), self.folder.resolve() / "blobs" / repo.digest(path))
            self.assertEqual((self.snapshot / path).read_bytes(), repo.files[path], path)
        self.assertEqual((self.folder / "refs/main").read_text(), repo.commit)
        self.assertEqual({f.name for f in (self.folder / "blobs").iterdir()}, {repo.digest(path) for path in files})


class Pull(HubCase):
    def test_a_model_comes_and_runs_by_its_name(self):
        repo = self.hub.add_folder(NAME, TINY)
        repo.files.update({"original/model.safetensors": b"twice", "metal/model.bin": b"thrice", "sub/dir/note.txt": b"", "a b#ü.txt": b"odd name"})
        self.hub.page = 3
        result = self.ok("pull", "gpt-oss-20b")
        self.assertIn(f"pulling {NAME}", result.err)
        wanted = [path for path in repo.files if not path.startswith(("original/", "metal/"))]
        self.whole(wanted)
        self.assertIn("Once", self.ok("run", "gpt-oss-20b", "-p", "Once", "-n", 3).out)
        self.hub.log.clear()
        report = self.ok("pull", NAME, "--json").json()
        self.assertEqual((report["model"], report["commit"], report["path"], report["pulled_bytes"]), (NAME, COMMIT, str(self.snapshot), 0))
        self.assertEqual(sorted(report["files"]), sorted(wanted))
        self.assertFalse([url for _, _, url, _ in self.hub.log if "/resolve/" in url or "/cdn/" in url])  # nothing twice

    def test_without_libcurl_all_else_works(self):
        (self.dir / "lib").mkdir()
        (self.dir / "lib/libcurl.so.4").touch()
        self.env["LD_LIBRARY_PATH"] = str(self.dir / "lib")
        self.fails(3, "pull", NAME, says=("want libcurl", "apt install libcurl4"))
        self.ok("run", TINY, "-p", "Once", "-n", 3)

    def test_large_files_come_in_parts_side_by_side(self):
        self.hub.add(NAME, {"config.json": b"{}", "model.safetensors": BIG})
        self.ok("pull", NAME, "-q")
        self.whole(["config.json", "model.safetensors"])
        ranges = sorted(headers["Range"] for _, headers in self.hub.gets("model.safetensors"))
        self.assertEqual(ranges, sorted(f"bytes={at}-{min(at + PART, len(BIG)) - 1}" for at in range(0, len(BIG), PART)))

    def test_include_and_revision(self):
        repo = self.hub.add(NAME, {"config.json": b"{}", "original/config.json": b"{}", "original/model.safetensors": b"x" * 100, "x.bin": b"y"})
        self.ok("pull", NAME, "--include", "original/*", "--revision", "refs/pr/1")
        self.assertEqual((self.folder / "refs/refs/pr/1").read_text(), repo.commit)
        self.assertEqual(sorted(str(f.relative_to(self.snapshot)) for f in self.snapshot.rglob("*") if f.is_file()), ["original/config.json", "original/model.safetensors"])
        self.assertFalse((self.folder / "refs/main").exists())
        self.ok("pull", NAME, "--include", "*.bin", "--include", "config.*", "--revision", repo.commit)
        self.assertTrue((self.snapshot / "x.bin").exists())
        self.assertFalse((self.folder / "refs" / repo.commit).exists())
        self.refused(2, "pull", NAME, "--include", "*.gguf", says=("no file matches *.gguf", "original/model.safetensors"))
        for revision in ("../../x", "a/../../../x", "/x"):  # it names a file of the cache
            self.refused(2, "pull", NAME, "--include", "x.bin", "--revision", revision, says=f"found {revision}")

    def test_a_model_that_moved_is_followed(self):
        self.hub.add("openai/new-name", {"config.json": b"{}"})
        self.hub.moved["openai/old-name"] = "openai/new-name"
        self.ok("pull", "openai/old-name")

    def test_the_disk_is_asked_first(self):
        self.hub.add(NAME, {"model.safetensors": b"x"})
        self.hub.listed_size["model.safetensors"] = 10**13
        self.fails(5, "pull", NAME, says=("GB free", "found", "nibble rm"))
        self.assertFalse(self.hub.gets("model.safetensors"))


class Choice(HubCase):
    """What of a repository is pulled, and what is looked at before."""

    @classmethod
    def setUpClass(cls):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="nibble_cli_"))
        cls.addClassCleanup(shutil.rmtree, folder)
        for dense, name in (("q8_0", "a"), ("f16", "b")):
            assert support.nibble("convert", "-m", TINY, "-o", folder / f"{name}.gguf", "--dense", dense, "-q").code == 0
        assert support.nibble("convert", "-m", TINY, "-o", folder / "c.gguf", "--part-bytes", 6_000_000, "-q").code == 0
        cls.q8, cls.f16 = (folder / "a.gguf").read_bytes(), (folder / "b.gguf").read_bytes()
        cls.parts = [path.read_bytes() for path in sorted(folder.glob("c-*.gguf"))]

    def setUp(self):
        super().setUp()
        self.assertEqual(len(self.parts), 2)
        small = gguf_head("gpt-oss")
        self.many = {f"it-{quant}.gguf": small + quant.encode() for quant in ("Q3_K_M", "Q4_K_M", "UD-Q4_K_XL", "Q6_K")}
        self.many |= {"it-Q8_0.gguf": self.q8, "it-F16.gguf": self.f16, "config.json": b"{}", "README.md": b"It", "mmproj-F16.gguf": small}
        self.many |= {f"BF16/it-BF16-0000{i + 1}-of-00002.gguf": part for i, part in enumerate(self.parts)}
        self.hub.add("me/many-GGUF", self.many)
        self.here = self.cache / "models--me--many-GGUF/snapshots" / COMMIT

    def asked(self):
        """Files of which bytes were asked for, with the range, in this order."""
        return [(urllib.parse.unquote(url).split(COMMIT + "/")[1], headers.get("Range")) for _, _, url, headers in self.hub.log if "/resolve/" in url]

    def pulled(self):
        return sorted(str(f.relative_to(self.here)) for f in self.here.rglob("*") if f.is_file())

    def test_the_best_of_six_is_chosen_and_its_header_read_first(self):
        notes = self.ok("pull", "me/many-GGUF").err
        self.assertIn("me/many-GGUF: taking Q8_0, the largest (16 and 32 bits come last) that fits", notes)
        for word in ("nibble pull me/many-GGUF:", "Q4_K_M (", "BF16 ("):
            self.assertIn(word, notes)
        self.assertEqual(self.asked()[0], ("it-Q8_0.gguf", "bytes=0-65535"))
        self.assertEqual({path for path, _ in self.asked()}, {"it-Q8_0.gguf"})
        self.assertEqual(self.pulled(), ["it-Q8_0.gguf"])
        self.assertIn("Once", self.ok("run", "me/many-GGUF", "-p", "Once", "-n", 2).out)

    def test_mxfp4_is_taken_before_all_others(self):
        self.many["it-mxfp4.gguf"] = self.q8[:-1] + b"x"
        self.assertIn("taking MXFP4, as gpt-oss was trained", self.ok("pull", "me/many-GGUF").err)
        self.assertEqual(self.pulled(), ["it-mxfp4.gguf"])

    def test_what_does_not_fit_is_not_taken(self):
        self.hub.listed_size = {"it-Q8_0.gguf": 10**13, "it-F16.gguf": 10**13}
        self.ok("pull", "me/many-GGUF", "-q")
        self.assertEqual(self.pulled(), ["it-UD-Q4_K_XL.gguf"])
        self.hub.listed_size = {path: 10**13 + len(data) for path, data in self.many.items()}
        self.hub.log.clear()
        self.assertIn("taking Q6_K, the smallest, as none fits", self.fails(5, "pull", "me/many-GGUF", says="GB free").err)
        self.assertEqual(self.asked(), [("it-Q6_K.gguf", "bytes=0-65535")])

    def test_a_quantisation_is_asked_for_in_any_spelling(self):
        for name in ("me/many-GGUF:q4_k_m", "me/many-GGUF:it-Q4_K_M.gguf", "hf.co/me/many-GGUF:Q4_K_M", f"{self.hub.url}/me/many-GGUF/blob/main/it-Q4_K_M.gguf?download=true"):
            self.ok("pull", name, "-q")
            self.assertEqual(self.pulled(), ["it-Q4_K_M.gguf"], name)
            shutil.rmtree(self.cache)
        for words in (("-hf", "me/many-GGUF:Q4_K_M"), ("--hf-repo", "me/many-GGUF", "--hf-file", "it-Q4_K_M.gguf"), ("--hf-file=it-Q4_K_M.gguf", "-hf=me/many-GGUF:Q8_0")):
            self.ok("pull", *words, "-q")
            self.assertEqual(self.pulled(), ["it-Q4_K_M.gguf"], words)
            shutil.rmtree(self.cache)
        self.refused(2, "pull", "--hf-file", "x.gguf", says="--hf-repo")
        self.refused(2, "pull", "me/many-GGUF:Q5_K_M", says=("want one of its GGUF files", "Q4_K_M (", "Q5_K_M"))
        self.refused(2, "pull", "me/many-GGUF:Q8_0", "--include", "*.gguf", says="--include")
        self.refused(2, "pull", f"{self.hub.url}/me/many-GGUF/tree/v1", "--revision", "v2", says="v1")
        self.hub.add_folder(NAME, TINY)
        self.refused(2, "pull", f"{NAME}:Q4_K_M", says=("no GGUF files", f"nibble pull {NAME} gets the model"))

    def test_a_split_model_in_a_folder_is_pulled_listed_and_run(self):
        self.ok("pull", "me/many-GGUF:bf16", "-q")
        self.assertEqual(self.pulled(), ["BF16/it-BF16-00001-of-00002.gguf", "BF16/it-BF16-00002-of-00002.gguf"])
        row = next(m for m in self.ok("list", "--json").json()["models"] if m["name"] == "me/many-GGUF:BF16")
        self.assertEqual((row["bytes"], row["verdict"]), (sum(map(len, self.parts)), "runs here"))
        for name in ("me/many-GGUF", "me/many-GGUF:BF16", self.here):
            self.assertIn("Once", self.ok("run", name, "-p", "Once", "-n", 2).out)
        (self.here / "BF16/it-BF16-00002-of-00002.gguf").unlink()
        self.refused(5, "run", "me/many-GGUF", "-p", "a", says=("lacks it-BF16-00002-of-00002.gguf", "nibble pull me/many-GGUF:BF16 gets the rest"))
        self.ok("run", "me/many-GGUF", "-y", "-p", "Once", "-n", 1)

    def test_two_of_a_repository_are_two_rows_and_one_can_go(self):
        self.ok("pull", "me/many-GGUF:Q8_0", "-q")
        self.ok("pull", "me/many-GGUF:F16", "-q")
        out = self.ok("list").out
        for quant in ("Q8_0", "F16"):
            self.assertRegex(out, rf"me/many-GGUF:{quant} +gguf +{quant} +[\d.]+ MB +{COMMIT[:8]} main +runs here +/.*it-{quant}.gguf")
        both = self.ok("run", "me/many-GGUF", "-p", "Once", "-n", 1)
        self.assertIn("me/many-GGUF: taking Q8_0 of F16 (", both.err)
        self.assertNotIn("taking", self.ok("run", "me/many-GGUF:f16", "-p", "Once", "-n", 1).err)
        self.refused(2, "rm", "me/many-GGUF:Q4_K_M", "-y", says=("no Q4_K_M", "F16 (", "Q8_0 ("))
        self.assertEqual(self.ok("rm", "hf.co/me/many-GGUF:q8_0", "-y", "--json").json()["bytes"], len(self.q8))
        self.assertEqual(self.pulled(), ["it-F16.gguf"])
        self.assertEqual(len(list((self.here.parents[1] / "blobs").iterdir())), 1)
        self.refused(5, "run", "me/many-GGUF:Q8_0", "-p", "a", says="nibble pull me/many-GGUF:Q8_0 gets it")
        self.ok("rm", "me/many-GGUF:F16", "-y")
        self.assertFalse(self.here.parents[1].exists())

    def test_safetensors_are_taken_before_gguf_files_beside_them(self):
        self.hub.add_folder(NAME, TINY).files["x-Q4_0.gguf"] = b"GGUF"
        self.assertIn(f"taking its safetensors; nibble pull {NAME}:Q4_0 takes a GGUF file", self.ok("pull", NAME).err)
        self.assertFalse((self.snapshot / "x-Q4_0.gguf").exists())

    def test_other_families_are_not_pulled(self):
        want = "only gpt-oss models run here: it/is is a llama"
        index = b'{"weight_map": {"model.layers.0.mlp.experts.0.gate_proj.weight": "a.safetensors"}}'
        for files, info, says in (
                ({"config.json": b"{}", "model.safetensors": b"x"}, {"config": {"model_type": "llama"}}, want),
                ({"config.json": b'{"model_type": "llama"}', "model.safetensors": b"x"}, None, want),
                ({"x-Q8_0.gguf": gguf_head("llama") + b"x" * 10**6}, None, want),
                ({"config.json": b'{"model_type": "gpt_oss", "quantization_config": {"quant_method": "awq"}}', "model.safetensors": b"x"}, None, "quantised by awq"),
                ({"config.json": b'{"model_type": "gpt_oss", "quantization": {"group_size": 32, "bits": 4}}', "model.safetensors": b"x"}, None, "MLX"),
                ({"adapter_config.json": b"{}", "adapter_model.safetensors": b"x"}, None, "LoRA adapter"),
                ({"config.json": b"{}", "model.onnx": b"x"}, None, "ONNX"),
                ({"config.json": b"{}", "a.safetensors": b"x", "model.safetensors.index.json": index}, None, "a tensor for each expert")):
            self.hub.add("it/is", files, info=info)
            self.hub.log.clear()
            self.refused(3, "pull", "it/is", says=says)
            large = [(path, asked) for path, asked in self.asked() if self.hub.large(path) and asked != "bytes=0-65535"]
            self.assertEqual(large, [], says)
            self.assertFalse((self.cache / "models--it--is").exists(), says)
        self.refused(3, "run", "it/is", "-y", "-p", "a", says="a tensor for each expert")

    def test_a_name_that_is_nearly_right(self):
        self.fails(2, "pull", "openai/gpt-oss-21b", says="did you mean openai/gpt-oss-20b?")
        self.fails(2, "pull", "gpt-oss-20", says="did you mean openai/gpt-oss-20b?")
        self.refused(2, "pull", "https://example.com/me/many-GGUF", says="https://huggingface.co/ORG/REPO")


class Faults(HubCase):
    def setUp(self):
        super().setUp()
        self.repo = self.hub.add(NAME, {"config.json": b'{"a": 1}', "model.safetensors": BIG})

    def pulls(self):
        result = self.ok("pull", NAME)
        self.whole(["config.json", "model.safetensors"])
        return result

    def test_cut_connections_go_on_where_they_stopped(self):
        self.hub.faults = {"model.safetensors": ["cut", "cut", "cut"], "config.json": ["cut"]}
        self.pulls()
        starts = [int(headers["Range"][6:].split("-")[0]) for _, headers in self.hub.gets("model.safetensors")]
        self.assertEqual(len(starts), 6)
        self.assertEqual(sum(start % PART == 0 for start in starts), 3, starts)  # the rest begins in the middle

    def test_500_once_503_and_429_are_waited_for(self):
        self.hub.faults = {"api": ["500", "429"], "model.safetensors": ["500", "503", "429"]}
        begun = time.monotonic()
        result = self.pulls()
        self.assertGreater(time.monotonic() - begun, 2)  # 1 s each
        self.assertIn("too many requests (429); again in 1 s", result.err)

    def test_a_server_without_ranges(self):
        self.hub.faults = {"model.safetensors": [("no ranges", FOREVER)]}
        self.pulls()

    def test_a_server_without_ranges_that_cuts(self):
        self.hub.faults = {"model.safetensors": ["cut", ("no ranges", FOREVER)]}
        self.pulls()

    def test_wrong_bytes_are_found_and_removed(self):
        self.hub.faults = {"model.safetensors": ["wrong"]}
        result = self.fails(4, "pull", NAME, says=("model.safetensors: want SHA-256", "removed"))
        self.assertNotIn("\n\n", result.err)
        self.assertEqual([f for f in (self.folder / "blobs").iterdir() if f.name.startswith(self.repo.digest("model.safetensors"))], [])
        self.assertFalse((self.snapshot / "model.safetensors").exists())
        self.refused(5, "run", NAME, "-p", "a", says="nibble pull")
        self.pulls()
        shutil.rmtree(self.cache)
        self.hub.faults = {"config.json": [("wrong", 2)]}  # it is looked at before it is pulled
        self.fails(4, "pull", NAME, says=("config.json: want git's SHA-1", "removed"))

    def test_wrong_lengths_are_told(self):
        self.hub.faults = {"model.safetensors": [("other total", FOREVER)]}
        self.fails(4, "pull", NAME, says=("model.safetensors", f"of {len(BIG)}, found"))
        self.hub.faults = {"model.safetensors": []}
        self.hub.listed_size["model.safetensors"] = len(BIG) - 100
        self.fails(4, "pull", NAME, says="model.safetensors")
        self.hub.listed_size.clear()
        self.hub.faults = {"config.json": ["longer"]}
        self.pulls()

    def test_what_never_ends_well_ends(self):
        self.hub.faults = {"api": [("500", FOREVER)]}
        self.fails(5, "pull", NAME, says=(self.hub.url, "status 500"))
        self.hub.faults = {"api": ["429 for long"]}
        self.fails(5, "pull", NAME, says=("429", "Retry-After: 3600"))
        self.hub.faults = {"model.safetensors": ["404"]}
        self.fails(2, "pull", NAME, says="model.safetensors")

    def test_nobody_there(self):
        self.hub.stop()
        self.env["HF_ENDPOINT"] = "http://127.0.0.1:9"
        self.fails(5, "pull", NAME, says=("http://127.0.0.1:9", "cannot be had"))
        self.hub = Hub()
        self.addCleanup(self.hub.stop)

    def test_odd_answers(self):
        for tree, says in (({"a": 1}, "list of files"), ([{"type": "file", "path": "../x", "size": 1, "oid": "0" * 40}], "../x"),
                           ([{"type": "file", "path": "/etc/x", "size": 1, "oid": "0" * 40}], "/etc/x"),
                           ([{"type": "file", "path": "x", "size": -1, "oid": "0" * 40}], "size and hash of x"),
                           ([{"type": "file", "path": "x", "size": 1 << 60, "oid": "0" * 40}], "size and hash of x"),
                           ([{"type": "file", "path": "x", "size": 1, "oid": "../../../x"}], "size and hash of x")):
            self.hub.tree_override = tree
            self.fails(4, "pull", NAME, says=says)
        self.env["HF_ENDPOINT"] = "ftp://127.0.0.1/x"
        self.fails(5, "pull", NAME)

    def noted_bytes(self):
        """What a pull has noted as done: a line of the whole, then one for each part."""
        lines = [line for state in self.folder.rglob("*.nibble.parts") for line in state.read_text().splitlines()[1:]]
        return sum(map(int, lines))

    def interrupted(self, number):
        """Once a megabyte or two are noted of the model, all of which takes a quarter of a minute."""
        self.hub.bytes_per_s = 2_000_000
        with subprocess.Popen([NIBBLE, "pull", NAME], env=self.env, stderr=subprocess.PIPE) as process:
            while self.noted_bytes() < 1_500_000 and process.poll() is None:
                time.sleep(0.02)
            process.send_signal(number)
            err = process.stderr.read().decode()
            code = process.wait(20)
        self.hub.bytes_per_s = 0
        self.hub.log.clear()
        return code, err

    def test_ctrl_c_leaves_what_can_be_resumed(self):
        code, err = self.interrupted(signal.SIGINT)
        self.assertEqual(code, 130, err)
        self.assertIn(f"nibble pull {NAME} goes on from here", err)
        self.refused(5, "run", NAME, "-p", "a", says=f"nibble pull {NAME}")
        report = self.ok("pull", NAME, "--json").json()
        self.assertLess(report["pulled_bytes"], len(BIG) - 1_000_000)
        self.whole(["config.json", "model.safetensors"])

    def test_so_does_a_kill(self):
        self.assertEqual(self.interrupted(signal.SIGKILL)[0], -9)
        report = self.ok("pull", NAME, "--json").json()
        self.assertLess(report["pulled_bytes"], len(BIG) - 1_000_000)
        self.whole(["config.json", "model.safetensors"])

    def test_what_a_python_tool_left_is_taken_over(self):
        blob = self.folder / "blobs" / self.repo.digest("model.safetensors")
        blob.parent.mkdir(parents=True)
        blob.with_name(blob.name + ".incomplete").write_bytes(BIG[:PART + 1000])
        report = self.ok("pull", NAME, "--json").json()
        self.assertEqual(report["pulled_bytes"], len(BIG) - PART - 1000 + len(self.repo.files["config.json"]))
        self.whole(["config.json", "model.safetensors"])

    def test_two_pulls_do_not_hurt_each_other(self):
        self.hub.bytes_per_s = 20_000_000
        first, second = (subprocess.Popen([NIBBLE, "pull", NAME], env=self.env, stderr=subprocess.PIPE) for _ in range(2))
        errors = [p.communicate(timeout=60)[1].decode() for p in (first, second)]
        self.assertEqual((first.returncode, second.returncode), (0, 0), errors)
        self.assertTrue(any("another program fetches it" in e for e in errors), errors)
        self.whole(["config.json", "model.safetensors"])
        self.assertEqual(len(self.hub.gets("model.safetensors")), 3)


class Access(HubCase):
    def setUp(self):
        super().setUp()
        self.hub.add(NAME, {"config.json": b"{}", "model.safetensors": b"weights"})

    def test_a_gated_model_wants_a_token(self):
        self.hub.gated.add(NAME)
        self.fails(2, "pull", NAME, says=("accept its terms", f"{self.hub.url}/{NAME}", "HF_TOKEN"))
        self.env["HF_TOKEN"] = "hf_other"
        self.fails(2, "pull", NAME, says="accept its terms")
        self.env["HF_TOKEN"] = self.hub.token
        self.ok("pull", NAME)

    def test_the_token_comes_from_its_file_too_and_goes_to_the_hub_alone(self):
        self.hub.gated.add(NAME)
        (self.dir / ".cache/huggingface").mkdir(parents=True)
        (self.dir / ".cache/huggingface/token").write_text(self.hub.token + "\n")
        self.ok("pull", NAME)
        hub = [headers for server, _, _, headers in self.hub.log if server == "hub"]
        cdn = [headers for server, _, _, headers in self.hub.log if server == "cdn"]
        self.assertTrue(all(headers.get("Authorization") == f"Bearer {self.hub.token}" for headers in hub))
        self.assertEqual(len(cdn), 1)
        self.assertNotIn("Authorization", cdn[0])
        self.assertNotIn(self.hub.token, str(cdn))

    def test_a_bad_token_and_a_model_that_is_not_there(self):
        self.env["HF_TOKEN"] = "hf_bad"
        self.fails(2, "pull", NAME, says=("401", "HF_TOKEN was refused"))
        self.env["HF_TOKEN"] = "bad\ntoken"
        self.fails(2, "pull", NAME, says="HF_TOKEN")
        del self.env["HF_TOKEN"]
        self.fails(2, "pull", "openai/gpt-oss-21b", says=("openai/gpt-oss-21b is not at", "openai/gpt-oss-20b"))
        self.fails(2, "pull", NAME, "--revision", "nope", says="no such revision")
        for name in ("../x", "a/b/c", "/etc", "~/x", "a/.."):
            self.refused(2, "pull", name, says="ORG/NAME")

    @support.needs_openssl
    def test_who_the_hub_is_is_checked(self):
        cert, key = support.certificate(self.dir, "IP:127.0.0.1")
        hub = Hub(certificate=(cert, key))
        self.addCleanup(hub.stop)
        hub.add(NAME, {"config.json": b"{}"})
        hub.add("me/large", {"model.safetensors": b"weights"})
        self.env["HF_ENDPOINT"] = hub.url
        self.fails(5, "pull", NAME, says=("cannot be had", "certificate"))
        self.assertEqual(hub.log, [])
        self.env["SSL_CERT_FILE"] = str(cert)
        self.ok("pull", NAME)
        self.fails(5, "pull", "me/large", says=(f"a redirect to {hub.cdn_url}", "not followed"))  # from https to http

    def test_offline(self):
        self.env["HF_HUB_OFFLINE"] = "1"
        self.refused(5, "pull", NAME, says="HF_HUB_OFFLINE")
        self.assertEqual(self.hub.log, [])

    def test_a_name_that_does_not_resolve_is_told_at_once(self):
        self.env["HF_ENDPOINT"] = "http://hub.invalid"
        self.refused(5, "pull", NAME, says=("hub.invalid", "online?"))  # one line: nothing is tried again

    def test_a_proxy_is_used(self):
        proxy, self.env["HF_ENDPOINT"] = self.hub.url, "http://hub.invalid"
        self.env["http_proxy"] = proxy
        self.ok("pull", NAME)
        self.assertTrue(all(url.startswith("http://") for _, _, url, _ in self.hub.log), self.hub.log)  # whole URLs: as a proxy is asked
        self.env["no_proxy"] = "hub.invalid"
        self.fails(5, "pull", NAME, says="hub.invalid")


class Names(HubCase):
    def setUp(self):
        super().setUp()
        self.hub.add_folder(NAME, TINY)

    def test_run_pulls_where_it_is_told_to(self):
        self.refused(5, "run", NAME, "-p", "a", says=f"nibble pull {NAME} gets it")
        self.assertEqual(self.hub.log, [])
        self.assertIn("Once", self.ok("run", "gpt-oss-20b", "-y", "-p", "Once", "-n", 2).out)
        shutil.rmtree(self.cache)
        self.ok("chat", NAME, "--pull", "-p", "Hi", "-n", 2)
        self.assertFalse((self.folder / "refs/v1").exists())
        self.ok("run", NAME, "--revision", "v1", "--pull", "-p", "Once", "-n", 2)
        self.assertTrue((self.folder / "refs/v1").exists())

    def at_terminal(self, reply, *args, columns=0):
        """What is shown to somebody who types this reply once asked."""
        main, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        with subprocess.Popen([NIBBLE, *args], env={**self.env, "TERM": "xterm"}, cwd=self.dir, stdin=terminal, stdout=subprocess.PIPE, stderr=terminal) as process:
            os.close(terminal)
            shown = b""
            while True:
                try:
                    piece = os.read(main, 4096)
                except OSError:
                    break
                if not piece:
                    break
                shown += piece
                if reply and b"[y/N]" in shown:
                    os.write(main, reply)
                    reply = b""
            out = process.stdout.read().decode()
            code = process.wait(support.TIMEOUT_S)
        os.close(main)
        return code, out, shown.decode()

    def test_a_terminal_is_asked(self):
        code, _, shown = self.at_terminal(b"n\n", "run", "gpt-oss-20b", "-p", "Once", "-n", "2")
        self.assertEqual(code, 5, shown)
        self.assertRegex(shown, rf"{NAME} is not on this machine. Pull it, [\d.]+ MB from {self.hub.url} to .*\? \[y/N\]")
        self.assertIn(f"nibble pull {NAME} gets it", shown)
        self.assertFalse(self.snapshot.exists())
        code, out, shown = self.at_terminal(b"y\n", "run", "gpt-oss-20b", "-p", "Once", "-n", "2")
        self.assertEqual(code, 0, shown)
        self.assertIn("Once", out)

    def test_progress_is_shown_on_a_terminal(self):
        self.hub.bytes_per_s = 4_000_000
        code, _, shown = self.at_terminal(b"", "pull", NAME)
        self.assertEqual(code, 0, shown)
        self.assertRegex(shown, r"pulling \[=* *\] .* of .* MB, .*/s, \d+ s left")

    def test_progress_stays_in_one_line(self):
        self.hub.bytes_per_s = 4_000_000
        _, _, pulled = self.at_terminal(b"", "pull", NAME, columns=72)
        _, _, loaded = self.at_terminal(b"", "run", NAME, "-p", "a", "-n", "1", columns=72)  # shows the model's long path
        drawn = [line for line in (pulled + loaded).split("\r") if line.startswith("\x1b[K") and " % " in line]
        for what in ("pulling [=", "checking weights ["):
            self.assertTrue(any(what in line for line in drawn), drawn)
        self.assertTrue(any(line.endswith(" left") for line in drawn), drawn)  # the bar gives way first
        self.assertLess(max(len(line.removeprefix("\x1b[K")) for line in drawn), 72, drawn)

    def test_list_shows_what_is_here(self):
        text = self.ok("list")
        self.assertIn("nibble-tiny", text.out)  # beside the program
        self.ok("pull", NAME, "-q")
        other = self.cache / "models--meta--llama/snapshots/c1"
        other.mkdir(parents=True)
        (other / "config.json").write_text('{"model_type": "llama"}')
        self.ok("convert", "-m", TINY, "-o", "x.gguf", "-q")
        (self.dir / "models").mkdir()
        (self.dir / "x.gguf").rename(self.dir / "models/x.gguf")
        models = {m["name"]: m for m in self.ok("list", "--json").json()["models"]}
        self.assertEqual(set(models), {"x.gguf", "nibble-tiny", NAME})
        self.assertEqual((models["x.gguf"]["format"], models["x.gguf"]["bytes"]), ("gguf", (self.dir / "models/x.gguf").stat().st_size))
        got = models[NAME]
        self.assertEqual((got["format"], got["commit"], got["refs"], got["path"], got["lacks"]), ("safetensors", COMMIT, ["main"], str(self.snapshot), ""))
        self.assertEqual(got["bytes"], sum(len(data) for data in self.hub.repos[NAME].files.values()))
        self.assertRegex(self.ok("list").out, rf"{NAME} +safetensors +MXFP4 +[\d.]+ MB +{COMMIT[:8]} main +runs here")
        (self.snapshot / "model-00001-of-00002.safetensors").unlink()
        self.assertIn("in part: lacks model-00001-of-00002.safetensors", self.ok("list").out)

    def test_rm_asks_and_removes(self):
        self.ok("pull", NAME, "-q")
        self.refused(2, "rm", NAME, says=("-y", str(self.folder)))
        code, _, shown = self.at_terminal(b"no\n", "rm", "gpt-oss-20b")
        self.assertEqual(code, 0, shown)
        self.assertTrue(self.snapshot.exists())
        report = self.ok("rm", "gpt-oss-20b", "-y", "--json").json()
        self.assertEqual((report["model"], report["commits"]), (NAME, [COMMIT]))
        self.assertFalse(self.folder.exists())
        for name in (NAME, "..", "/etc", str(TINY), "nibble-tiny"):
            self.refused(2, "rm", name, "-y")
        self.assertTrue(TINY.exists())


if __name__ == "__main__":
    support.main()
