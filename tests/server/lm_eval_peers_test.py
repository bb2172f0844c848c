#!/usr/bin/env python3
"""lm-eval's own class for transformers (float32, on the CPU) and the Python package's model, run here one behind the other on
tasks of each kind: they find the same, and the first is what tests/golden/lm_eval has. And `headwise.compare.transformers`.

Called as lm_eval_peers_test.py BUILD_FOLDER MODEL_FOLDER. Wants lm-eval and PyTorch in build/peers (tools/install_deps.sh peers),
where the wheel of this build is installed: without them nothing is tested, and the status is 77.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
import lm_eval_tasks  # noqa: E402

BUILD, MODEL = sys.argv[1:3]
PROGRAMS = lm_eval_tasks.install(BUILD, "peers", "PyTorch and lm-eval")


class Peers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as holder:
            work = pathlib.Path(holder)
            model = lm_eval_tasks.for_transformers(MODEL, work / "model")
            runs = {}
            for name, arguments in (("hf", {"dtype": "float32"}), ("headwise", {"compute": "f32", "kv_dtype": "f32"})):
                (work / name).mkdir()
                runs[name] = lm_eval_tasks.run([PROGRAMS / "headwise-lm-eval"], name, work / name, "--device", "cpu",
                                               "--batch_size", "4", pretrained=model, **arguments)
        cls.theirs, cls.ours = runs["hf"], runs["headwise"]

    def test_headwise_finds_what_transformers_finds(self):
        print(f"log-likelihoods at most {lm_eval_tasks.compare(self, self.ours, self.theirs):.2g} apart")

    def test_the_golden_is_what_transformers_finds(self):
        expected = json.loads((lm_eval_tasks.TASKS / "golden.json").read_text())
        print(f"golden: at most {lm_eval_tasks.compare(self, self.theirs, expected):.2g} apart")


COMPARE = """
import json, pathlib, sys, headwise
model, plan, text = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3]).read_text()[:6000]
full = headwise.compare.transformers(model, text)
two_heads = headwise.compare.transformers(model, text, plan=plan)
try:
    headwise.compare.transformers(model, "a", dtype="Tensor")
except headwise.InvalidInput as error:
    refusal = str(error)
print(full, file=sys.stderr)
print(json.dumps({"num_tokens": full.num_tokens, "positions": len(full.by_position), "largest": full.largest,
                  "same_first": full.same_first, "divergence": full.divergence, "under_a_plan": two_heads.divergence,
                  "refusal": refusal}))
"""


class Compare(unittest.TestCase):
    def test_log_probabilities_are_those_of_transformers(self):
        done = subprocess.run([PROGRAMS / "python", "-c", COMPARE, MODEL, f"{MODEL}-two-heads.json", ROOT / "README.md"],
                              env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, timeout=600, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        print(done.stderr.splitlines()[-1])
        found = json.loads(done.stdout)
        self.assertGreater(found["num_tokens"], 1000)
        self.assertEqual(found["positions"], found["num_tokens"])
        self.assertLess(found["largest"], 5e-3)  # over a whole vocabulary, in float32 on both sides
        self.assertEqual(found["same_first"], 1)
        self.assertLess(abs(found["divergence"]), 1e-6)
        self.assertGreater(found["under_a_plan"], 1e-3)  # the plan is headwise's alone, and drops tokens
        self.assertIn("'Tensor' is no number format of torch", found["refusal"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
