"""A running `nibble serve` and a small HTTP client. Standard library only."""
import atexit
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time

from support import NIBBLE, SANITIZED, TINY

PATIENCE_S = 300 if SANITIZED else 120


class Answer:
    def __init__(self, response):
        self.status, self.headers, self.raw = response.status, dict(response.getheaders()), response.read()

    def json(self):
        return json.loads(self.raw.decode("utf-8"))


class Server:
    """Starts on a free port; `ready` waits until the model is loaded."""

    def __init__(self, *flags, model=TINY, ready=True, env=None):
        named = [str(model)] if model else []
        command = [NIBBLE, "serve", *named, "--port", "0", "--date", "2026-11-21", *map(str, flags)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, env={**os.environ, **(env or {})})
        atexit.register(self.process.kill)  # where a test fails before stop()
        self.log, self._seen = [], threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()
        self.port = int(self.wait_log(r"listening on \w+://.*:(\d+)")[1])
        if ready:
            self.wait_log("serving ")
            self.until(lambda: self.get("/health").status == 200)

    def _read(self):
        for line in self.process.stderr:
            with self._seen:
                self.log.append(line.decode("utf-8", "strict").rstrip("\n"))
                self._seen.notify_all()
        with self._seen:
            self.log.append("(end of the log)")
            self._seen.notify_all()

    def wait_log(self, pattern, start=0):
        """The first line from `start` on that matches."""
        end = time.monotonic() + PATIENCE_S
        with self._seen:
            while True:
                for line in self.log[start:]:
                    if match := re.search(pattern, line):
                        return match
                if self.log and self.log[-1] == "(end of the log)" or not self._seen.wait(max(0, end - time.monotonic())):
                    raise AssertionError(f"no {pattern!r} in the log: {self.log[-5:]}")

    @staticmethod
    def until(condition):
        end = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > end:
                raise AssertionError("waited in vain")
            time.sleep(0.02)

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)

    def request(self, method, path, body=None, headers=None):
        connection = self.connect()
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        connection.request(method, path, data, headers or {})
        answer = Answer(connection.getresponse())
        connection.close()
        return answer

    def get(self, path, **more):
        return self.request("GET", path, **more)

    def post(self, path, body, **more):
        return self.request("POST", path, body, **more)

    def chat(self, question="What is the capital of France?", **fields):
        return self.post("/v1/chat/completions", chat_body(question, **fields))

    def stream(self, path, body):
        """Every server-sent event as (event name or None, data)."""
        connection = self.connect()
        connection.request("POST", path, json.dumps(body).encode())
        response = connection.getresponse()
        assert response.status == 200, response.read()
        assert response.getheader("Content-Type").startswith("text/event-stream")
        events = parse_events(response.read().decode("utf-8"))
        connection.close()
        return events

    def raw(self, data, wait=True):
        """Bytes as they are, over a socket; the whole answer."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S) as s:
            s.sendall(data)
            got = b""
            while wait and (more := s.recv(65536)):
                got += more
            return got

    def load(self):
        return self.get("/load").json()

    def idle(self):
        """Waits until nothing runs; all pages are free then, but for the cache's."""
        self.until(lambda: (load := self.load())["running"] == load["waiting"] == load["kv_pages_used"] == 0)

    def metric(self, name, or_else=None, **labels):
        for line in self.get("/metrics").raw.decode().splitlines():
            if line.startswith(name + "{") and all(f'{k}="{v}"' in line for k, v in labels.items()):
                return float(line.rsplit(" ", 1)[1])
        if or_else is None:
            raise AssertionError(f"no {name} {labels}")
        return or_else

    def stop(self, sig=signal.SIGTERM):
        """Exit code."""
        if self.process.poll() is None:
            self.process.send_signal(sig)
        code = self.process.wait(timeout=PATIENCE_S)
        self.process.stderr.close()
        return code


def parse_events(text):
    events = []
    for block in filter(None, text.split("\n\n")):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":"))
        if fields:
            data = fields["data"]
            events.append((fields.get("event"), data if data == "[DONE]" else json.loads(data)))
    return events


def chat_body(question="What is the capital of France?", **fields):
    return {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 200, **fields}


def joined(events, key, choice=0):
    """The text of a stream's deltas."""
    return "".join(c["delta"].get(key) or "" for _, e in events if e != "[DONE]" for c in e["choices"] if c["index"] == choice)
