"""Requests under way: given to the engine, waited for, ended."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence as SequenceOf
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import _convert, _core
from ._arguments import num_answers
from .errors import InvalidInput
from .sampling import CompletionOutput, Progress, RequestOutput, SamplingParams, TokenEvent
from .sampling import build_request, completion
from .streams import Stream

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
    return build_request(
        llm,
        asked.ids,
        params,
        answer=answer,
        more_stop_ids=asked.stop_ids,
        plan=plan,
        sequence=None if sequence is None else sequence._sequence,
        room=None if sequence is None else sequence._room(),
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
    jobs = [(i, answer) for i, each in enumerate(params) for answer in range(num_answers(each))]
    waker = _core.Waker()
    running: dict[int, _core.Pending] = {}
    answers: dict[int, CompletionOutput] = {}
    next_key = 0
    try:
        while len(answers) < len(jobs):
            while next_key < len(jobs) and len(running) < llm.max_num_seqs:
                i, answer = jobs[next_key]
                request = _request(llm, prompts[i], params[i], plan, sequence, answer)
                running[next_key] = _core.submit(llm._engine, request, waker, next_key)
                next_key += 1
            for key in waker.wait():
                result = running[key].poll()
                if result is not None:
                    del running[key]
                    answers[key] = completion(llm, jobs[key][1], result)
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
    stream = Stream(llm, _core.stream(llm._engine, request, None, 0), asked.text, asked.ids)
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
            outputs.append(completion(llm, answer, result))
    except BaseException:
        for pending in running:
            pending.cancel()
        raise
    finally:
        for key, _ in waited:
            waker.end(key)
    llm._warn()
    return RequestOutput(llm._request_id(), asked.text, list(asked.ids), outputs)


async def events_async(
    llm: LLM, asked: Asked, params: SamplingParams, plan: _core.Plan | None
) -> AsyncGenerator[TokenEvent, None]:
    """The tokens of one answer. Who leaves the loop ends it."""
    request = _request(llm, asked, params, plan, None)
    request.keep_nothing()
    waker = llm._loop_waker()
    key, ready = waker.begin()
    stream = None
    try:
        stream = _core.stream(llm._engine, request, waker.waker, key)
        llm._warn()
        while True:
            event = stream.poll()
            if event is None:
                await ready.wait()
                ready.clear()
                continue
            if event.text or event.token is not None:
                yield llm._event(event)
            if event.result is not None:
                event.result.check()
                return
    finally:
        waker.end(key)
        if stream is not None:
            stream.cancel()


def stream_async(
    llm: LLM, asked: Asked, params: SamplingParams, plan: _core.Plan | None
) -> AsyncGenerator[TokenEvent, None]:
    """What is wrong with the request is said at once, not when the first token is asked for."""
    return events_async(llm, asked, _one_answer(params), plan)


def _one_answer(params: SamplingParams) -> SamplingParams:
    if num_answers(params) != 1:
        raise InvalidInput(f"n: found {params.n}, expected 1 for a stream")
    return params
