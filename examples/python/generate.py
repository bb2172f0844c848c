"""Answers prompts: generate.py MODEL [PLAN] < one prompt a line."""

import sys

import headwise

model, plan = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
prompts = [line.rstrip("\n") for line in sys.stdin if line.strip()]
params = headwise.SamplingParams(max_tokens=40, temperature=0.7, top_p=0.9, seed=1)

with headwise.LLM(model, plan=plan) as llm:
    for output in llm.generate(prompts, params):
        answer = output.outputs[0]
        print(f"{output.prompt}{answer.text}")
        print(f"  [{answer.finish_reason}, {answer.metrics.kv_bytes / 1e6:.1f} MB of KV cache]")
