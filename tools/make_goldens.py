#!/usr/bin/env python3
"""Makes tests/data/parity: small random gpt-oss checkpoints and what transformers computes from them in float32.

Each case is a directory in OpenAI's Hugging Face layout (bf16 dense, MXFP4 experts) plus golden.safetensors:
  tokens [n] I32 · positions [p] I32 · logits [p, vocab] F32 · hidden [layers, p, hidden] F32 (input of each layer)
Oracle: transformers' GptOssForCausalLM, eager attention, float32, on the CPU, with the experts dequantised here.
Needs torch and transformers 5; run: python3 tools/make_goldens.py --out tests/data/parity
"""
import argparse
import json
import pathlib
import sys

import numpy as np
import torch
from safetensors.torch import save_file

# Codes 0..15 of E2M1: OCP MX v1.0, table of FP4 values.
E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], np.float32)

CASES = {
    # name: layers, hidden, inter, heads, kv_heads, head_dim, experts, vocab, prompt tokens, checked positions
    "window_e8": dict(layers=4, hidden=64, inter=96, heads=4, kv=2, head_dim=64, experts=8, vocab=160, tokens=300,
                      positions=[0, 1, 2, 31, 63, 126, 127, 128, 129, 130, 191, 255, 256, 257, 298, 299]),
    "experts_e32": dict(layers=3, hidden=96, inter=32, heads=8, kv=1, head_dim=32, experts=32, vocab=160, tokens=200,
                        positions=[0, 1, 5, 64, 127, 128, 129, 150, 198, 199]),
    "yarn_8k": dict(layers=2, hidden=64, inter=32, heads=4, kv=2, head_dim=64, experts=8, vocab=160, tokens=8300,
                    positions=[0, 127, 128, 1000, 2047, 4094, 4095, 4096, 4097, 4200, 6000, 8190, 8191, 8192, 8193,
                               8250, 8299]),
}


def config_json(c):
    return {
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "attention_bias": True,
        "attention_dropout": 0.0, "eos_token_id": c["vocab"] - 1, "pad_token_id": c["vocab"] - 2,
        "head_dim": c["head_dim"], "hidden_act": "silu", "hidden_size": c["hidden"], "initial_context_length": 4096,
        "initializer_range": 0.02, "intermediate_size": c["inter"],
        "layer_types": ["sliding_attention" if l % 2 == 0 else "full_attention" for l in range(c["layers"])],
        "max_position_embeddings": 131072, "num_attention_heads": c["heads"], "num_experts_per_tok": 4,
        "experts_per_token": 4, "num_hidden_layers": c["layers"], "num_key_value_heads": c["kv"],
        "num_local_experts": c["experts"], "output_router_logits": False, "rms_norm_eps": 1e-05,
        "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
                         "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": False},
        "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": c["vocab"],
        "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]},
    }


def random_checkpoint(c, rng):
    """Tensors as OpenAI ships them; scales chosen so that attention, routing, sinks and the clamps all matter."""
    h, q, kv, inter = c["hidden"], c["heads"] * c["head_dim"], c["kv"] * c["head_dim"], c["inter"]
    dense = lambda std, *shape: torch.from_numpy((rng.standard_normal(shape) * std).astype(np.float32)).bfloat16()
    t = {"model.embed_tokens.weight": dense(1, c["vocab"], h), "lm_head.weight": dense(h ** -.5, c["vocab"], h),
         "model.norm.weight": 1 + dense(.2, h)}
    for l in range(c["layers"]):
        p = f"model.layers.{l}."
        n = c["experts"][l] if isinstance(c["experts"], list) else c["experts"]
        t[p + "input_layernorm.weight"] = 1 + dense(.2, h)
        t[p + "post_attention_layernorm.weight"] = 1 + dense(.2, h)
        for name, rows, cols in (("q", q, h), ("k", kv, h), ("v", kv, h), ("o", h, q)):
            t[p + f"self_attn.{name}_proj.weight"] = dense(cols ** -.5, rows, cols)
            t[p + f"self_attn.{name}_proj.bias"] = dense(.2, rows)
        t[p + "self_attn.sinks"] = dense(2, c["heads"])
        t[p + "mlp.router.weight"] = dense(1.5 * h ** -.5, n, h)
        t[p + "mlp.router.bias"] = dense(.3, n)
        for name, rows, cols in (("gate_up", 2 * inter, h), ("down", h, inter)):
            # e2m1 codes of random bytes have rms 2.92; 2^-3 and 2^-2 bring gate/up past the clamp at 7 now and then.
            t[p + f"mlp.experts.{name}_proj_blocks"] = torch.from_numpy(
                rng.integers(0, 256, (n, rows, cols // 32, 16), dtype=np.uint8))
            t[p + f"mlp.experts.{name}_proj_scales"] = torch.from_numpy(
                rng.integers(121, 126 if name == "gate_up" else 124, (n, rows, cols // 32), dtype=np.uint8))
            t[p + f"mlp.experts.{name}_proj_bias"] = dense(.3, n, rows)
    return t


def dequantise(blocks, scales):
    """[E, rows, k/32, 16] codes and [E, rows, k/32] scales → [E, rows, k] float32; low nibble first."""
    b, s = blocks.numpy(), scales.numpy().astype(np.int32)
    codes = np.stack([b & 15, b >> 4], -1).reshape(*b.shape[:3], 32)
    return torch.from_numpy((E2M1[codes] * np.exp2(s - 127.0)[..., None]).astype(np.float32).reshape(*b.shape[:2], -1))


def reference_model(directory, tensors):
    from transformers import AutoConfig, GptOssForCausalLM
    config = AutoConfig.from_pretrained(directory)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config._attn_implementation = "eager"
    model = GptOssForCausalLM(config).float().eval()
    state = {}
    for name, tensor in tensors.items():
        if name.endswith("_blocks"):
            weight = dequantise(tensor, tensors[name.replace("_blocks", "_scales")])
            state[name.removesuffix("_blocks")] = weight.transpose(1, 2).contiguous()  # HF keeps [E, k, rows]
        elif not name.endswith("_scales"):
            state[name] = tensor.float()
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not missing and not unexpected, (missing, unexpected)
    return model


def make_case(name, c, out, seed):
    import transformers
    rng = np.random.default_rng(seed)
    directory = out / name
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config_json(c), indent=2) + "\n")
    tensors = random_checkpoint(c, rng)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    model = reference_model(directory, tensors)
    tokens = torch.from_numpy(rng.integers(0, c["vocab"], c["tokens"]))
    gaps = []  # smallest distance between the last chosen and the first dropped expert: how near routing is to a tie

    def watch(module, args, output):
        logits = torch.nn.functional.linear(args[0].reshape(-1, c["hidden"]), module.weight, module.bias)
        top = logits.topk(5, -1).values
        gaps.append((top[:, 3] - top[:, 4]).min().item())

    for layer in model.model.layers:
        layer.mlp.router.register_forward_hook(watch)
    with torch.no_grad():
        result = model(tokens[None], output_hidden_states=True, use_cache=False)
    at = torch.tensor(c["positions"])
    hidden = torch.stack([h[0, at] for h in result.hidden_states[:c["layers"]]]).contiguous()
    save_file({"tokens": tokens.int(), "positions": at.int(), "logits": result.logits[0, at].float().contiguous(),
               "hidden": hidden.float()}, directory / "golden.safetensors",
              metadata={"made_by": "tools/make_goldens.py", "seed": str(seed),
                        "oracle": f"transformers {transformers.__version__} GptOssForCausalLM eager float32 cpu",
                        "torch": torch.__version__, "python": sys.version.split()[0]})
    print(f"{name}: {c['tokens']} tokens, smallest router gap {min(gaps):.2e}, "
          f"logit rms {result.logits.pow(2).mean().sqrt():.3f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--case", choices=CASES, action="append", help="only this case (repeatable)")
    args = parser.parse_args()
    for idx, (name, case) in enumerate(CASES.items()):
        if not args.case or name in args.case:
            make_case(name, case, args.out, seed=1000 + idx)


if __name__ == "__main__":
    main()
