#!/usr/bin/env bash
# Checks that every source file is as clang-format 14 (Debian 12's) lays it out; with --write, lays it out so. Other
# versions differ in details, so without this one the check fails instead of passing unseen. A script that has become
# empty does nothing and succeeds: none may be.
# Usage: check_format.sh [--write]
set -euo pipefail
cd "$(dirname "$0")/.."
clang_format=$(command -v clang-format-14 || command -v clang-format || true)
if [ -z "$clang_format" ]; then
  echo "clang-format is missing: \`tools/install_deps.sh test\` installs version 14"
  exit 1
fi
version=$("$clang_format" --version)
if [[ $version != *"version 14."* ]]; then
  echo "$clang_format: found \"$version\", expected version 14: \`tools/install_deps.sh test\` installs it"
  exit 1
fi
mapfile -d '' files < <(find apps examples include python src tests \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) -print0 | sort -z)
[ ${#files[@]} -gt 0 ]
if [ "${1:-}" = --write ]; then
  "$clang_format" -i "${files[@]}"
  exit
fi
empty=$(find tools apps examples include python src tests -type f -empty \( -name '*.sh' -o -name '*.py' -o -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' -o -name CMakeLists.txt \))
if [ -n "$empty" ]; then
  echo "empty, expected something in it: $empty"
  exit 1
fi
echo "${#files[@]} files looked at"
printf '%s\0' "${files[@]}" | xargs -0 -n 60 -P 2 "$clang_format" --dry-run -Werror --ferror-limit=1 || {
  echo "not formatted: \`make format\` formats them"
  exit 1
}
