#!/usr/bin/env python3
"""Lets many bad clients loose on a running `nibble serve` and tells what it cost the server.

    nibble serve --port 8000 & tools/soak.py --url http://127.0.0.1:8000 --pid $! --seconds 600

Clients stream, vanish in the middle, reset, dawdle, send what is no JSON or no HTTP, ask for too much or by strange schemas. First prompts
fill the KV cache once, since its memory counts only when it was written. At the end the
server must be idle with all pages free, without a 5xx, its memory flat: once its caches are full, in the last three fifths of the time, the
medians of the fifths may differ by --most-growth only. Exits 1 otherwise. Standard library only.
"""
import argparse
import collections
import http.client
import json
import pathlib
import random
import re
import socket
import statistics
import struct
import sys
import threading
import time
import urllib.parse

WORDS = "What is the capital of France Japan Italy Norway and why do you think so tell me a story about dog cat king".split()
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"location": {"type": "string"}}}}}

# Of /metrics, summed over labels.
COUNTERS = {"steps": "engine_steps_total", "tokens": "generation_tokens_total", "cancelled": 'request_success_total.*"abort"', "preempted": "num_preemptions_total",
            "guesses": "spec_decode_num_draft_tokens_total", "right": "spec_decode_num_accepted_tokens_total{"}


class Soak:
    def __init__(self, url, seed, api_key):
        parts = urllib.parse.urlsplit(url)
        self.host, self.port, self.seed = parts.hostname, parts.port or 80, seed
        self.headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self.lock, self.counts, self.problems = threading.Lock(), collections.Counter(), []
        self.stop = threading.Event()

    def count(self, what):
        with self.lock:
            self.counts[what] += 1

    def problem(self, what):
        with self.lock:
            self.problems.append(what)

    def request(self, method, path, body=None):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=120)
        connection.request(method, path, body, self.headers)
        return connection, connection.getresponse()

    def question(self, rng):
        text = " ".join(rng.choices(WORDS, k=rng.randint(1, 60)))
        fields = {"messages": [{"role": "user", "content": text}], "max_tokens": rng.randint(1, 120), "seed": rng.randrange(1 << 30),
                  "temperature": rng.choice([0, 1]), "stream": rng.random() < 0.7}
        if rng.random() < 0.2:
            fields["tools"] = [TOOL]
        if rng.random() < 0.1:
            fields["response_format"] = {"type": "json_object"}
        if rng.random() < 0.1:
            fields["n"] = rng.randint(2, 4)
        if rng.random() < 0.1:
            fields.update(logprobs=True, top_logprobs=rng.randint(0, 20))
        if rng.random() < 0.1 and "response_format" not in fields:
            fields.update(max_tokens=rng.randint(200, 600), ignore_eos=True)  # grows until others must give way
        return fields

    def polite(self, rng):
        body = self.question(rng)
        connection, response = self.request("POST", "/v1/chat/completions", json.dumps(body))
        text = response.read().decode("utf-8")
        self.count(f"polite {response.status}")
        if response.status not in (200, 429) or response.status == 200 and body["stream"] and not text.endswith("data: [DONE]\n\n"):
            self.problem(f"polite: {response.status} {text[-200:]}")
        connection.close()

    def vanishing(self, rng):
        body = {**self.question(rng), "ignore_eos": True, "max_tokens": 5000}
        body.pop("response_format", None)
        with socket.create_connection((self.host, self.port), timeout=120) as s:
            s.sendall(self.raw(json.dumps(body).encode()))
            time.sleep(rng.random() * 0.5)
            s.settimeout(1)
            if body["stream"] and rng.random() < 0.5:
                s.recv(rng.randint(1, 5000))
            if rng.random() < 0.3:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.count("vanished")

    def raw(self, body):
        key = "".join(f"{k}: {v}\r\n" for k, v in self.headers.items())
        return f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n{key}Content-Length: {len(body)}\r\n\r\n".encode() + body

    def malformed(self, rng):
        body = bytearray(json.dumps(self.question(rng)).encode())
        kind = rng.randrange(5)
        if kind == 0:
            for _ in range(rng.randint(1, 8)):
                body[rng.randrange(len(body))] = rng.randrange(256)
        elif kind == 1:
            body = body[:rng.randrange(len(body))]
        elif kind == 2:
            body = bytearray(b'{"messages":' + rng.choice([b"[", b'{"a":']) * rng.randint(1, 20000))
        elif kind == 3:
            body = bytearray(b'{"messages":[{"role":"user","content":"x"}],"%s":%s}' % (
                rng.choice([b"seed", b"n", b"max_tokens", b"temperature", b"frobnicate"]), rng.choice([b"1e999", b"-1", b"9" * 400, b'"x"', b"[]", b"1e308"])))
        else:
            body = bytearray(rng.randbytes(rng.randint(0, 3000)))
        path = rng.choice(["/v1/chat/completions", "/v1/completions", "/v1/responses", "/tokenize", "/detokenize"])
        connection, response = self.request("POST", path, bytes(body))
        response.read()
        self.count(f"malformed {response.status}")
        if response.status >= 500:
            self.problem(f"malformed: {response.status} for {bytes(body[:200])!r}")
        connection.close()

    def schema(self, rng):
        """From the harmless to what takes long to compile or is refused."""
        kind = rng.randrange(7)
        size = rng.choice([1, 5, 50, 400])
        if kind == 0:
            schema = {"enum": [f"value {rng.random()}" for _ in range(size)]}
        elif kind == 1:
            schema = {"anyOf": [{"type": "object", "properties": {f"p{i}": {"type": "integer"}}, "required": [f"p{i}"]} for i in range(size)]}
        elif kind == 2:
            schema = {"type": "string"}
            for _ in range(size):
                schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
        elif kind == 3:
            schema = {"type": "object", "properties": {f"p{i}": {"type": "string", "maxLength": i + 1} for i in range(size)}}
        elif kind == 4:
            schema = {"type": "string", "pattern": rng.choice(["^[a-z]{1,40}$", "^(a|b){1,100}$", "((a{100}){100}){100}", "^.{3,9}$", "(", "\\p{L}"])}
        elif kind == 5:
            schema = {"type": "array", "items": {"$ref": "#"}, "maxItems": size}
        else:
            schema = {"type": "object", "properties": {f"p{i}": {"type": "number", "minimum": i * 0.37} for i in range(size)}}
        body = {**self.question(rng), "ignore_eos": False, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}
        connection, response = self.request("POST", "/v1/chat/completions", json.dumps(body))
        response.read()
        self.count(f"schema {response.status}")
        if response.status not in (200, 400, 429):
            self.problem(f"schema: {response.status} for {json.dumps(schema)[:200]}")
        connection.close()

    def no_http(self, rng):
        with socket.create_connection((self.host, self.port), timeout=30) as s:
            s.sendall(rng.choice([rng.randbytes(200), b"GET /" + b"a" * 40000, b"POST /v1/completions HTTP/1.1\r\nContent-Length: 9\r\nContent-Length: 8\r\n\r\n", b"\r\n" * 500,
                                  b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2;" + b"a" * 500_000]))
            s.settimeout(2)
            try:
                answer = s.recv(4096)
                if answer and not answer.startswith(b"HTTP/1.1 4"):
                    self.problem(f"no HTTP: {answer[:80]}")
            except OSError:
                pass
        self.count("no HTTP")

    def slow(self, rng):
        with socket.create_connection((self.host, self.port), timeout=30) as s:
            for byte in self.raw(b"{}")[:rng.randint(1, 40)]:
                s.sendall(bytes([byte]))
                if self.stop.wait(rng.random() * 0.2):
                    break
        self.count("slow")

    def client(self, number):
        rng = random.Random(f"{self.seed}.{number}")
        kinds = [self.polite, self.vanishing, self.malformed, self.schema, self.no_http, self.slow]
        while not self.stop.is_set():
            kind = rng.choices(kinds, weights=[6, 4, 4, 1, 1, 1])[0]
            try:
                kind(rng)
            except (ConnectionError, http.client.HTTPException, socket.timeout, TimeoutError) as e:
                if kind == self.polite:
                    self.problem(f"polite: {e!r}")
                self.count(f"{kind.__name__}: connection ended")

    def fill(self):
        """Prompts that nobody had before, until every page of the KV cache was written."""
        rng, left, size = random.Random(self.seed), 1.2 * self.load()["kv_pages"] * 64, 1000
        while left > 0:
            body = {"prompt": [rng.randrange(100, 3000) for _ in range(size)], "max_tokens": 1}
            connection, response = self.request("POST", "/v1/completions", json.dumps(body))
            text = response.read()
            connection.close()
            if response.status == 400 and size > 100:
                size //= 2  # a shorter context
                continue
            if response.status != 200:
                raise SystemExit(f"cannot fill the KV cache: {response.status} {text[-200:]!r}")
            left -= size

    def load(self):
        connection, response = self.request("GET", "/load")
        load = json.loads(response.read())
        connection.close()
        return load

    def metrics(self):
        connection, response = self.request("GET", "/metrics")
        text = response.read().decode()
        connection.close()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith("nibble:")}


def resident_mb(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--pid", type=int, help="of the server: its memory is watched")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--api-key", default="")
    parser.add_argument("--most-growth", type=float, default=0.05, help="share by which the medians of the last three fifths may differ")
    args = parser.parse_args()
    soak = Soak(args.url, args.seed, args.api_key)
    if args.pid:
        soak.fill()
    threads = [threading.Thread(target=soak.client, args=(i,), daemon=True) for i in range(args.clients)]
    for thread in threads:
        thread.start()
    start, memory = time.monotonic(), []
    while time.monotonic() - start < args.seconds:
        time.sleep(min(1, args.seconds / 50))
        if args.pid:
            memory.append(resident_mb(args.pid))
    soak.stop.set()
    for thread in threads:
        thread.join(timeout=150)
    end = time.monotonic() + 60
    while (load := soak.load())["running"] + load["waiting"] + load["kv_pages_used"] and time.monotonic() < end:
        time.sleep(0.2)
    metrics = soak.metrics()
    failed = {name: count for name, count in metrics.items() if 'status="5' in name and count}
    if load["running"] or load["waiting"] or load["kv_pages_used"]:
        soak.problem(f"not idle at the end: {load}")
    if failed:
        soak.problem(f"server errors: {failed}")
    fifths = [statistics.median(memory[len(memory) * i // 5:len(memory) * (i + 1) // 5]) for i in range(5)] if memory else []
    if memory and max(fifths[2:]) > min(fifths[2:]) * (1 + args.most_growth):
        soak.problem(f"memory is not flat: medians of the last three fifths {', '.join(f'{m:.0f}' for m in fifths[2:])} MB")
    print(f"seconds {time.monotonic() - start:.0f}, clients {args.clients}, seed {args.seed}")
    print("  " + ", ".join(f"{what}: {n}" for what, n in sorted(soak.counts.items())))
    if memory:
        print(f"  memory, median of each fifth of the time: {', '.join(f'{m:.0f}' for m in fifths)} MB; most {max(memory):.0f}")
    counted = {what: sum(n for name, n in metrics.items() if re.match(f"nibble:{pattern}", name)) for what, pattern in COUNTERS.items()}
    print("  the server: " + ", ".join(f"{what}: {n:.0f}" for what, n in counted.items()))
    print(f"  pages at the end: {load['kv_pages_used']} of {load['kv_pages']} in use; problems: {len(soak.problems)}")
    for problem in soak.problems[:20]:
        print("  problem:", problem)
    sys.exit(1 if soak.problems else 0)


if __name__ == "__main__":
    main()
