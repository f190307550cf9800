#!/usr/bin/env python3
"""The notices of what is in the program besides Nibble: prints them, from third_party/notices.json and each folder of
third_party, whose README.md begins with its name. tools/check_package.py holds them against what a build includes and links."""
import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[1]


def entries():
    return json.loads((ROOT / "third_party/notices.json").read_text())


def folders():
    return sorted(path.name for path in (ROOT / "third_party").iterdir() if path.is_dir() and path.name != "licences")


def same_text(file):
    return "".join((ROOT / file).read_text().split())


def notices(listed):
    contained = [e for e in listed if e.get("contained", True)]
    beside = [e for e in listed if not e.get("contained", True)]
    texts = {}  # file: what it is the licence of
    for entry in contained:
        if "text" in entry:
            texts.setdefault(entry["text"], []).append(entry["name"])
    own = same_text("LICENSE")
    for folder in folders():
        name = (ROOT / "third_party" / folder / "README.md").read_text().split("\n", 1)[0].lstrip("# ")
        contained.append({"name": name, "licence": "below", "home": f"third_party/{folder} of the sources"})
        for file in sorted((ROOT / "third_party" / folder).glob("LICENSE*")) + sorted((ROOT / "third_party" / folder).glob("NOTICE*")):
            path = str(file.relative_to(ROOT))
            texts.setdefault("LICENSE" if same_text(path)[:9000] == own[:9000] else path, []).append(name)
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
