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

    def test_options_of_a_question_score_on_forks_as_they_do_alone(self):
        code = f"""
import headwise
from headwise.lm_eval import HeadwiseLM
late = headwise.plan.streaming({MODEL!r}, sink=4, recent=16, positions="text", from_="end_of_prompt", out="late.json")
for plan in (None, {PLAN!r}, "late.json"):
    for more in ({{}}, {{"kv_limit_bytes": 3_500_000}}):  # where forks have no room
        lm = HeadwiseLM({MODEL!r}, plan=plan, compute="f32", kv_dtype="f32", batch_size=2, **more)
        texts = [" ".join(["The old captain looked over the sea and said to his men that"] * 8), "The sea"]
        asked = [(None, lm.tok_encode(text), lm.tok_encode(option)) for text in texts
                 for option in (" the wind is with us", " no", " all of them, every one of them, would go")]
        together = lm._loglikelihood_tokens(asked, disable_tqdm=True)
        alone = [lm._loglikelihood_tokens([one], disable_tqdm=True)[0] for one in asked]
        assert [one[1] for one in together] == [one[1] for one in alone]
        assert max(abs(one[0] - other[0]) for one, other in zip(together, alone)) < 1e-3, (plan, together, alone)
        lm.llm.close()
print("same")
"""
        with tempfile.TemporaryDirectory() as work:
            done = subprocess.run([str(HARNESS / "python"), "-c", code], cwd=work, capture_output=True, text=True)
        self.assertEqual((done.stdout.strip(), done.returncode), ("same", 0), done.stderr)

    def test_the_harness_own_models_are_still_there(self):
        self.assertEqual(in_harness("import headwise.lm_eval, lm_eval.api.registry as r; print(r.get_model('dummy').__name__)"),
                         "DummyLM")

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
