"""The engine: a model, requests under head plans, texts that are kept and forked."""

from __future__ import annotations

import asyncio
import atexit
import copy
import json
import threading
import weakref
from collections.abc import Mapping, Sequence as SequenceOf
from typing import TYPE_CHECKING, Any

from . import _convert, _core
from ._arguments import (
    Messages,
    Prompt,
    as_list,
    conversations_of,
    engine_options,
    messages_of,
    one_params,
    params_for,
    placed,
)
from ._running import Asked, answer_async, open_stream, open_stream_async, run_all
from .errors import InvalidInput
from .head_plan import HeadPlan, StrPath, as_plan
from .sampling import Progress, RequestOutput, SamplingParams, TokenEvent, logprobs_dict
from .sequence import Sequence
from .streams import AsyncStream, LoopWaker, Stream

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["LLM"]

_open_engines: weakref.WeakSet[LLM] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """No thread of an engine may run on while the process ends, and none of Python's may come back from one."""
    try:
        for llm in list(_open_engines):
            llm.close()
    finally:
        _core.end_calls()


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
        expert_bytes: int = 0,
        batch_invariant: bool = False,
        max_num_seqs: int = 8,
    ) -> None:
        """Loads `model`, a Hugging Face folder or a .gguf file.

        plan: for requests that name none. None: every head full.
        backend: "cpu", "cuda", "ref", or "auto": cuda where a GPU is.
        isa: of the cpu backend: "amx", "avx512", "avx2", "baseline".
        compute: matrix products in "f32", "bf16", "int8", "w8a8" (CPUs with AMX) or, of prompts, "fp8" (GPUs).
        kv_dtype: "f32", "f16", "bf16", "q8", "q4"; two with a comma: of heads that keep every token, of others.
        num_threads: 0: one per core.
        kv_limit_bytes: hard limit of the caches. 0: none.
        kv_admission: "worst_case", or "likely", which lets in more requests and preempts some where memory ends.
        host_kv_bytes: host memory for those that give way, under "likely".
        chunk_tokens: prompt tokens read per step.
        max_gap_ms: the longest time between two tokens of an answer beside long prompts. 0: no limit.
        page_tokens: tokens per page of one KV head. 0: by format.
        use_mmap: False reads all weights into memory first. Mapped files that become shorter end the process.
        expert_bytes: of a .gguf mixture larger than memory, keep at most so many bytes of experts ready, and read others
            as tokens choose them. 0: all are ready. The same bits with any limit; backend "cpu" only.
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
            expert_bytes=expert_bytes,
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
        return copy.deepcopy(self._info)

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
        opens_answer: bool,
        form: str | None,
        template: str | None,
    ) -> tuple[list[int], list[int]]:
        def dumped(value: Any, name: str) -> str:
            return "" if value is None else _convert.json_text(value, name)

        ids, stop_ids = self._engine.encode_chat(
            dumped(messages_of(messages), "messages"),
            dumped(tools, "tools"),
            dumped(documents, "documents"),
            dumped(variables, "chat_template_kwargs"),
            bool(opens_answer),
            _convert.text("" if form is None else form, "chat_form"),
            _convert.text("" if template is None else template, "chat_template"),
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

        What is wrong with any of them is said before the first is answered.

        prompts: a text, token ids, {"prompt": text} or {"prompt_token_ids": ids}, or a list of these.
        sampling_params: one for all, or one for each.
        plan: in place of the engine's; "full" for every head full.
        progress: called with a label, answers that are there, and all of them.
        """
        listed = as_list(prompts)
        asked = []
        for place, prompt in enumerate(listed):
            with placed(place, len(listed)):
                asked.append(self._prompt(prompt))
        params = params_for(sampling_params, len(asked))
        return run_all(self, asked, params, plan=self._plan_for(plan), progress=progress)

    def chat(
        self,
        messages: Messages | SequenceOf[Messages],
        sampling_params: SamplingParams | SequenceOf[SamplingParams] | None = None,
        *,
        tools: SequenceOf[Any] | None = None,
        documents: SequenceOf[Any] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        chat_form: str | None = None,
        chat_template: str | None = None,
        plan: HeadPlan | StrPath | None = None,
        progress: Progress | None = None,
    ) -> list[RequestOutput]:
        """Answers one conversation or several, as `generate` does prompts. messages and what follows: as in `encode_chat`."""
        setup = (tools, documents, chat_template_kwargs, chat_form, chat_template)
        listed = conversations_of(messages)
        asked = []
        for place, each in enumerate(listed):
            with placed(place, len(listed)):
                asked.append(self._conversation(each, *setup))
        params = params_for(sampling_params, len(asked))
        return run_all(self, asked, params, plan=self._plan_for(plan), progress=progress)

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
        params = one_params(sampling_params)
        return open_stream(self, self._prompt(prompt), params, plan=self._plan_for(plan), collect=collect)

    def stream_chat(
        self,
        messages: Messages,
        sampling_params: SamplingParams | None = None,
        *,
        tools: SequenceOf[Any] | None = None,
        documents: SequenceOf[Any] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        chat_form: str | None = None,
        chat_template: str | None = None,
        plan: HeadPlan | StrPath | None = None,
        collect: bool = True,
    ) -> Stream:
        """`chat`, token by token; `collect` as for `stream`."""
        asked = self._conversation(messages, tools, documents, chat_template_kwargs, chat_form, chat_template)
        return open_stream(self, asked, one_params(sampling_params), plan=self._plan_for(plan), collect=collect)

    async def generate_async(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        plan: HeadPlan | StrPath | None = None,
    ) -> RequestOutput:
        """`generate` of one prompt in an event loop. Any number may run at once. Cancelling the task ends the request."""
        return await answer_async(self, self._prompt(prompt), one_params(sampling_params), self._plan_for(plan))

    async def chat_async(
        self,
        messages: Messages,
        sampling_params: SamplingParams | None = None,
        *,
        tools: SequenceOf[Any] | None = None,
        documents: SequenceOf[Any] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        chat_form: str | None = None,
        chat_template: str | None = None,
        plan: HeadPlan | StrPath | None = None,
    ) -> RequestOutput:
        """`chat` of one conversation in an event loop."""
        asked = self._conversation(messages, tools, documents, chat_template_kwargs, chat_form, chat_template)
        return await answer_async(self, asked, one_params(sampling_params), self._plan_for(plan))

    def stream_async(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        plan: HeadPlan | StrPath | None = None,
        collect: bool = True,
    ) -> AsyncStream:
        """`stream` in an event loop: an asynchronous iterator of `TokenEvent`. Leaving it ends the request.

        Close it, or leave it by `async with`, before its loop ends: a loop closes generators of its own, not streams.
        collect: as for `stream`; False for streams without an end.
        """
        asked, params = self._prompt(prompt), one_params(sampling_params)
        return open_stream_async(self, asked, params, self._plan_for(plan), collect=collect)

    def stream_chat_async(
        self,
        messages: Messages,
        sampling_params: SamplingParams | None = None,
        *,
        tools: SequenceOf[Any] | None = None,
        documents: SequenceOf[Any] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        chat_form: str | None = None,
        chat_template: str | None = None,
        plan: HeadPlan | StrPath | None = None,
        collect: bool = True,
    ) -> AsyncStream:
        """`stream_chat` in an event loop."""
        asked = self._conversation(messages, tools, documents, chat_template_kwargs, chat_form, chat_template)
        return open_stream_async(self, asked, one_params(sampling_params), self._plan_for(plan), collect=collect)

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
        if not read:
            raise InvalidInput("ids: found none, expected at least one")
        logprobs, greedy = self._engine.score(
            read,
            _convert.whole(first, "first"),
            self._plan_for(plan),
            None,
            -1 if prompt_tokens is None else _convert.whole(prompt_tokens, "prompt_tokens", 0),
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
            None if positions is None else _convert.wholes(positions, "positions", 0),
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
            _convert.warn(self._engine.take_warnings())

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

    def _prompt(self, prompt: Any, held: int = 0) -> Asked:
        """`held`: tokens of the text that it goes on with."""
        text = prompt if isinstance(prompt, str) else None
        if isinstance(prompt, Mapping):
            if not prompt or not set(prompt) <= {"prompt", "prompt_token_ids"}:
                raise InvalidInput(f"prompt: found keys {sorted(map(str, prompt))}, expected prompt or prompt_token_ids")
            text = None if prompt.get("prompt") is None else _convert.text(prompt["prompt"], "prompt")
            # Where both are given the text is what the ids were made of.
            ids_given = prompt.get("prompt_token_ids")
            prompt = text if ids_given is None else ids_given
        if not isinstance(prompt, str):
            ids = _convert.token_ids(prompt, "prompt")
        else:
            ids = self.encode(prompt) if held == 0 else self.tokenize(prompt)
        self._engine.note_length(held + len(ids))
        return Asked(text, ids)

    def _conversation(
        self,
        messages: Messages,
        tools: SequenceOf[Any] | None,
        documents: SequenceOf[Any] | None,
        variables: Mapping[str, Any] | None,
        form: str | None,
        template: str | None,
    ) -> Asked:
        if not messages_of(messages):
            raise InvalidInput("messages: found none, expected at least one")
        ids, stop_ids = self._encode_chat(messages, tools, documents, variables, True, form, template)
        self._engine.note_length(len(ids))
        return Asked(None, ids, stop_ids)

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
