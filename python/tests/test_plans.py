"""Plans and planners: files, arrays and dataclasses say the same, and planners make what the command makes."""

from __future__ import annotations

import json
import os
import pathlib
import pickle
import signal
import threading

import headwise
import numpy as np
import pytest
from conftest import MODEL, PLAN, command
from headwise import HeadPlan, InvalidInput, ModelShape
from headwise.rules import AdaKv, ElasticMoa, ElasticRazor, Expected, FastGen, Full, H2o, InfLlm, KeyDiff, Knorm, Quest, SnapKv, Stream, Tova

TRAINING = {
    "passkeys": 2,
    "passkey_words": 4,
    "min_tokens": 300,
    "max_tokens": 400,
    "train_sink": 4,
    "train_recent": 32,
}

ONE_HEAD = ModelShape("llama", 1, 1, 1, 64)


def options_of(given: dict) -> list[str]:
    return [part for key, value in given.items() for part in ("--" + key.replace("_", "-"), str(value))]


def without_times(plan: dict) -> dict:
    """What two runs of a planner agree on."""
    report = {key: value for key, value in plan.get("report", {}).items() if key not in ("seconds", "peak_memory_bytes")}
    report.get("training", {}).pop("seconds", None)
    return {**plan, "report": report}


def made_by_command(tmp_path: pathlib.Path, method: str, *options: object) -> HeadPlan:
    command("plan", method, "--model", MODEL, *options, "--out", tmp_path / "command.json")
    return HeadPlan.read(tmp_path / "command.json")


def test_a_file_is_read_and_written_as_it_was(tmp_path):
    plan = HeadPlan.read(PLAN)
    plan.write(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == plan.to_json()
    written = json.loads(plan.to_json())
    assert {key: written[key] for key in json.loads(PLAN.read_text())} == json.loads(PLAN.read_text())
    assert plan == HeadPlan.from_json(PLAN.read_text()) == pickle.loads(pickle.dumps(plan))
    assert plan.shape == ModelShape.of(MODEL)
    assert plan.full_heads.shape == plan.gates.shape == (plan.shape.num_layers, plan.shape.num_kv_heads)
    assert plan.full_heads.sum() == 2
    assert "2 of" in repr(plan) and "#" in str(plan)


def test_rules_go_there_and_back():
    shape = ModelShape("llama", 2, 4, 2, 64)
    rules = [
        [Full(), Stream(4, 1020, positions="cache")],
        [ElasticMoa(64, 128.0, 0.25), ElasticRazor(4, 4000, 5.0)],
    ]
    scores = np.array([[0.5, 0.25], [1.0, 0.0]])
    plan = HeadPlan(rules, shape, scores=scores)
    assert plan.rules == rules
    assert np.array_equal(plan.gates, scores)
    assert HeadPlan.from_json(plan.to_json()).rules == rules
    assert HeadPlan.dense(shape).full_heads.all()
    selecting = [
        [Stream(0, 512, select=H2o(0.25)), Stream(4, 508, select=Tova())],
        [Stream(0, 512, start="end_of_prompt", select=SnapKv(16, 5, "mean")), ElasticMoa(64, 128.0, 0.25, select=Knorm())],
    ]
    assert HeadPlan.from_json(HeadPlan(selecting, shape).to_json()).rules == selecting
    sharing = [[Stream(0, 512, start="end_of_prompt", select=AdaKv(16, floor=0.5))] * 2, [Stream(0, 512, select=KeyDiff()), Stream(4, 9, start="end_of_prompt", select=Expected(8, epsilon=0.5))]]
    assert HeadPlan.from_json(HeadPlan(sharing, shape).to_json()).rules == sharing
    marking = [[Full()] * 2, [Stream(0, 512, select=FastGen(0.25, True)), ElasticMoa(0, 64.0, 0.5, select=FastGen())]]
    marked = HeadPlan(marking, shape, special_tokens=[0, 5], punctuation_tokens=range(7, 10))
    assert HeadPlan.from_json(marked.to_json()).rules == marking
    assert (marked.special_tokens, marked.punctuation_tokens) == ([0, 5], [7, 8, 9])
    assert '"special": [0, 5],' in marked.to_json()
    assert '"punctuation": [7, 8, 9]' in marked.to_json()
    with pytest.raises(InvalidInput, match="lists no tokens"):
        HeadPlan(marking, shape)
    reading = [[Full()] * 2, [Stream(0, 512, start="end_of_prompt", select=Quest(32)), Stream(4, 512, start="end_of_prompt", select=InfLlm(0.25, 64, 8))]]
    assert HeadPlan.from_json(HeadPlan(reading, shape).to_json()).rules == reading
    with pytest.raises(InvalidInput, match="end_of_prompt"):
        HeadPlan([[Stream(0, 512, select=SnapKv()), Full()], [Full(), Full()]], shape)


def test_numbers_of_numpy_are_numbers():
    shape = ModelShape("llama", np.int64(1), np.int32(4), np.int64(4), np.int64(64))
    eight, half, two = np.int64(8), np.float32(0.5), np.float32(2)
    no, yes = np.bool_(False), np.bool_(True)
    shares = AdaKv(eight, np.int64(5), floor=half)
    rules = [[Stream(eight, np.int32(512), start="end_of_prompt", compensate=no, select=shares),
              Stream(eight, 512, select=FastGen(half, yes)), ElasticMoa(eight, np.float64(128), half),
              ElasticRazor(eight, np.int64(4000), two)]]  # fmt: skip
    plan = HeadPlan(rules, shape, special_tokens=np.array([0, 5]), punctuation_tokens=[np.int64(7)])
    assert plan.rules == rules and plan.shape == shape
    assert (plan.special_tokens, plan.punctuation_tokens) == ([0, 5], [7])
    assert HeadPlan([[Full()] * 4], shape, scores=[[True, False, half, 1]]).gates.tolist() == [[1.0, 0.0, 0.5, 1.0]]


def test_the_picture_is_the_commands(tmp_path):
    command("inspect", "--plan", PLAN, "--svg", tmp_path / "plan.svg")
    plan = HeadPlan.read(PLAN)
    assert plan._repr_svg_() == plan.svg() == (tmp_path / "plan.svg").read_text()


def test_gates_become_the_plan_that_an_import_makes(tmp_path):
    shape = ModelShape.of(MODEL)
    gates = np.random.default_rng(3).random((shape.num_layers, shape.num_kv_heads))
    folder = tmp_path / "duo"
    folder.mkdir()
    rows = ("\t".join(repr(float(gate)) for gate in row) for row in gates)
    (folder / "full_attention_heads.tsv").write_text("\n".join(rows) + "\n")
    for given in ({"sparsity": 0.25, "sink": 16, "recent": 100}, {"threshold": 0.5}, {"kv_ratio": 0.5, "at": 4096}):
        expected = made_by_command(tmp_path, "import-duo", "--from", folder, *options_of(given))
        found = HeadPlan.from_gates(MODEL, gates, **given)
        assert found.rules == expected.rules
        assert np.array_equal(found.gates, gates)
        again = headwise.plan.refit(MODEL, found, kv_ratio=0.75, at=2048)
        assert again.rules == headwise.plan.refit(MODEL, expected, kv_ratio=0.75, at=2048).rules


@pytest.mark.parametrize(
    "method, given",
    [
        ("streaming", {"sink": 4, "recent": 252}),
        ("random", {"sparsity": 0.5, "seed": 3}),
        ("uniform", {"beta": 0.25}),
        ("profile", {"samples": 1, **TRAINING}),
        ("duo", {"steps": 3, **TRAINING}),
    ],
)
def test_planners_make_what_the_command_makes(tmp_path, method, given):
    expected = made_by_command(tmp_path, method, *options_of(given))
    function = getattr(headwise.plan, method)
    seen = []
    if method in ("profile", "duo"):
        given = {**given, "progress": lambda *each: seen.append(each)}
    found = function(MODEL, **given)
    assert without_times(json.loads(found.to_json())) == without_times(json.loads(expected.to_json()))
    if method in ("profile", "duo"):
        assert seen and all(0 <= done <= total and isinstance(label, str) for label, done, total in seen)


def test_what_follows_from_gates(tmp_path):
    gates = tmp_path / "gates.json"
    headwise.plan.duo(MODEL, steps=2, out=gates, **TRAINING)
    assert not (tmp_path / "gates.json.checkpoint").exists()
    zigzag = headwise.plan.zigzag(MODEL, from_=gates, sparsity=0.75)
    assert sorted(zigzag.full_heads.sum(axis=1)) == [0] * 6 + [4] * 2
    compared = headwise.plan.compare({"gates": gates, "zigzag": zigzag}, at=[512, 4096])
    assert compared["lengths"] == [512, 4096]
    rules = headwise.plan.manual(MODEL, rules=gates)
    assert rules.rules == HeadPlan.read(gates).rules
    assert zigzag.kv_bytes_at(4096) == zigzag.kv_bytes_at(4096, MODEL) == compared["plans"][1]["kv_bytes"][1]


def test_ctrl_c_leaves_a_checkpoint_that_the_command_goes_on_from(tmp_path):
    out = tmp_path / "duo.json"
    runs = threading.Event()

    def interrupt():
        runs.wait()
        os.kill(os.getpid(), signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        headwise.plan.duo(MODEL, steps=4, out=out, progress=lambda *_: runs.set(), **TRAINING)
    interrupter.join()
    assert not out.exists()
    checkpoint = tmp_path / "duo.json.checkpoint"
    assert json.loads(checkpoint.read_text())["state"]["num_steps_done"] > 0
    command("plan", "duo", "--model", MODEL, "--steps", 4, *options_of(TRAINING), "--out", out, "--resume")
    assert not checkpoint.exists()
    uninterrupted = headwise.plan.duo(MODEL, steps=4, **TRAINING)
    assert HeadPlan.read(out).rules == uninterrupted.rules
    assert np.array_equal(HeadPlan.read(out).gates, uninterrupted.gates)


def test_an_exception_of_a_progress_function_ends_the_work(tmp_path):
    def fail(*_):
        raise RuntimeError("no more of this")

    with pytest.raises(RuntimeError, match="no more of this"):
        headwise.plan.duo(MODEL, steps=100000, out=tmp_path / "duo.json", progress=fail, **TRAINING)
    resumed = []
    with pytest.raises(RuntimeError):
        headwise.plan.duo(MODEL, steps=100000, out=tmp_path / "duo.json", resume=True, progress=fail, **TRAINING)
    assert not resumed


def test_every_planner_has_its_options():
    import inspect

    for row in headwise._core.planner_methods():
        name = row["name"].replace("-", "_")
        taken = set(inspect.signature(getattr(headwise.plan, name)).parameters)
        assert {option[0].replace("-", "_") for option in row["options"]} <= {each.rstrip("_") for each in taken}


@pytest.mark.parametrize(
    "make, part",
    [
        (lambda: HeadPlan.from_gates(MODEL, np.zeros((2, 2))), "gates"),
        (lambda: HeadPlan.from_gates(MODEL, np.full((8, 4), np.nan)), "finite"),
        (lambda: HeadPlan.from_gates(MODEL, np.full((8, 4), np.inf)), "finite"),
        (lambda: HeadPlan.from_gates(MODEL, np.zeros((8, 4), dtype=complex)), "complex"),
        (lambda: HeadPlan.from_gates(MODEL, np.zeros(32)), "dimensions"),
        (lambda: HeadPlan.from_gates(MODEL, "gates"), "rows of numbers"),
        (lambda: HeadPlan.from_gates(MODEL, [[0.5] * 4] * 8, sparsity=2), "sparsity"),
        (lambda: HeadPlan.from_gates(MODEL, [[0.5] * 4] * 8, sparsity=0.5, threshold=0.5), "threshold"),
        (lambda: HeadPlan([[Full()]], ModelShape("llama", 2, 4, 2, 64)), "layers"),
        (lambda: HeadPlan([[Stream(-1, 4)]], ModelShape("llama", 1, 1, 1, 64)), "sink"),
        (lambda: HeadPlan([[Full(), Stream(4, float("nan"))]], ModelShape("llama", 1, 2, 2, 64)), "KV head 1: recent"),
        (lambda: HeadPlan([[ElasticMoa(4, float("nan"), 1.0)]], ONE_HEAD), "KV head 0: alpha: .*finite"),
        (lambda: HeadPlan([[ElasticRazor(4, 64, float("inf"))]], ONE_HEAD), "KV head 0: divisor: .*finite"),
        (lambda: HeadPlan([[Stream(0, 64, select=H2o(float("nan")))]], ONE_HEAD), "KV head 0: select.recent_share"),
        (lambda: HeadPlan([[Stream(4, 64, positions=3)]], ONE_HEAD), "KV head 0: positions"),
        (lambda: HeadPlan([[Stream(4, 64, select="h2o")]], ONE_HEAD), "KV head 0: select"),
        (lambda: HeadPlan([[Full()]], ModelShape("llama", 1.5, 1, 1, 64)), "num_layers"),
        (lambda: HeadPlan([[Full()]], ONE_HEAD, special_tokens=[float("inf")]), "special_tokens"),
        (lambda: HeadPlan([[Full()]], ONE_HEAD, special_tokens=[1.7]), "special_tokens"),
        (lambda: HeadPlan.from_gates(MODEL, ["0505"] * 8), "rows of numbers"),
        (lambda: HeadPlan.from_gates(MODEL, [["0.5"] * 4] * 8), "gates"),
        (lambda: HeadPlan.from_gates(MODEL, [[10**400] * 4] * 8), "gates"),
        (lambda: HeadPlan.from_gates(MODEL, np.ma.masked_array(np.ones((8, 4)), mask=np.eye(8, 4))), "masked"),
        (lambda: HeadPlan([["full"]], ModelShape("llama", 1, 1, 1, 64)), "rules"),
        (lambda: HeadPlan([[Full()]], ModelShape("llama", 1, 1, 1, 64), scores=[[float("nan")]]), "finite"),
        (lambda: HeadPlan(3, ModelShape("llama", 1, 1, 1, 64)), "rules"),
        (lambda: HeadPlan([[Full()]], {"num_layers": 1}), "shape"),
        (lambda: headwise.plan.compare([PLAN]), "plans"),
        (lambda: headwise.plan.compare({"a": PLAN}, at=4096), "at"),
        (lambda: HeadPlan.from_json("{}"), "headwise_plan"),
        (lambda: HeadPlan.from_json("[" * 100000), "plan"),
        (lambda: HeadPlan.read(PLAN).kv_bytes_at(-1), "tokens"),
        (lambda: HeadPlan.read(PLAN).kv_bytes_at(2**63), "tokens"),
        (lambda: headwise.plan.streaming(MODEL, sink=-4), "sink"),
        (lambda: headwise.plan.streaming(MODEL, sink=10**5000), "sink: .*digits"),
        (lambda: headwise.plan.streaming(MODEL, sink="\ud800"), "sink"),
        (lambda: headwise.plan.duo(MODEL, steps=0), "steps"),
        (lambda: headwise.plan.duo(MODEL, steps=4, num_threads=-1), "threads"),
        (lambda: headwise.plan.duo(MODEL, resume=True), "checkpoint"),
        (lambda: headwise.plan.duo(MODEL, steps=4, progress="often"), "progress"),
        (lambda: headwise.plan.refit(MODEL, PLAN), "method"),
        (lambda: headwise.plan.refit(MODEL, "full"), "plan"),
    ],
)
def test_garbage_raises(make, part):
    with pytest.raises(InvalidInput, match=part):
        make()


def test_errors_have_the_commands_sentences(tmp_path):
    said = command("plan", "streaming", "--model", MODEL, "--sink", "9999999999999999", "--out", tmp_path / "x", expect=1)
    with pytest.raises(InvalidInput) as raised:
        headwise.plan.streaming(MODEL, sink=9999999999999999)
    assert str(raised.value) in said
    with pytest.raises(headwise.NotFound) as missing:
        headwise.plan.streaming(tmp_path / "no-such-model")
    assert isinstance(missing.value, FileNotFoundError) and "no-such-model" in str(missing.value)
    with pytest.raises(headwise.NotFound, match="cannot create"):
        HeadPlan.read(PLAN).write(tmp_path / "no" / "such" / "folder.json")
