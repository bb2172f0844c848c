"""The scripts of examples/python do what they say."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import re
import subprocess
import sys
from importlib.metadata import entry_points

import headwise
import nbclient
import nbformat
import pytest
from conftest import MODEL, PLAN, SOURCE


def example(name: str, *arguments: object, stdin: str = "") -> str:
    script = SOURCE / "examples" / "python" / name
    done = subprocess.run(
        [sys.executable, str(script), *map(str, arguments)], input=stdin, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_generate():
    printed = example("generate.py", MODEL, PLAN, stdin="Once upon a time\nThe sea\n")
    assert printed.startswith("Once upon a time") and "\nThe sea" in printed and "[length, " in printed


def test_stream_endlessly():
    assert len(example("stream_endlessly.py", MODEL, 50).split()) > 20


def test_make_plan(tmp_path):
    printed = example("make_plan.py", MODEL, tmp_path / "plan.json", 0.5)
    plan = headwise.HeadPlan.read(tmp_path / "plan.json")
    assert str(plan) in printed and "ratio 0." in printed


def test_compare_plans():
    printed = example("compare_plans.py", MODEL, PLAN)
    assert "full" in printed and PLAN.stem in printed


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_the_lines_of_the_pages_run(page):
    text = (SOURCE / page).read_text().partition("## API")[0]
    programs = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert programs
    for program in programs:
        done = subprocess.run([sys.executable, "-c", program], cwd=SOURCE, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr


def test_what_is_installed_names_the_harness_model_and_command():
    groups = {"lm_eval.models": ("headwise", "headwise.lm_eval:HeadwiseLM"),
              "console_scripts": ("headwise-lm-eval", "headwise._lm_eval_command:main")}  # fmt: skip
    for group, (name, value) in groups.items():
        (found,) = entry_points(group=group, name=name)
        assert found.value == value


def test_the_command_of_the_harness_says_that_there_is_none():
    if importlib.util.find_spec("lm_eval") is not None:
        pytest.skip("lm-eval is here")
    command = pathlib.Path(sys.executable).parent / "headwise-lm-eval"
    done = subprocess.run([command, "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "headwise-lm-eval: the Python package lm_eval is not here; `pip install lm-eval` brings it\n"


def test_the_notebook_runs_and_is_stored_without_outputs():
    path = SOURCE / "examples" / "python" / "plans.ipynb"
    stored = json.loads(path.read_text())
    assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in stored["cells"])
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(path.parent)}}
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    shown = [output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/svg+xml" in data for data in shown) == 2
    assert any("text/html" in data for data in shown)
