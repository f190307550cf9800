#!/usr/bin/env python3
"""Writes the tokeniser goldens under tests/data, or checks a tokenizer.json that we wrote against tiktoken.

    tools/venv.sh .venv tools/requirements.txt
    mkdir cache && cp tests/data/o200k_base.tiktoken cache/fb374d419588a4632f3f557e76b4b70aebbca790
    TIKTOKEN_CACHE_DIR=cache .venv/bin/python tools/make_tokenizer_goldens.py
    TIKTOKEN_CACHE_DIR=cache .venv/bin/python tools/make_tokenizer_goldens.py --check tokenizer.json

o200k_goldens.jsonl, expected by tiktoken's o200k_harmony, one JSON object a line after the provenance:
  text | b64 (bytes that are not UTF-8) | unit+repeat | block (block_text() of the 256 code points from there on)
  special: true when special tokens are allowed     ids, or n and fnv: count and FNV-1a 64 of the ids as 4 bytes LE
  pairs: FNV of the ids by PAIR_RANKS, in which (unlike in o200k) almost any wrong cut between pieces changes a token
tiny_tokenizer.json, tiny_goldens.jsonl: a vocabulary of 600 trained here, expected by tokenizers.
"""
import argparse
import base64
import json
import random
import string
import sys
from pathlib import Path

import tiktoken
import tokenizers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

DATA = Path(__file__).resolve().parent.parent / "tests" / "data"
SEED = 20261121
PATTERN = tiktoken.get_encoding("o200k_harmony")._pat_str

# Every pair of bytes is a token, in an order without meaning.
PAIR_RANKS = {bytes([b]): b for b in range(256)} | {bytes([k >> 8, k & 255]): 256 + k * 40503 % 65536 for k in range(65536)}

PROSE = """The quick brown fox jumps over the lazy dog. "Don't," she said, "we'll see what they've got!" I'M, YOU'RE, he'D.
It was a bright cold day in April, and the clocks were striking thirteen; 3.14159 is not 22/7, is it? McDonald's iPhone XMLHttpRequest
Größe Straße naïve façade Ærøskøbing Łódź İstanbul ıssız ǅungla ǈubav Ωμέγα ΑΒΓ αβγ Привет МИР ещё Ёлка Київ Հայերեն ქართული ᲥᲐᲠᲗᲣᲚᲘ
שלום עולם مرحبا بالعالم ١٢٣٤٥ فارسی ۱۲۳ اردو हिन्दी नमस्ते १२३४ বাংলা ১২৩ தமிழ் తెలుగు ಕನ್ನಡ മലയാളം සිංහල ไทยภาษา ลาว བོད་ཡིག မြန်မာ ភាសាខ្មែរ
中文测试 漢字仮名交じり文 ひらがな カタカナ ﾊﾝｶｸ 한국어 조선말 ᄒᆞᆫ글 ᠮᠣᠩᠭᠣᠯ አማርኛ ᏣᎳᎩ Ꮳꮃ ᐃᓄᒃᑎᑐᑦ ⵜⴰⵎⴰⵣⵉⵖⵜ ߒߞߏ 𞤀𞤣𞤤𞤢𞤥 𐐔𐐯𐑅𐐨𐑉𐐯𐐻 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 ①②③ Ⅷ ⅷ ½ ² ₃ ㊿ ４２
café cafe\u0301 A\u030a\u0323 e\u0301\u0302's \u0301A \u0301a \u0301\u0301B tiếng Việt Ngữ Yorùbá ʻOkina ʼn ŉ ß ẞ ﬁ ﬀ ſ K Å µ ª º""".split()
EMOJI = """😀 👍🏽 👩‍🔬 👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇫🇷 🏴󠁧󠁢󠁥󠁮󠁧󠁿 ❤️ ☕ ✈︎ 1️⃣ #️⃣ 🫠 🫩 🪿 ™ © ∑∫√ ≠ → € £ ¥ ₿ † ‡ … — – « » „ “ ” ‘ ’ 。 、 ！ ？ 「」""".split()
SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\r", "\n\n", "\v", "\f", "\x1c", "\x1f", "\x85", "\xa0", "\u1680", "\u180e",
          "\u2000", "\u2003", "\u2007", "\u200a", "\u200b", "\u2028", "\u2029", "\u202f", "\u205f", "\u2060", "\u3000", "\ufeff"]
CONTRACTIONS = ["'s", "'S", "'t", "'T", "'re", "'RE", "'rE", "'Re", "'ve", "'VE", "'vE", "'m", "'M", "'ll", "'LL", "'lL", "'d", "'D",
                "'ſ", "’s", "'x", "'r", "'l", "'v", "'", "''s", "'ss", "'re's", "'\u0301s", "'ſt", "'ſs"]
CODE = ["int main(void) {\n    return 0;\n}\n", "def f(x):\n\treturn x ** 2  # square\n", "<a href=\"/x/y?z=1&q=%20\">link</a>\r\n",
        "SELECT * FROM t WHERE a='b';\n", "for (auto& [k, v] : map) { std::cout << k << '\\n'; }", "{\"a\": [1, 2.5e-3, null, true]}",
        "fn main() -> Result<(), Box<dyn Error>> { let x = &mut v[..]; Ok(()) }", "if ((a && !b) || c != d) { /* no */ }   // yes\n\n\n",
        "\\frac{\\partial f}{\\partial x} = \\sum_{i=0}^{n} x_i^2", "$ git log --oneline | head -n 5 > /dev/null 2>&1", "x = y if z else w;;;;\n\n\n\n    \n",
        "https://example.com/a/b///c?d=e#f", "#!/bin/sh\nset -euo pipefail\n", "printf(\"%5.2f\\t%s\\n\", 1.0, s);", "a//b\n//c\n/\n///\r\n/"]
LOOKALIKES = ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>", "<|return|>", "<|constrain|>", "<|endoftext|>", "<|startoftext|>",
              "<|endofprompt|>", "<|reserved_200000|>", "<|reserved_200018|>", "<|reserved_201087|>", "<|reserved_201088|>", "<|start|", "<|start>",
              "<|<|start|>|>", "<|START|>", "<| start|>", "<|im_start|>", "|>", "<|", "<|end|><|start|>assistant"]
BAD = [b"\xff", b"\x80", b"\xc0\xaf", b"\xe2\x82", b"\xed\xa0\x80", b"\xf0\x9f\x98", b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80", b"\xe0\x80\x80", b"\xc3"]


def fnv(ids: list[int]) -> str:
    h = 0xCBF29CE484222325
    for b in b"".join(i.to_bytes(4, "little") for i in ids):
        h = (h ^ b) * 0x100000001B3 % 2**64
    return f"{h:016x}"


def block_text(first: int) -> str:
    """Every code point of a block in the places where the split can tell classes apart."""
    chars = [chr(c) for c in range(first, first + 256) if not 0xD800 <= c <= 0xDFFF]
    return "".join(f"a{c}b{c}C {c}{c}A!{c}1{c}  {c}\n{c}'{c}s" for c in chars) + "".join(chars)


def random_char(r: random.Random) -> str:
    while True:
        kind = r.random()
        c = (r.randrange(0x80) if kind < 0.25 else r.randrange(0x800) if kind < 0.45 else r.randrange(0x10000) if kind < 0.75
             else r.randrange(0x10000, 0x20000) if kind < 0.93 else r.randrange(0x110000))
        if not 0xD800 <= c <= 0xDFFF:
            return chr(c)


def random_case(r: random.Random, word: str) -> str:
    return r.choice([str.lower, str.upper, str.title, str.swapcase, str])(word)


def strings(r: random.Random) -> list[str]:
    words = PROSE + EMOJI
    out = [*words, *SPACES, *CONTRACTIONS, *CODE, *LOOKALIKES, ""]
    out += [a + b for a in SPACES for b in SPACES] + [f"x{a}{b}y" for a in SPACES for b in SPACES]
    out += [w + c for w in ("a", "A", "Aa", "中", "aA", "\u0301", "1", "!", "ǅ", " ") for c in CONTRACTIONS]
    out += [w + c + w for w in ("a", "A", "中") for c in CONTRACTIONS]
    small = "aB中\u0301ǅ1! \n'/s"  # every class: all short strings of them
    out += [a + b + c for a in small for b in small for c in small]
    out += ["".join(r.choice(small) for _ in range(r.randrange(4, 12))) for _ in range(3000)]
    out += ["".join(r.choice(SPACES + ["a", "1", "!"]) for _ in range(r.randrange(2, 10))) for _ in range(1500)]
    out += [r.choice(SPACES[:14]).join(random_case(r, r.choice(words)) for _ in range(r.randrange(1, 8))) for _ in range(3000)]
    out += ["".join(r.choice([random_case(r, r.choice(words)), r.choice(SPACES), r.choice(CONTRACTIONS), r.choice(CODE), r.choice(LOOKALIKES),
                              str(r.randrange(10 ** r.randrange(1, 12)))]) for _ in range(r.randrange(1, 5))) for _ in range(3500)]
    out += ["".join(random_char(r) for _ in range(r.randrange(1, 20))) for _ in range(4000)]
    out += ["".join(r.choice(string.printable) for _ in range(r.randrange(1, 40))) for _ in range(1000)]
    out += ["".join(r.choice(string.ascii_letters) for _ in range(r.randrange(20, 200))) for _ in range(300)]
    return list(dict.fromkeys(out))


def record(fields: dict, ids: list[int], full: bool) -> str:
    expected = {"ids": ids} if full else {"n": len(ids), "fnv": fnv(ids)}
    return json.dumps(fields | expected, ensure_ascii=False, separators=(",", ":"))


def o200k_lines(r: random.Random) -> list[str]:
    enc = tiktoken.get_encoding("o200k_harmony")
    probe = tiktoken.Encoding("probe", pat_str=PATTERN, mergeable_ranks=PAIR_RANKS, special_tokens={})
    lines = []

    def add(fields: dict, text: str, full: bool) -> None:
        lines.append(record(fields | {"pairs": fnv(probe.encode_ordinary(text))}, enc.encode_ordinary(text), full))

    for text in strings(r):
        add({"text": text}, text, len(text) < 12 and r.random() < 0.3 or r.random() < 0.12)
    for _ in range(1500):
        text = "".join(r.choice(LOOKALIKES + PROSE + SPACES[:9]) for _ in range(r.randrange(1, 7)))
        lines.append(record({"text": text, "special": True}, enc.encode(text, allowed_special="all"), r.random() < 0.2))
    for _ in range(1500):
        valid = "".join(r.choice(PROSE + SPACES + CODE) for _ in range(r.randrange(4)))
        data = valid.encode() + r.choice(BAD) + r.choice(["", "x", " the end", "\n\n", "é", "中文"]).encode() + r.choice(BAD + [b""])
        fields = {"b64": base64.b64encode(data).decode()}
        lines.append(record(fields, enc._encode_bytes(data), r.random() < 0.3))
    for unit in ["a", "A", "aA", "Aa", " ", "\n", " \n", "\r\n", "\u0301", "中", "1", "!", "'", "/", "\t", "ab", "the ", "'s", "\x00", "😀", "\xa0"]:
        for repeat in (2, 3, 4, 7, 16, 31, 63, 64, 65, 66, 100, 129, 500, 501, 1000, 4097, 20000):
            add({"unit": unit, "repeat": repeat}, unit * repeat, repeat < 8)
    for first in range(0, 0x110000, 256):
        crowded = first < 0x40000 or 0xE0000 <= first < 0xE1000  # elsewhere all is alike: one block in 16
        if not 0xD800 <= first <= 0xDFFF and (crowded or first % 0x1000 == 0):
            add({"block": first}, block_text(first), False)
    return lines


def tiny_tokenizer(r: random.Random) -> Tokenizer:
    tok = Tokenizer(models.BPE(ignore_merges=False))
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(tokenizers.Regex(PATTERN), "isolated"),
                                                 pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=["<|endoftext|>", "<|start|>", "<|a b|>"], show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    corpus = CODE + [" ".join(r.choice(PROSE) for _ in range(20)) for _ in range(200)]
    tok.train_from_iterator(corpus, trainer)
    return tok


def tiny_lines(tok: Tokenizer, r: random.Random) -> list[str]:
    lines = []
    everything = CODE + PROSE + EMOJI + SPACES[:9] + CONTRACTIONS + ["<|endoftext|>", "<|start|>", "<|a b|>", "<|a b", "a" * 100]
    for _ in range(2000):
        text = "".join(r.choice(everything) for _ in range(r.randrange(1, 6)))
        special = r.random() < 0.5
        tok.encode_special_tokens = not special
        lines.append(record({"text": text} | ({"special": True} if special else {}), tok.encode(text).ids, r.random() < 0.1))
    return lines


def check(path: str) -> None:
    """Our tokenizer.json, loaded by tokenizers, against tiktoken. (A tokenizer.json has one name per id.)"""
    enc, tok = tiktoken.get_encoding("o200k_harmony"), Tokenizer.from_file(path)
    texts = [t for t in strings(random.Random(SEED)) if "<|reserved_200018|>" not in t]
    texts += [block_text(first) for first in range(0, 0x110000, 256)]
    differ = [t for t in texts if tok.encode(t).ids != enc.encode(t, allowed_special="all")]
    print(f"tokenizers {tokenizers.__version__}, tiktoken {tiktoken.__version__}: {len(texts)} texts, {len(differ)} differ; "
          f"vocabulary {tok.get_vocab_size()}")
    for text in differ[:20]:
        print(ascii(text)[:200])


def write_lines(name: str, package: str, lines: list[str]) -> None:
    provenance = {"provenance": f"tools/make_tokenizer_goldens.py, {package}, Python {sys.version.split()[0]}, seed {SEED}"}
    (DATA / name).write_text("\n".join([json.dumps(provenance), *lines]) + "\n", encoding="utf-8", newline="\n")
    print(name, len(lines), (DATA / name).stat().st_size)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", metavar="TOKENIZER_JSON")
    arguments = parser.parse_args()
    if arguments.check:
        check(arguments.check)
        return
    write_lines("o200k_goldens.jsonl", f"tiktoken {tiktoken.__version__}", o200k_lines(random.Random(SEED)))
    tok = tiny_tokenizer(random.Random(SEED))
    tok.save(str(DATA / "tiny_tokenizer.json"), pretty=False)
    write_lines("tiny_goldens.jsonl", f"tokenizers {tokenizers.__version__}", tiny_lines(tok, random.Random(SEED)))


if __name__ == "__main__":
    main()
