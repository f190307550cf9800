"""A model by name: every command finds the same files, in the same places, and says where it looked."""
import os
import shutil

import support
from support import TINY, Case

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PROMPT = "Once upon a time"


def cached(cache, repo, model=TINY, commit=COMMIT):
    """A model in Hugging Face's layout."""
    folder = cache / ("models--" + repo.replace("/", "--"))
    snapshot = folder / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (folder / "blobs").mkdir(exist_ok=True)
    for file in (f for f in model.iterdir() if f.is_file()):
        blob = folder / "blobs" / ("b" + file.name)
        shutil.copy(file, blob)
        (snapshot / file.name).symlink_to(os.path.relpath(blob, snapshot))
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs/main").write_text(commit)
    return snapshot


class Names(Case):
    def setUp(self):
        super().setUp()
        self.env = {**{k: v for k, v in os.environ.items() if not k.startswith("HF_")}, "HOME": str(self.dir)}
        self.cache = self.dir / ".cache/huggingface/hub"

    def ok(self, *args, **options):
        return super().ok(*args, env=self.env, cwd=self.dir, **options)

    def refused(self, code, *args, says=(), **options):
        return super().refused(code, *args, says=says, env=self.env, cwd=self.dir, **options)

    def commands(self, *model):
        return {"run": ("run", *model, "-p", PROMPT, "-n", 1, "--json"), "chat": ("chat", *model, "-p", "Hi", "-n", 1, "--json"),
                "inspect": ("inspect", *model, "--json"), "bench": ("bench", *model, "-p", 1, "-n", 0, "-r", 1, "--json")}

    def test_every_command_takes_a_name_of_the_cache(self):
        cached(self.cache, "openai/gpt-oss-20b")
        for name in ("openai/gpt-oss-20b", "gpt-oss-20b"):
            for command in (*self.commands(name).values(), *self.commands("-m", name).values()):
                self.ok(*command)
            self.ok("perplexity", "-m", name, "-p", PROMPT)
            self.ok("compare", "-m", name, "-p", PROMPT)
            self.ok("convert", "-m", name, "-o", self.dir / "x.gguf")
            self.assertEqual(self.ok("tokenize", "-m", name, "--count", "-p", PROMPT).out, "4\n")
        self.assertEqual(self.ok(*self.commands("gpt-oss-20b")["bench"]).json()["model"], "gpt-oss-20b")
        settings = self.ok("serve", "gpt-oss-20b", "--print-config", "--json").json()
        self.assertEqual((settings["model"]["value"], settings["model"]["origin"]), ("gpt-oss-20b", "command line"))
        self.assertIn(str(self.cache), settings["model"]["resolved"])

    def test_a_revision_is_that_one_or_an_error(self):
        name = "openai/gpt-oss-20b"
        other = cached(self.cache, name, commit="f" * 40)
        cached(self.cache, name)
        (self.cache / "models--openai--gpt-oss-20b/refs/v1").write_text("f" * 40)
        for revision, commit in (("v1", "f" * 40), ("f" * 40, "f" * 40), ("main", COMMIT), (COMMIT, COMMIT)):
            for command in (("serve", name, "--print-config", "--json"), ("serve", "gpt-oss-20b", "--print-config", "--json")):
                self.assertIn(commit, self.ok(*command, "--revision", revision).json()["model"]["resolved"])
        self.ok("run", name, "--revision", "v1", "-p", PROMPT, "-n", 1)
        missing = (f"no model {name} of revision v2", f"nibble pull {name} --revision v2 gets it")
        self.refused(5, "run", name, "--revision", "v2", "-p", PROMPT, says=missing)
        self.refused(5, "serve", name, "--revision", "v2", says=missing)
        (other / "model-00002-of-00002.safetensors").unlink()
        self.refused(5, "inspect", name, "--revision", "v1", says=("lacks model-00002-of-00002.safetensors", f"nibble pull {name} --revision v1"))
        for model in (TINY, "nibble-tiny"):
            self.refused(2, "inspect", model, "--revision", "main", says=("--revision: want a model of the Hub", str(model)))
        self.refused(2, "serve", "--revision", "main", says="want a model")

    def test_variables_say_where_the_cache_is(self):
        for variable, below in (("HF_HUB_CACHE", ""), ("HF_HOME", "hub"), ("XDG_CACHE_HOME", "huggingface/hub")):
            cached(self.dir / variable / below, "me/mine")
            plain = dict(self.env)
            self.env[variable] = str(self.dir / variable)
            self.ok("inspect", "me/mine")
            self.env = plain
        self.refused(5, "inspect", "me/mine")

    def test_gguf_of_the_cache_and_of_models(self):
        (self.dir / "gguf").mkdir()
        self.ok("convert", "-m", TINY, "-o", self.dir / "gguf/tiny.gguf", "--part-bytes", 1_000_000)
        snapshot = cached(self.cache, "ggml-org/gpt-oss-20b-GGUF", self.dir / "gguf")
        self.assertGreater(len(list(snapshot.iterdir())), 2)
        for name in ("ggml-org/gpt-oss-20b-GGUF", "gpt-oss-20b", snapshot, sorted(snapshot.iterdir())[0]):
            self.ok(*self.commands(name)["run"])
        last = sorted(snapshot.iterdir())[-1]
        last.resolve().unlink()
        self.refused(5, "run", "gpt-oss-20b", "-p", "a", says=(f"lacks {last.name}", "nibble pull ggml-org/gpt-oss-20b-GGUF"))
        (self.dir / "models").mkdir()
        self.ok("convert", "-m", TINY, "-o", self.dir / "models/mine.gguf")
        self.ok("inspect", "mine")

    def test_folders_that_people_point_at(self):
        snapshot = cached(self.cache, "openai/gpt-oss-20b")
        for path in (snapshot.parents[1], f"{snapshot.parents[1]}/", snapshot):
            self.assertEqual(self.ok("inspect", path, "--json").json()["dims"]["layers"], 8)
        original = self.dir / "only/original"
        shutil.copytree(TINY, original)
        self.ok("inspect", self.dir / "only")

    def test_the_small_model_beside_the_program_has_a_name(self):
        self.ok(*self.commands("nibble-tiny")["chat"])
        self.assertEqual(self.ok("tokenize", "-m", "nibble-tiny", "--count", "-p", PROMPT).out, "4\n")

    def test_a_model_that_is_not_here_is_told_with_what_gets_it(self):
        for command in self.commands("openai/gpt-oss-120b").values():
            self.refused(5, *command, says=("there is no model openai/gpt-oss-120b", "models/openai/gpt-oss-120b", str(self.cache), "nibble pull openai/gpt-oss-120b"))
        self.refused(5, "inspect", "gpt-oss-120b", says="nibble pull openai/gpt-oss-120b")
        self.refused(5, "inspect", "./gpt-oss-120b", says="nothing there")
        self.refused(5, "inspect", "/none/x.gguf", says="nothing there")

    def test_a_download_that_was_cut_is_no_model(self):
        snapshot = cached(self.cache, "openai/gpt-oss-20b")
        (snapshot / "model-00002-of-00002.safetensors").resolve().unlink()
        self.refused(5, "run", "gpt-oss-20b", "-p", "a", says=("in part", "lacks model-00002-of-00002.safetensors", "nibble pull openai/gpt-oss-20b"))
        self.ok("inspect", "openai/gpt-oss-20b", "--load-format", "dummy")  # wants config.json alone

    def test_one_model_however_it_is_named(self):
        for command in self.commands(TINY, "-m", TINY).values():
            self.ok(*command)
        for name, command in self.commands("other", "--model", TINY).items():  # to run and chat, a prompt
            self.refused(2, *command, says=("want one text" if name in ("run", "chat") else "want one model", "other"))
        for name, command in self.commands().items():
            if name != "chat":  # which has nibble-tiny
                self.refused(2, *command, says=("want a model", "--model"))
        self.refused(2, "inspect", "", says="empty")
        self.refused(2, "inspect", "-m", "", says="empty")

    def test_a_preset_is_no_name_of_the_cache(self):
        cached(self.cache, "openai/gpt-oss-20b")
        self.assertEqual(self.ok("inspect", "gpt-oss-20b", "--load-format", "dummy", "--json").json()["dims"]["layers"], 24)

    def test_random_weights_need_no_files(self):
        for name in ("gpt-oss-20b", "openai/gpt-oss-20b"):
            self.assertEqual(self.ok("inspect", name, "--load-format", "dummy", "--json").json()["dims"]["layers"], 24, name)
        self.refused(5, "inspect", "somebody/gpt-oss-20b", "--load-format", "dummy", says="nibble pull somebody/gpt-oss-20b")


if __name__ == "__main__":
    support.main()
