#!/usr/bin/env python3
"""tools/check_gguf.py FILE.gguf DIRECTORY: reads what `nibble convert -m DIRECTORY -o FILE.gguf` wrote with llama.cpp's own
Python package (PyPI gguf) and holds every value against the Hugging Face checkpoint: equal, or for Q8_0 and
F16 equal to what that package and numpy round it to. Needs gguf and numpy."""
import json
import pathlib
import struct
import sys

import gguf
import numpy as np

T = gguf.GGMLQuantizationType
NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight",
         "attn_norm.weight": "input_layernorm.weight", "attn_sinks.weight": "self_attn.sinks",
         "post_attention_norm.weight": "post_attention_layernorm.weight", "ffn_gate_inp": "mlp.router",
         "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj"}
CODES = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def checkpoint(directory):
    result = {}
    for path in sorted(pathlib.Path(directory).glob("*.safetensors")):
        data = path.read_bytes()
        (size,) = struct.unpack("<Q", data[:8])
        for name, t in json.loads(data[8:8 + size]).items():
            if name == "__metadata__":
                continue
            begin, end = t["data_offsets"]
            raw = np.frombuffer(data, np.uint8, end - begin, 8 + size + begin)
            if t["dtype"] == "BF16":
                raw = (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
            result[name] = raw.reshape(t["shape"])
    return result


def experts(tensors, prefix):
    """The MXFP4 pair as values: element 2j is the low nibble of byte j."""
    blocks, scales = tensors[prefix + "_blocks"], tensors[prefix + "_scales"]
    codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(*scales.shape, 32)
    return (CODES[codes] * np.ldexp(np.float32(1), scales.astype(np.int32) - 127)[..., None]).reshape(*scales.shape[:-1], -1)


def wanted(tensors, name):
    if not name.startswith("blk."):
        return tensors[NAMES[name]]
    _, layer, rest = name.split(".", 2)
    layer = f"model.layers.{layer}."
    if rest in NAMES:
        return tensors[layer + NAMES[rest]]
    stem, kind = rest.rsplit(".", 1)
    if not stem.endswith("_exps"):
        return tensors[f"{layer}{NAMES[stem]}.{kind}"]
    both = layer + ("mlp.experts.down_proj" if stem == "ffn_down_exps" else "mlp.experts.gate_up_proj")
    values = tensors[both + "_bias"] if kind == "bias" else experts(tensors, both)
    return values if stem == "ffn_down_exps" else values[:, {"ffn_gate_exps": 0, "ffn_up_exps": 1}[stem]::2]


def main():
    reader, tensors = gguf.GGUFReader(sys.argv[1]), checkpoint(sys.argv[2])
    counts = {}
    for tensor in reader.tensors:
        want = wanted(tensors, tensor.name)
        if tensor.tensor_type == T.Q8_0:
            want = gguf.quants.dequantize(gguf.quants.quantize(np.ascontiguousarray(want), T.Q8_0), T.Q8_0)
        if tensor.tensor_type == T.F16:
            want = want.astype(np.float16).astype(np.float32)
        found = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(want.shape)
        if not np.array_equal(found, want):
            sys.exit(f"{tensor.name}: {np.count_nonzero(found != want)} of {want.size} values differ")
        counts[tensor.tensor_type.name] = counts.get(tensor.tensor_type.name, 0) + 1
    print(f"{sys.argv[1]}: {len(reader.fields)} fields, all values of {len(reader.tensors)} tensors are equal: {counts}")


if __name__ == "__main__":
    main()
