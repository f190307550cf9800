"""Perplexity of nibble-tiny in every type of llama.cpp's GGUF, beside llama.cpp's own logits on the same file: its quantiser
(llama-cpp-python's library) writes the files. Types of 256 values are Q8_0 or legacy ones where rows are no multiple. No network."""
import ctypes
import math
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import support  # noqa: E402

import llama_cpp  # noqa: E402

TYPES = ("ALL_F32", "MOSTLY_F16", "MOSTLY_BF16", "MOSTLY_Q8_0", "MOSTLY_Q4_0", "MOSTLY_Q4_1", "MOSTLY_Q5_0", "MOSTLY_Q5_1", "MOSTLY_Q2_K",
         "MOSTLY_Q3_K_M", "MOSTLY_Q4_K_M", "MOSTLY_Q5_K_M", "MOSTLY_Q6_K", "MOSTLY_IQ4_NL", "MOSTLY_IQ4_XS")
TEXT = (support.TINY / "heldout.txt").read_text()[:1500]  # within a window of perplexity


def llama_perplexity(path, ids):
    llama = llama_cpp.Llama(model_path=str(path), n_ctx=len(ids) + 8, n_batch=len(ids) + 8, logits_all=True, verbose=False)
    llama.eval(ids)
    loss = 0.0
    for at, token in enumerate(ids[1:]):
        row = llama.scores[at]
        top = float(row.max())
        loss += top + math.log(sum(math.exp(float(x) - top) for x in row)) - float(row[token])
    return math.exp(loss / (len(ids) - 1))


class Quants(support.Case):
    def test_every_type_has_the_perplexity_that_llama_cpp_has(self):
        source = self.dir / "f32.gguf"
        self.ok("convert", "-m", support.TINY, "-o", source, "--dense", "f32", "-q")
        ids = self.ok("tokenize", "-m", support.TINY, "-p", TEXT, "--json").json()["ids"]
        for name in TYPES:
            path = self.dir / f"{name}.gguf"
            how = llama_cpp.llama_model_quantize_default_params()
            how.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_{name}")
            how.allow_requantize = True
            self.assertEqual(llama_cpp.llama_model_quantize(str(source).encode(), str(path).encode(), ctypes.byref(how)), 0, name)
            types = {}
            for tensor in self.ok("inspect", "-m", path, "--tensors", "--json").json()["tensor_list"]:
                types[tensor["dtype"]] = types.get(tensor["dtype"], 0) + 1
            own = self.ok("perplexity", "-m", path, "-p", TEXT, "--moe-activation", "f32", "--json").json()["perplexity"]
            theirs = llama_perplexity(path, ids)
            print(f"{name:<14} nibble {own:9.4f}  llama.cpp {theirs:9.4f}  {100 * (own / theirs - 1):+6.2f} %  {types}", flush=True)
            self.assertLess(abs(own / theirs - 1), 0.02, name)


if __name__ == "__main__":
    support.main()
