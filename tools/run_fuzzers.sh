#!/usr/bin/env bash
# Runs every fuzzer for some seconds, from a copy of its corpus; stops at the first finding.
# Usage: run_fuzzers.sh BUILD_DIR SECONDS
set -euo pipefail
build_dir=$1 seconds=$2
source_dir=$(cd "$(dirname "$0")/.." && pwd)
for corpus in "$source_dir"/tests/fuzz/corpus/*/; do
  name=$(basename "$corpus")
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
