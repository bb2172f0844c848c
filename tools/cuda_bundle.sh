#!/usr/bin/env bash
# Packs what a bare GPU machine needs to run the CUDA tests and benches without a build: the programs, stripped, and the
# libraries that such a machine may lack. Unpack it at the root of the same commit's tree, for models and goldens:
#   tar -xf cuda-bundle.tar.xz && ./cuda-bundle/run_tests.sh
# Usage: cuda_bundle.sh BUILD_FOLDER OUT.tar.xz
set -euo pipefail
[ $# -eq 2 ] || { echo "usage: cuda_bundle.sh BUILD_FOLDER OUT.tar.xz" >&2; exit 2; }
build=$1
out=$(realpath "$2")
max_bytes=$((8 << 20))
programs=(tests/conformance_test tests/golden_test tests/integration_test headwise-bench)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/cuda-bundle/lib"
for program in "${programs[@]}"; do
  strip -o "$work/cuda-bundle/$(basename "$program")" "$build/$program"
done
# Of glibc, the compiler's runtime and OpenSSL 3 any newer one will do, and every machine with a Python has them.
for program in "$work"/cuda-bundle/*_test "$work/cuda-bundle/headwise-bench"; do
  ldd "$program"
done | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
  grep -vE '/(libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+|libcrypto|libssl|ld-linux[^/]*)\.so' |
  while read -r library; do strip -o "$work/cuda-bundle/lib/$(basename "$library")" "$library"; done
cp "$(dirname "$0")/cuda_tests.sh" "$work/cuda-bundle/run_tests.sh"

# The programs hold the same library: a dictionary that reaches over all of them finds it once, where calls name places
# and not distances (--x86). Instructions of the GPU are words of 8 bytes: pb=3. lc=4 saves 10 KB.
tar -C "$work" -cf - cuda-bundle | xz --x86 --lzma2=preset=9e,dict=144MiB,lc=4,pb=3 >"$out"
bytes=$(stat -c %s "$out")
echo "$out: $bytes bytes"
[ "$bytes" -le $max_bytes ] || { echo "expected at most $max_bytes bytes" >&2; exit 1; }
