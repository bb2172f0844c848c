"""What the tests of the package share. tools/python_tests.sh runs them, and says in the environment where the command and
the tree are."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import headwise
import numpy as np
import pytest

SOURCE = pathlib.Path(os.environ["HEADWISE_SOURCE"])
COMMAND = os.environ["HEADWISE_COMMAND"]
MODEL = SOURCE / "models" / "headwise-17m"
PLAN = SOURCE / "models" / "headwise-17m-two-heads.json"
TINY = SOURCE / "tests" / "golden" / "tiny" / "llama-gqa"  # has no tokenizer
# What a sanitizer keeps of freed memory is not flat.
watches_memory = pytest.mark.skipif("HEADWISE_SANITIZED" in os.environ, reason="a sanitizer keeps freed memory")
# A shell that starts its jobs in the background has them ignore Ctrl-C, and Python then leaves it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
EXACT = {"compute": "f32", "kv_dtype": "f32"}
EXACT_OPTIONS = ("--compute", "f32", "--kv-dtype", "f32")


def command(*arguments: Any, expect: int = 0) -> str:
    """Standard output of the command line. Sanitizers that this interpreter was started with are not the command's."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    asked = [COMMAND, *map(str, arguments)]
    done = subprocess.run(asked, env=environment, capture_output=True, timeout=600, check=False)
    assert done.returncode == expect, done.stderr.decode()
    return done.stdout.decode() if expect == 0 else done.stderr.decode()


def command_json(*arguments: Any) -> Any:
    return json.loads(command(*arguments, "--json"))


def run_python(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120, check=False, text=True)


def wait_until(is_so: Callable[[], bool]) -> None:
    """Figures of an engine are as of its last step. What does not come to be is a failure, not a test without an end."""
    for _ in range(2_000_000):
        if is_so():
            return
        os.sched_yield()
    raise AssertionError("still not so")


def read_safetensors(path: pathlib.Path) -> dict[str, np.ndarray]:
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__":
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            assert entry["dtype"] == "F32"
            tensors[name] = np.frombuffer(data[begin:end], dtype=np.float32).reshape(entry["shape"])
    return tensors


@pytest.fixture(scope="session")
def llm() -> Iterator[headwise.LLM]:
    """The bundled model, in the arithmetic of comparisons."""
    with headwise.LLM(MODEL, num_threads=2, **EXACT) as engine:
        yield engine


@pytest.fixture(scope="session")
def tiny() -> Iterator[headwise.LLM]:
    with headwise.LLM(TINY, num_threads=1, **EXACT) as engine:
        yield engine
