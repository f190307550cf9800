"""llama.cpp's files: nibble-tiny converted and run, damaged and refused. Standard library only."""
import shutil
import struct
import subprocess
import sys

import support
from support import CORRUPT, IO, TINY, UNSUPPORTED, USAGE, Case

REFERENCE = ("--backend", "reference")


def greedy(model, prompt, flags=REFERENCE):
    result = support.nibble("run", "-m", model, "-p", prompt, "-n", 6, "--temperature", 0, "--json", *flags)
    assert result.code == 0, result.err
    return result.json()["token_ids"]


class Gguf(Case):
    def convert(self, name="tiny.gguf", *more):
        path = self.dir / name
        self.ok("convert", "-m", TINY, "-o", path, *more)
        return path


class Converted(Gguf):
    def test_runs_like_the_model_it_was_made_from(self):
        prompt = "The capital of France is"
        want = greedy(TINY, prompt)
        for dense in ("q8_0", "bf16", "f16", "f32"):
            self.assertEqual(greedy(self.convert(f"{dense}.gguf", "--dense", dense), prompt), want, dense)

    def test_copied_weights_are_the_mapped_ones(self):
        for model in (self.convert(), TINY):
            self.assertEqual(greedy(model, "Once upon a time", ()), greedy(model, "Once upon a time", ("--no-mmap",)))

    def test_a_directory_that_holds_only_it_is_the_model_too(self):
        self.convert()
        self.assertEqual(greedy(self.dir, "Once upon a time"), greedy(TINY, "Once upon a time"))

    def test_a_chat_ends_where_the_model_ends_it(self):
        args = ("-p", "What is the capital of France?", "--temperature", 0, "--date", "2026-11-21", "--json", *REFERENCE)
        path = self.convert("m.gguf", "--dense", "bf16")
        got, want = (self.ok("chat", "-m", m, *args).json() for m in (path, TINY))
        self.assertEqual((got["messages"], got["finish_reason"]), (want["messages"], "stop"))

    def test_tokenize_perplexity_and_compare_take_it(self):
        path = self.convert("m.gguf", "--dense", "bf16")
        text = "Hello <|start|> world, 12345!"
        for more in ((), ("--special",)):
            got, want = (self.ok("tokenize", "-m", m, "-p", text, "--json", *more).json() for m in (path, TINY / "tokenizer.json"))
            self.assertEqual(got, want)
        got, want = (self.ok("perplexity", "-m", m, "-p", "Once upon a time there was a cat.", "--json", *REFERENCE).json() for m in (path, TINY))
        self.assertEqual(got["perplexity"], want["perplexity"])
        self.ok("compare", "-m", path, "--a", "reference", "--b", "reference", "-p", "Hello")

    def test_the_same_values_give_the_same_bits_on_every_instruction_set(self):
        """BF16 and F32 hold the checkpoint's values, and their experts are the checkpoint's in another order."""
        text = ("-p", "Once upon a time there was a little dog. He liked to play in the park with his friends.", "--moe-activation", "f32", "--json")
        models = (TINY, self.convert("bf16.gguf", "--dense", "bf16"), self.convert("f32.gguf", "--dense", "f32"))
        for isa in ("baseline", "avx2", "avxvnni", "avx512", "amx"):
            if support.nibble("perplexity", "-m", TINY, *text, "--cpu-isa", isa).code == UNSUPPORTED:
                continue
            for tokens in (1, 6, 64):  # in a step: kernels for few and for many
                found = {self.ok("perplexity", "-m", m, *text, "--cpu-isa", isa, "--max-num-batched-tokens", tokens).json()["perplexity"] for m in models}
                self.assertEqual(len(found), 1, (isa, tokens, found))

    def test_inspect_counts_what_the_file_holds(self):
        path = self.convert()
        report = self.ok("inspect", "-m", path, "--json", "--tensors").json()
        self.assertEqual(report["dims"], self.ok("inspect", "-m", TINY, "--json").json()["dims"])
        self.assertEqual(report["bytes"], sum(t["bytes"] for t in report["tensor_list"]))
        rows = {t["name"]: t for t in report["tensor_list"]}
        self.assertEqual((rows["token_embd.weight"]["dtype"], rows["token_embd.weight"]["shape"]), ("Q8_0", [4096, 256]))
        self.assertEqual((rows["blk.7.ffn_gate_exps.weight"]["dtype"], rows["blk.7.ffn_gate_exps.weight"]["shape"]), ("MXFP4", [8, 192, 256]))
        self.assertIn("token_embd.weight", self.ok("inspect", "-m", path, "--tensors").out)

    def test_a_plan_for_a_card_says_what_becomes_of_the_files_types(self):
        path = self.convert()
        card = ("inspect", "-m", path, "--plan", "--backend", "cuda", "--card", "h100")
        says = self.ok(*card, "--json").json()["weights"]
        self.assertIn("ggml q8_0 to bf16: embedding; f32 to bf16: final_norm,", says)
        self.assertIn("ggml q8_0, and bf16 for more than 8 tokens: unembedding, q, k, v, o", says)
        spark = self.ok("inspect", "-m", path, "--plan", "--card", "gb10", "--json").json()["weights"]
        self.assertIn("ggml q8_0 to bf16: embedding, unembedding; f32 to bf16: final_norm,", spark)  # its screen reads bf16
        self.assertIn(f"weights: {says}\n", self.ok(*card).out)
        says = self.ok(*card, "--mxfp8-layers", "o", "--json").json()["weights"]
        self.assertIn("ggml q8_0 to mxfp8: o", says)
        self.assertIn("ggml q8_0 to bf16: embedding, unembedding, q, k, v, o;", self.ok(*card, "--q8-layers", "none").out)
        plan = lambda m, backend, *flags: self.ok("inspect", "-m", m, "--plan", "--backend", backend, *flags, "--json").json()["plans"]
        kernels = lambda plan: [stage["kernel"] for stage in plan["stages"]]
        few, many = (kernels(p) for p in plan(path, "cuda", "-b", "1,16", "-p", 0))
        self.assertIn("gemv<qkv, q8_0>", few)
        self.assertIn("gemv<dense, q8_0>", few)
        self.assertFalse([k for k in many if "q8_0" in k])
        rounded = plan(path, "cuda", "--q8-layers", "none")
        self.assertEqual(rounded, plan(TINY, "cuda"))  # on a card both are held alike
        self.assertLess(plan(path, "cuda")[0]["bytes"], rounded[0]["bytes"])
        self.assertLess(plan(path, "cpu")[0]["bytes"], plan(TINY, "cpu")[0]["bytes"])
        for flags, says in ((("--q8-layers", "o", "--mxfp8-layers", "o"), "o is in two formats"), (("--q8-layers", "moe"), "want a list of qkv, o, lm_head, or all")):
            self.refused(USAGE, *card, *flags, says=says)

    def test_the_load_format_can_be_named(self):
        path = self.convert()
        self.ok("inspect", "-m", path, "--load-format", "gguf")
        self.ok("inspect", "-m", path, "--load-format", "dummy")
        self.refused(CORRUPT, "inspect", "-m", TINY / "model-00001-of-00002.safetensors", "--load-format", "gguf", says="begins with \"GGUF\"")
        self.refused(IO, "inspect", "-m", TINY, "--load-format", "gguf", says="want .gguf files, found none")
        self.refused(IO, "inspect", "-m", path, "--load-format", "safetensors", says="config.json")

    def test_a_name_without_the_suffix_is_known_by_its_content(self):
        path = self.convert()
        shutil.move(path, self.dir / "model")
        self.ok("inspect", "-m", self.dir / "model")

    def test_what_is_gguf_already_is_not_converted(self):
        self.refused(USAGE, "convert", "-m", self.convert(), "-o", self.dir / "b.gguf", says="want a model in safetensors, found GGUF")
        self.refused(IO, "convert", "-m", TINY, "-o", self.dir / "none/b.gguf", says="cannot create")
        self.refused(USAGE, "convert", "-m", TINY, "-o", self.dir / "b.gguf", "--dense", "q4_k", says="q8_0 or bf16")
        self.refused(USAGE, "convert", "-m", TINY, "-o", self.dir / "b.gguf", "--part-bytes", -1)


def metadata_of(data):
    """{key: (type, value's bytes)} of a GGUF file."""
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    at = 24

    def skip(kind, at):
        if kind == 8:
            return at + 8 + struct.unpack_from("<Q", data, at)[0]
        if kind != 9:
            return at + sizes[kind]
        of, count = struct.unpack_from("<IQ", data, at)
        at += 12
        for _ in range(count):
            at = skip(of, at)
        return at

    found = {}
    for _ in range(struct.unpack_from("<Q", data, 16)[0]):
        (length,) = struct.unpack_from("<Q", data, at)
        key, (kind,) = data[at + 8:at + 8 + length].decode(), struct.unpack_from("<I", data, at + 8 + length)
        start = at + 12 + length
        at = skip(kind, start)
        found[key] = (kind, data[start:at])
    return found


def write_gguf(path, metadata, tensors):
    """tensors: {name: (type, row-major shape, bytes)}"""
    text = lambda s: struct.pack("<Q", len(s)) + s.encode()
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))
    head += b"".join(text(key) + struct.pack("<I", kind) + value for key, (kind, value) in metadata.items())
    body = b""
    for name, (kind, shape, data) in tensors.items():
        body += bytes(-len(body) % 32)
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), kind, len(body))
        body += data
    path.write_bytes(head + bytes(-len(head) % 32) + body)


class Ollamas(Gguf):
    """What Ollama's converter writes: of Hugging Face's files, and of OpenAI's own, where q, k and v are one tensor."""

    HUGGING_FACE = (("lm_head", "output"), ("model.embed_tokens", "token_embd"), ("model.layers", "blk"), ("input_layernorm", "attn_norm"), ("self_attn.q_proj", "attn_q"),
                    ("self_attn.k_proj", "attn_k"), ("self_attn.v_proj", "attn_v"), ("self_attn.o_proj", "attn_out"), ("self_attn.sinks", "attn_sinks"),
                    ("post_attention_layernorm", "ffn_norm"), ("mlp.router", "ffn_gate_inp"), ("mlp.experts.gate_up_proj_", "ffn_gate_up_exps."),
                    ("mlp.experts.down_proj_", "ffn_down_exps."), ("model.norm", "output_norm"))

    def ollamas(self, name, fused):
        metadata = {key.replace("gpt-oss.", "gptoss."): value for key, value in metadata_of(self.convert().read_bytes()).items()}
        string = lambda s: (8, struct.pack("<Q", len(s)) + s.encode())
        metadata |= {"general.architecture": string("gptoss"), "general.file_type": (4, struct.pack("<I", 4)), "tokenizer.ggml.pre": string("default"),
                     "tokenizer.ggml.eos_token_ids": (9, struct.pack("<IQ2i", 5, 2, 1, 2))}
        for key in [k for k in metadata if k.startswith("gptoss.rope.scaling.") and k.split(".")[-1] not in ("factor", "original_context_length")]:
            del metadata[key]
        tensors = {}
        for theirs, (_, shape, data) in support.read_model(TINY).items():
            for a, b in self.HUGGING_FACE:
                theirs = theirs.replace(a, b)
            tensors[theirs] = (30, shape, data)
        for theirs in [t for t in tensors if t.endswith(".blocks")]:
            stem = theirs.removesuffix(".blocks")
            (_, shape, blocks), (_, _, scales) = tensors.pop(theirs), tensors.pop(stem + ".scales")
            pairs = b"".join(scales[i:i + 1] + blocks[16 * i:16 * i + 16] for i in range(len(scales)))
            tensors[stem + ".weight"] = (4, [*shape[:-2], shape[-2] * 32], pairs)
        for theirs in [t for t in tensors if ".attn_q." in t and fused]:
            parts = [tensors.pop(theirs.replace(".attn_q.", f".attn_{p}.")) for p in "qkv"]
            tensors[theirs.replace(".attn_q.", ".attn_qkv.")] = (30, [sum(p[1][0] for p in parts), *parts[0][1][1:]], b"".join(p[2] for p in parts))
        write_gguf(self.dir / name, metadata, tensors)
        return self.dir / name, metadata, tensors

    def test_run_like_the_model_they_were_made_from(self):
        prompt = "The capital of France is"
        want = greedy(TINY, prompt)
        for fused in (False, True):
            path, metadata, tensors = self.ollamas(f"fused{fused}", fused)
            self.assertEqual(greedy(path, prompt), want)
            self.assertEqual(greedy(path, prompt, ("--backend", "cpu", "--moe-activation", "f32")), want)
            args = ("-p", "What is the capital of France?", "--temperature", 0, "--date", "2026-11-21", "--json", *REFERENCE)
            self.assertEqual(*(self.ok("chat", "-m", m, *args).json()["messages"] for m in (path, TINY)))
            self.assertIn("MXFP4 to ggml mxfp4, exactly: gate_up, down", self.ok("inspect", "-m", path).out)
            self.assertEqual(*(self.ok("tokenize", "-m", m, "-p", "a b", "--json").json() for m in (path, TINY / "tokenizer.json")))
        kind, shape, data = tensors["blk.3.attn_qkv.bias"]
        tensors["blk.3.attn_qkv.bias"] = (kind, [shape[0] - 1], data[:-2])
        write_gguf(path, metadata, tensors)
        self.refused(CORRUPT, "run", "-m", path, "-p", "a", says="blk.3.attn_qkv.bias: want 768 rows, of q, k and v, found 767")


class Split(Gguf):
    def setUp(self):
        super().setUp()
        report = self.ok("convert", "-m", TINY, "-o", self.dir / "m.gguf", "--part-bytes", 3_000_000, "--json").json()
        self.parts = report["files"]

    def test_any_part_or_the_directory_is_the_model(self):
        self.assertEqual([p.rsplit("/", 1)[1] for p in self.parts], [f"m-0000{i}-of-00004.gguf" for i in (1, 2, 3, 4)])
        want = greedy(TINY, "Once upon a time")
        for path in (self.parts[0], self.parts[2], self.dir):
            self.assertEqual(greedy(path, "Once upon a time"), want)

    def test_a_missing_part_is_named(self):
        (self.dir / "m-00003-of-00004.gguf").unlink()
        self.refused(IO, "run", "-m", self.parts[0], "-p", "a", says="m-00003-of-00004.gguf: part 3 of 4 is not there")
        self.refused(IO, "run", "-m", self.dir, "-p", "a", says="m-00003-of-00004.gguf: part 3 of 4 is not there")
        (self.dir / "other.gguf").write_bytes(b"GGUF")
        self.refused(USAGE, "run", "-m", self.dir, "-p", "a", says="name one")


class Damaged(Gguf):
    """One change to a good file each."""

    def setUp(self):
        super().setUp()
        self.good = self.convert().read_bytes()
        self.path = self.dir / "bad.gguf"

    def bad(self, content, code, says, command=("run", "-p", "a")):
        self.path.write_bytes(content)
        self.refused(code, command[0], "-m", self.path, *command[1:], says=("bad.gguf", *([says] if isinstance(says, str) else says)))

    def replaced(self, old, new):
        self.assertEqual(self.good.count(old), 1)
        return self.good.replace(old, new)

    def value(self, key, kind, old, new):
        """The value behind a key."""
        return self.replaced(key.encode() + struct.pack("<I", kind) + old, key.encode() + struct.pack("<I", kind) + new)

    def test_each_kind_of_damage_ends_with_its_code(self):
        """Of every kind one: src/checkpoint/gguf_test.cpp and src/convert/gguf_test.cpp have them all."""
        self.bad(b"GGML" + self.good[4:], CORRUPT, "found \"GGML\"")
        self.bad(self.good[:4] + struct.pack("<I", 1) + self.good[8:], UNSUPPORTED, "want GGUF version 2 or 3, found 1")
        self.bad(self.good[:len(self.good) // 2], CORRUPT, "cut off")
        self.bad(self.replaced(b"gpt-oss.block_count", b"gpt-oss.block_c0unt"), UNSUPPORTED, "gpt-oss.block_c0unt: not known here, found u32 8")
        self.bad(self.replaced(b"blk.3.attn_sinks.weight", b"blk.3.attn_sinkz.weight"), CORRUPT, "lacks 1 tensor: blk.3.attn_sinks.weight")

    def test_tokenisers(self):
        u32 = lambda n: struct.pack("<I", n)
        self.bad(self.value("tokenizer.ggml.model", 8, struct.pack("<Q", 4) + b"gpt2", struct.pack("<Q", 4) + b"bert"), UNSUPPORTED, "want \"gpt2\", found \"bert\"")
        self.bad(self.value("tokenizer.ggml.pre", 8, struct.pack("<Q", 6) + b"gpt-4o", struct.pack("<Q", 6) + b"qwen35"), UNSUPPORTED, "want \"gpt-4o\", found \"qwen35\"")
        self.bad(self.replaced(b"tokenizer.ggml.merges", b"tokenizer.ggml.mergez"), UNSUPPORTED, "tokenizer.ggml.mergez: not known here")
        self.bad(self.value("tokenizer.ggml.tokens", 9, u32(8) + struct.pack("<Q", 4096), u32(8) + struct.pack("<Q", 1 << 24)), CORRUPT, "elements take at least")

    def test_a_scale_that_is_no_number(self):
        rows = {t["name"]: t["bytes"] for t in self.ok("inspect", "-m", self.dir / "tiny.gguf", "--json", "--tensors").json()["tensor_list"]}
        at = len(self.good) - sum(-(-n // 32) * 32 for n in rows.values())  # of the data
        for name, size in rows.items():
            if name == "output.weight":
                break
            at += -(-size // 32) * 32
        self.path.write_bytes(self.good[:at + 1] + b"\x7c" + self.good[at + 2:])
        self.refused(CORRUPT, "run", "-m", self.path, "-p", "a", says=("output.weight", "F16 in block 0"))  # found as it loads

    def test_hostile_sizes_cost_nothing(self):
        if support.SANITIZED:
            self.skipTest("address space is no measure under a sanitizer")
        content = self.good[:8] + struct.pack("<QQ", 65536, 65536) + self.good[24:2000]
        self.path.write_bytes(content)
        code = "import resource, subprocess, sys; resource.setrlimit(resource.RLIMIT_AS, (400 << 20,) * 2); sys.exit(subprocess.run(sys.argv[1:]).returncode)"
        done = subprocess.run([sys.executable, "-c", code, support.NIBBLE, "inspect", "-m", self.path], capture_output=True, check=False, timeout=support.TIMEOUT_S)
        self.assertEqual(done.returncode, CORRUPT, done.stderr)


class Synthetic(Case):
    def test_a_preset_is_written_with_o200k_inside(self):
        path = self.dir / "m.gguf"
        report = self.ok("synth", "--preset", "tiny", "--layers", 1, "-o", path, "--json").json()
        self.assertEqual(report["files"], [str(path)])
        shown = self.ok("inspect", "-m", path, "--json").json()
        self.assertEqual((shown["dims"]["layers"], shown["dims"]["vocab"], shown["bytes"]), (1, 201088, report["bytes"]))
        got = self.ok("tokenize", "-m", path, "-p", "Hello, 世界! <|start|>", "--special", "--json").json()
        self.assertEqual(got, self.ok("tokenize", "-p", "Hello, 世界! <|start|>", "--special", "--json").json())

    def test_its_experts_and_vectors_are_those_of_the_safetensors_file(self):
        self.ok("synth", "--preset", "tiny", "--layers", 1, "--seed", 7, "-o", self.dir / "hf")
        self.ok("convert", "-m", self.dir / "hf", "-o", self.dir / "converted.gguf")
        self.ok("synth", "--preset", "tiny", "--layers", 1, "--seed", 7, "-o", self.dir / "made.gguf")
        self.assertEqual((self.dir / "converted.gguf").read_bytes(), (self.dir / "made.gguf").read_bytes())

    def test_options_that_contradict_each_other(self):
        self.refused(USAGE, "synth", "--preset", "tiny", "-o", self.dir / "d", "--part-bytes", 1000, says="--part-bytes")
        self.refused(USAGE, "synth", "--preset", "tiny", "-o", self.dir / "d", "--format", "ggml", says="safetensors or gguf")
        self.ok("synth", "--preset", "tiny", "--layers", 1, "-o", self.dir / "d.gguf", "--format", "safetensors")
        self.assertTrue((self.dir / "d.gguf").is_dir())


if __name__ == "__main__":
    support.main()
