"""Checkpoints in other shapes: quantised by nibble quantize, and in the layout of OpenAI's original/ directory."""
import json
import math
import os
import struct
import subprocess

import support
from support import CORRUPT, IO, SOURCE, TINY, UNSUPPORTED, USAGE, Case, read_model, read_safetensors, replace, safetensors_bytes

E2M1 = (0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6)


def bf16(value):
    """Bits of a value that bf16 holds exactly."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    assert bits & 0xFFFF == 0, value
    return bits >> 16


BF16_OF = {scale: [bf16(code * 2.0 ** (scale - 127)) for code in E2M1] for scale in range(64, 192)}


def expert_bits(blocks, scales):
    """MXFP4 bytes to bf16 bits, row order kept."""
    bits = []
    for b, scale in enumerate(scales):
        table = BF16_OF[scale]
        for byte in blocks[16 * b:16 * b + 16]:
            bits.append(table[byte & 15])
            bits.append(table[byte >> 4])
    return bits


def as_float_experts(tensors):
    """MXFP4 experts [experts, rows, columns] to Hugging Face's bf16 [experts, columns, rows]."""
    result = {}
    for name, (dtype, shape, data) in tensors.items():
        if name.endswith("_scales"):
            continue
        if not name.endswith("_blocks"):
            result[name] = (dtype, shape, data)
            continue
        experts, rows, cols = shape[0], shape[1], shape[2] * 32
        bits = expert_bits(data, tensors[name.replace("_blocks", "_scales")][2])
        turned = []
        for e in range(experts):
            matrix = bits[e * rows * cols:(e + 1) * rows * cols]
            for c in range(cols):
                turned += matrix[c::cols]
        result[name.removesuffix("_blocks")] = ("BF16", [experts, cols, rows], struct.pack(f"<{len(turned)}H", *turned))
    return result


def write_model(directory, tensors, layers=None):
    """A one-file model with nibble-tiny's other files."""
    directory.mkdir()
    for path in TINY.iterdir():
        if path.is_file() and "safetensors" not in path.name:
            (directory / path.name).write_bytes(path.read_bytes())
    (directory / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    if layers:
        support.edit_json(directory / "config.json", lambda c: c.update(num_hidden_layers=layers, layer_types=c["layer_types"][:layers]))


def first_layers(tensors, layers):
    return {n: t for n, t in tensors.items() if not n.startswith("model.layers.") or int(n.split(".")[2]) < layers}


class QuantizeModel(Case):
    def test_float_experts_come_back_as_the_blocks_they_were_made_of(self):
        # 2 of 8 layers: 8 in pure Python would take a quarter of a minute and show no more
        original = first_layers(read_model(TINY), 2)
        write_model(self.dir / "mx", original, layers=2)
        write_model(self.dir / "bf16", as_float_experts(original), layers=2)
        support.edit_json(self.dir / "bf16/config.json", lambda c: c.pop("quantization_config"))
        (self.dir / "bf16/notes.txt").write_text("kept")
        want = support.greedy(self.dir / "mx", "Once upon a time")
        for how, says in (((), "BF16 to ggml mxfp4"), (("--expert-format", "bf16"), ""), (("--expert-format", "q8_0"), "BF16 to ggml q8_0")):
            ran = support.nibble("run", "-m", self.dir / "bf16", "-p", "Once upon a time", "-n", 24, "--temperature", 0, *how, "--json")
            self.assertEqual(ran.json()["token_ids"], want, how)
            (self.assertIn if says else self.assertNotIn)(says or "weights:", ran.err)
        self.assertIn("BF16 to ggml mxfp4: gate_up, down", self.ok("inspect", "-m", self.dir / "bf16").out)
        self.refused(USAGE, "run", "-m", self.dir / "mx", "-p", "a", "--expert-format", "bf16", says="found none")
        self.assertIn("gate_up_proj", self.ok("quantize", self.dir / "bf16", "-o", self.dir / "back").out)

        back = read_model(self.dir / "back")
        self.assertEqual(set(back), set(original))
        self.assertEqual((self.dir / "back/notes.txt").read_text(), "kept")
        self.assertEqual(json.loads((self.dir / "back/config.json").read_text())["quantization_config"]["quant_method"], "mxfp4")
        renormalised = 0
        for name, (dtype, shape, data) in original.items():
            self.assertEqual(back[name][:2], (dtype, shape), name)
            if name.endswith("_scales"):
                continue
            if not name.endswith("_blocks"):
                self.assertEqual(back[name][2], data, name)
                continue
            scales = name.replace("_blocks", "_scales")
            # A block whose largest code is below 4 has a second spelling, with a smaller scale: the values are the same.
            self.assertEqual([b & 0x7FFF and b for b in expert_bits(data, original[scales][2])],
                             [b & 0x7FFF and b for b in expert_bits(back[name][2], back[scales][2])], name)
            renormalised += sum(a != b for a, b in zip(original[scales][2], back[scales][2]))
        self.assertEqual(renormalised, self.respelt(original))
        self.assertEqual(support.greedy(self.dir / "back", "Once upon a time"), support.greedy(self.dir / "mx", "Once upon a time"))

    def test_floats_of_any_width_load_as_they_are(self):
        """A fine-tune that was saved in float32, and one of which some tensors were."""
        tensors = read_model(TINY)
        wide = {name: ("F32", shape, b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2))) if dtype == "BF16" else (dtype, shape, data)
                for name, (dtype, shape, data) in tensors.items()}
        some = {name: wide[name] if nth % 2 else tensor for nth, (name, tensor) in enumerate(tensors.items())}
        want = support.greedy(TINY, "Once upon a time")
        for name, stored in (("wide", wide), ("some", some)):
            write_model(self.dir / name, stored)
            self.assertEqual(support.greedy(self.dir / name, "Once upon a time"), want)
            self.ok("convert", self.dir / name, "-o", self.dir / f"{name}.gguf")
            self.assertEqual(support.greedy(self.dir / f"{name}.gguf", "Once upon a time"), want)
        self.assertIn("embedding                 4.19 MB", self.ok("inspect", "-m", self.dir / "wide").out)  # of 2.1

    @staticmethod
    def respelt(tensors):
        """Blocks whose largest magnitude is not 4 or 6 times their scale, so that OCP's rule gives another scale."""
        count = 0
        for name, (_, _, data) in tensors.items():
            if name.endswith("_blocks"):
                for b in range(0, len(data), 16):
                    top = max(max(byte & 7, byte >> 4 & 7) for byte in data[b:b + 16])
                    count += top < 6
        return count

    def test_what_cannot_be_quantised_is_refused(self):
        self.refused(USAGE, "quantize", TINY, "-o", self.dir / "out", says="quantised already")
        self.refused(IO, "quantize", self.dir / "none", "-o", self.dir / "out", says="none")
        self.assertFalse((self.dir / "out").exists())
        bare = self.dir / "bare"
        bare.mkdir()
        self.refused(IO, "quantize", bare, "-o", self.dir / "out")
        for name, shape in (("dims", [2, 48, 64]), ("rank", [64, 96])):
            model = self.dir / name
            model.mkdir()
            count = math.prod(shape)
            (model / "config.json").write_text("{}")
            (model / "model.safetensors").write_bytes(safetensors_bytes({"model.layers.0.mlp.experts.gate_up_proj": ("BF16", shape, bytes(2 * count))}))
            self.refused(CORRUPT, "quantize", model, "-o", self.dir / f"{name}_out", says="want [experts, in, out] with in a multiple of 32")
        good = self.dir / "good"
        good.mkdir()
        (good / "model.safetensors").write_bytes(safetensors_bytes({"model.layers.0.mlp.experts.gate_up_proj": ("BF16", [2, 64, 64], bytes(2 * 8192))}))
        self.refused(IO, "quantize", good, "-o", self.dir / "out", says="config.json")
        (good / "config.json").write_text("[]")
        self.refused(CORRUPT, "quantize", good, "-o", self.dir / "out", says="config.json")
        (good / "config.json").write_text("{}")
        self.refused(USAGE, "quantize", good, "-o", good, says="absent or empty")
        self.refused(USAGE, "quantize", good, "-o", self.dir / "out", "--format", "mxfp8_e4m3", says="mxfp4")
        self.refused(USAGE, "quantize", good, "-o", self.dir / "out", "--tensors", "*", says="--tensors")
        (self.dir / "file").write_text("x")
        self.refused(IO, "quantize", good, "-o", self.dir / "file", says="cannot create: Not a directory")
        self.refused(IO, "quantize", good, "-o", "/proc/nibble")
        self.ok("quantize", good, "-o", self.dir / "deep/er/out")


class QuantizeFile(Case):
    FORMATS = {"mxfp4": 16, "mxfp8_e4m3": 32, "mxfp8_e5m2": 32, "mxfp6_e2m3": 24, "mxfp6_e3m2": 24}  # bytes per block

    def setUp(self):
        super().setUp()
        values = [math.sin(i) * 2.0 ** (i // 32 % 7) for i in range(4 * 64)]
        self.tensors = {"a.weight": ("F32", [4, 64], struct.pack("<256f", *values)), "b.weight": ("BF16", [2, 2, 32], bytes(256)),
                        "bias": ("F32", [64], struct.pack("<64f", *values[:64])), "odd": ("F32", [2, 33], bytes(4 * 66)), "ids": ("I64", [2, 32], bytes(512))}
        self.input = self.dir / "in.safetensors"
        self.input.write_bytes(safetensors_bytes(self.tensors))

    def test_every_format(self):
        for name, block_bytes in self.FORMATS.items():
            out = self.dir / f"{name}.safetensors"
            report = self.ok("quantize", self.input, "-o", out, "--format", name, "--json").json()
            self.assertEqual(report["format"], name)
            self.assertEqual([t["name"] for t in report["tensors"]], ["a.weight", "b.weight"])
            self.assertLess(report["tensors"][0]["relative_rms_error"], 0.2)
            self.assertEqual(report["tensors"][1]["relative_rms_error"], 0)
            got = read_safetensors(out)
            self.assertEqual(got["a.weight_blocks"][:2], ("U8", [4, 2, block_bytes]))
            self.assertEqual(got["a.weight_scales"][:2], ("U8", [4, 2]))
            self.assertEqual(got["b.weight_blocks"][:2], ("U8", [2, 2, 1, block_bytes]))
            for kept in ("bias", "odd", "ids"):
                self.assertEqual(got[kept], self.tensors[kept])

    def test_scale_rules_differ_and_ceil_never_clips(self):
        reports = {rule: self.ok("quantize", self.input, "-o", self.dir / rule, "--scale", rule, "--json").json()["tensors"][0] for rule in ("ocp", "ceil", "round")}
        self.assertGreater(reports["ocp"]["clipped"], 0)
        self.assertEqual(reports["ceil"]["clipped"], 0)
        self.assertNotEqual(reports["ocp"]["relative_rms_error"], reports["ceil"]["relative_rms_error"])

    def test_a_pattern_chooses_tensors(self):
        self.assertEqual([t["name"] for t in self.ok("quantize", self.input, "-o", self.dir / "o", "--tensors", "b.*", "--json").json()["tensors"]], ["b.weight"])
        self.assertIn("a.weight", read_safetensors(self.dir / "o"))
        self.refused(USAGE, "quantize", self.input, "-o", self.dir / "p", "--tensors", "c*", says=("name matches c*", "found none"))
        self.assertFalse((self.dir / "p").exists())

    def test_a_file_may_be_replaced_by_itself(self):
        self.ok("quantize", self.input, "-o", self.input)
        self.assertIn("a.weight_blocks", read_safetensors(self.input))
        self.refused(USAGE, "quantize", self.input, "-o", self.dir / "again", "--tensors", "a*", says="found none")

    def test_a_closed_standard_output_does_not_write_into_the_file(self):
        done = subprocess.run([support.NIBBLE, "quantize", self.input, "-o", self.dir / "out"], stderr=subprocess.PIPE, check=False, preexec_fn=lambda: os.close(1))
        self.assertEqual(done.returncode, IO, done.stderr)  # the report had no place; a file's number was free
        self.assertEqual(list(self.dir.iterdir()), [self.input])

    def test_wrong_files_and_places(self):
        self.refused(USAGE, "quantize", self.input, "-o", self.dir / "x", "--format", "fp4", says="mxfp4 or mxfp8_e4m3")
        self.refused(USAGE, "quantize", self.input, "-o", self.dir, says="found a directory")
        self.refused(IO, "quantize", self.input, "-o", self.dir / "none/x", says="cannot create")
        self.refused(CORRUPT, "quantize", SOURCE / "Makefile", "-o", self.dir / "x")
        self.assertEqual(list(self.dir.iterdir()), [self.input])  # no half file stays
        nan = dict(self.tensors, **{"a.weight": ("F32", [4, 64], struct.pack("<256f", *[math.nan] * 32, *[1.0] * 224))})
        replace(self.input, safetensors_bytes(nan))
        self.assertEqual(self.ok("quantize", self.input, "-o", self.dir / "x", "--json").json()["tensors"][0]["nan_blocks"], 1)


class OriginalLayout(Case):
    """The names and keys of OpenAI's original/ (gpt_oss/torch/model.py, weights.py)."""

    def converted(self):
        tensors, result = read_model(TINY), {}
        layer_names = {"input_layernorm.weight": "attn.norm.scale", "self_attn.o_proj.weight": "attn.out.weight", "self_attn.o_proj.bias": "attn.out.bias",
                       "self_attn.sinks": "attn.sinks", "post_attention_layernorm.weight": "mlp.norm.scale", "mlp.router.weight": "mlp.gate.weight",
                       "mlp.router.bias": "mlp.gate.bias", "mlp.experts.gate_up_proj_blocks": "mlp.mlp1_weight.blocks",
                       "mlp.experts.gate_up_proj_scales": "mlp.mlp1_weight.scales", "mlp.experts.gate_up_proj_bias": "mlp.mlp1_bias",
                       "mlp.experts.down_proj_blocks": "mlp.mlp2_weight.blocks", "mlp.experts.down_proj_scales": "mlp.mlp2_weight.scales",
                       "mlp.experts.down_proj_bias": "mlp.mlp2_bias"}
        for ours, theirs in (("model.embed_tokens.weight", "embedding.weight"), ("model.norm.weight", "norm.scale"), ("lm_head.weight", "unembedding.weight")):
            result[theirs] = tensors[ours]
        for layer in range(8):
            for ours, theirs in layer_names.items():
                result[f"block.{layer}.{theirs}"] = tensors[f"model.layers.{layer}.{ours}"]
            for kind in ("weight", "bias"):
                parts = [tensors[f"model.layers.{layer}.self_attn.{x}_proj.{kind}"] for x in "qkv"]
                shape = [sum(p[1][0] for p in parts), *parts[0][1][1:]]
                result[f"block.{layer}.attn.qkv.{kind}"] = ("BF16", shape, b"".join(p[2] for p in parts))
        return result

    def setUp(self):
        super().setUp()
        self.model = self.dir / "original"
        self.model.mkdir()
        (self.model / "tokenizer.json").symlink_to(TINY / "tokenizer.json")
        self.tensors = self.converted()
        (self.model / "model.safetensors").write_bytes(safetensors_bytes(self.tensors))
        (self.model / "config.json").write_text(json.dumps({
            "num_hidden_layers": 8, "num_experts": 8, "experts_per_token": 4, "vocab_size": 4096, "hidden_size": 256, "intermediate_size": 192,
            "swiglu_limit": 7.0, "head_dim": 64, "num_attention_heads": 8, "num_key_value_heads": 2, "sliding_window": 128,
            "initial_context_length": 4096, "rope_theta": 150000, "rope_scaling_factor": 32.0, "rope_ntk_alpha": 1, "rope_ntk_beta": 32}))

    def test_gives_the_text_of_the_hugging_face_layout(self):
        for prompt in ("Once upon a time", (TINY / "heldout.txt").read_text()[:1500]):
            self.assertEqual(support.greedy(self.model, prompt), support.greedy(TINY, prompt))

    def test_ends_its_answers_though_its_config_names_no_end_token(self):
        args = ("-p", "What is the capital of France?", "--temperature", 0, "--date", "2026-11-21", "--json")
        got, want = (self.ok("chat", "-m", m, *args).json() for m in (self.model, TINY))
        self.assertEqual((got["messages"], got["finish_reason"]), (want["messages"], "stop"))
        prompt = "<|start|>user<|message|>What is the capital of France?<|end|><|start|>assistant"
        run = self.ok("run", "-m", self.model, "-p", prompt, "--special", "-n", 100, "--temperature", 0, "--json").json()
        self.assertEqual(run["finish_reason"], "stop")

    def test_is_inspected_and_refused_under_its_own_names(self):
        report = self.ok("inspect", "-m", self.model, "--json", "--tensors").json()
        self.assertEqual({t["name"] for t in report["tensor_list"]}, set(self.tensors))
        self.assertEqual(report["bytes"], self.ok("inspect", "-m", TINY, "--json").json()["bytes"])
        self.tensors.pop("block.3.attn.qkv.bias")
        replace(self.model / "model.safetensors", safetensors_bytes(self.tensors))
        self.refused(CORRUPT, "run", "-m", self.model, "-p", "a", says=("lacks 1 tensor", "block.3.attn.qkv.bias"))


if __name__ == "__main__":
    support.main()
