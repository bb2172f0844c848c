"""Planners: each makes a head plan for a model, as `headwise plan METHOD` does. docs/planners.md compares them.

An option that is None is not given, and has the default that is named. out: a plan file to write; None: none is
written. num_threads: 0: one per core. progress: a function of a label, how much is done and of how much, called at most
ten times a second. Ctrl-C ends methods that run a model (`razor`, which reads one text, when it is done); those with
`resume` leave what they have in `out` + ".checkpoint" then, from which they, or the command, go on.

Written by tools/make_python_planners.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._planning import make as _make, refit
from .head_plan import HeadPlan, StrPath, compare
from .sampling import Progress

__all__ = [
    "duo",
    "zigzag",
    "razor",
    "moa",
    "profile",
    "streaming",
    "uniform",
    "random",
    "manual",
    "h2o",
    "fastgen",
    "tova",
    "snapkv",
    "pyramidkv",
    "adakv",
    "knorm",
    "keydiff",
    "expected",
    "quest",
    "infllm",
    "import_duo",
    "import_moa",
    "refit",
    "compare",
]


def duo(
    model: StrPath,
    *,
    from_: StrPath | None = None,
    sink: int | None = None,
    recent: int | None = None,
    positions: str | None = None,
    compensate: bool | None = None,
    sparsity: float | None = None,
    threshold: float | None = None,
    kv_ratio: float | None = None,
    at: int | None = None,
    kv_bytes_at: str | None = None,
    steps: int | None = None,
    batch: int | None = None,
    learning_rate: float | None = None,
    lambda_: float | None = None,
    train_sink: int | None = None,
    train_recent: int | None = None,
    memory_bytes: int | str | None = None,
    compute: str | None = None,
    data: str | None = None,
    text: StrPath | None = None,
    min_tokens: int | None = None,
    max_tokens: int | None = None,
    num_lengths: int | None = None,
    passkeys: int | None = None,
    passkey_words: int | None = None,
    seed: int | None = None,
    out: StrPath | None = None,
    num_threads: int = 0,
    progress: Progress | None = None,
    resume: bool = False,
) -> HeadPlan:
    """Gates trained on passkeys decide which heads stay full [duo]; from_ re-plans without training.

    from_: Plan of method duo or profile: its gates, without training.
    sink: First tokens that a bounded head keeps. By default 64.
    recent: Last tokens that a bounded head keeps. By default 256.
    positions: text, or cache: distances inside the cache. By default text.
    compensate: true: fold dropped tokens into one mean token. By default false.
    sparsity: Share of heads that are bounded. By default 0.5.
    threshold: Heads with a gate below this are bounded.
    kv_ratio: Budget: this share of the dense plan's KV bytes, at at tokens.
    at: Tokens at which kv_ratio holds.
    kv_bytes_at: Budget: BYTES:TOKENS, as 5M:8192 or 5MiB:8192.
    steps: Planned training steps; a run whose ranking is settled ends earlier. By default 2000.
    batch: Samples per step. By default 1.
    learning_rate: Of the gates, between warm-up and decay. By default 0.02.
    lambda_: Weight of the gates' mean in the loss. By default 0.05.
    train_sink: First tokens that a gate of 0 reads while heads are identified. By default 128.
    train_recent: Last tokens that a gate of 0 reads while heads are identified. By default 256.
    memory_bytes: Activations of the samples that run at once, as 4G; 0: no limit. By default 0.
    compute: Products with weights: f32, or bf16 with sums in f32. By default f32.
    data: passkeys (moa: recall), or text: every token of plain text counts (moa: as the model goes on). By default
        passkeys.
    text: UTF-8 file that the samples' text comes from; without it text is generated.
    min_tokens: Shortest sample. By default (1000, or what holds the passkeys).
    max_tokens: Longest sample. By default (32000, or the trained length).
    num_lengths: Lengths in the even grid between the two. By default 50.
    passkeys: Passkeys per sample. By default 10.
    passkey_words: Words per passkey. By default 32.
    seed: Seed of everything that is drawn. By default 0.
    """
    given: dict[str, Any] = {
        "from": from_,
        "sink": sink,
        "recent": recent,
        "positions": positions,
        "compensate": compensate,
        "sparsity": sparsity,
        "threshold": threshold,
        "kv-ratio": kv_ratio,
        "at": at,
        "kv-bytes-at": kv_bytes_at,
        "steps": steps,
        "batch": batch,
        "learning-rate": learning_rate,
        "lambda": lambda_,
        "train-sink": train_sink,
        "train-recent": train_recent,
        "memory-bytes": memory_bytes,
        "compute": compute,
        "data": data,
        "text": text,
        "min-tokens": min_tokens,
        "max-tokens": max_tokens,
        "num-lengths": num_lengths,
        "passkeys": passkeys,
        "passkey-words": passkey_words,
        "seed": seed,
    }
    return _make("duo", model, given, out=out, num_threads=num_threads, progress=progress, resume=resume)


def zigzag(
    model: StrPath,
    *,
    from_: StrPath | None = None,
    sparsity: float | None = None,
    omega: float | None = None,
    retrain_steps: int | None = None,
    sink: int | None = None,
    recent: int | None = None,
    positions: str | None = None,
    compensate: bool | None = None,
    kv_ratio: float | None = None,
    at: int | None = None,
    kv_bytes_at: str | None = None,
    steps: int | None = None,
    batch: int | None = None,
    learning_rate: float | None = None,
    lambda_: float | None = None,
    train_sink: int | None = None,
    train_recent: int | None = None,
    memory_bytes: int | str | None = None,
    compute: str | None = None,
    data: str | None = None,
    text: StrPath | None = None,
    min_tokens: int | None = None,
    max_tokens: int | None = None,
    num_lengths: int | None = None,
    passkeys: int | None = None,
    passkey_words: int | None = None,
    seed: int | None = None,
    out: StrPath | None = None,
    num_threads: int = 0,
    progress: Progress | None = None,
    resume: bool = False,
) -> HeadPlan:
    """Whole layers full or streaming, from duo's gates (from_, or trained) [zigzag].

    from_: Plan of method duo: its gates, without training.
    sparsity: Share of heads that are bounded. By default 0.5.
    omega: What a streaming head that becomes full earns, as a share of its gate. By default 0.1.
    retrain_steps: Train one gate per layer for so many steps after the assignment. By default 0.
    sink: First tokens that a bounded head keeps. By default 64.
    recent: Last tokens that a bounded head keeps. By default 256.
    positions: text, or cache: distances inside the cache. By default text.
    compensate: true: fold dropped tokens into one mean token. By default false.
    kv_ratio: Budget: this share of the dense plan's KV bytes, at at tokens.
    at: Tokens at which kv_ratio holds.
    kv_bytes_at: Budget: BYTES:TOKENS, as 5M:8192 or 5MiB:8192.
    steps: Planned training steps; a run whose ranking is settled ends earlier. By default 2000.
    batch: Samples per step. By default 1.
    learning_rate: Of the gates, between warm-up and decay. By default 0.02.
    lambda_: Weight of the gates' mean in the loss. By default 0.05.
    train_sink: First tokens that a gate of 0 reads while heads are identified. By default 128.
    train_recent: Last tokens that a gate of 0 reads while heads are identified. By default 256.
    memory_bytes: Activations of the samples that run at once, as 4G; 0: no limit. By default 0.
    compute: Products with weights: f32, or bf16 with sums in f32. By default f32.
    data: passkeys (moa: recall), or text: every token of plain text counts (moa: as the model goes on). By default
        passkeys.
    text: UTF-8 file that the samples' text comes from; without it text is generated.
    min_tokens: Shortest sample. By default (1000, or what holds the passkeys).
    max_tokens: Longest sample. By default (32000, or the trained length).
    num_lengths: Lengths in the even grid between the two. By default 50.
    passkeys: Passkeys per sample. By default 10.
    passkey_words: Words per passkey. By default 32.
    seed: Seed of everything that is drawn. By default 0.
    """
    given: dict[str, Any] = {
        "from": from_,
        "sparsity": sparsity,
        "omega": omega,
        "retrain-steps": retrain_steps,
        "sink": sink,
        "recent": recent,
        "positions": positions,
        "compensate": compensate,
        "kv-ratio": kv_ratio,
        "at": at,
        "kv-bytes-at": kv_bytes_at,
        "steps": steps,
        "batch": batch,
        "learning-rate": learning_rate,
        "lambda": lambda_,
        "train-sink": train_sink,
        "train-recent": train_recent,
        "memory-bytes": memory_bytes,
        "compute": compute,
        "data": data,
        "text": text,
        "min-tokens": min_tokens,
        "max-tokens": max_tokens,
        "num-lengths": num_lengths,
        "passkeys": passkeys,
        "passkey-words": passkey_words,
        "seed": seed,
    }
    return _make("zigzag", model, given, out=out, num_threads=num_threads, progress=progress, resume=resume)


def razor(
    model: StrPath,
    *,
    induction_share: float | None = None,
    echo_share: float | None = None,
    sink: int | None = None,
    min_recent: int | None = None,
    divisor: float | None = None,
    compensate: bool | None = None,
    from_: str | None = None,
    seed: int | None = None,
    epsilon: float | None = None,
    context: int | None = None,
    compute: str | None = None,
    kv_ratio: float | None = None,
    at: int | None = None,
    kv_bytes_at: str | None = None,
    out: StrPath | None = None,
    num_threads: int = 0,
    progress: Progress | None = None,
) -> HeadPlan:
    """Echo and induction heads stay full, the others fold what they drop; needs no training [razor].

    induction_share: Share of query heads protected for induction. By default 0.14.
    echo_share: Share of query heads protected for echo. By default 0.01.
    sink: First tokens that a bounded head keeps. By default 4.
    min_recent: Smallest window of a head that is not protected. By default 4000.
    divisor: Its window is the prompt divided by this. By default 5.
    compensate: true: fold dropped tokens into one mean token. By default true.
    from_: Where the rule begins to hold: first_token, or end_of_prompt. By default end_of_prompt.
    seed: Seed of everything that is drawn. By default 0.
    epsilon: ALiBi: attention weights below this may be dropped. By default 0.001.
    context: ALiBi: a window of so many tokens means full. By default (the trained length).
    compute: Products with weights: f32, or bf16 with sums in f32. By default f32.
    kv_ratio: Budget: this share of the dense plan's KV bytes, at at tokens.
    at: Tokens at which kv_ratio holds.
    kv_bytes_at: Budget: BYTES:TOKENS, as 5M:8192 or 5MiB:8192.
    """
    given: dict[str, Any] = {
        "induction-share": induction_share,
        "echo-share": echo_share,
        "sink": sink,
        "min-recent": min_recent,
        "divisor": divisor,
        "compensate": compensate,
        "from": from_,
        "seed": seed,
        "epsilon": epsilon,
        "context": context,
        "compute": compute,
        "kv-ratio": kv_ratio,
        "at": at,
        "kv-bytes-at": kv_bytes_at,
    }
    return _make("razor", model, given, out=out, num_threads=num_threads, progress=progress)


def moa(
    model: StrPath,
    *,
    lengths: Sequence[int] | None = None,
    validation_length: int | None = None,
    samples: int | None = None,
    validation_samples: int | None = None,
    answer_tokens: int | None = None,
    density: float | None = None,
    intervals: int | None = None,
    max_rules_per_layer: int | None = None,
    spans: str | None = None,
    influence: str | None = None,
    integration_points: int | None = None,
    data: str | None = None,
    text: StrPath | None = None,
    prompts: StrPath | None = None,
    seed: int | None = None,
    compute: str | None = None,
    kv_ratio: float | None = None,
    at: int | None = None,
    kv_bytes_at: str | None = None,
    out: StrPath | None = None,
    num_threads: int = 0,
    progress: Progress | None = None,
    resume: bool = False,
) -> HeadPlan:
    """An elastic window per head, by influence on the answer and a mixed-integer programme [moa].

    lengths: Tokens of the profiled texts, rising, separated by commas. By default (2048,4096,8192, or a sixth, a
        third and two thirds of the trained length).
    validation_length: Tokens of the texts on which a plan is chosen. By default (1.5 times the longest of lengths).
    samples: Samples to look at; moa: per length. By default 6.
    validation_samples: Texts of that length. By default 3.
    answer_tokens: Longest answer of the dense model. By default 48.
    density: Limit of the kept share of the text, at every profiled length. By default 0.5.
    intervals: Parts into which each length's range of losses is cut. By default 5.
    max_rules_per_layer: Different rules that a layer may have. By default 2.
    spans: elastic, or static: spans that do not grow with the text. By default elastic.
    influence: What a rule costs a head: first-order, margin, integrated (gradients towards all heads bounded), or
        measured. By default first-order.
    integration_points: Points on that way, for influence integrated. By default 2.
    data: passkeys (moa: recall), or text: every token of plain text counts (moa: as the model goes on). By default
        recall.
    text: UTF-8 file that the samples' text comes from; without it text is generated.
    prompts: JSONL file of {"prompt": ...} to calibrate on, in place of generated ones.
    seed: Seed of everything that is drawn. By default 0.
    compute: Products with weights: f32, or bf16 with sums in f32. By default f32.
    kv_ratio: Budget: this share of the dense plan's KV bytes, at at tokens.
    at: Tokens at which kv_ratio holds.
    kv_bytes_at: Budget: BYTES:TOKENS, as 5M:8192 or 5MiB:8192.
    """
    given: dict[str, Any] = {
        "lengths": lengths,
        "validation-length": validation_length,
        "samples": samples,
        "validation-samples": validation_samples,
        "answer-tokens": answer_tokens,
        "density": density,
        "intervals": intervals,
        "max-rules-per-layer": max_rules_per_layer,
        "spans": spans,
        "influence": influence,
        "integration-points": integration_points,
        "data": data,
        "text": text,
        "prompts": prompts,
        "seed": seed,
        "compute": compute,
        "kv-ratio": kv_ratio,
        "at": at,
        "kv-bytes-at": kv_bytes_at,
    }
    return _make("moa", model, given, out=out, num_threads=num_threads, progress=progress, resume=resume)


def profile(
    model: StrPath,
    *,
    samples: int | None = None,
    train_sink: int | None = None,
    train_recent: int | None = None,
    sink: int | None = None,
    recent: int | None = None,
    positions: str | None = None,
    from_: str | None = None,
    compensate: bool | None = None,
    compute: str | None = None,
    sparsity: float | None = None,
    threshold: float | None = None,
    kv_ratio: float | None = None,
    at: int | None = None,
    kv_bytes_at: str | None = None,
    data: str | None = None,
    text: StrPath | None = None,
    min_tokens: int | None = None,
    max_tokens: int | None = None,
    num_lengths: int | None = None,
    passkeys: int | None = None,
    passkey_words: int | None = None,
    seed: int | None = None,
    out: StrPath | None = None,
    num_threads: int = 0,
    progress: Progress | None = None,
) -> HeadPlan:
    """Heads with the most attention beyond sinks and window stay full: the baseline of [duo §3.5].

    samples: Samples to look at; moa: per length. By default 8.
    train_sink: First tokens that a gate of 0 reads while heads are identified. By default 128.
    train_recent: Last tokens that a gate of 0 reads while heads are identified. By default 256.
    sink: First tokens that a bounded head keeps. By default 64.
    recent: Last tokens that a bounded head keeps. By default 256.
    positions: text, or cache: distances inside the cache. By default text.
    from_: Where the rule begins to hold: first_token, or end_of_prompt. By default first_token.
    compensate: true: fold dropped tokens into one mean token. By default false.
    compute: Products with weights: f32, or bf16 with sums in f32. By default f32.
    sparsity: Share of heads that are bounded. By default 0.5.
    threshold: Heads with a gate below this are bounded.
    kv_ratio: Budget: this share of the dense plan's KV bytes, at at tokens.
    at: Tokens at which kv_ratio holds.
    kv_bytes_at: Budget: BYTES:TOKENS, as 5M:8192 or 5MiB:8192.
    data: passkeys (moa: recall), or text: every token of plain text counts (moa: as the model goes on). By default
        passkeys.
    text: UTF-8 file that the samples' text comes from; without it text is generated.
    min_tokens: Shortest sample. By default (1000, or what holds the passkeys).
    max_tokens: Longest sample. By default (32000, or the trained length).
    num_lengths: Lengths in the even grid between the two. By default 50.
    passkeys: Passkeys per sample. By default 10.
    passkey_words: Words per passkey. By default 32.
    seed: Seed of everything that is drawn. By default 0.
    """
    given: dict[str, Any] = {
        "samples": samples,
        "train-sink": train_sink,
        "train-recent": train_recent,
        "sink": sink,
        "recent": recent,
        "positions": positions,
        "from": from_,
        "compensate": compensate,
        "compute": compute,
        "sparsity": sparsity,
        "threshold": threshold,
        "kv-ratio": kv_ratio,
        "at": at,
        "kv-bytes-at": kv_bytes_at,
        "data": data,
        "text": text,
        "min-tokens": min_tokens,
        "max-tokens": max_tokens,
        "num-lengths": num_lengths,
        "passkeys": passkeys,
        "passkey-words": passkey_words,
        "seed": seed,
    }
    return _make("profile", model, given, out=out, num_threads=num_threads, progress=progress)


def streaming(
    model: StrPath,
    *,
    sink: int | None = None,
    recent: int | None = None,
    positions: str | None = None,
    from_: str | None = None,
    compensate: bool | None = None,
    kv_ratio: float | None = None,
    at: int | None = None,
    kv_bytes_at: str | None = None,
    out: StrPath | None = None,
) -> HeadPlan:
    """Every head keeps sinks and a window [streaming-llm].

    sink: First tokens that a bounded head keeps. By default 4.
    recent: Last tokens that a bounded head keeps. By default 2044.
    positions: text, or cache: distances inside the cache. By default cache.
    from_: Where the rule begins to hold: first_token, or end_of_prompt. By default first_token.
    compensate: true: fold dropped tokens into one mean token. By default false.
    kv_ratio: Budget: this share of the dense plan's KV bytes, at at tokens.
    at: Tokens at which kv_ratio holds.
    kv_bytes_at: Budget: BYTES:TOKENS, as 5M:8192 or 5MiB:8192.
    """
    given: dict[str, Any] = {
        "sink": sink,
        "recent": recent,
        "positions": positions,
        "from": from_,
        "compensate": compensate,
        "kv-ratio": kv_ratio,
        "at": at,
        "kv-bytes-at": kv_bytes_at,
    }
    return _make("streaming", model, given, out=out)


def uniform(
    model: StrPath,
    *,
    sink: int | None = None,
    alpha: float | None = None,
    beta: float | None = None,
    kv_ratio: float | None = None,
    at: int | None = None,
    kv_bytes_at: str | None = None,
    out: StrPath | None = None,
) -> HeadPlan:
    """Every head keeps the same span alpha + beta * context [moa's baseline].

    sink: First tokens that a bounded head keeps. By default 64.
    alpha: Span: alpha + beta * context. By default 0.
    beta: Span: alpha + beta * context. By default 0.5.
    kv_ratio: Budget: this share of the dense plan's KV bytes, at at tokens.
    at: Tokens at which kv_ratio holds.
    kv_bytes_at: Budget: BYTES:TOKENS, as 5M:8192 or 5MiB:8192.
    """
    given: dict[str, Any] = {
        "sink": sink,
        "alpha": alpha,
        "beta": beta,
        "kv-ratio": kv_ratio,
        "at": at,
        "kv-bytes-at": kv_bytes_at,
    }
    return _make("uniform", model, given, out=out)


def random(
    model: StrPath,
    *,
    sparsity: float | None = None,
    seed: int | None = None,
    sink: int | None = None,
    recent: int | None = None,
    positions: str | None = None,
    from_: str | None = None,
    compensate: bool | None = None,
    kv_ratio: float | None = None,
    at: int | None = None,
    kv_bytes_at: str | None = None,
    out: StrPath | None = None,
) -> HeadPlan:
    """A share of the heads, drawn by seed, is full; the others keep sinks and a window.

    sparsity: Share of heads that are bounded. By default 0.5.
    seed: Seed of everything that is drawn. By default 0.
    sink: First tokens that a bounded head keeps. By default 64.
    recent: Last tokens that a bounded head keeps. By default 256.
    positions: text, or cache: distances inside the cache. By default text.
    from_: Where the rule begins to hold: first_token, or end_of_prompt. By default first_token.
    compensate: true: fold dropped tokens into one mean token. By default false.
    kv_ratio: Budget: this share of the dense plan's KV bytes, at at tokens.
    at: Tokens at which kv_ratio holds.
    kv_bytes_at: Budget: BYTES:TOKENS, as 5M:8192 or 5MiB:8192.
    """
    given: dict[str, Any] = {
        "sparsity": sparsity,
        "seed": seed,
        "sink": sink,
        "recent": recent,
        "positions": positions,
        "from": from_,
        "compensate": compensate,
        "kv-ratio": kv_ratio,
        "at": at,
        "kv-bytes-at": kv_bytes_at,
    }
    return _make("random", model, given, out=out)


def manual(
    model: StrPath,
    *,
    rules: StrPath,
    out: StrPath | None = None,
) -> HeadPlan:
    """Rules per layer and KV head from a JSON file (rules).

    rules: JSON file with a table of rules, [layer][KV head].
    """
    given: dict[str, Any] = {
        "rules": rules,
    }
    return _make("manual", model, given, out=out)


def h2o(
    model: StrPath,
    *,
    budget: int | None = None,
    recent_share: float | None = None,
    from_: str | None = None,
    base: StrPath | None = None,
    kv_ratio: float | None = None,
    at: int | None = None,
    kv_bytes_at: str | None = None,
    out: StrPath | None = None,
) -> HeadPlan:
    """Every head keeps the newest tokens and those of the highest summed attention [h2o].

    budget: Tokens that a head keeps. By default 1024.
    recent_share: Share of the budget that is the newest tokens, whatever they scored. By default 0.5.
    from_: Where the rule begins to hold: first_token, or end_of_prompt. By default first_token.
    base: Plan whose bounded heads come to select by score, in no more bytes (at at tokens); with a KV budget it is
        refitted first.
    kv_ratio: Budget: this share of the dense plan's KV bytes, at at tokens.
    at: Tokens at which kv_ratio holds.
    kv_bytes_at: Budget: BYTES:TOKENS, as 5M:8192 or 5MiB:8192.
    """
    given: dict[str, Any] = {
        "budget": budget,
        "recent-share": recent_share,
        "from": from_,
        "base": base,
        "kv-ratio": kv_ratio,
        "at": at,
        "kv-bytes-at": kv_bytes_at,
    }
    return _make("h2o", model, given, out=out)


def fastgen(
    model: StrPath,
    *,
    recovery: float | None = None,
    frequent_share: float | None = None,
    local_share: float | None = None,
    samples: int | None = None,
    compute: str | None = None,
    kv_ratio: float | None = None,
    at: int | None = None,
    kv_bytes_at: str | None = None,
    data: str | None = None,
    text: StrPath | None = None,
    min_tokens: int | None = None,
    max_tokens: int | None = None,
    num_lengths: int | None = None,
    passkeys: int | None = None,
    passkey_words: int | None = None,
    seed: int | None = None,
    out: StrPath | None = None,
    num_threads: int = 0,
    progress: Progress | None = None,
) -> HeadPlan:
    """Every head keeps special tokens, and the first of punctuation, frequent and newest tokens, or all, that its
    attention needs [fastgen].

    recovery: Share of a head's attention that its policy has to keep. By default 0.95.
    frequent_share: Tokens with the highest summed attention that some policies keep, as a share of the text. By
        default 0.3.
    local_share: Newest tokens that some policies keep, as a share of the text. By default 0.3.
    samples: Samples to look at; moa: per length. By default 4.
    compute: Products with weights: f32, or bf16 with sums in f32. By default f32.
    kv_ratio: Budget: this share of the dense plan's KV bytes, at at tokens.
    at: Tokens at which kv_ratio holds.
    kv_bytes_at: Budget: BYTES:TOKENS, as 5M:8192 or 5MiB:8192.
    data: passkeys (moa: recall), or text: every token of plain text counts (moa: as the model goes on). By default
        passkeys.
    text: UTF-8 file that the samples' text comes from; without it text is generated.
    min_tokens: Shortest sample. By default (1000, or what holds the passkeys).
    max_tokens: Longest sample. By default (4096, or the trained length).
    num_lengths: Lengths in the even grid between the two. By default 50.
    passkeys: Passkeys per sample. By default 10.
    passkey_words: Words per passkey. By default 32.
    seed: Seed of everything that is drawn. By default 0.
    """
    given: dict[str, Any] = {
        "recovery": recovery,
        "frequent-share": frequent_share,
        "local-share": local_share,
        "samples": samples,
        "compute": compute,
        "kv-ratio": kv_ratio,
        "at": at,
        "kv-bytes-at": kv_bytes_at,
        "data": data,
        "text": text,
        "min-tokens": min_tokens,
        "max-tokens": max_tokens,
        "num-lengths": num_lengths,
        "passkeys": passkeys,
        "passkey-words": passkey_words,
        "seed": seed,
    }
    return _make("fastgen", model, given, out=out, num_threads=num_threads, progress=progress)


def tova(
    model: StrPath,
    *,
    budget: int | None = None,
    from_: str | None = None,
    base: StrPath | None = None,
    kv_ratio: float | None = None,
    at: int | None = None,
    kv_bytes_at: str | None = None,
    out: StrPath | None = None,
) -> HeadPlan:
    """Every head keeps the tokens that the last query attends to most [tova].

    budget: Tokens that a head keeps. By default 1024.
    from_: Where the rule begins to hold: first_token, or end_of_prompt. By default first_token.
    base: Plan whose bounded heads come to select by score, in no more bytes (at at tokens); with a KV budget it is
        refitted first.
    kv_ratio: Budget: this share of the dense plan's KV bytes, at at tokens.
    at: Tokens at which kv_ratio holds.
    kv_bytes_at: Budget: BYTES:TOKENS, as 5M:8192 or 5MiB:8192.
    """
    given: dict[str, Any] = {
        "budget": budget,
        "from": from_,
        "base": base,
        "kv-ratio": kv_ratio,
        "at": at,
        "kv-bytes-at": kv_bytes_at,
    }
    return _make("tova", model, given, out=out)


def snapkv(
    model: StrPath,
    *,
    budget: int | None = None,
    window: int | None = None,
    kernel: int | None = None,
    pooling: str | None = None,
    base: StrPath | None = None,
    kv_ratio: float | None = None,
    at: int | None = None,
    kv_bytes_at: str | None = None,
    out: StrPath | None = None,
) -> HeadPlan:
    """Every head keeps what the prompt's last queries attend to most, and all that comes later [snapkv].

    budget: Tokens that a head keeps. By default 1024.
    window: Last queries of the prompt that are observed; their tokens are kept. By default 32.
    kernel: Neighbouring tokens over which scores are pooled, an odd number; 1: not pooled. By default 7.
    pooling: How they are pooled: max, or mean. By default max.
    base: Plan whose bounded heads come to select by score, in no more bytes (at at tokens); with a KV budget it is
        refitted first.
    kv_ratio: Budget: this share of the dense plan's KV bytes, at at tokens.
    at: Tokens at which kv_ratio holds.
    kv_bytes_at: Budget: BYTES:TOKENS, as 5M:8192 or 5MiB:8192.
    """
    given: dict[str, Any] = {
        "budget": budget,
        "window": window,
        "kernel": kernel,
        "pooling": pooling,
        "base": base,
        "kv-ratio": kv_ratio,
        "at": at,
        "kv-bytes-at": kv_bytes_at,
    }
    return _make("snapkv", model, given, out=out)


def pyramidkv(
    model: StrPath,
    *,
    budget: int | None = None,
    steepness: float | None = None,
    window: int | None = None,
    kernel: int | None = None,
    pooling: str | None = None,
    kv_ratio: float | None = None,
    at: int | None = None,
    kv_bytes_at: str | None = None,
    out: StrPath | None = None,
) -> HeadPlan:
    """As snapkv, with budgets that fall from layer to layer [pyramidkv].

    budget: Tokens that a head keeps. By default 1024.
    steepness: Mean budget of the layers over the last layer's, observed tokens left out; 1: all the same. By
        default 20.
    window: Last queries of the prompt that are observed; their tokens are kept. By default 32.
    kernel: Neighbouring tokens over which scores are pooled, an odd number; 1: not pooled. By default 7.
    pooling: How they are pooled: max, or mean. By default max.
    kv_ratio: Budget: this share of the dense plan's KV bytes, at at tokens.
    at: Tokens at which kv_ratio holds.
    kv_bytes_at: Budget: BYTES:TOKENS, as 5M:8192 or 5MiB:8192.
    """
    given: dict[str, Any] = {
        "budget": budget,
        "steepness": steepness,
        "window": window,
        "kernel": kernel,
        "pooling": pooling,
        "kv-ratio": kv_ratio,
        "at": at,
        "kv-bytes-at": kv_bytes_at,
    }
    return _make("pyramidkv", model, given, out=out)


def adakv(
    model: StrPath,
    *,
    budget: int | None = None,
    floor: float | None = None,
    window: int | None = None,
    kernel: int | None = None,
    pooling: str | None = None,
    base: StrPath | None = None,
    kv_ratio: float | None = None,
    at: int | None = None,
    kv_bytes_at: str | None = None,
    out: StrPath | None = None,
) -> HeadPlan:
    """As snapkv, and the heads of a layer share their budgets by what the prompt's last queries see [adakv].

    budget: Tokens that a head keeps. By default 1024.
    floor: Share of a head's budget that does not depend on the other heads of its layer. By default 0.2.
    window: Last queries of the prompt that are observed; their tokens are kept. By default 32.
    kernel: Neighbouring tokens over which scores are pooled, an odd number; 1: not pooled. By default 7.
    pooling: How they are pooled: max, or mean. By default max.
    base: Plan whose bounded heads come to select by score, in no more bytes (at at tokens); with a KV budget it is
        refitted first.
    kv_ratio: Budget: this share of the dense plan's KV bytes, at at tokens.
    at: Tokens at which kv_ratio holds.
    kv_bytes_at: Budget: BYTES:TOKENS, as 5M:8192 or 5MiB:8192.
    """
    given: dict[str, Any] = {
        "budget": budget,
        "floor": floor,
        "window": window,
        "kernel": kernel,
        "pooling": pooling,
        "base": base,
        "kv-ratio": kv_ratio,
        "at": at,
        "kv-bytes-at": kv_bytes_at,
    }
    return _make("adakv", model, given, out=out)


def knorm(
    model: StrPath,
    *,
    budget: int | None = None,
    from_: str | None = None,
    base: StrPath | None = None,
    kv_ratio: float | None = None,
    at: int | None = None,
    kv_bytes_at: str | None = None,
    out: StrPath | None = None,
) -> HeadPlan:
    """Every head keeps the tokens with the shortest keys [knorm].

    budget: Tokens that a head keeps. By default 1024.
    from_: Where the rule begins to hold: first_token, or end_of_prompt. By default first_token.
    base: Plan whose bounded heads come to select by score, in no more bytes (at at tokens); with a KV budget it is
        refitted first.
    kv_ratio: Budget: this share of the dense plan's KV bytes, at at tokens.
    at: Tokens at which kv_ratio holds.
    kv_bytes_at: Budget: BYTES:TOKENS, as 5M:8192 or 5MiB:8192.
    """
    given: dict[str, Any] = {
        "budget": budget,
        "from": from_,
        "base": base,
        "kv-ratio": kv_ratio,
        "at": at,
        "kv-bytes-at": kv_bytes_at,
    }
    return _make("knorm", model, given, out=out)


def keydiff(
    model: StrPath,
    *,
    budget: int | None = None,
    from_: str | None = None,
    base: StrPath | None = None,
    kv_ratio: float | None = None,
    at: int | None = None,
    kv_bytes_at: str | None = None,
    out: StrPath | None = None,
) -> HeadPlan:
    """Every head keeps the tokens whose keys point least where all keys point [keydiff].

    budget: Tokens that a head keeps. By default 1024.
    from_: Where the rule begins to hold: first_token, or end_of_prompt. By default first_token.
    base: Plan whose bounded heads come to select by score, in no more bytes (at at tokens); with a KV budget it is
        refitted first.
    kv_ratio: Budget: this share of the dense plan's KV bytes, at at tokens.
    at: Tokens at which kv_ratio holds.
    kv_bytes_at: Budget: BYTES:TOKENS, as 5M:8192 or 5MiB:8192.
    """
    given: dict[str, Any] = {
        "budget": budget,
        "from": from_,
        "base": base,
        "kv-ratio": kv_ratio,
        "at": at,
        "kv-bytes-at": kv_bytes_at,
    }
    return _make("keydiff", model, given, out=out)


def expected(
    model: StrPath,
    *,
    budget: int | None = None,
    window: int | None = None,
    epsilon: float | None = None,
    base: StrPath | None = None,
    kv_ratio: float | None = None,
    at: int | None = None,
    kv_bytes_at: str | None = None,
    out: StrPath | None = None,
) -> HeadPlan:
    """Every head keeps what queries like the prompt's are expected to look at, and all that comes later [expected].

    budget: Tokens that a head keeps. By default 1024.
    window: Last tokens of the prompt, which are kept whatever is expected. By default 32.
    epsilon: What is added to every token's share of the attention before the length of its value counts. By default
        0.
    base: Plan whose bounded heads come to select by score, in no more bytes (at at tokens); with a KV budget it is
        refitted first.
    kv_ratio: Budget: this share of the dense plan's KV bytes, at at tokens.
    at: Tokens at which kv_ratio holds.
    kv_bytes_at: Budget: BYTES:TOKENS, as 5M:8192 or 5MiB:8192.
    """
    given: dict[str, Any] = {
        "budget": budget,
        "window": window,
        "epsilon": epsilon,
        "base": base,
        "kv-ratio": kv_ratio,
        "at": at,
        "kv-bytes-at": kv_bytes_at,
    }
    return _make("expected", model, given, out=out)


def quest(
    model: StrPath,
    *,
    budget: int | None = None,
    sink: int | None = None,
    block: int | None = None,
    dense_layers: int | None = None,
    kv_ratio: float | None = None,
    at: int | None = None,
    kv_bytes_at: str | None = None,
    out: StrPath | None = None,
) -> HeadPlan:
    """Every head keeps all, and decoding reads the blocks whose keys may score highest [quest].

    budget: Tokens that a decoding query reads of a head, in whole blocks; every token is kept. By default 1024.
    sink: First tokens that every query reads beside these. By default 0.
    block: Tokens that are read or not together, a multiple of 16 that divides those of a page. By default 16.
    dense_layers: Lowest layers whose heads read every token. By default 2.
    kv_ratio: Budget: a decoding query reads this share of the dense plan's KV bytes, at at tokens.
    at: Tokens at which kv_ratio holds.
    kv_bytes_at: Budget: BYTES:TOKENS, as 5M:8192, that a decoding query reads.
    """
    given: dict[str, Any] = {
        "budget": budget,
        "sink": sink,
        "block": block,
        "dense-layers": dense_layers,
        "kv-ratio": kv_ratio,
        "at": at,
        "kv-bytes-at": kv_bytes_at,
    }
    return _make("quest", model, given, out=out)


def infllm(
    model: StrPath,
    *,
    budget: int | None = None,
    sink: int | None = None,
    recent_share: float | None = None,
    block: int | None = None,
    representatives: int | None = None,
    kv_ratio: float | None = None,
    at: int | None = None,
    kv_bytes_at: str | None = None,
    out: StrPath | None = None,
) -> HeadPlan:
    """Every head keeps all, and decoding reads the newest blocks and those whose representatives are most like the
    query [infllm].

    budget: Tokens that a decoding query reads of a head, in whole blocks; every token is kept. By default 1024.
    sink: First tokens that every query reads beside these. By default 32.
    recent_share: Share of the budget that is the newest tokens, whatever they scored. By default 0.5.
    block: Tokens that are read or not together, a multiple of 16 that divides those of a page. By default 32.
    representatives: Tokens of a block that stand for it. By default 4.
    kv_ratio: Budget: a decoding query reads this share of the dense plan's KV bytes, at at tokens.
    at: Tokens at which kv_ratio holds.
    kv_bytes_at: Budget: BYTES:TOKENS, as 5M:8192, that a decoding query reads.
    """
    given: dict[str, Any] = {
        "budget": budget,
        "sink": sink,
        "recent-share": recent_share,
        "block": block,
        "representatives": representatives,
        "kv-ratio": kv_ratio,
        "at": at,
        "kv-bytes-at": kv_bytes_at,
    }
    return _make("infllm", model, given, out=out)


def import_duo(
    model: StrPath,
    *,
    from_: StrPath,
    sparsity: float | None = None,
    threshold: float | None = None,
    kv_ratio: float | None = None,
    at: int | None = None,
    kv_bytes_at: str | None = None,
    sink: int | None = None,
    recent: int | None = None,
    positions: str | None = None,
    compensate: bool | None = None,
    out: StrPath | None = None,
) -> HeadPlan:
    """From a DuoAttention folder (from_) at a sparsity or threshold.

    from_: Folder with full_attention_heads.tsv.
    sparsity: Share of heads that are bounded.
    threshold: Heads with a gate below this are bounded.
    kv_ratio: Budget: this share of the dense plan's KV bytes, at at tokens.
    at: Tokens at which kv_ratio holds.
    kv_bytes_at: Budget: BYTES:TOKENS, as 5M:8192 or 5MiB:8192.
    sink: First tokens that a bounded head keeps. By default 64.
    recent: Last tokens that a bounded head keeps. By default 256.
    positions: text, or cache: distances inside the cache. By default text.
    compensate: true: fold dropped tokens into one mean token. By default false.
    """
    given: dict[str, Any] = {
        "from": from_,
        "sparsity": sparsity,
        "threshold": threshold,
        "kv-ratio": kv_ratio,
        "at": at,
        "kv-bytes-at": kv_bytes_at,
        "sink": sink,
        "recent": recent,
        "positions": positions,
        "compensate": compensate,
    }
    return _make("import-duo", model, given, out=out)


def import_moa(
    model: StrPath,
    *,
    from_: StrPath,
    out: StrPath | None = None,
) -> HeadPlan:
    """From a MoA JSON file of alphas and betas (from_).

    from_: MoA's JSON file.
    """
    given: dict[str, Any] = {
        "from": from_,
    }
    return _make("import-moa", model, given, out=out)
