"""A plain torch decoder for golden numbers: slow, obvious, in whatever dtype its tensors have (float64 for goldens).

It covers what no outside implementation computes: sink logits in the softmax, Baichuan, and heads that read sink +
recent tokens with positions inside the cache [StreamingLLM section 3.2]. It is not a model zoo: one layer shape, two
norms, two feed-forward forms, RoPE or ALiBi. make_golden.py checks it against transformers where the two overlap.

Letters as in the engine: T tokens, E model dim, F feed-forward dim, V vocabulary, D head dim, Hq and Hkv heads.
"""

import dataclasses
import math

import torch

QUERY_BLOCK_TOKENS = 512  # bounds the score matrices to [Hq, 512, T]


@dataclasses.dataclass(frozen=True)
class CacheRule:
    """A query at t reads j <= t with j < sink or t - j < recent; distances are those inside the cache."""

    sink: int
    recent: int


@dataclasses.dataclass(frozen=True)
class Layer:
    """Matrices are [out, in]. Without `gate` [F, E] the feed-forward part is down(gelu(up(x))), else SwiGLU."""

    norm_1: torch.Tensor  # [E], before attention
    norm_2: torch.Tensor  # [E], before the feed-forward part
    q: torch.Tensor  # [Hq * D, E]
    k: torch.Tensor  # [Hkv * D, E]
    v: torch.Tensor  # [Hkv * D, E]
    o: torch.Tensor  # [E, Hq * D]
    up: torch.Tensor  # [F, E]
    down: torch.Tensor  # [E, F]
    gate: torch.Tensor | None = None
    sink_logits: torch.Tensor | None = None  # [Hq], one more score per query head that has no value


@dataclasses.dataclass(frozen=True)
class Decoder:
    """Exactly one of `inv_freq` [D / 2] (RoPE) and `slopes` [Hq] (ALiBi) is set."""

    embedding: torch.Tensor  # [V, E]
    layers: list[Layer]
    norm: torch.Tensor  # [E]
    head: torch.Tensor  # [V, E]
    num_q_heads: int
    num_kv_heads: int
    norm_kind: str  # "rms" or "layer" (LayerNorm without bias)
    norm_eps: float
    inv_freq: torch.Tensor | None = None
    slopes: torch.Tensor | None = None

    def hidden(self, ids: torch.Tensor, rule: CacheRule | None = None) -> torch.Tensor:
        """[T] ids -> [T, E] after the last norm. Without a rule every query reads every key j <= t."""
        x = self.embedding[ids]
        for layer in self.layers:
            x = x + self._attention(layer, self._normalise(x, layer.norm_1), rule)
            x = x + _feed_forward(layer, self._normalise(x, layer.norm_2))
        return self._normalise(x, self.norm)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[T, E] -> [T, V]."""
        return hidden @ self.head.T

    def _normalise(self, x, weight):
        if self.norm_kind == "layer":
            x = x - x.mean(-1, keepdim=True)
        return x / torch.sqrt(x.square().mean(-1, keepdim=True) + self.norm_eps) * weight

    def _attention(self, layer, x, rule):
        num_tokens = x.shape[0]
        group = self.num_q_heads // self.num_kv_heads
        positions = torch.arange(num_tokens)

        def heads(matrix, count):  # [T, E] -> [count, T, D]
            return (x @ matrix.T).view(num_tokens, count, -1).transpose(0, 1)

        q = heads(layer.q, self.num_q_heads)
        k = self._rotate(heads(layer.k, self.num_kv_heads), positions).repeat_interleave(group, 0)
        v = heads(layer.v, self.num_kv_heads).repeat_interleave(group, 0)
        out = [
            self._attend_block(layer, q, k, v, rule, positions[first : first + QUERY_BLOCK_TOKENS])
            for first in range(0, num_tokens, QUERY_BLOCK_TOKENS)
        ]
        return torch.cat(out, 1).transpose(0, 1).reshape(num_tokens, -1) @ layer.o.T

    def _attend_block(self, layer, q, k, v, rule, t):
        """Attention of the consecutive queries `t` [n]: q, k, v are [Hq, T, D], only k is rotated -> [Hq, n, D]."""
        end = int(t[-1]) + 1
        sink, recent = (rule.sink, rule.recent) if rule else (0, end)
        query = q[:, t]
        # Recent keys keep their distance in the text ...
        first = max(0, int(t[0]) - recent + 1)
        j = torch.arange(first, end)
        distance = t[:, None] - j
        keep = (distance >= 0) & (distance < recent)
        scores = [self._scores(self._rotate(query, t), k[:, j], distance, keep)]
        values = [v[:, j]]
        # ... and sinks that the window has left are as far away as the full cache is long.
        if sink:
            j = torch.arange(min(sink, end))
            cache_position = t.clamp(max=sink + recent - 1)
            distance = cache_position[:, None] - j
            keep = t[:, None] - j >= recent
            scores.append(self._scores(self._rotate(query, cache_position), k[:, j], distance, keep))
            values.append(v[:, j])
        if layer.sink_logits is not None:
            scores.append(layer.sink_logits[:, None, None].expand(-1, len(t), 1))
            values.append(torch.zeros_like(v[:, :1]))
        return torch.softmax(torch.cat(scores, -1), -1) @ torch.cat(values, 1)

    def _scores(self, query, key, distance, keep):
        """[Hq, n, D] x [Hq, m, D] -> [Hq, n, m], minus infinity where `keep` [n, m] is false."""
        scores = query @ key.transpose(1, 2) / math.sqrt(query.shape[-1])
        if self.slopes is not None:
            scores = scores - self.slopes[:, None, None] * distance
        return scores.masked_fill(~keep, -math.inf)

    def _rotate(self, x, positions):
        """Rotates [heads, n, D] by its positions [n]: element i pairs with element i + D / 2. ALiBi: the identity."""
        if self.inv_freq is None:
            return x
        angle = positions[:, None].double() * self.inv_freq.double()  # [n, D / 2]
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        low, high = x.chunk(2, -1)
        return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)


def _feed_forward(layer, x):
    if layer.gate is None:
        return torch.nn.functional.gelu(x @ layer.up.T) @ layer.down.T
    return (torch.nn.functional.silu(x @ layer.gate.T) * (x @ layer.up.T)) @ layer.down.T


def rope_frequencies(head_dim: int, base: float) -> torch.Tensor:
    """[D / 2] float64."""
    return base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)


def dynamic_ntk_base(base: float, factor: float, head_dim: int, trained_tokens: int, prompt_tokens: int) -> float:
    """The rotary base of a sequence whose prompt is that long; it stays when the sequence grows."""
    tokens = max(trained_tokens, prompt_tokens)
    return base * (factor * tokens / trained_tokens - (factor - 1)) ** (head_dim / (head_dim - 2))


def alibi_slopes(num_heads: int) -> torch.Tensor:
    """[Hq] float64, as in the ALiBi paper: those of the power of two below, then every second of the next."""
    lower = 2 ** int(math.log2(num_heads))
    slopes = [2.0 ** (-8 * (h + 1) / lower) for h in range(lower)]
    slopes += [2.0 ** (-8 * (h + 1) / (2 * lower)) for h in range(0, 2 * (num_heads - lower), 2)]
    return torch.tensor(slopes, dtype=torch.float64)


def llama_decoder(tensors: dict, config: dict) -> Decoder:
    """Llama tensor names, default RoPE. `zero_sink` and `attention_sinks` of the config add the sink logits."""
    num_q_heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // num_q_heads
    base = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]

    def layer(idx):
        part = lambda name: tensors[f"model.layers.{idx}.{name}"]
        sinks = None
        if config.get("zero_sink"):
            sinks = torch.zeros(num_q_heads, dtype=tensors["model.norm.weight"].dtype)
        elif config.get("attention_sinks"):
            sinks = part("self_attn.sinks")
        return Layer(
            norm_1=part("input_layernorm.weight"),
            norm_2=part("post_attention_layernorm.weight"),
            q=part("self_attn.q_proj.weight"),
            k=part("self_attn.k_proj.weight"),
            v=part("self_attn.v_proj.weight"),
            o=part("self_attn.o_proj.weight"),
            gate=part("mlp.gate_proj.weight"),
            up=part("mlp.up_proj.weight"),
            down=part("mlp.down_proj.weight"),
            sink_logits=sinks,
        )

    embedding = tensors["model.embed_tokens.weight"]
    return Decoder(
        embedding=embedding,
        layers=[layer(idx) for idx in range(config["num_hidden_layers"])],
        norm=tensors["model.norm.weight"],
        head=embedding if config["tie_word_embeddings"] else tensors["lm_head.weight"],
        num_q_heads=num_q_heads,
        num_kv_heads=config["num_key_value_heads"],
        norm_kind="rms",
        norm_eps=config["rms_norm_eps"],
        inv_freq=rope_frequencies(head_dim, base),
    )


def baichuan_decoder(tensors: dict, config: dict) -> Decoder:
    """Llama with q, k and v in one matrix. Of the two models under this name, only the one with RoPE (7B) has the key
    `max_position_embeddings`; the other (13B) has ALiBi."""
    llama_config = config | {"num_key_value_heads": config["num_attention_heads"], "rope_theta": 10000.0}
    decoder = llama_decoder(baichuan_as_llama(tensors), llama_config)
    if "max_position_embeddings" in config:
        return decoder
    slopes = alibi_slopes(config["num_attention_heads"]).to(decoder.norm.dtype)
    return dataclasses.replace(decoder, inv_freq=None, slopes=slopes)


def baichuan_as_llama(tensors: dict) -> dict:
    """W_pack [3 E, E] -> q_proj, k_proj, v_proj [E, E]."""
    out = {}
    for name, tensor in tensors.items():
        if "W_pack" not in name:
            out[name] = tensor
            continue
        for part, rows in zip(("q_proj", "k_proj", "v_proj"), tensor.chunk(3)):
            out[name.replace("W_pack", part)] = rows.contiguous()
    return out


def mpt_decoder(tensors: dict, config: dict) -> Decoder:
    """MPT as published: ALiBi, no biases, tied embeddings. No clip_qkv, power-of-two head counts only."""
    num_heads, bias_max = config["n_heads"], config["attn_config"]["alibi_bias_max"]
    if num_heads & (num_heads - 1) or config["attn_config"]["clip_qkv"] is not None:
        raise ValueError("mpt: clip_qkv, or a number of heads that is not a power of two; neither is written here")

    def layer(idx):
        part = lambda name: tensors[f"transformer.blocks.{idx}.{name}.weight"]
        q, k, v = part("attn.Wqkv").chunk(3)
        return Layer(
            norm_1=part("norm_1"),
            norm_2=part("norm_2"),
            q=q,
            k=k,
            v=v,
            o=part("attn.out_proj"),
            up=part("ffn.up_proj"),
            down=part("ffn.down_proj"),
        )

    embedding = tensors["transformer.wte.weight"]
    exponents = torch.arange(1, num_heads + 1, dtype=torch.float64) * bias_max / num_heads
    return Decoder(
        embedding=embedding,
        layers=[layer(idx) for idx in range(config["n_layers"])],
        norm=tensors["transformer.norm_f.weight"],
        head=embedding,
        num_q_heads=num_heads,
        num_kv_heads=num_heads,
        norm_kind="layer",
        norm_eps=config["layer_norm_epsilon"],
        slopes=(2.0**-exponents).to(embedding.dtype),
    )
