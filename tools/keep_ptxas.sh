#!/usr/bin/env bash
# tools/keep_ptxas.sh <compiler> …: a compiler launcher. What `-Xptxas -v` prints goes to <object>.ptxas beside the
# object, for tools/check_spills.py; the rest where it would have gone.
set -uo pipefail
object=
previous=
for argument in "$@"; do
  [ "$previous" = -o ] && object=$argument
  previous=$argument
done
[ -n "$object" ] || exec "$@"
told='^(ptxas info|    [0-9]+ bytes stack frame)'
"$@" >"$object.said" 2>&1
status=$?
grep -E "$told" "$object.said" >"$object.ptxas"
grep -vE "$told" "$object.said" >&2
rm -f "$object.said"
exit "$status"
