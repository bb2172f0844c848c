"""EleutherAI's harness on headwise: importing this registers the model "headwise" with it.

    headwise-lm-eval run --model headwise --model_args pretrained=MODEL,plan=PLAN --tasks TASK

is the harness' own command, `lm_eval`, with this model in it; a harness that looks for models of other packages by entry point
(`lm_eval.models`, in releases after 0.4.13) needs no other command than its own. Arguments are those of `HeadwiseLM`. Texts
become tokens as they do for the harness' `hf` models, so that the two can be compared.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import lm_eval.models  # the harness' own, which it looks for only as long as it knows none
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows
from tqdm import tqdm

from .errors import InvalidInput, OutOfMemory
from .llm import LLM
from .sampling import SamplingParams

__all__ = ["HeadwiseLM", "main"]

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")
# A request of the harness, the ids that it is given, and those that are scored.
Scored = tuple[Any, list[int], list[int]]

# Of generation_kwargs, in the names of SamplingParams.
SAMPLING = {
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "seed": "seed",
}
MOST_TOKENS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")


@register_model("headwise")
class HeadwiseLM(TemplateLM):  # type: ignore[misc]
    """A model of the harness: loglikelihood, loglikelihood_rolling, generate_until, and chat templates."""

    def __init__(
        self,
        pretrained: str,
        plan: str | None = None,
        batch_size: int | str = 8,
        max_batch_size: int | None = None,
        device: str | None = None,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        add_bos_token: bool | None = None,
        prefix_token_id: int | None = None,
        **engine: Any,
    ) -> None:
        """Loads a model.

        pretrained: a Hugging Face folder or a .gguf file.
        plan: a plan file; every head full without one. Continuations are read under it as answers are: the context is
            the prompt.
        batch_size: requests at once. "auto": 8.
        max_batch_size: the most that "auto" may be.
        device: without meaning here: the harness says "cuda:0" whether it was asked for or not. `backend` chooses.
        max_length: tokens of context at most. None: the trained length.
        max_gen_toks: longest answer of a task that does not say.
        add_bos_token: begin texts with the beginning-of-text token. None: where the tokenizer's own files say so.
        prefix_token_id: stands before texts without a context. None: the beginning-of-text token, or the end's.
        engine: keyword arguments of `headwise.LLM`: kv_dtype, compute, num_threads, ...
        """
        super().__init__()
        self.batch_size = min(8, int(max_batch_size or 8)) if batch_size == "auto" else int(batch_size)
        self.llm = LLM(pretrained, plan=plan, max_num_seqs=self.batch_size, **engine)
        self._pretrained = str(pretrained)
        self._max_length = int(max_length or self.llm.info["trained_length"])
        self._max_gen_toks = int(max_gen_toks)
        self._add_bos = add_bos_token
        self._prefix = prefix_token_id

    # ---- tokens ----------------------------------------------------------------------------------------------------

    @property
    def max_length(self) -> int:
        return self._max_length

    @property
    def max_gen_toks(self) -> int:
        return self._max_gen_toks

    @property
    def tokenizer_name(self) -> str:
        return self._pretrained.replace("/", "__")

    @property
    def eot_token_id(self) -> int:
        return int(self.llm.info["eos_ids"][0])

    @property
    def prefix_token_id(self) -> int:
        if self._prefix is not None:
            return self._prefix
        info = self.llm.info
        start = info["start_ids"] or ([] if info["bos_id"] is None else [info["bos_id"]])
        return int(start[0]) if start else self.eot_token_id

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **unused: Any) -> list[int]:
        if not string:
            return []
        adds = self._add_bos if add_special_tokens is None else add_special_tokens
        if adds is None:
            adds = self.llm.info["adds_bos"]
        return self.llm.encode(string, special=True) if adds else self.llm.tokenize(string, special=True)

    def tok_decode(self, ids: Sequence[int]) -> str:
        return self.llm.decode(ids)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        ids = self.llm.encode_chat(chat_history, add_generation_prompt=add_generation_prompt)
        return self.llm.decode(ids, skip_special=False)

    # ---- what tasks ask --------------------------------------------------------------------------------------------

    def _loglikelihood_tokens(
        self, requests: Iterable[Scored], disable_tqdm: bool = False, **unused: Any
    ) -> list[tuple[float, bool]]:
        asked = list(requests)
        by_context: dict[tuple[int, ...], list[int]] = {}
        for place, (_, context, _) in enumerate(asked):
            by_context.setdefault(tuple(context), []).append(place)
        groups = list(by_context.values())

        def score(places: list[int]) -> list[tuple[float, bool]]:
            return self._score_all(asked[places[0]][1], [asked[place][2] for place in places])

        answers = [(0.0, False)] * len(asked)
        scored = self._all(groups, score, disable_tqdm, "Running loglikelihood requests, by context")
        for places, found in zip(groups, scored):
            for place, answer in zip(places, found):
                answers[place] = answer
                if asked[place][0] is not None:
                    self.cache_hook.add_partial("loglikelihood", asked[place][0], answer)
        return answers

    def _score_all(self, context: list[int], continuations: list[list[int]]) -> list[tuple[float, bool]]:
        """Of the options of one question."""
        longest = max(map(len, continuations))
        if len(continuations) > 1 and len(context) > 1 and len(context) + longest <= self._max_length + 1:
            try:
                return self._score_on_forks(context, continuations, len(context) + longest)
            except OutOfMemory:  # a fork reserves as if it shared nothing
                pass
        return [self._score(context, continuation) for continuation in continuations]

    def _score_on_forks(
        self, context: list[int], continuations: list[list[int]], most: int
    ) -> list[tuple[float, bool]]:
        """The context is read once."""
        text = self.llm.sequence(most, prompt_tokens=len(context))
        text.read(context[:-1])
        scored = []
        for continuation in continuations:
            ids = [context[-1], *continuation]
            scored.append(_summed(*self.llm._engine.score(ids, 1, None, text.fork()._sequence, -1, 0)))
        return scored

    def _score(self, context: list[int], continuation: list[int]) -> tuple[float, bool]:
        ids = (context + continuation)[-(self._max_length + 1) :]
        first = len(ids) - len(continuation)
        if first < 1:
            raise InvalidInput(
                f"a continuation of {len(continuation)} tokens does not fit in the {self._max_length} of the model"
            )
        # The continuation in steps of a prompt's: one by one is what decoding does, and slow.
        return _summed(*self.llm._engine.score(ids, first, self.llm._plan_for(None), None, first, 0))

    def loglikelihood_rolling(self, requests: Iterable[Any], disable_tqdm: bool = False) -> list[float]:
        windows: list[Scored] = []
        owners: list[int] = []
        texts = [request.args[0] for request in requests]
        for owner, text in enumerate(texts):
            pairs = get_rolling_token_windows(
                token_list=self.tok_encode(text),
                prefix_token=self.prefix_token_id,
                max_seq_len=self._max_length,
                context_len=1,
            )
            for given, predicted in pairs:
                # The two overlap but for one token at each end.
                windows.append((None, given[: len(given) - len(predicted) + 1], predicted))
                owners.append(owner)
        sums = [0.0] * len(texts)
        for owner, (logprob, _) in zip(owners, self._loglikelihood_tokens(windows, disable_tqdm)):
            sums[owner] += logprob
        for text, total in zip(texts, sums):
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), total)
        return sums

    def generate_until(self, requests: Iterable[Any], disable_tqdm: bool = False) -> list[str]:
        def answer(request: Any) -> str:
            context, given = request.args
            params = self._params(given)
            room = self._max_length - int(params.max_tokens or 0)
            if room < 1:
                raise InvalidInput(f"max_gen_toks: found {params.max_tokens}, expected less than {self._max_length}")
            ids = self.tok_encode(context)[-room:]
            return self.llm.generate([ids], params)[0].text

        asked = list(requests)
        answers = self._all(asked, answer, disable_tqdm, "Running generate_until requests")
        for request, text in zip(asked, answers):
            self.cache_hook.add_partial("generate_until", request.args, text)
        return answers

    def _params(self, given: dict[str, Any]) -> SamplingParams:
        """generation_kwargs as parameters; what they have no name for is an error."""
        left = dict(given)
        until = left.pop("until", None) or []
        limits = [left.pop(name) for name in MOST_TOKENS if name in left]
        temperature = float(left.pop("temperature", 0) or 0)
        if left.pop("do_sample", temperature > 0) is False:
            temperature = 0.0
        sampling = {SAMPLING[name]: left.pop(name) for name in list(left) if name in SAMPLING}
        if left:
            raise InvalidInput(f"generation_kwargs: found {sorted(left)}, expected until, {', '.join(MOST_TOKENS)}, "
                               f"do_sample, temperature, {', '.join(SAMPLING)}")  # fmt: skip
        stops = [until] if isinstance(until, str) else list(until)
        most = int(limits[0]) if limits else self._max_gen_toks
        return SamplingParams(
            max_tokens=most, temperature=temperature, stop=[stop for stop in stops if stop], **sampling
        )

    def _all(
        self, asked: list[Asked], answer: Callable[[Asked], Answer], disable_tqdm: bool, label: str
    ) -> list[Answer]:
        """`batch_size` at once: each waits in a thread of its own, the engine puts them into common steps."""
        with ThreadPoolExecutor(self.batch_size) as pool:
            return list(tqdm(pool.map(answer, asked), total=len(asked), disable=disable_tqdm, desc=label))


def _summed(logprobs: Any, greedy: Any) -> tuple[float, bool]:
    return float(logprobs.sum(dtype="float64")), bool(greedy.all())


def main() -> None:
    """The harness' command, which knows this model by now."""
    from lm_eval.__main__ import cli_evaluate

    sys.exit(cli_evaluate())


if __name__ == "__main__":
    main()
