#!/usr/bin/env bash
# tools/setup.sh [group …]: installs the Debian packages of tools/packages.txt that are missing; silent when none is.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
  echo "setup: $*" >&2
  exit 1
}

# Of the machine's architecture, where a name does not end with one: another's may be there beside it.
installed() {
  local name=${1%%:*} architecture
  architecture=${1#"$name"}
  architecture=${architecture#:}
  dpkg-query -W -f '${db:Status-Status} ${Architecture}\n' "$name" 2>/dev/null |
    grep -xE "installed (${architecture:-$(dpkg --print-architecture)}|all)" >/dev/null
}
# apt-cache succeeds for names that are only mentioned by others, too, and then says nothing.
offered() { [ -n "$(apt-cache show "$1" 2>/dev/null)" ]; }

# Lines of packages.txt without a group, and those of the groups asked for.
wanted_lines() {
  local groups=" $* " line group
  while read -r line; do
    case $line in
      '' | '#'*) continue ;;
      *:*)
        group=${line%%:*}
        [[ $groups == *" $group "* ]] || continue
        ;;
    esac
    echo "${line#*: }"
  done <tools/packages.txt
}

# Of each line's alternatives: nothing when one is installed, else all of them as one line.
missing_lines() {
  local line name
  while read -r line; do
    for name in ${line//|/ }; do
      installed "$name" && continue 2
    done
    echo "$line"
  done
}

first_offered() {
  local name
  for name in ${1//|/ }; do
    if offered "$name"; then
      echo "$name"
      return
    fi
  done
  fail "no package source of this system offers: $1 (Debian 12 and Ubuntu 24.04 do)"
}

install_missing() {
  local missing=$1 as_root=() names=() line name
  command -v apt-get >/dev/null || fail "these are missing, and there is no apt-get to install them: ${missing//$'\n'/, }"
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || fail "these are missing; install them as root: apt-get install $(cut -d' ' -f1 <<<"$missing" | tr '\n' ' ')"
    as_root=(sudo)
  fi
  if [[ $missing == *:arm64* ]]; then
    # Ubuntu has arm64's packages on other servers, which are not ours to add.
    grep -qx 'ID=debian' /etc/os-release || fail "packages of arm64 on another machine: want Debian, whose servers offer them all"
    "${as_root[@]}" dpkg --add-architecture arm64
  fi
  echo "setup: installing ${missing//$'\n'/, }"
  "${as_root[@]}" apt-get update -qq </dev/null || echo "setup: apt-get update failed; going on with the lists at hand" >&2
  while read -r line; do
    name=$(first_offered "$line")
    names+=("$name")
  done <<<"$missing"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${names[@]}" \
    </dev/null >/dev/null || fail "apt-get could not install: ${names[*]}"
}

for group in "$@"; do
  grep -q "^$group: " tools/packages.txt || fail "tools/packages.txt has no group $group"
done

if command -v dpkg-query >/dev/null; then
  missing=$(wanted_lines "$@" | missing_lines)
  [ -z "$missing" ] || install_missing "$missing"
else
  # Not Debian: CMake and the tools name what they miss.
  echo "setup: no dpkg here; these must be installed already (Debian's names): $(wanted_lines "$@" | tr '\n' ' ')"
fi
