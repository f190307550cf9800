"""gpt-oss in PyTorch, small enough to train: the arithmetic of openai/gpt-oss gpt_oss/torch/model.py, experts in MXFP4."""
import contextlib
import dataclasses
import json
import math

import torch
from torch import nn
from torch.nn import functional as F

WINDOW = 128
ROPE_THETA, ROPE_FACTOR, ROPE_ORIGINAL, ROPE_FAST, ROPE_SLOW = 150000.0, 32.0, 4096, 32.0, 1.0
SWIGLU_ALPHA, SWIGLU_LIMIT = 1.702, 7.0
PAD_KEYS = 8  # one key carries the sink; eight keep the bias rows aligned for the fused kernel


@dataclasses.dataclass(frozen=True)
class Config:
    vocab: int = 4096
    hidden: int = 256
    inter: int = 192
    layers: int = 8
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 64
    experts: int = 8
    topk: int = 4


# ---- MXFP4 ---------------------------------------------------------------------------------------------------------------------

def _round_e2m1(a):
    """Nearest of 0 .5 1 1.5 2 3 4 6 for a >= 0."""
    step = torch.where(a < 2, 0.5, torch.where(a < 4, 1.0, 2.0))
    return torch.clamp(torch.round(a / step) * step, max=6.0)


def quantise(w):
    """(values on the MXFP4 grid, block exponents). Of the exponents floor(log2 amax)-2 and one more, the one with the smaller error."""
    blocks = w.detach().float().reshape(*w.shape[:-1], w.shape[-1] // 32, 32)
    amax = blocks.abs().amax(-1, keepdim=True)
    low = torch.clamp(torch.floor(torch.log2(torch.clamp(amax, min=1e-30))) - 2, -60, 60)
    best = None
    for exponent in (low, low + 1):
        scale = torch.exp2(exponent)
        value = torch.sign(blocks) * _round_e2m1(blocks.abs() / scale) * scale
        error = (value - blocks).square().sum(-1, keepdim=True)
        best = (value, exponent, error) if best is None else tuple(torch.where(error < best[2], a, b) for a, b in zip((value, exponent, error), best))
    return best[0].reshape(w.shape), best[1].squeeze(-1)


def pack_mxfp4(w):
    """blocks u8 [..., K/32, 16] (low nibble = element 2j) and scales u8 [..., K/32]."""
    value, exponent = quantise(w)
    grid = value.reshape(*exponent.shape, 32) / torch.exp2(exponent)[..., None]
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], device=w.device)
    code = torch.searchsorted(table, grid.abs().contiguous()) + 8 * (grid < 0)
    blocks = code[..., 0::2] | (code[..., 1::2] << 4)
    return blocks.to(torch.uint8), (exponent + 127).to(torch.uint8)


def unpack_mxfp4(blocks, scales):
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], device=blocks.device)
    codes = torch.stack([blocks & 15, blocks >> 4], -1).reshape(*blocks.shape[:-1], 32).long()
    value = table[codes] * torch.exp2(scales.float() - 127)[..., None]
    return value.reshape(*value.shape[:-2], -1)


# ---- layers --------------------------------------------------------------------------------------------------------------------

def rope_tables(tokens, head_dim, device):
    i = torch.arange(head_dim // 2, dtype=torch.float64)
    freq = ROPE_THETA ** (2 * i / head_dim)
    low, high = (head_dim / 2 * math.log(ROPE_ORIGINAL / (turns * 2 * math.pi)) / math.log(ROPE_THETA) for turns in (ROPE_FAST, ROPE_SLOW))
    ramp = torch.clamp((i - low) / (high - low), 0, 1)
    inv_freq = (ramp / (ROPE_FACTOR * freq) + (1 - ramp) / freq).float()
    angle = torch.arange(tokens).float()[:, None] * inv_freq
    concentration = 0.1 * math.log(ROPE_FACTOR) + 1
    return (angle.cos() * concentration).to(device), (angle.sin() * concentration).to(device)


def rotate(x, cos, sin):
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def rms_norm(x, scale):
    t = x.float()
    return (t * torch.rsqrt(t.square().mean(-1, keepdim=True) + 1e-5) * scale).to(x.dtype)


def plain_attention(q, k, v, sinks, allowed):
    """The definition: one extra softmax column per head that carries no value. sinks None leaves the column out."""
    scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(~allowed, -math.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks[None, :, None, None].expand(*scores.shape[:3], 1).to(scores.dtype)], -1)
    return torch.softmax(scores, -1)[..., :k.shape[2]] @ v


def fused_attention(q, k, v, sinks, bias):
    """The same through one fused kernel: an extra key whose product with an extra query coordinate is the sink, with value 0."""
    heads, dim = q.shape[1], q.shape[-1]
    one = torch.zeros(8, device=q.device, dtype=q.dtype)
    one[0] = 1
    q = torch.cat([q, one.expand(*q.shape[:-1], 8)], -1)
    sink_key = (sinks[:, None] * dim ** 0.5 * one.float())[None, :, None, :].to(k.dtype)
    sink_key = F.pad(sink_key, (dim, 0, 0, PAD_KEYS - 1)).expand(k.shape[0], heads, PAD_KEYS, dim + 8)
    k = torch.cat([F.pad(k, (0, 8)), sink_key], 2)
    v = F.pad(v, (0, 8, 0, PAD_KEYS))
    bias = bias.expand(q.shape[0], heads, *bias.shape[2:])
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=dim ** -0.5)[..., :dim]
    return (torch.softmax((q @ k.transpose(-1, -2)) * dim ** -0.5 + bias, -1) @ v)[..., :dim]


def blocked(x):
    """[B,H,T,D] -> keys of every 128-token block with the block before it: [B*T/128, H, 256, D]."""
    b, h, t, d = x.shape
    x = x.reshape(b, h, t // WINDOW, WINDOW, d)
    x = torch.cat([F.pad(x, (0, 0, 0, 0, 1, 0))[:, :, :-1], x], 3)
    return x.transpose(1, 2).reshape(-1, h, 2 * WINDOW, d)


class Biases:
    """Attention biases of one batch of packed rows, for the fused kernel."""

    def __init__(self, docs, dtype):
        b, t = docs.shape
        position = torch.arange(t, device=docs.device)
        full = (docs[:, :, None] == docs[:, None, :]) & (position[:, None] >= position)
        blocks = docs.reshape(b, t // WINDOW, WINDOW)
        before = F.pad(blocks, (0, 0, 1, 0), value=-1)[:, :-1]
        keys = torch.cat([before, blocks], 2)
        distance = torch.arange(WINDOW, device=docs.device)[:, None] + WINDOW - torch.arange(2 * WINDOW, device=docs.device)
        near = (blocks[..., None] == keys[:, :, None, :]) & (distance >= 0) & (distance < WINDOW)
        self.full, self.window = self._bias(full, dtype)[:, None], self._bias(near.reshape(-1, WINDOW, 2 * WINDOW), dtype)[:, None]

    @staticmethod
    def _bias(allowed, dtype):
        allowed = torch.cat([allowed, torch.ones_like(allowed[..., :1]), torch.zeros_like(allowed[..., :PAD_KEYS - 1])], -1)
        return torch.zeros(allowed.shape, device=allowed.device, dtype=dtype).masked_fill(~allowed, -math.inf)


class Layer(nn.Module):
    def __init__(self, c, index, sink):
        super().__init__()
        self.c, self.sliding = c, index % 2 == 0
        q_dim, kv_dim = c.heads * c.head_dim, c.kv_heads * c.head_dim
        self.input_norm, self.post_norm = nn.Parameter(torch.ones(c.hidden)), nn.Parameter(torch.ones(c.hidden))
        self.q, self.k, self.v = nn.Linear(c.hidden, q_dim), nn.Linear(c.hidden, kv_dim), nn.Linear(c.hidden, kv_dim)
        self.o = nn.Linear(q_dim, c.hidden)
        self.sinks = nn.Parameter(torch.full((c.heads,), sink))
        self.router = nn.Linear(c.hidden, c.experts)
        self.gate_up = nn.Parameter(torch.randn(c.experts, 2 * c.inter, c.hidden) * 0.04)
        self.gate_up_bias = nn.Parameter(torch.zeros(c.experts, 2 * c.inter))
        self.down = nn.Parameter(torch.randn(c.experts, c.hidden, c.inter) * 0.04 / math.sqrt(2 * c.layers))
        self.down_bias = nn.Parameter(torch.zeros(c.experts, c.hidden))
        for linear, std in ((self.q, 0.04), (self.k, 0.04), (self.v, 0.04), (self.o, 0.04 / math.sqrt(2 * c.layers)), (self.router, 0.04)):
            nn.init.normal_(linear.weight, std=std)
            nn.init.zeros_(linear.bias)

    def attend(self, x, rope, masks, use_sinks):
        c, (b, t, _) = self.c, x.shape
        q, k, v = (linear(x).view(b, t, -1, c.head_dim).transpose(1, 2) for linear in (self.q, self.k, self.v))
        q, k = rotate(q, *rope), rotate(k, *rope)
        k, v = (a.repeat_interleave(c.heads // c.kv_heads, 1) for a in (k, v))
        if not isinstance(masks, Biases):
            out = plain_attention(q, k, v, self.sinks if use_sinks else None, masks[0 if self.sliding else 1])
        elif self.sliding:
            split = q.reshape(b, c.heads, t // WINDOW, WINDOW, c.head_dim).transpose(1, 2).reshape(-1, c.heads, WINDOW, c.head_dim)
            out = fused_attention(split, blocked(k), blocked(v), self.sinks, masks.window)
            out = out.reshape(b, t // WINDOW, c.heads, WINDOW, c.head_dim).transpose(1, 2).reshape(b, c.heads, t, c.head_dim)
        else:
            out = fused_attention(q, k, v, self.sinks, masks.full)
        return self.o(out.transpose(1, 2).reshape(b, t, -1))

    def experts(self, x, qat):
        """All experts for all tokens: at this size two dense products beat sorting tokens. Returns the output and the balance loss."""
        c, (b, t, _) = self.c, x.shape
        logits = self.router(x).float()
        top, chosen = logits.topk(c.topk, -1)
        weight = torch.zeros_like(logits).scatter(-1, chosen, torch.softmax(top, -1))
        used = (weight > 0).float().mean((0, 1)) / c.topk
        balance = c.experts * (used * torch.softmax(logits, -1).mean((0, 1))).sum()
        gate_up, down = self.gate_up, self.down
        if qat is not None:  # straight-through: the forward sees the grid, the gradient does not
            gate_up, down = (w + qat * (quantise(w)[0] - w).detach() for w in (gate_up, down))
        gate = F.linear(x, gate_up[:, 0::2].reshape(-1, c.hidden), self.gate_up_bias[:, 0::2].reshape(-1)).clamp(max=SWIGLU_LIMIT)
        up = F.linear(x, gate_up[:, 1::2].reshape(-1, c.hidden), self.gate_up_bias[:, 1::2].reshape(-1)).clamp(-SWIGLU_LIMIT, SWIGLU_LIMIT)
        u = (gate * torch.sigmoid(SWIGLU_ALPHA * gate) * (up + 1)).view(b, t, c.experts, c.inter)
        u = (u * weight[..., None].to(u.dtype)).reshape(b, t, -1)
        return F.linear(u, down.permute(1, 0, 2).reshape(c.hidden, -1)) + weight.to(u.dtype) @ self.down_bias.to(u.dtype), balance


class Model(nn.Module):
    def __init__(self, c, sink=3.0):
        super().__init__()
        self.c = c
        self.embed = nn.Parameter(torch.randn(c.vocab, c.hidden) * 0.04)
        self.head = nn.Parameter(torch.randn(c.vocab, c.hidden) * 0.02)
        self.norm = nn.Parameter(torch.ones(c.hidden))
        self.layers = nn.ModuleList(Layer(c, i, sink) for i in range(c.layers))
        self.use_sinks = True

    def forward(self, tokens, docs=None, qat=None, dropout=0.0):
        """docs: packed rows and the fused kernel; without, one document a row and the plain definition. Returns logits and balance."""
        t = tokens.shape[1]
        rope = rope_tables(t, self.c.head_dim, tokens.device)
        if docs is not None:
            masks = Biases(docs, torch.bfloat16 if tokens.is_cuda else torch.float32)
        else:
            distance = torch.arange(t, device=tokens.device)[:, None] - torch.arange(t, device=tokens.device)
            masks = ((distance >= 0) & (distance < WINDOW), distance >= 0)
        x = F.dropout(F.embedding(tokens, self.embed), dropout)
        balance = 0.0
        for layer in self.layers:
            x = x + F.dropout(layer.attend(rms_norm(x, layer.input_norm), rope, masks, self.use_sinks), dropout)
            y, loss = layer.experts(rms_norm(x, layer.post_norm), qat)
            x, balance = x + F.dropout(y, dropout), balance + loss
        return F.linear(rms_norm(x, self.norm), self.head), balance / self.c.layers


# ---- files ---------------------------------------------------------------------------------------------------------------------

_DTYPES = {torch.bfloat16: "BF16", torch.uint8: "U8", torch.float32: "F32", torch.int64: "I64", torch.bool: "BOOL"}


def save_safetensors(path, tensors):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, t in tensors.items():
        size = t.numel() * t.element_size()
        header[name] = {"dtype": _DTYPES[t.dtype], "shape": list(t.shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for t in tensors.values():
            t = t.cpu().contiguous()
            f.write((t.view(torch.int16) if t.dtype == torch.bfloat16 else t).numpy().tobytes())


def load_safetensors(path):
    data = open(path, "rb").read()
    start = 8 + int.from_bytes(data[:8], "little")
    out = {}
    for name, e in json.loads(data[8:start]).items():
        if name != "__metadata__":
            raw = torch.frombuffer(bytearray(data[start + e["data_offsets"][0]:start + e["data_offsets"][1]]), dtype=torch.int16 if e["dtype"] == "BF16" else torch.uint8)
            out[name] = (raw.view(torch.bfloat16) if e["dtype"] == "BF16" else raw.view(torch.float32) if e["dtype"] == "F32" else raw).reshape(e["shape"])
    return out


def layer_names(n):
    """Hugging Face name -> parameter of Layer, for everything kept in bf16."""
    p = f"model.layers.{n}."
    names = {p + "input_layernorm.weight": "input_norm", p + "post_attention_layernorm.weight": "post_norm", p + "self_attn.sinks": "sinks",
             p + "mlp.experts.gate_up_proj_bias": "gate_up_bias", p + "mlp.experts.down_proj_bias": "down_bias"}
    for hf, own in (("self_attn.q_proj", "q"), ("self_attn.k_proj", "k"), ("self_attn.v_proj", "v"), ("self_attn.o_proj", "o"), ("mlp.router", "router")):
        names[f"{p}{hf}.weight"], names[f"{p}{hf}.bias"] = f"{own}.weight", f"{own}.bias"
    return names


def export(model, out):
    """Writes the weights as OpenAI lays them out: two shards and their index."""
    c, state = model.c, {k: v.detach() for k, v in model.state_dict().items()}
    shards = [{"model.embed_tokens.weight": state["embed"].bfloat16()}, {}]
    for n in range(c.layers):
        shard = shards[0 if n < c.layers // 2 else 1]
        for hf, own in layer_names(n).items():
            shard[hf] = state[f"layers.{n}.{own}"].bfloat16()
        for hf, own in (("gate_up_proj", "gate_up"), ("down_proj", "down")):
            p = f"model.layers.{n}.mlp.experts.{hf}"
            shard[p + "_blocks"], shard[p + "_scales"] = pack_mxfp4(state[f"layers.{n}.{own}"])
    shards[1].update({"model.norm.weight": state["norm"].bfloat16(), "lm_head.weight": state["head"].bfloat16()})
    files, total = {}, 0
    for i, shard in enumerate(shards):
        name = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        save_safetensors(out / name, shard)
        files.update({k: name for k in shard})
        total += sum(t.numel() * t.element_size() for t in shard.values())
    (out / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": dict(sorted(files.items()))}, indent=2) + "\n")
    (out / "config.json").write_text(json.dumps(hf_config(c), indent=2) + "\n")
    first = c.vocab - 10
    generation = {"bos_token_id": first, "do_sample": True, "eos_token_id": [first + 2, first + 1, first + 8], "pad_token_id": first + 1, "transformers_version": "4.55.0.dev0"}
    (out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def hf_config(c):
    first = c.vocab - 10  # the specials are the last ten ids, in the order of tiny_data.SPECIALS
    return {
        "architectures": ["GptOssForCausalLM"], "attention_bias": True, "attention_dropout": 0.0, "eos_token_id": first + 2, "experts_per_token": c.topk, "head_dim": c.head_dim,
        "hidden_act": "silu", "hidden_size": c.hidden, "initial_context_length": ROPE_ORIGINAL, "initializer_range": 0.02, "intermediate_size": c.inter,
        "layer_types": ["sliding_attention" if n % 2 == 0 else "full_attention" for n in range(c.layers)], "max_position_embeddings": 131072, "model_type": "gpt_oss",
        "num_attention_heads": c.heads, "num_experts_per_tok": c.topk, "num_hidden_layers": c.layers, "num_key_value_heads": c.kv_heads, "num_local_experts": c.experts,
        "output_router_logits": False, "pad_token_id": first + 1,
        "quantization_config": {"modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"], "quant_method": "mxfp4"},
        "rms_norm_eps": 1e-05,
        "rope_scaling": {"beta_fast": ROPE_FAST, "beta_slow": ROPE_SLOW, "factor": ROPE_FACTOR, "original_max_position_embeddings": ROPE_ORIGINAL, "rope_type": "yarn", "truncate": False},
        "rope_theta": int(ROPE_THETA), "router_aux_loss_coef": 0.9, "sliding_window": WINDOW, "swiglu_limit": SWIGLU_LIMIT, "tie_word_embeddings": False,
        "transformers_version": "4.55.0.dev0", "use_cache": True, "vocab_size": c.vocab}


def load_exported(folder, c, device):
    """The exported files as a float32 model: what every later check measures."""
    tensors = {}
    for path in sorted(folder.glob("model-*.safetensors")):
        tensors.update(load_safetensors(path))
    state = {"embed": tensors["model.embed_tokens.weight"], "norm": tensors["model.norm.weight"], "head": tensors["lm_head.weight"]}
    for n in range(c.layers):
        state.update({f"layers.{n}.{own}": tensors[hf] for hf, own in layer_names(n).items()})
        for hf, own in (("gate_up_proj", "gate_up"), ("down_proj", "down")):
            p = f"model.layers.{n}.mlp.experts.{hf}"
            state[f"layers.{n}.{own}"] = unpack_mxfp4(tensors[p + "_blocks"], tensors[p + "_scales"])
    model = Model(c)
    model.load_state_dict({k: v.float() for k, v in state.items()})
    return model.to(device).eval()


@contextlib.contextmanager
def without_sinks(model):
    model.use_sinks = False
    try:
        yield
    finally:
        model.use_sinks = True
