"""headwise beside other implementations, on one text. What they need is not installed with headwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _convert
from .errors import InvalidInput, Unsupported
from .head_plan import HeadPlan, StrPath
from .llm import LLM

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["transformers", "LogitDifference"]


@dataclass(frozen=True)
class LogitDifference:
    """What two implementations make of the same n ids; differences are of log-probabilities, in nats."""

    num_tokens: int
    largest: float
    """Of all tokens of the vocabulary, at all positions."""
    mean: float
    """Of absolute values."""
    divergence: float
    """Kullback-Leibler, of headwise from the other, mean over positions."""
    same_first: float
    """Share of positions at which both expect the same token most."""
    by_position: npt.NDArray[np.float64]
    """[n] float64: the largest at each position."""

    def __str__(self) -> str:
        return (
            f"{self.num_tokens} tokens: log-probabilities at most {self.largest:.2g} apart, {self.mean:.2g} on average; "
            f"divergence {self.divergence:.2g} nats; the same most likely token at {100 * self.same_first:.1f} %"
        )


def transformers(
    model: StrPath,
    text: str,
    *,
    plan: HeadPlan | StrPath | None = None,
    dtype: str = "float32",
    **engine: Any,
) -> LogitDifference:
    """Reads a text with headwise and with Hugging Face's transformers (`pip install headwise[compare]`).

    model: a Hugging Face folder.
    plan: for headwise alone: what it costs, by the model's own measure. None: every head full.
    dtype: of transformers' weights and products.
    engine: keyword arguments of `LLM`. By default compute="f32" and kv_dtype="f32".
    """
    try:
        import torch
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise Unsupported(f"compare.transformers: {error}; expected the packages transformers and torch") from None
    number_format = getattr(torch, str(dtype), None)
    if not isinstance(number_format, torch.dtype):
        raise InvalidInput(f"dtype: {dtype!r} is no number format of torch, expected float32, float64, bfloat16 or float16")
    with LLM(model, plan=plan, **{"compute": "f32", "kv_dtype": "f32", **engine}) as llm:
        ids = llm.encode(text)
        ours = llm.logits(ids)
    other = AutoModelForCausalLM.from_pretrained(_convert.path(model, "model"), dtype=number_format)
    with torch.inference_mode():
        theirs = other.eval()(torch.tensor([ids])).logits[0].float().numpy()
    return difference(ours, theirs)


def difference(ours: npt.NDArray[Any], theirs: npt.NDArray[Any]) -> LogitDifference:
    """Of logits [n, V] of two implementations."""
    import numpy as np

    a, b = _logprobs(ours), _logprobs(theirs[:, : ours.shape[1]])
    apart = np.abs(a - b)
    return LogitDifference(
        num_tokens=len(a),
        largest=float(apart.max()),
        mean=float(apart.mean()),
        divergence=float((np.exp(b) * (b - a)).sum(-1).mean()),
        same_first=float((a.argmax(-1) == b.argmax(-1)).mean()),
        by_position=apart.max(-1),
    )


def _logprobs(logits: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    import numpy as np

    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    found: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return found
