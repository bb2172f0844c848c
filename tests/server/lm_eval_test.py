#!/usr/bin/env python3
"""lm-eval's `local-completions` against a running `headwise serve`: the log-likelihood of every option of a multiple
choice is that of `headwise eval choice`.

Called as lm_eval_test.py BINARY MODEL_FOLDER. Wants lm-eval and transformers in this interpreter or in build/harness
(tools/install_deps.sh harness): without it nothing is tested, and the status is 77.
"""
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SKIPPED = 77
ROOT = pathlib.Path(__file__).resolve().parents[2]
HARNESS_PYTHON = ROOT / "build" / "harness" / "bin" / "python3"
sys.path.insert(0, str(ROOT / "tests" / "support"))
import serve  # noqa: E402

BINARY, MODEL = sys.argv[1:3]
TASK = "headwise_choice"
JOINT = "\nAnswer:"
# Options differ from their first token on, so that the border between question and option is the same for both.
CASES = [
    {"question": "A fox lived in the wood behind the mill. What lived in the wood?",
     "options": [" A fox", " The mill", " Nobody at all"], "answer": 0},
    {"question": "The captain counted his men and then his barrels. What did he count last?",
     "options": [" men", " barrels", " the days until the ship came home"], "answer": 1},
    {"question": "Anna has two brothers, and no sisters. How many children are there in her family?",
     "options": [" three", " two", " five hundred and seven", " \"none\""], "answer": 0},
    {"question": "It was raining — again. So she took her",
     "options": [" umbrella.", " caf\u00e9", " time, and\nread a book"], "answer": 0},
    {"question": "word " * 300 + "Which word was that?", "options": [" word", " another"], "answer": 0},
]
TOLERANCE = 1e-3
# Products of bf16 over another cut of the same text differ by as much as that.
ARITHMETIC = ("--compute", "f32", "--kv-dtype", "f32")


def find_python():
    """The interpreter that has lm-eval; exits with 77 where none does."""
    if importlib.util.find_spec("lm_eval") and importlib.util.find_spec("transformers"):
        return sys.executable
    if HARNESS_PYTHON.exists():
        return str(HARNESS_PYTHON)
    print("skipped: no Python package lm-eval; `tools/install_deps.sh harness` installs it into build/harness")
    sys.exit(SKIPPED)


class LmEval(unittest.TestCase):
    def setUp(self):
        self.holder = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.holder.name)
        self.cases = self.folder / "cases.jsonl"
        self.cases.write_text("".join(json.dumps(case) + "\n" for case in CASES))

    def tearDown(self):
        self.holder.cleanup()

    def ours(self):
        out = self.folder / "ours"
        subprocess.run([BINARY, "eval", "choice", "--model", MODEL, "--cases", str(self.cases), "--joint", JOINT,
                        # lm-eval sends ids without a start token: the tokenizer adds none by itself.
                        "--no-bos", *ARITHMETIC, "--out", str(out)], check=True, capture_output=True)
        lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
        return {line["case"]: line["log_likelihoods"] for line in lines}

    def theirs(self, url, **arguments):
        """By the same numbers of cases."""
        # JSON is YAML.
        (self.folder / "task.yaml").write_text(json.dumps({
            "task": TASK, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(self.cases)}},
            "test_split": "test", "output_type": "multiple_choice", "doc_to_text": "{{question}}" + JOINT,
            "doc_to_choice": "{{options}}", "doc_to_target": "answer", "target_delimiter": "",
            "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}]}))
        out = self.folder / "theirs"
        model_args = {"model": "headwise-17m", "base_url": url + "/v1/completions", "tokenizer": MODEL,
                      "tokenized_requests": True, **arguments}
        # Nothing is to come from elsewhere, nor to be left in the home folder.
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
                       "HF_HOME": str(self.folder / "hf"), "TOKENIZERS_PARALLELISM": "false", "OPENAI_API_KEY": "none",
                       "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        run = subprocess.run(
            [find_python(), "-m", "lm_eval", "run", "--model", "local-completions",
             "--model_args", ",".join(f"{key}={value}" for key, value in model_args.items()), "--tasks", TASK,
             "--include_path", str(self.folder), "--output_path", str(out), "--log_samples"],
            env=environment, capture_output=True, text=True, timeout=600, check=False)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        samples = next(out.rglob(f"samples_{TASK}_*.jsonl"))
        lines = [json.loads(line) for line in samples.read_text().splitlines()]
        for line in lines:
            self.assertEqual(line["doc"]["question"], CASES[line["doc_id"]]["question"])
        return {line["doc_id"]: [float(option[0]) for option in line["filtered_resps"]] for line in lines}

    def test_log_likelihoods_are_those_of_eval_choice(self):
        ours = self.ours()
        self.assertEqual(sorted(ours), list(range(len(CASES))))
        server = serve.Server(BINARY, "--model", MODEL, *ARITHMETIC)
        try:
            theirs = self.theirs(server.url, num_concurrent=3)
        finally:
            self.assertEqual(server.stop(), 0)
        self.assertEqual(sorted(theirs), sorted(ours))
        worst = 0.0
        for case, options in ours.items():
            self.assertEqual(len(theirs[case]), len(options))
            for mine, other in zip(options, theirs[case]):
                worst = max(worst, abs(mine - other))
                self.assertAlmostEqual(mine, other, delta=TOLERANCE, msg=f"case {case}: {options} {theirs[case]}")
        print(f"{sum(map(len, ours.values()))} log-likelihoods, at most {worst:.2g} apart")


if __name__ == "__main__":
    find_python()
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
