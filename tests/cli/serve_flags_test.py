"""Flags and variables of nibble serve, ours and vLLM's: what each becomes, where it came from, what is refused. Standard library only."""
import json
import os
import re
import socket

import support
from serve_support import Server
from support import SANITIZED, SOURCE, TINY, UNSUPPORTED, Case, nibble


class Flags(Case):
    VLLM = ("-tp", 1, "-O3", "-cc.level=3", "--attention-backend", "FLASH_ATTN", "--enforce-eager", "--gpu-memory-utilization", 0.9, "--tool-call-parser", "openai", "--enable-auto-tool-choice", "--reasoning-parser", "openai_gptoss",
            "--quantization", "mxfp4", "--data-parallel-backend", "mp", "--uvicorn-log-level", "warning", "--attention-config", "{}", "--async-scheduling",
            "--max_model_len", 2048, "--max-num-batched-tokens", 512, "--kv-cache-dtype", "auto", "--served-model-name", "a", "b")

    def config(self, *args, env=None):
        result = nibble("serve", *args, "--print-config", "--json", env={**os.environ, **(env or {})})
        self.assertIn(result.code, (0, UNSUPPORTED), result.err)  # there may be no card here
        return result.json()

    def test_settings_and_where_they_come_from(self):
        file = self.dir / "serve.toml"
        file.write_text('port = 7001\nmax_num_seqs = 7\nhost = "0.0.0.0"\napi-key = ["first secret", "k2"]\nserved-model-name = "a#b"  # one\n')
        config = self.config(TINY, "--config", file, "--port", 7003, env={"NIBBLE_PORT": "7002", "NIBBLE_MAX_NUM_SEQS": "8", "VLLM_ATTENTION_SINKS": "false",
                                                                                "VLLM_ATTENTION_BACKEND": "FLASHINFER", "VLLM_MXFP4_ACTIVATION": "bf16"})
        self.assertEqual(config["port"], {"value": "7003", "origin": "command line"})
        self.assertEqual(config["max-num-seqs"], {"value": "8", "origin": "environment NIBBLE_MAX_NUM_SEQS"})
        self.assertEqual(config["host"], {"value": "0.0.0.0", "origin": f"file {file}"})
        self.assertEqual(config["served-model-name"]["value"], "a#b")
        self.assertEqual(config["attention-sinks"]["value"], "off")
        self.assertEqual((config["attention-backend"]["value"], config["moe-activation"]["value"]), ("auto", "bf16"))
        self.assertEqual(config["http-threads"], {"value": "2", "origin": "default"})
        self.assertNotIn("first secret", json.dumps(config))

    def test_what_auto_becomes(self):
        env = {"NIBBLE_CPU_MASK": "avx2"}
        for command in (("run", TINY), ("chat", TINY), ("bench", TINY), ("perplexity", "-m", TINY), ("serve", TINY)):
            config = self.ok(*command, "--backend", "cpu", "--print-config", "--json", env={**os.environ, **env}).json()
            for flag, became in (("kv-cache-dtype", "bf16"), ("moe-activation", "int8"), ("cpu-isa", "avx2")):
                self.assertEqual(config[flag], {"value": "auto", "origin": "default", "resolved": became}, (command, flag))
            self.assertNotIn("resolved", config["moe-kernel"])  # a card's
            self.assertNotIn("resolved", config["attention-backend"])
            self.assertGreater(int(config["threads"].get("resolved", config["threads"]["value"])), 0)
        for flags, flag, became in (((), "kv-tokens", "131072"), ((), "async-scheduling", "false"), ((), "max-model-len", "131072"), (("--max-model-len", 4096), "kv-tokens", "131072"),
                                    (("--moe-activation", "bf16"), "moe-activation", "f32"), (("--mxfp4-layers", "all"), "mxfp4-layers", "qkv,o,lm_head")):
            config = self.ok("serve", TINY, "--backend", "cpu", *flags, "--print-config", "--json").json()
            self.assertEqual(config[flag].get("resolved", config[flag]["value"]), became, (flags, flag))
        text = self.ok("serve", TINY, "--backend", "cpu", "--print-config", env={**os.environ, **env}).out
        self.assertRegex(text, r"--moe-activation +auto → int8 +default\n")
        self.assertRegex(text, r"--host +127\.0\.0\.1 +default\n")

    def test_what_would_be_refused_at_the_start_is_shown_and_said(self):
        for code, command, says in ((3, ("run", TINY, "--fast", "--backend", "reference"), "--fast: want --backend cpu or cuda, found reference"),
                                    (5, ("serve", "me/nowhere"), "me/nowhere"), (0, ("serve", "me/nowhere", "--pull"), "me/nowhere"),
                                    (3, ("run", TINY, "--backend", "cuda", "--kv-cache-dtype", "int8"), "--kv-cache-dtype int8: want --backend cpu or reference")):
            result = nibble(*command, "--print-config", "--json")
            self.assertEqual(result.code, code, result.err)
            self.assertIn("what is open is not resolved: ", result.err)
            self.assertIn(says, result.err)
            self.assertEqual(result.json()["moe-activation"], {"value": "auto", "origin": "default"})

    def test_what_the_scheduler_is_told(self):
        config = self.config(TINY, "--max-num-partial-prefills", 4, "--long-prefill-token-threshold", 2048, "--max-long-partial-prefills", 1,
                             "--scheduling-policy", "priority", "--target-itl", 25)
        told = {flag: config[flag]["value"] for flag in ("max-num-partial-prefills", "long-prefill-token-threshold", "max-long-partial-prefills",
                                                         "scheduling-policy", "target-itl")}
        self.assertEqual(list(told.values()), ["4", "2048", "1", "priority", "25"])
        for flags, says in ((("--target-itl", "nan"), "--target-itl"), (("--target-itl", "-1"), "--target-itl"), (("--scheduling-policy", "lifo"), "want fcfs or priority"),
                            (("--max-num-partial-prefills", 0), "--max-num-partial-prefills")):
            self.refused(2, "serve", TINY, *flags, says=says)

    def test_a_yaml_file_as_vllm_has_it(self):
        file = self.dir / "serve.yaml"
        file.write_text(f"# a comment\nmodel: {TINY}\nport: 7001\nmax_num_seqs: 7  # few\nserved-model-name:\n  - one\n  - 'two'\nenable-prefix-caching: false\n"
                        "attention-config: '{\"backend\": \"FLASH_ATTN\"}'\napi-key: [first secret, \"k2\"]\n")
        config = self.config("--config", file, "--max-num-seqs", 9)
        self.assertEqual(config["port"], {"value": "7001", "origin": f"file {file}"})
        self.assertEqual((config["max-num-seqs"]["value"], config["served-model-name"]["value"], config["enable-prefix-caching"]["value"]), ("9", "one,two", "false"))
        self.assertNotIn("first secret", json.dumps(config))
        file.write_text("speculative-config:\n  method: ngram\n  num_speculative_tokens: 3\ncompilation-config: {\"pass_config\": {\"x\": true}}\nmax-num-seqs: 7\n")
        config = self.config(TINY, "--config", file)
        self.assertEqual([config[name]["value"] for name in ("speculative", "speculative-tokens", "max-num-seqs")], ["ngram", "3", "7"])
        for text, says in (("port 8000\n", ("--config", "serve.yaml", "line 1")), ("port: 1\n  b: 1\n", "line 2"), ("port:\n  b: 1\n", "--port"),
                           ("port:\n", ("port", "found none")), ("trust-remote-code:\nport: 1\n", "trust-remote-code"), ("served-model-name: []\n", "found none"), ("prot: 1\n", "prot; did you mean port?"), ("max_model_lne: 1\n", "max_model_lne; did you mean max-model-len?"), ("port: x\n", "port"), ("port: 1\nport: 2\n", "line 2")):
            file.write_text(text)
            self.refused(2, "serve", "--config", file, "--print-config", says=says)

    def test_spellings_of_vllm(self):
        config = self.config(TINY, "-tp", 1, "-O3", "-cc.level=3", "--compilation-config.a.b", "x", "--compilation-config.on", "--max-model-len", "8k", "--kv_tokens=16K", "--swap-space", 1,
                             "--swap-space", 4, "--cuda-graph-sizes", 1, 2, 4, "--no-trust-remote-code", "--no-enable-lora", "--enable-log-requests",
                             "--attention-backend", "FLASHINFER", "--kv-cache-dtype", "fp8_e4m3", "--load-format", "fastsafetensors",
                             "--allowed-origins", '["*"]', "--hf-token", "hush")
        for flag, value, theirs in (("tensor-parallel-size", "1", None), ("compilation-config", "3,level=3,a.b=x,on=true", None), ("max-model-len", "8000", None),
                                    ("kv-tokens", "16384", None), ("attention-backend", "auto", "FLASHINFER"), ("kv-cache-dtype", "fp8", "fp8_e4m3"),
                                    ("load-format", "safetensors", "fastsafetensors"), ("allowed-origin", "*", '["*"]'), ("hf-token", "(secret)", None)):
            self.assertEqual(config[flag], {"value": value, "origin": f"command line, vLLM's {theirs}" if theirs else "command line"}, flag)
        twice = self.config(TINY, "--attention-backend", "FLASHINFER", "--attention-backend", "auto")
        self.assertEqual(twice["attention-backend"]["origin"], "command line")

    def test_a_context_that_fits_is_shown_as_auto(self):
        for value in ("auto", -1):
            self.assertEqual(self.config(TINY, "--max-model-len", value)["max-model-len"]["value"], "auto")

    def test_the_last_of_two_counts_and_q_is_quantization_before_its_value(self):
        config = self.config(TINY, "--port", 7001, "-q", "mxfp4", "--port", 7002, "--api-key", "first secret", "--api-key", "k2")
        self.assertEqual((config["port"]["value"], config["quantization"]["value"]), ("7002", "mxfp4"))
        config = self.config(TINY, "-n", 1, "-r", 0, "--enable-request-id-headers", "--mm-processor-cache-gb", 0, "--max-loras", 1, "--disable-async-output-proc")
        self.assertEqual((config["nnodes"]["value"], config["enable-request-id-headers"]["value"]), ("1", "true"))
        self.assertNotIn("quantization", self.config(TINY, "-q"))
        for flags in (("--no-async-scheduling", "--async-scheduling"), ("--no-enable-prefix-caching", "--enable-prefix-caching")):
            name = flags[1][2:]
            self.assertEqual((self.config(TINY, *flags)[name]["value"], self.config(TINY, *flags[::-1])[name]["value"]), ("true", "false"))

    def test_the_recipes_of_vllm_for_gpt_oss(self):
        file = self.dir / "GPT-OSS_Hopper.yaml"
        file.write_text("no-enable-prefix-caching: true\nmax-cudagraph-capture-size: 2048\nmax-num-batched-tokens: 8192\nstream-interval: 20\n"
                        "disable_log_requests: true\nenable-lora: false\n")
        config = self.config(TINY, "--config", file, "--tensor-parallel-size", 1, "--gpu-memory-utilization", 0.95, "--block-size=64",
                             "--tool-call-parser", "openai", "--enable-auto-tool-choice", "--quantization", "mxfp4", "--mxfp4-backend", "CUTLASS")
        for flag, value in (("enable-prefix-caching", "false"), ("max-num-batched-tokens", "8192"), ("log-requests", "false")):
            self.assertEqual(config[flag], {"value": value, "origin": f"file {file}"}, flag)
        file.write_text("enable-prefix-caching: true\nno-enable-prefix-caching: true\n")
        self.refused(2, "serve", TINY, "--config", file, says="--enable-prefix-caching")

    def test_command_lines_of_vllm(self):
        server = Server(*self.VLLM)
        self.addCleanup(server.stop)
        server.wait_log("--attention-backend FLASH_ATTN is taken as auto")
        self.assertLessEqual(sum("backend cpu: " in line for line in server.log), 1, server.log)
        for flag in ("--uvicorn-log-level", "--enforce-eager", "--gpu-memory-utilization", "--compilation-config"):
            self.assertEqual(sum(re.search(f"{flag}.* makes? no difference", line) is not None for line in server.log), 1, flag)
        models = server.get("/v1/models").json()["data"]
        self.assertEqual([(m["id"], m["root"], m["parent"]) for m in models], [(name, str(TINY), None) for name in "ab"])
        self.assertEqual(server.chat(model="b", max_tokens=1).status, 200)

    def test_flags_of_the_newest_vllm(self):
        settings = self.config(TINY, "--spec-method", "ngram", "--spec-tokens=3", "--log-level", "warning", "--renderer-num-workers", 4, "--performance-mode", "throughput",
                               "--disable-access-log-for-endpoints", "/health,/metrics", "--scheduler-reserve-full-isl", "--watermark", 0.01, "--device-memory-utilization", 0.5)
        for flag, value in (("speculative", "ngram"), ("speculative-tokens", "3"), ("log-requests", "false")):
            self.assertEqual(settings[flag]["value"], value, flag)
        self.assertNotIn("log-requests", {name for name, setting in self.config(TINY, "--log-level", "INFO").items() if setting["origin"] != "default"})
        for flags, says in ((("--max-num-queued-reqs", 9), "--max-waiting"), (("--device-ids", "0,1"), "CUDA_VISIBLE_DEVICES"), (("--performance-mode", "x"), "interactivity"),
                            (("--grpc",), "HTTP"), (("--log-level", "loud"), "INFO"), (("--spec-method", "mtp"), "draft_model")):
            self.refused(2, "serve", TINY, *flags, says=says)

    def test_graphs_are_off_where_vllm_would_turn_them_off(self):
        for flags, origin in ((("-O0",), "--compilation-config"), (("-O", 0), "--compilation-config"), (("--optimization-level", 0), "--optimization-level"),
                              (("-cc.cudagraph_mode=NONE",), "--compilation-config"), (("--compilation-config.cudagraph_mode", "NONE"), "--compilation-config"),
                              (("--compilation-config", '{"cudagraph_mode": "NONE", "level": 3}'), "--compilation-config"),
                              (("--compilation-config", '{"use_cudagraph": false}'), "--compilation-config")):
            self.assertEqual(self.config(TINY, *flags).get("enforce-eager"), {"value": "true", "origin": origin}, flags)
        for flags in (("-O3",), ("-cc.cudagraph_mode=FULL",), ("-cc.max_cudagraph_capture_size=0",)):
            self.assertNotIn("enforce-eager", self.config(TINY, *flags), flags)
        self.assertEqual(self.config(TINY, "--enforce-eager", "--no-enforce-eager")["enforce-eager"]["value"], "false")

    def test_fields_of_json_flags(self):
        for flags in (("--attention-config", '{"backend": "reference"}'), ("-ac.backend=reference",)):
            self.assertEqual(self.config(TINY, *flags)["attention-backend"], {"value": "reference", "origin": "--attention-config"}, flags)
        self.assertEqual(self.config(TINY, "-ac.backend=reference", "--attention-backend", "FLASH_ATTN")["attention-backend"]["value"], "auto")
        for flags, says in ((("--attention-config", "zz"), ("--attention-config", "want a JSON object", "zz")), (("--compilation-config", "[]"), "want a JSON object"),
                            (("--kernel-config", "{"), "want a JSON object"), (("-ac.backend=ROCM",), ("ROCM", "flash")), (("--moe-tile", "x"), "--moe-tile"),
                            (("--optimization-level", "x"), "--optimization-level")):
            self.refused(2, "serve", TINY, *flags, says=says)

    def test_speculation(self):
        names = ("speculative", "speculative-tokens", "prompt-lookup-max", "prompt-lookup-min")
        head = f"{TINY}/eagle3"
        settings = self.config(TINY, "--speculative-config", json.dumps({"method": "eagle3", "model": head, "num_speculative_tokens": 4}))
        self.assertEqual(tuple(settings[name]["value"] for name in ("speculative", "speculative-model", "speculative-tokens")), ("eagle3", head, "4"))
        for flags, wanted in ((("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 3}'), ("ngram", "5", "4", "3")),
                              (("-sc.method=suffix", "--speculative-config.num_speculative_tokens", 12), ("suffix", "12", "5", "2")),
                              (("--speculative", "auto", "--speculative-tokens", 3), ("auto", "3", "5", "2"))):
            settings = self.config(TINY, *flags)
            self.assertEqual(tuple(settings[name]["value"] for name in names), wanted, flags)
        for flags in (("--speculative-config", json.dumps({"method": "draft_model", "model": str(TINY), "num_speculative_tokens": 4, "draft_tensor_parallel_size": 1})),
                      ("-sc.method=draft_model", "-sc.model", TINY, "--speculative-config.num_speculative_tokens", 4), ("--speculative", "draft", "--speculative-model", TINY, "--speculative-tokens", 4)):
            settings = self.config(TINY, *flags)
            self.assertEqual(tuple(settings[name]["value"] for name in ("speculative", "speculative-model", "speculative-tokens")), ("draft", str(TINY), "4"), flags)
        for flags in (("--speculative-config", json.dumps({"method": "eagle3", "model": head, "num_speculative_tokens": 4, "parallel_drafting": True})),
                      ("--speculative-config", json.dumps({"method": "p-eagle", "model": head, "num_speculative_tokens": 4})), ("-sc.method=eagle3", "-sc.model", head, "-sc.parallel_drafting=false", "-sc.num_speculative_tokens", 4)):
            settings = self.config(TINY, *flags)
            self.assertEqual(tuple(settings[name]["value"] for name in ("speculative", "speculative-model", "speculative-tokens")), ("eagle3", head, "4"), flags)
        for flags, says in ((('{"method": "dflash", "model": "x"}',), ("--speculative-config.method", "dflash", "want ngram, suffix, eagle3 or draft_model")),
                            (('{"method": "ngam"}',), ("--speculative-config.method", "want ngram or suffix or eagle3 or draft_model or p-eagle or peagle, found ngam")), (('{"method": "suffix", "disable_by_batch_size": 4}',), ("num_speculative_tokens", "found disable_by_batch_size")),
                            (("{}",), ("--speculative-config", "method")), (('{"num_speculative_tokens": 99}',), "--speculative-tokens")):
            self.refused(2, "serve", TINY, "--speculative-config", *flags, says=says)
        self.refused(2, "serve", TINY, "--speculative-control", "off", says=("--speculative-control off", "found off"))
        self.refused(2, "serve", TINY, "--speculative", "ngram", "--prompt-lookup-max", 1, says=("--prompt-lookup-min", "found 2"))
        eagle3 = ("--speculative", "eagle3", "--speculative-model")
        for code, flags, says in ((2, ("--speculative", "eagle3"), "want --speculative-model DIR"), (2, ("--speculative-model", head), "want --speculative eagle3 or draft, found off"),
                                  (5, (*eagle3, "/nowhere"), "/nowhere/config.json"), (3, (*eagle3, TINY), "want one of an EAGLE-3 head"),
                                  (4, (*eagle3, head, "--speculative-tap-reading", "outputs"), "want states of 0 to 8")):
            self.refused(code, "run", TINY, "-p", "a", "--backend", "cpu", *flags, says=says)

    def test_draft_models(self):
        prompt = ("run", TINY, "-p", "Once upon a time", "-n", 40, "--temperature", 0, "--json")
        want = {backend: self.ok(*prompt, *flags).json()["token_ids"] for backend, flags in (("cpu", support.EXACT), ("reference", ("--backend", "reference")))}
        draft = ("--speculative", "draft", "--speculative-model", TINY, "--speculative-control", "off")
        gguf = self.dir / "tiny.gguf"
        self.ok("convert", "-m", TINY, "-o", gguf)
        for backend, flags in (("cpu", (*support.EXACT, *draft)), ("cpu", (*support.EXACT, *draft, "--tensor-parallel-size", 2)), ("reference", ("--backend", "reference", *draft)),
                               ("cpu", (*support.EXACT, *draft[:3], gguf, *draft[4:]))):
            found = self.ok(*prompt, *flags).json()
            self.assertEqual(found["token_ids"], want[backend], flags)
            self.assertGreater(found["usage"]["drafted_tokens"], 0, flags)
            self.assertGreater(found["usage"]["accepted_tokens"], 0, flags)
        self.assertRegex(self.ok(*prompt[:-1], *support.EXACT, *draft).err, r"guessed \d+ tokens, \d+ right")
        server = Server(*support.EXACT, *draft)
        self.assertIn("Paris", server.chat(temperature=0).json()["choices"][0]["message"]["content"])
        server.idle()
        drafted, right = (server.metric(f"vllm:spec_decode_num_{name}_tokens_total") for name in ("draft", "accepted"))
        self.assertGreater(right, 0)
        self.assertGreaterEqual(drafted, right)
        self.assertEqual(server.stop(), 0)

    def test_draft_models_that_do_not_fit(self):
        cut, other, torn = self.copy_of_tiny("cut"), self.copy_of_tiny("other"), self.copy_of_tiny("torn")
        support.edit_json(cut / "config.json", lambda config: config.update(vocab_size=config["vocab_size"] - 1))
        text = (other / "tokenizer.json").read_text()
        swapped = json.loads(text)
        vocab = swapped["model"]["vocab"]
        a, b = "!", "a"
        vocab[a], vocab[b] = vocab[b], vocab[a]
        support.replace(other / "tokenizer.json", json.dumps(swapped).encode())
        shard = torn / "model-00001-of-00002.safetensors"
        support.replace(shard, shard.read_bytes()[:1000])
        draft = ("--speculative", "draft", "--speculative-model")
        for code, flags, says in ((2, ("--speculative", "draft"), "want --speculative-model MODEL"), (5, (*draft, "me/nowhere"), "me/nowhere"), (2, (*draft, cut), ("--speculative-model", "want the vocabulary of", "tokens, found")),
                                  (2, (*draft, other), ("--speculative-model", "want the tokens of", "found another token")), (4, (*draft, torn), "model-00001-of-00002.safetensors: header of"),
                                  (3, (*draft, f"{TINY}/eagle3"), "eagle3 is a llama"), (3, (*draft, TINY, "--nnodes", 2, "--node-rank", 0, "--master-addr", "127.0.0.1", "--tensor-parallel-size", 2), "--speculative draft: want one process, found --nnodes 2"),
                                  (2, (*draft, TINY, "--speculative-tap-reading", "outputs"), "--speculative-tap-reading: want --speculative eagle3, found draft")):
            self.refused(code, "run", TINY, "-p", "a", "--backend", "cpu", *flags, says=says)

    def test_kv_events(self):
        settings = self.config(TINY, "--kv-events-config", '{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:7", "replay_endpoint": "tcp://*:8", "topic": "kv@a@b", "buffer_steps": 5, "hwm": 6}')
        wanted = {"kv-events": "true", "kv-events-endpoint": "tcp://*:7", "kv-events-replay-endpoint": "tcp://*:8", "kv-events-topic": "kv@a@b", "kv-events-buffer": "5", "kv-events-hwm": "6", "kv-events-format": "arrays"}
        self.assertEqual({name: settings[name]["value"] for name in wanted}, wanted)
        self.assertNotIn("kv-events", self.config(TINY, "--kv-events-config", '{"enable_kv_cache_events": false, "topic": "x"}'))
        for flags, says in ((("--kv-events-config", '{"publisher": "null"}'), "want zmq"), (("--kv-events-config", '{"enabled": true}'), ("want fields enable_kv_cache_events", "found enabled")),
                            (("--kv-events", "--kv-events-endpoint", "tcp//x"), ("--kv-events-endpoint", "like tcp://*:5557", "found tcp//x")), (("--kv-events", "--kv-events-format", "json"), "arrays"),
                            (("--kv-events", "--no-enable-prefix-caching"), "want the prefix cache"), (("--kv-events-buffer", 0), "--kv-events-buffer")):
            self.refused(2, "serve", TINY, *flags, says=says)

    def test_without_libzmq_all_else_works(self):
        (self.dir / "lib").mkdir()
        (self.dir / "lib/libzmq.so.5").touch()
        env = {**os.environ, "LD_LIBRARY_PATH": str(self.dir / "lib")}
        self.refused(3, "serve", TINY, "--kv-events", env=env, says=("want libzmq to publish --kv-events with", "apt install libzmq5"))
        self.ok("run", TINY, "-p", "Once", "-n", 3, env=env)

    def test_what_requests_get_that_do_not_say(self):
        names = ("temperature", "top-p", "top-k", "min-p", "repetition-penalty", "reasoning")
        vllms = ("--override-generation-config", '{"temperature": 0.5, "top_p": 0.9, "top_k": -1, "repetition_penalty": 1.1}', "--default-chat-template-kwargs", '{"reasoning_effort": "high"}')
        llamas = ("--temp", 0.5, "--top-p", 0.9, "--top-k", 0, "--repeat-penalty", 1.1, "--chat-template-kwargs", '{"reasoning_effort": "high"}')
        for flags in (vllms, llamas, ("--override-generation-config.temperature=0.5", *llamas[2:])):
            settings = self.config(TINY, *flags)
            self.assertEqual([settings[name]["value"] for name in names], ["0.5", "0.9", "0", "0", "1.1", "high"], flags)
        self.assertEqual(self.config(TINY, "--default-chat-template-kwargs", '{"enable_thinking": false}')["reasoning"]["value"], "low")
        server = Server(*vllms, "--enable-force-include-usage")
        self.addCleanup(server.stop)
        for fields, told in (({}, (0.5, 0.9, "high")), ({"temperature": 0, "reasoning": {"effort": "low"}}, (0, 0.9, "low"))):
            response = server.post("/v1/responses", {"input": "hi", "max_output_tokens": 1, **fields}).json()
            self.assertEqual((round(response["temperature"], 6), round(response["top_p"], 6), response["reasoning"]["effort"]), told)
        for path, body in (("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}), ("/v1/completions", {"prompt": "hi"})):
            events = server.stream(path, {**body, "max_tokens": 1, "stream": True})
            self.assertGreater(events[-2][1]["usage"]["prompt_tokens"], 0)
        for code, flags, says in ((2, ("--override-generation-config", '{"max_new_tokens": 5}'), "requests have max_tokens"), (2, ("--override-generation-config", '{"typical_p": 1}'), ("want fields top_k, temperature, top_p", "found typical_p")),
                                  (2, ("--override-generation-config", '{"temperature": "hot"}'), "--temperature"), (2, ("--temperature", 500), "temperature: want 0 to 100, found 500"),
                                  (2, ("--chat-template-kwargs", '{"reasoning_effort": "extreme"}'), ("want low or medium or high", "found extreme")), (2, ("--chat-template-kwargs", '{"x": 1}'), "want fields reasoning_effort, enable_thinking, found x")):
            self.refused(code, "serve", TINY, *flags, says=says)

    def test_vllms_usual_limits_of_logprobs_pass_with_a_line(self):
        for most in (0, 5, 20):
            self.assertIn("--max-logprobs makes no difference: requests may ask for 20", self.ok("serve", TINY, "--max-logprobs", most, "--print-config").err)
        self.refused(2, "serve", TINY, "--max-logprobs", 100, says="--max-logprobs: only 20")

    def test_what_asks_for_nothing_is_taken(self):
        """As generated command lines have it."""
        asked = (("--hf-overrides", "{}"), ("--kv-transfer-config", "{}"), ("--kv-transfer-config", "null"), ("--override-generation-config", "{}"), ("--default-chat-template-kwargs", "{}"), ("--speculative-config", "null"),
                 ("--compilation-config", "null"), ("--cpu-offload-gb", "0.0"))
        settings = self.ok("serve", TINY, *(word for flags in asked for word in flags), "--print-config")
        for flag, value in asked[:-1]:
            self.assertEqual(settings.err.splitlines().count(f"{flag} {value} makes no difference: it asks for nothing"), 1, settings.err)
        self.assertRegex(settings.out, r"--speculative +off +default")
        for flags, says in ((("--hf-overrides", '{"a": 1}'), "the configuration comes with the model"), (("--kv-transfer-config", '{"a": {}}'), "stays where it is"),
                            (("--tokenizer", "null x"), "comes with the model"), (("--offload-group-size", "2"), "only 0 0.0 is supported")):
            self.refused(2, "serve", TINY, *flags, says=says)

    def test_flags_that_came_with_0_33(self):
        flags = ("--numa-bind", "--numa-bind-nodes", 0, 1, "--enable-offline-docs", "--mm-tensor-ipc", "torch_shm", "--swa-bounded-replay", "--no-enable-elastic-ep", "--anthropic-disabled-thinking-effort", "low",
                 "--ir-op-priority", "{}", "--weight-transfer-config", "{}", "--fingerprint-mode", "hash", "--cpu-distributed-timeout-seconds", 60, "--safetensors-prefetch-num-threads", 4)
        self.config(TINY, *flags)
        for flags, says in ((("--enable-elastic-ep",), "one process serves"), (("--anthropic-disabled-thinking-effort", "high"), "only auto none low is supported"),
                            (("--weight-transfer-config", '{"backend": "nccl"}'), "loaded at the start"), (("--watermark-config", '{"a": 1}'), "no watermark")):
            self.refused(2, "serve", TINY, *flags, says=says)

    def test_older_names_of_vllm_and_names_of_others(self):
        for parser in ("gpt-oss", "gptoss", "gpt_oss"):
            self.config(TINY, "--tool-call-parser", parser, "--reasoning-parser", parser)
        self.config(TINY, "--reasoning-parser", "GptOss")
        self.assertEqual(self.config(TINY, "--device", "cpu")["backend"], {"value": "cpu", "origin": "--device"})
        self.assertEqual(self.config(TINY, "--device", "cuda")["backend"], {"value": "cuda", "origin": "--device"})
        self.assertEqual(self.config(TINY, "--device", "auto")["backend"]["value"], "auto")
        self.refused(2, "serve", TINY, "--device", "tpu", says="--device: only auto cuda gpu cpu is supported, found tpu")

    def test_the_address_of_a_service_is_no_port(self):
        """Kubernetes sets such variables where services are called nibble and nibble-master."""
        env = {"NIBBLE_PORT": "tcp://10.0.0.1:8000", "NIBBLE_MASTER_PORT": "tcp://10.0.0.2:9"}
        for command in (("serve", TINY), ("run", TINY)):
            result = self.ok(*command, "--print-config", "--json", env={**os.environ, **env})
            for name, value in env.items():
                self.assertEqual(result.err.splitlines().count(f"{name} makes no difference: {value} is the address of a service"), 1, result.err)
        self.assertEqual(self.config(TINY, env=env)["port"], {"value": "8000", "origin": "default"})

    def test_the_size_of_the_cache_in_bytes(self):
        def tokens(*flags):
            config = self.config(TINY, "--backend", "cpu", "--max-model-len", 512, *flags)
            return int(config["kv-tokens"].get("resolved", config["kv-tokens"]["value"]))
        small, large = tokens("--kv-cache-memory-bytes", "10M"), tokens("--kv-cache-memory-bytes", "100M")
        self.assertGreaterEqual(small, 512)
        self.assertAlmostEqual(large / small, 10, delta=3)  # beside it the windows' pages
        self.assertEqual(tokens("--kv-cache-memory", 10 << 20), small)  # vLLM's log advises that name
        self.assertEqual(tokens("--kv-cache-memory-bytes", "10485.76k"), small)
        self.assertEqual(tokens("--kv-cache-memory-bytes", "10M", "--data-parallel-size", 2), small)  # of each engine
        self.assertGreater(tokens("--kv-cache-memory-bytes", "10M", "--kv-cache-dtype", "fp8"), 1.5 * small)
        self.assertEqual(tokens("--kv-cache-memory-bytes", 0), tokens())
        server = Server("--max-model-len", 512, "--kv-cache-memory-bytes", "10M", "--max-num-seqs", 4)
        self.addCleanup(server.stop)
        self.assertEqual(server.chat(max_tokens=3).status, 200)
        fits = self.config(TINY, "--backend", "cpu", "--max-model-len", "auto", "--kv-cache-memory-bytes", "10M")
        self.assertEqual(int(fits["max-model-len"]["resolved"]), int(fits["kv-tokens"]["resolved"]))
        self.refused(2, "serve", TINY, "--kv-cache-memory-bytes", "10M", says=("--kv-cache-memory-bytes: want at least ", "for 131072 tokens", "found 10485760"))
        self.refused(2, "serve", TINY, "--kv-cache-memory-bytes", "1G", "--kv-tokens", 131072, says="want one of them")
        self.refused(2, "serve", TINY, "--kv-cache-memory-bytes", "1.5G", says="--kv-cache-memory-bytes")
        for flag, much in (("--kv-cache-memory-bytes", "100T"), ("--kv-tokens", 1 << 30)):
            result = self.refused(6, "serve", TINY, flag, much, says=("KV cache", f"would fit: {flag} "))
            fits = int(result.err.split()[-1])
            self.assertEqual(self.ok("serve", TINY, flag, fits * 9 // 10, "--print-config").code, 0)

    def test_refusals(self):
        for flags, says in ((("--tensor-parallel-size", 3), ("--tensor-parallel-size", "8 query heads", "found 3")), (("--speculative-config", "{}"), "speculative"), (("--prot", 1), "--port"),
                            (("--quantization", "awq"), "mxfp4"), (("--tool-call-parser", "hermes"), "openai"), (("--port", 99999), "--port"),
                            (("-dpl", 2), "all of --data-parallel-size"), (("-dpr", 1), "one process serves"), (("-pp", 2), "--tensor-parallel-size is the one way"), (("--speculative-config.method", "eagle"), "speculative"), (("--tool-server", "demo"), "built-in"),
                            (("--attention-backend", "ROCM_ATTN"), "flash"), (("--allowed-origins", '["http://a"]'), "one origin"), (("--max-model-len", "8q"), "--max-model-len"),
                            (("--tokenizer", "x"), "comes with the model"), (("--num-gpu-blocks-override", 9), "--kv-tokens"),
                            (("--enable-lora",), "--enable-lora"), (("--worker-cls", "x.Y"), "auto"), (("--scheduler-cls", "x"), "no code"),
                            (("--async-scheduling=soon",), "want true or false, found soon"), (("--ssl-certfile", ""), "empty"), (("--model", ""), "empty"), (("--config", ""), "empty")):
            self.refused(2, "serve", TINY, *flags, says=says)
        self.refused(5, "serve", "openai/gpt-oss-120b", says=("openai/gpt-oss-120b", "nibble pull openai/gpt-oss-120b"))
        self.refused(2, "serve", TINY, env={**os.environ, "NIBBLE_PORT": "no"}, says="NIBBLE_PORT")
        file = self.dir / "c.toml"
        for text, says in (("prot = 1\n", "prot"), ("[serve]\nport = 1\n", "line 1"), ("port = 1\nport = 2\n", "line 2"), ("print-config = true\n", "print-config"),
                           ('api-key = ""\n', "empty"), ("host = \"x\n", "line 1")):
            file.write_text(text)
            self.refused(2, "serve", TINY, "--config", file, says=says)
        for path, says in ((self.dir, "directory"), ("x.yaml", "x.yaml")):
            self.refused(5, "serve", TINY, "--config", path, says=says)
        if not SANITIZED:  # several times 1 GiB
            self.refused(2, "serve", TINY, "--config", "/dev/zero", says="want at most")
        self.refused(2, "serve", TINY, "--api-key", "", says="--api-key")
        self.refused(2, "serve", TINY, "--api-key", "pass wörd", says=("--api-key", "of ASCII"))
        self.refused(2, "serve", TINY, "--host", "", says="--host")
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            self.refused(5, "serve", TINY, "--port", taken.getsockname()[1], says="take another --port")


# Variables of vLLM's and FlashInfer's: a value, and the flag and its value, or None where a line says that there is no effect.
VARIABLES = {
    "VLLM_MXFP4_MOE_KERNEL": [("triton", "moe-kernel", "auto"), ("marlin", "moe-kernel", "marlin")],
    "VLLM_MXFP4_ACTIVATION": [("bf16", "moe-activation", "bf16"), ("int8", "moe-activation", "int8")],
    "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8": [("1", "moe-activation", "mxfp8"), ("0", None, None)],
    "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8_CUTLASS": [("1", "moe-activation", "mxfp8"), ("0", None, None)],
    "VLLM_USE_FLASHINFER_MOE_MXFP4_BF16": [("1", "moe-activation", "bf16"), ("0", None, None)],
    "VLLM_ATTENTION_SINKS": [("0", "attention-sinks", "off"), ("true", "attention-sinks", "on")],
    "VLLM_USE_ATTENTION_SINKS": [("0", "attention-sinks", "off"), ("1", "attention-sinks", "on")],
    "VLLM_ATTENTION_BACKEND": [("FLASHINFER", "attention-backend", "auto"), ("reference", "attention-backend", "reference")],
    "VLLM_USE_CUDA_GRAPH": [("0", "enforce-eager", "true"), ("1", "enforce-eager", "false")],
    "FLASHINFER_LOGLEVEL": [("3", None, None)],
    "FLASHINFER_MOE_TILE": [("64", "moe-tile", "64x128"), ("128x128", "moe-tile", "128x128"), ("auto", "moe-tile", "auto")],
    "VLLM_USE_V1": [("1", None, None)],
    "VLLM_NO_USAGE_STATS": [("1", None, None)],
    "VLLM_DO_NOT_TRACK": [("1", None, None)],
    "VLLM_GPT_OSS_SYSTEM_TOOL_MCP_LABELS": [("container", None, None)],
    "VLLM_NAMES_NOTHING_HERE": [("1", None, None)],
    "FLASHINFER_NAMES_NOTHING_HERE": [("1", None, None)],
}
ONLY_SERVE = {"VLLM_API_KEY", "VLLM_LOGGING_LEVEL", "VLLM_SYSTEM_START_DATE"}
REFUSED = {"VLLM_BATCH_INVARIANT", "VLLM_USE_MODELSCOPE", "VLLM_GPT_OSS_HARMONY_SYSTEM_INSTRUCTIONS"}


def said(config, flag):
    """What was asked for and where; what it became is beside it."""
    return config[flag]["value"], config[flag]["origin"]


class TheirVariables(Case):
    COMMANDS = (("serve", TINY), ("run", TINY), ("chat", TINY), ("bench", TINY), ("perplexity", "-m", TINY))

    def env(self, **variables):
        return {**os.environ, **variables}

    def test_every_command_takes_them_alike(self):
        for name, cases in VARIABLES.items():
            for value, flag, ours in cases:
                for command in self.COMMANDS if flag else ():
                    config = self.ok(*command, "--print-config", "--json", env=self.env(**{name: value})).json()
                    self.assertEqual(said(config, flag), (ours, f"environment {name}"), (command, name, value))

    def test_each_that_is_set_gets_a_line(self):
        run = ("run", TINY, "-p", "a", "-n", 1)
        for name, cases in VARIABLES.items():
            for value, flag, ours in cases:
                result = nibble(*run, env=self.env(**{name: value}))
                line = f"{name} is taken as --{flag} {ours}" if flag else f"{name} makes no difference: "
                self.assertEqual(sum(said.startswith(line) for said in result.err.splitlines()), 1, (name, value, result.err))
        result = self.ok(*run, "--attention-sinks", "on", env=self.env(VLLM_ATTENTION_SINKS="0", VLLM_API_KEY="hush"))  # the flag counts, the key is nobody's
        self.assertNotIn("is taken as", result.err)
        self.assertNotIn("hush", result.err)

    def test_of_a_server_alone(self):
        config = self.ok("serve", TINY, "--print-config", "--json", env=self.env(VLLM_API_KEY="hush", VLLM_LOGGING_LEVEL="ERROR")).json()
        self.assertEqual(config["log-requests"], {"value": "false", "origin": "environment VLLM_LOGGING_LEVEL"})
        self.assertEqual(config["api-key"], {"value": "(secret)", "origin": "environment VLLM_API_KEY"})
        config = self.ok("serve", TINY, "--print-config", "--json", env=self.env(VLLM_LOGGING_LEVEL="error", VLLM_SYSTEM_START_DATE="2023-09-12")).json()
        self.assertEqual(config["log-requests"], {"value": "false", "origin": "environment VLLM_LOGGING_LEVEL"})
        self.assertEqual(config["date"], {"value": "2023-09-12", "origin": "environment VLLM_SYSTEM_START_DATE"})

    def test_values_that_they_cannot_have(self):
        for command in self.COMMANDS:
            for name, value in (("FLASHINFER_MOE_TILE", "x"), ("FLASHINFER_MOE_TILE", "32"), ("FLASHINFER_LOGLEVEL", "loud"), ("VLLM_USE_CUDA_GRAPH", "maybe"), ("VLLM_MXFP4_MOE_KERNEL", "cutlas"),
                                ("VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8", "2"), *((name, "1") for name in sorted(REFUSED))):
                self.refused(2, *command, env=self.env(**{name: value}), says=name)
        both = self.env(VLLM_MXFP4_ACTIVATION="bf16", VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8="1")
        self.refused(2, "run", TINY, "-p", "a", env=both, says=("VLLM_MXFP4_ACTIVATION", "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8", "want one of them"))

    def test_our_own_variables_count_first_in_every_command(self):
        env = self.env(NIBBLE_MOE_ACTIVATION="f32", VLLM_MXFP4_ACTIVATION="int8", NIBBLE_PROMPT="no flag of serve")
        for command in self.COMMANDS:
            config = self.ok(*command, "--print-config", "--json", env=env).json()
            self.assertEqual(said(config, "moe-activation"), ("f32", "environment NIBBLE_MOE_ACTIVATION"), command)
            self.assertNotIn("prompt", config)

    def test_one_of_ours_that_is_none_gets_a_line(self):
        env = self.env(NIBBLE_THREAD="1", NIBBLE_STOP="x", NIBBLE_PORT="1", NIBBLE_CPU_MASK="avx2", NIBBLE_CUDA_ARCH="sm_80", NIBBLE_EMPTY="")
        for command in self.COMMANDS:
            said = [line for line in self.ok(*command, "--print-config", env=env).err.splitlines() if line.startswith("NIBBLE_")]
            self.assertEqual(said, ["NIBBLE_STOP makes no difference: no setting is called STOP",
                                    "NIBBLE_THREAD makes no difference: no setting is called THREAD; did you mean THREADS?"], command)

    def test_kernels_of_a_card_make_no_difference_elsewhere(self):
        env = self.env(VLLM_MXFP4_MOE_KERNEL="marlin", VLLM_ATTENTION_BACKEND="reference", FLASHINFER_MOE_TILE="64")
        flags = ("--enforce-eager", "--gpu-memory-utilization", 0.5)
        line = ("--attention-backend reference, --moe-kernel marlin, --moe-tile 64x128, --enforce-eager, --gpu-memory-utilization 0.5 "
                "make no difference: no card is used")
        for command in (("serve", "--print-config"), ("run", "-p", "a", "-n", 1), ("bench", "-p", 4, "-n", 2, "-r", 1), ("perplexity", "-p", "a b c")):
            result = self.ok(command[0], "-m", TINY, *command[1:], *flags, env=env)
            self.assertEqual(result.err.count(line), 1, result.err)

    def test_kernels_of_a_card_end_a_server_before_it_listens(self):
        for flags in ((), ("--moe-kernel", "marlin")):  # a card's, asked for where there may be none
            result = nibble("serve", TINY, "--port", 0, "--backend", "cuda", *flags)
            if "no CUDA" in result.err:
                self.assertEqual(result.code, 3, result.err)
                self.assertNotIn("listening", result.err)
        result = nibble("serve", TINY, "--port", 0, "--backend", "cuda", "--moe-kernel", "reference", "--moe-activation", "mxfp8")
        self.assertEqual(result.code, 3, result.err)
        self.assertNotIn("listening", result.err)
        self.assertIn("--moe-activation mxfp8: want --moe-kernel auto, marlin or gemm, found reference", result.err)

    def test_bf16_on_a_cpu_is_float_and_said_to_be(self):
        server = Server(env={"VLLM_MXFP4_ACTIVATION": "bf16", "VLLM_MXFP4_MOE_KERNEL": "triton"})
        self.addCleanup(server.stop)
        server.wait_log("modes: .*float activations.*KV cache bf16, attention sinks on")
        server.wait_log(r"--moe-activation bf16, that is f32 \(environment VLLM_MXFP4_ACTIVATION\)")

    def test_each_setting_that_was_given_has_a_line(self):
        server = Server("--kv-cache-dtype", "int8", "--enforce-eager", env={"NIBBLE_THREADS": "1"})
        self.addCleanup(server.stop)
        server.wait_log(r"--threads 1 \(environment NIBBLE_THREADS\)")
        server.wait_log(r"--kv-cache-dtype int8 \(command line\)")
        self.assertNotIn("--enforce-eager true", "\n".join(server.log))  # no card: said before to make no difference
        self.assertNotIn("(default)", "\n".join(server.log))

    def test_the_manual_names_them_all(self):
        options = SOURCE / "src/app/options"
        listed = {name for file in [*options.glob("*_table*.cpp"), options / "foreign_words.txt"] for name in re.findall(r'\b((?:VLLM|FLASHINFER)_[A-Z]\w+)', file.read_text())
                  if not name.endswith("_V1") or name == "VLLM_USE_V1"}
        manual = (SOURCE / "docs/serving.md").read_text()
        table = {name for line in manual.splitlines() if line.startswith("| `") for name in re.findall(r"`((?:VLLM|FLASHINFER)_\w+)`", line)}
        self.assertEqual(table, listed)
        self.assertEqual({name for name in VARIABLES if "NAMES_NOTHING" not in name} | ONLY_SERVE | REFUSED, listed)


if __name__ == "__main__":
    support.main()
