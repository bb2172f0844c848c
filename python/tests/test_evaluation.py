"""Evaluations are the command's, and so is the report."""

from __future__ import annotations

import json
import os
import signal

import headwise
import pytest
from conftest import EXACT, EXACT_OPTIONS, MODEL, PLAN, command, command_json
from headwise import InvalidInput

LINES = {"num_lines": 20, "num_cases": 3}


def test_rows_are_the_commands(tmp_path):
    expected = command_json("eval", "lines", "--model", MODEL, *EXACT_OPTIONS, "--num-lines", 20, "--num-cases", 3,
                            "--plan", "full", "--plan", PLAN)  # fmt: skip
    seen = []
    rows = headwise.evaluate("lines", MODEL, plans=["full", PLAN], out=tmp_path / "run", engine=EXACT,
                             progress=lambda *each: seen.append(each), **LINES)  # fmt: skip
    whole = {row["plan"]: row for row in rows if row["length"] is None and row["metric"] == "accuracy"}
    assert len(expected["plans"]) == len(whole) == 2
    for row in expected["plans"]:
        found = whole[row["plan"]]
        assert found["mean"] == row["accuracy"]
        assert [found["low"], found["high"]] == row["accuracy_interval"]
        assert (found["count"], found["kv_bytes"], found["kv_peak_bytes"]) == (
            row["total"],
            row["kv_bytes"],
            row["kv_peak_bytes"],
        )
    assert all(set(row) == set(rows[0]) for row in rows)
    assert len(rows.results) >= 6 and {row["plan"] for row in rows.results} == set(whole)
    assert rows.comparisons[0]["reference"] == "full"
    assert seen

    command("eval", "report", tmp_path / "run", "--out", tmp_path / "r.html", "--csv", tmp_path / "r.csv",
            "--markdown", tmp_path / "r.md")  # fmt: skip
    report = headwise.report(tmp_path / "run")
    assert report.html == report._repr_html_() == (tmp_path / "r.html").read_text()
    assert report.csv == (tmp_path / "r.csv").read_text()
    assert report.markdown == (tmp_path / "r.md").read_text()
    report.write(tmp_path / "again.html")
    assert (tmp_path / "again.html").read_text() == report.html
    with pytest.raises(headwise.NotFound, match="no such folder|cannot create"):
        report.write(tmp_path / "no such folder" / "r.html")
    with pytest.raises(InvalidInput, match="path"):
        report.write(3)


def test_rows_make_a_data_frame():
    pandas = pytest.importorskip("pandas")
    rows = headwise.evaluate("lines", MODEL, plans=["full", PLAN], engine=EXACT, **LINES)
    frame = pandas.DataFrame(rows)
    assert list(frame.columns) == list(rows[0]) and len(frame) == len(rows)
    of_all = frame[frame["length"].isna() & (frame["metric"] == "accuracy")].set_index("plan")
    assert of_all["kv_peak_bytes"].dtype.kind == "i"
    assert of_all["mean"].to_dict() == {
        row["plan"]: row["mean"] for row in rows if row["length"] is None and row["metric"] == "accuracy"
    }
    assert len(pandas.DataFrame(rows.results)) == len(rows.results)


def test_plans_have_names_and_ratios():
    plan = headwise.plan.streaming(MODEL, sink=4, recent=100)
    rows = headwise.evaluate("lines", MODEL, plans={"full": "full", "mine": plan}, kv_ratios=[0.5], **LINES)
    assert {row["plan"] for row in rows} == {"full", "mine@0.5"}


def test_ctrl_c_keeps_what_is_finished(tmp_path):
    def interrupt(*_):
        os.kill(os.getpid(), signal.SIGINT)

    given = {"out": tmp_path / "run", "engine": EXACT, "num_lines": 20, "num_cases": 6}
    with pytest.raises(KeyboardInterrupt):
        headwise.evaluate("lines", MODEL, progress=interrupt, **given)
    resumed = headwise.evaluate("lines", MODEL, resume=True, **given)
    assert [row["count"] for row in resumed if row["length"] is None] == [6] * len(
        [row for row in resumed if row["length"] is None]
    )
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["task"] == "lines"


def test_tasks_have_their_options():
    assert "num_cases" in headwise.tasks()["lines"]
    assert len(headwise.tasks()) >= 11


@pytest.mark.parametrize(
    "ask, part",
    [
        (lambda: headwise.evaluate("no-such-task", MODEL), "expected one of"),
        (lambda: headwise.evaluate("lines", MODEL, num_lines=-1), "num-lines"),
        (lambda: headwise.evaluate("lines", MODEL, no_such_option=1), "no-such-option"),
        (lambda: headwise.evaluate("lines", MODEL, plans=[]), "plans"),
        (lambda: headwise.evaluate("lines", MODEL, plans=["full", "full"]), "twice"),
        (lambda: headwise.evaluate("lines", MODEL, plans="full"), "plans"),
        (lambda: headwise.evaluate("lines", MODEL, plans={"mine": "full"}), "mine"),
        (lambda: headwise.evaluate("lines", MODEL, plans=[headwise.HeadPlan.read(PLAN)]), "name"),
        (lambda: headwise.evaluate("lines", MODEL, plans=[PLAN], kv_ratios=[float("nan")], **LINES), "kv-ratio"),
        (lambda: headwise.evaluate("lines", MODEL, plans=3), "plans"),
        (lambda: headwise.evaluate("lines", MODEL, kv_ratios=0.5), "kv_ratios"),
        (lambda: headwise.evaluate("lines", MODEL, engine=3), "engine"),
        (lambda: headwise.evaluate("lines", MODEL, engine={"threads": 1}), "engine: found threads"),
        (lambda: headwise.evaluate("lines", MODEL, progress="often"), "progress"),
        (lambda: headwise.report(), "folder"),
    ],
)
def test_garbage_raises(ask, part):
    with pytest.raises(InvalidInput, match=part):
        ask()
    with pytest.raises(headwise.HeadwiseError):
        headwise.report("/no/such/folder")
