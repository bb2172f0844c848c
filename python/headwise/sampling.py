"""What is asked of a request and what comes back, in the names that vLLM has for it."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import _convert, _core
from .errors import InvalidInput

if TYPE_CHECKING:
    from .llm import LLM

Progress = Callable[[str, int, int], None]
"""Called with a label, how much is done, and of how much."""

__all__ = ["SamplingParams", "RequestOutput", "CompletionOutput", "Logprob", "TokenEvent", "RequestMetrics"]


@dataclass
class SamplingParams:
    """How an answer is drawn. Names are vLLM's; defaults are the command line's, so that both give the same text."""

    n: int = 1
    """Answers to each prompt; drawn with seed, seed + 1, and so on."""
    max_tokens: float | None = 256
    """New tokens at most. None: until the whole text has the trained length; math.inf: without an end, for streams."""
    temperature: float = 0.0
    """0: the most likely token, ties to the lowest id."""
    top_p: float = 1.0
    top_k: int = 0
    """0 or -1: off."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    """By id; -inf: never drawn."""
    seed: int | None = None
    """0 to 2^64 - 1. None: another one each time."""
    stop: str | Sequence[str] | None = None
    """The answer ends before the first of these."""
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    logprobs: int | None = None
    """Log-probabilities of each token and of so many of the most likely ones, 0 to 256."""
    json_schema: str | Mapping[str, Any] | None = None
    """The answer is JSON that this schema accepts. At most one of this and the following three."""
    grammar: str | None = None
    """The answer is of a GBNF grammar with the root "root"."""
    regex: str | None = None
    """The answer matches the whole of this expression."""
    choice: Sequence[str] | None = None
    """The answer is one of these."""
    priority: int = 0
    """Lower is sooner, where not all can have memory."""


@dataclass(frozen=True)
class Logprob:
    """How likely the model thought a token, before biases, penalties and temperature."""

    logprob: float
    """Natural logarithm."""
    rank: int | None
    """1 for the most likely; None for a chosen token that is not among those asked for."""
    decoded_token: str


@dataclass(frozen=True)
class RequestMetrics:
    """What a request took: tokens, seconds, bytes of its cache."""

    prompt_tokens: int
    new_tokens: int
    num_preemptions: int
    prefill_seconds: float
    decode_seconds: float
    kv_bytes: int
    kv_bytes_full: int
    """Of these, of heads that keep every token."""
    kv_bytes_bounded: int
    kv_peak_bytes: int


@dataclass(frozen=True)
class CompletionOutput:
    """One answer."""

    index: int
    text: str
    token_ids: list[int]
    """Those that the text is made of."""
    finish_reason: str
    """"stop", "length" or, where it was cancelled, "abort"."""
    stop_reason: str | None
    """Of "stop": "eos", also for one of stop_token_ids, or "stop_string"."""
    logprobs: list[dict[int, Logprob]] | None
    """One for each token, where SamplingParams asks: the chosen token first, then the most likely ones."""
    cumulative_logprob: float | None
    metrics: RequestMetrics


@dataclass(frozen=True)
class RequestOutput:
    """A prompt and its answers."""

    request_id: str
    prompt: str | None
    """None where it was given as ids."""
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = True

    @property
    def text(self) -> str:
        """Of the first answer."""
        return self.outputs[0].text


@dataclass(frozen=True)
class TokenEvent:
    """One generated token of a stream. The texts of all events make the whole text."""

    token_id: int | None
    """None in a last event that only has text which was held back."""
    text: str
    """That can be shown now: often empty, never half a character."""
    logprobs: dict[int, Logprob] | None = None


def build_request(
    llm: LLM,
    ids: list[int],
    params: SamplingParams,
    *,
    answer: int = 0,
    more_stop_ids: Sequence[int] = (),
    plan: _core.Plan | None = None,
    sequence: _core.Sequence | None = None,
    held: int = 0,
    limit: int = _core.MAX_SEQUENCE_TOKENS,
) -> _core.Request:
    """The request that `params` describe. `held`: tokens of the text before the prompt; `limit`: of the whole text."""
    request = _core.Request()
    request.prompt = ids
    request.max_new_tokens = _max_new_tokens(llm, params.max_tokens, held + len(ids), limit)
    sampling = request.sampling
    sampling.temperature = _convert.real(params.temperature, "temperature")
    top_k = _convert.whole(params.top_k, "top_k")
    sampling.top_k = 0 if top_k == -1 else top_k
    sampling.top_p = _convert.real(params.top_p, "top_p")
    sampling.min_p = _convert.real(params.min_p, "min_p")
    sampling.repetition_penalty = _convert.real(params.repetition_penalty, "repetition_penalty")
    sampling.frequency_penalty = _convert.real(params.frequency_penalty, "frequency_penalty")
    sampling.presence_penalty = _convert.real(params.presence_penalty, "presence_penalty")
    if params.logit_bias is not None:
        if not isinstance(params.logit_bias, Mapping):
            raise InvalidInput(f"logit_bias: found {type(params.logit_bias).__name__}, expected biases by token id")
        sampling.set_logit_bias(
            [
                (_convert.whole(id, "logit_bias", 0, _convert.MAX_ID), _convert.real(bias, "logit_bias"))
                for id, bias in params.logit_bias.items()
            ]
        )
    # A program's own random numbers stay what its seed makes them.
    seed = secrets.randbits(64) if params.seed is None else _convert.whole(params.seed, "seed", 0, 2**64 - 1)
    sampling.seed = (seed + answer) % 2**64
    stops = [params.stop] if isinstance(params.stop, str) else params.stop
    request.stop = [] if stops is None else _convert.texts(stops, "stop")
    stop_ids = () if params.stop_token_ids is None else params.stop_token_ids
    request.stop_tokens = _convert.token_ids(stop_ids, "stop_token_ids") + list(more_stop_ids)
    if params.ignore_eos:
        request.ignore_eos()
    if params.logprobs is not None:
        request.logprobs = _convert.whole(params.logprobs, "logprobs")
    request.priority = _convert.whole(params.priority, "priority")
    constraint = _constraint(llm, params)
    if constraint is not None:
        request.set_constraint(constraint)
    if plan is not None:
        request.set_plan(plan)
    if sequence is not None:
        request.set_sequence(sequence)
    return request


def _max_new_tokens(llm: LLM, max_tokens: float | None, prompt_tokens: int, limit: int) -> int:
    left = max(0, limit - prompt_tokens)
    if max_tokens is None:
        trained: int = llm._info["trained_length"]
        if prompt_tokens >= trained:
            raise InvalidInput(
                f"the prompt has {prompt_tokens} tokens, expected less than the trained length {trained}, up to which "
                "max_tokens=None goes"
            )
        return min(left, trained - prompt_tokens)
    if isinstance(max_tokens, float) and max_tokens == math.inf:
        return left
    if isinstance(max_tokens, float) and max_tokens.is_integer():
        max_tokens = int(max_tokens)
    return _convert.whole(max_tokens, "max_tokens")


def _constraint(llm: LLM, params: SamplingParams) -> _core.Constraint | None:
    forms = {
        "json_schema": params.json_schema,
        "grammar": params.grammar,
        "regex": params.regex,
        "choice": params.choice,
    }
    given = [(kind, form) for kind, form in forms.items() if form is not None]
    if not given:
        return None
    if len(given) > 1:
        raise InvalidInput(f"found {given[0][0]} and {given[1][0]}, expected one form of the answer")
    kind, form = given[0]
    if kind == "choice":
        return llm._engine.compile(kind, "", _convert.texts(form, kind))
    if kind == "json_schema" and not isinstance(form, str):
        form = _convert.json_text(form, kind)
    return llm._engine.compile(kind, _convert.text(form, kind), [])


def logprobs_dict(llm: LLM, row: tuple[int, float, list[tuple[int, float]]]) -> dict[int, Logprob]:
    """The chosen token first, then the most likely ones."""
    chosen, logprob, top = row
    ranks = {id: rank for rank, (id, _) in enumerate(top, start=1)}
    found = {chosen: Logprob(logprob, ranks.get(chosen), llm._token_text(chosen))}
    for id, value in top:
        found.setdefault(id, Logprob(value, ranks[id], llm._token_text(id)))
    return found


def completion(llm: LLM, index: int, result: _core.Result, has_logprobs: bool) -> CompletionOutput:
    """Of a result that is final; raises what ended it. `has_logprobs`: they were asked for."""
    result.check()
    rows = result.logprobs if has_logprobs else None
    logprobs = None if rows is None else [logprobs_dict(llm, row) for row in rows]
    reason, detail = {
        "eos": ("stop", "eos"),
        "stop_string": ("stop", "stop_string"),
        "length": ("length", None),
    }.get(result.finish, ("abort", None))
    return CompletionOutput(
        index=index,
        text=result.text,
        token_ids=list(result.tokens),
        finish_reason=reason,
        stop_reason=detail,
        logprobs=logprobs,
        cumulative_logprob=None if rows is None else math.fsum(row[1] for row in rows),
        metrics=RequestMetrics(**result.metrics),
    )
