"""A server that speaks as much of the API as the chat page asks for, with scripted answers. Standard library only.

The last user message chooses the answer: `tool` calls a function, `slow` streams until stopped, `tale` for two
seconds, `busy` is 429, `cut` drops the connection, `hostile` is markup, `blanks` is long and says little, `math` is LaTeX, `notes` has what documents have, `long` is read slowly; anything else is a specimen of Markdown.
"""

import json
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SPECIMEN = """A byte-pair encoder merges the most frequent neighbours first. Three things matter:

1. **Ranks** decide which pair goes first
2. *Pieces* are encoded on their own
   - words, numbers
   - punctuation and `white space`
3. See [the paper](https://example.org/bpe)

```python
def encode(piece: bytes, ranks: dict[bytes, int]) -> list[int]:
    parts = [bytes([b]) for b in piece]
    return [ranks[p] for p in merge(parts, ranks)]
```

| step | cost | note |
|---|---|---|
| split | `O(n)` | one pass |
| merge | `O(n log n)` | a heap |

> Short pieces are found whole, so most text never merges at all.

That is all there is to it."""
MATH = r"""The roots of $ax^2 + bx + c = 0$ are

\[
x = \frac{-b \pm \sqrt{b^2 - 4ac}}{2a}
\]

and \(e^{i\pi} = -1\). It costs $5 to $10 a month, \$3 less than before. Broken: $\oops{$.
Sets: $\mathbb{R}, \mathcal{L}, \mathbf{v}, \boldsymbol{\theta}, \mathfrak{g}$

$$
\begin{aligned} 2a &= 1 + x \\
b &= 2 \end{aligned}
$$"""
NOTES = """| Offer | Price | What is in it |
|---|---|---|
| Note/s for an unusually long engagement | $3.50 per person/month | one<br>two, and a description that goes on for longer than a phone is wide |

- [x] draft
- [ ] send

See the first note[^1] and [^two]; neither is [^abc] here. ![a map](https://example.org/map.png "Rome") and ![](plan.png)

[^1]: The first,
  on two lines.
[^two]: The second.

The end."""
HOSTILE = "<img src=x onerror=\"window.owned=1\"> <script>window.owned=1</script>\n\n[click](javascript:window.owned=1) **bold** <b>tag</b>\n\n```html\n<script>window.owned=1</script>\n```"
BLANKS = "a" + " " * 100000 + "x\n\n# Heading" + " " * 100000 + "x ##\n\nc|d\n" + " " * 100000 + "x\n\n" + "\\[ e\n" * 4000 + "[f" * 50000 + "\n\nThe end."
REASONING = "The user wants a short explanation.\nI should mention ranks, pieces and cost, then show code."


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def answer(self, status, body, kind="application/json", **headers):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def refused(self):
        state = self.server.state
        if state.get("loading"):
            self.answer(503, {"error": {"message": "loading", "code": "loading"}}, Retry_After="1")
        elif state.get("key") and self.headers.get("Authorization") != "Bearer " + state["key"]:
            self.answer(401, {"error": {"message": "no key"}})
        else:
            return False
        return True

    def do_GET(self):
        if self.path == "/":
            self.answer(200, self.server.page, "text/html; charset=utf-8")
        elif self.path == "/health":
            loading = self.server.state.get("loading")
            self.answer(503 if loading else 200, {"status": "loading", "phase": "loading weights", "percent": loading} if loading else {"status": "ok"})
        elif self.path == "/v1/models":
            if not self.refused():
                self.answer(200, {"object": "list", "data": [{"id": "gpt-oss-20b", "object": "model", "max_model_len": 131072}]})
        else:
            self.answer(404, {"error": {"message": "no such path"}})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.state["requests"].append(body)
        if self.refused():
            return
        last = body["messages"][-1]
        text = last["content"] or ""
        room = self.server.state.get("room")  # letters, here
        has = sum(len(m["content"] or "") for m in body["messages"])
        if room and has > room:
            self.answer(400, {"error": {"message": f"prompt is too long: {has} tokens > {room} maximum (of a context of {room + 1}, one to generate)", "code": "context_length_exceeded"}})
            return
        if text == "busy":
            self.answer(429, {"error": {"message": "full"}}, Retry_After="7")
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            self.stream("goes on" if body.get("continue_final_message") else text, last["role"])
        except OSError:
            self.server.state["dropped"] += 1
        self.close_connection = True

    def do_DELETE(self):
        self.answer(404, {"error": {"message": "nothing is kept"}})

    def event(self, value):
        self.wfile.write(b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n")
        self.wfile.flush()

    def chunk(self, delta, finish=None):
        self.event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "usage": None})

    def pieces(self, field, text, pause=0.001):
        for i in range(0, len(text), 7):
            self.chunk({field: text[i : i + 7]})
            time.sleep(pause)

    def stream(self, text, role):
        if text == "long":
            self.event({"choices": [], "prompt_progress": {"total": 1000, "cache": 0, "processed": 425}})
            time.sleep(1)
        self.chunk({"role": "assistant", "content": ""})
        if text != "goes on":
            self.pieces("reasoning_content", REASONING)
        finish = "stop"
        if text == "tool":
            call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": ""}}
            self.chunk({"tool_calls": [call]})
            for part in ('{"ci', 'ty": "Ro', 'me"}'):
                self.chunk({"tool_calls": [{"index": 0, "function": {"arguments": part}}]})
            finish = "tool_calls"
        elif text == "slow":
            for _ in range(400):
                self.chunk({"content": "word "})
                time.sleep(0.03)
        elif text == "tale":
            for n in range(40):
                self.chunk({"content": f"part{n} " if n % 8 else f"\n\nparagraph{n} "})
                time.sleep(0.05)
        elif text == "notes":
            self.pieces("content", NOTES)
        elif text == "goes on":
            self.pieces("content", "and so on.")
        elif text == "long":
            self.pieces("content", "I have read it.")
        elif text == "math":
            self.pieces("content", MATH)
        elif text == "cut":
            self.pieces("content", "This answer will not")
            return
        elif text == "hostile":
            self.pieces("content", HOSTILE)
        elif text == "blanks":
            self.chunk({"content": BLANKS})
        elif role == "tool":
            self.pieces("content", "It is 21 degrees in Rome.")
        else:
            self.pieces("content", SPECIMEN)
        self.chunk({}, finish)
        self.event({"choices": [], "usage": {"prompt_tokens": 1180, "completion_tokens": 312, "total_tokens": 1492}})
        self.event(b"[DONE]")


def joined_page():
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "chat.html"
        subprocess.run(["cmake", f"-DPAGE={ROOT}/src/server/page/chat.html", f"-DOUT={out}", "-P", ROOT / "cmake/page.cmake"], check=True)
        return out.read_bytes()


PAGE = joined_page()


class Stub(ThreadingHTTPServer):
    def handle_error(self, request, address):
        if not isinstance(sys.exc_info()[1], ConnectionError):  # a tab that closes is none
            super().handle_error(request, address)


def start():
    server = Stub(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.page = PAGE
    server.state = {"requests": [], "dropped": 0}
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


if __name__ == "__main__":
    stub = start()
    print(f"http://127.0.0.1:{stub.server_address[1]}/")
    threading.Event().wait()
