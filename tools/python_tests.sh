#!/usr/bin/env bash
# Tests the Python package as users have it: a wheel (tools/make_wheel.sh) in an environment that has nothing else of
# headwise. pytest, and mypy on the installed sources and stubs.
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
  "$venv/bin/pip" install --quiet --disable-pip-version-check numpy pytest mypy nbclient ipykernel || {
    echo "skipped: PyPI cannot be reached for numpy, pytest, mypy and what runs notebooks" >&2
    exit 77
  }
  touch "$venv/complete"
fi
"$venv/bin/pip" install --quiet --disable-pip-version-check --force-reinstall --no-deps "$wheels"/headwise-*.whl

cd "$build/python"  # where no folder is called headwise
python=$venv/bin/python
"$python" "$root/tools/make_python_planners.py" --check
"$python" -m mypy --config-file "$root/pyproject.toml" --cache-dir "$build/python/mypy" -p headwise
HEADWISE_COMMAND=$command HEADWISE_SOURCE=$root "$python" -m pytest -q -p no:cacheprovider --rootdir "$root" \
  "$root/python/tests" "$@"
