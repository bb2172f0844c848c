#!/usr/bin/env bash
# Tests the Python package as users have it: a wheel (tools/make_wheel.sh) in an environment that has nothing else of
# headwise. pytest, and mypy on the installed sources and stubs.
#
# Of a build with the address sanitizer pytest alone: the interpreter is started with the sanitizer's library, and takes its
# own memory from malloc, so that what is read behind an array's end is found. Leaks are not looked for, as an interpreter
# leaves most of its own objects behind; tests that watch the memory of the whole process are skipped.
#
# Exit status 77: PyPI cannot be reached.
# Usage: python_tests.sh BUILD_DIR COMMAND [options of pytest]; COMMAND: the headwise command of that build
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "$1" && pwd)
command=$(realpath "$2")
shift 2
wheels=$build/python/dist
venv=$build/python/tests

rm -rf "$wheels"
"$root/tools/make_wheel.sh" "$build" "$wheels"
if [ ! -e "$venv/complete" ]; then
  python3 -m venv --clear "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check numpy pandas pytest mypy nbclient ipykernel || {
    echo "skipped: PyPI cannot be reached for numpy, pandas, pytest, mypy and what runs notebooks" >&2
    exit 77
  }
  touch "$venv/complete"
fi
"$venv/bin/pip" install --quiet --disable-pip-version-check --force-reinstall --no-deps "$wheels"/headwise-*.whl

cd "$build/python"  # where no folder is called headwise
python=$venv/bin/python
pytest=("$python" -m pytest -q -p no:cacheprovider --rootdir "$root" "$root/python/tests")
export HEADWISE_COMMAND=$command HEADWISE_SOURCE=$root
if grep -q '^HEADWISE_SANITIZE:STRING=.*address' "$build/CMakeCache.txt"; then
  compiler=$(sed -n 's/^CMAKE_CXX_COMPILER:[A-Z]*=//p' "$build/CMakeCache.txt")
  # The C++ library too: exceptions are watched where it is there when the sanitizer begins.
  preload="$("$compiler" -print-file-name=libasan.so) $("$compiler" -print-file-name=libstdc++.so)"
  HEADWISE_SANITIZED=1 PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
    LD_PRELOAD=$preload "${pytest[@]}" "$@"
  exit
fi
"$python" "$root/tools/make_python_planners.py" --check
"$python" -m mypy --config-file "$root/pyproject.toml" --cache-dir "$build/python/mypy" -p headwise
"${pytest[@]}" "$@"
