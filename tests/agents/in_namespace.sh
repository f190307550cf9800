#!/usr/bin/env bash
# tests/agents/in_namespace.sh SCRATCH COMMAND...: runs it without a network but loopback, with an empty environment; only SCRATCH can be
# written, where its HOME is. Root, or a kernel that lets users make namespaces.
set -euo pipefail
scratch=$(realpath "$1")
shift
[ "$(id -u)" = 0 ] && as_root=() || as_root=(--map-root-user)
exec unshare "${as_root[@]}" --net --mount --pid --fork --kill-child --mount-proc bash -euc '
ip link set lo up
mount --make-rprivate /
mount --bind "$1" "$1"
for at in $(findmnt -rno TARGET | tac); do
  case $at in "$1"* | /proc* | /sys* | /dev*) ;; *) mount -o remount,bind,ro "$at" 2>/dev/null || { [ "$at" != / ] || exit; } ;; esac
done
cd "$1"
exec env -i PATH=/usr/local/bin:/usr/bin:/bin HOME="$1" TMPDIR="$1" TERM=dumb LANG=C.UTF-8 "${@:2}"
' inside "$scratch" "$@"
