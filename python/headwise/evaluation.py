"""Measures what plans cost a model, as `headwise eval` does: docs/evaluation.md has the tasks."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Union

from . import _convert, _core
from ._arguments import engine_options
from .errors import InvalidInput
from .head_plan import HeadPlan, StrPath, as_plan

__all__ = ["evaluate", "Evaluation", "report", "Report", "tasks"]

Plans = Union[Sequence[Union[StrPath, HeadPlan]], Mapping[str, Union[HeadPlan, StrPath]]]
Row = dict[str, Any]


class Evaluation(list[Row]):
    """A row for each plan, length and metric: `pandas.DataFrame(evaluation)`.

    Keys: plan, length (tokens; None: over all), metric, count, mean, low and high (the interval), kv_bytes,
    kv_peak_bytes and kv_read_bytes, of kv_bytes what a query reads (the largest of its cases).
    """

    comparisons: list[Row]
    """Every plan against the first, on the same cases: plan, reference, length, metric and the paired difference."""
    results: list[Row]
    """A row for each case and plan: scores, answer, tokens, seconds, bytes."""


def evaluate(
    task: str,
    model: StrPath,
    *,
    plans: Plans = ("full",),
    kv_ratios: Sequence[float] = (),
    out: StrPath | None = None,
    resume: bool = False,
    bos: bool = True,
    progress: Callable[[str, int, int], None] | None = None,
    engine: Mapping[str, Any] | None = None,
    **options: Any,
) -> Evaluation:
    """Runs one task under every plan, and gives what `headwise eval TASK` writes.

    Ctrl-C ends it; what is finished is in `out`.

    plans: files and "full", or plans by name.
    kv_ratios: re-plan to these shares of the KV bytes of full heads, at every length.
    out: a folder for results, of which `report` is made.
    resume: go on with the run in `out`.
    bos: begin texts as the model's do.
    progress: a function of a label, how much is done and of how much.
    engine: keyword arguments of `LLM`: backend, compute, kv_dtype, ...
    options: those of the task, as of the command: num_cases=20 is --num-cases 20. `tasks` lists them.
    """
    pairs: list[tuple[str, _core.Plan | None]] = []
    if isinstance(plans, (str, HeadPlan)):
        raise InvalidInput(f"plans: found {type(plans).__name__}, expected a list of files or a dict of plans")
    if isinstance(plans, Mapping):
        for name, plan in plans.items():
            made, _ = as_plan(plan)
            pairs.append((_convert.text(name, "plans"), None if made is None else made._plan))
            if made is None and name != "full":
                raise InvalidInput(f"plans: {name} is {plan!r}, expected a plan or its file")
    elif not isinstance(plans, Iterable):
        raise InvalidInput(f"plans: found {type(plans).__name__}, expected a list of files or a dict of plans")
    else:
        for place, given in enumerate(plans):
            if isinstance(given, HeadPlan):
                raise InvalidInput(f"plans: item {place} is a plan without a name, expected a file or a dict of plans")
            pairs.append((_convert.path(given, "plans"), None))
    if not pairs:
        raise InvalidInput("plans: found none, expected at least one")
    _convert.function(progress, "progress")
    if not (engine is None or isinstance(engine, Mapping)):
        raise InvalidInput(f"engine: found {type(engine).__name__}, expected keyword arguments of LLM as a dict")
    known = set(inspect.signature(engine_options).parameters) - {"model"}
    if unknown := sorted(str(name) for name in engine or {} if name not in known):
        raise InvalidInput(f"engine: found {', '.join(unknown)}, expected some of {', '.join(sorted(known))}")
    summary, results, warnings = _core.evaluate(
        _convert.text(task, "task"),
        engine_options(model, **dict(engine or {})),
        _convert.options(options),
        pairs,
        _convert.reals(kv_ratios, "kv_ratios"),
        "" if out is None else _convert.path(out, "out"),
        bool(resume),
        bool(bos),
        progress,
    )
    _convert.warn(warnings)
    parsed = json.loads(summary)
    evaluation = Evaluation(_cell(cell) for cell in parsed["cells"])
    evaluation.comparisons = parsed["comparisons"]
    evaluation.results = json.loads(results)
    return evaluation


def _cell(cell: Row) -> Row:
    """An interval as two columns."""
    row = dict(cell)
    interval = row.pop("interval", None)
    if interval is not None:
        row["low"], row["high"] = interval["low"], interval["high"]
    return row


def tasks() -> dict[str, dict[str, str]]:
    """The options of each task, by name, with their help."""
    return {row["name"]: {name.replace("-", "_"): text for name, text in row["options"]} for row in _core.tasks()}


class Report:
    """Run folders as a page for people, and as tables. A notebook shows the page."""

    def __init__(self, html: str, csv: str, markdown: str) -> None:
        self.html = html
        """One file that opens anywhere."""
        self.csv = csv
        """A row per plan, length and metric."""
        self.markdown = markdown
        """A summary and a table per run."""

    def write(self, path: StrPath) -> None:
        """Writes the page. Replaces the file in one step; where that fails the old one is as it was."""
        _core.write_report(_convert.text(self.html, "html"), _convert.path(path, "path"))

    def _repr_html_(self) -> str:
        return self.html


def report(*folders: StrPath) -> Report:
    """Of run folders (`out` of `evaluate`), or of folders that hold some: what `headwise eval report` writes."""
    if not folders:
        raise InvalidInput("report: found no folder, expected at least one")
    return Report(*_core.report([_convert.path(folder, "folders") for folder in folders]))
