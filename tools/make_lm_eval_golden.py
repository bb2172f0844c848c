#!/usr/bin/env python3
"""Makes tests/golden/lm_eval/golden.json: what lm-eval's own class for transformers ("hf", float32 on a CPU) gives on the tasks
of that folder for the bundled model.

Wants from pip: lm-eval[hf] and torch (made with 0.4.13 and 2.15). Called as make_lm_eval_golden.py; prints the seconds.
"""
import json
import pathlib
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
MODEL = ROOT / "models" / "headwise-17m"
FOLDER = ROOT / "tests" / "golden" / "lm_eval"
sys.path.insert(0, str(ROOT / "tests" / "support"))
import lm_eval_tasks  # noqa: E402


def main():
    with tempfile.TemporaryDirectory() as holder:
        work = pathlib.Path(holder)
        model = lm_eval_tasks.for_transformers(MODEL, work / "model")
        begin = time.perf_counter()
        found = lm_eval_tasks.run([sys.executable, "-m", "lm_eval"], "hf", work, "--device", "cpu",
                                  pretrained=model, dtype="float32")
        print(f"{time.perf_counter() - begin:.1f} s")
    (FOLDER / "golden.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
