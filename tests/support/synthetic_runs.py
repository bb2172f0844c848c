#!/usr/bin/env python3
"""Run folders of an evaluation that never took place: figures with the shape of real ones, from a fixed seed.

Usage: synthetic_runs.py FOLDER. Four tasks and a cost run, seven plans, three lengths. The report is tested and looked at
with them. Standard library only.
"""
import json
import math
import pathlib
import random
import sys

LENGTHS = [4096, 16384, 32768]
DEPTHS = [0.0, 0.25, 0.5, 0.75, 1.0]
LAYERS, KV_HEADS = 8, 4
DENSE_BYTES_PER_TOKEN = 8192

# name, method, share of the dense bytes, how much of the far text it can still find
PLANS = [
    ("full", "full", None, 1.0),
    ("duo@0.5", "duo", 0.5, 0.98),
    ("razor@0.5", "razor", 0.5, 0.93),
    ("streaming@0.5", "streaming", 0.5, 0.42),
    ("duo@0.25", "duo", 0.25, 0.93),
    ("razor@0.25", "razor", 0.25, 0.84),
    ("streaming@0.25", "streaming", 0.25, 0.18),
]
RATE = {"name": "right", "label": "right answers", "unit": "", "better": "higher", "kind": "rate"}


def mean_metric(name, label, unit, better="lower"):
    return {"name": name, "label": label, "unit": unit, "better": better, "kind": "mean"}


def plan_file(method, ratio, draw):
    """A head plan whose picture has something to show."""
    scores = [min(1.0, draw.random() ** 3 + 0.02) for _ in range(LAYERS * KV_HEADS)]
    num_full = 0 if method == "streaming" else round(ratio * LAYERS * KV_HEADS * 0.9)
    full = set(sorted(range(len(scores)), key=lambda i: -scores[i])[:num_full])
    stream = {"full": False, "sink": 16, "recent": 128, "positions": "text", "from": "first_token", "compensate": False}
    heads = [{"full": True} if i in full else stream for i in range(LAYERS * KV_HEADS)]
    layers = [heads[i * KV_HEADS:(i + 1) * KV_HEADS] for i in range(LAYERS)]
    plan = {
        "headwise_plan": 1,
        "model": {"architecture": "llama", "num_layers": LAYERS, "num_q_heads": 8, "num_kv_heads": KV_HEADS, "head_dim": 64},
        "source_hash": "0" * 64, "method": method, "parameters": {}, "data_hash": None, "seed": None, "notes": [],
        "layers": layers,
    }
    if method != "streaming":
        plan["scores"] = [scores[i * KV_HEADS:(i + 1) * KV_HEADS] for i in range(LAYERS)]
    return plan


class Run:
    """One run folder being written."""

    def __init__(self, root, name, title, metrics, plans=PLANS, **more):
        self.folder = pathlib.Path(root) / name
        (self.folder / "plans").mkdir(parents=True)
        self.cases, self.results, self.seen = [], [], set()
        listed = []
        for plan, method, ratio, _ in plans:
            files = []
            if method != "full":
                file = f"plans/{method}-{len(listed)}.json"
                (self.folder / file).write_text(json.dumps(plan_file(method, ratio or 0.5, random.Random(plan))))
                files.append({"length": 0, "file": file})
            listed.append({"name": plan, "method": method, "kv_ratio": ratio, "files": files})
        manifest = {
            "task": name, "title": title, "metrics": metrics, "model": "models/headwise-17m", "source_hash": "0" * 64,
            "plans": listed, "lengths": LENGTHS,
            "options": {"seed": 7, "max_new_tokens": 48, "compute": "bf16", "text": "0" * 64},
            "environment": {"version": "0.1.0", "machine": "a processor of 16 cores", "threads": 16, "backend": "cpu"},
        }
        manifest.update(more)
        (self.folder / "manifest.json").write_text(json.dumps(manifest, indent=1))

    def add(self, plan, length, case, scores, answer="", tags=None, curves=None, question=0, prompt=None, expected=()):
        _, _, ratio, _ = next(row for row in PLANS if row[0] == plan)
        kv_bytes = int(DENSE_BYTES_PER_TOKEN * length * (ratio or 1.0) * 0.97)
        result = {
            "plan": plan, "length": length, "case": case, "question": question, "scores": scores, "tags": tags or {},
            "answer": answer, "prompt_tokens": length, "new_tokens": 12, "seconds": length / 9000, "kv_bytes": kv_bytes,
            "kv_peak_bytes": int(kv_bytes * (1.9 if plan.startswith("razor") else 1.04)),
        }
        if curves:
            result["curves"] = curves
        self.results.append(json.dumps(result))
        if prompt is not None and (length, case, question) not in self.seen:
            self.seen.add((length, case, question))
            self.cases.append(json.dumps({"length": length, "case": case, "question": question, "prompt": prompt,
                                          "expected": list(expected)}))

    def close(self, finished=True):
        (self.folder / "results.jsonl").write_text("".join(line + "\n" for line in self.results))
        if self.cases:
            (self.folder / "cases.jsonl").write_text("".join(line + "\n" for line in self.cases))
        if finished:
            (self.folder / "summary.json").write_text("{}\n")


def found(draw, reach, length, depth):
    """Whether a plan of this reach finds what stands at `depth`: bounded plans forget the middle of long texts first."""
    from_end = (1 - depth) * length
    chance = reach if from_end > 2500 else max(reach, 0.97)
    return draw.random() < chance * (1 - 0.03 * math.log2(length / 2048))


def write_needle(root):
    draw = random.Random(1)
    run = Run(root, "needle", "Needle in a haystack", [RATE])
    filler = "The harbour was quiet and the tide was going out. " * 30
    for length in LENGTHS:
        for case in range(30):
            depth = DEPTHS[case % len(DEPTHS)]
            number = str(draw.randrange(10000, 99999))
            prompt = f"{filler}The number of the lighthouse is {number}. {filler}What is the number of the lighthouse?"
            for plan, _, _, reach in PLANS:
                is_right = found(draw, reach, length, depth)
                answer = number if is_right else "I am not sure; the tide was going out."
                tags = {"depth": depth, "variant": "single" if case < 15 else "multi"}
                run.add(plan, length, case, {"right": int(is_right)}, answer, tags, prompt=prompt, expected=[number])
    run.close()


def write_variables(root):
    """A run that was interrupted."""
    draw = random.Random(2)
    run = Run(root, "variables", "Variable tracing", [RATE, mean_metric("share", "share of names", "", "higher")])
    for plan, _, _, reach in PLANS[:5]:
        for length in LENGTHS[:2]:
            for case in range(12):
                right = draw.random() < reach ** 2
                run.add(plan, length, case, {"right": int(right), "share": 1.0 if right else draw.random()},
                        "X1, X2" if right else "X1", {"hops": 2 + case % 3}, prompt="VAR X1 = 5. VAR X2 = X1. Which are 5?",
                        expected=["X1, X2"])
    run.close(finished=False)


def write_ppl(root):
    draw = random.Random(3)
    run = Run(root, "ppl", "Perplexity", [mean_metric("nll", "NLL", "nats per token"), mean_metric("ppl", "perplexity", "")])
    for length in LENGTHS:
        for case in range(8):
            base = 2.6 + draw.gauss(0, 0.12)
            for plan, _, _, reach in PLANS:
                curve = []
                for i in range(32):
                    x = (i + 0.5) * length / 32
                    y = base + 0.5 * math.exp(-x / 900) + (1 - reach) * 0.08 * math.log2(1 + x / 1024)
                    curve.append([x, y + draw.gauss(0, 0.02)])
                nll = sum(y for _, y in curve) / len(curve)
                run.add(plan, length, case, {"nll": nll, "ppl": math.exp(nll)}, curves={"nll": curve})
    run.close()


def write_docs(root):
    draw = random.Random(4)
    run = Run(root, "docs", "Questions on documents", [mean_metric("score", "score", "", "higher")])
    for length in LENGTHS:
        for case in range(24):
            ease = draw.random()
            for plan, _, _, reach in PLANS:
                run.add(plan, length, case, {"score": max(0.0, min(1.0, ease * reach + draw.gauss(0, 0.05)))}, "An answer.",
                        {"set": ["reports", "meetings", "novels", "code"][case % 4]})
    run.close()


def write_cost(root):
    metrics = [mean_metric("prefill_seconds", "prefill", "s"), mean_metric("decode_ms", "time per token", "ms"),
               mean_metric("kv_bytes", "KV cache", "bytes"), mean_metric("kv_peak_bytes", "KV cache at peak", "bytes"),
               mean_metric("resident_bytes", "resident memory", "bytes")]
    draw = random.Random(5)
    run = Run(root, "cost", "Time and memory", metrics)
    for length in LENGTHS:
        for plan, method, ratio, _ in PLANS:
            share = ratio or 1.0
            kv_bytes = DENSE_BYTES_PER_TOKEN * length * share
            peak = DENSE_BYTES_PER_TOKEN * length if method == "razor" else kv_bytes * 1.04
            for case in range(3):
                noise = 1 + draw.gauss(0, 0.02)
                prefill = length / 4000 * (1 + (0.4 + 0.6 * share) * length / 20000) * noise
                run.add(plan, length, case, {
                    "prefill_seconds": prefill, "decode_ms": (5 + length * share / 2500) * noise, "kv_bytes": kv_bytes,
                    "kv_peak_bytes": peak, "resident_bytes": 9e7 + peak})
    run.close()


def write_all(root):
    for write in (write_needle, write_variables, write_ppl, write_docs, write_cost):
        write(root)


if __name__ == "__main__":
    write_all(sys.argv[1])
