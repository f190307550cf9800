"""Models whose layers differ (gpt_oss_puzzle): the presets' shapes, and nibble-tiny with some experts and windows less."""
import json
import struct

import support
from support import TINY, UNSUPPORTED, USAGE, Case, read_model, safetensors_bytes

PUZZLE = ("gpt-oss-puzzle-88b", "--load-format", "dummy")


class Preset(Case):
    def test_has_the_published_size(self):
        report = self.ok("inspect", *PUZZLE, "--json").json()
        self.assertEqual(report["bytes"], 49_993_752_960)  # 46.56 GiB, as the Hub counts the files
        self.assertEqual(report["dims"]["layer_kinds"].count("wide"), 8)
        self.assertEqual(report["dims"]["layer_experts"].count(64), 18)
        text = self.ok("inspect", *PUZZLE).out
        self.assertIn("18 sliding, 10 full, 8 wide", text)
        self.assertIn("18 of 128, 18 of 64", text)
        kv = {m["context"]: m["kv_bytes"] for m in report["memory"]}
        self.assertEqual(kv[131072], 2048 * (18 * 128 + 8 * 8192 + 10 * 131072))

    def test_plans_follow_each_layers_window_and_experts(self):
        for backend in (("cuda", "--card", "h100"), ("cpu",)):
            plan = self.ok("inspect", *PUZZLE, "--plan", "--backend", *backend, "-b", 8, "-p", 0, "-d", 32768, "--json").json()["plans"][0]
            attends = {s["layers"]: s["bytes"] for s in plan["stages"] if s["stage"] == "attend" and " " in s["layers"]}
            self.assertEqual(sorted(attends), ["10 full", "18 sliding", "8 wide"])
            self.assertAlmostEqual(attends["8 wide"] / 8192, attends["18 sliding"] / 128, -2)
        # 8 tokens draw on average 28.7 of 128 experts, and 25.8 of 64.
        whole = self.ok("inspect", "gpt-oss-120b", "--load-format", "dummy", "--plan", "--backend", "cuda", "--card", "h100", "-b", 8, "-p", 0, "-d", 0, "--json").json()["plans"][0]
        own = self.ok("inspect", *PUZZLE, "--plan", "--backend", "cuda", "--card", "h100", "-b", 8, "-p", 0, "-d", 0, "--json").json()["plans"][0]
        moe = [sum(s["bytes"] for s in plan["stages"] if s["stage"] == "moe") for plan in (own, whole)]
        self.assertAlmostEqual(moe[0] / moe[1], (28.7 + 25.8) / 2 / 28.7, 2)

    def test_a_card_holds_it_with_more_context_than_its_parent(self):
        for model, fits in ((PUZZLE[0], True), ("gpt-oss-120b", False)):
            row = self.ok("predict", "--card", "h100", model, "-b", 4, "-p", 0, "-d", 65536, "--n-cpu-moe", 0, "--json").json()["tables"][0]["rows"][0]
            self.assertEqual(row["fits"], fits, model)


class Tiny(Case):
    def tiny(self, name, windows, experts, scales=None):
        """nibble-tiny with the first so many experts of each layer, and these windows."""
        tensors = {}
        for tensor, (dtype, shape, data) in read_model(TINY).items():
            if ".mlp." in tensor:
                count = experts[int(tensor.split(".")[2])]
                shape, data = [count, *shape[1:]], data[:len(data) * count // shape[0]]
            tensors[tensor] = (dtype, shape, data)
        for layer in range(8 if scales else 0):
            for of, value in zip("kv", scales):
                tensors[f"model.layers.{layer}.self_attn.{of}_scale"] = ("F32", [], struct.pack("<f", value))
        directory = self.dir / name
        directory.mkdir()
        for path in TINY.iterdir():
            if path.is_file() and "safetensors" not in path.name:
                (directory / path.name).write_bytes(path.read_bytes())
        (directory / "model.safetensors").write_bytes(safetensors_bytes(tensors))
        config = json.loads((TINY / "config.json").read_text())
        for key in ("num_local_experts", "sliding_window"):
            del config[key]
        config.update(model_type="gpt_oss_puzzle", architectures=["GptOssPuzzleForCausalLM"],
                      layer_types=["full_attention" if w is None else "sliding_attention" for w in windows],
                      block_configs=[{"num_local_experts": n, "sliding_window": w} for n, w in zip(experts, windows)])
        (directory / "config.json").write_text(json.dumps(config))
        return directory

    def test_a_model_told_layer_by_layer_is_the_same_model(self):
        same = self.tiny("same", [128, None] * 4, [8] * 8)
        self.assertEqual(support.greedy(same, "Once upon a time"), support.greedy(TINY, "Once upon a time"))

    def test_layers_that_differ_run_everywhere_alike(self):
        model = self.tiny("differ", [8, None, 8, 24, 8, 24, 8, None], [8, 8, 7, 8, 6, 4, 8, 5])
        want = support.greedy(model, "Once upon a time", *support.EXACT)
        for flags in (("--backend", "reference"), (*support.EXACT, "--tensor-parallel-size", 2)):
            self.assertEqual(support.greedy(model, "Once upon a time", *flags), want, flags)
        self.assertNotEqual(support.greedy(TINY, "Once upon a time", *support.EXACT), want)
        self.assertIn("agree", self.ok("compare", "-m", model).out)
        self.refused(USAGE, "run", "-m", model, "-p", "a", "--tensor-parallel-size", 2, "--enable-expert-parallel",
                     says=("same number of experts", "found 4 to 8"))
        self.refused(UNSUPPORTED, "convert", model, "-o", self.dir / "m.gguf", says="alternating layers of 8 experts")

    def test_kv_scales_are_used_with_fp8_pages_and_named_elsewhere(self):
        plain, scaled = (self.tiny(name, [128, None] * 4, [8] * 8, scales) for name, scales in (("plain", None), ("scaled", (3e-4, 2e-4))))
        run = ("run", "-p", "Once upon a time", "-n", 24, "--temperature", 0, "--json", "-m")
        texts = [self.ok(*run, model, "--kv-cache-dtype", "fp8", *support.EXACT).json()["token_ids"] for model in (plain, scaled)]
        self.assertNotEqual(*texts)  # so small scales push all past 448
        bf16 = self.ok(*run, scaled, *support.EXACT)
        self.assertIn("the checkpoint's KV scales have an effect with --kv-cache-dtype fp8 alone", bf16.err)
        self.assertEqual(bf16.json()["token_ids"], self.ok(*run, plain, *support.EXACT).json()["token_ids"])


if __name__ == "__main__":
    support.main()
