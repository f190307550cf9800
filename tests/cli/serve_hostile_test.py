"""nibble serve and clients that mean no good, vanish or never end; many at once; flags; the end. Standard library only."""
import concurrent.futures
import http.client
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import time
import unittest

import support
from serve_support import PATIENCE_S, Answer, Server, chat_body, joined, parse_events
from support import NIBBLE, SANITIZED, SOURCE, TINY, Case, nibble

ENDLESS = {"ignore_eos": True, "max_tokens": 100_000}


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
            for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/tokenize", "/detokenize"):
                answer = self.server.post(path, body)
                self.assertEqual(answer.status, 400, (path, body[:60], answer.raw[:200]))
                self.assertIn("message", answer.json()["error"])

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
        for begun in (b"POST /v1", headers, headers + b"\r\n{"):
            with socket.create_connection(("127.0.0.1", self.server.port), timeout=PATIENCE_S) as s:
                s.sendall(begun)
                answer = b""
                while more := s.recv(1000):
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
            start = time.monotonic()
            connection.sock.close() if connection.sock else connection.close()
            self.server.idle()
            self.assertLess(time.monotonic() - start, 2 if not SANITIZED else 30)

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
        server = Server("--max-num-seqs", 2)
        bodies = [chat_body("Tell me a story.", stream=i % 2 == 0, **ENDLESS) for i in range(6)]  # four of them wait
        with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
            answers = [pool.submit(server.post, "/v1/chat/completions", body) for body in bodies]
            server.until(lambda: (load := server.load())["running"] + load["waiting"] == len(bodies))
            server.process.send_signal(signal.SIGTERM)
            server.until(lambda: self.refuses(server))
            start = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            answers = [answer.result() for answer in answers]
            self.assertEqual(server.process.wait(timeout=PATIENCE_S), 0)
            self.assertLess(time.monotonic() - start, 20 if SANITIZED else 5)
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
            server = Server()
            with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as s:
                s.sendall(begun)
                time.sleep(0.3)
                start = time.monotonic()
                server.process.send_signal(signal.SIGTERM)
                answer = b""
                while more := s.recv(1000):
                    answer += more
                self.assertEqual(server.process.wait(timeout=PATIENCE_S), 0)
                self.assertLess(time.monotonic() - start, 20 if SANITIZED else 5, begun)
            self.assertEqual(answer[answer.rfind(b"HTTP/1.1") + 9:][:3], status, (begun, answer))
            self.assertEqual(b'"code":"shutting_down"' in answer, status == b"503", answer)
            server.stop()

    def test_what_is_computed_for_nobody_does_not_delay_the_end(self):
        server = Server()
        text = json.dumps({"prompt": "thequickbrownfox" * 1_800_000}).encode()  # one word
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as s:
            s.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
            time.sleep(0.5)
        start = time.monotonic()
        self.assertEqual(server.stop(), 0)
        self.assertLess(time.monotonic() - start, 20 if SANITIZED else 3)

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
        self.assertEqual(server.raw(post + good + chunked + b"\r\n")[9:12], b"200")
        for header, trailer, status in ((b"", good, b"401"), (bad, good, b"401"), (good, bad, b"200")):
            self.assertEqual(server.raw(post + header + chunked + trailer + b"\r\n")[9:12], status)

    @unittest.skipUnless(shutil.which("openssl"), "no openssl here to make a certificate with")
    def test_tls(self):
        cert, key = self.dir / "cert.pem", self.dir / "key.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-keyout", key, "-out", cert],
                       check=True, capture_output=True)
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
        self.refused(5, "serve", TINY, "--ssl-certfile", key, "--ssl-keyfile", key, says="--ssl-certfile")
        locked = self.dir / "locked.pem"
        subprocess.run(["openssl", "rsa", "-aes128", "-passout", "pass:x", "-in", key, "-out", locked], check=True, capture_output=True)
        self.refused(5, "serve", TINY, "--ssl-certfile", cert, "--ssl-keyfile", locked, says="--ssl-keyfile")


class Flags(Case):
    VLLM = ("-tp", 1, "-O3", "-cc.level=3", "--attention-backend", "FLASH_ATTN", "--enforce-eager", "--gpu-memory-utilization", 0.9, "--tool-call-parser", "openai", "--enable-auto-tool-choice", "--reasoning-parser", "openai_gptoss",
            "--quantization", "mxfp4", "--uvicorn-log-level", "warning", "--attention-config", "{}", "--async-scheduling",
            "--max_model_len", 2048, "--max-num-batched-tokens", 512, "--kv-cache-dtype", "auto", "--served-model-name", "a", "b")

    def config(self, *args, env=None):
        result = self.ok("serve", *args, "--print-config", "--json", env={**os.environ, **(env or {})})
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
        for command, says in ((("run", TINY, "--moe-kernel", "marlin", "--backend", "cpu"), "--moe-kernel: want --backend cuda, found cpu"),
                              (("serve", "me/nowhere"), "me/nowhere"), (("run", TINY, "--backend", "cuda", "--kv-cache-dtype", "int8"), "--kv-cache-dtype int8: want --backend cpu or reference")):
            result = self.ok(*command, "--print-config", "--json")
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
        for text, says in (("port 8000\n", "line 1"), ("a:\n  b: 1\n", "line 2"), ("prot: 1\n", "prot"), ("port: x\n", "port"), ("port: 1\nport: 2\n", "line 2")):
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
            self.assertEqual(sum(f"{flag} makes no difference" in line for line in server.log), 1, flag)
        self.assertEqual([m["id"] for m in server.get("/v1/models").json()["data"]], ["a", "b"])
        self.assertEqual(server.chat(model="b", max_tokens=1).status, 200)

    def test_graphs_are_off_where_vllm_would_turn_them_off(self):
        for flags, origin in ((("-O0",), "--compilation-config"), (("-O", 0), "--compilation-config"), (("--optimization-level", 0), "--optimization-level"),
                              (("-cc.cudagraph_mode=NONE",), "--compilation-config"), (("--compilation-config.cudagraph_mode", "NONE"), "--compilation-config"),
                              (("--compilation-config", '{"cudagraph_mode": "NONE", "level": 3}'), "--compilation-config"),
                              (("--compilation-config", '{"use_cudagraph": false}'), "--compilation-config")):
            self.assertEqual(self.config(TINY, *flags).get("enforce-eager"), {"value": "true", "origin": origin}, flags)
        for flags in (("-O3",), ("-cc.cudagraph_mode=FULL",), ("-cc.max_cudagraph_capture_size=0",)):
            self.assertNotIn("enforce-eager", self.config(TINY, *flags), flags)

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
        for flags, says in ((('{"method": "draft_model", "model": "x"}',), ("--speculative-config.method", "draft_model", "want ngram, suffix or eagle3")),
                            (('{"method": "ngam"}',), ("--speculative-config.method", "want ngram or suffix or eagle3, found ngam")), (('{"method": "suffix", "disable_by_batch_size": 4}',), ("num_speculative_tokens", "found disable_by_batch_size")),
                            (("{}",), ("--speculative-config", "method")), (('{"num_speculative_tokens": 99}',), "--speculative-tokens")):
            self.refused(2, "serve", TINY, "--speculative-config", *flags, says=says)
        self.refused(2, "serve", TINY, "--speculative", "ngram", "--prompt-lookup-max", 1, says=("--prompt-lookup-min", "found 2"))
        eagle3 = ("--speculative", "eagle3", "--speculative-model")
        for code, flags, says in ((2, ("--speculative", "eagle3"), "want --speculative-model DIR"), (2, ("--speculative-model", head), "want --speculative eagle3, found off"),
                                  (5, (*eagle3, "/nowhere"), "/nowhere/config.json"), (3, (*eagle3, TINY), "want one of an EAGLE-3 head"),
                                  (4, (*eagle3, head, "--speculative-tap-reading", "outputs"), "want states of 0 to 8"), (3, (*eagle3, head, "--backend", "cuda"), "runs on the CPU only so far")):
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

    def test_refusals(self):
        for flags, says in ((("--tensor-parallel-size", 3), ("--tensor-parallel-size", "8 query heads", "found 3")), (("--speculative-config", "{}"), "speculative"), (("--prot", 1), "--port"),
                            (("--quantization", "awq"), "mxfp4"), (("--tool-call-parser", "hermes"), "openai"), (("--port", 99999), "--port"),
                            (("-dpl", 2), "all of --data-parallel-size"), (("-dpr", 1), "one process serves"), (("-pp", 2), "--tensor-parallel-size is the one way"), (("--speculative-config.method", "eagle"), "speculative"), (("--tool-server", "demo"), "built-in"),
                            (("--attention-backend", "ROCM_ATTN"), "flash"), (("--allowed-origins", '["http://a"]'), "one origin"), (("--max-model-len", "8q"), "--max-model-len"),
                            (("--tokenizer", "x"), "comes with the model"), (("--num-gpu-blocks-override", 9), "--kv-tokens"),
                            (("--enable-lora",), "--enable-lora"), (("--enable-force-include-usage",), "stream_options"), (("--worker-cls", "x.Y"), "auto"), (("--scheduler-cls", "x"), "no code"),
                            (("--async-scheduling=soon",), "want true or false, found soon"), (("--ssl-certfile", ""), "empty"), (("--model", ""), "empty"), (("--config", ""), "empty")):
            self.refused(2, "serve", TINY, *flags, says=says)
        self.refused(3, "serve", TINY, "--backend", "cuda", "-tp", 2, says=("--tensor-parallel-size 2", "several cards are not served yet"))
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
        self.refused(2, "serve", TINY, "--host", "", says="--host")
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            self.refused(5, "serve", TINY, "--port", taken.getsockname()[1], says="cannot listen")


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
    "VLLM_NAMES_NOTHING_HERE": [("1", None, None)],
    "FLASHINFER_NAMES_NOTHING_HERE": [("1", None, None)],
}
ONLY_SERVE = {"VLLM_API_KEY", "VLLM_LOGGING_LEVEL"}
REFUSED = {"VLLM_BATCH_INVARIANT", "VLLM_USE_MODELSCOPE"}


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

    def test_kernels_of_a_card_end_a_server_before_it_listens(self):
        for name, value in (("VLLM_MXFP4_MOE_KERNEL", "marlin"), ("VLLM_ATTENTION_BACKEND", "reference"), ("FLASHINFER_MOE_TILE", "64")):
            result = nibble("serve", TINY, "--port", 0, env=self.env(**{name: value}))
            self.assertEqual(result.code, 3, result.err)
            self.assertNotIn("listening", result.err)
            self.assertIn("want --backend cuda", result.err)
        for flags in ((), ("--moe-kernel", "marlin")):  # a card's, asked for where there may be none
            result = nibble("serve", TINY, "--port", 0, "--backend", "cuda", *flags)
            if "no CUDA" in result.err:
                self.assertEqual(result.code, 3, result.err)
                self.assertNotIn("listening", result.err)
        result = nibble("serve", TINY, "--port", 0, "--backend", "cuda", "--moe-kernel", "gemv", "--moe-activation", "mxfp8")
        self.assertEqual(result.code, 3, result.err)
        self.assertNotIn("listening", result.err)
        self.assertIn("--moe-activation mxfp8: want --moe-kernel auto, marlin or gemm, found gemv", result.err)

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
        listed = set(re.findall(r'^    \{"((?:VLLM|FLASHINFER)_\w+)"', (SOURCE / "src/app/vllm_table.cpp").read_text(), re.M))
        manual = (SOURCE / "docs/serving.md").read_text()
        table = {name for line in manual.splitlines() if line.startswith("| `") for name in re.findall(r"`((?:VLLM|FLASHINFER)_\w+)`", line)}
        self.assertEqual(table, listed)
        self.assertEqual({name for name in VARIABLES if "NAMES_NOTHING" not in name} | ONLY_SERVE | REFUSED, listed)


if __name__ == "__main__":
    support.main()
