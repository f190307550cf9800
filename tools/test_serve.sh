#!/usr/bin/env bash
# tools/test_serve.sh PROGRAM: other people's clients against `nibble serve`, unmodified. Makes .venv-serve from PyPI.
set -euo pipefail
cd "$(dirname "$0")/.."
NIBBLE=$(realpath "${1:?want the path of the built program}")
export NIBBLE
wanted=tests/clients/requirements.txt
if ! cmp -s $wanted .venv-serve/requirements.txt; then
  echo "test-serve: making .venv-serve"
  python3 -m venv .venv-serve
  .venv-serve/bin/pip install --quiet --requirement $wanted
  cp $wanted .venv-serve/requirements.txt
fi
for part in openai benchy; do .venv-serve/bin/python tests/clients/${part}_test.py; done
