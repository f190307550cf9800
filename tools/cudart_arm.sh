#!/usr/bin/env bash
# tools/cudart_arm.sh <folder>: CUDA's static runtime for arm64, from PyPI's wheel of this nvcc's version, unless it is there.
set -euo pipefail
folder=${1:?want a folder}
[ -e "$folder/nvidia/cu13/lib/libcudart_static.a" ] && exit
version=$(PATH=$PATH:/usr/local/cuda/bin nvcc --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
mkdir -p "$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" download --quiet --no-deps --only-binary=:all: --platform manylinux2014_aarch64 --dest "$folder" \
  "nvidia-cuda-runtime==$version.*"
python3 -m zipfile -e "$folder"/nvidia_cuda_runtime-*.whl "$folder"
