#!/usr/bin/env python3
"""How long lm-eval's own class for transformers and headwise take to answer the tasks of tests/golden/lm_eval, on the same cores.

Wants from pip: lm-eval[hf], torch and the package of this tree (`make test-peers` has them in build/peers). Called as
measure_lm_eval.py MODEL. All models are in one process, and answer in turn. Only the answering is timed, neither the import nor
the loading of a model nor the harness' own work.
"""
import os
import pathlib
import statistics
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))
import lm_eval_tasks  # noqa: E402

REPEATS = 5
KINDS = ("loglikelihood", "loglikelihood_rolling", "generate_until")


def timed(lm):
    """Notes in lm.seconds what each kind of question took."""
    lm.seconds = {}
    for kind in KINDS:
        def ask(requests, *given, own=getattr(lm, kind), kind=kind, **named):
            begin = time.perf_counter()
            answers = own(requests, *given, **named)
            lm.seconds[kind] = lm.seconds.get(kind, 0.0) + time.perf_counter() - begin
            return answers

        setattr(lm, kind, ask)
    return lm


def main():
    with tempfile.TemporaryDirectory() as holder:
        work = pathlib.Path(holder)
        os.environ.update({"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(work / "hf"),
                           "TOKENIZERS_PARALLELISM": "false", "TQDM_DISABLE": "1", "LOGLEVEL": "ERROR"})
        import torch
        from lm_eval import simple_evaluate
        from lm_eval.models.huggingface import HFLM
        from lm_eval.tasks import TaskManager

        from headwise.lm_eval import HeadwiseLM

        threads = len(os.sched_getaffinity(0))
        torch.set_num_threads(threads)
        model = str(lm_eval_tasks.for_transformers(sys.argv[1], work / "model"))
        tasks = TaskManager(include_path=str(lm_eval_tasks.localised(work)))
        models = {f"hf, {dtype}, batch {size}": timed(HFLM(pretrained=model, device="cpu", dtype=dtype, batch_size=size))
                  for dtype in ("float32", "bfloat16") for size in (1, 8)}
        for name, arguments in (("f32", {"compute": "f32", "kv_dtype": "f32"}), ("as it comes", {})):
            models[f"headwise, {name}, batch 8"] = timed(HeadwiseLM(model, batch_size=8, num_threads=threads, **arguments))
        rows = {name: [] for name in models}
        for _ in range(1 + REPEATS):
            for name, lm in models.items():
                lm.seconds = {}
                simple_evaluate(lm, tasks=list(lm_eval_tasks.NAMES), task_manager=tasks, bootstrap_iters=0)
                rows[name].append({**lm.seconds, "all": sum(lm.seconds.values())})
    columns = (*KINDS, "all")
    medians = {name: {kind: statistics.median(row[kind] for row in found[1:]) for kind in columns}
               for name, found in rows.items()}  # the first round is for caches
    base = medians["hf, float32, batch 1"]
    print(f"{threads} threads, torch {torch.__version__}; medians of {REPEATS} in turn; times as fast as the first")
    print(f"{'':<32}" + "".join(f"{kind:>32}" for kind in columns))
    for name, median in medians.items():
        cells = []
        for kind in columns:
            each = [row[kind] for row in rows[name][1:]]
            cells.append(f"{median[kind]:.2f} s ({min(each):.2f}-{max(each):.2f}) {base[kind] / median[kind]:5.1f}x")
        print(f"{name:<32}" + "".join(f"{cell:>32}" for cell in cells))


if __name__ == "__main__":
    main()
