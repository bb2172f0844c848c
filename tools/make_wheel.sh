#!/usr/bin/env bash
# What `make wheel` runs: the Python package as a wheel, on the libraries of a build that is there. Only the bindings are
# compiled. `pip install .` does without a build, and compiles all of it.
#
# Of a build with sanitizers the wheel has them too, and line numbers, but no stubs; only an interpreter that is started with
# the sanitizer's library can import it (tools/python_tests.sh does).
#
# The package's tools come from PyPI into BUILD_DIR/python/tools. Exit status 77: PyPI cannot be reached, or Python has no
# headers here.
# Usage: make_wheel.sh BUILD_DIR OUT_FOLDER
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
tools=$build/python/tools

python3 -c '
import ensurepip, os, sysconfig
assert os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))' 2>/dev/null || {
  echo "skipped: Python has no headers or no venv here; \`tools/install_deps.sh python\` installs them" >&2
  exit 77
}
if [ ! -e "$tools/complete" ]; then
  python3 -m venv --clear "$tools"
  "$tools/bin/pip" install --quiet --disable-pip-version-check 'scikit-build-core>=0.10' 'nanobind>=2.4' || {
    echo "skipped: PyPI cannot be reached for scikit-build-core and nanobind" >&2
    exit 77
  }
  touch "$tools/complete"
fi

# Headers and libraries as an embedder sees them, anew: the build may have changed.
prefix=$build/python/prefix
rm -rf "$prefix"
for component in core bench planner evaluation; do
  cmake --install "$build" --component $component --prefix "$prefix" >/dev/null
done

options=()
sanitize=$(sed -n 's/^HEADWISE_SANITIZE:STRING=//p' "$build/CMakeCache.txt")
if [ -n "$sanitize" ]; then
  options=(-C "cmake.define.HEADWISE_SANITIZE=$sanitize" -C install.strip=false
    -C "cmake.define.CMAKE_CXX_FLAGS_RELWITHDEBINFO=-O2 -g1 -DNDEBUG")
fi

# nanobind and the tools are in the environment already, cmake and ninja on the path.
PATH=$tools/bin:$PATH "$tools/bin/pip" wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps \
  --wheel-dir "$out" -C "build-dir=$build/python/wheel" -C "cmake.define.HEADWISE_PREBUILT=$prefix" "${options[@]}" "$root"
