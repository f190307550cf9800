#!/usr/bin/env python3
"""Writes tests/data/mx_goldens.txt: MX blocks quantised by numpy and ml_dtypes, which share nothing with src/base/mx.

    tools/venv.sh .venv tools/requirements.txt
    .venv/bin/python tools/make_mx_goldens.py tests/data/mx_goldens.txt

Each `input` line holds 32 floats as hex bit patterns; the lines below it hold format, rule, scale byte and block bytes.
"""

import math
import sys

import ml_dtypes
import numpy as np

SEED = 20240801
FORMATS = {
    "mxfp4": (ml_dtypes.float4_e2m1fn, 4),
    "mxfp8_e4m3": (ml_dtypes.float8_e4m3fn, 8),
    "mxfp8_e5m2": (ml_dtypes.float8_e5m2, 8),
    "mxfp6_e2m3": (ml_dtypes.float6_e2m3fn, 6),
    "mxfp6_e3m2": (ml_dtypes.float6_e3m2fn, 6),
}
RULES = ("ocp_floor", "ceil", "round_llama")


def floor_log2(x):
    return math.frexp(x)[1] - 1


def scale_exponent(amax, max_element, rule):
    emax = floor_log2(max_element)
    if rule == "ocp_floor":
        return floor_log2(amax) - emax
    if rule == "round_llama":
        return round(math.log2(amax)) - emax  # float64: far finer than float32's gap around sqrt(2)
    exponent = floor_log2(amax) - emax - 2
    while math.ldexp(max_element, exponent) < amax:
        exponent += 1
    return exponent


def quantise(x, name, rule):
    """x: 32 float32. Returns (scale byte, block bytes)."""
    dtype, bits = FORMATS[name]
    if not np.all(np.isfinite(x)):
        return 255, bytes(32 * bits // 8)
    max_element = float(ml_dtypes.finfo(dtype).max)
    amax = float(np.max(np.abs(x)))
    exponent = -127 if amax == 0 else min(127, max(-127, scale_exponent(amax, max_element, rule)))
    scaled = np.clip(np.ldexp(x.astype(np.float64), -exponent), -max_element, max_element)
    # Powers of two leave float32 exact, but for values that underflow: far below every element's smallest number.
    codes = scaled.astype(np.float32).astype(dtype).view(np.uint8)
    scale = np.array([math.ldexp(1.0, exponent)]).astype(np.float32).astype(ml_dtypes.float8_e8m0fnu).view(np.uint8)[0]
    rows = np.unpackbits(codes[:, None], axis=1, bitorder="little")[:, :bits]
    return int(scale), np.packbits(rows.reshape(-1), bitorder="little").tobytes()


def inputs():
    rng = np.random.default_rng(SEED)
    blocks = [rng.standard_normal(32) * s for s in (1.0, 1e-3, 40.0, 3e4) for _ in range(8)]
    # One exponent per value, then one per block: all of float32's range.
    blocks += [rng.standard_normal(32) * np.exp2(rng.uniform(-12, 12, 32)) for _ in range(16)]
    blocks += [rng.standard_normal(32) * 2.0 ** e for e in range(-148, 125, 8)]
    # Ties and their neighbours: codes of every format and the midpoints between them, one ulp to either side.
    for dtype, bits in FORMATS.values():
        values = np.arange(1 << bits, dtype=np.uint8).view(dtype).astype(np.float64)
        values = np.unique(values[np.isfinite(values) & (values >= 0)])
        ties = ((values[1:] + values[:-1]) / 2).astype(np.float32)
        probes = np.concatenate([ties, np.nextafter(ties, np.float32(0)), np.nextafter(ties, np.float32(np.inf))])
        for _ in range(4):
            block = rng.choice(probes, 32) * rng.choice([-1, 1], 32)
            block[rng.integers(32)] = values[-1]  # so that the scale is 1
            blocks.append(block)
    # Mantissas of amax around the three rules' thresholds: 1, sqrt(2), 1.5, 1.75, 1.875, 2.
    for mantissa in (1.0, math.sqrt(2), 1.5, 1.75, 1.875, 2.0):
        m = np.float32(mantissa)
        for amax in (np.nextafter(m, np.float32(0)), m, np.nextafter(m, np.float32(4))):
            block = rng.uniform(-1, 1, 32) * amax
            block[rng.integers(32)] = -amax
            blocks.append(block * 2.0 ** int(rng.integers(-100, 100)))
    tiny, largest = float.fromhex("0x1p-149"), float(np.finfo(np.float32).max)
    blocks.append(np.zeros(32))
    blocks.append(-np.zeros(32))
    blocks.append(np.full(32, tiny))
    blocks.append(rng.integers(-(2 ** 23), 2 ** 23, 32) * tiny)
    blocks.append(np.where(np.arange(32) % 2, largest, -largest))
    blocks.append(np.where(np.arange(32) == 7, largest, tiny))
    for special in (np.nan, np.inf, -np.inf):
        block = rng.standard_normal(32)
        block[rng.integers(32)] = special
        blocks.append(block)
    with np.errstate(over="ignore"):
        return [np.asarray(b, dtype=np.float64).astype(np.float32) for b in blocks]


def main():
    with open(sys.argv[1], "w", encoding="ascii") as out:
        out.write("# MX quantisation goldens; made by: tools/make_mx_goldens.py tests/data/mx_goldens.txt\n")
        out.write(f"# numpy {np.__version__}, ml_dtypes {ml_dtypes.__version__}, seed {SEED}\n")
        for x in inputs():
            out.write("input " + "".join(f"{b:08x}" for b in x.view(np.uint32)) + "\n")
            for name in FORMATS:
                for rule in RULES:
                    scale, block = quantise(x, name, rule)
                    out.write(f"{name} {rule} {scale:02x} {block.hex()}\n")


if __name__ == "__main__":
    main()
