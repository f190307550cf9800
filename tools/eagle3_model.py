"""EAGLE-3 heads in PyTorch, float32: every published variant, P-EAGLE's included, written from the descriptions of the format
(docs/speculation.md). What tools/train_eagle.py trains and tools/make_eagle_goldens.py computes goldens with."""
import math

import torch
from torch import nn
from torch.nn import functional as F


def norm(x, weight, eps):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def inverse_frequencies(config, dim):
    """Radians per position of each pair of dimensions, and what cosine and sine are multiplied with."""
    theta, scaling = config.get("rope_theta", 10000.0), config.get("rope_scaling")
    if config.get("rope_parameters"):
        scaling = config["rope_parameters"]
        theta = scaling.get("rope_theta", theta)
    freq = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    kind = (scaling or {}).get("rope_type", (scaling or {}).get("type", "default"))
    if kind == "default":
        return freq, 1.0
    factor, original = scaling["factor"], scaling["original_max_position_embeddings"]
    if kind == "llama3":
        turns = original * freq / (2 * math.pi)  # in the original context
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        keep = ((turns - low) / (high - low)).clamp(0, 1)
        return freq * keep + freq / factor * (1 - keep), 1.0
    assert kind == "yarn", kind
    low, high = (dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta)) for turns in (scaling.get("beta_fast", 32), scaling.get("beta_slow", 1)))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = ((torch.arange(dim // 2, dtype=torch.float64) - low) / max(high - low, 0.001)).clamp(0, 1)
    return freq / factor * ramp + freq * (1 - ramp), 0.1 * math.log(factor) + 1


class Head(nn.Module):
    """config: as in the published config.json, without `transformer_layer_config`. tensors: by their published names."""

    def __init__(self, config, tensors, target):
        super().__init__()
        c = self.c = dict(config)
        self.tensors = {k: v if v.dtype in (torch.int64, torch.bool) else nn.Parameter(v.float()) for k, v in tensors.items()}
        for name, tensor in self.tensors.items():
            if isinstance(tensor, nn.Parameter):
                self.register_parameter(name.replace(".", "|"), tensor)
        self.target = target  # embed, head, norm: what the head may take from the target
        self.hidden, self.heads, self.kv_heads = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"]
        self.dim = c.get("head_dim") or self.hidden // self.heads
        self.layers, self.eps = c.get("num_hidden_layers", 1), c["rms_norm_eps"]
        self.frequencies, self.concentration = inverse_frequencies(c, self.dim)

    def flag(self, name, otherwise=False):
        inner = self.c.get("eagle_config") or {}
        return inner.get(name, self.c.get(name, otherwise))

    def get(self, name):
        return self.tensors.get(name)

    def layer(self, n, name):
        found = self.get(f"layers.{n}.{name}")
        return self.get(f"midlayer.{name}") if found is None and n == 0 else found

    def fuse(self, taps):
        """taps [..., count, target hidden] -> the feature that the head reads."""
        if not self.flag("use_aux_hidden_state", True):
            return norm(taps[..., 0, :], self.target["norm"], 1e-5)
        if self.flag("fc_norm") or self.flag("use_aux_norm"):
            taps = torch.stack([norm(taps[..., i, :], self.get(f"fc_norm.{i}.weight"), self.eps) for i in range(taps.shape[-2])], -2)
        z = taps.flatten(-2)
        if self.flag("norm_before_fc"):
            z = norm(z, self.get("input_norm.weight"), self.eps)
        return F.linear(z, self.get("fc.weight"))

    def rotate(self, x, positions):
        angle = positions[:, None].double() * self.frequencies
        cos, sin = ((f(angle) * self.concentration).float()[:, None, :] for f in (torch.cos, torch.sin))
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def project(self, n, name, x):
        return F.linear(x, self.layer(n, f"{name}.weight"), self.layer(n, f"{name}.bias"))

    def attend(self, q, keys, values, allowed):
        """q [..., T, heads, dim]; keys, values [..., S, kv_heads, dim]; allowed [T, S]."""
        keys, values = (x.repeat_interleave(self.heads // self.kv_heads, -2) for x in (keys, values))
        scores = torch.einsum("...thd,...shd->...hts", q, keys) * self.dim ** -0.5
        return torch.einsum("...hts,...shd->...thd", scores.masked_fill(~allowed, -math.inf).softmax(-1), values).flatten(-2)

    def pass_over(self, tokens, features, positions, cache, attention=None):
        """tokens [..., T] and features [..., T, hidden] at positions [T], after what the cache (a list per layer of [keys, values]) holds
        with its positions. Returns (normed, fed back). attention: another way to attend, for training."""
        embed = self.get("embed_tokens.weight")
        e = F.embedding(tokens, self.target["embed"] if embed is None else embed)
        residual = features
        for n in range(self.layers):
            if n == 0:
                h = norm(residual, self.layer(n, "hidden_norm.weight"), self.eps)
                x = torch.cat([norm(e, self.layer(n, "input_layernorm.weight"), self.eps), h], -1)
                if self.c.get("norm_before_residual", False):
                    residual = h
            else:
                x = norm(residual, self.layer(n, "input_layernorm.weight"), self.eps)
            q, k, v = (self.project(n, f"self_attn.{p}_proj", x).unflatten(-1, (-1, self.dim)) for p in "qkv")
            q, k = self.rotate(q, positions), self.rotate(k, positions)
            if attention is not None:
                out = attention(n, q, k, v)
            else:
                if cache[n]:
                    k, v = torch.cat([cache[n][0], k], -3), torch.cat([cache[n][1], v], -3)
                cache[n] = [k, v]
                at = torch.cat([cache["positions"], positions])
                distance = positions[:, None] - at[None, :]
                window = self.c.get("sliding_window") or math.inf
                out = self.attend(q, k, v, (distance >= 0) & (distance < window))
            residual = residual + self.project(n, "self_attn.o_proj", out)
            x = norm(residual, self.layer(n, "post_attention_layernorm.weight"), self.eps)
            residual = residual + self.project(n, "mlp.down_proj", F.silu(self.project(n, "mlp.gate_proj", x)) * self.project(n, "mlp.up_proj", x))
        if attention is None:
            cache["positions"] = torch.cat([cache["positions"], positions])
        normed = norm(residual, self.get("norm.weight"), self.eps)
        return normed, normed if self.flag("norm_output") else residual

    def mask_token(self):
        """P-EAGLE: the token of rows whose token is not known. None: the head drafts one token after another."""
        return next((self.c[key] for key in ("mask_token_id", "pard_token", "ptd_token_id") if key in self.c), None)

    def pass_over_masks(self, rows, position, cache):
        """Rows of tokens that are not known, from `position` on, all in one pass. Returns normed."""
        taps = self.get("mask_hidden").reshape(self.get("fc.weight").shape[1] // self.hidden, -1)
        feature = self.fuse(taps).expand(rows, -1)
        return self.pass_over(torch.full((rows,), self.mask_token()), feature, position + torch.arange(rows), cache)[0]

    def empty_cache(self):
        return {"positions": torch.zeros(0, dtype=torch.long), **{n: [] for n in range(self.layers)}}

    def logits(self, normed):
        own = self.get("lm_head.weight")
        return F.linear(normed, self.target["head"] if own is None else own) * self.c.get("logit_scale", 1.0)

    def target_ids(self, draft_ids):
        d2t = self.get("d2t")
        return draft_ids if d2t is None else draft_ids + d2t[draft_ids]
