#!/usr/bin/env python3
"""The main job on the bundled model: it reads a long list of records twice, once with every head full and once under a
two-head plan, and is asked for one of them. Prints answers, KV memory and speed side by side.

Usage: demo.py HEADWISE_BINARY SOURCE_DIR
"""

import json
import pathlib
import re
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
    def headwise_json(*words):
        done = subprocess.run([str(word) for word in (headwise, *words, "--json")], check=True, stdout=subprocess.PIPE)
        return json.loads(done.stdout)

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        # The evaluation's own generator makes the records; reading them is timed alone, plan by plan.
        prompt_file, out = pathlib.Path(folder) / "prompt.txt", pathlib.Path(folder) / "run"
        headwise_json("eval", "lines", "--model", model, "--num-lines", NUM_LINES, "--num-cases", 1, "--seed", 7,
                      "--max-new-tokens", 1, "--plan", plans["two heads full"], "--out", out)
        case = json.loads((out / "cases.jsonl").read_text())
        prompt_file.write_text(case["prompt"])
        for plan in plans.values():
            rows.append(headwise_json("run", "--model", model, "--plan", plan, "--prompt-file", prompt_file,
                                      "--max-new-tokens", 48))

    full, planned = rows
    print(f"\nThe model reads {full['prompt_tokens']:,} tokens: {NUM_LINES} records. Then the question:\n")
    print(f"  {case['prompt'].strip().splitlines()[-1]}\n")
    print(f"  (the record says {case['expected'][0]})\n")
    subprocess.run([headwise, "inspect", "--plan", str(plans["two heads full"]), "--lengths", "8192"], check=True)
    labels = list(plans)
    print(f"\n{'':24}{labels[0]:>20}{labels[1]:>20}")

    def number(r):
        found = re.search(r"\d+", r["text"])
        return found.group() if found else "none"

    def row(name, value, ratio=""):
        print(f"{name:24}{value(full):>20}{value(planned):>20}  {ratio}")

    def prefill(r):
        return r["prefill_tokens_per_second"]

    def decode(r):
        return r["decode_tokens_per_second"]

    row("answer", number)
    row("right", lambda r: "yes" if number(r) == case["expected"][0] else "no")
    row("KV cache", lambda r: f"{r['kv_bytes'] / 1e6:.1f} MB", f"{full['kv_bytes'] / planned['kv_bytes']:.1f} times less")
    row("KV cache at peak", lambda r: f"{r['kv_peak_bytes'] / 1e6:.1f} MB",
        f"{full['kv_peak_bytes'] / planned['kv_peak_bytes']:.1f} times less")
    row("reading (prefill)", lambda r: f"{prefill(r):,.0f} tokens/s", f"{prefill(planned) / prefill(full):.1f} times faster")
    row("answering (decode)", lambda r: f"{decode(r):,.0f} tokens/s", f"{decode(planned) / decode(full):.1f} times faster")
    return 0 if all(number(r) == case["expected"][0] for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
