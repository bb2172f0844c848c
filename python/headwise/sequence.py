"""Texts that are kept in the cache."""

from __future__ import annotations

import collections.abc
from typing import TYPE_CHECKING, Any

from . import _convert, _core
from ._arguments import Prompt, num_answers, one_params
from ._running import Asked, open_stream, run_all
from .errors import Cancelled, InvalidInput
from .head_plan import HeadPlan, StrPath
from .sampling import Progress, RequestOutput, SamplingParams
from .streams import Stream

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .llm import LLM

__all__ = ["Sequence"]


class Sequence:
    """A text in the cache: it can be read on, forked, and generated from. One request runs on it at a time."""

    def __init__(
        self, llm: LLM, sequence: _core.Sequence, plan: _core.Plan | None, prompt_tokens: int, max_tokens: int
    ) -> None:
        self._llm = llm
        self._sequence = sequence
        self._plan = plan
        self._prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens

    @property
    def num_tokens(self) -> int:
        """In the cache. The last token of an answer joins when the text goes on."""
        return self._llm._engine.size_of(self._sequence)[0]

    @property
    def kv_bytes(self) -> int:
        """Of its pages now, those that forks share among them."""
        return self._llm._engine.size_of(self._sequence)[1]

    def fork(
        self,
        *,
        plan: HeadPlan | StrPath | None = None,
        prompt_tokens: int | None = None,
        max_tokens: int | None = None,
    ) -> Sequence:
        """A copy that shares pages until one of the two writes; going on with it equals going on with the original, bit
        for bit. With another plan ("full" for none), end of the prompt or length: refused where the rules would have
        treated the tokens so far otherwise."""
        engine = self._llm._engine
        own = self._plan if plan is None else self._llm._plan_for(plan)
        prompt = self._prompt_tokens if prompt_tokens is None else _convert.whole(prompt_tokens, "prompt_tokens")
        most = self.max_tokens if max_tokens is None else _convert.whole(max_tokens, "max_tokens")
        if plan is None and prompt_tokens is None and max_tokens is None:
            forked = engine.fork(self._sequence)
        else:
            forked = engine.fork_under(self._sequence, own, prompt, most)
        return Sequence(self._llm, forked, own, prompt, most)

    def __repr__(self) -> str:
        try:
            num_tokens, kv_bytes = self._llm._engine.size_of(self._sequence)
        except Cancelled:
            return "Sequence(of a closed engine)"
        except InvalidInput:
            return "Sequence(of another process' engine)"
        return f"Sequence({num_tokens} of at most {self.max_tokens} tokens, {kv_bytes} bytes)"

    def read(self, prompt: Prompt) -> None:
        """Reads on, and draws nothing. A text gets no beginning-of-text token unless it is the first."""
        run_all(self._llm, [self._prompt(prompt)], [SamplingParams(max_tokens=0)], sequence=self)

    def generate(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, *, progress: Progress | None = None
    ) -> RequestOutput:
        """Reads the prompt behind the text so far and answers; both become part of the text.

        Of an answer that `stop` ends the tokens of the whole stop string do, though its text ends before them.
        """
        params = one_params(sampling_params)
        if num_answers(params) != 1:
            raise InvalidInput(f"n: found {params.n}, expected 1 for a sequence: fork it for more answers")
        asked = [self._prompt(prompt)]
        return run_all(self._llm, asked, [params], sequence=self, progress=progress)[0]

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None, *, collect: bool = True) -> Stream:
        """`generate`, token by token.

        The engine runs ahead of who reads, by up to 1,024 tokens: all that it has drawn are part of the text, those too
        that nobody has seen where the stream is left early. Fork first, or give `max_tokens`, where that matters.
        """
        params = one_params(sampling_params)
        return open_stream(self._llm, self._prompt(prompt), params, sequence=self, collect=collect)

    def logits(
        self, ids: collections.abc.Sequence[int] | npt.NDArray[np.integer[Any]], *, positions: collections.abc.Sequence[int] | None = None
    ) -> npt.NDArray[np.float32]:
        """`LLM.logits` behind the text so far; the ids become part of it."""
        logits: npt.NDArray[np.float32] = self._forced(ids, positions, True)
        return logits

    def hidden(
        self, ids: collections.abc.Sequence[int] | npt.NDArray[np.integer[Any]], *, positions: collections.abc.Sequence[int] | None = None
    ) -> npt.NDArray[np.float32]:
        """`LLM.hidden` behind the text so far; the ids become part of it."""
        hidden: npt.NDArray[np.float32] = self._forced(ids, positions, False)
        return hidden

    def _forced(self, ids: Any, positions: collections.abc.Sequence[int] | None, logits: bool) -> Any:
        wanted = None if positions is None else _convert.wholes(positions, "positions", 0)
        read = _convert.token_ids(ids)
        engine = self._llm._engine
        engine.note_length(self._text_tokens() + len(read))
        found = engine.forced(read, wanted, None, self._sequence, -1, 0, 1, logits, not logits)[0 if logits else 1]
        self._llm._warn()
        return found

    def _text_tokens(self) -> int:
        """With the last token of the answer before, which is not in the cache yet."""
        return self._llm._engine.text_tokens(self._sequence)

    def _prompt(self, prompt: Any) -> Asked:
        return self._llm._prompt(prompt, self._text_tokens())
