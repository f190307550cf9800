#!/usr/bin/env python3
"""What long prompts cost everybody else: streams, and a short question, behind them. Over HTTP; standard library only.

    bench/mixed_load.py [options] -- nibble serve -m models/nibble-tiny [flags]
    bench/mixed_load.py [options] --url http://127.0.0.1:8000        a server that runs already

Starts the server with the command behind `--` on a free port, once for every `--each 'MORE FLAGS'` (none: once), waits until it is ready, measures,
and stops it. A measurement has three parts:
  alone    the long prompts on a server with nothing else to do: the best throughput of prompts. Then the question, on an idle server.
  quiet    streams alone, before what follows and after it, since their contexts grow: their inter-token latency (ITL) and tokens per second. Then
           the question beside them.
  behind   the long prompts come at once; until the last of them has its first token the streams are measured, and questions are asked one after
           another. "bound" is what the question's time to the first token (TTFT) should stay under: twice its quiet one and two steps, where a step is
           the streams' median gap meanwhile; with --streams 0 twice its quiet one and 100 ms.
Prompts are random token ids, never the same twice, so the prefix cache has no part in it. Streams that reach their end begin anew, which counts as no
gap. With --rounds, all parts are repeated and the median of each figure is shown.
"""
import argparse
import asyncio
import json
import os
import random
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from urllib.parse import urlsplit

TOP_IDS = 3000  # prompts use ids from 100 up to here, which every gpt-oss vocabulary has as ordinary tokens


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


class Client:
    def __init__(self, url, args):
        parts = urlsplit(url)
        self.host, self.port, self.args = parts.hostname, parts.port, args
        self.random = random.Random(args.seed)

    def prompt(self, tokens):
        return [self.random.randrange(100, TOP_IDS) for _ in range(tokens)]

    async def completion(self, prompt, max_tokens, on_token):
        """Calls on_token(time) for every generated token as it comes."""
        body = json.dumps({"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "stream": True, "return_token_ids": True,
                           "temperature": 1, "seed": self.random.randrange(1 << 30)}).encode()
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=1 << 20)
        try:
            key = f"Authorization: Bearer {self.args.api_key}\r\n" if self.args.api_key else ""
            writer.write(f"POST /v1/completions HTTP/1.1\r\nHost: {self.host}\r\nContent-Type: application/json\r\n{key}"
                         f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
            status = await reader.readline()
            if b" 200 " not in status:
                raise RuntimeError(f"{status.decode().strip()}: {(await reader.read(2000)).decode(errors='replace')}")
            while line := await reader.readline():
                if not line.startswith(b"data: {"):
                    continue
                now = time.perf_counter()
                event = json.loads(line[6:])
                if "error" in event:
                    raise RuntimeError(line.decode())
                for choice in event["choices"]:
                    for _ in choice.get("token_ids") or []:
                        on_token(now)
        finally:
            writer.close()

    async def first_token(self, tokens):
        """Seconds until a prompt of so many tokens has its first one."""
        start, first = time.perf_counter(), []
        await self.completion(self.prompt(tokens), 1, first.append)
        return first[0] - start


class Streams:
    """So many that generate all the time."""

    def __init__(self, client, args):
        self.tokens = []  # (time, seconds since the one before in its stream, or None)
        self.started = 0
        self.tasks = [asyncio.create_task(self.one(client, args)) for _ in range(args.streams)]

    async def one(self, client, args):
        begun = False
        while True:
            last = None

            def on_token(now):
                nonlocal last, begun
                self.started += not begun
                begun = True
                self.tokens.append((now, None if last is None else now - last))
                last = now

            await client.completion(client.prompt(args.stream_prompt_tokens), args.stream_tokens, on_token)

    def check(self):
        for task in self.tasks:
            if task.done():
                task.result()

    async def stop(self):
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def between(self, start, end):
        """Median and p99 gap in ms, tokens per second, longest gap in ms."""
        counted = [(now, gap) for now, gap in self.tokens if start < now <= end]
        gaps = [gap * 1e3 for _, gap in counted if gap is not None]
        return {"itl_ms": percentile(gaps, 0.5), "p99_ms": percentile(gaps, 0.99), "most_ms": max(gaps, default=float("nan")),
                "tok_s": len(counted) / (end - start)}

    async def over(self, seconds):
        start = time.perf_counter()
        await asyncio.sleep(seconds)
        self.check()
        return self.between(start, time.perf_counter())


async def long_prompts(client, args):
    """Tokens per second, from the moment that all are sent to the last one's first token."""
    start = time.perf_counter()
    await asyncio.gather(*(client.first_token(args.prompt_tokens) for _ in range(args.prompts)))
    return args.prompts * args.prompt_tokens / (time.perf_counter() - start)


async def questions(client, args, count):
    times = []
    while len(times) < count:
        await asyncio.sleep(args.pause * (0.5 + client.random.random()))
        times.append(await client.first_token(args.question_tokens) * 1e3)
    return times


async def measure(url, args):
    client, result = Client(url, args), {}
    await client.first_token(args.question_tokens)
    await client.first_token(args.prompt_tokens // 4)  # warms up
    result["alone_prompt_tok_s"] = await long_prompts(client, args)
    result["idle_ttft_ms"] = statistics.median(await questions(client, args, args.questions))

    streams = Streams(client, args)
    try:
        while streams.started < args.streams:
            streams.check()
            await asyncio.sleep(0.02)
        await asyncio.sleep(args.quiet / 3)
        before = await streams.over(args.quiet)
        result["quiet_ttft_ms"] = statistics.median(await questions(client, args, args.questions))

        start = time.perf_counter()
        reading = asyncio.create_task(long_prompts(client, args))
        asked, asking = [], None
        await asyncio.sleep(args.pause)
        while not reading.done() and time.perf_counter() - start < args.most:
            if asking is None:
                asking = asyncio.create_task(client.first_token(args.question_tokens))
            await asyncio.wait({reading, asking}, timeout=1, return_when=asyncio.FIRST_COMPLETED)
            streams.check()
            if asking.done():
                asked.append(asking.result() * 1e3)
                asking = None
                await asyncio.sleep(args.pause * (0.5 + client.random.random()))
        end = time.perf_counter()
        behind = streams.between(start, end)
        cut = not reading.done()
        result["behind_prompt_tok_s"] = float("nan") if cut else reading.result()
        if cut:
            reading.cancel()
            print(f"the long prompts were not read in {args.most:.0f} s: --most", file=sys.stderr)
        if asking is not None:  # the answer counts, too
            await asyncio.wait({asking}, timeout=args.most)
            asked.append(asking.result() * 1e3 if asking.done() else float("inf"))
            asking.cancel()
        await asyncio.sleep(args.quiet / 3)
        after = await streams.over(args.quiet)
        quiet = {key: (before[key] + after[key]) / 2 for key in before}
    finally:
        await streams.stop()
    result |= {f"quiet_{key}": value for key, value in quiet.items()} | {f"behind_{key}": value for key, value in behind.items()}
    result |= {"behind_ttft_ms": statistics.median(asked), "behind_ttft_most_ms": max(asked), "questions": len(asked),
               "seconds_behind": end - start,
               "stream_share": behind["tok_s"] / quiet["tok_s"] if args.streams else float("nan"), "prompt_share": result["behind_prompt_tok_s"] / result["alone_prompt_tok_s"],
               "p99_over_median": behind["p99_ms"] / behind["itl_ms"],
               "ttft_bound_ms": 2 * result["quiet_ttft_ms"] + (2 * behind["itl_ms"] if args.streams else 100)}
    return result


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    def __init__(self, command, args):
        port = free_port()
        self.url, self.args = f"http://127.0.0.1:{port}", args
        self.process = subprocess.Popen([*command, "--port", str(port), "--disable-log-requests"], stdout=subprocess.DEVNULL)

    def __enter__(self):
        end = time.monotonic() + self.args.start_timeout
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise SystemExit(f"the server ended with {self.process.returncode}")
            try:
                with urllib.request.urlopen(self.url + "/health", timeout=5) as answer:
                    if answer.status == 200:
                        return self
            except (urllib.error.URLError, OSError):
                pass
            time.sleep(0.2)
        self.__exit__()
        raise SystemExit(f"the server was not ready within {self.args.start_timeout:.0f} s: --start-timeout")

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


COLUMNS = (("quiet_itl_ms", "quiet ITL"), ("quiet_p99_ms", "p99"), ("behind_itl_ms", "ITL behind"), ("behind_p99_ms", "p99"),
           ("p99_over_median", "p99/median"), ("behind_most_ms", "most"), ("quiet_tok_s", "streams tok/s"), ("stream_share", "kept"),
           ("alone_prompt_tok_s", "prompts tok/s alone"), ("behind_prompt_tok_s", "behind"), ("prompt_share", "kept"),
           ("idle_ttft_ms", "question idle"), ("quiet_ttft_ms", "quiet"), ("behind_ttft_ms", "behind"), ("behind_ttft_most_ms", "most"),
           ("ttft_bound_ms", "bound"), ("questions", "asked"))


def shown(key, value):
    if key.endswith("_share"):
        return f"{100 * value:.0f} %"
    if key == "questions":
        return f"{value:.0f}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def table(rows):
    print("| flags | " + " | ".join(name for _, name in COLUMNS) + " |\n|---|" + "---:|" * len(COLUMNS))
    for flags, row in rows:
        print(f"| {flags or 'default'} | " + " | ".join(shown(key, row[key]) for key, _ in COLUMNS) + " |")


def options():
    mine, command = sys.argv[1:], []
    if "--" in mine:
        mine, command = mine[:mine.index("--")], mine[mine.index("--") + 1:]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a server that runs already, instead of a command")
    parser.add_argument("--api-key", default="", help="for --url")
    parser.add_argument("--each", action="append", default=[], metavar="FLAGS", help="a run with these flags more; repeatable")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--stream-prompt-tokens", type=int, default=50)
    parser.add_argument("--stream-tokens", type=int, default=4000, help="a stream begins anew after so many")
    parser.add_argument("--prompts", type=int, default=2, help="long ones that come together")
    parser.add_argument("--prompt-tokens", type=int, default=12000)
    parser.add_argument("--question-tokens", type=int, default=50)
    parser.add_argument("--questions", type=int, default=5, help="asked one by one where it is quiet; behind, as many as find time")
    parser.add_argument("--pause", type=float, default=0.25, help="seconds before a question, about")
    parser.add_argument("--quiet", type=float, default=3, help="seconds for which the streams are measured alone")
    parser.add_argument("--most", type=float, default=300, help="seconds after which the long prompts are given up")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start-timeout", type=float, default=300, help="seconds for the server to be ready")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(mine)
    if bool(command) == bool(args.url):
        parser.error("want the server's command behind `--`, or --url")
    if args.url and args.each:
        parser.error("--each starts a server, --url has one")
    return args, command


def rounds(url, args):
    results = []
    for number in range(args.rounds):
        args.seed += number
        results.append(asyncio.run(measure(url, args)))
    return {key: statistics.median(r[key] for r in results) for key in results[0]}


def main():
    args, command = options()
    rows = []
    for flags in args.each or [""]:
        if args.url:
            rows.append((flags, rounds(args.url, args)))
        else:
            with Server([*command, *shlex.split(flags)], args) as server:
                rows.append((flags, rounds(server.url, args)))
        if not args.json:
            print(f"{len(rows)}. {flags or 'default'}: done", file=sys.stderr, flush=True)
    if args.json:
        print(json.dumps({"command": " ".join([os.path.basename(sys.argv[0]), *map(shlex.quote, sys.argv[1:])]),
                          "rows": [{"flags": flags} | row for flags, row in rows]}, indent=1))
    else:
        print(f"{args.streams} streams, {args.prompts} prompts of {args.prompt_tokens} tokens, questions of {args.question_tokens}; ms where no unit")
        table(rows)


if __name__ == "__main__":
    main()
