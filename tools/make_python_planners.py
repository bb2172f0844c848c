#!/usr/bin/env python3
"""Writes python/headwise/plan.py: a function for each row of the planner registry, with its options and their help.

Wants the package installed in this interpreter. Called as make_python_planners.py [--check]; with --check nothing is
written, and the status is 1 where the file is not what it would be.
"""
import pathlib
import re
import sys
import textwrap

from headwise import _core

FILE = pathlib.Path(__file__).resolve().parents[1] / "python" / "headwise" / "plan.py"

WHOLE = {"sink", "recent", "at", "seed", "steps", "batch", "train-sink", "train-recent", "min-tokens", "max-tokens",
         "num-lengths", "passkeys", "passkey-words", "samples", "validation-length", "validation-samples",
         "answer-tokens", "budget", "integration-points", "intervals", "kernel", "max-rules-per-layer",
         "retrain-steps", "min-recent", "context", "window", "block", "dense-layers", "representatives"}
REAL = {"sparsity", "steepness", "floor", "threshold", "kv-ratio", "alpha", "beta", "learning-rate", "lambda", "density", "omega",
        "induction-share", "echo-share", "recent-share", "frequent-share", "local-share", "recovery", "divisor", "epsilon"}
FLAGS = {"compensate"}
LISTS = {"lengths"}
FILES = {"base", "text", "prompts", "rules"}
BYTES = {"memory-bytes"}
KEYWORDS = {"from", "lambda"}
# Whose "from" says when rules begin to hold; that of others is a file.
START_METHODS = {"streaming", "uniform", "random", "razor", "profile", "moa", "h2o", "tova", "knorm", "keydiff"}

HEAD = '''"""Planners: each makes a head plan for a model, as `headwise plan METHOD` does. docs/planners.md compares them.

An option that is None is not given, and has the default that is named. out: a plan file to write; None: none is
written. num_threads: 0: one per core. progress: a function of a label, how much is done and of how much, called at most
ten times a second. Ctrl-C ends methods that run a model (`razor`, which reads one text, when it is done); those with
`resume` leave what they have in `out` + ".checkpoint" then, from which they, or the command, go on.

Written by tools/make_python_planners.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._planning import make as _make, refit
from .head_plan import HeadPlan, StrPath, compare
from .sampling import Progress

__all__ = [
%s]
'''


def python_name(option):
    name = option.replace("-", "_")
    return name + "_" if option in KEYWORDS else name


def type_of(method, option):
    if option == "from":
        return "str" if method in START_METHODS else "StrPath"
    for names, kind in ((WHOLE, "int"), (REAL, "float"), (FLAGS, "bool"), (LISTS, "Sequence[int]"), (FILES, "StrPath"),
                        (BYTES, "int | str")):
        if option in names:
            return kind
    return "str"


def in_python(text):
    """Help that names options of the command, in the names of arguments."""
    return re.sub(r"--([a-z][a-z-]*)", lambda match: python_name(match[1]), text)


def function(row):
    name = row["name"]
    required = set(row["required"])
    options = sorted(row["options"], key=lambda option: option[0] not in required)
    lines = [f"def {python_name(name)}(", "    model: StrPath,", "    *,"]
    for option, _, _ in options:
        kind = type_of(name, option)
        lines.append(f"    {python_name(option)}: {kind}{'' if option in required else ' | None = None'},")
    lines.append("    out: StrPath | None = None,")
    passed = ["out=out"]
    if row["runs_model"]:
        lines += ["    num_threads: int = 0,", "    progress: Progress | None = None,"]
        passed += ["num_threads=num_threads", "progress=progress"]
    if row["resumes"]:
        lines.append("    resume: bool = False,")
        passed.append("resume=resume")
    lines.append(") -> HeadPlan:")
    described = in_python(row["description"][0].upper() + row["description"][1:])
    lines += textwrap.wrap(f'"""{described}.', 116, initial_indent="    ", subsequent_indent="    ")
    lines.append("")
    for option, text, default in options:
        shown = f" By default {default}." if default else ""
        item = in_python(f"{python_name(option)}: {text}.{shown}")
        lines += textwrap.wrap(item, 116, initial_indent="    ", subsequent_indent="        ")
    lines.append('    """')
    lines.append("    given: dict[str, Any] = {")
    lines += [f'        "{option}": {python_name(option)},' for option, _, _ in options]
    lines.append("    }")
    lines.append(f'    return _make("{name}", model, given, {", ".join(passed)})')
    return "\n".join(lines)


def text():
    rows = _core.planner_methods()
    names = [python_name(row["name"]) for row in rows] + ["refit", "compare"]
    head = HEAD % "".join(f'    "{name}",\n' for name in names)
    return head + "".join("\n\n" + function(row) + "\n" for row in rows)


def main():
    wanted = text()
    if "--check" not in sys.argv[1:]:
        FILE.write_text(wanted)
    elif FILE.read_text() != wanted:
        print(f"{FILE.name}: is not what the planner registry says, expected tools/{pathlib.Path(__file__).name} to run",
              file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
