#!/usr/bin/env python3
"""lm-eval with the Python package's model: what it finds on tasks of each kind is what its own class for transformers finds
(tests/golden/lm_eval, made by tools/make_lm_eval_golden.py).

Called as lm_eval_package_test.py BUILD_FOLDER MODEL_FOLDER PLAN. Wants lm-eval in build/harness (tools/install_deps.sh
harness), where the wheel of this build is installed: without it nothing is tested, and the status is 77.
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
import lm_eval_tasks  # noqa: E402

BUILD, MODEL, PLAN = sys.argv[1:4]
HARNESS = lm_eval_tasks.install(BUILD, "harness", "Python package lm-eval")
EXACT = {"compute": "f32", "kv_dtype": "f32"}


def run(*options, command="headwise-lm-eval", **arguments):
    with tempfile.TemporaryDirectory() as holder:
        return lm_eval_tasks.run([HARNESS / command], "headwise", pathlib.Path(holder), *options,
                                 pretrained=MODEL, **arguments)


def in_harness(code):
    """What a program prints in the environment of the harness."""
    done = subprocess.run([str(HARNESS / "python"), "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


class LmEval(unittest.TestCase):
    def test_it_finds_what_the_class_for_transformers_finds(self):
        expected = json.loads((ROOT / "tests" / "golden" / "lm_eval" / "golden.json").read_text())
        found = run("--batch_size", "3", **EXACT)
        print(f"log-likelihoods at most {lm_eval_tasks.compare(self, found, expected):.2g} apart")

    def test_the_entry_point_is_the_class(self):
        printed = in_harness("from importlib.metadata import entry_points\n"
                             "(found,) = entry_points(group='lm_eval.models', name='headwise')\n"
                             "from lm_eval.api.registry import get_model\n"
                             "print(found.load() is get_model('headwise'), get_model('headwise').__name__)")
        self.assertEqual(printed, "True HeadwiseLM")

    def test_the_harness_own_command_knows_the_model(self):
        if in_harness("import lm_eval.api.registry as r; print(hasattr(r, 'import_plugins'))") != "True":
            self.skipTest("this lm-eval looks for no models in other packages")
        expected = run(**EXACT, names=["headwise_choice"])
        self.assertEqual(run(command="lm_eval", names=["headwise_choice"], **EXACT), expected)

    def test_plans_and_chat_templates_change_what_is_read(self):
        full = run(**EXACT)
        planned = run(**EXACT, plan=PLAN)
        long = [0, 4]  # a short question is within every window; that of 300 words is not
        for case in long:
            same = full["headwise_choice"]["samples"][case] == planned["headwise_choice"]["samples"][case]
            self.assertEqual(same, case == 0)
        # The rolling task has no message that a template could show.
        chat = run("--apply_chat_template", names=["headwise_choice"], **EXACT)
        self.assertNotEqual(chat["headwise_choice"]["samples"], full["headwise_choice"]["samples"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
