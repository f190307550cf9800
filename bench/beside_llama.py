#!/usr/bin/env python3
"""nibble bench and llama.cpp's benches in turns: one GGUF file, the same processors, one table.

  bench/beside_llama.py 20b.gguf --llama ~/llama.cpp/build/bin --threads 2 --cpu-isa avx2 --json result.json

Each row runs --rounds times, Nibble then llama.cpp, so that both meet the same minutes of a shared machine. The table
shows medians; the JSON has every run. llama.cpp should be built for the instruction set that --cpu-isa names.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time

ROW = re.compile(r"(?:pp(?P<prompt>\d+)|tg(?P<generate>\d+)(?:b(?P<batch>\d+))?)(?:@d(?P<depth>\d+))?$")


def parse_row(name):
    found = ROW.match(name)
    if not found:
        raise argparse.ArgumentTypeError(f"want a row such as pp512, tg128, tg32b8 or tg32@d4096, found {name}")
    row = {key: int(value or 0) for key, value in found.groupdict().items()}
    row["name"], row["batch"] = name, row["batch"] or 1
    if row["batch"] > 1 and row["depth"]:
        raise argparse.ArgumentTypeError(f"want several sequences without a depth, found {name}")
    return row


def output_of(command, cpus, limit_s):
    """Standard output, or None where the command took too long."""
    if cpus:
        command = ["taskset", "-c", cpus, *command]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode != 0:
        sys.exit(f"beside_llama: {' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def nibble_command(args, row):
    command = [args.nibble, "bench", "-m", args.model, "--backend", "cpu", "-t", str(args.threads), "-r", "1", "--json",
               "--max-num-batched-tokens", "512", "-p", str(row["prompt"]), "-n", str(row["generate"]), "-b", str(row["batch"]), "-d", str(row["depth"])]
    if args.cpu_isa:
        command += ["--cpu-isa", args.cpu_isa]
    return command + args.nibble_flags.split()


def run_nibble(args, row):
    command = nibble_command(args, row)
    out = output_of(command, args.cpus, args.limit)
    if out is None:
        return None
    result = json.loads(out)
    found = result["rows"][0]
    reads = found["read_bytes_per_s"]  # before, between and after the repetitions
    return {"tok_per_s": round(found["tokens_per_second"]["mean"], 3), "of_read": round(found["of_read"], 3), "of_limit": round(found["of_limit"], 3),
            "read_gb_per_s": round(statistics.fmean(reads) / 1e9, 2), "commit": result["commit"], "kernels": result["kernels"]}


def run_llama(args, row):
    threads = str(args.threads)
    if row["batch"] > 1:
        command = [os.path.join(args.llama, "llama-batched-bench"), "-m", args.model, "-t", threads, "-tb", threads, "-c", "8192", "-npp", "16", "-ntg", str(row["generate"]),
                   "-npl", str(row["batch"]), "--output-format", "jsonl"]
        out = output_of(command, args.cpus, args.limit)
        lines = [json.loads(line) for line in (out or "").splitlines() if line.startswith("{")]
        return None if out is None else {"tok_per_s": round(lines[-1]["speed_tg"], 3)}
    command = [os.path.join(args.llama, "llama-bench"), "-m", args.model, "-t", threads, "-p", str(row["prompt"]), "-n", str(row["generate"]), "-d", str(row["depth"]), "-r", "1", "-o", "json", *args.llama_flags.split()]
    if row["depth"]:
        command += ["-fa", "1"]
    out = output_of(command, args.cpus, args.limit)
    return None if out is None else {"tok_per_s": round(json.loads(out)[0]["avg_ts"], 3)}


def median(runs, key="tok_per_s"):
    values = [run[key] for run in runs if run]
    return statistics.median(values) if values else None


def processor():
    with open("/proc/cpuinfo") as info:
        for line in info:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return "unknown"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--nibble", default="build/cpu/src/app/nibble")
    p.add_argument("--nibble-flags", default="", help="more flags for nibble bench, in one word")
    p.add_argument("--llama-flags", default="", help="more flags for llama-bench, in one word")
    p.add_argument("--llama", required=True, metavar="DIR", help="where llama-bench and llama-batched-bench are")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--cpus", default="", metavar="LIST", help="processors for both, as taskset takes them")
    p.add_argument("--cpu-isa", default="")
    p.add_argument("--rows", type=lambda text: [parse_row(name) for name in text.split(",")], default="pp512,tg128,tg32b8,tg32@d4096")
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--limit", type=int, default=600, metavar="S", help="seconds that one run may take; a run that takes longer has no figure")
    p.add_argument("--json", metavar="FILE")
    args = p.parse_args()
    result = {"date": time.strftime("%Y-%m-%d"), "device": f"{processor()}, {os.cpu_count()} processors seen", "threads": args.threads, "cpu_isa": args.cpu_isa or "best",
              "model": os.path.basename(args.model), "command": " ".join(sys.argv), "rows": []}
    print(f"{result['device']}; {args.threads} threads, {result['cpu_isa']}, {result['model']}")
    print(f"{'row':14} {'Nibble t/s':>10} {'of reads':>9} {'reads GB/s':>11} {'llama.cpp t/s':>14} {'times':>6}")
    for row in args.rows:
        nibble, llama = [], []
        for _ in range(args.rounds):
            nibble.append(run_nibble(args, row))
            llama.append(run_llama(args, row))
        ours, theirs = median(nibble), median(llama)
        times = ours / theirs if ours and theirs else None
        result["rows"].append({"row": row["name"], "nibble": nibble, "llama_cpp": llama, "times": times and round(times, 2)})
        shown = [f"{value:.{digits}f}" if value is not None else "-" for value, digits in
                 ((ours, 2), (ours and 100 * median(nibble, "of_read"), 1), (ours and median(nibble, "read_gb_per_s"), 1), (theirs, 2), (times, 2))]
        print(f"{row['name']:14} {shown[0]:>10} {shown[1] + ' %':>9} {shown[2]:>11} {shown[3]:>14} {shown[4]:>6}", flush=True)
        if args.json:
            with open(args.json, "w") as out:
                json.dump(result, out, indent=1)
                out.write("\n")


if __name__ == "__main__":
    main()
