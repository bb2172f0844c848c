"""Requests under way: given to the engine, waited for, ended."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import _convert, _core
from ._arguments import num_answers, placed
from .errors import InvalidInput
from .sampling import CompletionOutput, Progress, RequestOutput, SamplingParams
from .sampling import build_request, completion
from .streams import AsyncStream, Stream

if TYPE_CHECKING:
    from .llm import LLM
    from .sequence import Sequence


@dataclass(frozen=True)
class Asked:
    """A prompt as the engine takes it."""

    text: str | None
    """As it was given; None where it was given as ids or messages."""
    ids: list[int]
    stop_ids: SequenceOf[int] = ()
    """Ids that end the answer besides the model's own."""


def _request(
    llm: LLM, asked: Asked, params: SamplingParams, plan: _core.Plan | None, sequence: Sequence | None, answer: int = 0
) -> _core.Request:
    if sequence is None:
        return build_request(llm, asked.ids, params, answer=answer, more_stop_ids=asked.stop_ids, plan=plan)
    return build_request(
        llm,
        asked.ids,
        params,
        answer=answer,
        more_stop_ids=asked.stop_ids,
        plan=plan,
        sequence=sequence._sequence,
        held=sequence._text_tokens(),
        limit=sequence.max_tokens,
    )


def run_all(
    llm: LLM,
    prompts: SequenceOf[Asked],
    params: SequenceOf[SamplingParams],
    *,
    plan: _core.Plan | None = None,
    sequence: Sequence | None = None,
    progress: Progress | None = None,
) -> list[RequestOutput]:
    """Answers in the order of the prompts, up to `llm.max_num_seqs` at once."""
    _convert.function(progress, "progress")
    jobs: list[tuple[int, int]] = []
    for i, each in enumerate(params):
        with placed(i, len(prompts)):
            jobs += [(i, answer) for answer in range(num_answers(each))]
            if len(prompts) > 1:
                # What is wrong with a later one must not cost the answers that are there by then.
                _core.check(llm._engine, _request(llm, prompts[i], each, plan, sequence))
    waker = _core.Waker()
    running: dict[int, _core.Pending] = {}
    answers: dict[int, CompletionOutput] = {}
    next_key = 0
    try:
        while len(answers) < len(jobs):
            while next_key < len(jobs) and len(running) < llm.max_num_seqs:
                i, answer = jobs[next_key]
                with placed(i, len(prompts)):
                    request = _request(llm, prompts[i], params[i], plan, sequence, answer)
                    running[next_key] = _core.submit(llm._engine, request, waker, next_key)
                next_key += 1
            for key in waker.wait():
                result = running[key].poll()
                if result is not None:
                    del running[key]
                    i, answer = jobs[key]
                    with placed(i, len(prompts)):
                        answers[key] = completion(llm, answer, result, params[i].logprobs is not None)
                    if progress is not None:
                        progress("generate", len(answers), len(jobs))
    finally:
        for pending in running.values():
            pending.cancel()
        # Nobody shares memory with what is on its way out: a sequence may be used again at once.
        while running and not llm._closed:
            running = {key: pending for key, pending in running.items() if pending.poll() is None}
            if running:
                waker.wait()
    llm._warn()
    outputs: list[list[CompletionOutput]] = [[] for _ in prompts]
    for key, (i, _) in enumerate(jobs):
        outputs[i].append(answers[key])
    return [
        RequestOutput(llm._request_id(), asked.text, list(asked.ids), outputs[i]) for i, asked in enumerate(prompts)
    ]


def open_stream(
    llm: LLM,
    asked: Asked,
    params: SamplingParams,
    *,
    plan: _core.Plan | None = None,
    sequence: Sequence | None = None,
    collect: bool = True,
) -> Stream:
    request = _request(llm, asked, _one_answer(params), plan, sequence)
    if not collect:
        request.keep_nothing()
    begun = _core.stream(llm._engine, request, None, 0)
    stream = Stream(llm, begun, asked.text, asked.ids, request.logprobs is not None)
    llm._warn()
    return stream


async def answer_async(llm: LLM, asked: Asked, params: SamplingParams, plan: _core.Plan | None) -> RequestOutput:
    """All answers at once. Who waits and is cancelled ends them."""
    requests = [_request(llm, asked, params, plan, None, answer) for answer in range(num_answers(params))]
    waker = llm._loop_waker()
    outputs = []
    waited = [waker.begin() for _ in requests]
    running: list[_core.Pending] = []
    try:
        for request, (key, _) in zip(requests, waited):
            running.append(_core.submit(llm._engine, request, waker.waker, key))
        for answer, (pending, (_, ready)) in enumerate(zip(running, waited)):
            while (result := pending.poll()) is None:
                await ready.wait()
                ready.clear()
            outputs.append(completion(llm, answer, result, params.logprobs is not None))
    except BaseException:
        for pending in running:
            pending.cancel()
        raise
    finally:
        for key, _ in waited:
            waker.end(key)
    llm._warn()
    return RequestOutput(llm._request_id(), asked.text, list(asked.ids), outputs)


def open_stream_async(
    llm: LLM, asked: Asked, params: SamplingParams, plan: _core.Plan | None, *, collect: bool = True
) -> AsyncStream:
    """What is wrong with the request is said at once, not when the first token is asked for."""
    request = _request(llm, asked, _one_answer(params), plan, None)
    _core.check(llm._engine, request)
    if not collect:
        request.keep_nothing()
    llm._warn()
    return AsyncStream(llm, request, asked.text, asked.ids, request.logprobs is not None)


def _one_answer(params: SamplingParams) -> SamplingParams:
    if num_answers(params) != 1:
        raise InvalidInput(f"n: found {params.n}, expected 1 for a stream")
    return params
