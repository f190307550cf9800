"""What the tests of the program share: running it, and reading, writing and damaging checkpoints. Standard library only."""
import functools
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

NIBBLE = os.environ.get("NIBBLE", "build/cpu/src/app/nibble")
SOURCE = pathlib.Path(__file__).resolve().parents[2]
TINY = SOURCE / "models/nibble-tiny"
SANITIZED = os.environ.pop("NIBBLE_SANITIZED", "") != ""  # slower, and address space is not a measure of memory
TIMEOUT_S = 300  # of one command: a machine may be busy
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # --backend auto is the CPU here, whatever the machine has
USAGE, UNSUPPORTED, CORRUPT, IO, MEMORY, INTERRUPTED = 2, 3, 4, 5, 6, 130  # exit codes
EXACT = ("--moe-activation", "f32")  # where texts of different steps are held against each other, bit for bit


class Result:
    def __init__(self, code, out, err):
        self.code, self.raw, self.err = code, out, err.decode("utf-8", "replace")
        self.out = out.decode("utf-8", "replace")

    def json(self):
        return json.loads(self.raw.decode("utf-8"))  # strictly UTF-8


def nibble(*args, stdin=b"", **popen):
    """Runs the program. Fails where it was killed by a signal or hangs."""
    command = [NIBBLE, *[a if isinstance(a, bytes) else str(a) for a in args]]
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=TIMEOUT_S, check=False, **popen)
    result = Result(done.returncode, done.stdout, done.stderr)
    assert done.returncode >= 0, f"{command} died of signal {-done.returncode}: {result.err}"
    assert "Sanitizer" not in result.err, result.err
    return result


needs_openssl = unittest.skipUnless(shutil.which("openssl"), "no openssl here to make a certificate with")


def certificate(folder, name="DNS:localhost"):
    """A certificate that vouches for itself, and its key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name.split(':')[1]}",
                    "-addext", f"subjectAltName={name}", "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


def needs_int8(test):
    """Skips a test, by name, where this CPU has no int8 activations."""
    @functools.wraps(test)
    def wrapped(self):
        result = nibble("inspect", "-m", TINY, "--plan", "--moe-activation", "int8")
        if result.code == UNSUPPORTED:
            print(f"skipped: {test.__name__}: {result.err.strip()}")  # tools/run_tests.sh shows such lines
            self.skipTest(result.err.strip())
        test(self)
    return wrapped


class Case(unittest.TestCase):
    maxDiff = 2000

    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="nibble_cli_"))
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)

    def ok(self, *args, **options):
        result = nibble(*args, **options)
        self.assertEqual(result.code, 0, result.err)
        return result

    def refused(self, code, *args, says=(), **options):
        """Want this exit code, one line on standard error with these words, and nothing on standard output."""
        result = nibble(*args, **options)
        self.assertEqual(result.code, code, f"{args}: {result.out[:200]} {result.err}")
        self.assertEqual(result.raw, b"", f"{args}: {result.err}")
        lines = [line for line in result.err.splitlines() if not line.startswith("backend cpu: ")]  # said before
        self.assertEqual(len(lines), 1, result.err)
        self.assertTrue(lines[0].startswith("nibble: "), result.err)
        self.assertNotIn("internal error", result.err)
        self.assertLess(len(result.err), 2200)
        self.assertNotRegex(result.err, r"\[[a-z_]+\] |json\.exception")  # inner names
        for words in [says] if isinstance(says, str) else says:
            self.assertIn(words, result.err)
        return result

    def copy_of_tiny(self, name="model"):
        """A copy to damage; unchanged files are links."""
        to = self.dir / name
        to.mkdir()
        for path in TINY.iterdir():
            (to / path.name).symlink_to(path)
        return to


def replace(path, content):
    """Gives a (linked) file new content."""
    path.unlink(missing_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def edit_json(path, change):
    value = json.loads(path.read_text())
    change(value)
    replace(path, json.dumps(value))


def read_safetensors(path):
    """{name: (dtype, shape, bytes)}, without metadata."""
    data = pathlib.Path(path).read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    body = memoryview(data)[8 + size:]
    return {name: (t["dtype"], t["shape"], bytes(body[t["data_offsets"][0]:t["data_offsets"][1]])) for name, t in header.items()}


def safetensors_bytes(tensors):
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values())


def read_model(directory):
    tensors = {}
    for path in sorted(pathlib.Path(directory).glob("*.safetensors")):
        tensors.update(read_safetensors(path))
    return tensors


def greedy(model, prompt, *more):
    """Token ids of a greedy continuation."""
    result = nibble("run", "-m", model, "-p", prompt, "-n", 24, "--temperature", 0, "--json", *more)
    assert result.code == 0, result.err
    return result.json()["token_ids"]


def main():
    if not os.access(NIBBLE, os.X_OK):
        sys.exit(f"NIBBLE={NIBBLE}: want the path of the built program")
    unittest.main(verbosity=1)
