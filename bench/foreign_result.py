#!/usr/bin/env python3
"""Turns a result of llama-bench or llama-benchy into one that `nibble bench --compare` takes.

    llama-bench -m gpt-oss-20b.gguf -p 512 -n 128 -d 0,4096 -o json > theirs.json
    bench/foreign_result.py theirs.json > theirs.nibble.json
    nibble bench --compare theirs.nibble.json ours.json

A row becomes one of ours where both mean the same: what is computed behind how many tokens for how many sequences. Rows
without counterpart are named on standard error.

llama-bench (-o json or jsonl): n_prompt and n_gen at n_depth, one sequence. Without counterpart: a prompt and its answer
in one time (-pg), and a row that differs from an earlier one only in another setting. llama-benchy (--format json): what
it generates stands behind its context and its prompt, for `concurrency` sequences. A prompt stands behind its context
where prefix caching is on; where it is off, the context is read again and counts as prompt. Without counterpart: prompts
of several requests at a time, and the context's own rows.
"""
import json
import pathlib
import sys


class Rows:
    def __init__(self):
        self.rows, self.left_out = [], []

    def add(self, told, seconds, prompt=0, generate=0, depth=0, batch=1):
        test = (f"pp{prompt}" if prompt else f"tg{generate}") + (f" @ d{depth}" if depth else "")
        if any((row["test"], row["batch"]) == (test, batch) for row in self.rows):
            self.left_out.append(f"{told}: a second one, of other settings")
            return
        self.rows.append({"test": test, "prompt": prompt, "generate": generate, "depth": depth, "batch": batch,
                          "seconds": seconds})


def said_by(rows, field):
    """A field's value, if all rows agree; otherwise all its values."""
    return ", ".join(dict.fromkeys(str(row[field]) for row in rows if row.get(field) not in (None, "")))


def of_llama_bench(rows, into):
    for row in rows:
        prompt, generate, depth = int(row["n_prompt"]), int(row["n_gen"]), int(row.get("n_depth", 0))
        if prompt and generate:
            into.left_out.append(f"pp{prompt}+tg{generate}: a prompt and its answer in one time")
            continue
        seconds = [ns / 1e9 for ns in row.get("samples_ns", [row["avg_ns"]])]
        into.add(f"pp{prompt}" if prompt else f"tg{generate}", seconds, prompt, generate, depth)
    gpu, cpu = said_by(rows, "gpu_info"), said_by(rows, "cpu_info")
    return {"program": "llama-bench", "date": said_by(rows, "test_time"), "build": {"commit": said_by(rows, "build_commit")},
            "host": {"cpu": cpu}, "device": {"name": cpu if not gpu or said_by(rows, "backends") in ("CPU", "BLAS") else gpu},
            "model": {"name": pathlib.Path(said_by(rows, "model_filename")).name}}


def of_llama_benchy(report, into):
    for run in report["benchmarks"]:
        context, prompt, generate = run["context_size"], run["prompt_size"], run["response_size"]
        requests, of_context = run["concurrency"], run["is_context_prefill_phase"]
        behind = (f" @ d{context}" if context else "") + (f" (c{requests})" if requests > 1 else "")

        def rates(field):
            return run[field]["values"] if run.get(field) else []

        own = "ctx_" if of_context else ""
        if rates("pp_throughput"):
            told = f"{own}pp{prompt}{behind}"
            if of_context or requests > 1:
                into.left_out.append(told + (": the context's own" if of_context else ": prompts of several requests"))
            else:
                caches = report["prefix_caching_enabled"]
                tokens = prompt + (0 if caches else context)
                into.add(told, [tokens / rate for rate in rates("pp_throughput")], prompt=tokens, depth=context if caches else 0)
        if rates("tg_throughput"):
            told = f"{own}tg{generate}{behind}"
            if of_context:
                into.left_out.append(told + ": the context's own")
            else:
                into.add(told, [generate * requests / rate for rate in rates("tg_throughput")], generate=generate,
                         depth=context + prompt, batch=requests)
    return {"program": "llama-benchy", "date": report["timestamp"], "model": {"name": report["model"]},
            "workload": {"latency_mode": report["latency_mode"], "latency_ms": report["latency_ms"]}}


def converted(text):
    """The result, and the rows that have no counterpart. ValueError where the text is neither program's."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError:  # a row a line
        found = [json.loads(line) for line in text.splitlines() if line]
    into = Rows()
    if isinstance(found, dict) and {"benchmarks", "latency_mode", "prefix_caching_enabled"} <= found.keys():
        metadata = of_llama_benchy(found, into)
    else:
        rows = found if isinstance(found, list) else [found]
        if not rows or not all(isinstance(row, dict) and {"build_commit", "n_prompt", "n_gen", "avg_ns"} <= row.keys() for row in rows):
            raise ValueError("want a result of llama-bench (-o json or jsonl) or llama-benchy (--format json)")
        metadata = of_llama_bench(rows, into)
    return {"metadata": metadata, "rows": into.rows}, into.left_out


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        result, left_out = converted(pathlib.Path(sys.argv[1]).read_text())
    except (ValueError, KeyError, TypeError, ZeroDivisionError, OSError) as error:
        sys.exit(f"{sys.argv[1]}: {type(error).__name__}: {error}")
    print(json.dumps(result, indent=1))
    for line in left_out:
        print(f"left out: {line}", file=sys.stderr)


if __name__ == "__main__":
    main()
