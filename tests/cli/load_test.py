"""nibble load: against nibble serve, against a stand-in that answers badly, and against nobody. No figure is held to
anything but to what must add up."""
import http.server
import json
import signal
import subprocess
import threading
import unittest

import support
from schema import problems
from serve_support import Server
from support import INTERRUPTED, IO, NIBBLE, TIMEOUT_S, USAGE, Case

FAILED = 1
EVENT = b'data: {"choices":[{"index":0,"text":"a","finish_reason":null}]}\n\n'
DONE = b'data: {"choices":[{"index":0,"text":"","finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


def chat_event(**delta):
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}).encode() + b"\n\n"


class StandIn:
    """Another's server: says what each request gets. `answer` is given the handler and the request's number."""

    def __init__(self, answer, model="other"):
        stand_in = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                body = json.dumps({"data": [{"id": model}]}).encode()
                self.send_response(200 if self.path == "/v1/models" else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with stand_in.lock:
                    stand_in.seen.append((self.path, body))
                    number = len(stand_in.seen) - 1
                answer(self, number)

            def events(self, *events):
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                self.wfile.write(b"".join(events))

            def log_message(self, *_):
                pass

        self.seen, self.lock = [], threading.Lock()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class AgainstNibble(Case):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.url = f"http://127.0.0.1:{cls.server.port}"

    @classmethod
    def tearDownClass(cls):
        cls.server.process.kill()

    def load(self, *args):
        return support.nibble("load", "--base-url", self.url, "--vocab-size", 4000, "--isl", 20, "--osl", 6, *args)

    def test_a_sweep_adds_up_and_keeps_to_the_schema(self):
        result = self.load("-c", "1,3", "-r", 2, "--num-prompts", 6, "--json", "--api-key", "geheim")
        self.assertEqual(result.code, 0, result.err)
        json_result = result.json()
        self.assertEqual(problems(json_result), [])
        self.assertNotIn("geheim", result.out)
        self.assertEqual([row["concurrency"] for row in json_result["rows"]], [1, 3])
        for row in json_result["rows"]:
            self.assertEqual(row["requests"], {"ok": 12, "failed": 0, "unfinished": 0})
            self.assertTrue(12 * 16 <= row["prompt_tokens"] <= 12 * 20)
            self.assertTrue(12 * 4 <= row["output_tokens"] <= 12 * 6)
            self.assertEqual(row["tokens_counted_by"], "server")
            self.assertEqual(len(row["output_tokens_per_second_of_repetitions"]), 2)
            self.assertAlmostEqual(row["output_tokens_per_second"] * row["seconds"], row["output_tokens"], places=3)
            self.assertLessEqual(row["ttft"]["p50_ms"], row["ttft"]["p99_ms"])
            self.assertLessEqual(row["ttft"]["p50_ms"], row["e2e"]["p50_ms"])

    def test_chats_and_arrivals(self):
        result = self.load("--endpoint", "chat", "--request-rate", 200, "--num-prompts", 5)
        self.assertEqual(result.code, 0, result.err)
        for words in ("| concurrency |", "|       200/s |     5 |      0 |", "TTFT", "p99"):
            self.assertIn(words, result.out)

    def test_the_vocabulary_is_the_servers(self):
        result = support.nibble("load", "--base-url", self.url, "--isl", 200, "--osl", 2)
        self.assertEqual(result.code, 0, result.err)
        self.assertIn("random ids below 4086: the server says so", result.out)

    def test_conversations(self):
        flags = ("--endpoint", "chat", "--turns", 3, "--think-time", 0.01, "-c", 2, "--num-prompts", 4)
        result = self.load(*flags, "--json")
        self.assertEqual(result.code, 0, result.err)
        found = result.json()
        self.assertEqual(problems(found), [])
        self.assertEqual((found["metadata"]["workload"]["turns"], found["metadata"]["workload"]["think_time"]), (3, 0.01))
        row = found["rows"][0]
        self.assertEqual(row["requests"], {"ok": 12, "failed": 0, "unfinished": 0})
        self.assertEqual([turn["turn"] for turn in row["turns"]], [1, 2, 3])
        self.assertEqual([turn["ttft"]["count"] for turn in row["turns"]], [4, 4, 4])
        lengths = [turn["prompt_tokens"] for turn in row["turns"]]
        self.assertEqual(sorted(set(lengths)), lengths)  # each prompt holds those before
        text = self.load(*flags).out
        for words in ("- conversations of 3 turns, 0.01 s of thinking", "| concurrency | turn |", "|           2 |    3 |     4 |"):
            self.assertIn(words, text)

    def test_tools_and_schemas_are_served_as_asked(self):
        for flags in (("--tools", "builtin"), ("--tools", "builtin", "--turns", 2), ("--json-schema", "builtin")):
            result = self.load("--endpoint", "chat", "--osl", 400, "--num-prompts", 4, "-c", 2, "--json", *flags)
            self.assertEqual(result.code, 0, result.err)
            row = result.json()["rows"][0]
            self.assertEqual(row["failures"], {}, flags)

    def test_answers_meet_their_schema_however_hot_they_are_drawn(self):
        schema = {"type": "object", "required": ["mood", "score", "topics"], "additionalProperties": False, "properties": {
            "mood": {"enum": ["good", "neutral", "bad"]}, "score": {"type": "integer"},
            "topics": {"type": "array", "items": {"enum": ["work", "home", "travel"]}}}}
        wanted = {"type": "json_schema", "json_schema": {"name": "day", "strict": True, "schema": schema}}
        answer = self.server.chat("How was it?", response_format=wanted, temperature=2, seed=1, n=8, max_tokens=400, reasoning_effort="low")
        values = [json.loads(c["message"]["content"]) for c in answer.json()["choices"] if c["finish_reason"] == "stop"]
        self.assertGreater(len(values), 1)
        for value in values:
            self.assertEqual(problems(value, schema, "answer"), [])

    def test_a_server_that_refuses_everything_is_not_measured(self):
        result = support.nibble("load", "--base-url", self.url, "--isl", 20, "--osl", 6, "--vocab-size", 32000)
        self.assertEqual(result.code, IO)
        self.assertIn("all 2 warm-up requests failed, the first with HTTP 400", result.err)
        self.assertIn("--vocab-size", result.err)


@support.needs_openssl
class UnderTls(Case):
    def test_whom_the_server_must_be(self):
        cert, key = support.certificate(self.dir)
        server = Server("--ssl-certfile", cert, "--ssl-keyfile", key, ready=False)
        self.addCleanup(server.process.kill)
        server.wait_log("serving ")
        name, address = (f"https://{host}:{server.port}" for host in ("localhost", "127.0.0.1"))
        asks = ("load", "--isl", 20, "--osl", 4, "--num-prompts", 4, "-c", 2, "--base-url")
        for flags in ((name, "--cacert", cert), (address, "--insecure")):
            result = support.nibble(*asks, *flags, "--json")
            self.assertEqual(result.code, 0, result.err)
            self.assertEqual(result.json()["rows"][0]["requests"], {"ok": 4, "failed": 0, "unfinished": 0})
        for flags in ((name,), (address, "--cacert", cert)):  # nobody vouches for it; its name is another
            self.refused(IO, *asks, *flags, says="certificate verify failed")
            self.refused(IO, *asks, *flags, "-m", "x", says="the first with TLS handshake")
        self.refused(IO, *asks, name, "--cacert", key, says="--cacert")
        self.refused(IO, *asks, f"http://localhost:{server.port}", "-m", "x", says="all 4 warm-up requests failed")
        verified = support.nibble("verify", "--base-url", name, "--cacert", cert, "--level", 1)
        self.assertEqual(verified.code, 0, verified.out)


class AgainstOthers(Case):
    def stand_in(self, answer, **more):
        server = StandIn(answer, **more)
        self.addCleanup(server.close)
        return server

    def test_the_protocol_is_inferencexs(self):
        server = self.stand_in(lambda handler, _: handler.events(EVENT, EVENT, DONE))
        result = support.nibble("load", "--base-url", server.url, "--isl", 50, "--osl", 10, "-c", 4, "--json")
        self.assertEqual(result.code, 0, result.err)
        self.assertEqual(len(server.seen), 4 * 2 + 4 * 10)
        prompts = set()
        for path, body in server.seen:
            self.assertEqual(path, "/v1/completions")
            self.assertTrue(40 <= len(body["prompt"]) <= 50 and 8 <= body["max_tokens"] <= 10)
            self.assertEqual((body["model"], body["ignore_eos"], body["stream"]), ("other", True, True))
            prompts.add(tuple(body["prompt"]))
        self.assertEqual(len(prompts), len(server.seen))
        row = result.json()["rows"][0]
        self.assertEqual((row["tokens_counted_by"], row["output_tokens"]), ("events", 80))

    def test_every_failure_is_counted_by_its_kind(self):
        def answer(handler, number):
            kind = number % 6
            if kind == 0:
                handler.events(EVENT, DONE)
            elif kind == 1:
                handler.send_error(429, "full")
            elif kind == 2:
                handler.events(EVENT)
            elif kind == 3:
                handler.events(EVENT, b"data: oops\n\n", DONE)
            elif kind == 4:
                handler.events(EVENT, b"data: [DONE]\n\n")
            # else nothing: the connection ends

        server = self.stand_in(answer)
        result = support.nibble("load", "--base-url", server.url, "--num-prompts", 24, "--num-warmups", 0, "-c", 4, "--json")
        self.assertEqual(result.code, 0, result.err)
        row = result.json()["rows"][0]
        self.assertEqual(row["requests"], {"ok": 4, "failed": 20, "unfinished": 0})
        self.assertEqual({kind: failure["count"] for kind, failure in row["failures"].items()},
                         {"HTTP 429": 4, "truncated stream": 4, "malformed stream": 4, "connection lost": 4, "no finish_reason": 4})
        table = support.nibble("load", "--base-url", server.url, "--num-prompts", 5, "--num-warmups", 0)
        self.assertIn("| HTTP 429 ", table.out)

    def test_a_point_has_so_many_requests_for_each_concurrent_one(self):
        server = self.stand_in(lambda handler, _: handler.events(EVENT, DONE))
        result = support.nibble("load", "--base-url", server.url, "-c", "2,4", "--prompts-per-client", 3, "--warmups-per-client", 1, "--json")
        self.assertEqual(result.code, 0, result.err)
        self.assertEqual([row["requests"]["ok"] + row["requests"]["failed"] for row in result.json()["rows"]], [6, 12])
        self.assertEqual(len(server.seen), 6 + 12 + 2 + 4)
        both = support.nibble("load", "--base-url", server.url, "--prompts-per-client", 3, "--num-prompts", 5)
        self.assertEqual(both.code, 2, both.err)

    def test_answers_become_part_of_the_next_prompt(self):
        server = self.stand_in(lambda handler, _: handler.events(chat_event(reasoning="hm"), chat_event(content="ye"), chat_event(content="s"), DONE))
        result = support.nibble("load", "--base-url", server.url, "--endpoint", "chat", "--turns", 2, "--num-prompts", 1, "--num-warmups", 0)
        self.assertEqual(result.code, 0, result.err)
        (_, first), (_, second) = server.seen
        self.assertEqual(second["messages"][0], first["messages"][0])
        self.assertEqual(second["messages"][1], {"role": "assistant", "content": "yes"})
        self.assertEqual(len(second["messages"]), 3)

    def test_what_was_not_asked_for_is_counted_by_its_kind(self):
        def call(name, arguments):
            return chat_event(tool_calls=[{"index": 0, "id": "c", "function": {"name": name, "arguments": arguments}}])

        answers = [call("add", '{"a":1}'), chat_event(content="no"), call("sub", "{}"), call("add", "{"), call("add", '{"a":"x"')]
        server = self.stand_in(lambda handler, number: handler.events(answers[number % 5], DONE))
        tools = self.dir / "tools.json"
        tools.write_text(json.dumps([{"type": "function", "function": {
            "name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}]))
        chats = ("load", "--base-url", server.url, "--endpoint", "chat", "--num-prompts", 10, "--num-warmups", 0, "--json")
        result = support.nibble(*chats, "--tools", tools)
        self.assertEqual(result.code, 0, result.err)
        failures = {kind: failure["count"] for kind, failure in result.json()["rows"][0]["failures"].items()}
        self.assertEqual(failures, {"no tool call": 2, "unknown tool": 2, "invalid JSON": 4})
        body = server.seen[0][1]
        self.assertEqual((body["tools"], body["tool_choice"]), (json.loads(tools.read_text()), "required"))
        self.assertNotIn("ignore_eos", body)
        result = support.nibble(*chats, "--tools", tools, "--tool-choice", "auto")
        self.assertNotIn("no tool call", result.json()["rows"][0]["failures"])
        answers[:] = [chat_event(content='{"a":1}'), chat_event(content='{"a":'), chat_event(content='{"b":1}')] + answers[3:]
        schema = self.dir / "schema.json"
        schema.write_text('{"type":"object","required":["a"]}')
        result = support.nibble(*chats, "--json-schema", schema)
        self.assertEqual(server.seen[-1][1]["response_format"]["json_schema"]["schema"], {"type": "object", "required": ["a"]})
        failures = result.json()["rows"][0]["failures"]
        self.assertEqual({kind: failures[kind]["count"] for kind in failures}, {"invalid JSON": 6})
        self.assertIn("the answer, ended by stop: {", failures["invalid JSON"]["first_message"])

    def test_the_vocabulary_where_the_server_does_not_say(self):
        server = self.stand_in(lambda handler, _: handler.events(EVENT, DONE), model="other")
        result = support.nibble("load", "--base-url", server.url, "--num-prompts", 1, "--num-warmups", 0, "--json")
        self.assertEqual(result.json()["metadata"]["workload"]["vocab_size"], 32000)

    def test_where_nothing_went_well_it_fails(self):
        server = self.stand_in(lambda handler, _: handler.send_error(500, "no"))
        result = support.nibble("load", "--base-url", server.url, "--num-prompts", 3, "--num-warmups", 0)
        self.assertEqual(result.code, FAILED, result.err)

    def test_who_does_not_answer_is_left(self):
        let_go = threading.Event()
        server = self.stand_in(lambda *_: let_go.wait(TIMEOUT_S))
        self.addCleanup(let_go.set)
        result = support.nibble("load", "--base-url", server.url, "--num-prompts", 2, "--num-warmups", 0, "--timeout", 1, "--json")
        self.assertEqual(result.json()["rows"][0]["failures"]["timeout"]["count"], 2)

    def test_ctrl_c_keeps_what_is_whole(self):
        let_go = threading.Event()
        self.addCleanup(let_go.set)
        second = threading.Event()

        def answer(handler, number):
            if number == 0:
                return handler.events(EVENT, DONE)
            second.set()
            return let_go.wait(TIMEOUT_S)

        server = self.stand_in(answer)
        run = subprocess.Popen([NIBBLE, "load", "--base-url", server.url, "--num-prompts", "5", "--num-warmups", "0", "--json"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertTrue(second.wait(TIMEOUT_S))
        run.send_signal(signal.SIGINT)
        out, _ = run.communicate(timeout=TIMEOUT_S)
        self.assertEqual(run.returncode, INTERRUPTED)
        result = json.loads(out)
        self.assertTrue(result["interrupted"])
        self.assertEqual(result["rows"][0]["requests"], {"ok": 1, "failed": 0, "unfinished": 4})

    def test_nobody_there(self):
        server = StandIn(lambda *_: None)
        server.close()
        result = support.nibble("load", "--base-url", server.url, "--model", "x")
        self.assertEqual(result.code, IO)
        self.assertIn("all 2 warm-up requests failed, the first with connect", result.err)

    def test_bad_flags(self):
        bad = self.dir / "bad.json"
        bad.write_text('[]')
        for flags in (("--base-url", "ftp://a"), ("--base-url", "x"), (), ("--base-url", "http://a", "-c", "0"),
                      ("--base-url", "http://a", "--turns", "2"), ("--base-url", "http://a", "--tools", "builtin"),
                      ("--base-url", "http://a", "--endpoint", "chat", "--tools", "builtin", "--json-schema", "builtin"),
                      ("--base-url", "http://a", "--endpoint", "chat", "--tool-choice", "auto"),
                      ("--base-url", "http://a", "--endpoint", "chat", "-m", "x", "--tools", bad),
                      ("--base-url", "http://a", "--endpoint", "chat", "-m", "x", "--json-schema", bad),
                      ("--base-url", "http://127.0.0.1:1", "--insecure"), ("--base-url", "http://127.0.0.1:1", "--cacert", "x"),
                      ("--base-url", "https://a", "--insecure", "--cacert", "x"),
                      ("--base-url", "http://a", "-c", "1", "--request-rate", "2"), ("--base-url", "http://a", "--request-rate", "nan"),
                      ("--base-url", "http://a", "--request-rate", "inf"),
                      ("--base-url", "http://a", "--prefix-len", "9", "--isl", "8")):
            self.assertEqual(support.nibble("load", *flags).code, USAGE, flags)


if __name__ == "__main__":
    unittest.main()
