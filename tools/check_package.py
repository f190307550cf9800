#!/usr/bin/env python3
"""tools/check_package.py <build folder>: whether the program runs on the distributions that docs/install.md names (what it
links, which versions of symbols), and whether third_party/notices.json names everything that is in it."""
import os
import pathlib
import re
import subprocess
import sys

from notices import ROOT, entries, folders

# The oldest of the distributions named: glibc of Ubuntu 22.04, and its OpenSSL's first symbols.
MOST = {"GLIBC": (2, 35), "OPENSSL": (3, 0, 0)}
BUILDS_FOR_ALL = (2, 36)  # Debian 12's glibc: with a newer one, programs need newer symbols
# Of libraries that every distribution has under this name.
SHARED = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libssl.so.3", "libcrypto.so.3"}


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def needed(objdump_p):
    return re.findall(r"^\s+NEEDED\s+(\S+)", objdump_p, re.M)


def versions(objdump_t):
    """{GLIBC: the newest version of a symbol that is asked for}."""
    newest = {}
    for name, number in re.findall(r"\*UND\*.*\(?\b([A-Z][A-Z_]*)_([\d.]+)\)?", objdump_t):
        newest[name] = max(newest.get(name, (0,)), tuple(map(int, number.split("."))))
    return newest


def dotted(version):
    return ".".join(map(str, version))


def program_faults(libraries, symbols, most=None):
    faults = []
    for library in libraries:
        if library not in SHARED and not library.startswith("ld-linux"):
            faults.append(f"links {library}, of which distributions have different versions or none: want it inside (NIBBLE_PORTABLE)")
    for name, version in symbols.items():
        if name not in MOST:
            faults.append(f"wants a symbol of {name}_{dotted(version)}: no version of that name is on every distribution")
        elif version > (MOST if most is None else most).get(name, version):
            faults.append(f"wants a symbol of {name}_{dotted(version)}: want at most {name}_{dotted(MOST[name])}")
    return faults


def included_folders(deps):
    """First folders below /usr/include of every header that a source was built from."""
    found = set()
    for path in re.findall(r"^\s+/usr/include/(\S+)$", deps, re.M):
        parts = path.split("/")
        if len(parts) > 1 and "linux-gnu" in parts[0]:
            parts = parts[1:]
        if len(parts) > 1:
            found.add(parts[0])
    return found


def notice_faults(listed, headers, libraries, folders, exists):
    def named(key):
        return {value for entry in listed for value in entry.get(key, [])}
    faults = [f"includes <{h}/…>: no entry has it under headers" for h in sorted(headers - named("headers"))]
    faults += [f"links {l}: no entry has it under libraries" for l in libraries if l not in named("libraries")]
    faults += [f"third_party/{f}: want a README.md, its first line the name, and a LICENSE" for f in sorted(folders)
               if not (exists(f"third_party/{f}/README.md") and exists(f"third_party/{f}/LICENSE"))]
    for entry in listed:
        paths = entry.get("files", []) + ([entry["text"]] if "text" in entry else [])
        faults += [f"{entry['name']} names {path}, which is not there" for path in paths if not exists(path)]
        own_terms = "Exception" in entry["licence"] or "EULA" in entry["licence"]
        if entry.get("contained", True) and "text" not in entry and not own_terms:
            faults.append(f"{entry['name']}: want its licence's text")
    return faults


def linked(build):
    """The libraries that the program links, and the newest versions of symbols that it wants, by its build's objdump."""
    program = build / "src/app/nibble"
    objdump = re.search(r"^CMAKE_OBJDUMP:\S+?=(.+)$", (build / "CMakeCache.txt").read_text(), re.M)[1]
    return needed(output(objdump, "-p", program)), versions(output(objdump, "-T", program))


def main(build):
    program = build / "src/app/nibble"
    libraries, symbols = linked(build)
    here = tuple(map(int, os.confstr("CS_GNU_LIBC_VERSION").split()[1].split(".")))
    most = dict(MOST)
    if here > BUILDS_FOR_ALL:
        most = {}
        print(f"skipped: versions of symbols: this system's glibc is {dotted(here)}; packages for all are built with {dotted(BUILDS_FOR_ALL)}")
    faults = [f"{program} {fault}" for fault in program_faults(libraries, symbols, most)]
    headers = included_folders(output("ninja", "-C", build, "-t", "deps")) - {"gtest", "gmock"}
    faults += [f"third_party/notices.json: {fault}"
               for fault in notice_faults(entries(), headers, libraries, set(folders()), lambda path: (ROOT / path).exists())]
    for fault in faults:
        print(f"package: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
