#!/usr/bin/env bash
# tools/fuzz.sh SECONDS: runs every target of tests/fuzz that long. Seeds: the files of tests/fuzz/corpus/<target, less _fuzz>, read only, or
# the lines of <the same>.txt; words: tests/fuzz/<the same>.dict. What a run finds stays under build/fuzz. Stops at the first target that fails,
# and names the input that made it.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:?want the seconds per target}
ran=0
for target in build/fuzz/tests/fuzz/*; do
  if [ ! -f "$target" ] || [ ! -x "$target" ]; then continue; fi
  name=$(basename "$target")
  work=build/fuzz/work/$name
  mkdir -p "$work/corpus" "$work/found"
  seeds=tests/fuzz/corpus/${name%_fuzz}
  if [ -f "$seeds.txt" ]; then
    rm -rf "$work/seeds" && mkdir "$work/seeds"
    split -l 1 -a 4 "$seeds.txt" "$work/seeds/"
    seeds=$work/seeds
  fi
  [ -d "$seeds" ] || seeds=
  words=tests/fuzz/${name%_fuzz}.dict
  [ -f "$words" ] || words=
  echo "fuzz: $name, $seconds s"
  "$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -artifact_prefix="$work/found/" -verbosity=0 \
    -print_final_stats=1 ${words:+-dict="$words"} "$work/corpus" ${seeds:+"$seeds"} 2>"$work/log" </dev/null ||
    { cat "$work/log"; echo "fuzz: $name FAILED; its input is under $work/found"; exit 1; }
  grep number_of_executed_units "$work/log" || true
  ran=$((ran + 1))
done
[ "$ran" -gt 0 ] || { echo "fuzz: no targets in build/fuzz/tests/fuzz" >&2; exit 1; }
echo "fuzz: $ran targets, nothing found"
