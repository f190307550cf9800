"""Nibble from Python, through the program that this package installs: `nibble` on the path, and

    import nibble
    print(nibble.generate("Once upon a time"))
    with nibble.serve("gpt-oss-20b") as server:
        print(server.url)       # for the openai client: server.url + "/v1"

Flags of the program are keyword arguments: `max_tokens=40` is `--max-tokens 40`, `True` a flag without a value, a list
several values. Without a model it is the small one that comes with the package."""
import json
import pathlib
import re
import shutil
import ssl
import subprocess
import sysconfig
import tempfile
import time
import urllib.error
import urllib.request

__all__ = ["Error", "Server", "generate", "program", "serve"]

SMALL = "nibble-tiny"  # comes with the program
ANY_CERTIFICATE = ssl._create_unverified_context()  # of a server that this process started


class Error(RuntimeError):
    """What the program said as it failed."""


def program():
    """The path of the program: beside this Python's scripts, or on the path."""
    beside = pathlib.Path(__file__).resolve().parents
    folders = [pathlib.Path(sysconfig.get_path("scripts")), *(folder / "bin" for folder in beside)]
    for folder in folders:
        if (folder / "nibble").is_file():
            return str(folder / "nibble")
    found = shutil.which("nibble")
    if found is None:
        raise Error(f"no program nibble in {folders[0]} or on the path: install this package again")
    return found


def flags_of(options):
    flags = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            flags.append(flag)
        elif value is not None and value is not False:
            for one in value if isinstance(value, (list, tuple)) else [value]:
                flags += [flag, str(one)]
    return flags


def generate(prompt, model=SMALL, **options):
    """The text that follows `prompt`, by `nibble run`. Raises Error with the program's message."""
    command = [program(), "run", str(model), "-p", prompt, "--json", *flags_of(options)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, encoding="utf-8", check=False)
    if done.returncode != 0:
        raise Error(done.stderr.strip())
    return json.loads(done.stdout)["text"]


class Server:
    """A running `nibble serve`. `url` has no /v1 at its end. Leaving `with`, or stop(), ends it."""

    def __init__(self, process, log, url):
        self.process, self.log, self.url = process, log, url

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def said(self):
        """Its log so far."""
        return pathlib.Path(self.log.name).read_text(encoding="utf-8", errors="replace")

    def stop(self):
        """Ends it as SIGTERM does: answers that are being written have --shutdown-timeout to end."""
        self.process.terminate()
        self.process.wait()
        self.log.close()


def serve(model=SMALL, port=0, start_seconds=600, **options):
    """Starts `nibble serve` and returns when it answers. Port 0: one that is free. Raises Error with the program's log."""
    log = tempfile.NamedTemporaryFile(prefix="nibble-", suffix=".log")
    command = [program(), "serve", str(model), "--port", str(port), *flags_of(options)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    server = Server(process, log, None)
    end = time.monotonic() + start_seconds
    while time.monotonic() < end and process.poll() is None:
        server.url = server.url or url_in(server.said())
        if server.url and answers(server.url):
            return server
        time.sleep(0.05)
    said = server.said().strip()
    if process.poll() is None:
        process.kill()
    process.wait()
    log.close()
    raise Error(said or f"nibble serve did not answer within {start_seconds} s")


def url_in(log):
    found = re.search(r'listening on (https?://[^"\s]+)', log)
    return found and found[1]


def answers(url):
    try:
        with urllib.request.urlopen(url + "/health", timeout=5, context=ANY_CERTIFICATE) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False
