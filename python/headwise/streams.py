"""Answers token by token."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING

from . import _core
from .sampling import RequestOutput, TokenEvent, completion

if TYPE_CHECKING:
    from .llm import LLM

__all__ = ["Stream"]


class Stream(Iterator[TokenEvent]):
    """The tokens of one answer as they come. A context manager: leaving it ends the request, and so does dropping it."""

    def __init__(self, llm: LLM, stream: _core.Stream, prompt: str | None, ids: list[int]) -> None:
        self._llm = llm
        self._stream = stream
        self._prompt = prompt
        self._ids = ids
        self._output: RequestOutput | None = None
        self._is_over = False

    def __next__(self) -> TokenEvent:
        while not self._is_over:
            event = self._stream.next()
            if event is None:
                break
            if event.result is not None:
                self._is_over = True
                answer = completion(self._llm, 0, event.result)
                self._output = RequestOutput(self._llm._request_id(), self._prompt, self._ids, [answer])
            if event.token is not None or event.text:
                return self._llm._event(event)
        self._is_over = True
        raise StopIteration

    def cancel(self) -> None:
        """Ends the request; the tokens that are there already still come. From any thread."""
        self._stream.cancel()

    @property
    def output(self) -> RequestOutput | None:
        """The whole answer, once the stream has come to its end."""
        return self._output

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exception: object) -> None:
        self.cancel()


class LoopWaker:
    """Brings what the engine's threads announce into an event loop, which alone touches what is here."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.waker = _core.Waker()
        self._ready: dict[int, asyncio.Event] = {}
        self._next_key = 0
        self._loop = weakref.ref(loop)

    def begin(self) -> tuple[int, asyncio.Event]:
        loop = self._loop()
        if not self._ready and loop is not None:
            loop.add_reader(self.waker.fd, self._wake)
        key = self._next_key
        self._next_key += 1
        ready = self._ready[key] = asyncio.Event()
        return key, ready

    def end(self, key: int) -> None:
        self._ready.pop(key, None)
        loop = self._loop()
        if not self._ready and loop is not None and not loop.is_closed():
            loop.remove_reader(self.waker.fd)

    def _wake(self) -> None:
        for key in self.waker.take():
            ready = self._ready.get(key)
            if ready is not None:
                ready.set()
