"""What nibble says of itself: the greeting, help in groups, the manual, completions, and flags as others spell them."""
import os
import re
import shutil
import subprocess
import unittest

import support
from serve_support import Server
from support import TINY, USAGE, Case

COMMANDS = ("run", "chat", "serve", "inspect", "tokenize", "quantize", "convert", "synth", "perplexity", "compare", "predict", "bench", "load", "verify", "features", "pull", "list", "rm", "ps", "launch", "man", "completion")
GROUPS = ("sampling", "performance", "expert")


def flags_in(text):
    """The long flags that a help text declares."""
    return set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, re.MULTILINE)) - {"--help"}


class Help(Case):
    def test_alone_it_greets_with_four_commands_that_work(self):
        env = {**os.environ, "HOME": str(self.dir), "XDG_RUNTIME_DIR": str(self.dir)}
        text = self.ok(env=env).out
        self.assertIn("--help", text)
        commands = [line.split() for line in re.findall(r"^  nibble (.*?)  ", text, re.MULTILINE)]
        self.assertEqual(len(commands), 4)
        self.assertEqual([command for command in commands if command[0] in ("chat", "serve", "list")], [["chat", "nibble-tiny"], ["serve", "nibble-tiny"], ["list"]])
        for command in commands:
            if command[0] == "chat":
                command += ["Hello", "-n", "2"]
            if command[0] not in ("pull", "serve"):
                self.ok(*command, env=env)
        server = Server(env=env)
        self.addCleanup(server.stop)
        text = self.ok(env=env).out
        self.assertIn(f"http://127.0.0.1:{server.port}/", text)
        self.assertEqual(len(re.findall(r"^  nibble \w+", text, re.MULTILINE)), 4)
        self.assertNotIn("nibble serve", text)  # its port is taken
        self.ok("ps", env=env)

    def test_help_and_version_go_to_standard_output(self):
        text = self.ok("--help").out
        for word in (*COMMANDS, "exit codes"):
            self.assertIn(word, text)
        self.assertRegex(self.ok("--version").out, r"^nibble \d+\.\d+\S* \(commit [0-9a-f]+|unknown\), licence Apache-2\.0\n$")

    def test_what_one_needs_fits_on_a_screen(self):
        for command in COMMANDS:
            text = self.ok(command, "--help").out
            lines = text.splitlines()
            self.assertLessEqual(len(lines), 40, command)
            self.assertIn(f"examples:\n  nibble {command}", text)
            for line in lines[:lines.index("examples:")]:
                self.assertLessEqual(len(line), 80, line)

    def test_each_flag_is_in_one_group(self):
        for command in ("run", "chat", "serve", "bench", "inspect"):
            every = flags_in(self.ok(command, "--help", "all").out)
            groups = [flags_in(self.ok(command, "--help").out), *(flags_in(self.ok(command, f"--help={group}").out) for group in GROUPS)]
            self.assertEqual(sum(map(len, groups)), len(every))
            self.assertEqual(set().union(*groups), every)
            self.assertIn("--kv-cache-dtype", groups[2])
            self.assertIn("--max-num-batched-tokens INT", self.ok(command, "--help", "performance").out if command != "inspect" else "--max-num-batched-tokens INT")
        self.assertIn("--top-p", flags_in(self.ok("run", "-h", "sampling").out))
        self.assertIn("low|medium|high", self.ok("chat", "--help").out)
        self.refused(USAGE, "run", "--help=nothing", says=("sampling", "nothing"))

    def test_the_manual(self):
        page = self.ok("man").out
        for command in COMMANDS:
            self.assertIn(f".SH NIBBLE {command}\n", page)
        self.assertIn("\\-\\-temperature", page)
        if shutil.which("man"):
            (self.dir / "nibble.1").write_text(page)
            shown = subprocess.run(["man", "--warnings", "-l", self.dir / "nibble.1"], capture_output=True, text=True, check=True, env={"MANWIDTH": "80", "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"})
            self.assertEqual(shown.stderr, "")
            self.assertIn("--temperature", shown.stdout)


class Completion(Case):
    def test_a_flags_words_are_those_of_its_table(self):
        words = "auto|f32|bf16|int8|mxfp8|mxfp6|mxfp4"
        self.assertIn(f"--moe-activation {words}", self.ok("run", "--help", "all").out)
        self.assertIn(words.replace("|", " "), self.ok("completion", "bash").out)
        self.assertIn(words, self.ok("man").out)

    def test_bash(self):
        script = self.dir / "nibble.bash"
        script.write_text(self.ok("completion", "bash").out)

        def completed(*words):
            code = f'. "{script}"; COMP_WORDS=({" ".join(repr(w) for w in words)}); COMP_CWORD={len(words) - 1}; _nibble; printf "%s\\n" "${{COMPREPLY[@]}}"'
            return subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True, cwd=self.dir).stdout.split()
        self.assertEqual(completed("nibble", "se"), ["serve"])
        self.assertEqual(set(completed("nibble", "run", "--temp")), {"--temperature"})
        self.assertEqual(completed("nibble", "chat", "--reasoning", "m"), ["medium"])
        self.assertEqual(completed("nibble", "run", "-m", "nib"), ["nibble.bash"])

    def test_zsh_and_fish(self):
        for shell in ("zsh", "fish"):
            script = self.ok("completion", shell).out
            for command in COMMANDS:
                self.assertIn(command, script)
            if not shutil.which(shell):
                print(f"no {shell} here: its script is not run")
                continue
            (self.dir / shell).write_text(script)
            subprocess.run([shell, "-n", self.dir / shell], check=True)
        self.refused(USAGE, "completion", "csh", says=("bash, zsh or fish", "csh"))


class OthersFlags(Case):
    def text(self, *args):
        return self.ok(*args, "--json").json()["text"]

    def test_the_same_under_another_name(self):
        want = self.text("run", "-m", TINY, "-p", "Once upon", "-n", 8, "--temperature", 0, "--max-model-len", 64)
        self.assertEqual(self.text("run", TINY, "Once upon", "--n-predict", 8, "--temp=0", "-c", 64), want)
        self.assertEqual(self.text("run", "-m", TINY, "Once upon", "--predict", 8, "--temp", 0, "--ctx-size", 64), want)
        self.refused(USAGE, "run", TINY, "-p", "a", "-c", 0, says="--max-model-len")
        self.refused(5, "run", "-hf", "openai/gpt-oss-20b:mxfp4", "-p", "a", says="HF_HUB_OFFLINE", env={**support.os.environ, "HF_HUB_OFFLINE": "1", "HOME": str(self.dir)}, cwd=self.dir)

    def test_what_there_is_instead(self):
        words = ("--override-tensor: is not supported: experts of whole layers stay on the host: --n-cpu-moe", "--cache-type-k: is not supported", "--kv-cache-dtype",
                 "--conversation: is not supported", "nibble chat", "there is no --foo", "no --modle; did you mean --model?")
        self.refused(USAGE, "run", TINY, "a", "-ot", "exps=CPU", "-ctk", "q8_0", "-cnv", "--foo", "--modle", "x", says=words)  # all at once
        self.refused(USAGE, "serve", TINY, "--enable-lora", "--grpc", "-ts", "1,1", "--bar", says=("--enable-lora: ", "--grpc: ", "--tensor-split: ", "no --bar"))
        self.refused(USAGE, "chat", TINY, "--format", "json", says="response_format")
        self.refused(USAGE, "run", TINY, "a", "--reasoning-format", "none", says="--reasoning-format: none is not supported")
        self.refused(USAGE, "tokenize", "--jinja", "-p", "a", says="has no --jinja")  # it runs no model
        for text in ("-c", "--jinja", "-hf"):  # a value is no flag
            self.assertTrue(self.ok("run", "-m", TINY, "-p", text, "-n", 1, "--json").json()["text"] is not None)
        for command, word in (("ls", "nibble list"), ("show", "nibble inspect")):
            self.refused(USAGE, command, says=word)
            self.refused(USAGE, "help", command, says=word)

    def test_what_asks_for_nothing_passes_with_a_line(self):
        llama = ("--jinja", "-b", 2048, "-fa", "-fa", "off", "-ngl", 99, "--swa-full", "--offline", "--reasoning-format", "deepseek", "--mlock", "-nocb")
        want = self.text("run", "-m", TINY, "-p", "Once upon", "-n", 8, "--temperature", 0)
        for args in (("run", TINY, "Once upon", "-n", 8, "--temp", 0, "--json", *llama), ("serve", TINY, "--print-config", "-ub", 64, *llama),
                     ("chat", TINY, "Hi", "-n", 2, "--keepalive", "5m", "--hidethinking", *llama)):
            result = self.ok(*args)
            for flag in ("--jinja", "--batch-size", "--flash-attn", "--n-gpu-layers", "--swa-full", "--offline", "--reasoning-format", "--mlock", "--cont-batching"):
                self.assertEqual(len(re.findall(rf"^{flag} makes no difference: ", result.err, re.MULTILINE)), 1, (flag, result.err))
        self.assertEqual(self.ok("run", TINY, "Once upon", "-n", 8, "--temp", 0, "--json", *llama).json()["text"], want)
        for args, value in ((("-ncmoe", 3), "3"), (("--n-cpu-moe=auto",), "auto"), (("-cmoe",), "1024"), (("-ngl", 20), "auto"), (("--cpu-offload-gb", 4), "auto")):
            config = self.ok("serve", TINY, *args, "--print-config", "--json")
            self.assertEqual(config.json()["n-cpu-moe"]["value"], value, args)
        told = self.ok("run", TINY, "a", "-n", 1, "--backend", "cpu", "-cmoe").err
        self.assertIn("--cpu-moe is taken as --n-cpu-moe 1024", told)
        self.assertIn("--n-cpu-moe 1024 makes no difference: no card is used", told)
        self.refused(USAGE, "run", TINY, "a", "-ncmoe", -2, says="--n-cpu-moe")
        self.assertIn("--n-gpu-layers 0 is taken as --backend cpu", self.ok("run", TINY, "a", "-n", 1, "-ngl", 0).err)
        config = self.ok("serve", TINY, "-ngl=0", "--print-config", "--json").json()
        self.assertEqual(config["backend"], {"value": "cpu", "origin": "--n-gpu-layers"})
        # --offline: nothing is pulled, though -hf usually does.
        env = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HOME": str(self.dir)}
        for flags, says in ((("--offline",), "there is no model openai/gpt-oss-20b"), ((), "127.0.0.1:9")):
            result = support.nibble("run", "-hf", "openai/gpt-oss-20b", "-p", "a", *flags, env=env, cwd=self.dir)
            self.assertEqual(result.code, 5, result.err)
            self.assertIn(says, result.err)

    def test_nothing_far_off_is_suggested(self):
        self.assertNotIn("did you mean", self.refused(USAGE, "create", says="there is no command create").err)

    def test_help_and_version_as_commands(self):
        self.assertEqual(self.ok("help").out, self.ok("--help").out)
        self.assertEqual(self.ok("help", "run").out, self.ok("run", "--help").out)
        self.refused(USAGE, "help", "sevre", says=("no command sevre", "serve?"))
        for flag in ("--model", "-m", "--port=80"):
            name = flag.split("=")[0]
            self.refused(USAGE, flag, "x", says=f"want a command before {name}, as in nibble serve {name}")
        self.refused(USAGE, "--verbse", says="nibble has no --verbse")
        for model in ("nibble-tiny", "openai/gpt-oss-20b", "x.gguf"):
            self.refused(USAGE, model, "Hello", says=f"no command {model}; for a model want nibble chat {model}")
        for word in ("version", "-V", "-v"):
            self.assertEqual(self.ok(word).out, self.ok("--version").out, word)

    def test_a_flag_is_no_value(self):
        """As where a variable of a script is empty: --api-key $KEY --port 80."""
        for flags in (("--api-key", "--port", 80), ("--served-model-name", "--print-config"), ("--max-model-len", "--json"), ("--host", "--port=80")):
            self.refused(USAGE, "serve", TINY, *flags, says=f"{flags[0]}: want a value, found the flag {flags[1]}; as a value: {flags[0]}={flags[1]}")
        self.assertEqual(self.ok("serve", TINY, "--served-model-name=--port", "--print-config", "--json").json()["served-model-name"]["value"], "--port")
        self.assertEqual(self.text("run", TINY, "-p", "--no flag", "-n", 1).count("\n"), self.text("run", TINY, "--prompt=--no flag", "-n", 1).count("\n"))

    def test_numbers_out_of_range_are_said_plainly(self):
        self.refused(USAGE, "serve", TINY, "--gpu-memory-utilization", 95, says="--gpu-memory-utilization: want a number from 0.01 to 1, found 95")

    def test_llamas_whole_context(self):
        for flag in ("-c", "--ctx-size"):
            self.assertEqual(self.ok("serve", TINY, flag, 0, "--print-config", "--json").json()["max-model-len"]["value"], "auto")

    def test_a_flag_without_its_value(self):
        self.refused(USAGE, "run", TINY, "a", "-n", says="--max-tokens: want a value, found none")

    def test_a_text_by_its_place(self):
        want = self.text("run", "-m", TINY, "-p", "Once upon", "-n", 4, "--temperature", 0)
        for args in ((TINY, "Once upon"), ("Once upon", "-m", TINY)):
            self.assertEqual(self.text("run", *args, "-n", 4, "--temperature", 0) if args[0] == TINY else self.text("run", "-m", TINY, "Once upon", "-n", 4, "--temperature", 0), want)
        self.refused(USAGE, "run", TINY, "Once", "-p", "upon", says="want one text")
        self.refused(USAGE, "run", TINY, "Once", "upon", says=("upon", "needs quotes"))
        self.refused(USAGE, "serve", TINY, "--enforce-eager", "True", says='what is "True"? A switch takes its value as --switch=True')
        for words in (("tokenize", "hello world"), ("perplexity", TINY, "hello world")):
            self.assertNotIn("needs quotes", self.refused(USAGE, *words, says='what is "hello world"?').err)
        self.refused(USAGE, "run", TINY, "Once", "-f", "b", says=("--prompt", "--file"))


class Features(Case):
    def test_every_flag_of_serve_has_a_row_or_is_no_feature(self):
        told = self.ok("features", "--json").json()
        rows = {row["flag"] for row in told["features"]}
        serve = {name for group in ("performance", "expert") for name in flags_in(self.ok("serve", f"--help={group}").out)}
        self.assertEqual(serve - rows, set(told["other_flags"]))
        self.assertEqual(rows - serve, {"--backend"})  # among the common ones

    def test_the_page_is_the_committed_one(self):
        self.assertEqual(self.ok("features", "--markdown").out, (support.SOURCE / "docs/feature-matrix.md").read_text(), "nibble features --markdown >docs/feature-matrix.md")

    def test_a_preset_counts_where_nobody_says_otherwise(self):
        told = self.ok("serve", TINY, "--preset", "C2", "--moe-activation", "mxfp6", "--print-config", "--json").json()
        self.assertEqual(told["moe-kernel"], {"value": "gemm", "origin": "preset C2"})
        self.assertEqual((told["moe-activation"]["value"], told["moe-activation"]["origin"]), ("mxfp6", "command line"))
        self.refused(USAGE, "serve", TINY, "--preset", "C9", says="found C9")


if __name__ == "__main__":
    unittest.main()
