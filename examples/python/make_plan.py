"""Finds out which heads reach back, and keeps only those whole: make_plan.py MODEL OUT [KV_RATIO]."""

import sys

import headwise

model, out = sys.argv[1:3]
kv_ratio = float(sys.argv[3]) if len(sys.argv) > 3 else 0.5


def show(label: str, done: int, total: int) -> None:
    print(f"\r{label}: {done} of {total}", end="", file=sys.stderr, flush=True)


plan = headwise.plan.profile(model, samples=2, max_tokens=2048, kv_ratio=kv_ratio, at=8192, progress=show, out=out)
print(file=sys.stderr)
print(plan)
print("\n".join(plan.notes))
