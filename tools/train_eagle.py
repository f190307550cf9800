"""Trains an EAGLE-3 head for nibble-tiny and writes it as heads are published: config.json and model.safetensors.

  python tools/train_eagle.py --model models/nibble-tiny --text stories.txt --out models/nibble-tiny/eagle3 --minutes 9

Needs torch, tools/requirements.txt and TIKTOKEN_ENCODINGS_BASE (as tools/tiny_data.py). Besides the texts given it reads conversations, stories
and facts that tools/tiny_data.py makes up. The head learns the target's own
distribution, several tokens ahead on what it fed back itself, as it will draft. The clock drives the schedule.
"""
import argparse
import json
import math
import pathlib
import random
import time

import torch
from torch.nn import functional as F

import eagle3_model
import tiny_chat
import tiny_data
import tiny_model

ROW = 256    # tokens a row
AHEAD = 4    # tokens that a row learns to draft
FADE = 0.8   # weight of a token's loss against that of the one before
CONFIG = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 448, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 4096, "draft_vocab_size": None, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "rope_scaling": None, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [4, 6, 8], "norm_before_fc": True}}  # 8: of 8 layers, so these are boundaries


def new_tensors(c, target):
    """Starts as a head that repeats the target's last tap."""
    h, inter, taps = c["hidden_size"], c["intermediate_size"], len(c["eagle_config"]["eagle_aux_hidden_state_layer_ids"])
    q, kv = c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
    one, normal = (lambda n: torch.ones(n)), (lambda rows, cols, std=0.03: torch.randn(rows, cols) * std)
    return {"input_norm.weight": one(taps * h), "fc.weight": torch.cat([torch.zeros(h, (taps - 1) * h), torch.eye(h)], 1) + normal(h, taps * h, 0.002),
            "midlayer.input_layernorm.weight": one(h), "midlayer.hidden_norm.weight": one(h), "midlayer.post_attention_layernorm.weight": one(h),
            "midlayer.self_attn.q_proj.weight": normal(q, 2 * h), "midlayer.self_attn.k_proj.weight": normal(kv, 2 * h), "midlayer.self_attn.v_proj.weight": normal(kv, 2 * h),
            "midlayer.self_attn.o_proj.weight": normal(h, q), "midlayer.mlp.gate_proj.weight": normal(inter, h), "midlayer.mlp.up_proj.weight": normal(inter, h),
            "midlayer.mlp.down_proj.weight": normal(h, inter), "norm.weight": target["norm"].clone()}


def read_texts(paths, tokenizer, rng):
    """The texts in pieces of a row, and about as many tokens again that tools/tiny_data.py makes up: conversations, stories, facts."""
    ends, renderer = tokenizer.token_to_id("<|endoftext|>"), tiny_chat.Renderer()
    given = [tokenizer.encode(path.read_text()).ids for path in paths]
    pieces, most = [ids[i:i + ROW] for ids in given for i in range(0, len(ids), ROW)], 2 * sum(map(len, given))
    count = most // 2
    while count < most:
        for text in ("".join(renderer.text(*tiny_chat.conversation(rng, [tiny_data.plotted_story(rng)]))), tiny_data.plotted_story(rng), tiny_data.fact_document(rng)):
            pieces.append(tokenizer.encode(text).ids + [ends])
            count += len(pieces[-1])
    rng.shuffle(pieces)
    return torch.tensor([i for piece in pieces for i in piece])


@torch.no_grad()
def see(model, tokens, boundaries):
    """The target's residuals at the boundaries [B, T, taps, hidden], and its log probabilities [B, T, vocab]."""
    t = tokens.shape[1]
    distance = torch.arange(t)[:, None] - torch.arange(t)
    masks, rope = ((distance >= 0) & (distance < tiny_model.WINDOW), distance >= 0), tiny_model.rope_tables(t, model.c.head_dim, tokens.device)
    x = F.embedding(tokens, model.embed)
    stream = [x]
    for layer in model.layers:
        x = x + layer.attend(tiny_model.rms_norm(x, layer.input_norm), rope, masks, True)
        x = x + layer.experts(tiny_model.rms_norm(x, layer.post_norm), None)[0]
        stream.append(x)
    return torch.stack([stream[b] for b in boundaries], 2), F.linear(tiny_model.rms_norm(x, model.norm), model.head).log_softmax(-1)


def ahead(head, taps, tokens):
    """Of each row that has AHEAD + 1 tokens behind it, the logits of what it drafts: a list of [B, rows, vocab]."""
    rows = tokens.shape[1] - AHEAD - 1
    seen, steps, positions = torch.arange(rows)[:, None] >= torch.arange(rows), [], torch.arange(rows)

    def attention(_, q, k, v):
        """The target's features are seen up to the row itself; of what was fed back, only the row's own."""
        steps.append((k, v))
        wide = lambda x: x.repeat_interleave(head.heads // head.kv_heads, -2)
        scores = torch.einsum("bthd,bshd->bths", q, wide(steps[0][0])).masked_fill(~seen[:, None, :], -math.inf)
        own = [(q * wide(key)).sum(-1, keepdim=True) for key, _ in steps[1:]]
        share = (torch.cat([scores, *own], -1) * head.dim ** -0.5).softmax(-1)
        out = torch.einsum("bths,bshd->bthd", share[..., :rows], wide(steps[0][1]))
        for i, (_, value) in enumerate(steps[1:]):
            out = out + share[..., rows + i, None] * wide(value)
        return out.flatten(-2)

    feature, found = head.fuse(taps[:, :rows]), []
    for j in range(AHEAD):
        normed, feature = head.pass_over(tokens[:, 1 + j:1 + j + rows], feature, positions + j, None, attention)
        found.append(head.logits(normed))
    return found


def judge(found, wanted, rows):
    """The loss, and how often the first drafts are the target's likeliest token and all before them, too."""
    loss, right, shares = 0.0, None, []
    for j, logits in enumerate(found):
        want = wanted[:, 1 + j:1 + j + rows]
        loss = loss + FADE ** j * -(want.exp() * logits.log_softmax(-1)).sum(-1).mean()
        hit = logits.argmax(-1) == want.argmax(-1)
        right = hit if right is None else right & hit
        shares.append(right.float().mean().item())
    return loss, shares


def export(head, out):
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    tiny_model.save_safetensors(out / "model.safetensors", {name: tensor.detach().bfloat16() for name, tensor in head.tensors.items()})


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--model", type=pathlib.Path, required=True)
    ap.add_argument("--text", type=pathlib.Path, nargs="+", required=True, help="stories, one after another or parted by <|endoftext|>")
    ap.add_argument("--out", type=pathlib.Path, required=True)
    ap.add_argument("--minutes", type=float, default=9)
    ap.add_argument("--rows", type=int, default=6, help=f"rows of {ROW} tokens a step")
    ap.add_argument("--rate", type=float, default=1.5e-3)
    ap.add_argument("--resume", type=pathlib.Path, help="folder of a head that training goes on with")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--threads", type=int, default=1)
    args = ap.parse_args()
    from tokenizers import Tokenizer
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    model = tiny_model.load_exported(args.model, tiny_model.Config(), "cpu").eval()
    target = {"embed": model.embed.detach(), "head": model.head.detach(), "norm": model.norm.detach()}
    tensors = tiny_model.load_safetensors(args.resume / "model.safetensors") if args.resume else new_tensors(CONFIG, target)
    head = eagle3_model.Head(CONFIG, tensors, target)
    print(f"{sum(p.numel() for p in head.parameters()) / 1e6:.2f} M parameters", flush=True)
    rng = random.Random(1)
    text = read_texts(args.text, Tokenizer.from_file(str(args.model / "tokenizer.json")), rng)
    held, text = text[:4 * ROW].reshape(4, ROW), text[4 * ROW:]
    print(f"{len(text) / 1e3:.0f} k tokens", flush=True)
    boundaries, rows = CONFIG["eagle_config"]["eagle_aux_hidden_state_layer_ids"], ROW - AHEAD - 1
    held_seen = see(model, held, boundaries)
    optimizer = torch.optim.AdamW(head.parameters(), lr=args.rate, betas=(0.9, 0.95), weight_decay=0.01)
    start, step, last_print, progress = time.time(), 0, 0.0, 0.0
    while progress < 1:
        at = torch.randint(len(text) - ROW, (args.rows,)).tolist()
        tokens = torch.stack([text[i:i + ROW] for i in at])
        taps, wanted = see(model, tokens, boundaries)
        loss, _ = judge(ahead(head, taps, tokens), wanted, rows)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = args.rate * min(1.0, (step + 1) / 20) * max(0.02, 1 - progress)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step, progress = step + 1, (time.time() - start) / (60 * args.minutes)
        if time.time() - last_print > 20 or progress >= 1:
            with torch.no_grad():
                held_loss, shares = judge(ahead(head, held_seen[0], held), held_seen[1], rows)
            print(f"{time.time() - start:6.1f} s  step {step}  loss {loss.item():.3f}  held out {held_loss.item():.3f}  right so far by place {' '.join(f'{s:.3f}' for s in shares)}", flush=True)
            last_print = time.time()
            export(head, args.out)


if __name__ == "__main__":
    main()
