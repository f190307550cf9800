#!/usr/bin/env python3
"""Cuts STIX Two Math down to what formulas of chats use: cut.py STIXTwoMath-Regular.ttf >stix-math.css
(needs fonttools and brotli)."""

import base64
import io
import sys

from fontTools import subset

CHARACTERS = [
    *range(0x20, 0x7F),  # ASCII
    *range(0xA0, 0x100),  # Latin-1
    *range(0x391, 0x3F7),  # Greek
    *range(0x2010, 0x2040), *range(0x2057, 0x2065),  # dashes, primes, invisible operators
    0x2070, 0x20D7, *range(0x302, 0x30D),  # accents
    *range(0x2100, 0x2140),  # letterlike: ℝ, ℓ, ℏ
    *range(0x2190, 0x2200),  # arrows
    *range(0x2200, 0x2300),  # operators
    *range(0x2308, 0x230C), *range(0x23B0, 0x23B2), *range(0x23DC, 0x23E2), 0x23B4, 0x23B5,  # floors, braces
    0x25A1, 0x25B3, 0x25CB, 0x25B9, 0x2605, 0x2660, 0x2661, 0x2662, 0x2663, 0x266D, 0x266E, 0x266F, 0x2713,
    *range(0x27E6, 0x27F0), *range(0x27F5, 0x27FD),  # angle brackets, long arrows
    *range(0x2A00, 0x2A07), 0x2A3F, *range(0x2A7D, 0x2A7F), *range(0x2AAF, 0x2AB1), 0x2AC5, 0x2AC6,
    *range(0x1D400, 0x1D5A0),  # bold, italic, script, Fraktur, double-struck
    *range(0x1D6A4, 0x1D756), *range(0x1D7CE, 0x1D7E2),  # bold and italic Greek; bold and double-struck digits
]

options = subset.Options(flavor="woff2", layout_features=["dtls"], name_IDs=[0, 1, 2, 13, 14], notdef_outline=True, hinting=False)
font = subset.load_font(sys.argv[1], options)
cutter = subset.Subsetter(options)
cutter.populate(unicodes=CHARACTERS)
cutter.subset(font)
woff2 = io.BytesIO()
subset.save_font(font, woff2, options)
print("/*! STIX Two Math 2.11, some characters; SIL Open Font License 1.1, third_party/stix/LICENSE */")
print('@font-face { font-family: "Formula"; src: url(data:font/woff2;base64,' + base64.b64encode(woff2.getvalue()).decode() + ') format("woff2"); }')
