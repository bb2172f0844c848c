"""headwise: long-context LLM inference in which every KV head has its own cache rule.

    import headwise

    llm = headwise.LLM("models/headwise-17m", plan="models/headwise-17m-two-heads.json")
    print(llm.generate("Once upon a time")[0].text)

Planners are functions of `headwise.plan`; the rules that plans are made of are in `headwise.rules`.
"""

from . import compare, plan, rules
from ._core import VERSION as __version__
from .errors import (
    Cancelled,
    HeadwiseError,
    HeadwiseWarning,
    InvalidInput,
    IoError,
    NotFound,
    OutOfMemory,
    Unsupported,
)
from .evaluation import Evaluation, Report, evaluate, report, tasks
from .head_plan import HeadPlan, ModelShape
from .llm import LLM
from .sampling import CompletionOutput, Logprob, RequestMetrics, RequestOutput, SamplingParams, TokenEvent
from .sequence import Sequence
from .streams import AsyncStream, Stream

__all__ = [
    "LLM",
    "SamplingParams",
    "RequestOutput",
    "CompletionOutput",
    "Logprob",
    "RequestMetrics",
    "TokenEvent",
    "Stream",
    "AsyncStream",
    "Sequence",
    "HeadPlan",
    "ModelShape",
    "compare",
    "plan",
    "rules",
    "evaluate",
    "Evaluation",
    "tasks",
    "report",
    "Report",
    "HeadwiseError",
    "InvalidInput",
    "NotFound",
    "IoError",
    "OutOfMemory",
    "Unsupported",
    "Cancelled",
    "HeadwiseWarning",
]
