#!/usr/bin/env bash
# Runs every fuzzer for some seconds, from a copy of its corpus; stops at the first finding. Those that put whole models
# together, or hand bytes to a library, get longer.
# Usage: run_fuzzers.sh BUILD_DIR SECONDS LONG_SECONDS
set -euo pipefail
[ $# -eq 3 ] || { echo "usage: run_fuzzers.sh BUILD_DIR SECONDS LONG_SECONDS" >&2; exit 2; }
build_dir=$1
source_dir=$(cd "$(dirname "$0")/.." && pwd)
for corpus in "$source_dir"/tests/fuzz/corpus/*/; do
  name=$(basename "$corpus")
  case $name in
    model_folder | tokenizer_model) seconds=$3 ;;
    *) seconds=$2 ;;
  esac
  work=$build_dir/corpus/$name
  mkdir -p "$work"
  cp -n "$corpus"/* "$work"/
  echo "== $name, $seconds s"
  log=$build_dir/$name.log
  if ! "$build_dir/tests/fuzz/${name}_fuzz" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 \
    -print_final_stats=1 -artifact_prefix="$build_dir/$name-" "$work" >"$log" 2>&1; then
    tail -40 "$log"
    echo "finding in $name: see $build_dir/$name-*"
    exit 1
  fi
  grep number_of_executed "$log"
done
