#!/usr/bin/env bash
# Installs headwise_core alone into a fresh prefix, builds the examples outside the tree against it, and runs them on the
# bundled model. Then everything: what find_package finds without COMPONENTS must link too.
# Usage: install_test.sh SOURCE_DIR BUILD_DIR
set -euo pipefail
source_dir=$1 build_dir=$2
model=$source_dir/models/headwise-17m
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

build() {  # build PREFIX SOURCES BUILD
  cmake -S "$2" -B "$3" -G Ninja -DCMAKE_PREFIX_PATH="$1" -DCMAKE_BUILD_TYPE=Release \
    ${HEADWISE_TEST_CXX_FLAGS:+"-DCMAKE_CXX_FLAGS=$HEADWISE_TEST_CXX_FLAGS"} >/dev/null
  cmake --build "$3"
}
expect() {  # expect PATTERN: one line of standard input has it
  grep -q -- "$1" <<<"$output" || { echo "expected \"$1\" in:"; echo "$output"; exit 1; }
}

cmake --install "$build_dir" --component core --prefix "$work/core" >/dev/null
cp -r "$source_dir/examples" "$work/examples"
build "$work/core" "$work/examples" "$work/build"
for library in openblas Cbc; do
  if grep -q "$library" "$work/build/build.ninja"; then echo "an embedder links $library"; exit 1; fi
done

output=$("$work/build/hello" "$model"); expect 30896; echo "$output"
output=$("$work/build/stream" "$model" <<<"Hello."); [ -n "$output" ]; echo "$output"
output=$("$work/build/fork" "$model"); expect 16428; expect 14049; echo "$output"
output=$("$work/build/plan" "$model" "$source_dir/models/headwise-17m-two-heads.json"); echo "$output"
[ "$(grep -c 13214 <<<"$output")" -eq 2 ] || { echo "expected the same answer under both plans"; exit 1; }

cmake --install "$build_dir" --prefix "$work/all" >/dev/null
mkdir "$work/everything"
cat >"$work/everything/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.25)
project(everything LANGUAGES CXX)
find_package(headwise REQUIRED)
add_executable(everything hello.cc)
target_link_libraries(everything PRIVATE headwise::headwise)
CMAKE
cp "$source_dir"/examples/{hello.cc,record.h} "$work/everything"
build "$work/all" "$work/everything" "$work/build_everything"
"$work/build_everything/everything" "$model" >/dev/null
