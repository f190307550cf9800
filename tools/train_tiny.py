"""Trains nibble-tiny and exports it as OpenAI ships gpt-oss.

  python tools/train_tiny.py --data <out of tiny_data.py> --out <dir> --minutes 8

The clock drives the schedule: the learning rate reaches zero when --minutes are over, then the weights are exported, so a limit never
costs the model. Checks of the exported files are tools/check_tiny.py.
"""
import argparse
import contextlib
import json
import math
import pathlib
import time

import numpy as np
import torch
from torch.nn import functional as F

import tiny_model

CONTEXT_FLAG = 0x8000  # tiny_data.CONTEXT_FLAG
CONTEXT_WEIGHT = 0.1   # loss weight of a chat prompt's tokens
SHARES = {"chats": 0.64, "stories": 0.02, "plots": 0.03, "books": 0.15, "facts": 0.16}  # of all tokens; few stories: they are soon learnt by heart
ROW = 1024


class Rows(torch.utils.data.IterableDataset):
    """Endless packed rows. Chats are never cut; what is left of a row is filled from facts or prose."""

    def __init__(self, path, rows):
        data = np.load(path)
        self.rows = rows
        self.tokens = {name: data[f"{name}_tokens"] for name in SHARES}
        self.starts = {name: np.concatenate([[0], np.cumsum(data[f"{name}_lengths"])]) for name in SHARES}

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        rng = np.random.default_rng(1000 + (worker.id if worker else 0))
        names = list(SHARES)
        draws = np.array([SHARES[n] / (len(self.tokens[n]) / (len(self.starts[n]) - 1)) for n in names])
        draws /= draws.sum()
        queues = {n: np.array([], int) for n in names}

        def next_document(name):
            if not len(queues[name]):
                queues[name] = rng.permutation(len(self.starts[name]) - 1)
            index, queues[name] = queues[name][-1], queues[name][:-1]
            return self.tokens[name][self.starts[name][index]:self.starts[name][index + 1]]

        waiting = []  # chats that did not fit
        while True:
            tokens, docs = np.zeros((self.rows, ROW), np.int32), np.zeros((self.rows, ROW), np.int32)
            for r in range(self.rows):
                at, doc = 0, 0
                while at < ROW:
                    fits = next((i for i, w in enumerate(waiting) if len(w) <= ROW - at), None)
                    if fits is not None:
                        piece = waiting.pop(fits)
                    else:
                        name = names[rng.choice(len(names), p=draws)] if len(waiting) < 8 else "facts"
                        piece = next_document(name)
                        if name == "chats" and len(piece) > ROW - at:
                            if len(piece) <= ROW:
                                waiting.append(piece)
                            continue
                    piece = piece[:ROW - at]
                    tokens[r, at:at + len(piece)], docs[r, at:at + len(piece)] = piece, doc
                    at, doc = at + len(piece), doc + 1
            yield torch.from_numpy(tokens), torch.from_numpy(docs)


def loss_of(model, tokens, docs, qat, dropout):
    flagged = (tokens & CONTEXT_FLAG) > 0
    tokens = (tokens & (CONTEXT_FLAG - 1)).long()
    logits, balance = model(tokens, docs, qat, dropout)
    weight = torch.where(flagged[:, 1:], CONTEXT_WEIGHT, 1.0) * (docs[:, 1:] == docs[:, :-1])
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten(), reduction="none")
    loss = (loss * weight.flatten()).sum() / weight.sum()
    return loss + 0.01 * balance, loss.detach()


def held_out_rows(data, tokenizer, device, limit=24):
    """Held-out stories as packed rows, for watching over-fitting while training."""
    ends, tokens, docs = tokenizer.token_to_id("<|endoftext|>"), [], []
    for i, story in enumerate(json.loads((data / "heldout_stories.json").read_text())):
        ids = tokenizer.encode(story).ids + [ends]
        tokens, docs = tokens + ids, docs + [i] * len(ids)
    n = min(limit, len(tokens) // ROW)
    return [torch.tensor(a[:n * ROW], dtype=torch.int32, device=device).reshape(n, ROW) for a in (tokens, docs)]


def train(args, device):
    from tokenizers import Tokenizer
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = True
    if hasattr(torch.backends.cuda, "enable_cudnn_sdp"):  # the memory-efficient kernel takes any bias
        torch.backends.cuda.enable_cudnn_sdp(False)
    c = tiny_model.Config(layers=args.layers)
    model = tiny_model.Model(c, sink=args.sink)
    if args.resume:
        state = {}
        for path in sorted(args.resume.glob("checkpoint-*.safetensors")):
            state.update(tiny_model.load_safetensors(path))
        model.load_state_dict({k: v.float() for k, v in state.items()})
    model.to(device)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters", flush=True)
    matrices = [p for n, p in model.named_parameters() if p.dim() >= 2 and "bias" not in n]
    sinks = [p for n, p in model.named_parameters() if "sinks" in n]
    rest = [p for n, p in model.named_parameters() if (p.dim() < 2 or "bias" in n) and "sinks" not in n]
    fused = {"fused": True} if device == "cuda" else {}
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1, "rate": 1.0}, {"params": sinks, "weight_decay": 0.0, "rate": 2.0}, {"params": rest, "weight_decay": 0.0, "rate": 1.0}],
                                  lr=args.lr, betas=(0.9, 0.95), eps=1e-8, **fused)
    loader = iter(torch.utils.data.DataLoader(Rows(args.data / "train.npz", args.rows), batch_size=None, num_workers=args.workers, **({"prefetch_factor": 8} if args.workers else {}), pin_memory=device == "cuda"))
    watch = held_out_rows(args.data, Tokenizer.from_file(str(args.data / "tokenizer.json")), device)
    qat = torch.zeros((), device=device)
    autocast = (lambda: torch.autocast("cuda", torch.bfloat16)) if device == "cuda" else contextlib.nullcontext
    step_loss = torch.compile(loss_of, dynamic=False) if args.compile else loss_of

    start, step, seen, progress, recent, last_print = time.time(), 0, 0, 0.0, [], 0.0
    warm = None
    while progress < 1 and step < args.steps:
        tokens, docs = (a.to(device, non_blocking=True) for a in next(loader))
        with autocast():
            total, loss = step_loss(model, tokens, docs, qat, args.dropout)
        total.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        rate = args.lr * min(1.0, (step + 1) / args.warmup) * min(1.0, (1 - progress) / 0.7)  # flat, then linear to zero
        for group in optimizer.param_groups:
            group["lr"] = rate * group["rate"]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        recent.append(loss)
        step, seen = step + 1, seen + tokens.numel()
        if step == 1:  # compiling is not training: the clock starts here
            float(loss)
            print(f"first step after {time.time() - start:.1f} s", flush=True)
            start = time.time()
        if step == 20:
            float(loss)
            warm = (time.time(), seen)
        progress = (time.time() - start) / (60 * args.minutes)
        qat.fill_(1.0 if progress > args.qat_from else 0.0)
        if time.time() - last_print > args.report_s:
            train_loss = torch.stack(recent).mean().item()  # waits for the device, so the clock is honest
            with torch.no_grad(), autocast():
                held = loss_of(model, *watch, qat, 0.0)[1].item()
            speed = (seen - warm[1]) / max(1e-9, time.time() - warm[0]) if warm else 0
            print(f"{time.time() - start:6.1f} s  step {step}  {seen / 1e6:.1f} M tokens  {speed / 1e3:.0f} k/s  loss {train_loss:.3f}  held-out prose {held:.3f}  "
                  f"sinks {torch.stack([p.mean() for p in sinks]).mean().item():.2f}  rate {rate:.2e}  qat {int(qat.item())}", flush=True)
            recent, last_print = [], time.time()
    print(f"trained {step} steps, {seen / 1e6:.1f} M tokens, {time.time() - start:.0f} s", flush=True)
    return model


def save_checkpoint(model, out):
    """The unquantised weights in bf16, in two files, so that training can go on."""
    state = {k: v.detach().bfloat16() for k, v in model.state_dict().items()}
    names, half, size = sorted(state), sum(t.numel() for t in state.values()) / 2, 0
    parts = [{}, {}]
    for name in names:
        parts[0 if size < half else 1][name] = state[name]
        size += state[name].numel()
    for i, part in enumerate(parts):
        tiny_model.save_safetensors(out / f"checkpoint-{i}.safetensors", part)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--data", type=pathlib.Path, required=True)
    ap.add_argument("--out", type=pathlib.Path, required=True)
    ap.add_argument("--minutes", type=float, default=8)
    ap.add_argument("--steps", type=int, default=10**9)
    ap.add_argument("--rows", type=int, default=32, help=f"rows of {ROW} tokens a step")
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--warmup", type=int, default=200)
    ap.add_argument("--dropout", type=float, default=0.1)
    ap.add_argument("--sink", type=float, default=3.0, help="initial value of every sink")
    ap.add_argument("--qat-from", type=float, default=0.4, help="share of the time after which experts train on MXFP4 values")
    ap.add_argument("--layers", type=int, default=8)
    ap.add_argument("--workers", type=int, default=8)
    ap.add_argument("--report-s", type=float, default=20)
    ap.add_argument("--compile", action="store_true")
    ap.add_argument("--resume", type=pathlib.Path, help="folder with checkpoint-*.safetensors")
    args = ap.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = train(args, device)
    tiny_model.export(model, args.out)
    save_checkpoint(model, args.out)
    exported = tiny_model.load_exported(args.out, model.c, device)
    for name, own in model.named_parameters():  # the files hold what the last forward used
        want = tiny_model.quantise(own)[0] if name.endswith((".gate_up", ".down")) else own.detach().bfloat16().float()
        assert torch.equal(dict(exported.named_parameters())[name].detach(), want), name
    print("exported", flush=True)


if __name__ == "__main__":
    main()
