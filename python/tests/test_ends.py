"""How calls and processes end."""

from __future__ import annotations

import os
import sys

import headwise
import pytest
from conftest import MODEL, TINY, run_python, wait_until
from headwise import LLM, SamplingParams, _core


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
