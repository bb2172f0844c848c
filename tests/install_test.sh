#!/usr/bin/env bash
# Installs the built library into a fresh prefix, builds the example outside the tree against it, and runs it.
# Usage: install_test.sh SOURCE_DIR BUILD_DIR
set -euo pipefail
source_dir=$1 build_dir=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build_dir" --prefix "$work/prefix" >/dev/null
cp -r "$source_dir/examples/embed" "$work/embed"
cmake -S "$work/embed" -B "$work/build" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_BUILD_TYPE=Release \
  ${HEADWISE_TEST_CXX_FLAGS:+"-DCMAKE_CXX_FLAGS=$HEADWISE_TEST_CXX_FLAGS"} >/dev/null
cmake --build "$work/build"
full=$("$work/build/embed" "$source_dir/models/headwise-17m")
planned=$("$work/build/embed" "$source_dir/models/headwise-17m" "$source_dir/models/headwise-17m-two-heads.json")
echo "$full"
# Twelve tokens are inside every window: the same ids.
[ "$(head -1 <<<"$full")" = "$(head -1 <<<"$planned")" ]
