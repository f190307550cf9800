#!/usr/bin/env python3
"""Writes tests/data/pypi.gguf and tests/data/gguf_goldens.json: a gpt-oss model of one layer as llama.cpp's own Python
package (PyPI gguf) writes it, and what that package reads from each tensor; tests/data/ggml_blocks.json: random blocks of every type, and what the package reads from them; and smaller
files under tests/fuzz/corpus/gguf. Needs gguf and numpy (tools/requirements.txt)."""
import json
import pathlib

import gguf
import numpy as np

TESTS = pathlib.Path(__file__).resolve().parents[1] / "tests"
LAYERS, KV_HEADS, HEAD_DIM, INTER, TOPK = 1, 1, 32, 32, 1
T = gguf.GGMLQuantizationType
SPECIAL = ["<|startoftext|>", "<|endoftext|>", "<|return|>", "<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|call|>"]


def byte_level():
    """GPT-2's alphabet: one printable character per byte."""
    own = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255]
    others = iter(range(256, 512))
    return [chr(b) if b in own else chr(next(others)) for b in range(256)]


def fnv1a(values):
    """Over the little-endian bytes of the f32 values, negative zeros made positive."""
    result = 0xCBF29CE484222325
    for byte in (values.astype("<f4") + np.float32(0)).tobytes():
        result = (result ^ byte) * 0x100000001B3 % 2**64
    return result


def tensors(vocab, hidden, heads, experts):
    yield "token_embd.weight", T.Q8_0, (vocab, hidden)
    yield "output_norm.weight", T.F32, (hidden,)
    yield "output.weight", T.F16, (vocab, hidden)
    q, kv = heads * HEAD_DIM, KV_HEADS * HEAD_DIM
    for name, kind, shape in (
            ("attn_norm.weight", T.F32, (hidden,)), ("attn_q.weight", T.BF16, (q, hidden)), ("attn_q.bias", T.F32, (q,)),
            ("attn_k.weight", T.Q8_0, (kv, hidden)), ("attn_k.bias", T.F32, (kv,)), ("attn_v.weight", T.F32, (kv, hidden)),
            ("attn_v.bias", T.F32, (kv,)), ("attn_output.weight", T.MXFP4, (hidden, q)), ("attn_output.bias", T.F32, (hidden,)),
            ("attn_sinks.weight", T.F32, (heads,)), ("post_attention_norm.weight", T.F32, (hidden,)),
            ("ffn_gate_inp.weight", T.F32, (experts, hidden)), ("ffn_gate_inp.bias", T.F32, (experts,)),
            ("ffn_gate_exps.weight", T.MXFP4, (experts, INTER, hidden)), ("ffn_gate_exps.bias", T.F32, (experts, INTER)),
            ("ffn_up_exps.weight", T.MXFP4, (experts, INTER, hidden)), ("ffn_up_exps.bias", T.F16, (experts, INTER)),
            ("ffn_down_exps.weight", T.MXFP4, (experts, hidden, INTER)), ("ffn_down_exps.bias", T.F32, (experts, hidden))):
        yield f"blk.0.{name}", kind, shape


def write_model(path, hidden, heads, experts, with_tensors=True):
    """Returns what is to be read from it."""
    random = np.random.default_rng(1)
    words = ["he", "ll", "hell", "hello"]
    tokens = byte_level() + words + SPECIAL + ["[PAD268]"]
    kinds = [1] * (256 + len(words)) + [3] * len(SPECIAL) + [5]
    writer = gguf.GGUFWriter(path, "gpt-oss")
    writer.add_name("golden")
    writer.add_block_count(LAYERS)
    writer.add_context_length(4096)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(INTER)
    writer.add_expert_feed_forward_length(INTER)
    writer.add_expert_count(experts)
    writer.add_expert_used_count(TOPK)
    writer.add_head_count(heads)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_sliding_window(16)
    writer.add_rope_freq_base(150000.0)
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(32.0)
    writer.add_rope_scaling_orig_ctx_len(4096)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-4o")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(["h e", "l l", "he ll", "hell o"])
    writer.add_bos_token_id(tokens.index("<|startoftext|>"))
    writer.add_eos_token_id(tokens.index("<|return|>"))
    writer.add_pad_token_id(tokens.index("<|endoftext|>"))
    golden = {"made_by": f"tools/make_gguf_goldens.py, gguf {gguf_version()}", "hello": tokens.index("hello"), "tensors": {}}
    for name, kind, shape in tensors(len(tokens), hidden, heads, experts) if with_tensors else ():
        values = random.normal(0, 1, shape).astype(np.float32)
        stored = gguf.quants.quantize(values, kind)
        writer.add_tensor(name, stored, raw_dtype=kind)
        read = gguf.quants.dequantize(stored, kind)
        golden["tensors"][name] = {"type": kind.name, "shape": list(shape), "fnv1a": f"{fnv1a(read):016x}", "first": float(read.flat[0])}
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return golden


# Where the F16 scales of a block lie, which random bytes must leave finite.
F16_SCALES = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q2_K: [80, 82], T.Q3_K: [108], T.Q4_K: [0, 2],
              T.Q5_K: [0, 2], T.Q6_K: [208], T.IQ4_NL: [0], T.IQ4_XS: [0], T.MXFP4: []}


def random_blocks(random, kind, values):
    size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (values // size, block_bytes), dtype=np.uint8)
    for at in F16_SCALES[kind]:
        blocks[:, at:at + 2] = random.normal(0, 0.1, (len(blocks), 1)).astype("<f2").view(np.uint8)
    if kind == T.MXFP4:
        blocks[:, 0] = random.integers(110, 140, len(blocks))
    return blocks.reshape(1, -1)


def blocks_golden():
    random = np.random.default_rng(2)
    golden = {"made_by": f"tools/make_gguf_goldens.py, gguf {gguf_version()}"}
    for kind in F16_SCALES:
        blocks = random_blocks(random, kind, 512)
        read = gguf.quants.dequantize(blocks, kind)
        golden[kind.name] = {"blocks": blocks.tobytes().hex(), "fnv1a": f"{fnv1a(read):016x}", "first": float(read.flat[0])}
    return golden


def write_values(path):
    """Every type of value, and the tensor types, small."""
    writer = gguf.GGUFWriter(path, "values")
    for kind in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"):
        getattr(writer, f"add_{kind}")(f"v.{kind}", 7)
    writer.add_float32("v.f32", 0.5)
    writer.add_float64("v.f64", 0.5)
    writer.add_bool("v.bool", True)
    writer.add_array("v.strings", ["a", "bc"])
    writer.add_array("v.numbers", [1, 2, 3])
    writer.add_uint32("general.alignment", 32)
    for kind in (T.F32, T.F16, T.BF16, T.Q8_0, T.MXFP4):
        writer.add_tensor(f"t.{kind.name}", gguf.quants.quantize(np.ones((2, 32), np.float32), kind), raw_dtype=kind)
    for kind in (k for k in F16_SCALES if k not in (T.Q8_0, T.MXFP4)):
        writer.add_tensor(f"t.{kind.name}", random_blocks(np.random.default_rng(3), kind, 256), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    golden = write_model(TESTS / "data/pypi.gguf", hidden=64, heads=2, experts=2)
    (TESTS / "data/gguf_goldens.json").write_text(json.dumps(golden, indent=1) + "\n")
    (TESTS / "data/ggml_blocks.json").write_text(json.dumps(blocks_golden(), indent=1) + "\n")
    corpus = TESTS / "fuzz/corpus/gguf"
    corpus.mkdir(exist_ok=True)
    write_model(corpus / "model", hidden=32, heads=1, experts=1)
    write_model(corpus / "keys", hidden=32, heads=1, experts=1, with_tensors=False)
    write_values(corpus / "values")


def gguf_version():
    import importlib.metadata
    return importlib.metadata.version("gguf")


if __name__ == "__main__":
    main()
