"""Makes tests/data/eagle3: small EAGLE-3 heads of every published variant with random weights, and what tools/eagle3_model.py computes of them.

  python tools/make_eagle_goldens.py --out tests/data/eagle3

Each folder NAME is a head as published, and NAME.safetensors beside it holds tokens [rows], positions [rows], residuals [rows, taps, hidden], logits [rows, draft
vocab], then what the last row drafts on its own: drafts and draft_logits, of the row behind each draft; of a P-EAGLE head (p_eagle*) of the rows of mask tokens,
which make all drafts but the first. target.safetensors is the target that heads without embedding share.
"""
import argparse
import json
import pathlib

import torch

import eagle3_model
import tiny_model

HIDDEN, INTER, HEADS, KV, DIM, VOCAB, DRAFT_VOCAB, TAPS, ROWS, GAP, CHAIN = 32, 40, 4, 2, 8, 48, 20, 3, 9, 4, 4
BASE = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": INTER, "num_hidden_layers": 1, "num_attention_heads": HEADS,
        "num_key_value_heads": KV, "head_dim": DIM, "vocab_size": VOCAB, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "hidden_act": "silu", "torch_dtype": "bfloat16"}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 64, "truncate": False, "rope_theta": 150000}
VARIANTS = {
    "plain": {"draft_vocab_size": DRAFT_VOCAB, "rope_theta": 10000.0, "rope_scaling": None, "eagle_aux_hidden_state_layer_ids": [1, 4, 6]},
    "norm_before_fc": {"draft_vocab_size": None, "rope_theta": 500000.0, "rope_scaling": LLAMA3,
                       "eagle_config": {"eagle_aux_hidden_state_layer_ids": [4, 6, 8], "use_aux_hidden_state": True, "norm_before_fc": True}},
    "fc_norm": {"draft_vocab_size": DRAFT_VOCAB, "fc_norm": True, "norm_output": True, "sliding_window": 5, "num_aux_hidden_states": 3, "logit_scale": 0.5},
    "final_state": {"draft_vocab_size": None, "eagle_config": {"use_aux_hidden_state": False}},
    "two_layers": {"draft_vocab_size": DRAFT_VOCAB, "num_hidden_layers": 2, "rope_parameters": YARN, "attention_bias": True, "mlp_bias": True},
    "qkv_bias": {"draft_vocab_size": VOCAB, "qkv_bias": True, "use_aux_norm": True},
    "speculators": {"draft_vocab_size": DRAFT_VOCAB, "norm_before_fc": True, "norm_before_residual": True, "eagle_aux_hidden_state_layer_ids": [2, 4, 5]},
    "p_eagle": {"draft_vocab_size": VOCAB, "num_hidden_layers": 3, "rope_theta": 500000.0, "rope_scaling": LLAMA3, "ptd_token_id": 47},
    "p_eagle_speculators": {"draft_vocab_size": DRAFT_VOCAB, "num_hidden_layers": 2, "norm_before_fc": True, "norm_before_residual": False, "sliding_window": 6,
                            "mask_token_id": 46, "eagle_aux_hidden_state_layer_ids": [2, 4, 5]},
}
OWN_EMBEDDING = ("plain", "two_layers", "qkv_bias", "p_eagle")


def random(*shape, std=0.2):
    return (torch.randn(*shape) * std).bfloat16()


def tensors_of(name, c):
    inner = {**c, **(c.get("eagle_config") or {})}
    scale = lambda n: (1 + 0.3 * torch.randn(n)).bfloat16()
    tensors = {"norm.weight": scale(HIDDEN)}
    if inner.get("use_aux_hidden_state", True):
        tensors["fc.weight"] = random(HIDDEN, TAPS * HIDDEN)
    if inner.get("norm_before_fc"):
        tensors["input_norm.weight"] = scale(TAPS * HIDDEN)
    if inner.get("fc_norm") or inner.get("use_aux_norm"):
        tensors.update({f"fc_norm.{i}.weight": scale(HIDDEN) for i in range(TAPS)})
    for n in range(c["num_hidden_layers"]):
        p, read = ("midlayer." if n == 0 and not name.endswith("speculators") else f"layers.{n}."), (2 if n == 0 else 1) * HIDDEN
        shapes = {"self_attn.q_proj": (HEADS * DIM, read), "self_attn.k_proj": (KV * DIM, read), "self_attn.v_proj": (KV * DIM, read), "self_attn.o_proj": (HIDDEN, HEADS * DIM),
                  "mlp.gate_proj": (INTER, HIDDEN), "mlp.up_proj": (INTER, HIDDEN), "mlp.down_proj": (HIDDEN, INTER)}
        for part, shape in shapes.items():
            # More is heard of the text, so that a head's rows of mask tokens say different things.
            tensors[f"{p}{part}.weight"] = random(*shape, std=0.25 if name.startswith("p_eagle") and part.startswith("self_attn") else 0.2)
            biased = c.get("mlp_bias") if part.startswith("mlp") else c.get("attention_bias") or (c.get("qkv_bias") and "o_proj" not in part)
            if biased:
                tensors[f"{p}{part}.bias"] = random(shape[0])
        for part in ("input_layernorm", "post_attention_layernorm") + (("hidden_norm",) if n == 0 else ()):
            tensors[f"{p}{part}.weight"] = scale(HIDDEN)
    if name in OWN_EMBEDDING:
        tensors["embed_tokens.weight"] = random(VOCAB, HIDDEN, std=1.0)
    if c.get("draft_vocab_size"):
        tensors["lm_head.weight"] = random(c["draft_vocab_size"], HIDDEN, std=1.0)
        if c["draft_vocab_size"] < VOCAB:
            ids = torch.randperm(VOCAB)[:DRAFT_VOCAB].sort().values
            tensors["d2t"] = ids - torch.arange(DRAFT_VOCAB)
            tensors["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, ids, True)
    if name.startswith("p_eagle"):
        tensors["mask_hidden"] = random(*((1, 1) if name == "p_eagle" else (1,)), TAPS * HIDDEN, std=0.5)
    if name == "p_eagle":  # as published: maps that map nothing
        tensors.update({"d2t": torch.zeros(VOCAB, dtype=torch.long), "t2d": torch.ones(VOCAB, dtype=torch.bool)})
    return tensors


@torch.no_grad()
def golden(head, taps):
    tokens = torch.randint(VOCAB, (ROWS,))
    positions = torch.arange(ROWS) + (torch.arange(ROWS) >= GAP) * 7  # some positions have no row
    residuals = random(ROWS, taps, HIDDEN, std=2.0).float()
    cache, logits = head.empty_cache(), []
    for rows in (slice(0, GAP), slice(GAP, ROWS)):
        normed, feature = head.pass_over(tokens[rows], head.fuse(residuals[rows]), positions[rows], cache)
        logits.append(head.logits(normed))
    drafts, draft_logits, at, last = [], [], positions[-1:], logits[-1][-1]
    feature = feature[-1:]
    if head.mask_token() is not None:
        draft_logits = list(head.logits(head.pass_over_masks(CHAIN - 1, at + 1, cache)))
        drafts = [head.target_ids(row.argmax()) for row in [last, *draft_logits]]
    for _ in range(CHAIN - len(drafts)):
        drafts.append(head.target_ids(last.argmax()))
        normed, feature = head.pass_over(drafts[-1][None], feature, at := at + 1, cache)
        draft_logits.append(last := head.logits(normed)[0])
    return {"tokens": tokens, "positions": positions, "residuals": residuals, "logits": torch.cat(logits), "drafts": torch.stack(drafts), "draft_logits": torch.stack(draft_logits)}


def published(name, c):
    if not name.endswith("speculators"):
        return c
    outer = ("architectures", "draft_vocab_size", "norm_before_fc", "norm_before_residual", "mask_token_id", "eagle_aux_hidden_state_layer_ids", "torch_dtype")
    architecture, kind = ("PEagleDraftModel", "peagle") if "mask_token_id" in c else ("Eagle3DraftModel", "eagle3")
    return {**{k: c[k] for k in outer if k in c}, "architectures": [architecture], "speculators_model_type": kind, "speculators_version": "0.4.0", "target_hidden_size": None,
            "transformer_layer_config": {k: v for k, v in c.items() if k not in outer}}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", type=pathlib.Path, required=True)
    args = ap.parse_args()
    torch.manual_seed(3)
    args.out.mkdir(parents=True, exist_ok=True)
    target = {"embed": random(VOCAB, HIDDEN, std=1.0), "head": random(VOCAB, HIDDEN, std=1.0), "norm": (1 + 0.3 * torch.randn(HIDDEN)).bfloat16()}
    tiny_model.save_safetensors(args.out / "target.safetensors", target)
    for name, changes in VARIANTS.items():
        c = {**BASE, **changes}
        tensors = tensors_of(name, c)
        head = eagle3_model.Head(c, tensors, {k: v.float() for k, v in target.items()})
        folder = args.out / name
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(published(name, c), indent=2) + "\n")
        tiny_model.save_safetensors(folder / "model.safetensors", tensors)
        taps = 1 if not head.flag("use_aux_hidden_state", True) else TAPS
        tiny_model.save_safetensors(args.out / f"{name}.safetensors", golden(head, taps))


if __name__ == "__main__":
    main()
