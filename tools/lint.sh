#!/usr/bin/env bash
# tools/lint.sh [build folder]: layers and house rules, formatting, naming. Needs the folder's compile_commands.json.
# A source whose naming was found right is not read again until it, a header that it includes or the rules change.
# tools/lint.sh --format: rewrites the sources in the house format instead.
set -euo pipefail
cd "$(dirname "$0")/.."

sources() { find src tests bench \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) 2>/dev/null || true; }

if [ "${1:-}" = --format ]; then
  sources | xargs -r clang-format-19 -i
  exit
fi

build=${1:-build/cpu}
jobs=${JOBS:-$(nproc)}
failed=0

step() { printf 'lint: %s\n' "$1"; }

step "layers and house rules"
python3 tools/check_layers.py || failed=1

step "formatting"
sources | xargs -r clang-format-19 --dry-run -Werror || { failed=1; echo "lint: \`make format\` repairs this"; }

step "what the naming rules find"
misnamed=tools/misnamed.cpp
found=$(clang-tidy-19 --config-file=.clang-tidy --quiet $misnamed -- -std=c++20 2>/dev/null | sed -nE 's|.*/misnamed\.cpp:([0-9]+):.* error: invalid case style.*|\1|p' | sort -nu || true)
planted=$(grep -n '// breaks it' $misnamed | cut -d: -f1)
if [ "$found" != "$planted" ]; then
  failed=1
  echo "lint: $misnamed: want errors in lines" $planted, found "in" $found
fi

# Shadows are the compiler's to find: in a unity source clang also takes another file's names for what is hidden.
check_naming() {  # source, stamp
  if clang-tidy-19 -p "$build" --quiet --extra-arg=-Wno-unknown-warning-option --extra-arg=-Wno-unused-command-line-argument --extra-arg=-Wno-deprecated-declarations --extra-arg=-Wno-shadow "$1" >"$2.log" 2>&1; then
    mv "$2.log" "$2"
  else
    grep -E '(error|warning|note):' "$2.log" || cat "$2.log"
    return 1
  fi
}
export -f check_naming
export build

stamps=$build/lint
mkdir -p "$stamps"
rules=$(grep -hv NIBBLE_COMMIT= .clang-tidy "$build/compile_commands.json" | sha256sum)  # each commit changes that line
# A unity source (cmake/room.cmake) is read at once, with all it includes. Own files that each source was built from, as ninja knows
# them; before a build, every header stands for them.
declare -A read_by
while IFS=$'\t' read -r source file; do
  read_by[$source]+=" $file"
done < <(ninja -C "$build" -t deps | awk -v root="    $(realpath --relative-to="$build" .)/" -v unity="    $(realpath -m --relative-to="$build" build/unity)/" '
  /^[^ ]/ { source = ""; next }
  index($0, unity) == 1 { source = "build/unity/" substr($0, 1 + length(unity)); next }
  index($0, root) == 1 { file = substr($0, 1 + length(root)); if (source == "") source = file; print source "\t" file }' | sort -u)
headers=$(sources | grep -E '\.(h|cuh)$')
due=()
while read -r source; do  # a header that is gone changes the key, too
  included=$(sed -n 's|^#include "\(.*\.cpp\)"$|src/\1|p' "$source")
  key=$( (echo "$rules"; cat "$source" $included ${read_by[$source]:-$headers} 2>/dev/null || true) | sha256sum | cut -c1-16)
  stamp=$stamps/${source//\//_}.$key
  [ -e "$stamp" ] || { rm -f "$stamps/${source//\//_}".*; due+=("$source" "$stamp"); }
done < <(sed -nE "s,^ *\"file\": \"$PWD/((src|build/unity)/.*\.cpp)\".*,\1,p" "$build/compile_commands.json" | grep -v /xgrammar_ | sort -u)
step "naming ($((${#due[@]} / 2)) sources)"
if [ ${#due[@]} -gt 0 ]; then
  printf '%s\0' "${due[@]}" | xargs -0 -n 2 -P "$jobs" bash -c 'check_naming "$@"' naming || failed=1
fi

if [ "$failed" != 0 ]; then
  step FAILED
  exit 1
fi
step clean
