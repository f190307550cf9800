#!/usr/bin/env python3
"""tools/package.py <build folder> <output folder>: a .deb, a relocatable tarball and a Python wheel of a built program, for the
machine that it was built for. The same commit gives the same bytes."""
import base64
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import check_package
from notices import ROOT

PROGRAM = "src/app/nibble"
MACHINES = {62: ("x86_64", "amd64"), 183: ("aarch64", "arm64")}  # by ELF's e_machine: the kernel's name, Debian's
DEBIAN_PACKAGES = {"libssl.so.3": "libssl3"}  # Ubuntu 24.04's libssl3t64 provides it
# Stopped before its files go; never enabled or started: that is the administrator's to do.
SCRIPTS = {
    "postinst": 'if [ -d /run/systemd/system ]; then systemctl daemon-reload || true; fi\n',
    "prerm": 'if [ "$1" = remove ] && [ -d /run/systemd/system ]; then systemctl disable --now nibble.service || true; fi\n',
    "postrm": 'if [ -d /run/systemd/system ]; then systemctl daemon-reload || true; fi\n'}


def run(*command, **options):
    return subprocess.run(command, check=True, text=True, **options)


def git(*command):
    done = subprocess.run(["git", "-C", ROOT, *command], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def cached(build, name):
    for line in (build / "CMakeCache.txt").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return line.split("=", 1)[1]
    return ""


def version_of(build):
    """The project's, and behind it the commit's time where the commit is no release."""
    version = cached(build, "CMAKE_PROJECT_VERSION")
    if git("tag", "--points-at", "HEAD", f"v{version}"):
        return version
    time = git("log", "-1", "--date=format-local:%Y%m%d%H%M", "--format=%cd")
    return f"{version}+{time}" if time else version


def install(build, prefix, destination=None):
    env = {**os.environ, "DESTDIR": str(destination)} if destination else None
    run("cmake", "--install", build, "--prefix", prefix, "--strip", env=env, stdout=subprocess.DEVNULL)


def tarball(build, out, name):
    install(build, out / name)
    shutil.copytree(ROOT / "packaging", out / name / "share/nibble/packaging")
    file = out / f"{name}.tar.gz"
    pack = ["tar", "--sort=name", "--owner=0", "--group=0", "--numeric-owner", f"--mtime=@{os.environ['SOURCE_DATE_EPOCH']}", "--mode=go-w", "-C", out]
    run(*pack, "--use-compress-program=gzip -9n", "-cf", file, name)
    shutil.rmtree(out / name)
    return file


def depends(libraries, symbols):
    packages = [f"libc6 (>= {check_package.dotted(symbols['GLIBC'])})"]
    return ", ".join(packages + [DEBIAN_PACKAGES[l] for l in libraries if l in DEBIAN_PACKAGES])


def debian(build, out, package, version, arch):
    stage = out / "stage"
    install(build, "/usr", stage)
    for source, to in (("nibble.service", "usr/lib/systemd/system"), ("serve.toml", "etc/nibble")):
        (stage / to).mkdir(parents=True)
        shutil.copy(ROOT / "packaging" / source, stage / to)
    (stage / "usr/share/doc/nibble/copyright").write_text(
        "Copyright: the Nibble authors. Licensed under the Apache License 2.0: /usr/share/common-licenses/Apache-2.0.\n"
        "What it contains of others, and their licences: THIRD-PARTY-NOTICES, beside this file.\n")
    program = build / PROGRAM
    wants = depends(*check_package.linked(build))
    size = sum(path.stat().st_size for path in stage.rglob("*") if path.is_file()) // 1024
    other = "nibble-cuda" if package == "nibble" else "nibble"
    control = stage / "DEBIAN"
    control.mkdir()
    (control / "control").write_text(
        f"Package: {package}\nVersion: {version}\nArchitecture: {arch}\nMaintainer: The Nibble authors <nibble@localhost>\n"
        f"Installed-Size: {size}\nDepends: {wants}\nRecommends: libcurl4, ca-certificates\nSuggests: libzmq5\nConflicts: {other}\nReplaces: {other}\n"
        "Section: science\nPriority: optional\n"
        "Description: engine, chat and OpenAI-compatible server for gpt-oss\n"
        " One program without Python, for gpt-oss-20b and gpt-oss-120b. A small model to\n try it with is part of the package.\n")
    (control / "conffiles").write_text("/etc/nibble/serve.toml\n")
    for name, body in SCRIPTS.items():
        (control / name).write_text(f"#!/bin/sh\nset -e\n{body}")
        (control / name).chmod(0o755)
    for path in [stage, *stage.rglob("*")]:
        path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        os.utime(path, (int(os.environ["SOURCE_DATE_EPOCH"]),) * 2)
    file = out / f"{package}_{version}_{arch}.deb"
    print(f"packing {file.name}, which may take minutes", flush=True)
    run("dpkg-deb", "--root-owner-group", "-Zxz", "--build", stage, stage.with_suffix(".part"), stdout=subprocess.DEVNULL)
    stage.with_suffix(".part").rename(file)
    shutil.rmtree(stage)
    return file


def wheel(build, out, package, version, machine):
    """The program under the environment's bin, its files under share, and packaging/python as the module `nibble`."""
    stage = out / "wheel"
    name = f"{package.replace('-', '_')}-{version}"
    install(build, stage / f"{name}.data/data")
    (stage / f"{name}.data/scripts").mkdir()
    (stage / f"{name}.data/data/bin/nibble").rename(stage / f"{name}.data/scripts/nibble")
    (stage / f"{name}.data/data/bin").rmdir()
    shutil.copytree(ROOT / "packaging/python/nibble", stage / "nibble", ignore=shutil.ignore_patterns("__pycache__"))
    # PEP 600: the glibc that it wants. libssl.so.3 is the system's, as the .deb wants it.
    tag = f"py3-none-manylinux_{check_package.dotted(check_package.linked(build)[1]['GLIBC']).replace('.', '_')}_{machine}"
    about = stage / f"{name}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\nLicense: Apache-2.0\nRequires-Python: >=3.9\n"
                                    "Summary: engine, chat and OpenAI-compatible server for gpt-oss\n")
    (about / "WHEEL").write_text(f"Wheel-Version: 1.0\nGenerator: nibble\nRoot-Is-Purelib: false\nTag: {tag}\n")
    record = ""
    files = sorted(path for path in stage.rglob("*") if path.is_file())
    for path in files:
        digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
        record += f"{path.relative_to(stage)},sha256={digest},{path.stat().st_size}\n"
    (about / "RECORD").write_text(f"{record}{name}.dist-info/RECORD,,\n")
    file = out / f"{name}-{tag}.whl"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in [*files, about / "RECORD"]:
            entry = zipfile.ZipInfo(str(path.relative_to(stage)))  # of 1980, in every run
            entry.external_attr = (0o100755 if path.stat().st_mode & 0o100 else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes())
    shutil.rmtree(stage)
    return file


def main(build, out):
    faults = check_package.main(build)
    if faults:
        sys.exit("package: not made")
    os.environ.setdefault("SOURCE_DATE_EPOCH", git("log", "-1", "--format=%ct") or "0")
    os.environ["TZ"] = "UTC"
    os.umask(0o022)
    out.mkdir(parents=True, exist_ok=True)
    package = "nibble-cuda" if cached(build, "NIBBLE_CUDA") == "ON" else "nibble"
    version = version_of(build)
    with open(build / PROGRAM, "rb") as program:
        machine, debian_name = MACHINES[int.from_bytes(program.read(20)[18:20], "little")]
    made = [tarball(build, out, f"{package}-{version}-linux-{machine}"), wheel(build, out, package, version, machine)]
    if shutil.which("dpkg-deb"):
        made.append(debian(build, out, package, version, debian_name))
    else:
        print("no .deb: want dpkg-deb")
    for file in made:
        print(f"{file}  {file.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve())
