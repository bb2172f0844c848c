"""Quality against bytes of some plans: compare_plans.py MODEL PLAN... Prints a table."""

import sys

import headwise

model, plans = sys.argv[1], sys.argv[2:]
rows = headwise.evaluate("lines", model, plans=["full", *plans], num_lines=60, num_cases=5)

print(f"{'plan':<32} {'right':>6} {'from':>6} {'to':>6} {'KV MB':>8}")
for row in rows:
    if row["metric"] == "accuracy" and row["length"] is None:
        megabytes = row["kv_bytes"] / 1e6
        print(f"{row['plan']:<32} {row['mean']:>6.2f} {row['low']:>6.2f} {row['high']:>6.2f} {megabytes:>8.2f}")
