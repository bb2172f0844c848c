"""A text without an end in constant memory: stream_endlessly.py MODEL [TOKENS]. Ctrl-C ends it."""

import math
import sys

import headwise

model = sys.argv[1]
limit = int(sys.argv[2]) if len(sys.argv) > 2 else math.inf
plan = headwise.plan.streaming(model, sink=4, recent=508)  # positions inside the cache: the text may outrun the training
params = headwise.SamplingParams(max_tokens=limit, temperature=0.8, seed=1, ignore_eos=True)

with headwise.LLM(model, plan=plan) as llm, llm.stream("Once upon a time", params, collect=False) as stream:
    for number, event in enumerate(stream, start=1):
        print(event.text, end="", flush=True)
        if number % 1000 == 0:
            print(f"\n[{number} tokens, {llm.stats()['kv_bytes'] / 1e6:.2f} MB]", file=sys.stderr)
print()
