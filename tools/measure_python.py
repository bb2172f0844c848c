#!/usr/bin/env python3
"""The figures of docs/python.md: what the binding adds to a decode step, how long the import takes, how large the wheel is.

Wants the package installed in this interpreter. Called as measure_python.py COMMAND MODEL [WHEEL]... [--tokens N]; N: of an answer.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

import headwise

REPEATS = 7
PROMPT = "Once upon a time"


def by_command(command, model, tokens):
    done = subprocess.run([command, "run", "--model", model, "--prompt", PROMPT, "-n", str(tokens), "--ignore-eos",
                           "--json"], check=True, capture_output=True)
    return json.loads(done.stdout)["decode_seconds"] / (tokens - 1)


def by_generate(llm, params):
    metrics = llm.generate(PROMPT, params)[0].outputs[0].metrics
    return metrics.decode_seconds / (metrics.new_tokens - 1)


def by_stream(llm, params):
    """The clock of the one who reads: from the first token to the last."""
    times = [time.perf_counter() for event in llm.stream(PROMPT, params) if event.token_id is not None]
    return (times[-1] - times[0]) / (len(times) - 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("command")
    parser.add_argument("model")
    parser.add_argument("wheels", nargs="*")
    parser.add_argument("--tokens", type=int, default=400)
    given = parser.parse_args()
    params = headwise.SamplingParams(max_tokens=given.tokens, ignore_eos=True)
    rows = {"headwise run": [], "LLM.generate": [], "LLM.stream": []}
    with headwise.LLM(given.model) as llm:
        llm.generate(PROMPT, params)
        for _ in range(REPEATS):  # in turn, so that what a machine does besides is everybody's
            rows["headwise run"].append(by_command(given.command, given.model, given.tokens))
            rows["LLM.generate"].append(by_generate(llm, params))
            rows["LLM.stream"].append(by_stream(llm, params))
    base = statistics.median(rows["headwise run"])
    for name, seconds in rows.items():
        median = statistics.median(seconds)
        print(f"{name:<14} {1e6 * median:8.1f} us a token ({1e6 * min(seconds):.1f} to {1e6 * max(seconds):.1f}), "
              f"{100 * (median / base - 1):+.1f} %")
    imports = []
    for _ in range(REPEATS):
        code = "import time; begin = time.perf_counter(); import headwise; print(time.perf_counter() - begin)"
        imports.append(float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout))
    print(f"import         {statistics.median(imports):.3f} s ({min(imports):.3f} to {max(imports):.3f})")
    for wheel in given.wheels:
        print(f"wheel          {pathlib.Path(wheel).stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
