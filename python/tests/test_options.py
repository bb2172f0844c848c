"""What each argument does: one that did nothing, or what its neighbour does, would be noticed."""

from __future__ import annotations

import asyncio
import json
import math
import random
import shutil

import headwise
import numpy as np
import pytest
from conftest import EXACT, EXACT_OPTIONS, MODEL, PLAN, TINY, command, command_json, wait_until
from headwise import LLM, SamplingParams

TEXT = "The old captain looked over the sea and"
WINDOWED = TINY.parent / "mistral-window"


def ids_of(llm: LLM, params: SamplingParams, **given: object) -> list[int]:
    return llm.generate([1, 2, 3], params, **given)[0].outputs[0].token_ids


def test_texts_become_ids_as_they_are_told(llm):
    eos, bos = llm.info["eos_ids"][0], llm.info["bos_id"]
    marker = llm.decode([eos], skip_special=False)
    assert marker and llm.decode([eos]) == ""
    assert llm.encode(TEXT) == [bos, *llm.tokenize(TEXT)]
    assert llm.encode(TEXT, bos=False) == llm.tokenize(TEXT)
    assert llm.tokenize(marker, special=True) == [eos] != llm.tokenize(marker)
    assert llm.encode(marker, special=True) == [bos, eos] != llm.encode(marker)


def test_an_engine_is_what_it_was_asked_to_be():
    given = {"num_threads": 3, "page_tokens": 16, "chunk_tokens": 8, "isa": "baseline"}
    for each in (given, {**given, **EXACT}, {**given, "kv_dtype": "q8,f16"}):
        with LLM(TINY, **each) as engine:
            info = engine.info
            assert {name: info[name] for name in each if name != "num_threads"} == {
                name: value for name, value in each.items() if name != "num_threads"
            }
            assert "3 threads" in info["description"]
    with LLM(TINY, backend="ref") as engine:
        assert engine.info["backend"] == "ref"


def test_a_gpu_that_is_not_there_is_an_error_and_no_end():
    try:
        LLM(TINY, backend="cuda").close()
    except headwise.Unsupported as error:
        assert any(said in str(error) for said in ("HEADWISE_CUDA", "no NVIDIA", "the driver is for CUDA"))
    else:
        pytest.skip("a GPU is here")
    with LLM(TINY, backend="auto", **EXACT) as engine:
        assert engine.info["backend"] == "cpu"
        assert ids_of(engine, SamplingParams(max_tokens=2, ignore_eos=True))


def test_weights_are_mapped_or_not(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(TINY, model)
    for use_mmap in (True, False):
        with LLM(model, use_mmap=use_mmap, **EXACT):
            with open("/proc/self/maps") as maps:
                assert any(str(model) in line for line in maps) == use_mmap


def test_experts_are_read_as_they_are_chosen(tmp_path):
    model = tmp_path / "mixture.gguf"  # one layer of three experts of 1,920 bytes
    command("quantize", "--model", TINY.parent / "gpt_oss-mxfp4", "--type", "mxfp4", "--out", model)
    ids = [7 * i % 16 for i in range(30)]
    with LLM(model, **EXACT) as engine:
        expected = engine.logits(ids)
    for num_experts in (1, 2, 3):
        with LLM(model, expert_bytes=1920 * num_experts, **EXACT) as engine:
            assert np.array_equal(engine.logits(ids), expected)
    with pytest.raises(headwise.InvalidInput, match="expert_bytes is 1919, expected at least the 1920 of one expert"):
        LLM(model, expert_bytes=1919, **EXACT)
    with pytest.raises(headwise.HeadwiseError, match="no experts in block formats"):
        LLM(TINY, expert_bytes=1920, **EXACT)
    with pytest.raises(headwise.InvalidInput, match="expert_bytes"):
        LLM(model, expert_bytes="all", **EXACT)


def test_metrics_are_the_commands(llm):
    expected = command_json("run", "--model", MODEL, "--threads", 2, *EXACT_OPTIONS, "--prompt", TEXT, "-n", 5,
                            "--ignore-eos", "--plan", PLAN)  # fmt: skip
    metrics = llm.generate(TEXT, SamplingParams(max_tokens=5, ignore_eos=True), plan=PLAN)[0].outputs[0].metrics
    for name in ("prompt_tokens", "new_tokens", "kv_bytes", "kv_bytes_full", "kv_bytes_bounded", "kv_peak_bytes"):
        assert getattr(metrics, name) == expected[name], name
    assert 0 < metrics.kv_bytes_full < metrics.kv_bytes_bounded


def test_an_engines_plan_is_that_of_requests_that_name_none():
    with LLM(MODEL, plan=PLAN, **EXACT) as engine:
        params = SamplingParams(max_tokens=2, ignore_eos=True)
        sequence = engine.sequence(600)
        sequence.read([1] * 500)
        bounded = engine.generate([[1] * 500], params)[0].outputs[0].metrics
        full = engine.generate([[1] * 500], params, plan="full")[0].outputs[0].metrics
        assert engine.plan == headwise.HeadPlan.read(PLAN)
        assert bounded.kv_bytes_bounded > 0 == full.kv_bytes_bounded
        assert sequence.kv_bytes == bounded.kv_bytes < full.kv_bytes
        assert not np.array_equal(engine.logits([1] * 500, positions=[499]), engine.logits([1] * 500, positions=[499], plan="full"))


def test_an_answer_without_a_limit_fills_its_sequence(tiny):
    rest = SamplingParams(max_tokens=math.inf, ignore_eos=True)
    for turns in (0, 1):
        sequence = tiny.sequence(40)
        sequence.read([1] * 5)
        for _ in range(turns):  # its last token is read with the next prompt
            sequence.generate([2], SamplingParams(max_tokens=3, ignore_eos=True))
        before = sequence.num_tokens
        answer = sequence.generate([3], rest).outputs[0]
        assert len(answer.token_ids) == 40 - before - 1 - turns and answer.finish_reason == "length"


def test_what_an_engine_holds_is_told():
    with LLM(TINY, num_threads=1, kv_limit_bytes=1 << 22, **EXACT) as engine:

        def stats(num_finished: int) -> dict[str, int]:
            wait_until(lambda: engine.stats()["num_finished"] >= num_finished)
            return engine.stats()

        long, short = engine.sequence(600), engine.sequence(600)
        long.read([1] * 500)
        peak = stats(1)["kv_peak_bytes"]
        held = long.kv_bytes
        assert peak >= held > 0
        del long
        short.read([1])
        found = stats(2)
        assert found["kv_limit_bytes"] == 1 << 22
        assert 0 < found["kv_bytes"] <= peak - held + short.kv_bytes < found["kv_peak_bytes"] == peak
        assert found["kv_reserved_bytes"] >= found["kv_bytes"]


def test_admission_is_by_the_worst_case_or_by_what_is_likely():
    """Where memory is for some of them: the ones are waited for, of the others some give way. The texts are the same."""
    params = SamplingParams(max_tokens=500, ignore_eos=True)
    prompts = [[1, 2, 3 + i] for i in range(12)]
    limits = {"num_threads": 1, "kv_limit_bytes": 2_000_000, "page_tokens": 16, "max_num_seqs": 16, "batch_invariant": True}
    found = {}
    for admission in ("worst_case", "likely"):
        with LLM(TINY, kv_admission=admission, **limits, **EXACT) as engine:
            outputs = [each.outputs[0] for each in engine.generate(prompts, params)]
        found[admission] = [each.token_ids for each in outputs]
        assert (sum(each.metrics.num_preemptions for each in outputs) > 0) == (admission == "likely")
    assert found["worst_case"] == found["likely"]


def test_the_lowest_priority_number_is_first_where_not_all_have_memory():
    async def main() -> list[str]:
        with LLM(TINY, num_threads=1, kv_limit_bytes=600_000, **EXACT) as engine:
            order: list[str] = []

            async def ask(name: str, priority: int) -> None:
                params = SamplingParams(max_tokens=500, ignore_eos=True, priority=priority)
                await engine.generate_async([1, 2, 3], params)
                order.append(name)

            # It stays, and neither of the others has room beside it.
            plan = headwise.plan.streaming(TINY, sink=4, recent=60)
            endless = SamplingParams(max_tokens=math.inf, ignore_eos=True)
            first = engine.stream([1, 2, 3], endless, plan=plan, collect=False)
            next(first)
            jobs = [asyncio.ensure_future(ask("later", 5)), asyncio.ensure_future(ask("sooner", -5))]
            for _ in range(100_000):
                if engine.stats()["num_waiting"] == 2:
                    break
                await asyncio.sleep(0)
            assert engine.stats()["num_waiting"] == 2
            first.cancel()
            await asyncio.gather(*jobs)
            return order

    assert asyncio.run(main()) == ["sooner", "later"]


def test_an_answer_ends_at_eos_unless_told_otherwise(tiny):
    likely_eos = {tiny.info["eos_ids"][0]: 1000.0}
    (ended,) = tiny.generate([1, 2, 3], SamplingParams(max_tokens=5, logit_bias=likely_eos))
    assert (ended.outputs[0].token_ids, ended.outputs[0].finish_reason, ended.outputs[0].stop_reason) == ([], "stop", "eos")
    (going,) = tiny.generate([1, 2, 3], SamplingParams(max_tokens=5, logit_bias=likely_eos, ignore_eos=True))
    assert (len(going.outputs[0].token_ids), going.outputs[0].finish_reason) == (5, "length")


def test_a_stream_that_collects_nothing_has_no_text_in_the_end(tiny):
    for collect in (True, False):
        stream = tiny.stream([1, 2, 3], SamplingParams(max_tokens=5, ignore_eos=True), collect=collect)
        assert len([event for event in stream if event.token_id is not None]) == 5
        assert len(stream.output.outputs[0].token_ids) == (5 if collect else 0)


def test_no_limit_is_the_trained_length(tiny):
    trained = tiny.info["trained_length"]
    assert len(ids_of(tiny, SamplingParams(max_tokens=None, ignore_eos=True))) == trained - 3


@pytest.mark.filterwarnings("ignore::headwise.HeadwiseWarning")
def test_no_limit_is_the_trained_length_of_the_whole_text():
    rest = SamplingParams(max_tokens=None, ignore_eos=True)
    with LLM(TINY, num_threads=1, **EXACT) as engine:
        trained = engine.info["trained_length"]
        for turns in (0, 1):
            sequence = engine.sequence(2 * trained)
            sequence.read([1] * 5)
            for _ in range(turns):
                sequence.generate([2], SamplingParams(max_tokens=3, ignore_eos=True))
            sequence.generate([3], rest)
            assert sequence.num_tokens == trained - 1  # the last token is not read yet
            for ask in (sequence.generate, sequence.stream):
                with pytest.raises(headwise.InvalidInput, match=f"has {trained + 1} tokens, expected less than .*{trained}"):
                    ask([3], rest)
        with pytest.raises(headwise.InvalidInput, match=f"the prompt has {trained} tokens, expected less than"):
            engine.generate([[1] * trained], rest)


def test_a_text_that_passes_the_trained_length_is_warned_of(tiny):
    trained = tiny.info["trained_length"]
    for ask in (lambda text: text.read([1, 2]), lambda text: text.generate([1, 2], SamplingParams(max_tokens=1)),
                lambda text: text.logits([1, 2]), lambda text: text.hidden([1, 2])):  # fmt: skip
        text = tiny.sequence(2 * trained)
        text.read([1] * (trained - 2))
        ask(text.fork())
        text.read([1])
        with pytest.warns(headwise.HeadwiseWarning, match=f"has {trained + 1} tokens") as warned:
            ask(text)
        assert [each.filename for each in warned] == [__file__]


def test_a_seed_that_is_not_given_leaves_pythons_random_numbers_alone(tiny):
    state = random.getstate()
    ids_of(tiny, SamplingParams(max_tokens=1, temperature=1.0))
    assert random.getstate() == state


def test_what_an_engine_says_of_itself_is_a_copy(tiny):
    trained = tiny.info["trained_length"]
    tiny.info["trained_length"] = 1
    tiny.info["shape"]["num_layers"] = 99
    assert tiny.info["trained_length"] == trained and tiny.info["shape"]["num_layers"] != 99


def test_ids_may_come_in_any_array(tiny):
    params = SamplingParams(max_tokens=5, ignore_eos=True)
    expected = ids_of(tiny, params)

    class Others:
        """As another library has them: a dtype that is not numpy's."""

        ndim, dtype = 1, "other.int64"

        def __array__(self, dtype=None, copy=None):
            return np.array([1, 2, 3])

    masked = np.ma.masked_array([1, 2, 3], mask=False)
    for prompt in (Others(), masked, {"prompt_token_ids": Others()}):
        assert tiny.generate(prompt, params)[0].outputs[0].token_ids == expected


def test_ids_that_end_an_answer_may_be_an_array(tiny):
    for ids in ([0], np.array([0]), np.array([7, 0])):
        params = SamplingParams(max_tokens=5, stop_token_ids=ids, logit_bias={0: 1000.0}, ignore_eos=True)
        assert ids_of(tiny, params) == []
    assert len(ids_of(tiny, SamplingParams(max_tokens=5, stop_token_ids=np.array([], dtype=int), ignore_eos=True))) == 5


def test_an_answer_without_tokens_has_log_probabilities_of_none(tiny):
    for asked, found in ((None, (None, None)), (0, ([], 0.0)), (2, ([], 0.0))):
        params = SamplingParams(max_tokens=0, logprobs=asked)
        answer = tiny.generate([1, 2], params)[0].outputs[0]
        assert (answer.logprobs, answer.cumulative_logprob) == found
        stream = tiny.stream([1, 2], params)
        assert list(stream) == [] and (stream.output.outputs[0].logprobs, stream.output.outputs[0].cumulative_logprob) == found
        whole = asyncio.run(tiny.generate_async([1, 2], params))
        assert (whole.outputs[0].logprobs, whole.outputs[0].cumulative_logprob) == found


def test_seeds(tiny):
    params = {"max_tokens": 40, "temperature": 2.0, "ignore_eos": True}
    drawn = [ids_of(tiny, SamplingParams(**params)) for _ in range(3)]
    assert drawn[0] != drawn[1] or drawn[1] != drawn[2]
    assert ids_of(tiny, SamplingParams(seed=3, **params)) == ids_of(tiny, SamplingParams(seed=3, **params))
    off = [ids_of(tiny, SamplingParams(seed=3, top_k=top_k, **params)) for top_k in (0, -1)]
    assert off[0] == off[1] != ids_of(tiny, SamplingParams(seed=3, top_k=2, **params))


def test_a_conversation_is_open_for_an_answer_or_not(llm):
    messages = [{"role": "user", "content": "Hello."}]
    whole = llm.encode_chat(messages, add_generation_prompt=False)
    opened = llm.encode_chat(messages)
    assert len(whole) < len(opened) and opened[: len(whole)] == whole


def test_the_tokens_that_end_a_turn_end_a_chat(tmp_path):
    """A form's own end of a turn, in a model whose configuration does not call it an end."""
    for file in MODEL.iterdir():
        (tmp_path / file.name).symlink_to(file)
    config = json.loads((MODEL / "config.json").read_text())
    end_of_text, end_of_turn = config["eos_token_id"]
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps({**config, "eos_token_id": end_of_text}))
    messages = [{"role": "user", "content": "Hello."}]
    params = SamplingParams(max_tokens=4, logit_bias={end_of_turn: 1000.0})
    with LLM(tmp_path, **EXACT) as engine:
        ids = engine.encode_chat(messages)
        assert engine.generate([ids], params)[0].outputs[0].finish_reason == "length"
        assert engine.chat(messages, params)[0].outputs[0].finish_reason == "stop"
        assert len(list(engine.stream_chat(messages, params))) <= 1
        assert asyncio.run(engine.chat_async(messages, params)).outputs[0].finish_reason == "stop"


def test_a_sequence_knows_where_its_prompt_ends(llm):
    """Rules that hold from the end of the prompt read the rest as `logits` does behind so many tokens."""
    ids = llm.encode(" ".join([TEXT] * 12))
    plan = headwise.plan.streaming(MODEL, sink=4, recent=16, positions="text", from_="end_of_prompt")
    rows = {}
    for prompt_tokens in (20, 80):
        sequence = llm.sequence(200, plan=plan, prompt_tokens=prompt_tokens)
        sequence.read(ids[:-1])
        rows[prompt_tokens] = sequence.fork().logits(ids[-1:])
        expected = llm.logits(ids, plan=plan, prompt_tokens=prompt_tokens, positions=[len(ids) - 1])
        np.testing.assert_allclose(rows[prompt_tokens], expected, atol=1e-3)
        forked = llm.sequence(200, plan=plan, prompt_tokens=100).fork(prompt_tokens=prompt_tokens)
        forked.read(ids[:-1])
        np.testing.assert_array_equal(forked.logits(ids[-1:]), rows[prompt_tokens])
    assert np.abs(rows[20] - rows[80]).max() > 0.01


def test_scores_are_read_under_the_plan_they_are_given(llm):
    ids = llm.encode(" ".join([TEXT] * 12))
    late = headwise.plan.streaming(MODEL, sink=4, recent=16, positions="text", from_="end_of_prompt")
    found = {}
    for given in ({}, {"plan": late}, {"plan": late, "prompt_tokens": 20}):
        logits = llm.logits(ids, **given).astype(np.float64)
        logprobs = logits - logits.max(-1, keepdims=True)
        logprobs -= np.log(np.exp(logprobs).sum(-1, keepdims=True))
        found[len(given)] = llm.score(ids, **given)[0]
        expected = [logprobs[i - 1, ids[i]] for i in range(1, len(ids))]
        np.testing.assert_allclose(found[len(given)], expected, atol=1e-3)
    assert np.abs(found[0] - found[2]).max() > 0.01 and np.abs(found[1] - found[2]).max() > 0.01


def test_a_models_own_windows_are_bytes_that_it_does_not_take():
    for model in (TINY, WINDOWED):
        plan = headwise.HeadPlan.dense(model)
        with LLM(model, **EXACT) as engine:
            windows = engine.info["sliding_windows"]
        assert (plan.kv_bytes_at(4096, model) < plan.kv_bytes_at(4096)) == any(window is not None for window in windows)


def test_an_evaluation_begins_texts_as_it_is_told(tmp_path):
    given = {"num_lines": 20, "num_cases": 2}
    tokens = {}
    for bos in (True, False):
        rows = headwise.evaluate("lines", MODEL, bos=bos, engine=EXACT, **given)
        tokens[bos] = [row["prompt_tokens"] for row in rows.results]
    assert tokens[True] == [count + 1 for count in tokens[False]]
