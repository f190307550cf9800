"""Ranks of several processes over TCP on this machine: texts of one process, and what ends or refuses a group."""

import os
import random
import re
import signal
import socket
import struct
import subprocess
import threading

import support
from serve_support import PATIENCE_S, Server
from support import IO, NIBBLE, TINY, USAGE, Case

PROMPT = ("-m", TINY, "-p", "Once upon a time", "-n", 20, "--temperature", 0, "--json", "--threads", 1)
LAUNCHERS = re.compile(r"(LOCAL_|OMPI_|TORCH)|(RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT)$")
CLEAN = {name: value for name, value in os.environ.items() if not LAUNCHERS.match(name)}


def free_port():
    """Free just now, as is the next one; below the ports that the system gives away, else any other program might get it."""
    while True:
        port = random.randrange(10000, 20000)
        with socket.socket() as one, socket.socket() as two:
            try:
                one.bind(("127.0.0.1", port))
                two.bind(("127.0.0.1", port + 1))
                return port
            except OSError:
                continue


def flags_of(port, rank, count=2):
    return ("--nnodes", count, "--node-rank", rank, "--master-addr", "127.0.0.1", "--master-port", port)


class Rank:
    """One process of a group. Its streams are read to the end by threads."""

    def __init__(self, *args, env=None):
        self.process = subprocess.Popen([NIBBLE, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**CLEAN, **(env or {})})
        self.out = self.err = b""
        self._seen = threading.Condition()
        self._threads = [threading.Thread(target=self._read, args=(name,), daemon=True) for name in ("out", "err")]
        for thread in self._threads:
            thread.start()

    def _read(self, name):
        stream = self.process.stdout if name == "out" else self.process.stderr
        while data := stream.read1(65536):
            with self._seen:
                setattr(self, name, getattr(self, name) + data)
                self._seen.notify_all()
        stream.close()

    def wait_said(self, words):
        with self._seen:
            if not self._seen.wait_for(lambda: words.encode() in self.err, timeout=PATIENCE_S):
                raise AssertionError(f"no {words!r} in {self.err}")

    def wait(self):
        """Exit code and what it said."""
        code = self.process.wait(timeout=PATIENCE_S)
        for thread in self._threads:
            thread.join()
        return code, self.err.decode()


def value(kind, text):
    return struct.pack("<Q", len(text)) + text.encode() if kind == "s" else struct.pack("<" + kind, text)


def frame(kind, body):
    return struct.pack("<4sIQ", b"NBRK", kind, len(body)) + body


class Processes(Case):
    def start(self, *args, env=None):
        rank = Rank(*args, env=env)
        self.addCleanup(rank.process.kill)
        return rank

    def texts(self, count, *more):
        port = free_port()
        ranks = [self.start("run", *PROMPT, *more, *flags_of(port, rank, count)) for rank in reversed(range(count))][::-1]
        for rank in ranks:
            code, said = rank.wait()
            self.assertEqual(code, 0, said)
        for follower in ranks[1:]:
            self.assertEqual(follower.out, b"")
        return support.Result(0, ranks[0].out, b"").json()["token_ids"]

    def test_write_the_texts_of_one_process_and_of_threads(self):
        want = self.ok("run", *PROMPT, *support.EXACT).json()["token_ids"]
        for count, flags in ((2, support.EXACT), (4, (*support.EXACT, "--enable-expert-parallel")), (2, ("--backend", "reference")), (2, ("--kv-cache-dtype", "int8"))):
            with self.subTest(f"{count} {flags}"):
                found = self.texts(count, *flags)
                self.assertEqual(found, self.ok("run", *PROMPT, *flags, "--tensor-parallel-size", count).json()["token_ids"])
                if support.EXACT[0] in flags:
                    self.assertEqual(found, want)

    def test_guesses_are_made_by_rank_0(self):
        want = self.ok("run", *PROMPT, *support.EXACT).json()["token_ids"]
        self.assertEqual(self.texts(2, *support.EXACT, "--speculative", "ngram"), want)
        self.assertEqual(self.texts(2, *support.EXACT, "--speculative", "eagle3", "--speculative-model", f"{TINY}/eagle3"), want)

    def test_the_variables_of_launchers(self):
        want = self.ok("run", *PROMPT, *support.EXACT).json()["token_ids"]
        for rank, size, more in (("RANK", "WORLD_SIZE", {}), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", {}),
                                 ("RANK", "WORLD_SIZE", {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "TORCHELASTIC_USE_AGENT_STORE": "True"})):
            port = free_port()
            env = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), size: "2", **more}
            ranks = [self.start("run", *PROMPT, *support.EXACT, env={**env, rank: str(n)}) for n in (0, 1)]
            for of in ranks:
                code, said = of.wait()
                self.assertEqual(code, 0, said)
            self.assertEqual(support.Result(0, ranks[0].out, b"").json()["token_ids"], want)
            self.assertIn(f":{port + 1 if more else port} for the others", ranks[0].err.decode())
        config = self.ok("run", "-m", TINY, "--print-config", "--json", env={**CLEAN, "WORLD_SIZE": "4", "RANK": "3", "MASTER_ADDR": "h", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}).json()
        self.assertEqual(config["nnodes"], {"value": "4", "origin": "environment WORLD_SIZE"})
        self.assertEqual(config["node-rank"], {"value": "3", "origin": "environment RANK"})
        self.assertEqual(config["threads"]["origin"], "environment LOCAL_WORLD_SIZE")
        alone = self.ok("run", "-m", TINY, "--print-config", "--json", env={**CLEAN, "WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "h"}).json()
        self.assertEqual(alone["nnodes"]["value"], "1")

    def test_what_cannot_be_is_refused(self):
        group = flags_of(1, 0)
        for flags, says in ((("--nnodes", 2), "want --master-addr or MASTER_ADDR"), (("--nnodes", 2, "--node-rank", 2, "--master-addr", "h"), "--node-rank: want less than --nnodes, 2"),
                            (("--node-rank", 1), "--node-rank: want less than --nnodes, 1"), ((*group, "--tensor-parallel-size", 4), "--tensor-parallel-size 4: want 2"),
                            (flags_of(1, 0, 3), "found 3")):
            self.refused(USAGE, "run", *PROMPT, *flags, says=says, env=CLEAN)
        self.refused(USAGE, "run", *PROMPT, says="want RANK beside it", env={**CLEAN, "WORLD_SIZE": "2", "MASTER_ADDR": "h"})
        self.refused(3, "run", *PROMPT, *group, "--backend", "cuda", says="--nnodes 2 --backend cuda: want a card for rank 0", env=CLEAN)
        self.refused(USAGE, "run", *PROMPT, *flags_of(1, 3, 4), says="environment CUDA_VISIBLE_DEVICES 0,1: want a card for LOCAL_RANK 3, found 2", env={**CLEAN, "LOCAL_RANK": "3", "CUDA_VISIBLE_DEVICES": "0,1"})
        self.refused(3, "serve", TINY, *group, "-dp", 2, says="--data-parallel-size 2: want 1 beside --nnodes 2", env=CLEAN)
        self.refused(USAGE, "serve", TINY, "--headless", says="--headless: want a --node-rank above 0", env=CLEAN)

    def test_a_rank_that_is_late_is_named(self):
        port = free_port()
        self.refused(IO, "run", *PROMPT, "-q", *flags_of(port, 0), "--distributed-timeout-seconds", 1, says="rank 1 did not come within 1 s", env=CLEAN)
        self.refused(IO, "run", *PROMPT, "-q", *flags_of(port, 1), "--distributed-timeout-seconds", 1, says=("rank 0 did not answer at 127.0.0.1:", "Connection refused"), env=CLEAN)

    def test_who_does_not_belong_is_refused_on_both_sides(self):
        port = free_port()
        first = self.start("run", *PROMPT, *flags_of(port, 0))
        first.wait_said("waits at")
        other = self.dir / "other"
        self.ok("synth", "--preset", "tiny", "-o", other)
        for name in ("tokenizer.json",):
            if not (other / name).exists():
                (other / name).symlink_to(TINY / name)
        damaged = self.copy_of_tiny("damaged")  # the same shapes, other values
        file = next(damaged.glob("*.safetensors"))
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        support.replace(file, bytes(data))
        for changes, says in ((("-m", other), "model: want one of"), (("-m", damaged), "model: want one of"), (("--kv-cache-dtype", "fp8"), "--kv-cache-dtype: want bf16 as on rank 0, found fp8"),
                              (("--enable-expert-parallel",), "--enable-expert-parallel: want false as on rank 0, found true"),
                              (("--nnodes", 4, "--node-rank", 3, "--tensor-parallel-size", 4), "number of ranks: want 2 as on rank 0, found 4")):
            base = [*PROMPT, *flags_of(port, 1)]
            for flag in ("-m", "--nnodes", "--node-rank"):
                if flag in changes:
                    at = base.index(flag)
                    del base[at:at + 2]
            self.refused(USAGE, "run", *base, *changes, "-q", says=("rank 3" if 3 in changes else "rank 1", "is refused by rank 0", says), env=CLEAN)
            first.wait_said(says)
        second = self.start("run", *PROMPT, *flags_of(port, 1))
        self.assertEqual((first.wait()[0], second.wait()[0]), (0, 0))

    def test_strangers_and_a_rank_of_another_version_disturb_nobody(self):
        port = free_port()
        first = self.start("run", *PROMPT, *flags_of(port, 0))
        first.wait_said("waits at")
        sockets = []

        def stranger(data):
            sockets.append(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S))
            sockets[-1].sendall(data)
            return sockets[-1]
        stranger(b"")
        for data in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(5000), frame(0, b"")[:15], frame(0, b"x" * 3), struct.pack("<4sIQ", b"NBRK", 0, 1 << 62)):
            stranger(data)
        first.wait_said("which is no rank: want frames of nibble")
        hello = value("I", 3) + value("i", 1) + value("i", 2) + value("I", 1) + value("s", "version") + value("s", "0.0.1 (old)")
        for body, says in ((hello, "found 0.0.1 (old)"), (value("I", 99), "version: want protocol 3 as on rank 0, found 99")):
            answer = stranger(frame(0, body)).recv(4096)
            self.assertIn(says.encode(), answer)
            first.wait_said(says)
        second = self.start("run", *PROMPT, *flags_of(port, 1))
        self.assertEqual((first.wait()[0], second.wait()[0]), (0, 0))
        for s in sockets:
            s.close()


class Served(Case):
    # Exact, since a token's last bits depend on who shares its step otherwise.
    OWN = ("--threads", 1, "--moe-activation", "f32")

    def group(self, count=2):
        port = free_port()
        followers = [Rank("serve", TINY, "--port", 0, *self.OWN, "--headless", "--log-format", "text", *flags_of(port, rank, count)) for rank in range(1, count)]
        server = Server(*self.OWN, *flags_of(port, 0, count))
        for process in (server.process, *(f.process for f in followers)):
            self.addCleanup(process.kill)
        self.addCleanup(server.stop, signal.SIGKILL)
        return server, followers

    def test_texts_are_those_of_one_process_and_all_end_together(self):
        asked = {"prompt": "Once upon a time", "max_tokens": 20, "temperature": 0, "ignore_eos": True}
        answers = []
        alone = Server(*self.OWN)
        self.addCleanup(alone.process.kill)
        server, followers = self.group(4)
        for of in (alone, server):
            together = [None] * 3
            threads = [threading.Thread(target=lambda i=i, of=of, got=together: got.__setitem__(i, of.post("/v1/completions", {**asked, "prompt": f"{i} {asked['prompt']}"}).json()["choices"][0]["text"])) for i in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            answers.append(together)
        self.assertEqual(*answers)
        followers[0].process.send_signal(signal.SIGTERM)  # as launchers do to all ranks, while rank 0 may have work
        followers[0].wait_said("this rank ends with rank 0")
        self.assertEqual(server.post("/v1/completions", asked).status, 200)
        for follower in followers:
            self.assertRegex(follower.err.decode(), r"rank \d of 4: follows rank 0 at 127\.0\.0\.1:\d+ and serves no port")
        self.assertEqual((server.stop(), alone.stop()), (0, 0))
        for follower in followers:
            self.assertEqual(follower.wait()[0], 0)

    def open_requests(self, server, follower):
        """Requests that cannot end: a follower stands still. Their answers come into the lists, those of streams apart."""
        follower.process.send_signal(signal.SIGSTOP)
        answers, streams = [], []
        ask = {"prompt": "Once", "max_tokens": 50, "temperature": 0, "ignore_eos": True}
        threads = [threading.Thread(target=lambda: answers.append(server.post("/v1/completions", ask))) for _ in range(3)]
        threads.append(threading.Thread(target=lambda: streams.append(server.post("/v1/completions", {**ask, "stream": True}))))
        for thread in threads:
            thread.start()
        server.until(lambda: server.metric("vllm:request_params_n_count", 0) == 4)  # the engine has them, or soon will
        return answers, streams, threads

    def all_unavailable(self, answers, streams, threads, says):
        for thread in threads:
            thread.join()
        self.assertEqual(len(answers), 3)
        for answer in answers:
            self.assertEqual(answer.status, 503, answer.raw)
            self.assertIn("Retry-After", answer.headers)
            self.assertIn(says, answer.json()["error"]["message"])
        self.assertEqual([(stream.status, says in stream.raw.decode()) for stream in streams], [(200, True)])

    def test_a_killed_rank_ends_the_group_and_open_requests_get_503(self):
        server, followers = self.group(4)
        answers, streams, threads = self.open_requests(server, followers[1])
        followers[1].process.kill()
        self.all_unavailable(answers, streams, threads, "is gone")
        self.assertEqual(server.process.wait(timeout=PATIENCE_S), IO)
        server.wait_log("nibble: rank 2 at .* is gone: ")
        for follower in (followers[0], followers[2]):
            code, said = follower.wait()
            self.assertEqual(code, IO, said)
            self.assertRegex(said, "nibble: rank 0 at .* is gone: it ended: rank 2 at .* is gone")

    def test_a_rank_that_hangs_ends_the_group(self):
        server, followers = self.group(2)
        answers, streams, threads = self.open_requests(server, followers[0])
        self.all_unavailable(answers, streams, threads, "silent for 8 s")
        self.assertEqual(server.process.wait(timeout=PATIENCE_S), IO)
        followers[0].process.send_signal(signal.SIGCONT)
        code, said = followers[0].wait()
        self.assertEqual(code, IO, said)
        self.assertIn("is gone", said)

    def test_followers_end_when_rank_0_is_killed(self):
        server, followers = self.group(4)
        server.process.kill()
        for follower in followers:
            code, said = follower.wait()
            self.assertEqual(code, IO, said)
            self.assertIn("nibble: rank 0 at 127.0.0.1:", said)
            self.assertIn("is gone: its connection was closed", said)


if __name__ == "__main__":
    support.main()
