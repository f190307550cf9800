"""nibble bench: the shape of its tables, what it refuses, and what a Ctrl-C leaves. No figure is held to anything."""
import os
import shutil
import signal
import subprocess
import time

import support
from support import INTERRUPTED, MEMORY, NIBBLE, TIMEOUT_S, TINY, UNSUPPORTED, USAGE, Case

BENCH = ("bench", "-m", TINY)
SMALL = (*BENCH, "-r", 2, "-p", "0,8", "-n", 2, "-d", "0,150", "-b", "1,3")
TESTS = [(test, depth, batch) for depth in (0, 150) for test, batch in (("pp8", 1), ("tg2", 1), ("tg2", 3))]


def label(test, depth):
    return test + (f" @ d{depth}" if depth else "")


class Tables(Case):
    def test_markdown_has_a_line_per_test_under_what_was_measured(self):
        lines = self.ok(*SMALL).out.splitlines()
        table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
        self.assertEqual(table[0][:3], ["test", "batch", "t/s"])
        self.assertEqual([(row[0], row[1]) for row in table[2:]], [(label(t, d), str(b)) for t, d, b in TESTS])
        for row in table[2:]:
            self.assertEqual(len(row), len(table[0]))
            mean, sd = row[2].split(" ± ")
            self.assertGreater(float(mean), 0)
            self.assertGreaterEqual(float(sd), 0)
            self.assertEqual(row[-1], "-")  # joules, which a processor does not count
            for cell in row[-4:-1]:
                self.assertRegex(cell, r"^\d+\.\d%$")
        head = "\n".join(lines[:lines.index("")] + lines)
        for words in ("nibble bench -m", "nibble-tiny: 8 layers, 8 experts", "backend cpu (", " threads), KV cache", "reads ", "f32 (", "2 repetitions"):
            self.assertIn(words, head)

    def test_json_holds_every_repetition_and_the_device(self):
        for flags in (("-o", "json"), ("--json",)):
            json = self.ok(*SMALL, *flags, "-t", 2).json()
            self.assertEqual([(r["test"], r["batch"]) for r in json["rows"]], [(label(t, d), b) for t, d, b in TESTS])
            self.assertGreater(json["read_bytes_per_s"], 0)
            self.assertTrue(any(m["exact"] and m["flops_per_s"] > 0 for m in json["matrix"]))
            self.assertEqual((json["threads"], json["backend"], json["interrupted"]), (2, "cpu", False))
            self.assertRegex(json["kernels"], r"^\w[\w ]*, (float|int8) activations.*, 2 threads$")
            for row in json["rows"]:
                self.assertEqual(len(row["seconds"]), 2)
                tokens = row["prompt"] or row["generate"] * row["batch"]
                mean = sum(tokens / s for s in row["seconds"]) / 2
                self.assertAlmostEqual(row["tokens_per_second"]["mean"] / mean, 1, 6)
                self.assertGreaterEqual(row["of_limit"], max(row["of_read"], row["of_matrix"]) - 1e-9)
                self.assertLessEqual(row["of_limit"], row["of_read"] + row["of_matrix"] + 1e-9)

    def test_deeper_and_wider_reads_more(self):
        rows = {(r["depth"], r["batch"]): r for r in self.ok(*BENCH, "-p", 0, "-n", 2, "-d", "0,200", "-b", "1,4", "-r", 1, "--json").json()["rows"]}
        self.assertGreater(rows[200, 1]["bytes"], rows[0, 1]["bytes"])
        self.assertGreater(rows[0, 4]["bytes"], rows[0, 1]["bytes"])
        self.assertLess(rows[0, 4]["bytes"], 4 * rows[0, 1]["bytes"])
        self.assertEqual(rows[0, 4]["flops"], 4 * rows[0, 1]["flops"])

    def test_requantised_layers_are_fewer_bytes(self):
        run = (*BENCH, "--backend", "reference", "-p", 0, "-n", 1, "-r", 1, "--json")
        whole, small = self.ok(*run).json(), self.ok(*run, "--mxfp4-layers", "all").json()
        self.assertIn("lm_head mxfp4", small["formats"])
        self.assertLess(small["rows"][0]["bytes"], whole["rows"][0]["bytes"])

    def test_other_sources_and_backends(self):
        self.ok("bench", "-m", "tiny", "--load-format", "dummy", "-p", 4, "-n", 1, "-r", 1)
        self.ok(*BENCH, "--backend", "reference", "-p", 2, "-n", 1, "-r", 1, "-d", 3)
        self.ok(*BENCH, "-p", 300, "-n", 0, "-r", 1, "--max-num-batched-tokens", 7, "-d", 140, "-q")

    def test_a_profile_shares_the_time_out_by_stage(self):
        rows = self.ok(*BENCH, "-p", 4, "-n", 2, "-r", 1, "--profile", "--json").json()["rows"]
        for row in rows:
            self.assertEqual([p["stage"] for p in row["profile"]], ["embed", "attn_in", "attend", "attn_out", "route", "moe", "logits"])
            self.assertAlmostEqual(sum(p["of_time"] for p in row["profile"]), 1, 6)
        text = self.ok(*BENCH, "-p", 0, "-n", 2, "-r", 1, "--profile").out
        self.assertIn("tg2, batch 1: per step, over 2 steps and all layers", text)

    def test_a_made_up_head_drafts_and_its_time_counts(self):
        drafts = (*BENCH, "-n", 24, "-d", 8, "-r", 1, "--speculative", "eagle3", "--speculative-tokens", 2)
        json = self.ok(*drafts, "--speculative-acceptance", "0,1.5", "--speculative-draft-vocab", 100, "--json").json()["speculation"]
        self.assertEqual([row["drafted"] for row in json["verify"]], [0, 1, 2])
        for row in json["verify"]:
            self.assertEqual(row["drafting_seconds"] > 0, row["drafted"] > 0)
        self.assertEqual([(row["method"], row["plain_tokens_per_second"] > 0) for row in json["gains"]], [("a head", True)] * 2)
        self.refused(USAGE, *drafts, "--speculative-texts", "x.jsonl", says="want --speculative ngram or suffix")
        self.refused(USAGE, *drafts, "--speculative-model", TINY, says="--speculative-model: want --speculative draft, found eagle3")

    def test_guesses_of_a_draft_model(self):
        drafts = (*BENCH, "-n", 24, "-d", 8, "-r", 1, "--speculative", "draft", "--speculative-tokens", 2)
        json = self.ok(*drafts, "--speculative-model", TINY, "--speculative-acceptance", "0,1.5", "--json").json()["speculation"]
        self.assertEqual([row["drafted"] for row in json["verify"]], [0, 1, 2])
        for row in json["verify"]:
            self.assertEqual(row["drafting_seconds"] > 0, row["drafted"] > 0)
        self.refused(USAGE, *drafts, says="want --speculative-model MODEL")

    def test_tuning_wants_a_card_and_dummies(self):
        self.refused(USAGE, *BENCH, "--tune", "-o", "json", says="want --output md")
        self.refused(UNSUPPORTED, *BENCH, "--tune", says="want --backend cuda, --load-format dummy")
        self.refused(UNSUPPORTED, "bench", "-m", "tiny", "--load-format", "dummy", "--backend", "cuda", "--moe-kernel", "gemm", "--tune", says="no --moe-kernel")
        self.refused(UNSUPPORTED, "bench", "-m", "tiny", "--load-format", "dummy", "--backend", "cuda", "--fast", "--tune", says="no --fast")

    def test_lists_are_sorted_and_said_once(self):
        rows = self.ok(*BENCH, "-p", "4,2,4", "-n", 0, "-r", 1, "--json").json()["rows"]
        self.assertEqual([r["prompt"] for r in rows], [2, 4])


class Refusals(Case):
    def test_flags(self):
        for flag in ("-p", "-n", "-d", "-b"):
            for value in ("-1", "x", "1,", ",1", "1,,2", "1 2", "1e3", "99999999999999999999", "1.5", "0x10", "16777217"):
                with self.subTest(flag=flag, value=value):
                    self.refused(USAGE, *BENCH, f"{flag}{value}" if value.startswith("-") else flag, *([] if value.startswith("-") else [value]))
        self.refused(USAGE, *BENCH, "-b", 0, says="from 1 to 1024")
        self.refused(USAGE, *BENCH, "-b", 1025)
        for repetitions in ("0", "-1", "x", "1001"):
            self.refused(USAGE, *BENCH, "-r", repetitions)
        self.refused(USAGE, *BENCH, "-o", "html", says="md or json")
        self.refused(USAGE, *BENCH, "-o", "md", "--json", says="excludes")
        self.refused(USAGE, *BENCH, "-p", 0, "-n", 0, says="nothing to measure")
        self.refused(USAGE, "bench", says="--model")

    def test_beyond_the_context(self):
        self.refused(USAGE, *BENCH, "-d", 131072, says="131072")
        self.refused(USAGE, *BENCH, "-p", 100, "-n", 0, "--max-model-len", 99, says=("--max-model-len", "found 100"))

    def test_what_does_not_fit_is_refused_with_what_would(self):
        said = self.refused(MEMORY, *BENCH, "-p", 0, "-n", 1, "-b", 1024, "-d", 131000, says=("KV cache", "would fit: -b ")).err
        self.assertRegex(said, r"-d \d+")
        self.refused(MEMORY, "bench", "-m", "gpt-oss-120b", "--load-format", "dummy", "-d", 130000, "-b", 1024, says="weights 65.2 GB")

    def test_options_of_another_backend(self):
        self.assertIn("--enforce-eager, --gpu-memory-utilization 0.5 make no difference: no card is used", self.ok(*BENCH, "--gpu-memory-utilization", 0.5, "--enforce-eager", "-p", 4, "-n", 0, "-r", 1).err)
        for value in ("0", "1.1", "-1", "nan", "x", ""):
            self.refused(USAGE, *BENCH, "--gpu-memory-utilization", value)

    def test_no_card(self):
        if "built without CUDA" in support.nibble(*BENCH, "--backend", "cuda", "-p", 1, "-n", 0).err:
            self.refused(UNSUPPORTED, *BENCH, "--backend", "cuda", says="this program is built without CUDA")
            # Said before anything is asked of the memory, or of the weights
            large = ("-m", "gpt-oss-120b", "--load-format", "dummy", "--backend", "cuda", "--dummy-seed", 1)
            for command in (("bench", "-b", 1024, "-d", 130000), ("run", "-p", "a")):
                self.refused(UNSUPPORTED, *command, *large, says="this program is built without CUDA")


class Plans(Case):
    def test_every_stage_has_kernels_and_the_steps_cost(self):
        for backend in (["cpu"], *(["cuda", "--moe-kernel", kernel] for kernel in ("reference", "marlin", "gemm"))):
            plans = self.ok("inspect", "-m", TINY, "--plan", "--backend", *backend, "-b", "0,1,8", "-p", 16, "-d", "0,300", "--json").json()["plans"]
            self.assertEqual([p["step"] for p in plans], [f"{s} @ d{d}{b}" for d in (0, 300) for s, b in (("tg", ", batch 1"), ("tg", ", batch 8"), ("pp16", ""))])
            for plan in plans:
                layers = {"": 1, "1": 1, "7": 7, "8": 8, "4 sliding": 4, "4 full": 4}
                for number in ("bytes", "flops"):
                    total = sum(s[number] * layers[s["layers"]] for s in plan["stages"])
                    self.assertAlmostEqual(total / plan[number], 1, 3)
                self.assertEqual({s["stage"] for s in plan["stages"]}, {"embed", "attn_in", "attend", "attn_out", "route", "moe", "logits"})

    def test_a_long_prompt_goes_in_steps_as_in_the_engine(self):
        plan = ("inspect", "-m", TINY, "--plan", "--backend", "cpu", "-b", 0, "-d", 100, "-p", 1100, "--json")
        steps = lambda *flags: [p["step"] for p in self.ok(*plan, *flags).json()["plans"]]
        self.assertEqual(steps(), ["pp1100 @ d100, step 1 of 3: 512 tokens", "pp1100 @ d100, step 3 of 3: 76 tokens"])
        self.assertEqual(steps("--max-num-batched-tokens", 1100), ["pp1100 @ d100"])

    def test_a_named_card_is_planned_for_a_build_that_has_code_for_it(self):
        plan = ("inspect", "-m", TINY, "--plan", "-b", 1, "-p", 0)
        self.assertIn("kernels: of a build with code for this card", self.ok(*plan, "--backend", "cuda", "--card", "gb10").out)
        self.assertIn("cuda, GB10", self.ok(*plan, "--card", "gb10").out)  # a card needs no --backend
        self.refused(support.USAGE, *plan, "--card", "gb10", "--backend", "cpu", says="--card gb10: want --backend cuda, found cpu")
        self.assertNotIn("kernels: ", self.ok(*plan, "--backend", "cpu").out)

    def test_scales_above_2_4_reach_the_plan(self):
        def planned(model, *flags):
            json = self.ok("inspect", "-m", model, "--plan", "--backend", "cuda", "--card", "h200", "-p", 512, "-b", 0, "-d", 0, *flags, "--json").json()
            return json["scales"], {stage["kernel"] for stage in json["plans"][0]["stages"] if stage["stage"] == "moe"}

        def with_scale(code):  # of the last block of the last layer's experts
            model = self.dir / f"scale{code}"
            shutil.copytree(TINY, model)
            (model / "model.safetensors.index.json").unlink()
            tensors = support.read_model(TINY)
            name = "model.layers.7.mlp.experts.down_proj_scales"
            dtype, shape, data = tensors[name]
            tensors[name] = (dtype, shape, bytes(data[:-1]) + bytes([code]))
            for shard in model.glob("*.safetensors"):
                shard.unlink()
            (model / "model.safetensors").write_bytes(support.safetensors_bytes(tensors))
            return model

        for model in (TINY, with_scale(131)):
            scales, kernels = planned(model)
            self.assertEqual(scales, "at most 2^4")
            self.assertIn("sm90_mxfp4_gemm", str(kernels))
        scales, kernels = planned(with_scale(132))
        self.assertEqual(scales, "some above 2^4")
        self.assertIn("any_gemm<mxfp4>", kernels)
        self.assertNotIn("sm90_mxfp4_gemm", str(kernels))
        for code, says, kernel in ((109, "at most 2^4", "sm90_mxfp4_gemm<gate_up, e4m3>"),  # 17 scales up to 2^-2
                                   (108, "at most 2^4, the experts' too far apart for FP8", "sm90_mxfp4_gemm<gate_up>")):
            scales, kernels = planned(with_scale(code), "--moe-activation", "mxfp8")
            self.assertEqual(scales, says)
            self.assertIn(kernel, kernels)
        self.ok("convert", "-m", TINY, "-o", self.dir / "tiny.gguf")
        for model, flags in ((self.dir / "tiny.gguf", ()), ("gpt-oss-20b", ("--load-format", "dummy"))):
            self.assertEqual(planned(model, *flags)[0], "taken for at most 2^4, they are not read")
        self.assertEqual(self.ok("inspect", "-m", TINY, "--plan", "--backend", "cpu", "-p", 0, "-b", 1, "--json").json()["scales"], "")

    def test_options_reach_the_plan(self):
        plan = ("inspect", "-m", "gpt-oss-120b", "--load-format", "dummy", "--plan", "--backend", "cuda", "-p", 0, "-b", 1)
        self.assertIn("any_attend_decode<bf16>", self.ok(*plan).out)
        self.assertIn("any_attend<bf16>", self.ok(*plan, "--attention-backend", "reference").out)
        self.assertIn("any_attend_decode<e4m3>", self.ok(*plan, "--kv-cache-dtype", "fp8").out)
        for flag in ("--mxfp4-layers", "--mxfp8-layers"):
            self.assertIn(f"gemv<qkv, {flag[2:7]}>", self.ok(*plan, flag, "qkv").out)
        gemms = self.ok(*plan[:-4], "-p", 64, "-b", 0, "--moe-kernel", "gemm", "--card", "h200", "--json").json()
        self.assertIn("sm90_grouped", str(gemms))
        self.assertEqual(gemms["plans"][0]["moe_kernel"], "gemm")
        spark = self.ok(*plan, "--moe-kernel", "marlin", "--card", "gb10").out
        self.assertIn("cuda, GB10 (48 multiprocessors)", spark)
        self.assertRegex(spark, r"moe_up +grid 48 x ")
        self.assertIn("activations of experts bf16", self.ok(*plan).out)
        for word in ("mxfp8", "mxfp6", "mxfp4"):
            self.assertNotIn("any_round", self.ok(*plan, "--moe-activation", word).out)  # a decode step is exact
            self.assertIn(f"any_round_blocks<{word}>", self.ok(*plan[:-1], 9, "--card", "gb10", "--moe-activation", word).out)
            many = (*plan[:-4], "-p", 2048, "-b", 0, "--card", "gb10", "--moe-activation", word)
            self.assertIn(f"sm121_mx_gemm<down, {word}>", self.ok(*many).out)
        self.assertIn("gemv<qkv, mxfp4>", self.ok(*plan, "--fast").out)
        self.assertNotIn("e4m3", self.ok(*plan, "--fast", "--card", "h100").out)
        self.assertIn("any_attend_decode<e4m3, fp8>", self.ok(*plan, "--fast", "--card", "gb10").out)
        prompt = (*plan[:-4], "-p", 2048, "-b", 0, "--moe-activation", "mxfp8", "--moe-tile", "64x128", "--card")
        self.assertRegex(self.ok(*prompt, "gb10").out, r"sm121_mx_gemm<gate_up, mxfp8> +128 rows x 64 tokens")
        dense = (*plan[:-4], "-p", 2048, "-b", 0, "--mxfp8-layers", "qkv,o", "--dense-activation", "mxfp8", "--card")
        self.assertRegex(self.ok(*dense, "gb10").out, r"of dense layers mxfp8(.|\n)*sm121_mx_gemm<mxfp8> +128 rows x 128 tokens")
        self.assertNotIn("sm121", self.ok(*dense, "h100").out)
        self.refused(UNSUPPORTED, *plan, "--dense-activation", "mxfp8", says="want --mxfp4-layers or --mxfp8-layers")
        attention = (*plan[:-4], "-p", 2048, "-b", 0, "--kv-cache-dtype", "fp8", "--attention-activation", "fp8", "--card")
        self.assertIn("any_attend_prefill_fp8<mx>", self.ok(*attention, "gb10").out)
        self.assertIn("any_attend_prefill_fp8<mma>", self.ok(*attention, "4090").out)
        self.refused(UNSUPPORTED, *attention, "h100", "--attention-backend", "reference", says="found fp8, --attention-backend reference")
        self.refused(UNSUPPORTED, *prompt, "h200", says="--moe-tile 64x128: want a card of compute capability 12")
        self.refused(UNSUPPORTED, *plan, "--moe-activation", "int8", says="want --backend cpu or reference")
        self.refused(UNSUPPORTED, *plan, "--moe-activation", "f32", says="want --backend cpu")
        cpu = ("inspect", "-m", TINY, "--plan", "-p", 64, "-b", 1)
        self.assertIn("multiply_f32_mxfp4 (baseline)", self.ok(*cpu, "--cpu-isa", "baseline").out)
        if "avx512 vnni" in self.ok(*cpu).out:
            self.assertIn("multiply_int8_mxfp4 (avx512 vnni)", self.ok(*cpu, "--moe-activation", "int8", "--cpu-isa", "avx512").out)
        self.refused(UNSUPPORTED, *plan, "--moe-kernel", "reference", "--mxfp4-layers", "qkv", says="--mxfp8-layers and --q8-layers: want")

    def test_the_cache_reaches_the_cpus_plan(self):
        plan = ("inspect", "-m", "gpt-oss-20b", "--load-format", "dummy", "--plan", "-p", 0, "-b", 1, "-d", 4095)
        sizes = {}
        for dtype, name in (("bf16", "bf16"), ("fp8", "e4m3"), ("int8", "int8")):
            stages = self.ok(*plan, "--kv-cache-dtype", dtype, "--json").json()["plans"][0]["stages"]
            full = next(s for s in stages if s["stage"] == "attend" and s["layers"] == "12 full")
            self.assertTrue(full["kernel"].startswith(f"attend_{name} ("), full["kernel"])
            sizes[dtype] = full["bytes"] - 2 * 64  # without the sinks
        self.assertEqual(sizes["bf16"], 4096 * 2 * 2 * 512)
        self.assertEqual(sizes["fp8"] * 2, sizes["bf16"])
        self.assertEqual(sizes["int8"], 4096 * 2 * (512 + 8 * 2))

    @support.needs_int8
    def test_int8_reaches_the_cpus_plan(self):
        plan = ("inspect", "-m", "gpt-oss-20b", "--load-format", "dummy", "--plan", "-p", 0, "-b", 1)
        self.assertIn("multiply_int8", self.ok(*plan, "--moe-activation", "int8").out)
        self.assertNotIn("multiply_int8", self.ok(*plan, "--moe-activation", "f32").out)

    def test_a_masked_cpu_has_nothing_beyond(self):
        plan = ("inspect", "-m", TINY, "--plan", "-p", 64, "-b", 1)
        masked = {"env": {**os.environ, "NIBBLE_CPU_MASK": "baseline"}}
        self.assertIn("(baseline)", self.ok(*plan, **masked).out)
        for isa in ("avx2", "avx512", "amx"):
            self.refused(UNSUPPORTED, *plan, "--cpu-isa", isa, says=f"--cpu-isa {isa}: this CPU, or this build, has only baseline (the rest is masked)", **masked)
        self.refused(USAGE, *plan, says="NIBBLE_CPU_MASK: want auto or baseline", env={**os.environ, "NIBBLE_CPU_MASK": "sse9"})
        self.ok(*plan, env={**os.environ, "NIBBLE_CPU_MASK": ""})

    def test_a_card_is_taken_for_one_of_an_architecture_that_there_is(self):
        plan = ("inspect", "-m", TINY, "--plan", "--backend", "cpu")
        self.refused(USAGE, *plan, says="NIBBLE_CUDA_ARCH: want sm_80, sm_86, sm_89, sm_90, sm_100, sm_120, sm_121, found sm_75", env={**os.environ, "NIBBLE_CUDA_ARCH": "sm_75"})
        for arch in ("", "sm_80"):
            self.ok(*plan, env={**os.environ, "NIBBLE_CUDA_ARCH": arch})

    def test_what_makes_no_plan(self):
        self.refused(USAGE, "inspect", "-m", TINY, "-b", 1, says="requires --plan")
        self.refused(USAGE, "inspect", "-m", TINY, "--plan", "-b", 0, "-p", 0, says="nothing to plan")
        self.refused(USAGE, "inspect", "-m", TINY, "--plan", "-d", 131072, says="131072")
        self.refused(UNSUPPORTED, "inspect", "-m", TINY, "--plan", "--cpu-isa", "baseline", "--moe-activation", "int8", says="--moe-activation int8: want AVX2")
        self.refused(UNSUPPORTED, "inspect", "-m", TINY, "--plan", "--backend", "reference", says="plain loops")
        self.refused(USAGE, "inspect", "-m", TINY, "--plan", "--backend", "cuda", "--card", "a1000", says="gb10")


class CtrlC(Case):
    def test_what_was_measured_is_shown(self):
        command = [NIBBLE, *map(str, BENCH), "-p", "2", "-n", "60000"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            seen = b""
            until = time.monotonic() + TIMEOUT_S
            while b"| pp2 " not in seen and time.monotonic() < until:
                seen += process.stdout.read1()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=TIMEOUT_S)
        self.assertEqual(process.returncode, INTERRUPTED, err)
        self.assertNotIn(b"tg", out)
        self.assertIn(b"interrupted", err)


if __name__ == "__main__":
    support.main()
