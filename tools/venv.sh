#!/usr/bin/env bash
# tools/venv.sh FOLDER REQUIREMENTS: a Python environment with these packages from PyPI, made anew where the file changed.
set -euo pipefail
cd "$(dirname "$0")/.."
cmp -s "$2" "$1/requirements.txt" && exit
echo "venv: making $1"
python3 -m venv --clear "$1"
"$1/bin/pip" install --quiet --requirement "$2"
cp "$2" "$1/requirements.txt"
