"""Head plans: one cache rule for each layer and KV head of a model."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Union

from . import _convert, _core
from .errors import InvalidInput
from .rules import Full, Rule, rule_from_json, rule_to_json

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["HeadPlan", "ModelShape"]

StrPath = Union[str, "os.PathLike[str]"]


@dataclass(frozen=True)
class ModelShape:
    """The part of a model that a plan must fit."""

    architecture: str
    num_layers: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int

    @staticmethod
    def of(model: StrPath) -> ModelShape:
        """That of a model, a Hugging Face folder or a .gguf file; its weights are not read."""
        return ModelShape(**json.loads(_core.model_shape(_convert.path(model, "model"))))


class HeadPlan:
    """One cache rule for each layer and KV head. It never changes; a notebook shows it as a picture.

    L layers of H KV heads; arrays are [L, H]. Plans are equal where their files are: by rules and by all that says where
    they come from (method, parameters, scores, notes, report). `rules` alone say whether two keep the same tokens.
    """

    def __init__(
        self,
        rules: Sequence[Sequence[Rule]],
        shape: ModelShape,
        *,
        scores: Any = None,
        special_tokens: Sequence[int] = (),
        punctuation_tokens: Sequence[int] = (),
    ) -> None:
        """A plan made by hand.

        rules: [L][H] of `headwise.rules`.
        scores: [L, H] finite numbers that the heads were ranked by.
        special_tokens, punctuation_tokens: ids, ascending, that heads keep which select by `FastGen`.
        """
        if not isinstance(shape, ModelShape):
            raise InvalidInput(f"shape: found {type(shape).__name__}, expected a ModelShape")
        document: dict[str, Any] = {"headwise_plan": 2, "model": _shape_to_json(shape), "layers": _table_to_json(rules)}
        if scores is not None:
            document["scores"] = _rows(scores, "scores")
        tokens = {
            "special": _convert.token_ids(special_tokens, "special_tokens"),
            "punctuation": _convert.token_ids(punctuation_tokens, "punctuation_tokens"),
        }
        if any(tokens.values()):
            document["tokens"] = tokens
        self._plan = _core.Plan.parse(json.dumps(document), "plan")
        self._document: dict[str, Any] | None = None

    @classmethod
    def _of(cls, plan: _core.Plan) -> HeadPlan:
        made = cls.__new__(cls)
        made._plan = plan
        made._document = None
        return made

    # ---- files -------------------------------------------------------------------------------------------------------

    @classmethod
    def read(cls, path: StrPath) -> HeadPlan:
        """The plan in a file (docs/head-plan.md)."""
        return cls._of(_core.Plan.read(_convert.path(path, "path")))

    def write(self, path: StrPath) -> None:
        """Replaces the file in one step; where that fails the old one is as it was."""
        self._plan.write(_convert.path(path, "path"))

    @classmethod
    def from_json(cls, text: str) -> HeadPlan:
        """The text of a plan file."""
        return cls._of(_core.Plan.parse(_convert.text(text, "plan"), "plan"))

    def to_json(self) -> str:
        """What `write` writes."""
        return self._plan.to_json()

    def __reduce__(self) -> tuple[Any, ...]:
        return (HeadPlan.from_json, (self.to_json(),))

    # ---- rules and gates ---------------------------------------------------------------------------------------------

    @classmethod
    def dense(cls, model: StrPath | ModelShape) -> HeadPlan:
        """Every head full."""
        shape = model if isinstance(model, ModelShape) else ModelShape.of(model)
        return cls([[Full()] * shape.num_kv_heads] * shape.num_layers, shape)

    @classmethod
    def from_gates(
        cls,
        model: StrPath,
        gates: npt.NDArray[np.floating[Any]] | Sequence[Sequence[float]],
        *,
        sparsity: float | None = None,
        threshold: float | None = None,
        kv_ratio: float | None = None,
        at: int | None = None,
        kv_bytes_at: str | None = None,
        sink: int | None = None,
        recent: int | None = None,
        positions: str | None = None,
        compensate: bool | None = None,
    ) -> HeadPlan:
        """Heads with high gates stay full, the others stream: what `plan import-duo` makes of a file of gates.

        At most one of sparsity, threshold and a budget of KV bytes.

        gates: [L, H] finite numbers.
        sparsity: share of heads that stream. By default 0.5.
        threshold: heads with a gate below it stream.
        kv_ratio: share of the KV bytes of full heads, `at` so many tokens.
        kv_bytes_at: "BYTES:TOKENS", as "5M:8192".
        sink: first tokens that a streaming head keeps. By default 64.
        recent: last tokens that it keeps. By default 256.
        positions: "text", or "cache": distances inside the cache.
        compensate: fold dropped tokens into one mean token.
        """
        rows = _rows(gates, "gates")
        given = {
            "sparsity": sparsity,
            "threshold": threshold,
            "kv_ratio": kv_ratio,
            "at": at,
            "kv_bytes_at": kv_bytes_at,
            "sink": sink,
            "recent": recent,
            "positions": positions,
            "compensate": compensate,
        }
        name = _convert.path(model, "model")
        shape = ModelShape.of(name)
        if [len(row) for row in rows] != [shape.num_kv_heads] * shape.num_layers:
            found = f"{len(rows)} rows of {sorted({len(row) for row in rows})}"
            raise InvalidInput(
                f"gates: found {found}, expected {shape.num_layers} layers of {shape.num_kv_heads} KV heads"
            )
        flat = [gate for row in rows for gate in row]
        return cls._of(_core.plan_from_gates(name, flat, _convert.options(given)))

    def _json(self) -> dict[str, Any]:
        if self._document is None:
            self._document = json.loads(self.to_json())
        return self._document

    @property
    def shape(self) -> ModelShape:
        """Of the model that the plan is for."""
        return ModelShape(**self._json()["model"])

    @property
    def rules(self) -> list[list[Rule]]:
        """[L][H]."""
        return [[rule_from_json(rule) for rule in layer] for layer in self._json()["layers"]]

    @property
    def special_tokens(self) -> list[int]:
        """Ids that heads keep which select by `FastGen`; none where no head does."""
        return list((self._json().get("tokens") or {}).get("special") or [])

    @property
    def punctuation_tokens(self) -> list[int]:
        """Ids that those of them keep whose `punctuation` is true."""
        return list((self._json().get("tokens") or {}).get("punctuation") or [])

    @property
    def gates(self) -> npt.NDArray[np.float64]:
        """[L, H] float64: the scores, or 1 for full heads and 0 for others where the plan has none."""
        import numpy as np

        scores = self._json().get("scores")
        return np.array(scores, dtype=np.float64) if scores else self.full_heads.astype(np.float64)

    @property
    def full_heads(self) -> npt.NDArray[np.bool_]:
        """[L, H] bool: heads that keep every token."""
        import numpy as np

        return np.array([[rule["full"] for rule in layer] for layer in self._json()["layers"]], dtype=np.bool_)

    @property
    def method(self) -> str:
        """The planner's name."""
        return str(self._json().get("method", "manual"))

    @property
    def parameters(self) -> dict[str, Any]:
        """The planner's options."""
        return dict(self._json().get("parameters") or {})

    @property
    def notes(self) -> list[str]:
        """What a reader should know."""
        return list(self._json().get("notes") or [])

    @property
    def report(self) -> dict[str, Any]:
        """What the planner measured on its way."""
        return dict(self._json().get("report") or {})

    def kv_bytes_at(self, tokens: int, model: StrPath | None = None) -> int:
        """Bytes of a cache with so many tokens, in f16 and pages of 32 tokens, as `plan compare` has it.

        model: whose layers may have sliding windows of their own.
        """
        return self._plan.kv_bytes_at(
            _convert.whole(tokens, "tokens"), None if model is None else _convert.path(model, "model")
        )

    # ---- pictures ----------------------------------------------------------------------------------------------------

    def svg(self) -> str:
        """A picture, a cell for each head, that any browser opens: `headwise inspect --svg` writes the same."""
        return self._plan.svg()

    def _repr_svg_(self) -> str:
        return self.svg()

    def map(self) -> str:
        """The plan for a terminal: layers x KV heads, full heads as #, and a legend."""
        return self._plan.map()

    def __str__(self) -> str:
        return self.map()

    def __repr__(self) -> str:
        full = int(self.full_heads.sum())
        shape = self.shape
        return (
            f"HeadPlan({self.method}: {shape.num_layers} layers x {shape.num_kv_heads} KV heads, "
            f"{full} of {shape.num_layers * shape.num_kv_heads} full)"
        )

    def __eq__(self, other: object) -> bool:
        """Rules and provenance: what files say."""
        return isinstance(other, HeadPlan) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.to_json())


def _shape_to_json(shape: ModelShape) -> dict[str, Any]:
    sizes = {name: _convert.whole(size, name) for name, size in asdict(shape).items() if name != "architecture"}
    return {"architecture": _convert.text(shape.architecture, "architecture"), **sizes}


def _table_to_json(rules: Any) -> list[list[Any]]:
    try:
        table = [list(layer) for layer in rules]
    except TypeError:
        raise InvalidInput("rules: found no table, expected a list of rules for each layer") from None
    for layer, row in enumerate(table):
        for head, rule in enumerate(row):
            try:
                row[head] = rule_to_json(rule)
            except InvalidInput as error:
                raise InvalidInput(f"rules: layer {layer}, KV head {head}: {error}") from None
    return table


def _row(value: Any) -> Any:
    """Letters and keys are no numbers, whatever they look like."""
    if isinstance(value, (str, bytes, Mapping)):
        raise TypeError
    return value


def _gate(value: Any, name: str) -> float:
    return float(value) if isinstance(value, bool) else _convert.real(value, name)


def _rows(values: Any, name: str) -> list[list[float]]:
    """[rows][columns] of finite numbers."""
    if hasattr(values, "dtype"):
        given = _convert.array(values, name)
        if given.ndim != 2 or given.dtype.kind not in "fiub":
            raise InvalidInput(
                f"{name}: found an array of {given.dtype} with {given.ndim} dimensions, expected numbers in two"
            )
        values = given.tolist()
    try:
        rows = [[_gate(value, name) for value in _row(row)] for row in values]
    except TypeError:
        raise InvalidInput(f"{name}: found {type(values).__name__}, expected rows of numbers") from None
    for layer, row in enumerate(rows):
        for head, value in enumerate(row):
            if value != value or value in (float("inf"), float("-inf")):
                raise InvalidInput(
                    f"{name}: that of layer {layer}, KV head {head} is {value}, expected a finite number"
                )
    return rows


def as_plan(value: HeadPlan | StrPath | None) -> tuple[HeadPlan | None, str]:
    """A plan, and what messages call it. None and "full": every head full."""
    if value is None or (isinstance(value, str) and value == "full"):
        return None, "plan"
    if isinstance(value, HeadPlan):
        return value, "plan"
    name = _convert.path(value, "plan")
    return HeadPlan.read(name), name


def compare(plans: Mapping[str, HeadPlan | StrPath], at: Sequence[int] = (4096, 32768)) -> dict[str, Any]:
    """What plans agree on, and their KV bytes `at` lengths in tokens: what `plan compare --json` prints."""
    if not isinstance(plans, Mapping):
        raise InvalidInput(f"plans: found {type(plans).__name__}, expected plans by name")
    named = []
    for name, given in plans.items():
        plan, _ = as_plan(given)
        if plan is None:
            raise InvalidInput(f"plans: {name} is {given!r}, expected a plan or its file")
        named.append((_convert.text(name, "plans"), plan._plan))
    compared: dict[str, Any] = json.loads(_core.compare_plans(named, _convert.wholes(at, "at")))
    return compared
