#!/usr/bin/env python3
"""Makes tests/data/parity/puzzle: a small model whose layers differ (gpt_oss_puzzle), and what it computes in float32.

Like tools/make_goldens.py's cases, but transformers does not have this model, so the oracle is the forward pass below:
the formulas of openai/gpt-oss torch/model.py over all tokens at once, with a window and a number of experts per layer.
golden.safetensors has besides
  answer [n] I32: what it says after the first `prompt` tokens, greedily: all of `tokens` from there on
  fp8_logits [p, vocab] F32: with keys and values rounded to E4M3 as they are divided by the checkpoint's scales,
    each rounded up to a power of two
Keys are large and values small, as no E4M3 without scales holds them.
Needs torch; run: python3 tools/make_puzzle_goldens.py --out tests/data/parity
"""
import argparse
import json
import pathlib

import numpy as np
import torch
from safetensors.torch import save_file

from eagle3_model import inverse_frequencies, norm
from make_goldens import config_json, dequantise, random_checkpoint

CASE = dict(layers=6, hidden=64, inter=32, heads=4, kv=2, head_dim=64, experts=[8, 8, 5, 8, 4, 6], vocab=160)
WINDOWS = [16, None, 48, 16, 48, None]
PROMPT, ANSWER = 150, 100
POSITIONS = [0, 1, 14, 15, 16, 17, 46, 47, 48, 49, 63, 64, 65, 111, 112, 113, 127, 128, 129, 149, 150, 200, 249]
KEYS, VALUES = 2.0 ** 7, 2.0 ** -9


class Model:
    def __init__(self, config, tensors):
        self.c, self.t = config, {name: t.float() for name, t in tensors.items() if not name.endswith(("_blocks", "_scales"))}
        for name, tensor in tensors.items():
            if name.endswith("_blocks"):
                self.t[name.removesuffix("_blocks")] = dequantise(tensor, tensors[name.replace("_blocks", "_scales")])
        frequencies, self.concentration = inverse_frequencies(config, config["head_dim"])
        self.frequencies = frequencies.float()
        self.most = {}  # of keys and values, by tensor

    def linear(self, name, x):
        return x @ self.t[name + ".weight"].T + self.t[name + ".bias"]

    def rope(self, x):
        angle = torch.arange(x.shape[0])[:, None] * self.frequencies
        cosine, sine = (f(angle)[:, None] * self.concentration for f in (torch.cos, torch.sin))
        a, b = x.chunk(2, -1)
        return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)

    def stored(self, name, x, fp8):
        self.most[name] = x.abs().max().item()
        if not fp8:
            return x
        scale = 2.0 ** self.t[name].log2().ceil()
        return (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale

    def attention(self, p, x, window, fp8):
        c, n = self.c, x.shape[0]
        q, k, v = (self.linear(f"{p}self_attn.{which}_proj", x).reshape(n, -1, c["head_dim"]) for which in "qkv")
        k = self.stored(p + "self_attn.k_scale", self.rope(k), fp8)
        v = self.stored(p + "self_attn.v_scale", v, fp8)
        group = c["num_attention_heads"] // c["num_key_value_heads"]
        k, v = (part.repeat_interleave(group, 1) for part in (k, v))
        scores = torch.einsum("qhd,khd->hqk", self.rope(q), k) * c["head_dim"] ** -.5
        behind = torch.arange(n)[:, None] - torch.arange(n)
        scores = scores.masked_fill((behind < 0) | (behind >= (window or n)), -torch.inf)
        sinks = self.t[p + "self_attn.sinks"][:, None, None].expand(-1, n, 1)
        weights = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
        return self.linear(p + "self_attn.o_proj", torch.einsum("hqk,khd->qhd", weights, v).flatten(1))

    def experts(self, p, x):
        logits, chosen = self.linear(p + "mlp.router", x).topk(self.c["num_experts_per_tok"], -1)
        weights, limit = logits.softmax(-1), self.c["swiglu_limit"]
        p += "mlp.experts."
        h = torch.einsum("tkrc,tc->tkr", self.t[p + "gate_up_proj"][chosen], x) + self.t[p + "gate_up_proj_bias"][chosen]
        gate, up = h[..., ::2].clamp(max=limit), h[..., 1::2].clamp(-limit, limit)
        u = gate * torch.sigmoid(1.702 * gate) * (up + 1)
        y = torch.einsum("tkrc,tkc->tkr", self.t[p + "down_proj"][chosen], u) + self.t[p + "down_proj_bias"][chosen]
        return (weights[..., None] * y).sum(1)

    def run(self, tokens, fp8=False):
        """Logits, and the input of each layer."""
        x, inputs = self.t["model.embed_tokens.weight"][tokens], []
        for l, block in enumerate(self.c["block_configs"]):
            inputs.append(x)
            p, eps = f"model.layers.{l}.", self.c["rms_norm_eps"]
            x = x + self.attention(p, norm(x, self.t[p + "input_layernorm.weight"], eps), block["sliding_window"], fp8)
            x = x + self.experts(p, norm(x, self.t[p + "post_attention_layernorm.weight"], eps))
        return norm(x, self.t["model.norm.weight"], eps) @ self.t["lm_head.weight"].T, torch.stack(inputs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    directory = parser.parse_args().out / "puzzle"
    directory.mkdir(parents=True, exist_ok=True)
    config = config_json(CASE)
    for of_blocks in ("num_local_experts", "sliding_window"):
        del config[of_blocks]
    config |= {"architectures": ["GptOssPuzzleForCausalLM"], "model_type": "gpt_oss_puzzle",
               "layer_types": ["full_attention" if w is None else "sliding_attention" for w in WINDOWS],
               "block_configs": [{"num_local_experts": n, "sliding_window": w} for n, w in zip(CASE["experts"], WINDOWS)]}
    config["rope_scaling"]["factor"] = 48.0
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    rng = np.random.default_rng(2001)
    tensors = random_checkpoint(CASE, rng)
    for name in tensors:
        for which, by in (("q", 1 / KEYS), ("k", KEYS), ("v", VALUES)):
            if f"self_attn.{which}_proj" in name:
                tensors[name] *= by
        if "o_proj.weight" in name:
            tensors[name] /= VALUES
    model = Model(config, tensors)
    tokens = torch.from_numpy(rng.integers(0, CASE["vocab"], PROMPT))
    gap = torch.inf
    with torch.no_grad():
        for _ in range(ANSWER):
            best = model.run(tokens)[0][-1].topk(2)
            gap = min(gap, (best.values[0] - best.values[1]).item())
            tokens = torch.cat([tokens, best.indices[:1]])
        logits, hidden = model.run(tokens)
        for name, most in model.most.items():
            tensors[name] = model.t[name] = torch.tensor(most / 448)
        fp8 = model.run(tokens, fp8=True)[0]
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    at = torch.tensor(POSITIONS)
    save_file({"tokens": tokens.int(), "answer": tokens[PROMPT:].int().clone(), "positions": at.int(), "logits": logits[at],
               "fp8_logits": fp8[at], "hidden": hidden[:, at].contiguous()}, directory / "golden.safetensors",
              metadata={"made_by": "tools/make_puzzle_goldens.py", "torch": torch.__version__})
    print(f"puzzle: smallest gap of a greedy token {gap:.2e}, fp8 differs by {(fp8 - logits).norm() / logits.norm():.3f}, "
          f"keys to {max(v for n, v in model.most.items() if 'k_scale' in n):.0f}")


if __name__ == "__main__":
    main()
