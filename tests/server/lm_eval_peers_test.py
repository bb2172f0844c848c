#!/usr/bin/env python3
"""lm-eval's own class for transformers (float32, on the CPU) and the Python package's model, run here one behind the other on
tasks of each kind: they find the same, and the first is what tests/golden/lm_eval has.

Called as lm_eval_peers_test.py BUILD_FOLDER MODEL_FOLDER. Wants lm-eval and PyTorch in build/peers (tools/install_deps.sh peers),
where the wheel of this build is installed: without them nothing is tested, and the status is 77.
"""
import json
import pathlib
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


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
