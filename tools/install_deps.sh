#!/usr/bin/env bash
# Installs the Debian 12 packages that headwise needs to build, test and format; with "browser" as argument, Chromium
# alone, in which a test opens the report. Does nothing when all are there.
set -euo pipefail
packages=(build-essential cmake ninja-build ccache pkg-config python3 git
  libhwy-dev nlohmann-json3-dev libcli11-dev libspdlog-dev libfmt-dev libpcre2-dev libutf8proc-dev libsentencepiece-dev
  coinor-libcbc-dev libopenblas-dev
  libssl-dev libgtest-dev libgmock-dev libbenchmark-dev qemu-user clang clang-format clang-tidy binutils)
[ "${1:-}" = browser ] && packages=(chromium)
missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0
echo "installing: ${missing[*]}"
as_root=(); [ "$(id -u)" -eq 0 ] || as_root=(sudo)
"${as_root[@]}" apt-get update -qq
DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}"
