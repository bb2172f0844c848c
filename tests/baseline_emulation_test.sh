#!/usr/bin/env bash
# The whole program under an emulated CPU of 2008 (no AVX): whatever this machine has, nothing newer may be executed.
# Usage: baseline_emulation_test.sh HEADWISE_BINARY MODEL_FOLDER
set -euo pipefail
command -v qemu-x86_64 >/dev/null || { echo "SKIP: qemu-x86_64 is not installed"; exit 77; }
out=$(qemu-x86_64 -cpu Nehalem "$1" run --model "$2" --prompt "The pass key is 71432. What is the pass key? The pass key is" \
  --max-new-tokens 6 --threads 1)
echo "$out"
grep -q 71432 <<<"$out"
