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
from support import NIBBLE, TIMEOUT_S, Case

FAILED, USAGE, IO, INTERRUPTED = 1, 2, 5, 130
EVENT = b'data: {"choices":[{"index":0,"text":"a","finish_reason":null}]}\n\n'
DONE = b"data: [DONE]\n\n"


class StandIn:
    """Another's server: says what each request gets. `answer` is given the handler and the request's number."""

    def __init__(self, answer):
        stand_in = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                body = json.dumps({"data": [{"id": "other"}]}).encode()
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

    def test_a_server_that_refuses_everything_is_not_measured(self):
        result = support.nibble("load", "--base-url", self.url, "--isl", 20, "--osl", 6)  # ids beyond the vocabulary
        self.assertEqual(result.code, IO)
        self.assertIn("all 2 warm-up requests failed, the first with HTTP 400", result.err)
        self.assertIn("--vocab-size", result.err)


class AgainstOthers(Case):
    def stand_in(self, answer):
        server = StandIn(answer)
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
            kind = number % 5
            if kind == 0:
                handler.events(EVENT, DONE)
            elif kind == 1:
                handler.send_error(429, "full")
            elif kind == 2:
                handler.events(EVENT)
            elif kind == 3:
                handler.events(EVENT, b"data: oops\n\n", DONE)
            # else nothing: the connection ends

        server = self.stand_in(answer)
        result = support.nibble("load", "--base-url", server.url, "--num-prompts", 20, "--num-warmups", 0, "-c", 4, "--json")
        self.assertEqual(result.code, 0, result.err)
        row = result.json()["rows"][0]
        self.assertEqual(row["requests"], {"ok": 4, "failed": 16, "unfinished": 0})
        self.assertEqual({kind: failure["count"] for kind, failure in row["failures"].items()},
                         {"HTTP 429": 4, "truncated stream": 4, "malformed stream": 4, "connection lost": 4})
        table = support.nibble("load", "--base-url", server.url, "--num-prompts", 5, "--num-warmups", 0)
        self.assertIn("| HTTP 429 ", table.out)

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
        for flags in (("--base-url", "https://a"), ("--base-url", "x"), (), ("--base-url", "http://a", "-c", "0"),
                      ("--base-url", "http://a", "-c", "1", "--request-rate", "2"),
                      ("--base-url", "http://a", "--prefix-len", "9", "--isl", "8")):
            self.assertEqual(support.nibble("load", *flags).code, USAGE, flags)


if __name__ == "__main__":
    unittest.main()
