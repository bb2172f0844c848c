"""lm-eval run on the tasks of tests/golden/lm_eval, and what it found."""
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TASKS = ROOT / "tests" / "golden" / "lm_eval"
NAMES = ("headwise_choice", "headwise_rolling", "headwise_generate")
SKIPPED = 77
TOLERANCE = 1e-3  # of a log-likelihood, in nats; transformers adds up a thousand tokens in float32 less exactly


def install(build, purpose, what):
    """The programs of the environment build/`purpose`, with the package of this build in it; ends with SKIPPED where there is
    none, or PyPI cannot be reached."""
    programs = ROOT / "build" / purpose / "bin"
    if not (programs / "lm_eval").exists():
        print(f"skipped: no {what}; `tools/install_deps.sh {purpose}` installs it into build/{purpose}")
        sys.exit(SKIPPED)
    wheels = pathlib.Path(build) / "python" / purpose
    for old in wheels.glob("*.whl"):
        old.unlink()
    made = subprocess.run([str(ROOT / "tools" / "make_wheel.sh"), build, str(wheels)], check=False)
    if made.returncode != 0:
        sys.exit(made.returncode)
    subprocess.run([str(programs / "pip"), "install", "--quiet", "--disable-pip-version-check", "--force-reinstall",
                    "--no-deps", *map(str, wheels.glob("*.whl"))], check=True)
    return programs


def for_transformers(model, folder):
    """The model in a new folder, with a file that transformers wants for its tokenizer: which tokens begin and end a text."""
    model, folder = pathlib.Path(model), pathlib.Path(folder)
    folder.mkdir()
    for file in model.iterdir():
        os.symlink(file.resolve(), folder / file.name)
    config = json.loads((model / "config.json").read_text())
    tokens = {entry["id"]: entry["content"] for entry in json.loads((model / "tokenizer.json").read_text())["added_tokens"]}
    eos = config["eos_token_id"]
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": tokens[config["bos_token_id"]],
        "eos_token": tokens[eos[0] if isinstance(eos, list) else eos],
        "model_max_length": config["max_position_embeddings"]}))
    return folder


def compare(test, found, expected):
    """Asserts that two runs found the same; how far their log-likelihoods are apart at most, in nats."""
    worst = 0.0
    for name in ("headwise_choice", "headwise_rolling"):
        test.assertEqual(len(found[name]["samples"]), len(expected[name]["samples"]))
        for mine, theirs in zip(found[name]["samples"], expected[name]["samples"]):
            test.assertEqual(len(mine), len(theirs))
            for one, other in zip(mine, theirs):
                if isinstance(one, list):  # and whether it is what the model would have said
                    test.assertEqual(str(one[1]), str(other[1]))
                    one, other = one[0], other[0]
                worst = max(worst, abs(float(one) - float(other)))
                test.assertAlmostEqual(float(one), float(other), delta=TOLERANCE, msg=name)
    test.assertEqual(found["headwise_generate"]["samples"], expected["headwise_generate"]["samples"])
    for name, task in expected.items():
        for metric, value in task["metrics"].items():
            test.assertAlmostEqual(found[name]["metrics"][metric], value, delta=TOLERANCE * max(1, abs(value)))
    test.assertGreater(len(expected["headwise_choice"]["metrics"]), 0)
    return worst


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
