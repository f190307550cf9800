"""nibble serve and clients that mean no good, vanish or never end; many at once; the end. Standard library only."""
import concurrent.futures
import http.client
import json
import os
import re
import resource
import signal
import socket
import ssl
import subprocess
import time
import unittest

import support
from serve_support import PATIENCE_S, Server, chat_body, joined, parse_events
from support import NIBBLE, SANITIZED, TINY, Case

ENDLESS = {"ignore_eos": True, "max_tokens": 100_000}


def processor_seconds(process):
    with open(f"/proc/{process.pid}/stat", encoding="utf-8") as stat:
        return int(stat.read().rpartition(")")[2].split()[11]) / os.sysconf("SC_CLK_TCK")


def unread(server, client):
    """Bytes from this socket that the server has not read."""
    ends = [f":{port:04X}" for port in (server.port, client.getsockname()[1])]
    with open("/proc/net/tcp", encoding="utf-8") as table:
        for line in table:
            fields = line.split()
            if [fields[1][-5:], fields[2][-5:]] == ends:
                return int(fields[4].partition(":")[2], 16)
    raise AssertionError("no such connection")


class Hostile(Case):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--max-num-seqs", 64, *support.EXACT, "--max-body-bytes", 4_000_000, "--request-timeout", 2)

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        assert code == 0, (code, cls.server.log[-5:])

    def tearDown(self):
        self.assertEqual(self.server.get("/health").status, 200)

    def test_bodies_that_are_no_request(self):
        deep = b'{"messages":' + b"[" * 50_000
        for body in (b"", b"{", b"null", b"[]", b'"x"', b"1e999", b"{}", b'{"messages": 1}', b"\xff\xfe", b'{"messages":[{"role":"user","content":"\xc3\x28"}]}',
                     b'{"a":1,"a":2}', deep, b'{"messages":' + b'{"a":' * 500 + b"1" + b"}" * 501, b'{"seed":' + b"9" * 5000 + b"}",
                     b'{"temperature":1e400,"messages":[]}', b'{"messages":[{"role":"user","content":"\\ud800"}]}', b"\x00" * 1000, b'{"n":NaN}'):
            for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/tokenize", "/detokenize", "/api/chat", "/api/generate", "/api/show", "/api/pull", "/api/embed", "/api/create"):
                answer = self.server.post(path, body)
                self.assertEqual(answer.status, 400, (path, body[:60], answer.raw[:200]))
                error = answer.json()["error"]
                self.assertTrue(error if path.startswith("/api/") else error["message"])

    def test_http_that_is_none(self):
        for data, status in ((b"GARBAGE\r\n\r\n", b"400"), (b"GET / HTTP/9.9\r\n\r\n", b"400"), (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", b"431"),
                             (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 100_000 + b"\r\n\r\n", b"431"),
                             (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n", b"413"),
                             (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", b"400"),
                             (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"400"),
                             (b"GET /nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"404"), (b"PUT /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"405"),
                             (b"GET /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"405"),
                             (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nConnection: close\r\n\r\n", b"415"),
                             (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n{}", b"400"),
                             (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", b"400"),
                             (b"GET http://host/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"200"), (b"GET http://host HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"404"),
                             (b"POST /v1/completions HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n{}", b"400"),
                             (b"GET /health HTTP/1.0\r\n\r\n", b"200"), (b"\r\n\r\nGET /health HTTP/1.1\r\nHost: [::1]:80\r\nConnection: close\r\n\r\n", b"200"),
                             (b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n", b"400"), (b"GET /health HTTP/1.1\r\nHost: x\r\nHost: x\r\nConnection: close\r\n\r\n", b"400"),
                             (b"GET /health HTTP/1.1\r\nHost: x/y\r\nConnection: close\r\n\r\n", b"400"),
                             (b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding:\r\nTransfer-Encoding: gzip\r\n\r\n{}", b"400"), (b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"400"),
                             (b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", b"400"), (b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"400"),
                             (b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n", b"400"),
                             (b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Encoding: identity\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", b"400"), (b"GET /health HTTP/1.1\r\nHost:\r\nConnection: close\r\n\r\n", b"200"),
                             (b"POST /tokenize HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n10\r\n" + b'{"prompt":  "a"}' + b"\r\n0\r\n\r\n", b"400"),
                             (b"GET /%68ealth?x=1#y HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"200")):
            answer = self.server.raw(data)
            self.assertEqual(answer[9:12], status, (data[:60], answer[:200]))
        for endless in (b"2;" + b"a" * 1_000_000, b"0" * 1_000_000, b"2\r\n{}\r\n0\r\nX: " + b"a" * 1_000_000, b"2\r\n{}\r\n0\r\n" + b"X: y\r\n" * 200_000):  # of a chunk's line, of the trailer
            answer = self.server.raw(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + endless)
            self.assertEqual(answer[9:12], b"431", (endless[:20], answer[:200]))
        too_large = self.server.raw(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + (b"100000\r\n" + b"a" * 0x100000 + b"\r\n") * 6)
        self.assertEqual(too_large[9:12], b"413")

    def test_a_zero_byte_does_not_end_a_message(self):
        self.assertEqual(self.server.get("/%00x").json()["error"]["message"], "there is no /?x here")
        self.assertEqual(self.server.chat(max_tokens=1, **{"a\0b": 1}).headers["X-Nibble-Ignored"], "a?b")

    def test_a_prompt_that_is_too_long_is_refused_before_its_grammar_is_made(self):
        answer = self.server.chat("ab " * 350_000, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": 5}}})
        self.assertEqual((answer.status, answer.json()["error"]["code"]), (400, "context_length_exceeded"))

    def test_what_takes_another_method_says_which(self):
        for method, path, allowed in (("DELETE", "/health", "GET, HEAD"), ("GET", "/v1/completions", "POST"), ("POST", "/v1/models/nibble-tiny", "GET, HEAD"), ("PUT", "/ping", "GET, HEAD, POST")):
            answer = self.server.request(method, path)
            self.assertEqual((answer.status, answer.headers["Allow"]), (405, allowed))

    def test_everything_that_is_answered_is_counted(self):
        post = b"POST /tokenize HTTP/1.1\r\nHost: x\r\n"
        cases = ((b"GARBAGE\r\n\r\n", "no route", 400), (b"GET / HTTP/1.1\r\n\r\n", "no route", 400), (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", "no route", 431),
                 (post + b"Content-Length: 99999999999\r\n\r\n", "no route", 413), (post + b"Content-Length: 9\r\n\r\n{", "no route", 408),
                 (b"OPTIONS / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "no route", 204), (b"GET /nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "no route", 404),
                 (b"PUT /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "/v1/completions", 405), (post + b"Connection: close\r\n\r\n", "/tokenize", 400),
                 (b"GET /v1/models/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "/v1/models/{model}", 404), (b"GET /ping HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "/ping", 200))
        for data, route, status in cases:
            labels = {"route": route, "status": status}
            before = self.server.metric("nibble:http_responses_total", or_else=0, **labels)
            self.assertEqual(self.server.raw(data)[9:12], b"%d" % status)
            self.assertEqual(self.server.metric("nibble:http_responses_total", or_else=0, **labels), before + 1, (data[:40], labels))
        self.server.wait_log(r'"event":"refused","status":431')

    def test_connections_beyond_the_most_are_counted(self):
        server = Server("--max-connections", 2)
        self.addCleanup(server.stop)
        name = "nibble:connections_dropped_total"
        server.until(lambda: server.metric(name) == 0)
        idle = [socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) for _ in range(4)]
        for s in idle[2:]:
            self.assertEqual(s.recv(1), b"")
        for s in idle:
            s.close()

        def counted():
            try:
                return server.metric(name) >= 2  # the two before may still be open for a moment
            except ConnectionError:
                return False
        server.until(counted)

    def test_requests_one_behind_the_other(self):
        one = b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n"
        answers = self.server.raw(one * 20 + b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        self.assertEqual(answers.count(b"HTTP/1.1 200 OK"), 21)

    def test_an_empty_line_in_two_pieces_is_skipped(self):
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=PATIENCE_S) as s:
            for piece in (b"\r", b"\n\r", b"\nGET /ping HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"):
                s.sendall(piece)
                time.sleep(0.1)
            self.assertIn(b"200 OK", s.recv(65536))

    def test_expect_continue(self):
        body = json.dumps(chat_body(max_tokens=1)).encode()
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=PATIENCE_S) as s:
            s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body))
            self.assertIn(b"100 Continue", s.recv(100))
            s.sendall(body)
            self.assertIn(b"200 OK", s.recv(65536))

    def test_slow_senders_are_told_and_closed(self):
        headers = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n"
        start = time.monotonic()
        senders = []
        for begun in (b"POST /v1", headers, headers + b"\r\n{"):
            senders.append(socket.create_connection(("127.0.0.1", self.server.port), timeout=PATIENCE_S))
            senders[-1].sendall(begun)
        for sender in senders:
            with sender:
                answer = b""
                while more := sender.recv(1000):
                    answer += more
                self.assertEqual(answer[9:12], b"408", answer)
                self.assertIn(b'"message"', answer)
        self.assertLess(time.monotonic() - start, PATIENCE_S / 2)
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=PATIENCE_S) as s:
            with self.assertRaises(OSError):  # a byte now and then does not help
                for _ in range(200):
                    s.sendall(b"G")
                    time.sleep(0.05)

    def test_a_client_that_goes_is_noticed_at_once(self):
        for stream in (True, False):
            connection = self.server.connect()
            connection.request("POST", "/v1/chat/completions", json.dumps(chat_body("Tell me a story.", stream=stream, **ENDLESS)))
            self.server.until(lambda: self.server.load()["running"] == 1)
            connection.sock.close() if connection.sock else connection.close()
            drawn = self.server.metric("vllm:generation_tokens_total")
            self.server.idle()
            self.assertLess(self.server.metric("vllm:generation_tokens_total") - drawn, 5000)  # of 100,000

    def test_a_log_whose_reader_goes_ends_nothing(self):
        command = [NIBBLE, "serve", TINY, "--port", "0"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        port = next(int(found[1]) for line in process.stderr if (found := re.search(r"curl http://127.0.0.1:(\d+)/", line)))
        process.stderr.close()
        for _ in range(2):  # the first one's line has no reader
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
            connection.request("POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 1}))
            self.assertEqual(connection.getresponse().status, 200)
            connection.close()
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(PATIENCE_S), 0)

    def test_a_log_that_nobody_reads_stops_nothing(self):
        command = [NIBBLE, "serve", TINY, "--port", "0", "--log-prompts"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE)
        self.addCleanup(process.kill)
        port = next(int(found[1]) for line in process.stderr if (found := re.search(rb"curl http://127.0.0.1:(\d+)/", line)))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)

        def ask(method, path, body=None):
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

        def dropped():
            return int(float(re.search(r"^nibble:log_lines_dropped_total\{.*\} (.*)$", ask("GET", "/metrics")[1], re.M)[1]))

        self.assertEqual(dropped(), 0)
        long = json.dumps({"prompt": "a", "max_tokens": 1, "user": "x" * 60_000})  # two lines of log
        for _ in range(12):  # 64 KiB fit a pipe, and 256 KiB wait
            self.assertEqual(ask("POST", "/v1/completions", long)[0], 200)
        self.assertEqual(ask("GET", "/load")[0], 200)
        self.assertEqual(ask("GET", "/health")[0], 200)
        lost = dropped()
        self.assertGreater(lost, 0)
        self.assertLess(lost, 24)  # what could be kept is kept
        for _ in range(24 - lost):  # a reader that comes late gets whole lines
            self.assertIn(json.loads(process.stderr.readline())["event"], ("prompt", "request"))
        for _ in range(8):
            self.assertEqual(ask("POST", "/v1/completions", long)[0], 200)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(PATIENCE_S), 0)

    def test_many_clients_that_go_leave_nothing(self):
        sockets = []
        for i in range(40):
            body = json.dumps(chat_body("Tell me a story.", stream=i % 2 == 0, seed=i, **ENDLESS)).encode()
            s = socket.create_connection(("127.0.0.1", self.server.port), timeout=PATIENCE_S)
            s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            sockets.append(s)
        time.sleep(0.3)
        for i, s in enumerate(sockets):
            if i % 3 == 0:  # a reset instead of an end
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            s.close()
        self.server.idle()

    def test_a_reader_that_does_not_read_is_let_go(self):
        body = json.dumps(chat_body("Tell me a story.", stream=True, logprobs=True, top_logprobs=20, ignore_eos=True, max_tokens=120_000)).encode()
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect(("127.0.0.1", self.server.port))
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        self.server.until(lambda: self.server.load()["running"] == 1)
        self.server.idle()  # before the 120 000 tokens are there
        s.close()

    @unittest.skipIf(SANITIZED, "so slow that the server lets the reader go first")
    def test_a_reader_that_pauses_gets_everything(self):
        body = {"prompt": "Once upon a time", "stream": True, "temperature": 0, "logprobs": 20, "ignore_eos": True, "max_tokens": 1500}
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect(("127.0.0.1", self.server.port))
        self.addCleanup(s.close)
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port)
        connection.sock = s
        connection.request("POST", "/v1/completions", json.dumps(body))
        self.server.until(lambda: self.server.load()["running"] == 1)
        self.server.idle()  # more is there than the sockets hold
        late = connection.getresponse().read().decode()
        self.assertGreater(len(late), 1_000_000)
        late, prompt = ([event["choices"] for _, event in events[:-1]] for events in (parse_events(late), self.server.stream("/v1/completions", body)))
        self.assertTrue(late == prompt)


class Many(Case):
    def test_the_cache_has_room_for_every_sequence_that_may_run(self):
        for flags, pages in ((("--max-num-seqs", 8), 64), (("--max-num-seqs", 8, "--kv-tokens", 640), 10), (("--max-num-seqs", 1024), 2048)):
            server = Server("--max-model-len", 512, *flags)
            self.addCleanup(server.stop)
            self.assertEqual(server.metric("nibble:cache_config_info", num_gpu_blocks=pages), 1)

    def test_a_context_that_fits_is_found(self):
        for flags, context in ((("--max-model-len", "auto", "--kv-tokens", 640), 640), (("--max_model_len", -1), 131072)):
            server = Server(*flags)
            self.addCleanup(server.stop)
            self.assertEqual(server.get("/v1/models").json()["data"][0]["max_model_len"], context)
            server.wait_log(r"serving \S+ on cpu, context \d")

    def test_the_context_holds_the_prompt_and_what_is_generated(self):
        server = Server("--max-model-len", 64)
        self.addCleanup(server.stop)

        def complete(tokens, **fields):
            answer = server.post("/v1/completions", {"prompt": [1000 + i for i in range(tokens)], "ignore_eos": True, "temperature": 0, **fields})
            return answer.status, answer.json()

        for prompt, asked, generated in ((40, 1000, 24), (40, 24, 24), (63, 9, 1), (1, 1000, 63)):
            status, body = complete(prompt, max_tokens=asked)
            self.assertEqual((status, body["usage"]["completion_tokens"], body["usage"]["total_tokens"]), (200, generated, prompt + generated))
            self.assertEqual(body["choices"][0]["finish_reason"], "length")
        for fields in ({"max_tokens": 1}, {"max_tokens": 1, "echo": True}, {}):
            status, body = complete(64, **fields)
            self.assertEqual((status, body["error"]["code"]), (400, "context_length_exceeded"), fields)
        scoring = {"echo": True, "max_tokens": 0, "logprobs": 0}
        status, body = complete(64, **scoring)
        self.assertEqual((status, body["usage"]["completion_tokens"], len(body["choices"][0]["logprobs"]["tokens"])), (200, 0, 64))
        self.assertEqual((complete(65, **scoring)[0], complete(64, echo=True, max_tokens=0)[0]), (400, 200))

    def test_256_streams_equal_one_by_one(self):
        count = 48 if SANITIZED else 256
        server = Server("--max-num-seqs", 256, "--kv-tokens", 131072, *support.EXACT)
        self.addCleanup(server.stop)
        questions = ["What is the capital of %s?" % c for c in ("France", "Japan", "Italy", "Norway", "Peru", "Egypt", "Chile", "Kenya")]

        def body(i):
            """The greedy ones ask eight questions again and again; each seed comes once."""
            sampling = {"temperature": 0} if i % 2 else {"temperature": 1, "seed": i}
            return {"messages": [{"role": "user", "content": questions[i // 2 % len(questions)]}], "max_tokens": 40, "stream": True, **sampling}

        def run(body):
            events = server.stream("/v1/chat/completions", body)
            assert events[-1] == (None, "[DONE]"), events[-1]
            return joined(events, "reasoning_content"), joined(events, "content"), events[-2][1]["choices"][0]["finish_reason"]

        bodies = [body(i) for i in range(count)]
        with concurrent.futures.ThreadPoolExecutor(count) as pool:
            together = list(pool.map(run, bodies))
        alone = {}
        for request, heard in zip(bodies, together):
            key = json.dumps(request)
            if key not in alone:
                alone[key] = run(request)
            self.assertEqual(heard, alone[key], key)
        self.assertEqual(len(alone), count // 2 + len(questions))
        self.assertEqual(len({heard for heard in together[1::2]}), len(questions))
        self.assertEqual(server.metric("nibble:request_success_total", finished_reason="error"), 0)
        server.idle()

    def test_a_burst_that_slots_and_queue_hold_is_served(self):
        server = Server("--max-num-seqs", 6, "--max-waiting", 2)
        self.addCleanup(server.stop)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda i: server.chat("Tell me a story.", ignore_eos=True, max_tokens=20), range(8)))
        self.assertEqual([a.status for a in answers], [200] * 8)

    def test_a_full_queue_says_come_back(self):
        server = Server("--max-num-seqs", 1, "--max-waiting", 1)
        self.addCleanup(server.stop)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda i: server.chat("Tell me a story.", ignore_eos=True, max_tokens=300), range(8)))
        statuses = [a.status for a in answers]
        self.assertEqual(set(statuses), {200, 429}, statuses)
        refused = answers[statuses.index(429)]
        self.assertGreaterEqual(int(refused.headers["Retry-After"]), 1)
        self.assertEqual(refused.json()["error"]["type"], "rate_limit_error")


class Ends(Case):
    def begin_story(self, server, **fields):
        connection = server.connect()
        connection.request("POST", "/v1/chat/completions", json.dumps(chat_body("Tell me a story.", stream=True, **fields)))
        response = connection.getresponse()
        response.readline()
        return connection, response

    def test_sigterm_lets_streams_finish(self):
        server = Server("--shutdown-timeout", PATIENCE_S)
        connection, response = self.begin_story(server, ignore_eos=True, max_tokens=300)
        idle = server.connect()
        idle.connect()
        server.process.send_signal(signal.SIGTERM)
        text = response.read().decode()
        self.assertIn("data: [DONE]", text)
        self.assertIn('"finish_reason":"length"', text)
        self.assertEqual(server.process.wait(timeout=PATIENCE_S), 0)  # a second signal might find it past its handlers
        server.stop()

    def test_a_terminal_that_closes_lets_streams_finish(self):
        server = Server("--shutdown-timeout", PATIENCE_S)
        connection, response = self.begin_story(server, ignore_eos=True, max_tokens=300)
        server.process.send_signal(signal.SIGHUP)
        server.until(lambda: self.refuses(server))
        server.process.send_signal(signal.SIGHUP)
        self.assertIn('"finish_reason":"length"', response.read().decode())
        self.assertEqual(server.process.wait(timeout=PATIENCE_S), 0)
        server.stop()

    def test_under_nohup_a_server_outlives_its_terminal(self):
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self.addCleanup(signal.signal, signal.SIGHUP, before)
        server = Server()
        server.process.send_signal(signal.SIGHUP)
        connection, response = self.begin_story(server, ignore_eos=True, max_tokens=30)
        self.assertIn('"finish_reason":"length"', response.read().decode())
        self.assertFalse(self.refuses(server))
        self.assertEqual(server.stop(), 0)

    def test_the_deadline_and_a_second_signal_end_them(self):
        for flags, second in ((("--shutdown-timeout", 1), False), ((), True)):
            server = Server(*flags)
            connection, response = self.begin_story(server, **ENDLESS)
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            if second:
                server.process.send_signal(signal.SIGINT)
            events = parse_events(response.read().decode().lstrip())  # a whole stream, as far as HTTP goes
            self.assertEqual(events[-1], (None, "[DONE]"))
            self.assertEqual(events[-2][1]["error"], {"message": "the server is shutting down", "type": "server_error", "param": None, "code": "shutting_down"})
            self.assertEqual(server.process.wait(timeout=PATIENCE_S), 0)
            server.stop()

    def test_every_request_that_is_cut_is_told_why(self):
        server = Server("--max-num-seqs", 2, "--shutdown-timeout", 2 * PATIENCE_S)
        bodies = [chat_body("Tell me a story.", stream=i % 2 == 0, **ENDLESS) for i in range(6)]  # four of them wait
        with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
            answers = [pool.submit(server.post, "/v1/chat/completions", body) for body in bodies]
            server.until(lambda: (load := server.load())["running"] + load["waiting"] == len(bodies))
            server.process.send_signal(signal.SIGTERM)
            server.until(lambda: self.refuses(server))
            server.process.send_signal(signal.SIGTERM)
            answers = [answer.result() for answer in answers]
            self.assertEqual(server.process.wait(timeout=PATIENCE_S), 0)
        for body, answer in zip(bodies, answers):
            error = parse_events(answer.raw.decode())[-2][1] if body["stream"] else answer.json()
            self.assertEqual((answer.status, error["error"]["message"]), (200 if body["stream"] else 503, "the server is shutting down"))
            if not body["stream"]:
                self.assertEqual(answer.headers["Retry-After"], "1")
        server.stop()
        lines = [json.loads(line) for line in server.log if line.startswith("{")]
        self.assertEqual([(line["status"], line["reason"]) for line in lines if line["event"] == "request"], [(503, "shutdown")] * len(bodies))

    @staticmethod
    def refuses(server):
        try:
            socket.create_connection(("127.0.0.1", server.port)).close()
        except OSError:
            return True
        return False

    def test_what_is_no_request_yet_does_not_delay_the_end(self):
        header = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n"
        for begun, status in ((b"", b""), (b"\r\n", b""), (b"POST /tok", b"503"), (header, b"503"), (header + b"\r\n", b"503"), (header + b"\r\n{", b"503"), (header + b"Expect: 100-continue\r\n\r\n{", b"503"),
                              (b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{", b"503"), (b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\nGET", b"503"), (b"GARBAGE\r\n\r\n", b"400")):
            server = Server("--shutdown-timeout", 2 * PATIENCE_S, "--request-timeout", 2 * PATIENCE_S)
            with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as s:
                s.sendall(begun)
                server.until(lambda: not unread(server, s))
                self.assertEqual(server.get("/ping").status, 200)  # what came before was seen
                server.process.send_signal(signal.SIGTERM)
                answer = b""
                while more := s.recv(1000):
                    answer += more
                self.assertEqual(server.process.wait(timeout=PATIENCE_S), 0)
            self.assertEqual(answer[answer.rfind(b"HTTP/1.1") + 9:][:3], status, (begun, answer))
            self.assertEqual(b'"code":"shutting_down"' in answer, status == b"503", answer)
            server.stop()

    def test_what_is_computed_for_nobody_does_not_delay_the_end(self):
        server = Server()
        begun, before = processor_seconds(server.process), resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        text = json.dumps({"prompt": "thequickbrownfox" * 1_800_000}).encode()  # one word; all of it takes 3 s or more of a processor
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as s:
            s.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
            server.until(lambda: processor_seconds(server.process) > begun + 0.3)
        self.assertEqual(server.stop(), 0)
        self.assertLess(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before, 20 if SANITIZED else 1.5)

    def test_an_answer_at_the_end_says_that_the_connection_closes(self):
        server = Server("--shutdown-timeout", PATIENCE_S)
        connection = server.connect()
        connection.request("POST", "/v1/chat/completions", json.dumps(chat_body("Tell me a story.", ignore_eos=True, max_tokens=300)))
        server.until(lambda: server.load()["running"] == 1)
        server.process.send_signal(signal.SIGTERM)
        response = connection.getresponse()
        self.assertEqual((response.status, response.headers["Connection"]), (200, "close"))
        connection.close()
        self.assertEqual(server.process.wait(timeout=PATIENCE_S), 0)
        server.stop()

    def test_it_answers_while_it_loads_and_can_be_stopped_then(self):
        server = Server("--load-format", "dummy", "--max-model-len", 1024, "--max-num-seqs", 4, model="tiny", ready=False)
        health = server.get("/health")
        if health.status == 503:  # else it was quicker than we are
            self.assertIn("percent", health.json())
            self.assertIn("Retry-After", health.headers)
            self.assertIn(server.chat().status, (503, 404))
        self.assertEqual(server.get("/ping").status, 200)
        self.assertEqual(server.stop(), 0)

    def test_a_signal_ends_it_at_any_moment_of_loading(self):
        for delay in (0, 0.005, 0.01, 0.02, 0.05, 0.1):
            server = Server("--load-format", "dummy", "--max-model-len", 1024, "--max-num-seqs", 4, model="tiny", ready=False)
            time.sleep(delay)
            self.assertEqual(server.stop(), 0, server.log)


class Secured(Case):
    def test_api_keys(self):
        server = Server("--api-key", "one", "--api-key", "two", env={"NIBBLE_API_KEY": "three"})
        self.addCleanup(server.stop)
        for key, status in (("one", 200), ("two", 200), ("three", 401), ("", 401), ("onee", 401), ("on", 401), ("Bearer one", 401)):
            answer = server.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})
            self.assertEqual(answer.status, status, key)
        for header, found in ((None, "no key"), ("one", "another form"), ("Basic one", "another form"), ("Bearer", "another form"), ("Bearer three", "one that is not valid here")):
            answer = server.post("/tokenize", {"prompt": "x"}, headers={"Authorization": header} if header else {})
            self.assertEqual((answer.status, answer.headers["WWW-Authenticate"]), (401, "Bearer"), header)
            self.assertEqual(answer.json()["error"]["message"], f"want an API key (Authorization: Bearer KEY), found {found}")
        self.assertEqual(server.request("GET", "/v1/models", headers={"Authorization": "bearer two"}).status, 200)
        for key, status in (("one", 200), ("three", 401), ("Bearer one", 401)):  # Anthropic's clients
            self.assertEqual(server.request("GET", "/v1/models", headers={"x-api-key": key}).status, status, key)
        self.assertEqual(server.chat().status, 401)
        self.assertEqual(server.get("/health").status, 200)
        self.assertFalse(any("one" in line and "Bearer" in line for line in server.log))

    def test_one_authorization_counts_and_only_in_the_header(self):
        server = Server("--api-key", "one")
        self.addCleanup(server.stop)
        post = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        good, bad = b"Authorization: Bearer one\r\n", b"Authorization: Bearer two\r\n"
        length = b'Content-Length: 15\r\n\r\n{"prompt": "a"}'
        chunked = b'Transfer-Encoding: chunked\r\n\r\nf\r\n{"prompt": "a"}\r\n0\r\n'
        self.assertEqual(server.raw(post + good + length)[9:12], b"200")
        for two in (good + bad, bad + good, good + good):
            answer = server.raw(post + two + length)
            self.assertEqual(answer[9:12], b"400")
            self.assertIn(b"want one Authorization header, found 2", answer)
        self.assertIn(b"want one X-Api-Key header, found 2", server.raw(post + b"x-api-key: one\r\n" * 2 + length))
        self.assertEqual(server.raw(post + good + chunked + b"\r\n")[9:12], b"200")
        for header, trailer, status in ((b"", good, b"401"), (bad, good, b"401"), (good, bad, b"200")):
            self.assertEqual(server.raw(post + header + chunked + trailer + b"\r\n")[9:12], status)

    @support.needs_openssl
    def test_tls(self):
        cert, key = support.certificate(self.dir)
        server = Server("--ssl-certfile", cert, "--ssl-keyfile", key, ready=False)
        self.addCleanup(server.stop)
        server.wait_log("serving ")
        context = ssl.create_default_context(cafile=cert)
        context.check_hostname = False
        connection = http.client.HTTPSConnection("127.0.0.1", server.port, context=context, timeout=PATIENCE_S)
        for _ in range(2):
            connection.request("POST", "/v1/chat/completions", json.dumps(chat_body(stream=True)))
            events = parse_events(connection.getresponse().read().decode())
            self.assertEqual(joined(events, "content"), "The capital of France is Paris.")
        self.assertEqual(server.raw(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"), b"")
        self.refused(2, "serve", TINY, "--ssl-certfile", cert, says="--ssl-keyfile")
        shown = support.nibble("serve", TINY, "--ssl-certfile", cert, "--ssl-keyfile", cert, "--print-config")
        self.assertEqual(shown.code, support.IO, shown.err)
        self.assertIn(f"what is open is not resolved: --ssl-keyfile {cert}", shown.err)
        self.refused(5, "serve", TINY, "--ssl-certfile", key, "--ssl-keyfile", key, says="--ssl-certfile")
        locked = self.dir / "locked.pem"
        subprocess.run(["openssl", "rsa", "-aes128", "-passout", "pass:x", "-in", key, "-out", locked], check=True, capture_output=True)
        self.refused(5, "serve", TINY, "--ssl-certfile", cert, "--ssl-keyfile", locked, says="--ssl-keyfile")


if __name__ == "__main__":
    support.main()
