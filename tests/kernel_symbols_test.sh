#!/usr/bin/env bash
# Kernels are compiled once per instruction set. A weak symbol in such an object (an inline function that the linker
# merges with everyone else's copy), or code that runs at program start, would execute that set's instructions on
# machines that lack them.
# Usage: kernel_symbols_test.sh OBJECT...
set -euo pipefail
[ $# -gt 0 ] || { echo "no objects given"; exit 1; }
status=0
for object in "$@"; do
  found=$(nm -C "$object" | grep -E ' [VWu] |GLOBAL__sub_I|__cxx_global' | grep -vE ' w ' || true)
  if [ -n "$found" ]; then
    echo "$object:"; echo "$found"; status=1
  fi
done
echo "$# objects looked at"
exit $status
