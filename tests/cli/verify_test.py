"""nibble verify and bench --compare as a person or a script meets them. What the levels catch: tests/verify_test.cpp."""
import html.parser
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
import foreign_result
import page
import support
from load_test import DONE, EVENT, StandIn
from schema import problems
from serve_support import Server
from support import IO, TINY, Case

FAILED, USAGE = 1, 2


class InProcess(Case):
    def test_smoke_and_paths_pass_and_the_report_says_so(self):
        page = self.dir / "verify.md"
        result = support.nibble("verify", TINY, "--level", "1,1.5", "--report", page, "--json")
        self.assertEqual(result.code, 0, result.err)
        found = result.json()
        self.assertEqual(problems(found), [])
        self.assertTrue(found["passed"])
        self.assertEqual({check["level"] for check in found["checks"]}, {"1", "1.5"})
        text = page.read_text()
        for words in ("# nibble verify: ", " 0 failed", "dispatch line", "; called: ", found["metadata"]["model"]["sha256"], "build.commit"):
            self.assertIn(words, text)

    def test_checks_and_report_come_as_they_end(self):
        page = self.dir / "verify.md"
        command = [support.NIBBLE, "verify", TINY, "--level", "1,3", "--max-model-len", "512", "--report", page]
        with subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True) as running:
            rows = (line for line in running.stdout if line.startswith("| 1 "))
            self.assertIn("| starts ", next(rows))
            while running.poll() is None and not (page.exists() and "| starts " in page.read_text()):  # just behind the row
                time.sleep(0.01)
            self.assertIsNone(running.poll(), "it should still run")
            self.assertIn(", not at its end", page.read_text())
            rest = running.stdout.read()
        self.assertEqual(running.returncode, 0)
        self.assertRegex(rest, r"\d+ passed, 0 failed, 0 skipped\n[0-9.]+ s: level 1 [0-9.]+ s, level 3 [0-9.]+ s\n$")
        self.assertEqual(rest.count("| starts "), 0, "each row once")
        text = page.read_text()
        self.assertNotIn("not at its end", text)
        self.assertIn("| all pages are back ", text)

    def test_stress_in_a_small_context(self):
        result = support.nibble("verify", TINY, "--level", "3", "--max-model-len", 512)
        self.assertEqual(result.code, 0, result.out)
        self.assertIn("all pages are back", result.out)

    def test_a_corrupted_file_fails(self):
        damaged = self.dir / "model"
        shutil.copytree(TINY, damaged)
        shard = damaged / "model-00001-of-00002.safetensors"
        data = bytearray(shard.read_bytes())
        data[-5000] ^= 0x40
        shard.write_bytes(data)
        result = support.nibble("verify", damaged, "--level", "2")
        self.assertEqual(result.code, FAILED)
        self.assertRegex(result.out, r"weights are those of reference.json +\| FAIL ")

    def test_bad_levels(self):
        for level in ("7", "", "1,", "x"):
            self.assertEqual(support.nibble("verify", TINY, "--level", level).code, USAGE, level)


class Baselines(Case):
    def verify(self, *args):
        return support.nibble("verify", TINY, "--level", 5, *args)

    own = ""  # of this machine, once it is measured

    def kept(self, change=lambda baseline: None):
        """A baseline of this machine, with what a test plants."""
        path = self.dir / "kept.json"
        if not Baselines.own:
            result = self.verify("--save-baseline", path)
            self.assertEqual(result.code, 0, result.out)
            Baselines.own = path.read_text()
            self.assertEqual(problems(json.loads(Baselines.own)), [])
        baseline = json.loads(Baselines.own)
        for row in baseline["rows"]:
            row["seconds"] = [100 * seconds for seconds in row["seconds"]]  # no figure of this machine decides
        change(baseline)
        path.write_text(json.dumps(baseline))
        return path

    def test_nothing_worse_passes(self):
        result = self.verify("--baseline", self.kept(), "--json")
        self.assertEqual(result.code, 0, result.out)
        found = result.json()
        self.assertEqual(problems(found), [])
        self.assertEqual({check["verdict"] for check in found["checks"]}, {"pass"})
        self.assertEqual(len(found["checks"]), 9)

    def test_what_is_planted_fails(self):
        def plant(baseline):
            for row in baseline["rows"]:
                row["seconds"] = [1e-6, 1.1e-6, 1e-6]
            baseline["memory_bytes"]["host"] = -2_000_000_000
            baseline["accuracy"] = {"perplexity": 1, "kl": -1, "top1": 1.1}

        result = self.verify("--baseline", self.kept(plant))
        self.assertEqual(result.code, FAILED)
        for name in ("pp512", "tg32, batch 1", "tg32, batch 8", "memory of the process", "perplexity", "KL divergence", "equal top tokens"):
            self.assertRegex(result.out, rf"\| {name} +\| FAIL ")

    def test_of_something_else_is_refused_by_name(self):
        def other_model(baseline):
            baseline["metadata"]["model"]["sha256"] = "00"

        kept = self.kept(other_model)
        result = self.verify("--baseline", kept)
        self.assertEqual(result.code, USAGE)
        self.assertRegex(result.err, r'--baseline .*: model.sha256: want "\w{64}", found "00"')
        baseline = json.loads(kept.read_text())
        del baseline["metadata"]["warm_up"]
        kept.write_text(json.dumps(baseline))
        result = self.verify("--baseline", kept)
        self.assertEqual(result.code, USAGE)
        self.assertIn("found no warm_up", result.err)

    def test_settings(self):
        kept = self.kept()
        result = self.verify("--baseline", kept, "--kv-cache-dtype", "f32")
        self.assertEqual(result.code, USAGE)
        self.assertIn('--kv-cache-dtype: want "f32", found "bf16"', result.err)

    def test_flags(self):
        kept = self.dir / "kept.json"
        for args in (("--level", 1), ("--base-url", "http://127.0.0.1:1")):
            for flag in ("--baseline", "--save-baseline"):
                self.assertEqual(support.nibble("verify", TINY, *args, flag, kept).code, USAGE, (args, flag))
        self.assertFalse(kept.exists())


class Committed(unittest.TestCase):
    def test_baselines_are_results_of_the_schema(self):
        files = sorted((support.SOURCE / "bench/baselines").rglob("*.json"))
        self.assertGreater(len(files), 2)
        for file in files:
            self.assertEqual(problems(json.loads(file.read_text())), [], file)


class Features(Case):
    def verify(self, *args):
        return support.nibble("verify", TINY, "--level", 6, "--rounds", 1, *args)

    def test_a_product(self):
        result = self.verify("--features", "activation=f32/mxfp8,kv=bf16/fp8,kernel=auto/marlin", "--json")
        self.assertEqual(result.code, 0, result.out)
        found = result.json()
        self.assertEqual(problems(found), [])
        rows = {row["name"]: row for row in found["features"]["combinations"]}
        self.assertEqual(len(rows), 8)
        self.assertEqual(rows["activation=mxfp8 kv=fp8"]["flags"]["kv-cache-dtype"], "fp8")
        self.assertIn("together", rows["activation=mxfp8 kv=fp8"])
        self.assertEqual(rows["kernel=marlin"]["refused"] if "kernel=marlin" in rows else rows["kv=fp8 kernel=marlin"]["refused"],
                         "--moe-kernel: want --backend cuda, found cpu")

    def test_the_table_says_what_helps_and_what_is_refused(self):
        result = self.verify("--features", "kv=bf16/f32,eager=false/true")
        self.assertEqual(result.code, 0, result.out)
        for words in ("### Alone", "| kv=f32 |", "### Refused", "--enforce-eager: want --backend cuda, found cpu"):
            self.assertIn(words, result.out)

    def test_too_many(self):
        result = self.verify("--features", "kv=bf16/f32/fp8", "--max-combinations", 2)
        self.assertEqual(result.code, USAGE)
        self.assertIn("3 combinations would run, want at most 2", result.err)
        self.assertIn("--max-combinations 3", result.err)

    def test_what_is_no_feature(self):
        for wrong, words in (("kvv", "found kvv"), ("kv=fp9", "found fp9"), ("kernel=marlin/gemm", "the first values together are refused")):
            result = self.verify("--features", wrong)
            self.assertEqual(result.code, USAGE, wrong)
            self.assertIn(words, result.err)

    def test_flags_that_the_usual_product_does_not_go_with(self):
        result = support.nibble("verify", TINY, "--level", 6, "--fast")
        self.assertEqual(result.code, 0, result.out)
        self.assertRegex(result.out, r"skipped \| +[0-9.]+ \| refused: --fast: it chooses the formats")

    def test_presets_of_cards_say_so_on_a_cpu(self):
        result = support.nibble("verify", TINY, "--preset", "B1,C4")
        self.assertEqual(result.code, 0, result.out)
        self.assertRegex(result.out, r"\| 6     \| 2 combinations, B1 the first +\| skipped \| +[0-9.]+ \| refused: --moe-kernel: want --backend cuda, found cpu \|")
        self.assertEqual(support.nibble("verify", TINY, "--preset", "B9").code, USAGE)


class Servers(Case):
    def test_nibble_serve(self):
        server = Server()
        self.addCleanup(server.process.kill)
        result = support.nibble("verify", "--base-url", f"http://127.0.0.1:{server.port}", "--json")
        self.assertEqual(result.code, 0, result.out)
        found = result.json()
        self.assertEqual(problems(found), [])
        verdicts = {check["check"]: check["verdict"] for check in found["checks"]}
        self.assertEqual(verdicts["nothing is held"], "pass")
        self.assertEqual(verdicts["this level"], "skipped")  # it looks inside

    def test_a_server_that_fails_at_times(self):
        def answer(handler, number):
            if number % 50 == 49:
                return handler.send_error(503, "busy")
            return handler.events(EVENT, b'data: {"choices":[{"text":"","finish_reason":"stop"}]}\n\n', DONE)

        server = StandIn(answer)
        self.addCleanup(server.close)
        result = support.nibble("verify", "--base-url", server.url, "--level", "1,3")
        self.assertEqual(result.code, FAILED)
        self.assertIn("2 x HTTP 503", result.out)
        self.assertRegex(result.out, r"it says why it ended +\| pass ")


class Comparisons(Case):
    def bench(self, name, *flags):
        path = self.dir / name
        result = support.nibble("bench", "-m", TINY, "-p", 16, "-n", 4, "-r", 3, "--json", *flags)
        self.assertEqual(problems(result.json()), [])
        path.write_text(result.out)
        return path

    def test_two_results_of_one_machine(self):
        a, b = self.bench("a.json"), self.bench("b.json", "--moe-activation", "f32")
        result = support.nibble("bench", "--compare", a, b)
        self.assertEqual(result.code, 0, result.err)
        self.assertIn("--moe-activation: auto, f32" if "--moe-activation: auto" in result.out else "--moe-activation: ", result.out)
        for words in ("| pp16 ", "| tg4, batch 1 ", "95 % interval"):
            self.assertIn(words, result.out)
        as_json = support.nibble("bench", "--compare", a, b, "--json").json()
        self.assertEqual([row["row"] for row in as_json["rows"]], ["pp16", "tg4, batch 1"])

    def test_what_says_nothing_of_itself_is_refused(self):
        a = self.bench("a.json")
        whole = json.loads(a.read_text())
        bare = self.dir / "bare.json"
        bare.write_text(json.dumps({**whole, "metadata": None}))
        other = self.dir / "other.json"
        other.write_text(json.dumps({**whole, "metadata": {**whole["metadata"], "device": {**whole["metadata"]["device"], "name": "another"}}}))
        for b, words in ((bare, "want a result with metadata"), (other, "same device")):
            result = support.nibble("bench", "--compare", a, b)
            self.assertEqual(result.code, USAGE)
            self.assertIn(words, result.err)
            self.assertEqual(support.nibble("bench", "--compare", a, b, "--allow-mismatch").code, 0)

    def test_no_results(self):
        text = self.dir / "text.json"
        text.write_text("{")
        for files in ((text,), (text, text), (text, text, text)):
            self.assertEqual(support.nibble("bench", "--compare", *files).code, USAGE, files)


    def test_a_result_of_llama_bench(self):
        ours = self.bench("ours.json")
        device = json.loads(ours.read_text())["metadata"]["device"]["name"]

        def theirs(*rows):
            path = self.dir / "theirs.json"
            path.write_text(json.dumps(foreign_result.converted(json.dumps(rows))[0]))
            return path

        row = llama_bench_row(16, 0, 0, [1e9, 1.1e9], cpu_info=device, gpu_info="", backends="CPU")
        result = support.nibble("bench", "--compare", theirs(row, {**row, "n_prompt": 512}), ours)
        self.assertEqual(result.code, 0, result.err)
        for words in ("program: llama-bench, nibble", "| pp16 ", "Welch's t", "theirs.json alone: pp512", "ours.json alone: tg4, batch 1"):
            self.assertIn(words, result.out)
        another = theirs({**row, "cpu_info": "another"})
        self.assertEqual(support.nibble("bench", "--compare", another, ours).code, USAGE)
        self.assertEqual(support.nibble("bench", "--compare", another, ours, "--allow-mismatch").code, 0)
        with open(another, "w") as file:
            json.dump([row], file)
        self.assertIn("bench/foreign_result.py", support.nibble("bench", "--compare", another, ours).err)


def llama_bench_row(prompt, generate, depth, samples_ns, **more):
    """As llama-bench's README shows them, of fields that are read and some that are not."""
    return {"build_commit": "8cf427ff", "build_number": 5163, "cpu_info": "AMD EPYC", "gpu_info": "NVIDIA H100 80GB HBM3", "backends": "CUDA",
            "model_filename": "models/gpt-oss-20b-mxfp4.gguf", "model_type": "gpt-oss 20B", "n_batch": 2048, "n_prompt": prompt, "n_gen": generate,
            "n_depth": depth, "test_time": "2026-11-20T11:58:50Z", "avg_ns": samples_ns[0], "samples_ns": samples_ns, **more}


def benchy(caches, *runs):
    """Of llama-benchy's published schema."""
    usual = {"concurrency": 1, "context_size": 0, "prompt_size": 2048, "response_size": 32, "is_context_prefill_phase": False}
    return {"version": "0.3.1", "timestamp": "2026-11-20 17:11:19Z", "latency_mode": "generation", "latency_ms": 2.5, "model": "openai/gpt-oss-20b",
            "prefix_caching_enabled": caches, "max_concurrency": 4, "benchmarks": [{**usual, **run} for run in runs]}


def metric(*values):
    return {"mean": values[0], "std": 0.1, "values": values}


class ForeignResults(unittest.TestCase):
    """bench/foreign_result.py: what of another benchmark's result is a row of ours."""

    def rows(self, result, lines=False):
        text = "\n".join(map(json.dumps, result)) + "\n" if lines else json.dumps(result)
        found, self.left_out = foreign_result.converted(text)
        self.metadata = found["metadata"]
        return [f"{row['test']}, batch {row['batch']}:" + "".join(f" {(row['prompt'] or row['generate'] * row['batch']) / s:g}" for s in row["seconds"])
                for row in found["rows"]]

    def test_llama_bench_rows_are_prompts_and_generation_behind_a_depth(self):
        rows = [llama_bench_row(512, 0, 0, [1e9, 5e8]), llama_bench_row(0, 128, 4096, [2e9])]
        self.assertEqual(self.rows([*rows, llama_bench_row(512, 128, 0, [3e9])]), ["pp512, batch 1: 512 1024", "tg128 @ d4096, batch 1: 64"])
        self.assertEqual(self.left_out, ["pp512+tg128: a prompt and its answer in one time"])
        self.assertEqual((self.metadata["device"]["name"], self.metadata["model"]["name"]), ("NVIDIA H100 80GB HBM3", "gpt-oss-20b-mxfp4.gguf"))
        self.assertEqual(self.rows(rows, lines=True), ["pp512, batch 1: 512 1024", "tg128 @ d4096, batch 1: 64"])

    def test_llama_bench_on_a_cpu_and_of_before_depths(self):
        row = llama_bench_row(512, 0, 0, [1e9], backends="CPU")
        del row["n_depth"], row["samples_ns"]
        self.assertEqual(self.rows([row]), ["pp512, batch 1: 512"])
        self.assertEqual(self.metadata["device"]["name"], "AMD EPYC")

    def test_rows_that_differ_in_a_setting_alone_do_not_stand_for_each_other(self):
        self.assertEqual(self.rows([llama_bench_row(512, 0, 0, [1e9]), llama_bench_row(512, 0, 0, [2e9])]), ["pp512, batch 1: 512"])
        self.assertEqual(self.left_out, ["pp512: a second one, of other settings"])

    def test_benchy_generates_behind_context_and_prompt(self):
        run = {"context_size": 4096, "pp_throughput": metric(4000, 4100), "tg_throughput": metric(50, 51)}
        self.assertEqual(self.rows(benchy(True, run)), ["pp2048 @ d4096, batch 1: 4000 4100", "tg32 @ d6144, batch 1: 50 51"])
        again = "without a prefix cache the context is read again"
        self.assertEqual(self.rows(benchy(False, run)), ["pp6144, batch 1: 4000 4100", "tg32 @ d6144, batch 1: 50 51"], again)

    def test_benchy_rows_without_counterpart(self):
        both = {"pp_throughput": metric(9000), "tg_throughput": metric(160)}
        self.assertEqual(self.rows(benchy(True, {**both, "concurrency": 4}, {**both, "context_size": 4096, "is_context_prefill_phase": True},
                                          {"pp_throughput": None, "context_size": 64})), ["tg32 @ d2048, batch 4: 160"])
        self.assertEqual(self.left_out, ["pp2048 (c4): prompts of several requests", "ctx_pp2048 @ d4096: the context's own", "ctx_tg32 @ d4096: the context's own"])

    def test_what_is_nobodys_or_broken_is_refused(self):
        for text in ("", "{", "[]", "7", "{}", "[7]", '{"rows":[]}', '[{"n_prompt":1}]', "{}\n{}", "\n\n", json.dumps([llama_bench_row("many", 0, 0, [1e9])]),
                     json.dumps([llama_bench_row(512, 0, 0, ["slow"])]), json.dumps(benchy(True, {"tg_throughput": metric(0)}))):
            with self.assertRaises((ValueError, TypeError, ZeroDivisionError), msg=text):
                foreign_result.converted(text)


class Page(html.parser.HTMLParser):
    """Every tag that is opened is closed, none that a page of ours has not, and nothing is loaded or run."""
    VOID = {"meta", "br"}
    KNOWN = VOID | {"html", "head", "title", "style", "body", "main", "h1", "h2", "h3", "p", "ul", "li", "div", "pre", "details", "summary", "table", "tr", "th", "td",
                    "figure", "figcaption", "svg", "text", "line", "rect", "polyline", "circle"}

    def __init__(self, text):
        super().__init__()
        self.open, self.seen, self.text = [], [], ""
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        assert tag in self.KNOWN, tag
        for name, value in attrs:
            assert not name.startswith("on") and name not in ("src", "href", "style"), (tag, name, value)
        self.seen.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag

    def handle_data(self, data):
        self.text += data


class Reports(Case):
    HOSTILE = "<img src=x onerror=alert(1)>&\"'"

    def page(self, result, text):
        """What bench/page.py makes of a result and its report."""
        path = self.dir / "result.json"
        path.write_text(result)
        made = subprocess.run([sys.executable, support.SOURCE / "bench/page.py", path, text], capture_output=True, text=True, check=True).stdout
        self.assertIn("default-src 'none'", made)
        return Page(made)

    def test_of_a_benchmark(self):
        model = self.dir / self.HOSTILE
        os.symlink(TINY, model)
        path = self.dir / "page.md"
        result = support.nibble("bench", "-m", model, "-p", 16, "-n", 4, "-d", "0,32", "-b", "1,2", "-r", 2, "--json", "--report", path)
        self.assertEqual(result.code, 0, result.err)
        for words in ("| pp16 ", "## Where this comes from", "| build.commit | "):
            self.assertIn(words, path.read_text())
        made = self.page(result.out, path)
        self.assertEqual(made.seen.count("svg"), 6)
        for words in (self.HOSTILE, "throughput against depth", "throughput against batch", "Share of what the device allows", "tg4 @ d32, batch 2"):
            self.assertIn(words, made.text)

    def test_of_a_comparison(self):
        a, path = self.dir / self.HOSTILE, self.dir / "page.md"
        a.write_text(support.nibble("bench", "-m", TINY, "-p", 16, "-n", 0, "-r", 2, "--json").out)
        result = support.nibble("bench", "--compare", a, a, "--json", "--report", path)
        self.assertEqual(result.code, 0, result.err)
        made = self.page(result.out, path)
        for words in (self.HOSTILE, "95 % interval of Welch's t", "within noise"):
            self.assertIn(words, made.text)

    def test_of_a_load_on_a_hostile_server(self):
        def answer(handler, number):
            if number % 5 == 4:
                return handler.send_error(503, self.HOSTILE)
            handler.events(EVENT)
            time.sleep(0.002)  # so that there is a time between events
            return handler.wfile.write(EVENT + b'data: {"choices":[{"text":"","finish_reason":"stop"}]}\n\n' + DONE)

        server = StandIn(answer)
        self.addCleanup(server.close)
        path = self.dir / "page.md"
        result = support.nibble("load", "--base-url", server.url, "-c", "1,2", "--device", self.HOSTILE, "-m", self.HOSTILE, "--json", "--report", path)
        self.assertEqual(result.code, 0, result.err)
        made = self.page(result.out, path)
        for words in (self.HOSTILE, "Throughput and interactivity", "Time to the first token (TTFT)", "HTTP 503"):
            self.assertIn(words, made.text)

    def test_of_checks(self):
        path = self.dir / "page.md"
        result = support.nibble("verify", TINY, "--level", 1, "--json", "--report", path)
        self.assertEqual(result.code, 0)
        made = self.page(result.out, path)
        for words in (" passed, 0 failed", "dispatch line", "host.cpu_governor"):
            self.assertIn(words, made.text)

    def test_refusals(self):
        for command in (("verify", TINY, "--level", 1), ("bench", "-m", TINY), ("load", "--base-url", "http://127.0.0.1:1")):
            for name in ("page", "page.txt", "page.html"):
                result = support.nibble(*command, "--report", self.dir / name)
                self.assertEqual(result.code, USAGE, command)
                self.assertIn("want a name that ends in .md", result.err)
        self.assertEqual(support.nibble("bench", "-m", TINY, "--speculative", "suffix", "--report", "page.md").code, USAGE)

    def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(self):
        nobody = "http://127.0.0.1:1"
        for command, flag in ((("verify", TINY, "--level", 1), "--report"), (("verify", TINY, "--level", 5), "--save-baseline"),
                              (("bench", "-m", TINY, "-n", 4), "--report"), (("load", "--base-url", nobody), "--report")):
            result = support.nibble(*command, flag, self.dir / "none" / "page.md")
            self.assertEqual((result.code, result.out), (IO, ""), command)
            self.assertIn(f"{flag} {self.dir / 'none' / 'page.md'}: it cannot be written", result.err)


class Pages(unittest.TestCase):
    """bench/page.py: what is drawn, and that foreign text stays text."""

    def test_marks_begin_at_zero_and_reach_the_highest(self):
        for ends, marks in (((0, 0), [0, 1]), ((0, 5), [0, 1, 2, 3, 4, 5]), ((0, 7), [0, 2, 4, 6, 8]), ((-3, 12), [-5, 0, 5, 10, 15]),
                            ((2, 10), [0, 2, 4, 6, 8, 10])):
            self.assertEqual(page.axis_marks(*ends), marks)
        for high in (1e-9, 0.3, 1, 9.99, 1234.5, 8e12):
            marks = page.axis_marks(0, high)
            self.assertEqual(marks[0], 0)
            self.assertTrue(marks[-1] >= high * (1 - 1e-9) and 3 <= len(marks) <= 8, marks)

    def test_what_is_twice_as_much_is_drawn_twice_as_high_or_long(self):
        svg = page.lines_svg("t", "depth, tokens", "tokens per second", {"a": [(0, 0, 0, ""), (1, 50, 0, ""), (2, 100, 0, "")]})
        y = [float(place) for place in re.findall(r'cy="([0-9.]+)"', svg)]
        self.assertAlmostEqual((y[0] - y[2]) / (y[0] - y[1]), 2, 1)
        for words in (">depth, tokens</text>", ">tokens per second</text>"):
            self.assertIn(words, svg)
        widths = [float(width) for width in re.findall(r'<rect [^>]*width="([0-9.]+)"', page.bars_svg("t", "%", [("a", 10, None), ("b", -5, None), ("c", 0, None)]))]
        self.assertAlmostEqual(widths[0] / widths[1], 2, 1)
        self.assertEqual(widths[2], 0)

    def test_nothing_measured_is_nothing_drawn_and_what_is_no_number_is_none(self):
        for result in ({}, {"rows": []}, {"rows": None}):
            self.assertEqual(page.plots(result), "")
        row = {"test": "tg4", "prompt": 0, "generate": 4, "depth": 0, "batch": 1, "of_limit": "much", "tokens_per_second": {"mean": None}}
        self.assertIn("<svg", page.plots({"rows": [row]}))

    def test_markdown_becomes_headings_tables_lists_and_lines(self):
        made = page.text_html("# T\n\nall of it\n\n### Alone\n- one\n- two\n| a | b |\n|---|--:|\n| <i> |  2 |\n| pass | FAIL |\n")
        for words in ("<h1>T</h1>\n<p>all of it</p>\n<h3>Alone</h3>\n<ul>\n<li>one</li>\n<li>two</li>\n</ul>\n",
                      '<tr><th>a</th><th class="n">b</th></tr>\n<tr><td>&lt;i&gt;</td><td class="n">2</td></tr>', '<td class="pass">pass</td>'):
            self.assertIn(words, made)
        self.assertNotIn("<th>", page.text_html("| | |\n| :-- | :-- |\n| a | b |\n"))

    def test_foreign_text_stays_text(self):
        hostile = "</script><img src=x onerror=alert(1)>\"'&\x1b[2J\udcff"
        row = {"test": hostile, "prompt": 0, "generate": 4, "depth": 0, "batch": 1, "of_limit": 0.5, "tokens_per_second": {"mean": 1}}
        text = f"{hostile}\n# {hostile}\n- {hostile}\n| {hostile} |\n| -- |\n| {hostile} |\n"
        made = page.page({"rows": [row]}, text, hostile)
        Page(made)
        for words in ("<img", "</script", "\x1b", "\udcff"):
            self.assertNotIn(words, made)
        self.assertIn("&lt;img src=x onerror=alert(1)&gt;&quot;&#39;&amp;", made)
        for words in ("<script", "http://", "https://", "url(", "@import", "@font-face", " src="):
            self.assertNotIn(words, page.page({}, "body", "</title>"))


if __name__ == "__main__":
    unittest.main()
