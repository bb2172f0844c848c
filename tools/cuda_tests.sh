#!/usr/bin/env bash
# Runs the suites that take a backend on the GPU. Without one it says so and ends with 77.
# Usage: cuda_tests.sh [GTEST_FILTER], from a bundle (tools/cuda_bundle.sh), or with HEADWISE_TESTS naming the folder of
# the test programs. A filter leaves out the tests of the command.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
tests=${HEADWISE_TESTS:-$here}
export LD_LIBRARY_PATH=$here/lib:${LD_LIBRARY_PATH:-} HEADWISE_TEST_DEVICE=cuda
export HEADWISE_SOURCE=${HEADWISE_SOURCE:-$(cd "$here/.." && pwd)}
failed=0
for suite in conformance golden integration; do
  "$tests/${suite}_test" --gtest_filter="${1:-*}" --gtest_brief=1
  case $? in
    0) ;;
    77) exit 77 ;;
    *) failed=1 ;;
  esac
done
[ $# -eq 0 ] || exit $failed
# The command itself: what answers are made of, and Ctrl-C while a GPU makes them.
for program in "$tests/headwise-bench" "$tests/../headwise"; do
  [ -x "$program" ] && break
done
for suite in cli_run cli_chat; do
  python3 "$HEADWISE_SOURCE/tests/integration/${suite}_test.py" "$program" "$HEADWISE_SOURCE/models/headwise-17m" || failed=1
done
exit $failed
