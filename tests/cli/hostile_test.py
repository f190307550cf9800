"""What a stranger may do wrong, or on purpose: every mistake is one line, an exit code, and nothing that looks like a result."""
import json
import os
import re
import resource
import signal
import struct
import subprocess
import time
import unittest

import support
from support import CORRUPT, INTERRUPTED, IO, MEMORY, NIBBLE, SANITIZED, SOURCE, TINY, UNSUPPORTED, USAGE, Case, edit_json, nibble, read_safetensors, replace, safetensors_bytes

RUN = ("run", "-m", TINY, "-n", 2)
SHARD = "model-00001-of-00002.safetensors"


class CommandLine(Case):
    def test_no_command_or_an_unknown_one(self):
        self.refused(USAGE, "rum", says="did you mean run?")
        self.refused(USAGE, "tokenise", says="did you mean tokenize?")
        self.refused(USAGE, "--frobnicate", says="no --frobnicate")
        self.refused(USAGE, "")

    def test_an_unknown_flag_is_named_with_the_one_that_was_meant(self):
        self.refused(USAGE, *RUN, "-p", "a", "--temprature", 1, says=("no --temprature", "did you mean --temperature?"))
        self.refused(USAGE, "run", "--max-token=3", says="did you mean --max-tokens?")
        self.refused(USAGE, "chat", "--reason", "low", says="did you mean --reasoning?")
        self.refused(USAGE, *RUN, "-p", "a", "--xyzzy-frotz", says="no --xyzzy-frotz (")
        self.refused(USAGE, *RUN, "-Z", says="no -Z")

    def test_loose_words_and_missing_values(self):
        self.refused(USAGE, *RUN, "-p", "Once", "upon", says=('"upon"', "needs quotes"))
        self.refused(USAGE, "run", "-p", "a", says="--model")
        self.refused(USAGE, *RUN, "-p", says="--prompt")
        self.refused(USAGE, *RUN, "-p", "a", "--seed")
        self.refused(USAGE, *RUN, "-p", "a", "-f", "b", says=("--prompt", "--file"))
        for command in ((*RUN, "-f"), ("chat", "-m", TINY, "-p", "a", "--tools"), ("tokenize", "-p", "a", "-m"), ("quantize", "in", "-o", "out", "--tensors")):
            self.refused(USAGE, *command, "", says="found an empty one")  # of a variable that is not set
        for command in (("serve", TINY, "--api-key=", "--enforce-eager"), ("serve", TINY, "--served-model-name=", "--print-config"), (*RUN, "--prompt=", "-n", 1)):
            self.refused(USAGE, *command, says="found an empty one")  # the next word is not its value
        self.refused(USAGE, "synth", "--preset", "tiny", says="--output")
        self.refused(USAGE, "quantize", says="input")

    def test_flags_of_another_backend(self):
        for flag in ("--moe-kernel marlin", "--moe-tile 64x128", "--enforce-eager", "--attention-backend flash", "--attention-backend reference"):
            self.refused(UNSUPPORTED, "compare", "-m", TINY, *flag.split(), says=(flag.split()[0], "want --backend cuda"))
            for command in ((*RUN, "-p", "a"), ("inspect", "-m", TINY, "--plan")):
                self.assertIn(f"{flag} makes no difference: no card is used", self.ok(*command, *flag.split()).err)
        self.refused(UNSUPPORTED, *RUN, "-p", "a", "--backend", "reference", "--moe-activation", "f32", says="--moe-activation f32: want --backend cpu")
        self.refused(UNSUPPORTED, *RUN, "-p", "a", "--backend", "reference", "--fast", says="--fast: want --backend cpu or cuda")
        self.refused(USAGE, *RUN, "-p", "a", "--moe-activation", "fp4", says="want auto or f32 or bf16 or int8 or mxfp8 or mxfp6 or mxfp4, found fp4")
        for flag in ("--mxfp8-layers all", "--moe-activation mxfp8", "--kv-cache-dtype fp8"):
            self.refused(USAGE, *RUN, "-p", "a", "--backend", "cpu", "--fast", *flag.split(), says=("--fast", flag.split()[0]))
        self.refused(UNSUPPORTED, *RUN, "-p", "a", "--backend", "reference", "--no-mmap", says="--no-mmap: want --backend cpu")
        for command in ((*RUN, "-p", "a"), ("inspect", "-m", TINY, "--plan")):
            self.refused(UNSUPPORTED, *command, "--backend", "cuda", "--kv-cache-dtype", "int8", says="--kv-cache-dtype int8: want --backend cpu or reference")
        self.refused(USAGE, "run", "-m", "tiny", "--load-format", "dummy", "-p", "a", "--no-mmap", says="--no-mmap: want weights in files")

    def test_types_of_keys_and_values_are_those_of_one_table(self):
        words = re.findall(r'\{KvDtype::\w+, +"\w+", +"(\w+)"', (SOURCE / "src/backend/kv_dtype.h").read_text())
        self.assertGreaterEqual(len(words), 4)
        self.refused(USAGE, *RUN, "-p", "a", "--kv-cache-dtype", "fp9", says=f"want auto or {' or '.join(words)}, found fp9")
        for word in words:
            for backend in ("cpu", "reference"):
                self.ok(*RUN, "-p", "a", "-n", 1, "--backend", backend, "--kv-cache-dtype", word)

    def test_numbers_out_of_range(self):
        wrong = {"-n": ("-1", "1e3", "x", "", "99999999999999999999", "3.5", "nan", "0x10", "0b11", "+3", "1_0"),
                 "--temperature": ("-1", "nan", "inf", "1e9", "x", "", "1,5"),
                 "--top-k": ("-1", "99999999999", "1.5"),
                 "--top-p": ("0", "-0.1", "1.1", "nan", "inf"),
                 "--min-p": ("-0.1", "1.1", "nan"),
                 "--repetition-penalty": ("0", "-1", "nan", "1e10"),
                 "--presence-penalty": ("-2.1", "3", "nan"),
                 "--frequency-penalty": ("2.1", "-inf"),
                 "--seed": ("-1", "99999999999999999999999", "x", "1.5", ""),
                 "--threads": ("-1", "1025", "two"),
                 "--max-model-len": ("0", "-5", "99999999999", "131073", "auto", "-1", "8k"),
                 "--max-num-batched-tokens": ("0", "65537"),
                 "--logit-bias": ("5", ":1", "5:", "x:1", "5:x", "5:nan", "5:101", "4096:1", "-1:1", "5:1:2", "99999999999:1", ""),
                 "--kv-cache-dtype": ("fp16", "0", ""), "--attention-sinks": ("maybe",), "--backend": ("gpu", "1"),
                 "--load-format": ("ggml",), "--color": ("blue",), "--stop": ("",)}
        for flag, values in wrong.items():
            for value in values:
                with self.subTest(flag=flag, value=value):
                    self.refused(USAGE, *RUN, "-p", "a", f"{flag}={value}" if flag.startswith("--") and value else flag, *([] if flag.startswith("--") and value else [value]))

    def test_switches_are_true_or_false(self):
        """Numbers are no counts of a switch."""
        huge = "9" * 20
        for flag in (f"--json={huge}", f"--no-enable-expert-parallel={huge}", "--ignore-eos=-1", "--quiet=maybe", "--fast="):
            name, value = flag.split("=")
            self.refused(USAGE, *RUN, "-p", "a", flag, says=f"{name}: want true or false, found {value}")
        self.refused(USAGE, *RUN, "-p", "a", says=f"NIBBLE_NO_MMAP: --no-mmap: want true or false, found {huge}", env={**os.environ, "NIBBLE_NO_MMAP": huge})
        config = self.dir / "serve.toml"
        config.write_text(f"no-enable-prefix-caching = {huge}\n")
        self.refused(USAGE, "serve", TINY, "--config", config, says=f"{config}: no-enable-prefix-caching: want true or false, found {huge}")
        self.assertTrue(self.ok(*RUN, "-p", "--json=5", "--json=False").out)  # a value may look like a flag

    def test_numbers_are_decimal(self):
        """010 is 10."""
        self.assertEqual(self.ok(*RUN[:3], "-p", "a", "-n", "010", "--ignore-eos", "--json").json()["usage"]["completion_tokens"], 10)
        self.refused(USAGE, *RUN, "-p", "a", "-t", "0x4", says="--threads: want a whole number from 0 to 1024, found 0x4")

    def test_numbers_of_the_other_commands(self):
        self.refused(USAGE, "inspect", "-m", TINY, "--context", 0)
        self.refused(USAGE, "inspect", "-m", TINY, "--context", 1 << 40)
        self.refused(USAGE, "perplexity", "-m", TINY, "-p", "Once upon a time", "--context", 1)
        self.refused(USAGE, "perplexity", "-m", TINY, "-p", "Once upon a time", "--max-model-len", 1, says="at least 2 tokens")
        for command, flag in (("compare", "--max-model-len"), ("compare", "--max-num-batched-tokens"), ("compare", "--gpu-memory-utilization"), ("inspect", "--max-model-len"), ("inspect", "--no-mmap")):
            self.refused(USAGE, command, "-m", TINY, flag, 1, says=flag)  # without a meaning there
        for tolerance in ("0", "-1", "nan", "x"):
            self.refused(USAGE, "compare", "-m", TINY, "--tolerance", tolerance)
        self.refused(USAGE, "synth", "--preset", "gpt-5", "-o", self.dir / "x", says="gpt-oss-120b")
        self.refused(USAGE, "synth", "--preset", "tiny", "--layers", 5, "-o", self.dir / "x", says="1 to 4")
        self.refused(USAGE, "synth", "--preset", "tiny", "--seed", -1, "-o", self.dir / "x")
        self.assertFalse((self.dir / "x").exists())

    def test_dates_and_efforts(self):
        for date in ("tomorrow", "2026-13-01", "2026-02-30", "2026-1-1", "26-01-01", "2026-01-01x", "+026-01-01", "2026/01/01", ""):
            self.refused(USAGE, "chat", "-m", TINY, "-p", "hi", "--date", date, says="YYYY-MM-DD")
        self.refused(USAGE, "chat", "-m", TINY, "-p", "hi", "--reasoning", "extreme", says="low or medium or high")
        self.refused(USAGE, "chat", "-m", TINY, "--json", says="want a question (-p, -f or piped")

    def test_control_characters_in_a_message_are_harmless(self):
        result = self.refused(USAGE, *RUN, "-p", "a", "--color", "\x1b[31m\nred\r")
        self.assertNotIn("\x1b", result.err)


class Prompts(Case):
    def test_nothing_to_say(self):
        self.refused(USAGE, *RUN, "-p", "", says="at least one token")
        self.refused(USAGE, *RUN, says="at least one token")  # standard input is empty
        self.refused(USAGE, "chat", "-m", TINY, "-p", "", says="want a question")
        self.refused(USAGE, "compare", "-m", TINY, "-p", "")
        self.refused(USAGE, "perplexity", "-m", TINY, "-p", "a", says="at least 2 tokens")

    def test_longer_than_the_context(self):
        story = "Once upon a time " * 100
        for command in ("run", "chat"):
            self.refused(USAGE, command, "-m", TINY, "-p", story, "--max-model-len", 64, says="at most 63 prompt tokens")
        self.refused(USAGE, *RUN, "-p", "Once upon a time", "--max-model-len", 4, says=("at most 3 prompt tokens, found 4", "--max-model-len"))
        self.ok(*RUN, "-p", "Once upon a time", "--max-model-len", 5, "-n", 9)
        self.ok("perplexity", "-m", TINY, "-p", "Once upon a time", "--max-model-len", 4)
        self.refused(USAGE, *RUN, stdin=b"ab " * 350_000, says="at most 131071 prompt tokens")
        self.refused(USAGE, "compare", "-m", TINY, stdin=b"", *("-f", "-"))
        self.refused(USAGE, "compare", "-m", TINY, "-f", "-", stdin=b"ab " * 350_000, says="4096")

    def test_a_megabyte_that_fits_is_served(self):
        result = nibble(*RUN, "--max-model-len", 4096, "-n", 1, "--json", stdin=b" " * 1_000_000)
        self.assertIn(result.code, (0, USAGE), result.err)  # as the vocabulary has it: runs of blanks are few tokens or many

    def test_files_that_cannot_be_read(self):
        self.refused(IO, *RUN, "-f", self.dir / "none", says="No such file")
        self.refused(IO, *RUN, "-f", self.dir, says="directory")
        self.refused(IO, "tokenize", "-m", self.dir / "none", "-p", "a")
        self.refused(IO, "tokenize", "-m", self.dir, "-p", "a")

    def test_ids_that_are_none(self):
        for ids in ("x", "1 2 three", "-1", "99999999999", "1.5", "201088"):
            self.refused(USAGE, "tokenize", "--decode", "-p", ids)
        self.assertEqual(self.ok("tokenize", "--decode", "-p", "").raw, b"")
        self.assertEqual(self.ok("tokenize", "-p", "", "--json").json()["count"], 0)


class Tools(Case):
    def chat(self, tools, code=0, says=()):
        path = self.dir / "tools.json"
        path.write_bytes(tools if isinstance(tools, bytes) else tools.encode())
        args = ("chat", "-m", TINY, "-p", "Hi", "-n", 3, "--tools", path)
        return self.ok(*args) if code == 0 else self.refused(code, *args, says=says)

    def test_malformed_tools_are_refused_with_their_place(self):
        for text in ("{}", "null", "1"):
            self.chat(text, USAGE, says=("--tools ", "tools.json: want a JSON array of functions"))
        for text, place in (("", "line 1, column 1"), ("{", "line 1, column 2"), ("nonsense", "line 1, column 2"), (b"\xff\xfe", "line 1, column 1"), ('[{"name": "f"}\n\n', "line 3, column 1"), ('[\n{"name" "f"}]', "line 2, column 11")):
            self.chat(text, USAGE, says=("--tools ", f"tools.json: want JSON; parse error at {place}: "))
        self.chat("[1]", USAGE, says="entry 0")
        self.chat('[{"name": "f"}, {"description": "no name"}]', USAGE, says="entry 1")
        self.chat('[{"name": 5}]', USAGE, says="entry 0: want a string as name")
        self.chat('[{"function": {"name": ["f"]}}]', USAGE)
        self.chat('[{"name": "f", "description": {}}]', USAGE)
        self.chat('[{"name": "f", "parameters": "text"}]', USAGE, says="entry 0: want a schema")
        self.chat('[{"name": "f"}, {"name": "f"}]', USAGE, says="entry 1: another one is called f")
        self.refused(IO, "chat", "-m", TINY, "-p", "Hi", "--tools", self.dir / "none", says="none")

    def test_deep_schemas_do_not_exhaust_the_stack(self):
        deep = 100_000
        self.chat('[{"name": "f", "parameters": ' + '{"properties": {"a": ' * deep + "{}" + "}}" * deep + "}]", USAGE, says="more than 100 levels")
        self.chat("[" * deep + "]" * deep, USAGE)

    def test_json_of_brackets_alone_is_refused_wherever_it_stands(self):
        depth = 50_000  # one argument holds 128 KB
        deep = "[" * depth + "]" * depth
        for flag in ("--compilation-config", "--speculative-config", "--kv-events-config"):
            self.refused(USAGE, "serve", TINY, flag, '{"a": ' + deep + "}", says=f"{flag}: want a JSON object")
        tools, result = self.dir / "deep.json", self.dir / "result.json"
        tools.write_text(deep)
        result.write_text('{"metadata": {"workload": ' + deep + '}, "rows": [{"test": "pp1", "prompt": 1, "seconds": [1]}]}')
        for flag in ("--tools", "--json-schema"):
            self.refused(USAGE, "load", "--base-url", "http://127.0.0.1:1", "--endpoint", "chat", flag, tools, says="levels")
        self.refused(USAGE, "bench", "--compare", result, result, "--allow-mismatch", says="levels")

    def test_odd_tools_are_tools(self):
        for text in ("[]", '[{"name": "f", "parameters": null}]',
                     '[{"type": "function", "function": {"name": "f", "parameters": {"type": ["string", "null"], "enum": [1, null]}}}]'):
            self.chat(text)


class Models(Case):
    """Damaged copies of nibble-tiny: each is refused by run, and by inspect as well."""

    def broken(self, model, code, says=()):
        for command in (("run", "-m", model, "-p", "a", "-n", 1), ("inspect", "-m", model)):
            self.refused(code, *command, says=(str(model), *([says] if isinstance(says, str) else says)))

    def test_no_directory_a_file_an_empty_one(self):
        self.broken(self.dir / "none", IO, says="none")
        empty = self.dir / "empty"
        empty.mkdir()
        self.broken(empty, IO, says="config.json")
        (self.dir / "file").write_text("hello")
        self.broken(self.dir / "file", IO, says="file: want a GGUF file, or one of safetensors with a config.json beside it, found neither")
        self.broken("", USAGE)
        self.broken("/dev/null", IO, says="/dev/null: want a model directory or a .gguf file, found neither")
        self.refused(USAGE, *RUN[:1], "-m", "gpt-5", "--load-format", "dummy", "-p", "a", says="gpt-oss-20b")
        if os.getuid() != 0:
            empty.chmod(0)
            self.broken(empty, IO)

    def test_files_that_are_none(self):
        for name in ("config.json", "generation_config.json", "model.safetensors.index.json", SHARD, "tokenizer.json"):
            with self.subTest(name):
                model = self.copy_of_tiny(name)
                for make in (os.mkfifo, os.mkdir, lambda p: os.symlink("nowhere", p), lambda p: os.symlink(p.name, p), lambda p: os.symlink("/dev/zero", p)):
                    (model / name).unlink() if not (model / name).is_dir() else (model / name).rmdir()
                    make(model / name)
                    self.refused(IO, "run", "-m", model, "-p", "a", "-n", 1, says=str(model))
        os.mkfifo(self.dir / "f.safetensors")
        self.refused(IO, "quantize", self.dir / "f.safetensors", "-o", self.dir / "o", says="want a regular file")

    def test_weights_that_are_no_numbers(self):
        model, tensors, norm = self.copy_of_tiny(), read_safetensors(TINY / SHARD), "model.layers.0.input_layernorm.weight"
        dtype, shape, data = tensors[norm]
        replace(model / SHARD, safetensors_bytes({**tensors, norm: (dtype, shape, b"\xc0\x7f" * (len(data) // 2))}))
        self.refused(CORRUPT, "perplexity", "-m", model, "-p", "Once upon a time", says="the weights hold NaN")
        self.assertIn("the weights hold NaN", nibble("run", "-m", model, "-p", "a").err)

    def test_damaged_shards(self):
        """Of every kind one: src/checkpoint/safetensors_test.cpp has them all."""
        data = (TINY / SHARD).read_bytes()
        (size,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8:8 + size])
        next(value for name, value in header.items() if name != "__metadata__")["dtype"] = "F99"
        text = json.dumps(header).encode()
        for name, content, code, says in (("empty", b"", CORRUPT, SHARD), ("cut off", data[:-1], CORRUPT, SHARD), ("no JSON", data[:8] + b"x" * size + data[8 + size:], CORRUPT, SHARD),
                                          ("unknown dtype", struct.pack("<Q", len(text)) + text + data[8 + size:], UNSUPPORTED, "F99")):
            with self.subTest(name):
                model = self.copy_of_tiny(name)
                replace(model / SHARD, content)
                self.broken(model, code, says)

    def test_wrong_tensors(self):
        tensors = read_safetensors(TINY / SHARD)
        router = "model.layers.0.mlp.router.bias"
        scales = "model.layers.0.mlp.experts.gate_up_proj_scales"
        dtype, shape, data = tensors[router]

        def broken(name, changed, says, code=CORRUPT, index=False):
            with self.subTest(name):
                model = self.copy_of_tiny(name)
                replace(model / SHARD, safetensors_bytes(changed))
                if index:
                    edit_json(model / "model.safetensors.index.json", lambda i: i.update(weight_map={
                        **{k: v for k, v in i["weight_map"].items() if v != SHARD}, **{k: SHARD for k in changed}}))
                self.broken(model, code, says)

        missing = {k: v for k, v in tensors.items() if k != router}  # src/model/manifest_test.cpp has all that can be wrong
        broken("missing", missing, ("lacks", router), index=True)
        broken("missing but indexed", missing, (router, "does not hold it"))
        broken("extra and not indexed", {**tensors, "model.layers.99.hat": (dtype, shape, data)}, "not in weight_map")
        broken("i32", {**tensors, router: ("I32", shape, data * 2)}, "want BF16 [8] (or F16, F32), got I32 [8]")
        nan = bytearray(tensors[scales][2])
        nan[1234] = 255
        with self.subTest("scale 255"):
            model = self.copy_of_tiny("nan")
            replace(model / SHARD, safetensors_bytes({**tensors, scales: (*tensors[scales][:2], bytes(nan))}))
            self.refused(CORRUPT, "run", "-m", model, "-p", "a", says=(str(model), scales, "255", "index 1234"))
        again = self.copy_of_tiny("twice")
        (again / "model.safetensors.index.json").unlink()
        (again / "copy.safetensors").symlink_to(TINY / SHARD)
        self.broken(again, CORRUPT, says="lies in")

    def test_damaged_indexes(self):
        model = self.copy_of_tiny()
        index = model / "model.safetensors.index.json"
        edit_json(index, lambda i: i["weight_map"].update({next(iter(i["weight_map"])): "model-9.safetensors"}))
        self.broken(model, IO, says=index.name)
        replace(index, "{")
        self.broken(model, CORRUPT)
        index.unlink()  # shards alone are enough
        self.assertEqual(support.greedy(model, "Once upon a time"), support.greedy(TINY, "Once upon a time"))
        (model / SHARD).unlink()
        self.broken(model, CORRUPT, says="lacks")

    def test_damaged_configs(self):
        """Of every kind one: src/checkpoint/hf_config_test.cpp and src/model/config_test.cpp have them all."""
        for change, code in (({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, UNSUPPORTED), ({"num_hidden_layers": 9}, CORRUPT), ({"hidden_size": "256"}, CORRUPT),
                             ({"vocab_size": 4097}, CORRUPT), ({"hidden_act": "gelu"}, UNSUPPORTED), ({"hidden_size": 48}, UNSUPPORTED)):
            with self.subTest(change):
                model = self.copy_of_tiny("-".join(change))
                edit_json(model / "config.json", lambda c, change=change: c.update(change))
                self.broken(model, code)
                support.shutil.rmtree(model)
        for text in ("", "[" * 100_000, b"\xff"):
            model = self.copy_of_tiny("text")
            replace(model / "config.json", text)
            self.broken(model, CORRUPT, says="config.json")
            support.shutil.rmtree(model)

    def test_configs_that_are_taken_with_a_word(self):
        """What is missing or not known changes nothing that is generated, and a line says so."""
        want = support.greedy(TINY, "Once upon a time")
        for change, says in ((lambda c: c.update(norm_topk_prob=False, use_cache=False, _private=1), "config.json: not known here, so without effect: norm_topk_prob\n"),
                             (lambda c: c["rope_scaling"].update(long_factor=[1]), "rope_scaling: not known here, so without effect: long_factor\n")):
            model = self.copy_of_tiny("odd")
            edit_json(model / "config.json", change)
            got = self.ok("run", "-m", model, "-p", "Once upon a time", "-n", 24, "--temperature", 0, "--json")
            self.assertEqual(got.json()["token_ids"], want)
            self.assertEqual(sum(says in line + "\n" for line in got.err.splitlines()), 1, got.err)
            self.assertIn(says, self.ok("inspect", "-m", model, "--json").err)
            self.assertEqual(self.ok("run", "-m", model, "-p", "a", "-n", 1, "-q").err, "")
            support.shutil.rmtree(model)

    def test_an_end_beyond_the_vocabulary_is_refused_wherever_it_stands(self):
        for name, change in (("config.json", 4096), ("generation_config.json", [4088, 4096])):
            model = self.copy_of_tiny(name)
            edit_json(model / name, lambda c, change=change: c.update(eos_token_id=change))
            self.broken(model, CORRUPT, f"{name}: eos_token_id: want 0 to 4095, found 4096")

    def test_damaged_tokenizers(self):
        model = self.copy_of_tiny()
        path = model / "tokenizer.json"
        for text in ("", "{}", "[" * 100_000):  # src/text/tokenizer_json_test.cpp has all
            with self.subTest(text[:20]):
                replace(path, text)
                result = nibble("run", "-m", model, "-p", "a")
                self.assertIn(result.code, (CORRUPT, UNSUPPORTED), result.err)
                self.refused(result.code, "run", "-m", model, "-p", "a", says="tokenizer.json")
                self.refused(result.code, "tokenize", "-m", model, "-p", "a")
        path.unlink()
        self.refused(IO, "run", "-m", model, "-p", "a", says="tokenizer.json")
        self.ok("inspect", "-m", model)  # needs none
        o200k = self.dir / "tiny"
        self.ok("synth", "--preset", "tiny", "--layers", 1, "-o", o200k, "-q")
        path.symlink_to(o200k / "tokenizer.json")
        self.refused(CORRUPT, "run", "-m", model, "-p", "a", says="below the model's vocabulary of 4096")
        plain = json.loads((TINY / "tokenizer.json").read_text())
        for token in plain["added_tokens"]:
            token["content"] = token["content"].replace("<|channel|>", "<|canal|>")
        replace(path, json.dumps(plain))
        result = nibble("chat", "-m", model, "-p", "a")
        self.assertEqual(result.code, UNSUPPORTED, result.err)
        self.assertIn("<|channel|>", result.err)

    def test_experts_half_in_floats_are_told_by_what_is_missing(self):
        tensors = read_safetensors(TINY / SHARD)
        changed = {("model.layers.0.mlp.experts.gate_up_proj" if k == "model.layers.0.mlp.experts.gate_up_proj_blocks" else k): v for k, v in tensors.items()}
        model = self.copy_of_tiny()
        (model / "model.safetensors.index.json").unlink()
        replace(model / SHARD, safetensors_bytes(changed))
        self.broken(model, CORRUPT, says="lacks 15 tensors: model.layers.0.mlp.experts.down_proj")


class Outputs(Case):
    def test_a_directory_that_is_not_empty_or_cannot_be_made(self):
        (self.dir / "x").write_text("")
        self.refused(USAGE, "synth", "--preset", "tiny", "-o", self.dir, says="empty directory")
        self.refused(IO, "synth", "--preset", "tiny", "-o", self.dir / "x", says="cannot create")
        self.refused(IO, "synth", "--preset", "tiny", "-o", self.dir / "x/y", says="cannot create")
        self.refused(IO, "synth", "--preset", "tiny", "-o", "/proc/nibble", says="cannot create")

    def test_a_full_disk_leaves_no_half_file(self):
        def small_files():
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        self.refused(IO, "synth", "--preset", "tiny", "-o", self.dir / "m", says="cannot write", preexec_fn=small_files)
        for name in ("m.gguf", "n.gguf"):
            self.refused(IO, "convert", "-m", TINY, "-o", self.dir / name, *(("--part-bytes", 500_000) if name[0] == "n" else ()), says="cannot write", preexec_fn=small_files)
        self.assertEqual(list(self.dir.iterdir()), [])  # nor the parts before it, nor a directory

    def test_what_is_no_file_stays_what_it_is(self):
        data = self.dir / "in.safetensors"
        data.write_bytes(safetensors_bytes({"a": ("F32", [1, 32], bytes(128))}))
        os.mkfifo(self.dir / "fifo")
        for command in (("quantize", data), ("convert", "-m", TINY), ("synth", "--preset", "tiny", "--format", "gguf")):
            self.refused(USAGE, *command, "-o", self.dir / "fifo", says="no regular file")
            self.refused(USAGE, *command, "-o", self.dir, says="found a directory")
            self.refused(USAGE, *command, "-o", "", says="found none")
        self.assertTrue((self.dir / "fifo").is_fifo())
        self.assertEqual(sorted(p.name for p in self.dir.iterdir()), ["fifo", "in.safetensors"])

    def test_a_model_is_not_converted_over_its_own_files(self):
        model = self.copy_of_tiny()
        for name in (SHARD, "config.json"):
            replace(model / name, (TINY / name).read_bytes())
            self.refused(USAGE, "convert", "-m", model, "-o", model / name, says="want a new name, or a GGUF file to replace")
            self.assertEqual((model / name).read_bytes(), (TINY / name).read_bytes())
        self.ok("convert", "-m", model, "-o", model / "m.gguf", "-q")
        self.ok("convert", "-m", model, "-o", model / "m.gguf", "-q")

    def test_a_signal_removes_what_was_begun(self):
        data = self.dir / "in.safetensors"
        data.write_bytes(safetensors_bytes({f"t{i}": ("BF16", [1 << 12, 1 << 10], bytes(1 << 23)) for i in range(12)}))
        for end, command in ((signal.SIGINT, ("synth", "--preset", "gpt-oss-20b", "-o", self.dir / "m")), (signal.SIGTERM, ("quantize", data, "-o", self.dir / "q")),
                             (signal.SIGHUP, ("synth", "--preset", "gpt-oss-20b", "-o", self.dir / "c.gguf"))):
            with self.subTest(command), subprocess.Popen([NIBBLE, *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
                until = time.monotonic() + support.TIMEOUT_S
                while not list(self.dir.rglob("*.part")) and process.poll() is None and time.monotonic() < until:
                    time.sleep(0.002)
                process.send_signal(end)
                _, err = process.communicate(timeout=support.TIMEOUT_S)
                self.assertEqual((process.returncode, err), (INTERRUPTED, b"nibble: interrupted\n"))
                self.assertEqual([p.name for p in self.dir.iterdir()], ["in.safetensors"])

    @unittest.skipIf(SANITIZED, "sanitizers reserve address space")
    def test_a_model_larger_than_memory_is_refused(self):
        def little_memory():
            resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
        self.refused(MEMORY, "run", "-m", "gpt-oss-120b", "--load-format", "dummy", "-p", "a", preexec_fn=little_memory)
        self.refused(MEMORY, *RUN, "-t", 2, "-p", "a", "--max-model-len", 131072, "--kv-cache-dtype", "f32",
                     preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (256 << 20, 256 << 20)))

    @unittest.skipIf(SANITIZED, "sanitizers reserve address space")
    def test_threads_that_cannot_be_started_end_it(self):
        for command in ((*RUN, "-p", "a", "-t", 1024), ("serve", TINY, "--port", 0, "--http-threads", 64)):
            result = nibble(*command, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20)))  # a stack reserves 8 MB
            self.assertEqual(result.code, IO, result.err)
            self.assertRegex(result.err, r"nibble: .*: [0-9]+ could be( started)?: Resource temporarily unavailable\n$")


if __name__ == "__main__":
    support.main()
