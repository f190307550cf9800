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

    def two_quants(self):
        """A repository of the cache with two GGUF models, one in a folder."""
        (self.dir / "gguf").mkdir()
        for dense in ("q8_0", "f16"):
            self.ok("convert", "-m", TINY, "-o", self.dir / f"gguf/it-{dense}.gguf", "--dense", dense)
        snapshot = cached(self.cache, "me/it-GGUF", self.dir / "gguf")
        (snapshot / "F16").mkdir()
        (snapshot / "F16/it.gguf").symlink_to((snapshot / "it-f16.gguf").resolve())
        (snapshot / "it-f16.gguf").unlink()
        return snapshot

    def test_every_command_takes_a_quantisation(self):
        snapshot = self.two_quants()
        for name in ("me/it-GGUF:q8_0", "hf.co/me/it-GGUF:Q8_0", "https://huggingface.co/me/it-GGUF/blob/main/it-q8_0.gguf", "me/it-GGUF:it-q8_0.gguf"):
            for command in self.commands(name).values():
                self.assertNotIn("taking", self.ok(*command).err)
            resolved = self.ok("serve", name, "--print-config", "--json").json()["model"]["resolved"]
            self.assertEqual(resolved, str(snapshot / "it-q8_0.gguf"), name)
        self.assertEqual(self.ok("tokenize", "-m", "me/it-GGUF:F16", "--count", "-p", PROMPT).out, "4\n")
        for words in (("-hf", "me/it-GGUF:F16"), ("--hf-repo", "me/it-GGUF", "--hf-file", "F16/it.gguf"), ("-hf", "me/it-GGUF", "-hff=F16/it.gguf")):
            self.ok("run", *words, "-p", PROMPT, "-n", 1)
            self.assertEqual(self.ok("serve", *words, "--print-config", "--json").json()["model"]["resolved"], str(snapshot / "F16/it.gguf"), words)
        self.assertIn("me/it-GGUF: taking Q8_0 of F16 (", self.ok(*self.commands("me/it-GGUF")["inspect"]).err)
        self.refused(5, "run", "me/it-GGUF:Q4_K_M", "-p", "a", says="nibble pull me/it-GGUF:Q4_K_M gets it")
        self.refused(2, "run", snapshot, "-p", "a", says=("want one model, found 2", str(snapshot / "F16/it.gguf")))
        self.refused(2, "run", "https://example.com/me/it-GGUF", "-p", "a", says="want a model of the Hub as https://huggingface.co/ORG/REPO")
        self.refused(2, "run", "https://hf.co/me/it-GGUF/tree/v1", "--revision", "v2", "-p", "a", says="the model's address says v1")
        self.refused(2, "run", "--hf-file", "it-q8_0.gguf", "-p", "a", says="--hf-repo")
        self.refused(2, "run", "-p", "a", "-hf", says="-hf: want a value")

    def test_a_gguf_beside_a_config_is_a_model(self):
        """As in Unsloth's folders."""
        folder = self.dir / "theirs/Q8_0"
        folder.mkdir(parents=True)
        self.ok("convert", "-m", TINY, "-o", folder / "it.gguf")
        shutil.copy(TINY / "config.json", self.dir / "theirs")
        self.ok(*self.commands(self.dir / "theirs")["run"])

    def test_a_name_that_is_nearly_right(self):
        cached(self.cache, "me/mine")
        for name, meant in (("gpt-oss-20", "gpt-oss-20b"), ("gpt-oss-12b", "gpt-oss-120b"), ("nible-tiny", "nibble-tiny"), ("openai/gpt-oss20b", "openai/gpt-oss-20b"), ("me/mine2", "me/mine")):
            self.refused(5, "chat", name, "-p", "a", says=f"did you mean {meant}?")
        for command in ("serve", "run"):
            result = self.refused(5, command, "meta-llama/Llama-3.1-8B", *(("-p", "a") if command == "run" else ()), says="only gpt-oss models run here")
            self.assertNotIn("gets it", result.err)

    def test_what_is_no_gpt_oss_model_is_told_for_what_it_is(self):
        kinds = {
            "a LoRA adapter, not a model: merge it": {"adapter_config.json": "{}", "adapter_model.safetensors": ""},
            "an MLX model": {"config.json": '{"model_type": "gpt_oss", "quantization": {"group_size": 32, "bits": 4}}', "model.safetensors": ""},
            "quantised by gptq": {"config.json": '{"model_type": "gpt_oss", "quantization_config": {"quant_method": "gptq"}}', "model.safetensors": ""},
            "a tensor for each expert": {"config.json": '{"model_type": "gpt_oss"}', "model.safetensors.index.json": '{"weight_map": {"m.experts.0.up_proj.weight": "a.safetensors"}}', "a.safetensors": ""},
            "an ONNX model": {"config.json": '{"model_type": "gpt_oss"}', "model.onnx": ""},
            "an OpenVINO model": {"openvino_model.xml": "", "openvino_model.bin": ""},
            "PyTorch's pickles": {"config.json": '{"model_type": "gpt_oss"}', "pytorch_model.bin": ""},
            "a pipeline of diffusers": {"model_index.json": "{}", "unet/model.safetensors": ""},
            "only a tokenizer": {"tokenizer.json": "{}"},
            "is a llama": {"config.json": '{"model_type": "llama"}', "model.safetensors": ""},
            "empty: want config.json": {}}
        for i, (says, files) in enumerate(kinds.items()):
            folder = self.dir / f"kind{i}"
            folder.mkdir()
            for name, text in files.items():
                (folder / name).parent.mkdir(exist_ok=True)
                (folder / name).write_text(text)
            for command in (("run", folder, "-p", "a"), ("inspect", folder), ("serve", folder, "--port", 0)):
                self.refused(3 if "want config.json" not in says and "tokenizer" not in says else 5, *command, says=(f"kind{i}", says))
        (self.dir / "model.onnx").write_text("x")
        self.refused(3, "run", self.dir / "model.onnx", "-p", "a", says="an ONNX model")

    def test_experts_apart_are_told_by_the_tensors_too(self):
        tensors = support.read_model(TINY)
        tensors["model.layers.0.mlp.experts.0.gate_proj.weight"] = ("BF16", [1], b"12")
        folder = self.dir / "apart"
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(support.safetensors_bytes(tensors))
        for name in ("config.json", "tokenizer.json"):
            shutil.copy(TINY / name, folder)
        self.refused(3, "run", folder, "-p", "a", says="a tensor for each expert")

    def test_names_of_ollama_are_its_files(self):
        self.ok("convert", "-m", TINY, "-o", self.dir / "x.gguf")
        for store in (self.dir / ".ollama/models", self.dir / "elsewhere"):
            library = store / "manifests/registry.ollama.ai/library/gpt-oss"
            library.mkdir(parents=True)
            (store / "blobs").mkdir()
            for tag in ("20b", "latest"):
                (library / tag).write_text('{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:ab12"}]}')
            for name in ("gpt-oss:20b", "gpt-oss"):
                self.refused(5, "run", name, "-p", "a", says="sha256-ab12 cannot be read (No such file")
            shutil.copy(self.dir / "x.gguf", store / "blobs/sha256-ab12")
            for name in ("gpt-oss:20b", "gpt-oss"):
                result = self.ok("run", name, "-p", PROMPT, "-n", 1)
                self.assertIn(f"{name}: taking Ollama's {store}/blobs/sha256-ab12", result.err)
            self.refused(5, "run", "gpt-oss:120b", "-p", "a", says=(str(store), "nibble pull openai/gpt-oss-120b gets it"))
            self.env["OLLAMA_MODELS"] = str(self.dir / "elsewhere")
        if os.getuid() != 0:
            library.parent.chmod(0)
            self.addCleanup(library.parent.chmod, 0o755)
            self.refused(5, "run", "gpt-oss:20b", "-p", "a", says="closed to this user")

    def test_list_tells_what_runs_here(self):
        folder = self.dir / "models"
        for name in ("large", "gptq"):
            shutil.copytree(TINY, folder / name)
        with open(folder / "large/model-00001-of-00002.safetensors", "r+b") as file:
            file.truncate(10**13)
        support.edit_json(folder / "gptq/config.json", lambda c: c["quantization_config"].update(quant_method="gptq"))
        (folder / "onnx").mkdir()
        (folder / "onnx/model.onnx").write_text("x")
        out = self.ok("list").out
        self.assertRegex(out, r"large +safetensors +MXFP4 +10[.\d]* TB +too large +models/large  \(this machine has [\d.]+ .B\)")
        self.assertRegex(out, r"gptq +safetensors +GPTQ +[\d.]+ MB +no +models/gptq  \(models/gptq: its weights are quantised by gptq")
        self.assertRegex(out, r"nibble-tiny .* runs here ")

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
