#!/usr/bin/env bash
# Kernels are compiled once per instruction set. A weak symbol in such an object (an inline function that the linker
# merges with everyone else's copy) would carry that set's instructions into code that must run anywhere.
# Usage: weak_symbols_test.sh OBJECT...
set -euo pipefail
[ $# -gt 0 ] || { echo "no objects given"; exit 1; }
status=0
for object in "$@"; do
  weak=$(nm -C "$object" | grep -E ' [VWu] ' || true)
  if [ -n "$weak" ]; then
    echo "$object:"; echo "$weak"; status=1
  fi
done
echo "$# objects looked at"
exit $status
