"""gpt-oss-20b's true shapes: two of its layers written, loaded and run. Needs 3.3 GB of disk under the build folder, removed at the end."""
import json
import os
import pathlib
import shutil
import sys

import support
from support import Case, nibble

PLACE = pathlib.Path(os.environ.get("NIBBLE_LARGE_DIR", "build/large"))
NEEDED_BYTES = 5_000_000_000  # the checkpoint, and room for others
SKIPPED = 77  # what ctest counts as skipped


class Gpt20b(Case):
    def setUp(self):
        shutil.rmtree(PLACE, ignore_errors=True)
        PLACE.mkdir(parents=True)
        self.addCleanup(shutil.rmtree, PLACE, ignore_errors=True)

    def test_two_layers_are_written_loaded_and_run(self):
        model = PLACE / "gpt-oss-20b-2"
        self.ok("synth", "--preset", "gpt-oss-20b", "--layers", 2, "-o", model, "-q")
        report = self.ok("inspect", "-m", model, "--json").json()
        self.assertEqual((report["dims"]["layers"], report["dims"]["hidden"], report["dims"]["experts"]), (2, 2880, 32))
        self.assertEqual(report["tensors"], 3 + 2 * 19)
        self.assertEqual(report["bytes"], json.loads((model / "model.safetensors.index.json").read_text())["metadata"]["total_size"]
                         if (model / "model.safetensors.index.json").exists() else report["bytes"])

        args = ("run", "-m", model, "-p", "Hello, world!", "-n", 4, "--temperature", 0, "--ignore-eos", "--json", *support.EXACT)
        ran = self.ok(*args).json()
        self.assertEqual(ran["usage"], {"prompt_tokens": 4, "cached_tokens": 0, "completion_tokens": 4})
        self.assertEqual(self.ok(*args, "--threads", 1, "--max-num-batched-tokens", 1).json()["token_ids"], ran["token_ids"])
        harmony = self.ok("run", "-m", model, "-p", "<|start|>user<|message|>Hi<|end|><|start|>assistant", "--special", "-n", 1, "--json").json()
        self.assertEqual(harmony["usage"]["prompt_tokens"], 7)

        compared = nibble("compare", "-m", model, "-p", "Hello, world!", "--json")
        self.assertEqual(compared.code, 0, compared.out[-2000:] + compared.err)
        self.assertEqual(len(compared.json()["stages"]), 2 + 13 * 2)


if __name__ == "__main__":
    PLACE.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(PLACE.parent).free
    if free < NEEDED_BYTES:
        print(f"skipped: want {NEEDED_BYTES / 1e9:.0f} GB of free disk under {PLACE.parent}, found {free / 1e9:.1f} GB")
        sys.exit(SKIPPED)
    support.main()
