"""What 4-bit caches cost by how their numbers share scales: the tables of docs/kv-formats.md.

Wants from pip: numpy. Takes some minutes.

    python3 tools/kv_error.py

Reads the text of tests/golden/cache_rules/1_dense (1,024 tokens of the book Emma) with the bundled model in float64,
and again for every way of storing keys and values. Each query finds the cache as a decode step does: pages that have
aged when its token comes are in 4 bits, the others as they were written. Shown is the mean over all tokens of the KL
divergence of the next token's distribution from that of caches in float64, in millionths, with the half width of its
95 % interval, and the bytes of a token in a long text.
The unquantised run must meet the golden first.
"""

import dataclasses
import json
import math
import pathlib
import struct

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = ROOT / "models" / "headwise-17m"
GOLDEN = ROOT / "tests" / "golden" / "cache_rules" / "1_dense.safetensors"
PAGE = 64  # tokens, unless said otherwise


@dataclasses.dataclass(frozen=True)
class Way:
    """How keys and values are stored. Groups are [tokens, dimensions] with one scale; None: the whole row."""

    name: str
    written: str = "q8"  # what tokens are written in: float64, f16, bf16, q8
    ages: bool = True
    keys: tuple = (PAGE, 1)
    values: tuple = (1, 32)
    has_low: bool = True  # codes 0 .. 15 above a low, or -7 .. 7 around 0
    keeps_first: bool = True
    keeps_newest: bool = True
    page: int = PAGE


WAYS = [
    Way("f16", written="f16", ages=False),
    Way("bf16", written="bf16", ages=False),
    Way("q8", ages=False),
    Way("q4"),
    Way("q4, of float64 numbers", written="float64"),
    Way("keys by token in 32 dimensions", keys=(1, 32)),
    Way("keys by token, whole rows", keys=(1, None)),
    Way("values by whole rows", values=(1, None)),
    Way("values by dimension, over the page", values=(PAGE, 1)),
    Way("symmetric", has_low=False),
    Way("symmetric, keys by token in 32 dimensions", keys=(1, 32), has_low=False),
    Way("first page ages too", keeps_first=False),
    Way("newest complete page ages too", keeps_newest=False),
    Way("both age", keeps_first=False, keeps_newest=False),
    Way("pages of 16 tokens", keys=(16, 1), page=16),
    Way("pages of 32 tokens", keys=(32, 1), page=32),
    Way("pages of 128 tokens", keys=(128, 1), page=128),
]


def f16(x):
    return x.astype(np.float16).astype(np.float64)


def bf16(x):
    bits = x.astype(np.float32).view(np.uint32)
    bits = bits + 0x7FFF + ((bits >> 16) & 1)
    return (bits & 0xFFFF0000).view(np.float32).astype(np.float64)


def q8(x):
    """[T, D], a scale for each row."""
    scale = f16(np.abs(x).max(-1, keepdims=True) / 127)
    return scale * np.rint(x / scale)


WRITTEN = {"float64": lambda x: x, "f16": f16, "bf16": bf16, "q8": q8}


def q4(x, group, way):
    """[T, D] in groups; what is no whole page stays as it is, as it never ages."""
    tokens, dims = group[0], group[1] or x.shape[1]
    whole = x.shape[0] // way.page * way.page
    blocks = x[:whole].reshape(whole // tokens, tokens, x.shape[1] // dims, dims)
    if way.has_low:
        low = blocks.min((1, 3), keepdims=True)
        scale = f16((blocks.max((1, 3), keepdims=True) - low) / 15)
        low = f16(low)
        blocks = low + scale * np.clip(np.rint((blocks - low) / scale), 0, 15)
    else:
        scale = f16(np.abs(blocks).max((1, 3), keepdims=True) / 7)
        blocks = scale * np.clip(np.rint(blocks / scale), -7, 7)
    return np.concatenate((blocks.reshape(whole, -1), x[whole:]))


def token_bytes(way, head_dim):
    """Key and value of a token of one head; in 4 bits where tokens age."""
    if not way.ages:
        return 2 * {"f16": 2 * head_dim, "bf16": 2 * head_dim, "q8": head_dim + 2}[way.written]
    numbers_per_scale = 4 if way.has_low else 2
    groups = sum(head_dim / (tokens * (dims or head_dim)) for tokens, dims in (way.keys, way.values))
    return head_dim + numbers_per_scale * groups


class Model:
    def __init__(self):
        self.config = json.loads((MODEL / "config.json").read_text())
        self.tensors = read_safetensors(MODEL / "model.safetensors")
        self.head_dim = self.config["head_dim"]

    def logits(self, ids, way=None):
        """[T] ids -> [T, V]. Without a way keys and values are as they are."""
        embedding = self.tensors["model.embed_tokens.weight"]
        x = embedding[ids]
        for idx in range(self.config["num_hidden_layers"]):
            part = lambda name: self.tensors[f"model.layers.{idx}.{name}.weight"]
            x = x + self._attention(part, self._normalise(x, part("input_layernorm")), way)
            y = self._normalise(x, part("post_attention_layernorm"))
            gate = y @ part("mlp.gate_proj").T
            x = x + (gate / (1 + np.exp(-gate)) * (y @ part("mlp.up_proj").T)) @ part("mlp.down_proj").T
        return self._normalise(x, self.tensors["model.norm.weight"]) @ embedding.T

    def _normalise(self, x, weight):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.config["rms_norm_eps"]) * weight

    def _attention(self, part, x, way):
        num_kv_heads = self.config["num_key_value_heads"]
        group = self.config["num_attention_heads"] // num_kv_heads
        heads = lambda name: [
            y for y in np.moveaxis((x @ part(f"self_attn.{name}_proj").T).reshape(len(x), -1, self.head_dim), 1, 0)
        ]
        queries, keys, values = heads("q"), heads("k"), heads("v")
        causal = np.tri(len(x), dtype=bool)
        out = []
        for kv_head in range(num_kv_heads):
            k, v = self._rotate(keys[kv_head]), values[kv_head]
            aged = np.zeros((len(x), len(x)), bool)
            if way is not None:
                k, v = WRITTEN[way.written](k), WRITTEN[way.written](v)
                if way.ages:
                    aged = aged_keys(way, len(x))
            aged_k = q4(k, way.keys, way) if aged.any() else k
            aged_v = q4(v, way.values, way) if aged.any() else v
            for q in queries[kv_head * group : (kv_head + 1) * group]:
                q = self._rotate(q) / math.sqrt(self.head_dim)
                scores = np.where(causal, np.where(aged, q @ aged_k.T, q @ k.T), -np.inf)
                weights = np.exp(scores - scores.max(-1, keepdims=True))
                weights /= weights.sum(-1, keepdims=True)
                out.append(np.where(aged, weights, 0) @ aged_v + np.where(aged, 0, weights) @ v)
        return np.concatenate(out, -1) @ part("self_attn.o_proj").T

    def _rotate(self, x):
        frequencies = self.config["rope_theta"] ** (-np.arange(0, self.head_dim, 2) / self.head_dim)
        angle = np.arange(len(x))[:, None] * frequencies
        low, high = np.split(x, 2, -1)
        return np.concatenate(
            (low * np.cos(angle) - high * np.sin(angle), high * np.cos(angle) + low * np.sin(angle)), -1
        )


def aged_keys(way, num_tokens):
    """[T, T]: whether the decode step of token t finds key j in a page that has aged."""
    page = np.arange(num_tokens) // way.page
    complete = page[:, None]  # pages that are complete before token t
    newest = 1 if way.keeps_newest else 0
    return (page >= (1 if way.keeps_first else 0)) & (page < complete - newest)


def read_safetensors(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        raw = data[8 + size :][slice(*entry["data_offsets"])]
        if entry["dtype"] == "BF16":
            values = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        else:
            values = np.frombuffer(raw, {"F32": np.float32, "I32": np.int32}[entry["dtype"]])
        tensors[name] = values.reshape(entry["shape"])
    return tensors


def log_softmax(logits):
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def main():
    golden = read_safetensors(GOLDEN)
    ids, next_ids = golden["ids"][:-1], golden["ids"][1:]
    model = Model()
    exact = log_softmax(model.logits(ids))
    nll = -exact[np.arange(len(ids)), next_ids]
    if np.abs(nll - golden["nll"]).max() > 1e-4:
        raise SystemExit("the unquantised run is not the golden")
    print(f"{'':45}{'bytes':>7}{'KL 1e-6':>10}{'+-':>7}{'NLL':>10}")
    for way in WAYS:
        log_p = log_softmax(model.logits(ids, way))
        divergence = 1e6 * (np.exp(exact) * (exact - log_p)).sum(-1)
        change = (-log_p[np.arange(len(ids)), next_ids] - nll).mean()
        print(
            f"{way.name:45}{token_bytes(way, model.head_dim):7.1f}{divergence.mean():10.2f}"
            f"{1.96 * divergence.std() / math.sqrt(len(ids)):7.2f}{change:+10.5f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
