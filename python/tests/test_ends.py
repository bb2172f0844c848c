"""How calls, streams and processes end, and what is said of what cannot be done before any of it is."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import sys

import headwise
import pytest
from conftest import EXACT, MODEL, TINY, run_python, wait_until
from headwise import LLM, Cancelled, InvalidInput, OutOfMemory, SamplingParams, _core

ENDLESS = SamplingParams(max_tokens=math.inf, ignore_eos=True)
MOST_STREAMED = 1024  # tokens that wait for one reader


def request_of(llm: LLM, num_tokens: int) -> _core.Request:
    return headwise.sampling.build_request(llm, [1, 2, 3], SamplingParams(max_tokens=num_tokens, ignore_eos=True))


# ---- processes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "work",
    [
        f"headwise.LLM({str(MODEL)!r})",
        "llm.generate([1, 2, 3], headwise.SamplingParams(max_tokens=20, ignore_eos=True))",
        "list(llm.stream([1, 2, 3]))",
        "llm.logits([1] * 2000, positions=[0])",
        f"headwise.evaluate('lines', {str(MODEL)!r}, num_lines=20, num_cases=1000)",
    ],
)
def test_a_process_may_end_while_daemon_threads_are_in_calls(work):
    """Beside ends that are told of, as exceptions of threads are."""
    done = run_python(f"""
import headwise, threading
llm = headwise.LLM({str(TINY)!r}, num_threads=1)
begun = threading.Barrier(4)

def serve():
    begun.wait()
    try:
        while True:
            {work}
    except headwise.Cancelled:
        pass

for _ in range(3):
    threading.Thread(target=serve, daemon=True).start()
begun.wait()
print("over")
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "over\n", "")


def test_a_process_does_not_wait_for_a_planner_that_was_left_to_a_daemon_thread():
    """A step of its takes minutes, and uses what the end of a process takes away."""
    done = run_python(f"""
import headwise, threading
begun = threading.Event()
threading.Thread(
    target=lambda: headwise.plan.duo({str(MODEL)!r}, steps=200, progress=lambda *_: begun.set()), daemon=True
).start()
begun.wait(0.5)
print("over")
raise SystemExit(3)
""")
    assert (done.returncode, done.stdout, done.stderr) == (3, "over\n", "")


@pytest.mark.skipif("HEADWISE_SANITIZED" in os.environ, reason="builds for tests of the library say what was left")
def test_what_a_daemon_thread_has_is_not_told_of_in_the_end():
    done = run_python(f"""
import headwise, threading
has_all = threading.Event()

def hold():
    llm = headwise.LLM({str(TINY)!r}, num_threads=1)
    stream = llm.stream([1, 2, 3])
    has_all.set()
    threading.Event().wait()

threading.Thread(target=hold, daemon=True).start()
has_all.wait()
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_calls_are_refused_once_a_process_ends():
    done = run_python(f"""
import atexit

def late():
    llm.close()
    for call in (lambda: headwise.LLM(model), lambda: headwise.plan.streaming(model, sink=4, recent=60)):
        try:
            call()
        except headwise.Cancelled as error:
            print(error)

atexit.register(late)  # it runs after what the package itself does at the end
import headwise
model = {str(TINY)!r}
llm = headwise.LLM(model, num_threads=1)
""")
    assert done.returncode == 0 and done.stdout.count("the process is ending") == 2, done.stderr


def test_a_fork_is_told_of_streams_and_answers():
    done = run_python(f"""
import headwise, math, os
from headwise import _core, sampling
llm = headwise.LLM({str(TINY)!r}, num_threads=1)
endless = headwise.SamplingParams(max_tokens=math.inf, ignore_eos=True)
sequence = llm.sequence(20)
stream = llm.stream([1, 2, 3], endless, collect=False)
next(stream)
waker = _core.Waker()
polled = _core.stream(llm._engine, sampling.build_request(llm, [1], endless), waker, 0)
pending = _core.submit(llm._engine, sampling.build_request(llm, [1], headwise.SamplingParams(max_tokens=1)), waker, 1)
child = os.fork()
if child == 0:
    for call in (stream.__next__, stream.cancel, polled.poll, polled.cancel, pending.poll, pending.cancel):
        try:
            call()
            os._exit(1)
        except headwise.InvalidInput as error:
            if "fork" not in str(error):
                os._exit(2)
    print(repr(sequence), flush=True)
    raise SystemExit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
next(stream)
""")
    assert (done.returncode, done.stdout) == (0, "Sequence(of another process' engine)\n7\n"), done.stderr


# ---- the lock of Python ----------------------------------------------------------------------------------------------


def test_an_engine_does_not_wait_for_the_lock_of_python(tiny):
    """Requests that nobody has any more go while Python runs; others go on."""
    interval = sys.getswitchinterval()
    dropped = _core.stream(tiny._engine, request_of(tiny, 100_000), _core.Waker(), 0)
    waker = _core.Waker()
    wait_until(lambda: tiny.stats()["num_running"] == 1)
    before = tiny.stats()["num_finished"]
    sys.setswitchinterval(1000)  # this thread keeps the lock for as long as it runs
    try:
        pending = _core.submit(tiny._engine, request_of(tiny, 200), waker, 1)
        del dropped
        for _ in range(2_000_000):
            if tiny.stats()["num_finished"] == before + 2:
                break
        assert tiny.stats()["num_finished"] == before + 2
    finally:
        sys.setswitchinterval(interval)
    wait_until(lambda: pending.poll() is not None)


# ---- streams in an event loop ----------------------------------------------------------------------------------------


def test_a_stream_in_an_event_loop_says_how_it_ended():
    async def closed() -> None:
        engine = LLM(TINY, num_threads=1, **EXACT)
        stream = engine.stream_async([1, 2, 3], ENDLESS, collect=False)
        await stream.__anext__()
        engine.close()
        async for _ in stream:  # what was there already; then the end
            pass
        assert stream.output.outputs[0].finish_reason == "abort"

    async def cancelled(llm: LLM) -> None:
        stream = llm.stream_async([1, 2, 3], ENDLESS, collect=False)
        async for _ in stream:
            stream.cancel()
        assert stream.output.outputs[0].finish_reason == "abort"
        never_begun = llm.stream_async([1, 2, 3], ENDLESS)
        never_begun.cancel()
        assert [event async for event in never_begun] == []

    async def left(llm: LLM) -> None:
        stream = llm.stream_async([1, 2, 3], ENDLESS, collect=False)
        await stream.__anext__()
        await stream.aclose()
        assert [event async for event in stream] == [] and stream.output is None
        async with llm.stream_async([1, 2, 3], ENDLESS, collect=False) as stream:
            await stream.__anext__()
        assert [event async for event in stream] == []
        # Who waits is told, too.
        late = llm.stream_async([1, 2, 3], ENDLESS, collect=False)
        waiting = asyncio.ensure_future(_all_of(late))
        while not waiting.done():
            await asyncio.sleep(0)
            await late.aclose()
        assert waiting.result() <= MOST_STREAMED
        dropped = llm.stream_async([1, 2, 3], ENDLESS, collect=False)
        await dropped.__anext__()
        del dropped
        gc.collect()

    async def main() -> None:
        await closed()
        with LLM(TINY, num_threads=1, **EXACT) as llm:
            await cancelled(llm)
            await left(llm)
            waiting = llm._loop_waker()._ready
            for _ in range(100_000):
                if llm.stats()["num_running"] == 0 and not waiting:
                    break
                await asyncio.sleep(0)
            assert llm.stats()["num_running"] == 0 and not waiting

    asyncio.run(main())


async def _all_of(stream: headwise.AsyncStream) -> int:
    return len([event async for event in stream])


def test_what_is_wrong_with_a_stream_in_an_event_loop_is_said_at_once(tiny):
    for ask in (lambda: tiny.stream_async([10**6]), lambda: tiny.stream_async([1], SamplingParams(top_p=0))):
        with pytest.raises(InvalidInput):
            ask()


# ---- what is wrong is said first -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prompts, params, said",
    [
        ([[1], [2], [10**6]], SamplingParams(), "prompt 2: prompt: token 0 is id 1000000"),
        ([[1], [2], []], SamplingParams(), "prompt 2: prompt: is empty"),
        ([[1], [2], [0.5]], SamplingParams(), "prompt 2: prompt: item 0 is 0.5"),
        ([[1], [2]], [SamplingParams(), SamplingParams(top_p=0)], "prompt 1: .*top_p"),
        ([[1], [2]], [SamplingParams(), SamplingParams(temperature="hot")], "prompt 1: temperature"),
        ([[1], [2]], [SamplingParams(), SamplingParams(logprobs=257)], "prompt 1: logprobs"),
        ([[1], [2]], [SamplingParams(), SamplingParams(stop=[""])], "prompt 1: .*stop"),
        ([[1], [2]], [SamplingParams(), SamplingParams(n=0)], "prompt 1: n"),
        ([[1], [2]], [SamplingParams(), SamplingParams(max_tokens=-1)], "prompt 1: max_new_tokens"),
        ([[1], [2]], [SamplingParams(), SamplingParams(max_tokens=2**40)], "prompt 1: max_new_tokens"),
        ([[1], [2]], [SamplingParams(), SamplingParams(logit_bias={10**6: 1.0})], "prompt 1: .*logit_bias"),
    ],
)
def test_a_wrong_prompt_is_named_before_any_is_answered(prompts, params, said):
    with LLM(TINY, num_threads=1, max_num_seqs=1, **EXACT) as llm:
        answered = []
        with pytest.raises(InvalidInput, match=said):
            llm.generate(prompts, params, progress=lambda *each: answered.append(each))
        assert not answered and llm.stats()["num_finished"] == 0
        assert len(llm.generate(prompts[:1] * 3, SamplingParams(max_tokens=1))) == 3


def test_a_prompt_that_could_never_fit_is_named_before_any_is_answered():
    """By the engine's own measure: what it would take is not refused, what it refuses is."""
    pages = {"kv_limit_bytes": 600_000, "page_tokens": 16, "chunk_tokens": 64}
    with LLM(TINY, num_threads=1, max_num_seqs=1, **pages, **EXACT) as llm:

        def refusal(num_tokens: int) -> str:
            try:
                # Ended at once where it is let in.
                llm.stream([1, 2], SamplingParams(max_tokens=num_tokens)).cancel()
            except OutOfMemory as error:
                return str(error)
            return ""

        fits, too_long = 1, 100_000
        while too_long - fits > 1:
            middle = (fits + too_long) // 2
            fits, too_long = (fits, middle) if refusal(middle) else (middle, too_long)
        wait_until(lambda: llm.stats()["num_running"] == llm.stats()["num_waiting"] == 0)
        before = llm.stats()["num_finished"]
        short = SamplingParams(max_tokens=1, ignore_eos=True)
        with pytest.raises(OutOfMemory) as raised:
            llm.generate([[1], [1, 2]], [short, SamplingParams(max_tokens=too_long)])
        assert str(raised.value) == f"prompt 1: {refusal(too_long)}" and llm.stats()["num_finished"] == before
        longest = SamplingParams(max_tokens=fits, ignore_eos=True)
        assert len(llm.generate([[1], [1, 2]], [short, longest])[1].outputs[0].token_ids) == fits


def test_one_prompt_has_no_place(tiny):
    with pytest.raises(InvalidInput, match="^prompt: token 0 is id 1000000"):
        tiny.generate([10**6])
    with pytest.raises(Cancelled, match="^the engine is closed"):
        with LLM(TINY, num_threads=1) as closed:
            pass
        closed.generate([1])
