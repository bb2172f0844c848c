#!/usr/bin/env python3
"""The main job on the bundled model: it reads a long list of records twice, once with every head full and once under a
two-head plan, and is asked for one of them. Prints answers, KV memory and speed side by side.

Usage: demo.py HEADWISE_BINARY SOURCE_DIR
"""

import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile

NUM_LINES = 600
SEED = 7
# 30 x 20 names of lines.
ADJECTIVES = """amber ancient arctic autumn bitter brisk calm copper crimson curious dusty eager faded foggy gentle golden
    hidden ivory jolly lucky misty noble patient quiet rustic scarlet silent sleepy velvet wooden""".split()
NOUNS = """anchor basket bridge candle castle engine falcon garden hammer island jacket kettle ladder mirror needle
    orchard pencil rabbit saddle teapot""".split()


def make_case():
    """A record of lines with a number each, as in LongEval, and the question for one of them; and its answer."""
    draw = random.Random(SEED)
    names = [f"{adjective}-{noun}" for adjective in ADJECTIVES for noun in NOUNS]
    draw.shuffle(names)
    numbers = draw.sample(range(1, 50001), NUM_LINES)
    asked = draw.randrange(NUM_LINES)
    lines = "".join(f"line {name}: REGISTER_CONTENT is <{number}>\n" for name, number in zip(names, numbers))
    prompt = ("Below is a record of lines I want you to remember. Each line begins with 'line <line index>' and contains "
              "a '<REGISTER_CONTENT>' at the end of the line as a numerical value. For each line index, memorize its "
              "corresponding <REGISTER_CONTENT>. At the end of the record, I will ask you to retrieve the corresponding "
              "<REGISTER_CONTENT> of a certain line index. Now the record start:\n\n"
              f"{lines}\nNow the record is over. Tell me what is the <REGISTER_CONTENT> in line {names[asked]}? I need "
              "the number. ")
    return prompt, str(numbers[asked])


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
    prompt, expected = make_case()
    with tempfile.TemporaryDirectory() as folder:
        prompt_file = pathlib.Path(folder) / "prompt.txt"
        prompt_file.write_text(prompt)
        for plan in plans.values():
            rows.append(headwise_json("run", "--model", model, "--plan", plan, "--prompt-file", prompt_file,
                                      "--max-new-tokens", 48))

    full, planned = rows
    print(f"\nThe model reads {full['prompt_tokens']:,} tokens: {NUM_LINES} records. Then the question:\n")
    print(f"  {prompt.strip().splitlines()[-1]}\n")
    print(f"  (the record says {expected})\n")
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
    row("right", lambda r: "yes" if number(r) == expected else "no")
    row("KV cache", lambda r: f"{r['kv_bytes'] / 1e6:.1f} MB", f"{full['kv_bytes'] / planned['kv_bytes']:.1f} times less")
    row("KV cache at peak", lambda r: f"{r['kv_peak_bytes'] / 1e6:.1f} MB",
        f"{full['kv_peak_bytes'] / planned['kv_peak_bytes']:.1f} times less")
    row("reading (prefill)", lambda r: f"{prefill(r):,.0f} tokens/s", f"{prefill(planned) / prefill(full):.1f} times faster")
    row("answering (decode)", lambda r: f"{decode(r):,.0f} tokens/s", f"{decode(planned) / decode(full):.1f} times faster")
    return 0 if all(number(r) == expected for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
