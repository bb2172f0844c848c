"""The engine: a model, requests under head plans, texts that are kept and forked."""

from __future__ import annotations

import asyncio
import atexit
import json
import threading
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence as SequenceOf
from typing import TYPE_CHECKING, Any

from . import _convert, _core
from ._arguments import Messages, Prompt, as_list, conversations_of, engine_options, num_answers, params_for
from .errors import InvalidInput
from .head_plan import HeadPlan, StrPath, as_plan
from .sampling import CompletionOutput, Progress, RequestOutput, SamplingParams, TokenEvent
from .sampling import build_request, completion, logprobs_dict
from .sequence import Sequence
from .streams import LoopWaker, Stream

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["LLM"]

_open_engines: weakref.WeakSet[LLM] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """No thread of an engine may run on while the process ends."""
    for llm in list(_open_engines):
        llm.close()


class LLM:
    """A model that answers. Safe to use from several threads at once: requests of all share its steps.

    A context manager; `close` gives the memory back. What the library warns of comes as `HeadwiseWarning`.
    """

    def __init__(
        self,
        model: StrPath,
        *,
        plan: HeadPlan | StrPath | None = None,
        backend: str = "cpu",
        isa: str = "auto",
        compute: str = "auto",
        kv_dtype: str = "f16",
        num_threads: int = 0,
        kv_limit_bytes: int = 0,
        kv_admission: str = "worst_case",
        host_kv_bytes: int = 0,
        chunk_tokens: int = 512,
        max_gap_ms: int = 0,
        page_tokens: int = 0,
        use_mmap: bool = True,
        batch_invariant: bool = False,
        max_num_seqs: int = 8,
    ) -> None:
        """Loads `model`, a Hugging Face folder or a .gguf file.

        plan: for requests that name none. None: every head full.
        backend: "cpu", "cuda", "ref", or "auto": cuda where a GPU is.
        isa: of the cpu backend: "amx", "avx512", "avx2", "baseline".
        compute: matrix products in "f32", "bf16" or "int8".
        kv_dtype: "f32", "f16", "bf16", "q8", "q4"; two with a comma: of heads that keep every token, of others.
        num_threads: 0: one per core.
        kv_limit_bytes: hard limit of the caches. 0: none.
        kv_admission: "worst_case", or "likely", which lets in more requests and preempts some where memory ends.
        host_kv_bytes: host memory for those that give way, under "likely".
        chunk_tokens: prompt tokens read per step.
        max_gap_ms: the longest time between two tokens of an answer beside long prompts. 0: no limit.
        page_tokens: tokens per page of one KV head. 0: by format.
        use_mmap: False reads all weights into memory first. Mapped files that become shorter end the process.
        batch_invariant: a token's logits depend on its text alone, bit for bit, not on who shares its steps.
        max_num_seqs: how many answers of one call of `generate` run at once.
        """
        self._closed = True
        options = engine_options(
            model,
            backend=backend,
            isa=isa,
            compute=compute,
            kv_dtype=kv_dtype,
            num_threads=num_threads,
            kv_limit_bytes=kv_limit_bytes,
            kv_admission=kv_admission,
            host_kv_bytes=host_kv_bytes,
            chunk_tokens=chunk_tokens,
            max_gap_ms=max_gap_ms,
            page_tokens=page_tokens,
            use_mmap=use_mmap,
            batch_invariant=batch_invariant,
        )
        self.max_num_seqs = _convert.whole(max_num_seqs, "max_num_seqs", 1, 4096)
        self._engine = _core.Engine(options)
        self._closed = False
        _open_engines.add(self)
        self._info: dict[str, Any] = json.loads(self._engine.info())
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopWaker] = weakref.WeakKeyDictionary()
        self._next_id = 0
        self._lock = threading.Lock()
        self._texts: dict[int, str] = {}
        try:
            self._plan = self._checked_plan(plan)
        except BaseException:
            self.close()
            raise
        self._warn()

    # ---- life ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends what runs, and gives back the memory. Sequences of it cannot be used any more. Again: nothing."""
        if not self._closed:
            self._closed = True
            self._engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else self._info["description"]
        return f"LLM({self._info['shape']['architecture']}, {state})"

    # ---- facts -----------------------------------------------------------------------------------------------------

    @property
    def info(self) -> dict[str, Any]:
        """Of the model and of what it is computed in: shape, vocab_size, trained_length, eos_ids, compute, kv_dtype."""
        return self._info

    @property
    def plan(self) -> HeadPlan | None:
        """Of requests that name none. None: every head full."""
        return self._plan

    def stats(self) -> dict[str, int]:
        """Requests that run and wait, and KV bytes held now, as of the last step."""
        stats: dict[str, int] = self._engine.stats()
        return stats

    # ---- tokens ----------------------------------------------------------------------------------------------------

    def encode(self, text: str, *, bos: bool = True, special: bool = False) -> list[int]:
        """A prompt's ids, as `generate` takes them.

        bos: begin as the model's texts do.
        special: read special tokens such as "<|im_end|>" as such, not as text.
        """
        return list(self._engine.encode(_convert.text(text, "prompt"), bool(bos), bool(special)))

    def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        """The ids of a text alone: nothing is put in front."""
        return list(self._engine.tokenize(_convert.text(text, "text"), bool(special)))

    def decode(self, ids: SequenceOf[int], *, skip_special: bool = True) -> str:
        """The text of ids; bytes that are no UTF-8 become U+FFFD, ids without a token nothing."""
        return self._engine.decode(_convert.token_ids(ids), bool(skip_special))

    def encode_chat(
        self,
        messages: Messages,
        *,
        tools: SequenceOf[Any] | None = None,
        documents: SequenceOf[Any] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        chat_form: str | None = None,
        chat_template: str | None = None,
    ) -> list[int]:
        """A conversation's ids by the model's own chat template, or by a form that is built in ("chatml", "llama-3", ...).

        messages: [{"role": "user", "content": "..."}, ...].
        tools: functions as the model's template expects them.
        documents: objects for the template.
        chat_template_kwargs: further variables of the template.
        add_generation_prompt: ready for the model to answer.
        chat_form: a form that is built in, in place of the model's own template.
        chat_template: the text of a template, in place of the model's own.
        """
        return self._encode_chat(
            messages, tools, documents, chat_template_kwargs, add_generation_prompt, chat_form, chat_template
        )[0]

    def _encode_chat(
        self,
        messages: Messages,
        tools: SequenceOf[Any] | None,
        documents: SequenceOf[Any] | None,
        variables: Mapping[str, Any] | None,
        opens_answer: bool = True,
        form: str | None = None,
        template: str | None = None,
    ) -> tuple[list[int], list[int]]:
        def dumped(value: Any, name: str) -> str:
            try:
                return "" if value is None else json.dumps(value, allow_nan=False)
            except (TypeError, ValueError, RecursionError) as error:
                raise InvalidInput(f"{name}: is no JSON: {error}") from None

        ids, stop_ids = self._engine.encode_chat(
            dumped(list(messages), "messages"),
            dumped(tools, "tools"),
            dumped(documents, "documents"),
            dumped(variables, "chat_template_kwargs"),
            bool(opens_answer),
            _convert.text(form or "", "chat_form"),
            _convert.text(template or "", "chat_template"),
        )
        return list(ids), list(stop_ids)

    def _token_text(self, id: int) -> str:
        """What a token adds to a text; the part of a character is U+FFFD."""
        found = self._texts.get(id)
        if found is None:
            found = self._texts[id] = self._engine.token_text(id).decode(errors="replace")
        return found

    # ---- generation ------------------------------------------------------------------------------------------------

    def generate(
        self,
        prompts: Prompt | SequenceOf[Prompt],
        sampling_params: SamplingParams | SequenceOf[SamplingParams] | None = None,
        *,
        plan: HeadPlan | StrPath | None = None,
        progress: Progress | None = None,
    ) -> list[RequestOutput]:
        """Answers prompts, up to `max_num_seqs` at once, and gives the answers in their order. Ctrl-C ends it.

        sampling_params: one for all, or one for each.
        plan: in place of the engine's; "full" for every head full.
        progress: called with a label, answers that are there, and all of them.
        """
        wanted = as_list(prompts)
        prepared = [self._prompt(prompt) for prompt in wanted]
        params = params_for(sampling_params, len(prepared))
        with_stops = [(text, ids, ()) for text, ids in prepared]
        return self._run_all(with_stops, params, self._plan_for(plan), None, progress)

    def chat(
        self,
        messages: Messages | SequenceOf[Messages],
        sampling_params: SamplingParams | SequenceOf[SamplingParams] | None = None,
        *,
        tools: SequenceOf[Any] | None = None,
        documents: SequenceOf[Any] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        plan: HeadPlan | StrPath | None = None,
        progress: Progress | None = None,
    ) -> list[RequestOutput]:
        """Answers one conversation or several, as `generate` does prompts. messages: as in `encode_chat`."""
        conversations = conversations_of(messages)
        encoded = [self._encode_chat(each, tools, documents, chat_template_kwargs) for each in conversations]
        params = params_for(sampling_params, len(encoded))
        with_stops = [(None, ids, stop_ids) for ids, stop_ids in encoded]
        return self._run_all(with_stops, params, self._plan_for(plan), None, progress)

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        plan: HeadPlan | StrPath | None = None,
        collect: bool = True,
    ) -> Stream:
        """One answer, token by token: an iterator of `TokenEvent`.

        collect: keep the text for `Stream.output`. With False and `max_tokens=math.inf` it goes on for ever in constant
            memory, where the plan bounds every head.
        """
        _, ids = self._prompt(prompt)
        return self._stream(ids, sampling_params or SamplingParams(), self._plan_for(plan), None, collect)

    def stream_chat(
        self,
        messages: Messages,
        sampling_params: SamplingParams | None = None,
        *,
        tools: SequenceOf[Any] | None = None,
        documents: SequenceOf[Any] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        plan: HeadPlan | StrPath | None = None,
    ) -> Stream:
        """`chat`, token by token."""
        ids, stop_ids = self._encode_chat(messages, tools, documents, chat_template_kwargs)
        params = sampling_params or SamplingParams()
        return self._stream(ids, params, self._plan_for(plan), None, True, stop_ids)

    async def generate_async(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        plan: HeadPlan | StrPath | None = None,
    ) -> RequestOutput:
        """`generate` of one prompt in an event loop. Any number may run at once. Cancelling the task ends the request."""
        text, ids = self._prompt(prompt)
        params = sampling_params or SamplingParams()
        waker = self._loop_waker()
        own_plan = self._plan_for(plan)
        outputs = []
        for answer in range(num_answers(params)):
            request = build_request(self, ids, params, answer=answer, plan=own_plan)
            key, ready = waker.begin()
            try:
                pending = _core.submit(self._engine, request, waker.waker, key)
                try:
                    while (result := pending.poll()) is None:
                        await ready.wait()
                        ready.clear()
                except BaseException:
                    pending.cancel()
                    raise
            finally:
                waker.end(key)
            outputs.append(completion(self, answer, result))
        self._warn()
        return RequestOutput(self._request_id(), text, ids, outputs)

    async def stream_async(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        plan: HeadPlan | StrPath | None = None,
    ) -> AsyncIterator[TokenEvent]:
        """`stream` in an event loop: an asynchronous iterator of `TokenEvent`."""
        _, ids = self._prompt(prompt)
        params = sampling_params or SamplingParams()
        waker = self._loop_waker()
        request = build_request(self, ids, params, plan=self._plan_for(plan))
        request.keep_nothing()
        key, ready = waker.begin()
        stream = None
        try:
            stream = _core.stream(self._engine, request, waker.waker, key)
            while True:
                event = stream.poll()
                if event is None:
                    await ready.wait()
                    ready.clear()
                    continue
                if event.text or event.token is not None:
                    yield self._event(event)
                if event.result is not None:
                    event.result.check()
                    return
        finally:
            waker.end(key)
            if stream is not None:
                stream.cancel()

    # ---- the model's numbers ---------------------------------------------------------------------------------------

    def logits(
        self,
        ids: SequenceOf[int] | npt.NDArray[np.integer[Any]],
        *,
        positions: SequenceOf[int] | None = None,
        plan: HeadPlan | StrPath | None = None,
        prompt_tokens: int | None = None,
        chunk_tokens: int = 0,
    ) -> npt.NDArray[np.float32]:
        """[n, V] float32: what the model expects behind each of the n ids, or behind those at ascending `positions`.

        What `headwise logits` writes, whose engine has compute="f32" and kv_dtype="f32".

        prompt_tokens: so many are read as the prompt, the rest one by one as decoding does. None: all of them.
        chunk_tokens: ids of the prompt per step. 0: the engine's.
        """
        logits: npt.NDArray[np.float32]
        logits, _ = self._forced(ids, positions, plan, prompt_tokens, chunk_tokens, True, False)
        return logits

    def hidden(
        self,
        ids: SequenceOf[int] | npt.NDArray[np.integer[Any]],
        *,
        positions: SequenceOf[int] | None = None,
        plan: HeadPlan | StrPath | None = None,
        prompt_tokens: int | None = None,
        chunk_tokens: int = 0,
    ) -> npt.NDArray[np.float32]:
        """[n, E] float32: final hidden states after the last norm; arguments as for `logits`."""
        hidden: npt.NDArray[np.float32]
        _, hidden = self._forced(ids, positions, plan, prompt_tokens, chunk_tokens, False, True)
        return hidden

    def score(
        self,
        ids: SequenceOf[int] | npt.NDArray[np.integer[Any]],
        *,
        first: int = 1,
        plan: HeadPlan | StrPath | None = None,
        prompt_tokens: int | None = None,
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
        """Log-probabilities [n - first] float32 of ids[first:], each behind those before it, and whether each is the most
        likely one, [n - first] bool.

        prompt_tokens: as for `logits`.
        """
        read = _convert.token_ids(ids)
        logprobs, greedy = self._engine.score(
            read,
            _convert.whole(first, "first"),
            self._plan_for(plan),
            None,
            -1 if prompt_tokens is None else _convert.whole(prompt_tokens, "prompt_tokens"),
            1,
        )
        self._warn()
        return logprobs, greedy

    def _forced(
        self,
        ids: Any,
        positions: SequenceOf[int] | None,
        plan: HeadPlan | StrPath | None,
        prompt_tokens: int | None,
        chunk_tokens: int,
        logits: bool,
        hidden: bool,
    ) -> tuple[Any, Any]:
        found = self._engine.forced(
            _convert.token_ids(ids),
            None if positions is None else [_convert.whole(each, "positions", 0) for each in positions],
            self._plan_for(plan),
            None,
            -1 if prompt_tokens is None else _convert.whole(prompt_tokens, "prompt_tokens", 0),
            _convert.whole(chunk_tokens, "chunk_tokens"),
            1,
            logits,
            hidden,
        )
        self._warn()
        return found

    # ---- kept texts ------------------------------------------------------------------------------------------------

    def sequence(
        self, max_tokens: int, *, plan: HeadPlan | StrPath | None = None, prompt_tokens: int = 0
    ) -> Sequence:
        """A text that is kept in the cache and goes on.

        max_tokens: all of it at most.
        prompt_tokens: of its first turn, for rules that hold from the end of the prompt.
        """
        own = self._plan_for(plan)
        most = _convert.whole(max_tokens, "max_tokens")
        prompt = _convert.whole(prompt_tokens, "prompt_tokens")
        made = self._engine.new_sequence(own, prompt, most)
        self._warn()
        return Sequence(self, made, own, prompt, most)

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _warn(self) -> None:
        if not self._closed:
            _convert.warn(self._engine.take_warnings(), stacklevel=4)

    def _request_id(self) -> str:
        with self._lock:
            self._next_id += 1
            return str(self._next_id)

    def _checked_plan(self, plan: HeadPlan | StrPath | None) -> HeadPlan | None:
        found, origin = as_plan(plan)
        if found is not None:
            self._engine.check_plan(found._plan, origin)
        return found

    def _plan_for(self, plan: HeadPlan | StrPath | None) -> _core.Plan | None:
        """The engine's own where none is given."""
        found = self._plan if plan is None else self._checked_plan(plan)
        return None if found is None else found._plan

    def _prompt(self, prompt: Any) -> tuple[str | None, list[int]]:
        if isinstance(prompt, Mapping):
            if set(prompt) == {"prompt_token_ids"}:
                prompt = prompt["prompt_token_ids"]
            elif set(prompt) == {"prompt"}:
                prompt = prompt["prompt"]
            else:
                raise InvalidInput(f"prompt: found keys {sorted(map(str, prompt))}, expected prompt or prompt_token_ids")
        text = prompt if isinstance(prompt, str) else None
        ids = self.encode(prompt) if isinstance(prompt, str) else _convert.token_ids(prompt, "prompt")
        self._engine.note_length(len(ids))
        return text, ids

    def _run_all(
        self,
        prompts: SequenceOf[tuple[str | None, list[int], SequenceOf[int]]],
        params: SequenceOf[SamplingParams],
        plan: _core.Plan | None,
        sequence: Sequence | None,
        progress: Progress | None,
    ) -> list[RequestOutput]:
        asked = [(i, answer) for i, each in enumerate(params) for answer in range(num_answers(each))]
        waker = _core.Waker()
        running: dict[int, _core.Pending] = {}
        answers: dict[int, CompletionOutput] = {}
        next_key = 0
        try:
            while len(answers) < len(asked):
                while next_key < len(asked) and len(running) < self.max_num_seqs:
                    i, answer = asked[next_key]
                    _, ids, stop_ids = prompts[i]
                    request = build_request(
                        self,
                        ids,
                        params[i],
                        answer=answer,
                        more_stop_ids=stop_ids,
                        plan=plan,
                        sequence=None if sequence is None else sequence._sequence,
                        room=None if sequence is None else sequence._room(),
                    )
                    running[next_key] = _core.submit(self._engine, request, waker, next_key)
                    next_key += 1
                for key in waker.wait():
                    result = running[key].poll()
                    if result is not None:
                        del running[key]
                        answers[key] = completion(self, asked[key][1], result)
                        if progress is not None:
                            progress("generate", len(answers), len(asked))
        finally:
            for pending in running.values():
                pending.cancel()
            # Nobody shares memory with what is on its way out: a sequence may be used again at once.
            while running and not self._closed:
                running = {key: pending for key, pending in running.items() if pending.poll() is None}
                if running:
                    waker.wait()
        self._warn()
        outputs: list[list[CompletionOutput]] = [[] for _ in prompts]
        for key, (i, _) in enumerate(asked):
            outputs[i].append(answers[key])
        return [
            RequestOutput(self._request_id(), text, list(ids), outputs[i]) for i, (text, ids, _) in enumerate(prompts)
        ]

    def _stream(
        self,
        ids: list[int],
        params: SamplingParams,
        plan: _core.Plan | None,
        sequence: Sequence | None,
        collect: bool,
        stop_ids: SequenceOf[int] = (),
    ) -> Stream:
        if num_answers(params) != 1:
            raise InvalidInput(f"n: found {params.n}, expected 1 for a stream")
        request = build_request(
            self,
            ids,
            params,
            more_stop_ids=stop_ids,
            plan=plan,
            sequence=None if sequence is None else sequence._sequence,
            room=None if sequence is None else sequence._room(),
        )
        if not collect:
            request.keep_nothing()
        stream = Stream(self, _core.stream(self._engine, request, None, 0), ids)
        self._warn()
        return stream

    def _event(self, event: _core.Event) -> TokenEvent:
        logprobs = event.logprobs
        return TokenEvent(event.token, event.text, None if logprobs is None else logprobs_dict(self, logprobs))

    def _loop_waker(self) -> LoopWaker:
        loop = asyncio.get_running_loop()
        with self._lock:
            waker = self._loops.get(loop)
            if waker is None:
                waker = self._loops[loop] = LoopWaker(loop)
            return waker
