#!/usr/bin/env bash
# tools/try_packages.sh <packages> <folder>: each package of a folder in a clean Debian 12 and 13 of its machine (made by
# debootstrap, below <folder>; arm64 under qemu): installed, a story, and gone again. Wants root.
set -euo pipefail
packages=$(realpath "${1:?want the folder of packages}")
mkdir -p "${2:?want a folder to work in}"
work=$(realpath "$2")
rows=()

formats=/proc/sys/fs/binfmt_misc
registered=
ended() {
  for root in "$work"/*/proc; do
    if mountpoint -q "$root"; then umount "$root"; fi
  done
  [ -z "$registered" ] || echo -1 >"$formats/qemu-aarch64"
}
trap ended EXIT

# Has the kernel run arm64 programs by qemu.
run_by_qemu() {
  [ "$(uname -m)" = x86_64 ] || return 0
  [ -e "$formats/register" ] || mount -t binfmt_misc none "$formats"
  [ -e "$formats/qemu-aarch64" ] && return
  cat /usr/lib/binfmt.d/qemu-aarch64.conf >"$formats/register"
  registered=yes
}

# A root without nibble, with what the three kinds of packages are installed by.
root_of() {
  local suite=$1 arch=$2 root=$work/$1-$2
  if [ ! -e "$root/made" ]; then
    rm -rf "$root"
    debootstrap --variant=minbase --arch="$arch" --include=ca-certificates,python3-venv "$suite" "$root" \
      >"$work/$suite-$arch.log" 2>&1 || { tail -n 20 "$work/$suite-$arch.log" >&2; exit 1; }
    touch "$root/made"
  fi
  mountpoint -q "$root/proc" || mount -t proc proc "$root/proc"
  echo "$root"
}

story='run nibble-tiny -p "Once upon a time" -n 20 --temperature 0'
from_python='import nibble
print(nibble.generate("Once upon a time", max_tokens=20, temperature=0))
with nibble.serve() as server: print(server.url)'

try() { # <name> <root> <commands>
  local said status=0 start=$SECONDS
  said=$(chroot "$2" /bin/sh -ec "$3" 2>&1) || status=$?
  if [ "$status" != 0 ]; then
    printf '%s\n' "$said" | tail -n 20 >&2
    echo "$1: FAILED" >&2
    exit 1
  fi
  rows+=("$(printf '%-70s %3d s  %s' "$1" $((SECONDS - start)) "$(grep -m 1 -i "once upon\|^,\|there" <<<"$said" | cut -c 1-60)")")
}

for arch in amd64 arm64; do
  machine=$([ "$arch" = amd64 ] && echo x86_64 || echo aarch64)
  for suite in bookworm trixie; do
    for file in "$packages"/*"$arch".deb "$packages"/*"$machine".tar.gz "$packages"/*"$machine".whl; do
      [ -e "$file" ] || continue
      name=$(basename "$file")
      [ "$arch" = amd64 ] || run_by_qemu
      root=$(root_of "$suite" "$arch")
      cp "$file" "$root/tmp/"
      case $name in
        *.deb) try "$suite: $name" "$root" "cd /tmp; apt-get -q update; apt-get -qy install ./$name; nibble --version; nibble $story; dpkg -P \$(dpkg-deb -f $name Package)" ;;
        *.tar.gz) try "$suite: $name" "$root" "cd /tmp; mkdir at; tar -C at -xf $name; at/*/bin/nibble --version; at/*/bin/nibble $story; rm -r at" ;;
        *.whl) try "$suite: $name" "$root" "cd /tmp; python3 -m venv v; v/bin/pip -q install --no-index ./$name; v/bin/nibble $story; v/bin/python -c '$from_python'; rm -r v" ;;
      esac
      rm "$root/tmp/$name"
    done
  done
done
printf '%s\n' "${rows[@]}"
