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

SKIPPED = 77
ROOT = pathlib.Path(__file__).resolve().parents[2]
HARNESS = ROOT / "build" / "harness" / "bin"
sys.path.insert(0, str(ROOT / "tests" / "support"))
import lm_eval_tasks  # noqa: E402

BUILD, MODEL, PLAN = sys.argv[1:4]
TOLERANCE = 1e-3  # of a log-likelihood, in nats; transformers adds up a thousand tokens in float32 less exactly
EXACT = {"compute": "f32", "kv_dtype": "f32"}


def install():
    """The package of this build beside lm-eval; exits with 77 where there is none, or PyPI cannot be reached."""
    if not (HARNESS / "lm_eval").exists():
        print("skipped: no Python package lm-eval; `tools/install_deps.sh harness` installs it into build/harness")
        sys.exit(SKIPPED)
    wheels = pathlib.Path(BUILD) / "python" / "harness"
    for old in wheels.glob("*.whl"):
        old.unlink()
    made = subprocess.run([str(ROOT / "tools" / "make_wheel.sh"), BUILD, str(wheels)], check=False)
    if made.returncode != 0:
        sys.exit(made.returncode)
    subprocess.run([str(HARNESS / "pip"), "install", "--quiet", "--disable-pip-version-check", "--force-reinstall",
                    "--no-deps", *map(str, wheels.glob("*.whl"))], check=True)


def run(*options, **arguments):
    with tempfile.TemporaryDirectory() as holder:
        return lm_eval_tasks.run([HARNESS / "headwise-lm-eval"], "headwise", pathlib.Path(holder), *options,
                                 pretrained=MODEL, **arguments)


class LmEval(unittest.TestCase):
    def same(self, found, expected):
        worst = 0.0
        for name in ("headwise_choice", "headwise_rolling"):
            self.assertEqual(len(found[name]["samples"]), len(expected[name]["samples"]))
            for mine, theirs in zip(found[name]["samples"], expected[name]["samples"]):
                self.assertEqual(len(mine), len(theirs))
                for one, other in zip(mine, theirs):
                    if isinstance(one, list):  # and whether it is what the model would have said
                        self.assertEqual(str(one[1]), str(other[1]))
                        one, other = one[0], other[0]
                    worst = max(worst, abs(float(one) - float(other)))
                    self.assertAlmostEqual(float(one), float(other), delta=TOLERANCE, msg=name)
        return worst

    def test_it_finds_what_the_class_for_transformers_finds(self):
        expected = json.loads((ROOT / "tests" / "golden" / "lm_eval" / "golden.json").read_text())
        found = run("--batch_size", "3", **EXACT)
        print(f"log-likelihoods at most {self.same(found, expected):.2g} apart")
        self.assertEqual(found["headwise_generate"]["samples"], expected["headwise_generate"]["samples"])
        for name, task in expected.items():
            for metric, value in task["metrics"].items():
                self.assertAlmostEqual(found[name]["metrics"][metric], value, delta=TOLERANCE * max(1, abs(value)))
        self.assertGreater(len(expected["headwise_choice"]["metrics"]), 0)

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
    install()
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
