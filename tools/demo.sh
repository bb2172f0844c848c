#!/usr/bin/env bash
# The main job on the bundled model: read 400 records once with every head full and once under a two-head plan, ask for
# one of them, and show answers, KV memory and speed side by side.
# Usage: demo.sh HEADWISE_BINARY SOURCE_DIR
set -euo pipefail
headwise=$1 source_dir=$2
model=$source_dir/models/headwise-17m
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$headwise" eval lines --model "$model" --plan "$source_dir/models/headwise-17m-full.json" \
  --plan "$source_dir/models/headwise-17m-two-heads.json" --num-lines 400 --num-cases 2 --seed 7 --out "$work/lines"
