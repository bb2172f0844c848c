#!/usr/bin/env python3
"""Goldens of heads that choose by score which tokens they keep, from a float64 simulation of each policy's paper.

Usage: make_selection_golden.py tests/golden/tiny/llama-gqa tests/golden/selection [--kvpress]

Wants numpy and safetensors; --kvpress also torch, transformers and kvpress (run with 2.15, 5.2 and 0.5.5): it cuts the same
prompt by the presses of that package and prints how much of what they keep the simulation keeps.

The simulation knows nothing of pages and slots: it has every key of the text, and for each layer and KV head the set of
tokens that are kept. A step reads its tokens, each seeing what was kept and what of the step comes before it; then each head
drops what its policy drops; or, of quest, drops nothing and reads some. Written are the tokens that are kept once the prompt is in, the token that each later step drops,
and final hidden states of some of these steps.
"""
import argparse
import json
import pathlib
import sys

import numpy as np
from safetensors.numpy import load_file, save_file

PROMPT, LATER = 60, 33
CHUNK = 20  # prompt tokens per step
# By name, the rules of both layers, as plan files have them.
POLICIES = {
    "h2o": [{"recent": 20, "by": "h2o", "recent_share": 0.5}] * 2,
    "h2o_sinks": [{"sink": 2, "recent": 14, "by": "h2o", "recent_share": 0.25}] * 2,
    "fastgen": [{"recent": 24, "from": "end_of_prompt", "by": "fastgen", "recent_share": 0.25, "punctuation": punctuation}
                for punctuation in (True, False)],
    "tova": [{"recent": 20, "by": "tova"}] * 2,
    "snapkv": [{"recent": 20, "from": "end_of_prompt", "by": "snapkv", "window": 8, "kernel": 5, "pooling": "mean"}] * 2,
    "pyramidkv": [
        {"recent": recent, "from": "end_of_prompt", "by": "snapkv", "window": 8, "kernel": 3, "pooling": "max"}
        for recent in (27, 13)
    ],
    "knorm": [{"recent": 20, "by": "knorm"}] * 2,
    "knorm_after": [{"recent": 24, "from": "end_of_prompt", "by": "knorm"}] * 2,
    "keydiff": [{"sink": 2, "recent": 18, "by": "keydiff"}] * 2,
    "expected": [
        {"sink": 2, "recent": 26, "from": "end_of_prompt", "by": "expected", "window": window, "epsilon": epsilon}
        for window, epsilon in ((8, 0), (0, 0.01))
    ],
    "quest": [{"recent": 32, "from": "end_of_prompt", "by": "quest", "block": 16}] * 2,
}


# Of fastgen, ids as its plan lists them. 13 of the text's 93 tokens are in one of the two.
SPECIAL, PUNCTUATION = range(0, 384, 24), range(7, 384, 12)


def rounded_down(x):
    """To the next f16 that is not above x."""
    nearest = x.astype(np.float16)
    below = np.nextafter(nearest, np.float16(-np.inf))
    return np.where(nearest.astype(np.float64) > x, below, nearest).astype(np.float64)


class Policy:
    """Of one KV head: notes scores, says what goes. Every choice keeps its distance to the next in `margins`."""

    def __init__(self, rule, prompt_tokens, margins, ids=()):
        self.rule, self.prompt_tokens, self.margins, self.ids = rule, prompt_tokens, margins, ids
        self.starts = prompt_tokens if rule.get("from") == "end_of_prompt" else 0
        self.scores, self.keys, self.lengths = {}, {}, {}

    def note(self, t, key, seen):
        """The token at t has come; `seen`: what each kept token got from its queries, all of the group together."""
        by = self.rule["by"]
        if by in ("quest", "expected"):
            return
        if by == "keydiff":
            self.keys[t] = key / np.sqrt(np.dot(key, key))
        elif by == "knorm":
            self.scores[t] = -np.sqrt(np.dot(key, key))
        elif by == "tova":
            self.scores = dict(seen)
        elif by in ("h2o", "fastgen") or self.prompt_tokens - self.rule["window"] <= t < self.prompt_tokens:
            for j, weight in seen.items():
                self.scores[j] = self.scores.get(j, 0.0) + weight

    def budget(self):
        return self.rule.get("sink", 0) + self.rule["recent"]

    def cuts(self, kept, end):
        by = self.rule["by"]
        return by != "quest" and end >= self.starts and len(kept) > self.budget() and (
            by not in ("snapkv", "expected") or end == self.prompt_tokens)

    def reading(self, kept, t, queries, keys):
        """Of the kept tokens, those that the group's queries at t read."""
        if self.rule["by"] != "quest" or t < self.starts:
            return kept
        block = self.rule["block"]
        newest, places = t // block, -(-self.rule["recent"] // block) - 1
        bounds = []
        for i in range(newest):
            of_block = keys[i * block : (i + 1) * block]
            low, high = rounded_down(np.min(of_block, axis=0)), -rounded_down(-np.max(of_block, axis=0))
            bounds.append((max(np.sum(np.maximum(q * low, q * high)) for q in queries), i))
        bounds.sort(reverse=True)
        if places < newest:
            self.margins.append((bounds[places - 1][0] - bounds[places][0]) / abs(bounds[places][0]))
        read = {newest} | {i for _, i in bounds[:places]}
        return [j for j in kept if j // block in read]

    def counting(self, kept, end):
        """The scores of the tokens that may go."""
        by = self.rule["by"]
        newest = int(self.rule["recent_share"] * self.rule["recent"]) if "recent_share" in self.rule else self.rule.get("window", 0)
        if by == "keydiff":
            mean = np.mean([self.keys[j] for j in kept], axis=0)
            self.scores = {j: -self.keys[j] @ mean / np.sqrt(mean @ mean) for j in kept}
        scores = {j: self.scores.get(j, 0.0) for j in kept if j < end - newest}
        if by == "expected":
            scores = {j: score * self.lengths.get(j, 0.0) for j, score in scores.items()}
        if by == "snapkv":
            scores = self.pooled(scores)
        if by == "fastgen":
            stays = [j for j in scores if self.ids[j] in SPECIAL or self.rule["punctuation"] and self.ids[j] in PUNCTUATION]
            scores.update((j, np.inf) for j in stays)
        return {j: score for j, score in scores.items() if j >= self.rule.get("sink", 0)}

    def going(self, kept, end):
        """Of the tokens that are kept once `end` of the text are in."""
        if not self.cuts(kept, end):
            return []
        scores = self.counting(kept, end)
        order = sorted(scores, key=lambda j: (scores[j], j))
        num_going = len(kept) - self.budget()
        if num_going < len(order):
            lower, upper = scores[order[num_going - 1]], scores[order[num_going]]
            # Tokens that share the largest of their neighbours are tied by nature, and the earlier goes: then it is the
            # scores around them that must not come near.
            if self.rule.get("pooling") == "max" and upper == lower:
                around = [abs(score - lower) for score in scores.values() if score != lower]
                self.margins.append(min(around) / abs(lower))
            else:
                self.margins.append((upper - lower) / abs(upper) if upper < np.inf else 1.0)
        return order[:num_going]

    def pooled(self, scores):
        """Here nothing has been dropped: the tokens are 0, 1, 2, ..."""
        reach, result = self.rule["kernel"] // 2, {}
        for j in scores:
            around = [scores[i] for i in range(j - reach, j + reach + 1) if i in scores]
            result[j] = max(around) if self.rule["pooling"] == "max" else sum(around) / self.rule["kernel"]
        return result


class Llama:
    def __init__(self, folder):
        self.config = json.loads((folder / "config.json").read_text())
        self.weights = {name: w.astype(np.float64) for name, w in load_file(folder / "model.safetensors").items()}
        self.dim = self.config["head_dim"]
        self.num_heads, self.num_kv_heads = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        self.group = self.num_heads // self.num_kv_heads
        self.raw = {}  # queries of a layer before rotation

    def norm(self, x, name):
        scale = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.config["rms_norm_eps"])
        return x / scale * self.weights[name]

    def rotated(self, x, t):
        """x [heads, D]"""
        half = self.dim // 2
        theta = self.config["rope_parameters"]["rope_theta"]
        angles = t * theta ** (-np.arange(half) / half)
        first, second = x[:, :half], x[:, half:]
        return np.concatenate([first * np.cos(angles) - second * np.sin(angles),
                               second * np.cos(angles) + first * np.sin(angles)], axis=1)

    def run(self, ids, steps, policies):
        """Final hidden states [T, E], and after each step the kept tokens of all heads, [step][layer][KV head]."""
        num_layers = self.config["num_hidden_layers"]
        hidden = self.weights["model.embed_tokens.weight"][ids]
        kept = [[[] for _ in range(self.num_kv_heads)] for _ in range(num_layers)]
        keys = [[None] * len(ids) for _ in range(num_layers)]
        values = [[None] * len(ids) for _ in range(num_layers)]
        after = []
        for begin, end in steps:
            for layer in range(num_layers):
                for t in range(begin, end):
                    hidden[t] = self.token(layer, t, hidden[t], keys[layer], values[layer], kept[layer], policies[layer])
                for head in range(self.num_kv_heads):
                    if policies[layer][head].rule["by"] == "expected":
                        self.expect(policies[layer][head], head, range(begin, end), kept[layer][head], keys[layer], values[layer])
                    for j in policies[layer][head].going(kept[layer][head], end):
                        kept[layer][head].remove(j)
            after.append([[sorted(head) for head in layer] for layer in kept])
        return self.norm(hidden, "model.norm.weight"), after

    def expect(self, policy, head, rows, kept, keys, values):
        """Queries at `rows`, of one step, as draws from a normal distribution; each turned by the mean of 512 rotations to come."""
        end, sink = policy.prompt_tokens, policy.rule["sink"]
        rows = [t for t in rows if sink <= t < end]
        if not rows:
            return
        seen = [j for j in kept if j >= sink]
        k = np.array([keys[j][head] for j in seen])
        for q in range(head * self.group, (head + 1) * self.group):
            x = np.mean([self.rotated(np.array([self.raw[t][q] for t in rows]), end + i) for i in range(512)], axis=0)
            covariance = np.cov(x.T, bias=True)
            weights = np.exp(k @ x.mean(axis=0) / np.sqrt(self.dim) + np.einsum("ja,ab,jb->j", k, covariance, k) / self.dim / 2)
            for j, share in zip(seen, weights / np.sum(weights)):
                policy.lengths[j] = np.sqrt(np.sum(values[j][head] ** 2))
                policy.scores[j] = policy.scores.get(j, 0.0) + len(rows) * (share + policy.rule["epsilon"]) / self.group

    def token(self, layer, t, x, keys, values, kept, policies):
        name = f"model.layers.{layer}."
        y = self.norm(x, name + "input_layernorm.weight")
        project = lambda which: (self.weights[name + f"self_attn.{which}_proj.weight"] @ y).reshape(-1, self.dim)
        self.raw[t] = project("q")
        queries = self.rotated(self.raw[t], t)
        keys[t], values[t] = self.rotated(project("k"), t), project("v")
        out = np.zeros((self.num_heads, self.dim))
        for head in range(self.num_kv_heads):
            kept[head].append(t)
            group = queries[head * self.group : (head + 1) * self.group]
            read = policies[head].reading(kept[head], t, group, [keys[j][head] for j in range(t + 1)])
            seen = dict.fromkeys(read, 0.0)
            k = np.array([keys[j][head] for j in read])
            v = np.array([values[j][head] for j in read])
            for q in range(head * self.group, (head + 1) * self.group):
                scores = k @ queries[q] / np.sqrt(self.dim)
                weights = np.exp(scores - scores.max())
                weights /= weights.sum()
                out[q] = weights @ v
                for j, weight in zip(read, weights):
                    seen[j] += weight
            policies[head].note(t, keys[t][head], seen)
        x = x + self.weights[name + "self_attn.o_proj.weight"] @ out.reshape(-1)
        y = self.norm(x, name + "post_attention_layernorm.weight")
        gate = self.weights[name + "mlp.gate_proj.weight"] @ y
        up = self.weights[name + "mlp.up_proj.weight"] @ y
        return x + self.weights[name + "mlp.down_proj.weight"] @ (gate / (1 + np.exp(-gate)) * up)


def plan_rule(rule):
    select = {key: rule[key] for key in ("by", "recent_share", "punctuation", "window", "epsilon", "kernel", "pooling", "block") if key in rule}
    return {"full": False, "sink": rule.get("sink", 0), "recent": rule["recent"], "positions": "text",
            "from": rule.get("from", "first_token"), "compensate": False, "select": select}


def press_kept(folder, ids, press, num_layers):
    """What a press leaves of a prompt, [layer][KV head]. It has cut a copy of the keys: each is looked for among them."""
    import torch
    from transformers import AutoModelForCausalLM, DynamicCache

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    found = {}
    with torch.inference_mode():
        whole, cut = DynamicCache(), DynamicCache()
        model(torch.tensor([ids]), past_key_values=whole)
        with press(model):
            model(torch.tensor([ids]), past_key_values=cut)
        for layer in range(num_layers):
            for head in range(whole.layers[layer].keys.shape[1]):
                distance = torch.cdist(cut.layers[layer].keys[0, head], whole.layers[layer].keys[0, head])
                found[layer, head] = sorted(distance.argmin(dim=1).tolist())
    return found


def compare_kvpress(folder, ids, kept):
    """Where a press and a policy mean the same they keep the same tokens."""
    import kvpress

    ratio = lambda budget: 1 - (budget + 0.5) / len(ids)  # the package rounds down
    presses = {
        "snapkv": kvpress.SnapKVPress(ratio(20), window_size=8, kernel_size=5),
        "knorm_after": kvpress.KnormPress(ratio(24)),
        # Its scores are means over all heads of a layer; here each group of query heads chooses for itself.
        "tova": kvpress.TOVAPress(ratio(20)),
        "expected_at_once": kvpress.ExpectedAttentionPress(ratio(24)),
    }
    for name, press in presses.items():
        found = press_kept(folder, ids, press, len(kept[name]))
        same = sum(len(set(tokens) & set(kept[name][layer][head])) for (layer, head), tokens in found.items())
        print(f"{name}: {same} of {sum(map(len, found.values()))} tokens of {type(press).__name__} are kept here")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--kvpress", action="store_true")
    args = parser.parse_args()
    golden = load_file(args.model / "golden.safetensors")
    # All different: in the first layer equal tokens have keys of equal length.
    ids = np.random.default_rng(7).permutation(384)[: PROMPT + LATER].tolist()
    prompt = ids[:PROMPT]
    steps = [(t, min(t + CHUNK, len(prompt))) for t in range(0, len(prompt), CHUNK)]
    num_prompt_steps = len(steps)
    steps += [(t, t + 1) for t in range(len(prompt), len(ids))]
    rows = list(range(len(prompt) - 1, len(ids), 4))
    model = Llama(args.model)
    everything = Policy({"recent": 1000, "by": "h2o"}, 0, [])
    known = golden["ids_a"].tolist()
    dense, _ = model.run(known, [(0, len(known))], [[everything] * model.num_kv_heads] * 2)
    np.testing.assert_allclose(dense, golden["final_hidden_a"], atol=1e-5)  # of transformers
    tensors = {"ids": np.array(ids, np.int32), "rows": np.array(rows, np.int32)}
    cases, at_end = {}, {}
    for name, rules in POLICIES.items():
        margins = []
        policies = [[Policy(rule, len(prompt), margins, ids) for _ in range(model.num_kv_heads)] for rule in rules]
        hidden, after = model.run(ids, steps, policies)
        if name != "expected":  # the tokens say it all: none goes later
            tensors[f"hidden_{name}"] = hidden[rows].astype(np.float32)
        dropped = []
        for before, now, step in zip(after[num_prompt_steps - 1 :], after[num_prompt_steps:], steps[num_prompt_steps:]):
            gone = [sorted(set(a + [step[0]]) - set(b)) for a, b in zip(sum(before, []), sum(now, []))]
            dropped.append([tokens[0] if tokens else -1 for tokens in gone])
        at_end[name] = after[num_prompt_steps - 1]
        cases[name] = {"plan": [[plan_rule(rule)] * model.num_kv_heads for rule in rules],
                       "smallest_margin": float(f"{min(margins):.3g}"), "kept": at_end[name], "dropped": dropped}
        for unsaid in {"quest": ("kept", "dropped"), "expected": ("dropped",)}.get(name, ()):
            del cases[name][unsaid]
        if min(margins) < 1e-5:
            sys.exit(f"{name}: a choice was nearly a tie ({min(margins):.2g}), expected another text or budget")
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "golden.json").write_text(
        json.dumps({"model": args.model.name, "prompt_tokens": len(prompt), "chunk_tokens": CHUNK, "special": list(SPECIAL), "punctuation": list(PUNCTUATION),
                    "cases": cases},
                   separators=(",", ":")) + "\n")
    save_file(tensors, args.out / "golden.safetensors")
    if args.kvpress:
        # A press takes the whole prompt's queries for draws from one distribution, and keeps none for being new.
        rule = {"sink": 4, "recent": 20, "from": "end_of_prompt", "by": "expected", "window": 0, "epsilon": 0}
        policies = [[Policy(rule, len(prompt), []) for _ in range(model.num_kv_heads)] for _ in range(2)]
        at_end["expected_at_once"] = model.run(prompt, [(0, len(prompt))], policies)[1][-1]
        compare_kvpress(args.model, prompt, at_end)


if __name__ == "__main__":
    main()
