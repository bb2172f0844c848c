"""Answers token by token."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

from . import _core
from .sampling import RequestOutput, TokenEvent, completion

if TYPE_CHECKING:
    from .llm import LLM

__all__ = ["Stream", "AsyncStream"]


class Stream(Iterator[TokenEvent]):
    """The tokens of one answer as they come. A context manager: leaving it ends the request, and so does dropping it."""

    def __init__(
        self, llm: LLM, stream: _core.Stream, prompt: str | None, ids: list[int], has_logprobs: bool
    ) -> None:
        self._llm = llm
        self._stream = stream
        self._prompt = prompt
        self._ids = ids
        self._has_logprobs = has_logprobs
        self._output: RequestOutput | None = None
        self._is_over = False

    def __next__(self) -> TokenEvent:
        while not self._is_over:
            event = self._stream.next()
            if event is None:
                break
            if event.result is not None:
                self._is_over = True
                answer = completion(self._llm, 0, event.result, self._has_logprobs)
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


class AsyncStream(AsyncIterator[TokenEvent]):
    """The tokens of one answer as they come, in an event loop: `Stream` for `async for`. The request begins with the
    first token that is asked for. `aclose`, leaving an `async with`, or dropping the stream ends it."""

    def __init__(
        self, llm: LLM, request: _core.Request, prompt: str | None, ids: list[int], has_logprobs: bool
    ) -> None:
        self._llm = llm
        self._request = request
        self._prompt = prompt
        self._ids = ids
        self._has_logprobs = has_logprobs
        self._stream: _core.Stream | None = None
        self._waker: LoopWaker | None = None
        self._key = 0
        self._output: RequestOutput | None = None
        self._is_over = False

    async def __anext__(self) -> TokenEvent:
        try:
            while not self._is_over:
                event = self._begun().poll()
                if event is None:
                    await self._ready.wait()
                    self._ready.clear()
                    continue
                if event.result is not None:
                    self._end()
                    answer = completion(self._llm, 0, event.result, self._has_logprobs)
                    self._output = RequestOutput(self._llm._request_id(), self._prompt, self._ids, [answer])
                if event.token is not None or event.text:
                    return self._llm._event(event)
        except BaseException:
            self._close()
            raise
        raise StopAsyncIteration

    def cancel(self) -> None:
        """Ends the request; the tokens that are there already still come. From any thread."""
        if self._stream is not None:
            self._stream.cancel()
        else:
            self._is_over = True

    async def aclose(self) -> None:
        """Ends the request, and the stream with it."""
        self._close()

    @property
    def output(self) -> RequestOutput | None:
        """The whole answer, once the stream has come to its end: its `finish_reason` says to which. None where it was
        left before."""
        return self._output

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._close()

    def __del__(self) -> None:
        if self._waker is not None and not self._is_over:
            self._waker.end_soon(self._key)

    def _begun(self) -> _core.Stream:
        if self._stream is None:
            waker = self._llm._loop_waker()
            self._key, self._ready = waker.begin()
            self._waker = waker
            self._stream = _core.stream(self._llm._engine, self._request, self._waker.waker, self._key)
            del self._request  # it has a copy of the ids
            self._llm._warn()
        return self._stream

    def _close(self) -> None:
        self._end()
        if self._stream is not None:
            self._stream.cancel()

    def _end(self) -> None:
        if self._waker is not None and not self._is_over:
            self._waker.end(self._key)
            self._ready.set()  # who still waits for an event gets the end
        self._is_over = True


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

    def end_soon(self, key: int) -> None:
        """From any thread."""
        loop = self._loop()
        if loop is not None:
            try:
                loop.call_soon_threadsafe(self.end, key)
            except RuntimeError:  # it is closed, and waits for nothing
                pass

    def _wake(self) -> None:
        for key in self.waker.take():
            ready = self._ready.get(key)
            if ready is not None:
                ready.set()
