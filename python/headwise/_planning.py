"""What the functions of headwise.plan share."""

from __future__ import annotations

from typing import Any

from . import _convert, _core
from .errors import InvalidInput
from .head_plan import HeadPlan, StrPath, as_plan
from .sampling import Progress


def make(
    method: str,
    model: StrPath,
    given: dict[str, Any],
    *,
    out: StrPath | None = None,
    num_threads: int = 0,
    resume: bool = False,
    progress: Progress | None = None,
) -> HeadPlan:
    _convert.function(progress, "progress")
    plan, warnings = _core.make_plan(
        method,
        _convert.path(model, "model"),
        _convert.options(given),
        "" if out is None else _convert.path(out, "out"),
        _convert.whole(num_threads, "num_threads", -(2**31), 2**31 - 1),
        bool(resume),
        progress,
    )
    _convert.warn(warnings)
    return HeadPlan._of(plan)


def refit(
    model: StrPath,
    plan: HeadPlan | StrPath,
    *,
    kv_ratio: float | None = None,
    at: int | None = None,
    kv_bytes_at: str | None = None,
    out: StrPath | None = None,
) -> HeadPlan:
    """The method of an earlier plan at another budget of KV bytes; runs no model.

    kv_ratio: share of the bytes of full heads, `at` so many tokens.
    kv_bytes_at: in its place "BYTES:TOKENS", as "5M:8192".
    out: a plan file to write.
    """
    earlier, origin = as_plan(plan)
    if earlier is None:
        raise InvalidInput(f"plan: found {plan!r}, expected a plan or its file")
    budget = _convert.options({"kv_ratio": kv_ratio, "at": at, "kv_bytes_at": kv_bytes_at})
    made = HeadPlan._of(_core.refit(_convert.path(model, "model"), earlier._plan, budget, origin))
    if out is not None:
        made.write(out)
    return made
