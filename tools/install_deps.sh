#!/usr/bin/env bash
# Installs the Debian 12 packages for a purpose, those of the purposes before it included; does nothing when all are
# there. Purposes, in this order:
#   core     build and run models: `make demo`
#   build    planners, evaluation, benches and the server too; the sources of xgrammar in build/xgrammar
#   test     `make test`: GoogleTest, an emulator for the oldest instruction set, clang-format
#   long     `make test-long`: clang for its fuzzer
# and apart from them
#   browser  Chromium, in which a test opens the report
#   python   what the Python package is built with; its tools come from PyPI (tools/make_wheel.sh)
#   clients  OpenAI's Python package in build/clients, with which a test asks the server
#   peers    transformers on PyTorch, in lm-eval, in build/peers: 6 GB, for `make test-peers`
#   harness  lm-eval in build/harness, 900 MB with all that it rests on, which a test has score answers through the server
# Usage: install_deps.sh PURPOSE
set -euo pipefail
packages=()
case ${1:-} in
  long) packages+=(clang clang-tidy) ;;&
  long | test) packages+=(git binutils libgtest-dev libgmock-dev qemu-user clang-format) ;;&
  long | test | build) packages+=(coinor-libcbc-dev libopenblas-dev libboost-dev) ;;&
  long | test | build | core)
    packages+=(build-essential cmake ninja-build ccache pkg-config python3 libhwy-dev nlohmann-json3-dev libcli11-dev
      libspdlog-dev libfmt-dev libpcre2-dev libutf8proc-dev libsentencepiece-dev libssl-dev) ;;
  browser) packages=(chromium) ;;
  python) packages=(python3-dev python3-venv) ;;
  clients | harness | peers) packages=(python3-venv) ;;
  *)
    echo "usage: install_deps.sh core|build|test|long|browser|python|clients|harness|peers" >&2
    exit 2
    ;;
esac
missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  echo "installing: ${missing[*]}"
  as_root=(); [ "$(id -u)" -eq 0 ] || as_root=(sudo)
  "${as_root[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}"
fi
case $1 in
  build | test | long)
    "$(dirname "$0")/install_xgrammar.sh" "$(dirname "$0")/../build/xgrammar" ||
      echo "no sources of xgrammar: this build is without constrained decoding"
    exit 0
    ;;
  clients) python_packages=(openai) last_module=openai ;;
  harness) python_packages=('lm-eval[api]' transformers) last_module=transformers ;;
  peers) python_packages=('lm-eval[hf]' torch) last_module=torch ;;
  *) exit 0 ;;
esac
venv=$(dirname "$0")/../build/$1
"$venv/bin/python3" -c "import importlib.util as u, sys; sys.exit(u.find_spec('$last_module') is None)" 2>/dev/null && exit 0
echo "installing: ${python_packages[*]}"
python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check "${python_packages[@]}"
