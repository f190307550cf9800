"""nibble launch: what it shows, and programs of our own that it starts in the place of agents."""
import http.server
import json
import os
import pathlib
import re
import shlex
import signal
import socket
import subprocess
import threading
import time
import tomllib

import support
from serve_support import Server
from support import IO, NIBBLE, USAGE, Case, nibble

PROGRAMS = ("codex", "claude", "opencode", "vibe", "aider", "llm")
# Says what it got, then asks the server that its variables or its file name.
STAND_IN = r'''#!/bin/sh
url=$(cat "$CODEX_HOME/config.toml" 2>/dev/null | sed -n 's/^base_url = "\(.*\)"/\1/p')
printf '%s\n' "$#" "$@"
http_proxy= python3 -c 'import sys, urllib.request as u; print(u.urlopen(sys.argv[1] + "/models").read().decode())' "$url"
exit 7
'''


class Launch(Case):
    def setUp(self):
        super().setUp()
        self.state = self.dir / "state"
        self.profiles = self.state / "nibble/launch"
        self.env = {**os.environ, "XDG_STATE_HOME": str(self.state), "XDG_RUNTIME_DIR": str(self.dir), "PATH": f"{self.dir}:{os.environ['PATH']}", "http_proxy": "http://127.0.0.1:9"}
        with socket.create_server(("127.0.0.1", 0)) as s:
            self.port = s.getsockname()[1]

    def program(self, name="codex", text=STAND_IN):
        (self.dir / name).write_text(text)
        (self.dir / name).chmod(0o755)

    def printed(self, name, *args):
        """The server's line, the file, the program's line."""
        out = self.ok("launch", name, "--port", self.port, "--print", *args, env=self.env).out
        server, file, program = re.fullmatch(r"(?:# first a server[^\n]*\n([^\n]*)\n)?(?:# (/[^\n]*\n.*?))?# the program\n([^\n]*)\n", out, re.DOTALL).groups()
        return server, file, program

    def none_listens(self):
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", self.port)) != 0

    def test_print_shows_all_and_does_nothing(self):
        for name in PROGRAMS:
            server, file, program = self.printed(name, "-m", "a model", "--", "--flag", "it's")
            self.assertEqual(shlex.split(server), ["nibble", "serve", "--port", str(self.port), "--model", "a model"])
            words = shlex.split(program)
            self.assertEqual((words[0], words[-3:]), ("env", [name, "--flag", "it's"]), name)
            told = (file or "") + program
            self.assertIn(f"http://127.0.0.1:{self.port}", told, name)
            self.assertIn("MODEL", told, name)
            self.assertNotIn("{", program, name)
            if file:
                self.assertTrue(file.startswith(str(self.profiles / name)), file)
        self.assertFalse(self.state.exists())
        self.assertTrue(self.none_listens())

    def test_a_server_s_key_is_passed_on_and_shown_nowhere(self):
        server = Server("--api-key", "open sesame")
        self.addCleanup(server.stop)
        self.port = server.port
        self.program()
        self.refused(USAGE, "launch", "codex", "--port", self.port, env=self.env, says="asks for its key: NIBBLE_API_KEY")
        env = {**self.env, "NIBBLE_API_KEY": "open sesame"}
        self.assertEqual(nibble("launch", "codex", "--port", self.port, env=env).code, 7)
        self.assertIn('args = ["open sesame"]', (self.profiles / "codex/config.toml").read_text())
        self.env = env
        self.assertIn('args = ["YOUR_KEY"]', self.printed("codex")[1])
        self.refused(support.UNSUPPORTED, "launch", "llm", "--port", self.port, "--print", env=env, says="without a key")

    def test_the_hubs_token_goes_to_no_server(self):
        seen = []

        class Asked(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                seen.append(self.headers.get("Authorization"))
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b'{"data": [{"id": "m", "max_model_len": 99}]}')

            def log_message(self, *args):
                pass

        server = http.server.HTTPServer(("127.0.0.1", self.port), Asked)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.shutdown)
        (self.dir / "token").write_text("hf_file")
        for variables in ({"HF_TOKEN": "hf_variable"}, {"HF_TOKEN_PATH": str(self.dir / "token")}):
            self.ok("launch", "codex", "--port", self.port, "--print", env={**self.env, **variables})
        self.assertEqual(seen and set(seen), {None})

    def test_values_are_those_of_a_server_that_runs(self):
        """Whatever its name: files and lines stay what they are."""
        odd = 'odd "name" \\ of {url} it\'s'
        server = Server("--served-model-name", odd, "--max-model-len", 777)
        self.addCleanup(server.stop)
        self.port = server.port
        for name in PROGRAMS:
            shown, file, program = self.printed(name)
            self.assertIsNone(shown)
            variables = dict(word.split("=", 1) for word in shlex.split(program)[1:-1])
            text = file.split("\n", 1)[1] if file else ""
            if name in ("codex", "vibe"):
                told = tomllib.loads(text)
                self.assertEqual(told["model"] if name == "codex" else told["models"][0]["name"], odd)
            elif name == "opencode":
                told = json.loads(text)
                self.assertEqual((told["model"], told["provider"]["nibble"]["models"][odd]["limit"]["context"]), ("nibble/" + odd, 777))
            elif name == "llm":
                self.assertIn(f"model_name: {json.dumps(odd)}\n", text)
            else:
                self.assertIn(odd, variables.values() if name == "claude" else [variables["AIDER_MODEL"].removeprefix("openai/")])
        self.assertEqual(shlex.split(self.printed("claude")[2])[5], "CLAUDE_CODE_MAX_CONTEXT_TOKENS=777")

    def test_a_server_is_started_and_ended(self):
        self.program()
        result = support.nibble("launch", "codex", "--port", self.port, "--", "exec", "--json", "two words", env=self.env)
        self.assertEqual(result.code, 7, result.err)
        lines = result.out.splitlines()
        self.assertEqual(lines[:4], ["3", "exec", "--json", "two words"])
        self.assertEqual(json.loads(lines[4])["data"][0]["id"], "nibble-tiny")
        self.assertEqual(tomllib.loads((self.profiles / "codex/config.toml").read_text())["model"], "nibble-tiny")
        self.assertIn("stopped", (self.profiles / "codex/server.log").read_text())
        self.assertTrue(self.none_listens())

    def test_a_server_that_runs_is_used_and_left(self):
        self.program()
        server = Server("--served-model-name", "mine")
        self.addCleanup(server.stop)
        self.port = server.port
        result = support.nibble("launch", "codex", "--port", self.port, env=self.env)
        self.assertEqual((result.code, result.out.splitlines()[0]), (7, "0"))
        self.assertIn('"mine"', result.out)
        self.assertEqual(server.get("/health").status, 200)
        self.assertFalse((self.profiles / "codex/server.log").exists())

    def test_what_it_started_ends_with_it(self):
        self.program(text=STAND_IN.replace("exit 7", "exec sleep 1000"))
        launch = subprocess.Popen([NIBBLE, "launch", "codex", "--port", str(self.port)], env=self.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
        self.addCleanup(lambda: os.killpg(launch.pid, signal.SIGKILL))
        self.assertEqual(launch.stdout.readline(), b"0\n")
        launch.stdout.readline()
        launch.kill()
        launch.wait()
        launch.stdout.close()
        end = time.monotonic() + support.TIMEOUT_S
        while not self.none_listens() and time.monotonic() < end:
            time.sleep(0.02)
        self.assertTrue(self.none_listens())

    def test_mistakes(self):
        (names,) = re.findall(r"want one of (.*), found emacs", self.refused(USAGE, "launch", "emacs").err)
        self.assertEqual(names, ", ".join(PROGRAMS))
        self.assertIn(", ".join(PROGRAMS[:-1]) + " or " + PROGRAMS[-1], self.ok("launch", "--help").out)
        self.refused(USAGE, "launch", says="program is required")
        for wrong in (("--port", 0), ("--port", "x"), ("--frob",), ("--model=",)):
            self.refused(USAGE, "launch", "codex", *wrong)
        self.refused(IO, "launch", "codex", says="codex is not installed; npm install -g @openai/codex gets it", env={**self.env, "PATH": "/usr/bin:/bin"})
        self.refused(IO, "launch", "codex", "--print", says="want HOME", env={"PATH": self.env["PATH"]})
        self.program()
        result = self.refused(IO, "launch", "codex", "--port", self.port, "-m", self.dir / "nothing", says="the server has ended", env=self.env)
        log = re.search(r"end of (\S+)", result.err)[1]
        self.assertIn("nothing", pathlib.Path(log).read_text())
        other = subprocess.Popen(["python3", "-m", "http.server", "--bind", "127.0.0.1", str(self.port)], cwd=self.dir, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        self.addCleanup(lambda: (other.kill(), other.wait()))
        Server.until(lambda: not self.none_listens())
        self.refused(IO, "launch", "codex", "--port", self.port, says="found 404", env=self.env)


if __name__ == "__main__":
    support.main()
