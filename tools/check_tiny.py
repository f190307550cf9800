"""Checks the exported nibble-tiny: against transformers, perplexity with and without sinks, answers, and the goldens.

  python tools/check_tiny.py --data <out of tiny_data.py> --model <exported dir> --out <dir>
"""
import argparse
import json
import math
import pathlib
import time

import torch
from tokenizers import Tokenizer
from torch.nn import functional as F

import tiny_model


def transformers_model(folder, own, device):
    """GptOssForCausalLM in float32 with the dequantised values of the exported files."""
    from transformers import AutoConfig, GptOssForCausalLM
    config = AutoConfig.from_pretrained(folder)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config._attn_implementation = "eager"
    try:
        config._experts_implementation = "eager"
    except Exception as error:  # older releases know no choice here
        print("experts implementation:", error)
    model = GptOssForCausalLM(config).float()
    state, want = {}, model.state_dict()
    values = dict(own.state_dict())
    state["model.embed_tokens.weight"], state["model.norm.weight"], state["lm_head.weight"] = values["embed"], values["norm"], values["head"]
    for n in range(own.c.layers):
        state.update({hf: values[f"layers.{n}.{name}"] for hf, name in tiny_model.layer_names(n).items()})
        for hf, name in (("gate_up_proj", "gate_up"), ("down_proj", "down")):
            key = f"model.layers.{n}.mlp.experts.{hf}"
            w = values[f"layers.{n}.{name}"]
            state[key] = w if want[key].shape == w.shape else w.transpose(1, 2).contiguous()
    print("transformers keys missing:", sorted(set(want) - set(state))[:4], "unknown:", sorted(set(state) - set(want))[:4])
    model.load_state_dict(state)
    return model.to(device).eval()


@torch.no_grad()
def perplexity(model, sequences):
    """exp of the mean loss over [(ids, first index that counts)], in rows of at most 1024 tokens."""
    loss, count = 0.0, 0
    device = model.embed.device
    for ids, first in sequences:
        ids = torch.tensor(ids[:1024], device=device)[None]
        each = F.cross_entropy(model(ids)[0][0, :-1], ids[0, 1:], reduction="none")[max(first - 1, 0):]
        loss, count = loss + each.sum().item(), count + each.numel()
    return math.exp(loss / count)


@torch.no_grad()
def generate(model, prompts, tokens, stops, batch=64):
    """Greedy, without a cache: rows are padded at the end, which a causal model does not see."""
    out, device = [], model.embed.device
    for i in range(0, len(prompts), batch):
        rows = [list(p) for p in prompts[i:i + batch]]
        done, made = [False] * len(rows), [[] for _ in rows]
        for _ in range(tokens):
            longest = max(map(len, rows))
            ids = torch.tensor([r + [0] * (longest - len(r)) for r in rows], device=device)
            last = torch.tensor([len(r) - 1 for r in rows], device=device)
            best = model(ids)[0][torch.arange(len(rows), device=device), last].argmax(-1).tolist()
            for j, token in enumerate(best):
                if not done[j]:
                    rows[j].append(token)
                    made[j].append(token)
                    done[j] = token in stops
            if all(done):
                break
        out += made
    return out


def answers(model, tokenizer, checks, stops):
    """Counts the right answers of each set and prints some of them."""
    prompts = [tokenizer.encode(c["prompt"]).ids for c in checks]
    order = sorted(range(len(checks)), key=lambda i: len(prompts[i]))
    made = dict(zip(order, generate(model, [prompts[i] for i in order], 90, stops)))
    totals, shown = {}, {}
    for i, check in enumerate(checks):
        text = tokenizer.decode(made[i], skip_special_tokens=False)
        right = check["expect"] in text
        good, of = totals.get(check["set"], (0, 0))
        totals[check["set"]] = (good + right, of + 1)
        count = shown.get((check["set"], right), 0)
        shown[(check["set"], right)] = count + 1
        if check["set"] in ("chat", "raw") or count < (2 if right else 4):
            print(f"[{check['set']}] {check['name']}: {'ok' if right else 'WRONG, want ' + check['expect']}\n    {text!r}", flush=True)
    print("right answers:", {k: f"{a}/{b}" for k, (a, b) in totals.items()}, flush=True)
    return totals


@torch.no_grad()
def goldens(model, tokenizer, checks, device):
    """Greedy continuations by transformers in float32, with the gap between the two best tokens at every step."""
    wanted = [("capital", "France"), ("weather call", "Trondheim"), ("tool result", "Busan"), ("json", None), ("chat", "story"), ("raw", "The capital of France is"), ("raw", "Once upon a time")]
    out = []
    for kind, name in wanted:
        check = next(c for c in checks if c["set"] == kind and name in (None, c["name"]))
        prompt = tokenizer.encode(check["prompt"]).ids
        ids, made, gaps, first = list(prompt), [], [], None
        for _ in range(48):
            logits = model(torch.tensor([ids], device=device), use_cache=False).logits[0, -1].float()
            top = logits.topk(5)
            first = first or [[int(i), round(float(v), 5)] for i, v in zip(top.indices, top.values)]
            gaps.append(round(float(top.values[0] - top.values[1]), 5))
            made.append(int(top.indices[0]))
            ids.append(made[-1])
        out.append({"name": f"{kind}: {check['name']}", "text": check["prompt"], "prompt": prompt, "greedy": made, "gaps": gaps, "top5": first,
                    "continuation": tokenizer.decode(made, skip_special_tokens=False)})
    return out


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--data", type=pathlib.Path, required=True)
    ap.add_argument("--model", type=pathlib.Path, required=True)
    ap.add_argument("--out", type=pathlib.Path, required=True)
    ap.add_argument("--layers", type=int, default=8)
    args = ap.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    start = time.time()
    tokenizer = Tokenizer.from_file(str(args.data / "tokenizer.json"))
    stops = {tokenizer.token_to_id(s) for s in ("<|return|>", "<|call|>", "<|endoftext|>")}
    model = tiny_model.load_exported(args.model, tiny_model.Config(layers=args.layers), device)
    checks = json.loads((args.data / "prompts.json").read_text())

    ends = tokenizer.token_to_id("<|endoftext|>")
    prose = [(tokenizer.encode(s).ids + [ends], 1) for s in json.loads((args.data / "heldout_stories.json").read_text())]
    whole = tokenizer.encode((args.data / "heldout.txt").read_text()).ids
    chats = []
    for line in (args.data / "heldout_chat.jsonl").read_text().splitlines():
        pair = json.loads(line)
        prompt = tokenizer.encode(pair["prompt"]).ids
        chats.append((prompt + tokenizer.encode(pair["answer"]).ids, len(prompt)))
    sets = {"held-out stories, one at a time": prose, "heldout.txt, rows of 1024": [(whole[i:i + 1024], 1) for i in range(0, len(whole) - 512, 1024)], "chat answers": chats}
    results = {}
    for name, sequences in sets.items():
        on = perplexity(model, sequences)
        with tiny_model.without_sinks(model):
            off = perplexity(model, sequences)
        results[name] = {"sinks": round(on, 4), "no sinks": round(off, 4), "ratio": round(off / on, 3)}
        print(f"perplexity {name}: {on:.3f} with sinks, {off:.3f} without, ratio {off / on:.2f}", flush=True)
    print("sinks by layer:", [round(layer.sinks.mean().item(), 2) for layer in model.layers], flush=True)
    totals = answers(model, tokenizer, checks, stops)
    with tiny_model.without_sinks(model):
        print("---- without sinks")
        few = [c for c in checks if c["set"] in ("chat", "raw")] + [c for c in checks if c["set"] == "capital"][:20]
        off_totals = answers(model, tokenizer, few, stops)
    results["right answers"] = {k: f"{a}/{b}" for k, (a, b) in totals.items()}
    results["right answers without sinks"] = {k: f"{a}/{b}" for k, (a, b) in off_totals.items()}
    (args.out / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    print(f"{time.time() - start:.0f} s", flush=True)

    other = transformers_model(args.model, model, device)
    worst = 0.0
    with torch.no_grad():
        for ids in (whole[:700], chats[0][0], chats[7][0]):
            ids = torch.tensor([ids], device=device)
            a, b = model(ids)[0], other(ids, use_cache=False).logits
            worst = max(worst, ((a - b).norm() / b.norm()).item())
    print(f"transformers float32 against ours: relative difference {worst:.2e}", flush=True)
    (args.out / "goldens.json").write_text(json.dumps({"source": "transformers GptOssForCausalLM, float32, exported values upcast", "relative difference to the trainer's model": worst,
                                                       "prompts": goldens(other, tokenizer, checks, device)}, separators=(",", ":")) + "\n")
    assert worst < 1e-4
    print(f"{time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
