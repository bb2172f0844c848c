"""Threads, event loops, Ctrl-C, ends, and what must not crash."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import headwise
import numpy as np
import pytest
from conftest import EXACT, MODEL, PLAN, TINY, run_python, wait_until, watches_memory
from headwise import LLM, Cancelled, InvalidInput, OutOfMemory, SamplingParams
from headwise._running import Asked, run_all

TEXT = "The old captain looked over the sea and"


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@watches_memory
def test_a_thousand_engines_leave_memory_flat():
    def one() -> None:
        with LLM(TINY, num_threads=1, **EXACT) as engine:
            engine.generate([1, 2, 3], SamplingParams(max_tokens=2))
            sequence = engine.sequence(20)
            sequence.read([4, 5])
            sequence.fork()

    for _ in range(200):
        one()
    gc.collect()
    before = resident_bytes()
    for _ in range(800):
        one()
    gc.collect()
    assert resident_bytes() - before < 4 << 20


@watches_memory
def test_a_thousand_requests_leave_memory_flat(tiny):
    def one() -> None:
        tiny.generate([1, 2, 3], SamplingParams(max_tokens=2, logprobs=2))
        next(tiny.stream([1, 2, 3], SamplingParams(max_tokens=50)))
        tiny.logits([1, 2, 3])
        headwise.HeadPlan.read(PLAN).full_heads

    for _ in range(300):
        one()
    gc.collect()
    before = resident_bytes()
    for _ in range(1000):
        one()
    gc.collect()
    assert resident_bytes() - before < 4 << 20


def test_many_threads_share_an_engine(tiny):
    alone = [tiny.generate([1, 2, i + 3], SamplingParams(max_tokens=8))[0].outputs[0].token_ids for i in range(8)]
    logits = tiny.logits([1, 2, 3])

    def work(i: int) -> None:
        ids = [1, 2, i % 8 + 3]
        for _ in range(6):
            assert tiny.generate(ids, SamplingParams(max_tokens=8))[0].outputs[0].token_ids == alone[i % 8]
            events = list(tiny.stream(ids, SamplingParams(max_tokens=8)))
            assert [event.token_id for event in events if event.token_id is not None] == alone[i % 8]
            np.testing.assert_allclose(tiny.logits([1, 2, 3]), logits, atol=1e-4)
            sequence = tiny.sequence(40)
            sequence.read(ids[:2])
            assert sequence.fork().generate(ids[2:], SamplingParams(max_tokens=8)).outputs[0].token_ids == alone[i % 8]

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(work, range(12)))
    wait_until(lambda: tiny.stats()["num_running"] == 0)


def test_batch_invariant_logits_do_not_show_how_a_text_was_cut() -> None:
    ids = list(range(1, 60))
    found = []
    for chunk_tokens in (3, 64):
        with LLM(TINY, batch_invariant=True, chunk_tokens=chunk_tokens, **EXACT) as llm:
            found.append(np.array(llm.logits(ids)))
    np.testing.assert_array_equal(found[0], found[1])



def test_the_lock_of_python_is_free_while_the_engine_works(llm):
    """Another thread runs on while one waits for its answer: it could not end the answer otherwise."""
    params = SamplingParams(max_tokens=10_000, ignore_eos=True)  # an end in any case
    stream = llm.stream(TEXT, params, collect=False, plan=headwise.plan.streaming(MODEL, sink=4, recent=60))
    next(stream)
    canceller = threading.Thread(target=stream.cancel)
    canceller.start()
    for _ in stream:
        pass
    canceller.join()
    assert stream.output.outputs[0].finish_reason == "abort"


def test_an_event_loop_reads_many_streams(tiny):
    alone = [tiny.generate([1, 2, i + 3], SamplingParams(max_tokens=30))[0].outputs[0].token_ids for i in range(10)]

    async def stream(i: int) -> list[int]:
        return [event.token_id async for event in tiny.stream_async([1, 2, i + 3], SamplingParams(max_tokens=30))]

    async def whole(i: int) -> list[int]:
        return (await tiny.generate_async([1, 2, i + 3], SamplingParams(max_tokens=30))).outputs[0].token_ids

    async def left_early() -> None:
        async for _ in tiny.stream_async([1, 2, 3], SamplingParams(max_tokens=1000)):
            break

    async def cancelled() -> None:
        task = asyncio.ensure_future(tiny.generate_async([1, 2, 3], SamplingParams(max_tokens=1000)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def main() -> None:
        jobs = [*map(stream, range(10)), *map(whole, range(10))]
        found = await asyncio.gather(*jobs, left_early(), cancelled())
        assert found[:10] == found[10:20] == alone
        with pytest.raises(InvalidInput):
            await tiny.generate_async([10**6])

    for _ in range(3):  # loops come and go
        asyncio.run(main())


def test_several_answers_in_an_event_loop_are_those_of_generate(tiny):
    params = SamplingParams(n=3, max_tokens=6, temperature=1.0, seed=11)
    (expected,) = tiny.generate([1, 2, 3], params)
    found = asyncio.run(tiny.generate_async([1, 2, 3], params))
    assert [answer.index for answer in found.outputs] == [0, 1, 2]
    assert [answer.token_ids for answer in found.outputs] == [answer.token_ids for answer in expected.outputs]


def test_a_dropped_engine_ends_its_threads():
    def num_threads() -> int:
        return len(os.listdir("/proc/self/task"))

    def num_threads_left() -> int:
        # Who joins a thread is woken a moment before the kernel takes it off this list.
        deadline = time.monotonic() + 10
        while num_threads() > before and time.monotonic() < deadline:
            os.sched_yield()
        return num_threads()

    gc.collect()
    before = num_threads()
    engine = LLM(TINY, num_threads=3, **EXACT)
    assert num_threads() > before
    stream = engine.stream([1, 2, 3], SamplingParams(max_tokens=math.inf, ignore_eos=True), collect=False)
    next(stream)
    del stream, engine
    gc.collect()
    assert num_threads_left() == before
    with LLM(TINY, num_threads=3, **EXACT) as engine:
        pass
    assert num_threads_left() == before
    with pytest.raises(Cancelled, match="closed"):
        engine.generate([1])


def test_ctrl_c_ends_a_generation(llm):
    plan = headwise.plan.streaming(MODEL, sink=4, recent=60)
    stream = llm.stream(TEXT, SamplingParams(max_tokens=math.inf, ignore_eos=True), plan=plan, collect=False)
    next(stream)
    with pytest.raises(KeyboardInterrupt):
        for i, _ in enumerate(stream):
            if i == 20:
                os.kill(os.getpid(), signal.SIGINT)
    stream.cancel()

    begun = threading.Event()

    def interrupt() -> None:
        begun.wait()
        os.kill(os.getpid(), signal.SIGINT)

    killer = threading.Thread(target=interrupt)
    killer.start()
    with pytest.raises(KeyboardInterrupt):
        prompts = [TEXT] * 1000
        llm.generate(prompts, SamplingParams(max_tokens=50), progress=lambda *_: begun.set())
    killer.join()
    assert llm.generate(TEXT, SamplingParams(max_tokens=2))[0].text


def test_ctrl_c_ends_a_reading(llm):
    ids = [1] * 20000

    def num_running() -> int:
        return llm.stats()["num_running"]

    wait_until(lambda: num_running() == 0)  # what another test has cancelled

    def interrupt() -> None:
        wait_until(lambda: num_running() > 0)
        os.kill(os.getpid(), signal.SIGINT)

    killer = threading.Thread(target=interrupt)
    killer.start()
    with pytest.raises(KeyboardInterrupt):
        llm.logits(ids, positions=[len(ids) - 1])
    killer.join()
    wait_until(lambda: num_running() == 0)  # stops within a step


def test_a_closed_engine_says_so():
    engine = LLM(TINY, num_threads=1, **EXACT)
    sequence = engine.sequence(100)
    stream = engine.stream([1, 2, 3], SamplingParams(max_tokens=1000))
    engine.close()
    engine.close()
    for call in (
        lambda: engine.generate([1, 2]),
        lambda: engine.logits([1, 2]),
        lambda: engine.score([1, 2]),
        lambda: engine.sequence(10),
        lambda: engine.stats(),
        lambda: engine.stream([1]),
        lambda: sequence.num_tokens,
        lambda: sequence.kv_bytes,
        lambda: sequence.fork(),
        lambda: sequence.read([1]),
        lambda: sequence.generate([1]),
        lambda: sequence.logits([1]),
        lambda: asyncio.run(engine.generate_async([1])),
    ):
        with pytest.raises(Cancelled, match="closed"):
            call()
    list(stream)
    assert stream.output.outputs[0].finish_reason in ("abort", "length")
    assert "closed" in repr(engine)


def test_closing_ends_the_requests_of_others():
    engine = LLM(TINY, num_threads=1, **EXACT)
    begun = threading.Barrier(5)

    def work() -> None:
        with pytest.raises(Cancelled):
            begun.wait()
            while True:
                answer = engine.generate([1, 2, 3], SamplingParams(max_tokens=100))[0].outputs[0]
                if answer.finish_reason == "abort":
                    engine.stats()

    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(work) for _ in range(4)]
        begun.wait()
        engine.close()
        for job in jobs:
            job.result(timeout=60)


def test_sequences_belong_to_one_engine(tiny):
    with LLM(TINY, num_threads=1, **EXACT) as other:
        sequence = other.sequence(50)
        with pytest.raises(InvalidInput, match="another engine"):
            run_all(tiny, [Asked(None, [1])], [SamplingParams()], sequence=_Stolen(tiny, sequence))
        with pytest.raises(InvalidInput, match="another engine"):
            tiny._engine.fork(sequence._sequence)
        with pytest.raises(InvalidInput, match="another engine"):
            tiny._engine.forced([1], None, None, sequence._sequence, -1, 0, 1, True, False)
    # Outlives its engine.
    del other
    gc.collect()
    del sequence


class _Stolen:
    def __init__(self, llm, sequence):
        self._sequence = sequence._sequence

        self.max_tokens = sequence.max_tokens

    def _text_tokens(self):
        return 0


class _Strange:
    """An array of another library's: its dtype is not numpy's."""

    ndim = 1
    dtype = "other.int64"

    def __init__(self, numbers):
        self._numbers = numbers

    def __array__(self, dtype=None, copy=None):
        if isinstance(self._numbers, str):
            raise TypeError(self._numbers)
        return np.array(self._numbers)


def test_one_request_at_a_time_runs_on_a_sequence(tiny):
    sequence = tiny.sequence(5000)
    stream = sequence.stream([1, 2, 3], SamplingParams(max_tokens=4000))
    next(stream)
    with pytest.raises(InvalidInput, match="another request"):
        sequence.generate([1])
    assert sequence.num_tokens >= 3
    stream.cancel()
    list(stream)
    assert sequence.generate([1], SamplingParams(max_tokens=1)).outputs[0].token_ids


def test_another_models_plan_is_refused(tiny):
    for call in (lambda: tiny.generate([1], plan=PLAN), lambda: LLM(TINY, plan=PLAN), lambda: tiny.sequence(5, plan=PLAN)):
        with pytest.raises(InvalidInput, match="the plan is for llama with 8 layers"):
            call()


def test_a_limit_of_memory_is_an_error():
    with LLM(TINY, num_threads=1, kv_limit_bytes=100_000, **EXACT) as engine:
        with pytest.raises(OutOfMemory) as raised:
            engine.generate([1, 2, 3], SamplingParams(max_tokens=100_000))
        assert isinstance(raised.value, MemoryError)
        assert engine.generate([1, 2, 3], SamplingParams(max_tokens=4))[0].outputs[0].token_ids


@pytest.mark.parametrize(
    "ask",
    [
        lambda llm: llm.generate([[]]),
        lambda llm: llm.generate([-1]),
        lambda llm: llm.generate([2**31]),
        lambda llm: llm.generate([2**70]),
        lambda llm: llm.generate([1.5]),
        lambda llm: llm.generate([True]),
        lambda llm: llm.generate(7),
        lambda llm: llm.generate(None),
        lambda llm: llm.generate({"text": "x"}),
        lambda llm: llm.generate(np.zeros((2, 2), dtype=np.int32)),
        lambda llm: llm.generate(np.zeros(2)),
        lambda llm: llm.generate({}),
        lambda llm: llm.generate({"prompt": None}),
        lambda llm: llm.generate({"prompt": 1, "prompt_token_ids": [1]}),
        lambda llm: llm.generate([1], [SamplingParams()] * 2),
        lambda llm: llm.generate([1], [3]),
        lambda llm: llm.generate([1], 3),
        lambda llm: llm.generate([1], {"max_tokens": 3}),
        lambda llm: llm.generate([1], progress=3),
        lambda llm: llm.stream([1], 3),
        lambda llm: llm.stream_async([1], SamplingParams(n=2)),
        lambda llm: asyncio.run(llm.generate_async([1], 3)),
        lambda llm: llm.sequence(10).generate([1], 3),
        lambda llm: llm.chat("hello"),
        lambda llm: llm.chat({"role": "user", "content": "hello"}),
        lambda llm: llm.chat(None),
        lambda llm: llm.chat([[]]),
        lambda llm: llm.stream_chat([]),
        lambda llm: llm.chat([{"role": "user", "content": "x"}], chat_form=0),
        lambda llm: llm.generate(np.ma.masked_array([1, 2], mask=[False, True])),
        lambda llm: llm.generate(_Strange([0.5])),
        lambda llm: llm.generate(_Strange("no numbers")),
        lambda llm: llm.generate([1], plan=np.zeros(2)),
        lambda llm: llm.encode_chat("hello"),
        lambda llm: llm.generate([1], SamplingParams(max_tokens=-1)),
        lambda llm: llm.generate([1], SamplingParams(max_tokens=1.5)),
        lambda llm: llm.generate([1], SamplingParams(max_tokens=True)),
        lambda llm: llm.generate([1], SamplingParams(max_tokens=2**62)),
        lambda llm: llm.generate([1], SamplingParams(max_tokens=10**5000)),
        lambda llm: llm.generate([10**5000]),
        lambda llm: llm.generate([1], SamplingParams(temperature=10**400)),
        lambda llm: llm.generate([1], SamplingParams(temperature=10**5000)),
        lambda llm: llm.generate([1], SamplingParams(temperature=float("nan"))),
        lambda llm: llm.generate([1], SamplingParams(temperature="hot")),
        lambda llm: llm.generate([1], SamplingParams(top_p=0)),
        lambda llm: llm.generate([1], SamplingParams(top_k=-5)),
        lambda llm: llm.generate([1], SamplingParams(n=0)),
        lambda llm: llm.generate([1], SamplingParams(seed=-1)),
        lambda llm: llm.generate([1], SamplingParams(logprobs=257)),
        lambda llm: llm.generate([1], SamplingParams(logit_bias={10**6: 1.0})),
        lambda llm: llm.generate([1], SamplingParams(logit_bias={-1: 1.0})),
        lambda llm: llm.generate([1], SamplingParams(stop_token_ids=["x"])),
        lambda llm: llm.generate([1], SamplingParams(stop=[""])),
        lambda llm: llm.generate([1], SamplingParams(stop=3)),
        lambda llm: llm.generate([1], SamplingParams(choice="yes")),
        lambda llm: llm.generate([1], SamplingParams(choice=3)),
        lambda llm: llm.generate([1], SamplingParams(json_schema={1, 2})),
        lambda llm: llm.generate([1], SamplingParams(logit_bias=[1])),
        lambda llm: llm.generate([1], SamplingParams(regex="a", choice=["b"])),
        lambda llm: llm.stream([1], SamplingParams(n=2)),
        lambda llm: llm.logits([]),
        lambda llm: llm.logits([1], positions=[1]),
        lambda llm: llm.logits([1, 2], positions=[1, 0]),
        lambda llm: llm.logits([1], positions=[-1]),
        lambda llm: llm.logits([1], positions=0),
        lambda llm: llm.logits([1], positions="0"),
        lambda llm: llm.logits([1], prompt_tokens=2),
        lambda llm: llm.logits([1], chunk_tokens=10**9),
        lambda llm: llm.logits("text"),
        lambda llm: llm.score([]),
        lambda llm: llm.score([1, 2], first=0),
        lambda llm: llm.score([1, 2], first=3),
        lambda llm: llm.score([1, 2], prompt_tokens=-7),
        lambda llm: llm.score([1, 10**6]),
        lambda llm: llm.score([10**6, 1]),
        lambda llm: llm.sequence(-1),
        lambda llm: llm.sequence(2**62),
        lambda llm: llm.sequence(10).generate([1] * 20),
        lambda llm: llm.sequence(10).fork(max_tokens=-3),
        lambda llm: LLM(TINY, num_threads=-1),
        lambda llm: LLM(TINY, num_threads=2**40),
        lambda llm: LLM(TINY, chunk_tokens=0),
        lambda llm: LLM(TINY, kv_dtype="f12"),
        lambda llm: LLM(TINY, kv_admission="maybe"),
        lambda llm: LLM(TINY, kv_admission=np.zeros(2)),
        lambda llm: LLM(TINY, max_num_seqs=0),
        lambda llm: LLM(7),
    ],
)
def test_garbage_raises(tiny, ask):
    with pytest.raises(headwise.HeadwiseError) as raised:
        ask(tiny)
    assert str(raised.value)
    assert tiny.generate([1, 2], SamplingParams(max_tokens=1))[0].outputs[0].token_ids


def test_texts_need_a_tokenizer(tiny):
    for ask in (
        lambda: tiny.generate("text"),
        lambda: tiny.decode([1]),
        lambda: tiny.tokenize("text"),
        lambda: tiny.chat([{"role": "user", "content": "x"}]),
        lambda: tiny.generate([1], SamplingParams(regex="a")),
    ):
        with pytest.raises(headwise.HeadwiseError, match="tokenizer"):
            ask()


@pytest.mark.parametrize(
    "messages",
    [[{"role": "user"}], [{"content": "x"}], [{"role": "user", "content": "\ud800"}], [{"role": "user", "content": {1}}]],
)
def test_conversations_that_are_none(llm, messages):
    with pytest.raises(InvalidInput):
        llm.chat(messages)


def test_texts_that_are_none(llm):
    assert llm.decode([-0, 10**6]) == llm.decode([0])
    for text in ("", "\ud800"):
        with pytest.raises(InvalidInput):
            llm.generate(text)
    with pytest.raises(InvalidInput):
        llm.generate(b"bytes")
    with pytest.raises(InvalidInput):
        llm.generate("x", SamplingParams(json_schema="{"))


def test_a_long_prompt_is_warned_of(tiny):
    ids = [1] * (tiny.info["trained_length"] + 1)
    for ask in (
        lambda: tiny.stream(ids, SamplingParams(max_tokens=1)).cancel(),
        lambda: tiny.generate(ids, SamplingParams(max_tokens=1)),
        lambda: tiny.logits(ids),
    ):
        with pytest.warns(headwise.HeadwiseWarning, match="trained on texts of at most") as warned:
            ask()
        assert [each.filename for each in warned] == [__file__]


def test_a_process_may_end_while_requests_run():
    done = run_python(f"""
import headwise, math
engine = headwise.LLM({str(TINY)!r}, num_threads=2)
stream = engine.stream([1, 2, 3], headwise.SamplingParams(max_tokens=math.inf, ignore_eos=True), collect=False)
print(next(stream).token_id)
""")
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_ends_a_wait_for_a_stream_that_has_no_room():
    """Nothing comes, so that nothing of Python's runs meanwhile."""
    done = run_python(f"""
import headwise, math, os, signal, sys, threading

def interrupt():
    while sys._current_frames()[threading.main_thread().ident].f_code.co_name != "__next__":
        pass
    os.kill(os.getpid(), signal.SIGINT)

with headwise.LLM({str(TINY)!r}, num_threads=1, kv_limit_bytes=650_000, compute="f32", kv_dtype="f32") as engine:
    endless = headwise.SamplingParams(max_tokens=math.inf, ignore_eos=True)
    plan = headwise.plan.streaming({str(TINY)!r}, sink=4, recent=60)
    first = engine.stream([1, 2, 3], endless, plan=plan, collect=False)
    next(first)
    second = engine.stream([1, 2, 3], headwise.SamplingParams(max_tokens=600, ignore_eos=True))
    while engine.stats()["num_waiting"] == 0:
        pass
    threading.Thread(target=interrupt).start()
    try:
        next(second)
    except KeyboardInterrupt:
        print("interrupted")
    first.cancel()
    print(len(list(second)) > 500)
""")
    assert (done.returncode, done.stdout.split()) == (0, ["interrupted", "True"]), done.stderr


def test_what_is_left_of_a_call_that_fails_is_ended(tiny):
    """An answer without an end goes on for as long as nobody ends it."""
    plan = headwise.plan.streaming(TINY, sink=4, recent=60)
    endless = SamplingParams(max_tokens=math.inf, ignore_eos=True)

    async def cancelled() -> None:
        task = asyncio.ensure_future(tiny.generate_async([1, 2, 3], endless, plan=plan))
        while tiny.stats()["num_running"] == 0:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    wait_until(lambda: tiny.stats()["num_running"] == 0)
    done = run_python(f"""
import headwise, math

def fail(*_):
    raise RuntimeError("no more of this")

with headwise.LLM({str(TINY)!r}, num_threads=1) as engine:
    short = headwise.SamplingParams(max_tokens=1, ignore_eos=True)
    endless = headwise.SamplingParams(max_tokens=math.inf, ignore_eos=True)
    plan = headwise.plan.streaming({str(TINY)!r}, sink=4, recent=60)
    try:
        engine.generate([[1], [2]], [endless, short], plan=plan, progress=fail)
    except RuntimeError as error:
        print(error)
""")
    assert (done.returncode, done.stdout) == (0, "no more of this\n"), done.stderr


def test_a_fork_of_the_process_is_told():
    done = run_python(f"""
import os, headwise
engine = headwise.LLM({str(TINY)!r}, num_threads=1)
engine.generate([1, 2])
child = os.fork()
if child == 0:
    try:
        engine.generate([1, 2])
    except headwise.InvalidInput as error:
        engine.close()
        os._exit(0 if "fork" in str(error) else 1)
    os._exit(2)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
engine.generate([1, 2])
""")
    assert (done.returncode, done.stdout.strip()) == (0, "0"), done.stderr


@pytest.mark.skipif("HEADWISE_SANITIZED" not in os.environ, reason="no sanitizer is in this interpreter")
def test_the_sanitizer_watches_what_the_package_gives_out():
    done = run_python(f"""
import ctypes, headwise
logits = headwise.LLM({str(TINY)!r}, num_threads=1).logits([1, 2])
address = logits.ctypes.data
del logits
ctypes.string_at(address, 4)
""")
    assert done.returncode != 0 and "heap-use-after-free" in done.stderr
