"""The command headwise-lm-eval, which is installed with or without the harness."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from .lm_eval import main as run
    except ModuleNotFoundError as error:
        if error.name not in ("lm_eval", "tqdm"):
            raise
        sys.exit(f"headwise-lm-eval: the Python package {error.name} is not here; `pip install lm-eval` brings it")
    run()
