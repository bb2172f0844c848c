#!/usr/bin/env python3
"""The main job on the bundled model: it reads a long list of records twice, once with every head full and once under a
two-head plan, and is asked for one of them. Prints answers, KV memory and speed side by side.

Usage: demo.py HEADWISE_BINARY SOURCE_DIR
"""

import json
import pathlib
import subprocess
import sys
import tempfile

NUM_LINES = 600


def main():
    headwise, source_dir = sys.argv[1], pathlib.Path(sys.argv[2])
    model = source_dir / "models" / "headwise-17m"
    plans = {
        "every head full": source_dir / "models" / "headwise-17m-full.json",
        "two heads full": source_dir / "models" / "headwise-17m-two-heads.json",
    }
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "run"
        command = [headwise, "eval", "lines", "--model", model, "--num-lines", NUM_LINES, "--num-cases", 1, "--seed", 7]
        for plan in plans.values():
            command += ["--plan", plan]
        subprocess.run([str(word) for word in command + ["--out", out, "--json"]], check=True, stdout=subprocess.DEVNULL)
        rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]

    full, planned = rows
    print(f"\nThe model reads {full['prompt_tokens']:,} tokens: {NUM_LINES} records. Then the question:\n")
    print(f"  {full['question'].strip()}\n")
    print(f"  (the record says {full['expected']})\n")
    subprocess.run([headwise, "inspect", "--plan", str(plans["two heads full"]), "--lengths", "8192"], check=True)
    labels = list(plans)
    print(f"\n{'':24}{labels[0]:>20}{labels[1]:>20}")

    def row(name, value, ratio=""):
        print(f"{name:24}{value(full):>20}{value(planned):>20}  {ratio}")

    def prefill(r):
        return r["prompt_tokens"] / r["prefill_seconds"]

    def decode(r):
        return (r["new_tokens"] - 1) / r["decode_seconds"]

    row("answer", lambda r: r["answer"].split("<")[-1].strip(">. "))
    row("right", lambda r: "yes" if r["correct"] else "no")
    row("KV cache", lambda r: f"{r['kv_bytes'] / 1e6:.1f} MB", f"{full['kv_bytes'] / planned['kv_bytes']:.1f} times less")
    row("KV cache at peak", lambda r: f"{r['kv_peak_bytes'] / 1e6:.1f} MB",
        f"{full['kv_peak_bytes'] / planned['kv_peak_bytes']:.1f} times less")
    row("reading (prefill)", lambda r: f"{prefill(r):,.0f} tokens/s", f"{prefill(planned) / prefill(full):.1f} times faster")
    row("answering (decode)", lambda r: f"{decode(r):,.0f} tokens/s", f"{decode(planned) / decode(full):.1f} times faster")
    return 0 if full["correct"] and planned["correct"] else 1


if __name__ == "__main__":
    sys.exit(main())
