#!/usr/bin/env python3
"""The notices of what is in the program besides Nibble: prints them, from third_party/notices.json. tools/check_package.py
holds the list against what a build includes and links."""
import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[1]


def entries():
    return json.loads((ROOT / "third_party/notices.json").read_text())


def notices(listed):
    contained = [e for e in listed if e.get("contained", True)]
    beside = [e for e in listed if not e.get("contained", True)]
    texts = {}  # file: what it is the licence of
    for entry in contained:
        if "text" in entry:
            texts.setdefault(entry["text"], []).append(entry["name"])
    out = ["Nibble is licensed under the Apache License 2.0 (LICENSE). The program contains:", ""]
    for entry in contained:
        out.append(f"- {entry['name']}: {entry['licence']}; {entry['home']}")
        if "copyright" in entry:
            out.append(f"  {entry['copyright']}")
    out += ["", "It uses, where the system has them:", ""]
    out += [f"- {entry['name']}: {entry['licence']}; {entry['home']}" for entry in beside]
    for file, names in texts.items():
        out += ["", "=" * 80, ", ".join(names), "=" * 80, "", (ROOT / file).read_text().strip("\n")]
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    print(notices(entries()), end="")
