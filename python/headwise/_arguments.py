"""What the methods of an engine are given, in one form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Union

from . import _convert, _core
from .errors import HeadwiseError, InvalidInput
from .head_plan import StrPath
from .sampling import SamplingParams

Prompt = Union[str, Sequence[int], Mapping[str, Any]]
"""A text, token ids, {"prompt": text} or {"prompt_token_ids": ids}."""
Messages = Sequence[Mapping[str, Any]]


def engine_options(
    model: StrPath,
    *,
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
) -> _core.EngineOptions:
    options = _core.EngineOptions()
    options.model = _convert.path(model, "model")
    options.backend = _convert.text(backend, "backend")
    options.isa = _convert.text(isa, "isa")
    options.compute = _convert.text(compute, "compute")
    options.kv_dtype = _convert.text(kv_dtype, "kv_dtype")
    options.num_threads = _convert.whole(num_threads, "num_threads", -(2**31), 2**31 - 1)
    options.kv_limit_bytes = _convert.whole(kv_limit_bytes, "kv_limit_bytes")
    options.host_kv_bytes = _convert.whole(host_kv_bytes, "host_kv_bytes")
    options.chunk_tokens = _convert.whole(chunk_tokens, "chunk_tokens")
    options.max_gap_ms = _convert.whole(max_gap_ms, "max_gap_ms")
    options.page_tokens = _convert.whole(page_tokens, "page_tokens")
    options.use_mmap = bool(use_mmap)
    options.expert_bytes = _convert.whole(expert_bytes, "expert_bytes")
    options.batch_invariant = bool(batch_invariant)
    if _convert.text(kv_admission, "kv_admission") not in ("worst_case", "likely"):
        raise InvalidInput(f"kv_admission: found {kv_admission!r}, expected worst_case or likely")
    options.admits_likely = kv_admission == "likely"
    return options


def as_list(prompts: Any) -> list[Any]:
    """A single prompt is a list of one: a text, a mapping, or ids."""
    if isinstance(prompts, (str, bytes, Mapping)) or hasattr(prompts, "dtype"):
        return [prompts]
    if not isinstance(prompts, Iterable):
        raise InvalidInput(f"prompts: found {type(prompts).__name__}, expected texts or lists of token ids")
    listed = list(prompts)
    is_ids = bool(listed) and not isinstance(listed[0], (str, Mapping)) and not isinstance(listed[0], Iterable)
    return [listed] if is_ids else listed


def messages_of(messages: Any) -> list[Any]:
    """One conversation; what its messages have the library checks."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Iterable):
        found = type(messages).__name__
        raise InvalidInput(f'messages: found {found}, expected a list of {{"role": ..., "content": ...}}')
    return list(messages)


def conversations_of(messages: Any) -> list[Any]:
    listed = messages_of(messages)
    return [listed] if listed and isinstance(listed[0], Mapping) else listed


@contextmanager
def placed(place: int, num_prompts: int) -> Iterator[None]:
    """Of several prompts an error says which it is about."""
    try:
        yield
    except HeadwiseError as error:
        if num_prompts == 1:
            raise
        raise type(error)(f"prompt {place}: {error}") from None


def num_answers(params: SamplingParams) -> int:
    return _convert.whole(params.n, "n", 1, 4096)


def one_params(given: Any) -> SamplingParams:
    if given is None:
        return SamplingParams()
    if not isinstance(given, SamplingParams):
        raise InvalidInput(f"sampling_params: found {type(given).__name__}, expected SamplingParams")
    return given


def params_for(given: Any, num_prompts: int) -> list[SamplingParams]:
    if given is None or isinstance(given, SamplingParams):
        return [one_params(given)] * num_prompts
    if isinstance(given, (str, Mapping)) or not isinstance(given, Iterable):
        raise InvalidInput(f"sampling_params: found {type(given).__name__}, expected SamplingParams or a list of them")
    params = [one_params(each) for each in given]
    if len(params) != num_prompts:
        raise InvalidInput(f"sampling_params: found {len(params)}, expected one for all or one for each of {num_prompts}")
    return params
