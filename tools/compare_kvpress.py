#!/usr/bin/env python3
"""Presses of kvpress and head plans on the same questions, at the same real bytes of cache.

Wants from pip: the package of this tree, kvpress, torch, transformers (run with 0.5.5, 2.15 and 5.2). Called as

    compare_kvpress.py MODEL_FOLDER [--plan P]... [--press NAME]... [--kv-ratio 0.5,0.25] [--num-lines N]
                       [--num-cases N] [--cases F.jsonl] [--later]

The task is `headwise eval lines`; with --later the question comes in a turn of its own, behind what was cut.
tools/make_selection_golden.py --kvpress compares what is kept. Plans are re-planned to the ratio (equal bytes); a press
is given the compression ratio that leaves as much of the prompt. Bytes are counted at 2 a number: a press's from the
tensors of its cache when the answer begins, a plan's from its pages when it has ended, so that a plan's are a little
more. A press sees the whole prompt, the question at its end too, before it drops anything; a plan that holds from the
first token does not (`headwise plan ... --from end_of_prompt` makes one that does). DuoAttentionPress takes its heads,
sinks and window from --plan duo.json. It and AdaKVPress hide what they drop and keep its bytes.
"""
import argparse
import functools
import itertools
import json
import pathlib
import sys
import tempfile

import headwise
import kvpress
import torch
from transformers import AutoModelForCausalLM, DynamicCache

MAX_NEW_TOKENS = 40


def cache_bytes(cache):
    """At 2 a number: as if in f16, whatever torch computes in."""
    return sum(2 * (layer.keys.numel() + layer.values.numel()) for layer in cache.layers)


class PlannedDuoPress(kvpress.DuoAttentionPress):
    """The press with a plan file's heads in place of published ones."""

    def __init__(self, path):
        super().__init__()
        layers = json.loads(path.read_text())["layers"]
        rules = [rule for layer in layers for rule in layer]
        streaming = [rule for rule in rules if not rule["full"]]
        self.sink_size, self.recent_size = streaming[0]["sink"], streaming[0]["recent"]
        self.streaming_mask = torch.tensor([not rule["full"] for rule in rules]).view(len(layers), -1)

    def post_init_from_model(self, model):
        """Nothing is left to be found."""


def make_press(name, ratio, plans):
    """SnapKV and what builds on it as the plans have it. plans: as the evaluation made them anew for each ratio."""
    if name == "DuoAttentionPress":
        found = sorted(plans.glob(f"duo@{ratio}-*.json"))
        if len(found) != 1:
            sys.exit(f"compare_kvpress.py: DuoAttentionPress takes its heads from --plan duo.json; {plans} has {found}")
        return PlannedDuoPress(found[0])
    options = {"compression_ratio": 1 - ratio}
    if name in ("SnapKVPress", "PyramidKVPress"):
        options |= {"window_size": 32, "kernel_size": 7}
    if name == "AdaKVPress":  # hides what it drops and keeps its bytes
        return kvpress.AdaKVPress(make_press("SnapKVPress", ratio, plans))
    return getattr(kvpress, name)(**options)


def answer(model, ids, num_pressed, press, eos):
    """Greedy; the cache is pressed once the first ids are read. The new ids, and the cache's bytes then."""
    cache = DynamicCache()
    with torch.inference_mode():
        with press(model):
            model(torch.tensor([ids[:num_pressed]]), past_key_values=cache)
        held = cache_bytes(cache)
        # All but the last token, which begins the answer, one by one as decoding does.
        for position in range(num_pressed, len(ids) - 1):
            model(torch.tensor([[ids[position]]]), past_key_values=cache, position_ids=torch.tensor([[position]]),
                  cache_position=torch.tensor([position]))
        token, found = ids[-1], []
        for position in range(len(ids) - 1, len(ids) - 1 + MAX_NEW_TOKENS):
            out = model(torch.tensor([[token]]), past_key_values=cache, position_ids=torch.tensor([[position]]),
                        cache_position=torch.tensor([position]))
            token = int(out.logits[0, -1].argmax())
            if token in eos:
                break
            found.append(token)
    return found, held


def press_rows(args, cases, ratios, plans):
    @functools.cache
    def model_with(attention):
        return AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32, attn_implementation=attention)

    with headwise.LLM(args.model) as llm:
        for name in args.press:
            # Probabilities come out of "eager" alone.
            model = model_with("eager" if name == "ObservedAttentionPress" else "sdpa").eval()
            for ratio in ratios:
                right, held = 0, 0
                for case in cases:
                    ids = llm.encode(case["prompt"])
                    num_pressed = len(ids) - 1
                    if args.later:
                        num_pressed = len(llm.encode(case["prompt"][: case["prompt"].rindex("\n") + 1]))
                    ids, nbytes = answer(model, ids, num_pressed, make_press(name, ratio, plans), llm.info["eos_ids"])
                    right += any(expected in llm.decode(ids) for expected in case["expected"])
                    held = max(held, nbytes)
                yield f"{name}@{ratio}", right, len(cases), held


def plan_rows(args, ratios, out):
    rows = headwise.evaluate("lines", args.model, plans=["full", *args.plan], kv_ratios=ratios if args.plan else [],
                             out=out, num_cases=args.num_cases, turns="later" if args.later else "one",
                             engine={"compute": "f32"},
                             **({"cases": args.cases} if args.cases else {"num_lines": args.num_lines}))
    for row in rows:
        if row["metric"] == "accuracy" and row["length"] is None:
            yield row["plan"], round(row["mean"] * row["count"]), row["count"], row["kv_bytes"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--plan", action="append", default=[])
    parser.add_argument("--press", action="append", default=[])
    parser.add_argument("--kv-ratio", default="0.5,0.25")
    parser.add_argument("--num-lines", type=int, default=60)
    parser.add_argument("--num-cases", type=int, default=10)
    parser.add_argument("--cases")
    parser.add_argument("--later", action="store_true")
    args = parser.parse_args()
    args.press = args.press or ["StreamingLLMPress", "KnormPress", "KeyDiffPress", "SnapKVPress", "PyramidKVPress",
                                "AdaKVPress", "TOVAPress", "ObservedAttentionPress", "ExpectedAttentionPress"]
    ratios = [float(ratio) for ratio in args.kv_ratio.split(",")]
    if "DuoAttentionPress" in args.press and not any(pathlib.Path(plan).name == "duo.json" for plan in args.plan):
        parser.error("DuoAttentionPress takes its heads from --plan duo.json, which is not given")
    print(f"{'':<32} {'right':>9} {'KV MB':>8}")
    with tempfile.TemporaryDirectory() as holder:
        out = pathlib.Path(holder) / "run"
        rows = list(plan_rows(args, ratios, out))
        cases = [json.loads(line) for line in (out / "cases.jsonl").read_text().splitlines()]
        for name, right, total, held in itertools.chain(rows, press_rows(args, cases, ratios, out / "plans")):
            print(f"{name:<32} {right:>4} of {total:<2} {held / 1e6:>7.2f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
