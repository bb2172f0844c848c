#!/usr/bin/env bash
# Puts NVIDIA's compiler and what kernels are built with into a folder, from their wheels on PyPI: 515 MB to fetch, 840 on
# disk, no rights of root. CMake finds it there by itself (cmake/HeadwiseCuda.cmake). The runtime is linked into what is
# built; cuBLASLt, for long prompts, is looked for when a program runs: its folder joins LD_LIBRARY_PATH.
# Usage: install_cuda.sh FOLDER
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: install_cuda.sh FOLDER" >&2; exit 2; }
folder=$1
wheels=(nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.96
  nvidia-cuda-cccl==13.0.85 nvidia-cublas==13.1.0.3)
if [ -x "$folder/bin/nvcc" ]; then
  echo "$folder/bin/nvcc is there"
  exit 0
fi
python3 -m pip --version >/dev/null 2>&1 || {
  as_root=(); [ "$(id -u)" -eq 0 ] || as_root=(sudo)
  "${as_root[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends python3-pip
}
work=$(mktemp -d -p "$(dirname "$folder")")  # whole, or not at all
trap 'rm -rf "$work"' EXIT
python3 -m pip install --quiet --no-deps --no-compile --target "$work" "${wheels[@]}"
toolkit=$work/nvidia/cu13
chmod +x "$toolkit"/bin/* "$toolkit"/nvvm/bin/*
# Where nvcc and CMake look.
ln -s lib "$toolkit/lib64"
mkdir -p "$toolkit/targets/x86_64-linux"
ln -s ../../include ../../lib "$toolkit/targets/x86_64-linux/"
mv "$toolkit" "$folder"
echo "$folder: $("$folder/bin/nvcc" --version | tail -1)"
