"""What one KV head keeps: the rules of a head plan, as dataclasses. docs/head-plan.md defines them.

t is the position of the query, j that of a key; all lengths are in tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, Union

from . import _convert
from .errors import InvalidInput

__all__ = [
    "Full",
    "Stream",
    "ElasticMoa",
    "ElasticRazor",
    "Rule",
    "H2o",
    "FastGen",
    "Tova",
    "SnapKv",
    "AdaKv",
    "Knorm",
    "KeyDiff",
    "Expected",
    "Quest",
    "InfLlm",
    "Selector",
]

Positions = Literal["text", "cache"]
From = Literal["first_token", "end_of_prompt"]


@dataclass(frozen=True)
class H2o:
    """Tokens are kept by the attention that they got from all queries so far; a share of them are the newest."""

    recent_share: float = 0.5


@dataclass(frozen=True)
class FastGen:
    """Special tokens of the plan's lists are kept, and then as H2o."""

    recent_share: float = 0.5
    punctuation: bool = False
    """Tokens of punctuation too."""


@dataclass(frozen=True)
class Tova:
    """Tokens are kept by the attention that the last query of a step gave them."""


@dataclass(frozen=True)
class SnapKv:
    """Tokens of a prompt are kept by the attention of its last queries, once; what comes behind it stays."""

    window: int = 32
    kernel: int = 7
    pooling: Literal["max", "mean"] = "max"


@dataclass(frozen=True)
class AdaKv:
    """As SnapKv, and the heads of a layer that do so share their budgets by these scores, in whole pages."""

    window: int = 32
    kernel: int = 7
    pooling: Literal["max", "mean"] = "max"
    floor: float = 0.2
    """Share of a head's budget that does not depend on the other heads."""


@dataclass(frozen=True)
class Knorm:
    """Tokens are kept by the length of their keys: the shortest."""


@dataclass(frozen=True)
class KeyDiff:
    """Tokens are kept by how far their keys point from where keys point on the whole."""


@dataclass(frozen=True)
class Expected:
    """Tokens of a prompt are kept by what queries like its own are expected to give them; otherwise as SnapKv."""

    window: int = 32
    """The prompt's last tokens, which are kept in any case."""
    epsilon: float = 0.0
    """Added to every token's share of the attention."""


@dataclass(frozen=True)
class Quest:
    """Every token is kept; queries behind the prompt read the blocks whose keys may score highest."""

    block: int = 16
    """Tokens that are read or not together, a multiple of 16."""


@dataclass(frozen=True)
class InfLlm:
    """As Quest, but a share are the newest blocks, the others those whose representatives are most like the query."""

    recent_share: float = 0.5
    block: int = 32
    """Tokens that are read or not together, a multiple of 16 from 32 on."""
    representatives: int = 4
    """Tokens of a block that stand for it."""


Selector = Union[H2o, FastGen, Tova, SnapKv, AdaKv, Knorm, KeyDiff, Expected, Quest, InfLlm]


@dataclass(frozen=True)
class Full:
    """The query at t reads every key j <= t."""


@dataclass(frozen=True)
class Stream:
    """Sinks and a window: the query reads j < sink and t - j < recent; the token itself counts."""

    sink: int
    recent: int
    positions: Positions = "text"
    """"text": a key keeps its place in the text; "cache": distances are those inside the cache."""
    start: From = "first_token"
    """"end_of_prompt": the prompt is read densely, then the cache is cut."""
    compensate: bool = False
    """Fold dropped tokens into one mean key and value."""
    select: Selector | None = None
    """Keep as many tokens, the first `sink` among them, but choose the others by score; of Quest and InfLlm read as many."""


@dataclass(frozen=True)
class ElasticMoa:
    """MoA's rule: the span sink + recent is floor(alpha + beta * limit), the limit being prompt plus new tokens."""

    sink: int
    alpha: float
    beta: float
    positions: Positions = "text"
    start: From = "first_token"
    compensate: bool = False
    select: Selector | None = None


@dataclass(frozen=True)
class ElasticRazor:
    """RazorAttention's rule: recent = max(min_recent, prompt / divisor), fixed at the end of the prompt."""

    sink: int
    min_recent: int
    divisor: float
    positions: Positions = "text"
    start: From = "end_of_prompt"
    compensate: bool = True
    select: Selector | None = None


Rule = Union[Full, Stream, ElasticMoa, ElasticRazor]


_SELECTORS: dict[str, Any] = {
    "h2o": H2o,
    "fastgen": FastGen,
    "tova": Tova,
    "snapkv": SnapKv,
    "adakv": AdaKv,
    "knorm": Knorm,
    "keydiff": KeyDiff,
    "expected": Expected,
    "quest": Quest,
    "infllm": InfLlm,
}


def _flag(value: Any, name: str) -> bool:
    return bool(value)


# Of selectors, as JSON has them: a number may be numpy's.
_FIELDS: dict[str, Callable[[Any, str], Any]] = {
    "recent_share": _convert.finite,
    "punctuation": _flag,
    "window": _convert.whole,
    "kernel": _convert.whole,
    "pooling": _convert.text,
    "floor": _convert.finite,
    "epsilon": _convert.finite,
    "block": _convert.whole,
    "representatives": _convert.whole,
}


def _selector_to_json(selector: Selector) -> dict[str, Any]:
    for by, kind in _SELECTORS.items():
        if isinstance(selector, kind):
            fields = asdict(selector).items()
            return {"by": by, **{name: _FIELDS[name](value, f"select.{name}") for name, value in fields}}
    raise InvalidInput(
        f"select: found {selector!r}, expected H2o, FastGen, Tova, SnapKv, AdaKv, Knorm, KeyDiff, Expected, "
        "Quest or InfLlm"
    )


def _selector_from_json(value: dict[str, Any]) -> Selector:
    selector: Selector = _SELECTORS[value["by"]](**{key: value[key] for key in value if key != "by"})
    return selector


def rule_to_json(rule: Rule) -> dict[str, Any]:
    """The rule as a plan file has it. Errors do not say which head's."""
    if isinstance(rule, Full):
        return {"full": True}
    recent: Any
    if isinstance(rule, Stream):
        recent = _convert.whole(rule.recent, "recent")
    elif isinstance(rule, ElasticMoa):
        recent = {"alpha": _convert.finite(rule.alpha, "alpha"), "beta": _convert.finite(rule.beta, "beta")}
    elif isinstance(rule, ElasticRazor):
        recent = {
            "min": _convert.whole(rule.min_recent, "min_recent"),
            "divisor": _convert.finite(rule.divisor, "divisor"),
        }
    else:
        raise InvalidInput(f"found {rule!r}, expected Full, Stream, ElasticMoa or ElasticRazor")
    value = {
        "full": False,
        "sink": _convert.whole(rule.sink, "sink"),
        "recent": recent,
        "positions": _convert.text(rule.positions, "positions"),
        "from": _convert.text(rule.start, "start"),
        "compensate": bool(rule.compensate),
    }
    if rule.select is not None:
        value["select"] = _selector_to_json(rule.select)
    return value


def rule_from_json(value: dict[str, Any]) -> Rule:
    """The same back, of a plan that the library has read: nothing is checked again."""
    if value["full"]:
        return Full()
    recent = value["recent"]
    common = {key: value[key] for key in ("positions", "compensate")} | {"start": value["from"]}
    if "select" in value:
        common["select"] = _selector_from_json(value["select"])
    if not isinstance(recent, dict):
        return Stream(value["sink"], recent, **common)
    if "alpha" in recent:
        return ElasticMoa(value["sink"], recent["alpha"], recent["beta"], **common)
    return ElasticRazor(value["sink"], recent["min"], recent["divisor"], **common)
