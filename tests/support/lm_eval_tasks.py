"""lm-eval run on the tasks of tests/golden/lm_eval, and what it found."""
import json
import os
import pathlib
import subprocess

TASKS = pathlib.Path(__file__).resolve().parents[1] / "golden" / "lm_eval"
NAMES = ("headwise_choice", "headwise_rolling", "headwise_generate")


def localised(work):
    """The tasks with their data by whole paths: the harness looks from where it is run."""
    folder = work / "tasks"
    folder.mkdir()
    for name in NAMES:
        task = json.loads((TASKS / f"{name}.yaml").read_text())  # JSON is YAML
        files = task["dataset_kwargs"]["data_files"]
        files["test"] = str(TASKS / files["test"])
        (folder / f"{name}.yaml").write_text(json.dumps(task))
    return folder


def run(command, model, work, *options, names=NAMES, **model_args):
    """{task: {"samples": [response of each request of each document], "metrics": {...}}}."""
    out = work / "out"
    # Nothing is to come from elsewhere, nor to be left in the home folder.
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
                   "HF_HOME": str(work / "hf"), "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        [*map(str, command), "run", "--model", model,
         "--model_args", ",".join(f"{key}={value}" for key, value in model_args.items()), "--tasks", ",".join(names),
         "--include_path", str(localised(work)), "--output_path", str(out), "--log_samples", *options],
        env=environment, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(next(out.rglob("results_*.json")).read_text())["results"]
    found = {}
    for name in names:
        lines = next(out.rglob(f"samples_{name}_*.jsonl")).read_text().splitlines()
        samples = sorted((json.loads(line) for line in lines), key=lambda line: line["doc_id"])
        metrics = {key.split(",")[0]: value for key, value in results[name].items()
                   if isinstance(value, float) and "stderr" not in key}
        found[name] = {"samples": [line["filtered_resps"] for line in samples], "metrics": metrics}
    return found
