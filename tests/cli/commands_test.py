"""Every command as its user meets it: what it prints, its JSON, what its options do."""
import json
import math
import os
import re
import subprocess

import support
from support import NIBBLE, SOURCE, TINY, Case, nibble

PROMPT = ("-m", TINY, "-p", "Once upon a time")


class Run(Case):
    def test_streams_prompt_and_text_and_sums_up_on_standard_error(self):
        result = self.ok("run", *PROMPT, "-n", 20, "--temperature", 0)
        self.assertTrue(result.out.startswith("Once upon a time, there was a little girl named"), result.out)
        self.assertTrue(result.out.endswith("\n"))
        self.assertIn("generated 20 tokens", result.err)
        self.assertIn("tok/s", result.err)
        self.assertNotIn("\x1b", result.out + result.err)  # no terminal, no colours

    def test_an_option_given_twice_counts_as_given_last(self):
        want = self.ok("run", *PROMPT, "-n", 5, "--temperature", 0, "--json").json()["token_ids"]
        twice = ("-n", 9, "--temperature", 2, *PROMPT, "-n", 5, "--temperature", 0, "-m", TINY)
        self.assertEqual(self.ok("run", *twice, "--json").json()["token_ids"], want)

    def test_quiet_and_colours_are_asked_for(self):
        self.assertEqual(self.ok("run", *PROMPT, "-n", 2, "-q").err, "")
        self.assertTrue(self.ok("run", *PROMPT, "-n", 2, "--color", "always").out.startswith("\x1b[2mOnce"))

    def test_json_is_one_object_with_text_ids_usage_and_timings(self):
        json_of = self.ok("run", *PROMPT, "-n", 8, "--temperature", 0, "--seed", 5, "--json").json()
        self.assertEqual(json_of["text"], self.ok("tokenize", "--decode", "-m", TINY, "-p", str(json_of["token_ids"])).out)
        self.assertEqual(json_of["finish_reason"], "length")
        self.assertEqual(json_of["seed"], 5)
        self.assertEqual(json_of["usage"], {"prompt_tokens": 4, "cached_tokens": 0, "completion_tokens": 8})
        for key in ("prompt_seconds", "prompt_tokens_per_second", "decode_seconds", "decode_tokens_per_second"):
            self.assertGreaterEqual(json_of["timings"][key], 0)

    def test_a_seed_gives_one_text_whatever_the_threads_and_chunks(self):
        def text(*more):
            return self.ok("run", *PROMPT, "-n", 40, "--json", *support.EXACT, *more).json()["text"]
        want = text("--seed", 7)
        self.assertEqual(text("--seed", 7, "--threads", 1), want)
        self.assertEqual(text("--seed", 7, "--threads", 3, "--max-num-batched-tokens", 1), want)
        self.assertEqual(text("--seed", 7, "--max-model-len", 64), want)
        self.assertNotEqual(text("--seed", 8), want)
        self.assertNotEqual(text(), text())  # random seeds

    def test_sampling_options_change_the_text(self):
        greedy = self.ok("run", *PROMPT, "-n", 12, "--temperature", 0, "--json").json()
        for same in (("--top-k", 1), ("--top-p", 1e-6), ("--min-p", 1)):  # the likeliest token alone
            self.assertEqual(self.ok("run", *PROMPT, "-n", 12, "--json", *same).json()["text"], greedy["text"], same)
        first = greedy["token_ids"][0]
        biased = self.ok("run", *PROMPT, "-n", 12, "--temperature", 0, "--json", "--logit-bias", f"{first}:-100",
                         "--logit-bias", "17:100").json()["token_ids"]
        self.assertEqual(biased, [17] * 12)
        loop = ("run", "-m", TINY, "-p", "The capital of France is", "-n", 40, "--temperature", 0, "--json")
        for option in ("--repetition-penalty", "--frequency-penalty", "--presence-penalty"):
            self.assertNotEqual(self.ok(*loop, option, 1.9).json()["text"], self.ok(*loop).json()["text"], option)

    def test_stop_strings_cross_token_borders_and_nothing_before_them_is_lost(self):
        free = self.ok("run", *PROMPT, "-n", 40, "--temperature", 0, "--json").json()["text"]
        self.assertIn("little girl", free)
        for stop in ("tle gi", "girl", " named Lily.", ".", "e"):
            got = self.ok("run", *PROMPT, "-n", 40, "--temperature", 0, "--json", "--stop", stop).json()
            self.assertEqual(got["text"], free[:free.index(stop)], stop)
            self.assertEqual(got["finish_reason"], "stop")
        both = self.ok("run", *PROMPT, "-n", 40, "--temperature", 0, "--json", "--stop", "Lily", "--stop", "tle g").json()
        self.assertEqual(both["text"], free[:free.index("tle g")])
        streamed = self.ok("run", *PROMPT, "-n", 40, "--temperature", 0, "--stop", "tle gi").out
        self.assertEqual(streamed, "Once upon a time" + free[:free.index("tle gi")] + "\n")
        missed = self.ok("run", *PROMPT, "-n", 40, "--temperature", 0, "--json", "--stop", "tle giraffe").json()
        self.assertEqual((missed["text"], missed["finish_reason"]), (free, "length"))
        begun = self.ok("run", *PROMPT, "-n", 40, "--temperature", 0, "--json", "--stop", free[-3:] + "#").json()
        self.assertEqual(begun["text"], free)  # what was held back for a stop that did not come
        brackets = self.ok("run", *PROMPT, "-n", 40, "--temperature", 0, "--json", "--stop", "[x,Lily]").json()
        self.assertEqual(brackets["text"], free)  # one stop string, not a list

    def test_the_end_token_stops_unless_it_is_ignored(self):
        prompt = "<|start|>user<|message|>What is the capital of France?<|end|><|start|>assistant"
        args = ("run", "-m", TINY, "-p", prompt, "-n", 60, "--temperature", 0, "--json")
        stopped = self.ok(*args, "--special").json()
        self.assertEqual(stopped["finish_reason"], "stop")
        self.assertEqual(stopped["token_ids"][-1], 4088)
        self.assertIn("Paris", stopped["text"])
        self.assertNotIn("<|", stopped["text"])
        endless = self.ok(*args, "--special", "--ignore-eos").json()
        self.assertEqual(endless["finish_reason"], "length")
        self.assertEqual(endless["token_ids"][:len(stopped["token_ids"])], stopped["token_ids"])
        as_text = self.ok(*args).json()
        self.assertGreater(as_text["usage"]["prompt_tokens"], stopped["usage"]["prompt_tokens"])

    def expects_a_card(self):
        """Nobody without a card, and with a program for CPUs, is told why none is used."""
        without = "built without CUDA" in support.nibble("run", *PROMPT, "-n", 1, "--backend", "cuda").err
        return not without or any(re.match("nvidia[0-9]", name) for name in os.listdir("/dev"))

    def test_the_backend_that_was_taken_and_why_is_said_once(self):
        for args in (("run", *PROMPT, "-n", 1), ("perplexity", *PROMPT), ("chat", *PROMPT, "-n", 1)):
            said = [line for line in self.ok(*args).err.splitlines() if line.startswith("backend ")]
            if self.expects_a_card():
                self.assertEqual(len(said), 1, said)
                self.assertRegex(said[0], "^backend cpu: (this program is built without CUDA|want )")
            else:
                self.assertEqual(said, [])
            for more in (("--backend", "cpu"), ("-q",)):
                self.assertNotIn("backend ", self.ok(*args, *more).err)
            got = self.ok(*args, "--json")
            self.assertNotIn("backend ", got.err)
            self.assertEqual(got.json()["backend"], "cpu")
        self.assertIn("backend cpu: --cpu-isa is not for cards", self.ok("run", *PROMPT, "-n", 1, "--cpu-isa", "baseline").err)
        self.assertIn("--moe-kernel marlin makes no difference: no card is used", self.ok("run", *PROMPT, "-n", 1, "--moe-kernel", "marlin").err)

    def test_the_context_ends_the_text(self):
        got = self.ok("run", *PROMPT, "--temperature", 0, "--max-model-len", 16, "--ignore-eos", "--json").json()
        self.assertEqual(got["finish_reason"], "context")
        self.assertEqual((got["usage"]["prompt_tokens"], got["usage"]["completion_tokens"]), (4, 12))

    def test_prompt_from_file_pipe_and_standard_input(self):
        path = self.dir / "prompt"
        path.write_text("Once upon a time")
        want = support.greedy(TINY, "Once upon a time")
        args = ("run", "-m", TINY, "-n", 24, "--temperature", 0, "--json")
        self.assertEqual(self.ok(*args, "-f", path).json()["token_ids"], want)
        self.assertEqual(self.ok(*args, "-f", "-", stdin=b"Once upon a time").json()["token_ids"], want)
        self.assertEqual(self.ok(*args, stdin=b"Once upon a time").json()["token_ids"], want)
        self.assertEqual(self.ok(*args, "-f", "/dev/stdin", stdin=b"Once upon a time").json()["token_ids"], want)
        # What is piped goes before a prompt that is given as well; a prompt is not read twice.
        for prompt in (("-p", " a time"), (" a time",), ("-f", self.dir / "end")):
            (self.dir / "end").write_text(" a time")
            self.assertEqual(self.ok(*args, *prompt, stdin=b"Once upon").json()["token_ids"], want)
        for file in ("/dev/stdin", path):
            command = [NIBBLE, *map(str, args), "-f", str(file)]
            with open(path, "rb") as stdin:
                done = subprocess.run(command, stdin=stdin, capture_output=True, timeout=support.TIMEOUT_S, check=True)
            self.assertEqual(json.loads(done.stdout)["token_ids"], want)

    def test_whoever_waits_for_piped_text_is_told(self):
        process = subprocess.Popen([NIBBLE, "run", TINY, " a time", "-n", "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.kill)
        self.assertIn(b"waiting for the end of standard input", process.stderr.readline())
        out, _ = process.communicate(b"Once upon", support.TIMEOUT_S)
        self.assertTrue(out.startswith(b"Once upon a time"), out)

    def test_odd_prompts_are_prompts(self):
        for prompt in (b"a\xff\xfe\x80b", "-5 degrees", "[a,b]", "{}", "<|end|>", "\x1b[31m", "日本語 🙂"):
            self.ok("run", "-m", TINY, "-p", prompt, "-n", 2, "--json").json()
        zero = self.ok("run", "-m", TINY, "-f", "-", "-n", 2, stdin=b"a\0b\0")
        self.assertTrue(zero.raw.startswith(b"a\0b\0"))

    def test_random_weights_write_whole_characters_only(self):
        args = ("run", "--load-format", "dummy", "-m", "tiny", "-p", "Hello", "-n", 60, "--seed", 1)
        self.assertEqual(len(self.ok(*args, "--json", "--ignore-eos").json()["token_ids"]), 60)
        self.ok(*args).raw.decode("utf-8")
        self.assertNotEqual(self.ok(*args, "--dummy-seed", 2, "--json").json()["text"], self.ok(*args, "--json").json()["text"])

    def test_reference_and_cpu_write_the_same(self):
        cpu = support.greedy(TINY, "The capital of France is", "--kv-cache-dtype", "f32", *support.EXACT)
        self.assertEqual(support.greedy(TINY, "The capital of France is", "--backend", "reference"), cpu)
        lost = nibble("run", "-m", TINY, "-p", "The capital of France is", "-n", 8, "--temperature", 0, "--attention-sinks", "off")
        self.assertNotIn("Paris", lost.out)


class Inspect(Case):
    def test_gpt_oss_120b_is_65_gb_and_reads_5_gb_per_token(self):
        args = ("inspect", "-m", "gpt-oss-120b", "--load-format", "dummy")
        report = self.ok(*args, "--json").json()
        self.assertEqual(report["bytes"], 65_248_815_744)
        self.assertEqual(report["tensors"], 687)
        self.assertAlmostEqual(report["decode_bytes_per_token"]["total"] / 1e9, 5.003, places=3)
        self.assertEqual(report["bytes_per_expert"], 13_236_480)
        text = self.ok(*args).out
        self.assertIn("65.25 GB = 65248815744 bytes in 687 tensors", text)
        self.assertRegex(text, r"total +5\.003 GB")

    def test_gpt_oss_20b_and_a_context(self):
        report = self.ok("inspect", "-m", "gpt-oss-20b", "--load-format", "dummy", "--json", "--context", 1000, "--context", 2000).json()
        self.assertEqual(report["tensors"], 459)
        self.assertAlmostEqual(report["decode_bytes_per_token"]["total"] / 1e9, 3.708, places=3)
        self.assertEqual([m["context"] for m in report["memory"]], [1000, 2000])

    def test_a_directory_is_listed_as_it_lies_there(self):
        report = self.ok("inspect", "-m", TINY, "--json", "--tensors").json()
        self.assertEqual(report["tensors"], 19 * 8 + 3)
        self.assertEqual(len(report["tensor_list"]), report["tensors"])
        self.assertEqual(sum(t["bytes"] for t in report["tensor_list"]), report["bytes"])
        self.assertEqual({t["name"] for t in report["tensor_list"]}, set(support.read_model(TINY)))
        self.assertIn("model.layers.7.mlp.experts.down_proj_scales", self.ok("inspect", "-m", TINY, "--tensors").out)
        self.assertNotIn("tensor_list", self.ok("inspect", "-m", TINY, "--json").json())


class Tokenize(Case):
    def test_text_comes_back(self):
        text = "Hello, wörld! 日本語 🙂 <|end|>\n\t  tabs\r\n"
        for model in ((), ("-m", TINY), ("--tokenizer", SOURCE / "tests/data/o200k_base.tiktoken")):
            found = self.ok("tokenize", "--json", *model, "-p", text).json()
            self.assertEqual(found["count"], len(found["ids"]))
            self.assertEqual(self.ok("tokenize", "--decode", *model, "-p", json.dumps(found["ids"])).out, text)
            self.assertEqual(self.ok("tokenize", "--count", *model, "-p", text).out, f"{found['count']}\n")
            self.assertEqual(self.ok("tokenize", "--count", "--json", *model, "-p", text).json(), {"count": found["count"]})

    def test_any_bytes_come_back(self):
        data = bytes(range(256)) * 3
        ids = self.ok("tokenize", "--json", stdin=data).json()["ids"]
        self.assertEqual(self.ok("tokenize", "--decode", "-p", str(ids)).raw, data)
        self.ok("tokenize", "--decode", "--json", "-p", str(ids)).json()

    def test_specials_only_where_asked_for(self):
        self.assertEqual(self.ok("tokenize", "--special", "--json", "-p", "<|start|>user<|message|>hi<|end|>").json()["ids"],
                         [200006, 1428, 200008, 3686, 200007])
        self.assertNotIn(200006, self.ok("tokenize", "--json", "-p", "<|start|>").json()["ids"])

    def test_lists_ids_and_pieces(self):
        result = self.ok("tokenize", "-m", TINY, "-p", "The capital of France is")
        self.assertIn('    382  "The"', result.out)
        self.assertEqual(result.err, "5 tokens\n")

    def test_a_megabyte_of_one_character_is_quick(self):
        count = self.ok("tokenize", "--count", stdin=b"a" * 1_000_000)
        self.assertGreater(int(count.out), 1000)


class Perplexity(Case):
    def setUp(self):
        super().setUp()
        self.text = self.dir / "text"
        self.text.write_text((TINY / "heldout.txt").read_text()[:4000])

    def test_is_low_with_sinks_and_high_without(self):
        args = ("perplexity", "-m", TINY, "-f", self.text, "--json")
        with_sinks, without = self.ok(*args).json(), self.ok(*args, "--attention-sinks", "off").json()
        self.assertLess(with_sinks["perplexity"], 40)
        self.assertGreater(without["perplexity"], 1.3 * with_sinks["perplexity"])
        self.assertEqual((with_sinks["attention_sinks"], without["attention_sinks"]), (True, False))
        self.assertEqual(with_sinks["window"], 512)
        tokens = int(self.ok("tokenize", "--count", "-m", TINY, "-f", self.text).out)
        self.assertEqual(with_sinks["scored_tokens"], tokens - -(-tokens // 512))  # the first of each window is given
        ids = self.ok("tokenize", "--json", "-m", TINY, "-f", self.text).json()["ids"]
        for window in (2, 512):
            scored = json.dumps([token for i, token in enumerate(ids) if i % window])
            size = len(self.ok("tokenize", "--decode", "-m", TINY, "-p", scored).raw)
            found = self.ok(*args, "--context", window).json()
            self.assertAlmostEqual(found["bits_per_byte"], math.log2(found["perplexity"]) * found["scored_tokens"] / size, places=6)

    @support.needs_int8
    def test_activations_are_rounded_unless_asked_not_to_be(self):
        of = {flags: self.ok("perplexity", "-m", TINY, "-f", self.text, "--json", *flags).json()["perplexity"]
              for flags in ((), ("--moe-activation", "int8"), support.EXACT)}
        rounded, exact = of[()], of[support.EXACT]
        self.assertEqual(rounded, of["--moe-activation", "int8"])
        self.assertNotEqual(rounded, exact)
        self.assertAlmostEqual(rounded / exact, 1, delta=0.003)

    def test_experts_inputs_in_mx_blocks_are_the_references(self):
        text = self.dir / "short"
        text.write_text(self.text.read_text()[:80])
        args = ("perplexity", "-m", TINY, "-f", text, "--json", "--kv-cache-dtype", "f32")
        of = {word: [self.ok(*args, "--backend", backend, "--moe-activation", word).json()["perplexity"] for backend in ("cpu", "reference")]
              for word in ("bf16", "mxfp8", "mxfp6", "mxfp4")}
        for word, (cpu, reference) in of.items():
            self.assertAlmostEqual(cpu / reference, 1, delta=1e-5 if word == "bf16" else 0.02, msg=word)  # a value at a tie moves all behind it
            self.assertEqual(cpu == of["bf16"][0], word == "bf16")
        self.assertEqual(len(support.greedy(TINY, "Once upon a time", "--moe-activation", "mxfp4")), 24)

    def test_dense_inputs_in_mx_blocks_are_the_references(self):
        text = self.dir / "short"
        text.write_text(self.text.read_text()[:80])
        args = ("perplexity", "-m", TINY, "-f", text, "--json", "--kv-cache-dtype", "f32", "--mxfp8-layers", "all", "--moe-activation", "bf16")
        of = {word: [self.ok(*args, "--backend", backend, "--dense-activation", word).json()["perplexity"] for backend in ("cpu", "reference")]
              for word in ("auto", "bf16", "mxfp8")}
        self.assertEqual(of["auto"], of["bf16"])
        self.assertAlmostEqual(of["bf16"][0] / of["bf16"][1], 1, delta=1e-5)
        self.assertAlmostEqual(of["mxfp8"][0] / of["mxfp8"][1], 1, delta=0.02)  # a value at a tie moves all behind it
        self.assertNotEqual(of["mxfp8"][0], of["bf16"][0])
        self.refused(support.UNSUPPORTED, "perplexity", "-m", TINY, "-f", text, "--dense-activation", "mxfp8",
                     says="--dense-activation mxfp8: want --mxfp4-layers or --mxfp8-layers, whose inputs it rounds, found neither")
        self.refused(2, "perplexity", "-m", TINY, "-f", text, "--mxfp8-layers", "qkv", "--dense-activation", "int8", says="found int8")

    def test_attention_in_fp8_is_the_references(self):
        text = self.dir / "short"
        text.write_text(self.text.read_text()[:80])
        args = ("perplexity", "-m", TINY, "-f", text, "--json", "--moe-activation", "bf16", "--kv-cache-dtype", "fp8")
        of = {word: [self.ok(*args, "--backend", backend, "--attention-activation", word).json()["perplexity"] for backend in ("cpu", "reference")]
              for word in ("auto", "bf16", "fp8")}
        self.assertEqual(of["auto"], of["bf16"])
        self.assertAlmostEqual(of["fp8"][0] / of["fp8"][1], 1, delta=0.02)  # a value at a tie moves all behind it
        self.assertNotEqual(of["fp8"][0], of["bf16"][0])
        self.refused(support.UNSUPPORTED, "perplexity", "-m", TINY, "-f", text, "--attention-activation", "fp8",
                     says="--attention-activation fp8: want --kv-cache-dtype fp8, found bf16")

    @support.needs_int8
    def test_fast_is_the_flags_that_it_names(self):
        def perplexity(*flags):
            return self.ok("perplexity", "-m", TINY, "-f", self.text, "--json", "--backend", "cpu", *flags).json()["perplexity"]
        said = self.ok("perplexity", "-m", TINY, "-f", self.text, "--backend", "cpu", "--fast").err
        self.assertRegex(said, r"fast: dense layers mxfp4, activations int8(, KV cache fp8)?; 0\.\d\d % of perplexity on nibble-tiny")
        flags = ("--mxfp4-layers", "all", "--moe-activation", "int8", *(("--kv-cache-dtype", "fp8") if "fp8" in said else ()))
        self.assertEqual(perplexity("--fast"), perplexity(*flags))
        nothing = self.ok("perplexity", "-m", TINY, "-f", self.text, "--backend", "cpu", "--fast", "--cpu-isa", "baseline")
        self.assertIn("fast: nothing lossy is known to be faster here", nothing.err)

    @support.needs_int8
    def test_rounded_activations_write_nearly_the_same_text(self):
        for prompt in ("Once upon a time", "The capital of France is", "One day, a dog"):
            rounded, exact = support.greedy(TINY, prompt), support.greedy(TINY, prompt, *support.EXACT)
            same = next((i for i, (a, b) in enumerate(zip(rounded, exact)) if a != b), len(exact))
            print(f"{prompt!r}: int8 differs from float from token {same} of {len(exact)} on" if same < len(exact) else f"{prompt!r}: the same")
            self.assertGreaterEqual(same, 8, prompt)

    def test_prints_one_line(self):
        self.assertRegex(self.ok("perplexity", "-m", TINY, "-f", self.text, "--context", 64).out, r"^perplexity \d+\.\d+ over \d+ tokens .*64\)\n$")

    def test_the_model_is_a_word_as_in_every_command(self):
        text = ("-p", "Once upon a time", "--json")
        self.assertEqual(self.ok("perplexity", TINY, *text).json(), self.ok("perplexity", "-m", TINY, *text).json())
        self.ok("compare", TINY, *text)
        self.ok("convert", TINY, "-o", self.dir / "m.gguf")
        self.refused(2, "perplexity", TINY, "Once", "-p", "upon", says="Once")


class Compare(Case):
    def test_reference_and_cpu_agree(self):
        result = self.ok("compare", "-m", TINY)
        self.assertIn("agree", result.out)
        report = self.ok("compare", "-m", TINY, "-p", "Once upon a time", "--json").json()
        self.assertEqual((report["differs"], report["tokens"]), (False, 4))
        self.assertEqual(len(report["stages"]), 2 + 13 * 8)

    def test_a_difference_is_named_with_stage_layer_and_element(self):
        result = nibble("compare", "-m", TINY, "--kv-cache-dtype", "bf16", "--tolerance", "1e-6")
        self.assertEqual(result.code, 8, result.err)
        self.assertRegex(result.out, r"first difference: (layer \d+ )?\w+, .*\[\d+, \d+")
        report = nibble("compare", "-m", TINY, "--tolerance", "1e-12", "--json")
        self.assertEqual((report.code, report.json()["differs"]), (8, True))


class Synth(Case):
    def test_a_tiny_checkpoint_is_written_and_runs_as_the_dummy_does(self):
        path = self.dir / "tiny"
        report = self.ok("synth", "--preset", "tiny", "--seed", 3, "-o", path, "--json").json()
        self.assertEqual(report["bytes"], self.ok("inspect", "-m", path, "--json").json()["bytes"])
        self.assertEqual(sorted(p.name for p in path.iterdir()), ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"])
        written = support.greedy(path, "Hello, world")
        self.assertEqual(len(written), 24)
        self.assertEqual(support.greedy("tiny", "Hello, world", "--load-format", "dummy", "--dummy-seed", 3), written)
        self.assertEqual(support.greedy(path, "Hello, world", "--load-format", "dummy", "--dummy-seed", 3), written)
        self.ok("compare", "-m", path, "-p", "Hello, world")
        chat = self.ok("chat", "-m", path, "-p", "Hi", "-n", 60, "--json", "--seed", 1).json()  # noise: any messages
        self.assertEqual(chat["usage"]["completion_tokens"], 60)

    def test_fewer_layers(self):
        self.ok("synth", "--preset", "tiny", "--layers", 1, "-o", self.dir / "a", "-q")
        self.assertEqual(self.ok("inspect", "-m", self.dir / "a", "--json").json()["dims"]["layers"], 1)


class Pipes(Case):
    def test_a_reader_that_leaves_early_ends_the_program_quietly(self):
        with subprocess.Popen([NIBBLE, "run", *map(str, PROMPT), "-q", "-n", "2000", "--ignore-eos", "--backend", "cpu"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            process.stdout.read(5)
            process.stdout.close()
            self.assertEqual(process.stderr.read(), b"")
            self.assertEqual(process.wait(support.TIMEOUT_S), -13)  # SIGPIPE

    def test_a_full_or_closed_standard_output_is_an_error(self):
        for args in (("run", *PROMPT, "-n", 3), ("--help",), ("inspect", "-m", "tiny", "--load-format", "dummy"), ("tokenize", "-p", "a")):
            with open("/dev/full", "wb") as full:
                done = subprocess.run([NIBBLE, *map(str, args)], stdout=full, stderr=subprocess.PIPE, check=False)
            self.assertEqual(done.returncode, 5, args)
            self.assertIn(b"nibble: cannot write", done.stderr)
            closed = subprocess.run([NIBBLE, *map(str, args)], stderr=subprocess.PIPE, check=False, preexec_fn=lambda: os.close(1))
            self.assertEqual(closed.returncode, 5, args)

    def test_closed_standard_streams_give_their_numbers_to_no_file(self):
        path = self.dir / "m"
        done = subprocess.run([NIBBLE, "synth", "--preset", "tiny", "-o", str(path), "--json"], check=False,
                              preexec_fn=lambda: os.closerange(0, 3))
        self.assertEqual(done.returncode, 5)  # its report went nowhere
        self.ok("inspect", "-m", path)
        self.assertEqual(subprocess.run([NIBBLE, "nonsense"], check=False, preexec_fn=lambda: os.close(2)).returncode, 2)
        self.assertEqual(subprocess.run([NIBBLE, "run", *map(str, PROMPT), "-n", "1"], stdout=subprocess.DEVNULL, check=False,
                                        preexec_fn=lambda: os.close(2)).returncode, 0)
        done = subprocess.run([NIBBLE, "run", "-m", str(TINY)], capture_output=True, check=False, preexec_fn=lambda: os.close(0))
        self.assertEqual(done.returncode, 5, done.stderr)


if __name__ == "__main__":
    support.main()
