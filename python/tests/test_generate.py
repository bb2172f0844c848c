"""Answers, numbers and kept texts are the command line's, bit for bit."""

from __future__ import annotations

import asyncio
import json
import math
import pathlib

import headwise
import numpy as np
import pytest
from conftest import EXACT_OPTIONS, MODEL, PLAN, command, command_json, read_safetensors
from headwise import SamplingParams

TEXT = "It was the best of times, it was the worst of times. The old captain looked over the sea and"


def run(*options: object, prompt: str = TEXT) -> dict:
    return command_json("run", "--model", MODEL, "--threads", 2, *EXACT_OPTIONS, "--prompt", prompt, *options)


def test_greedy_text_is_the_commands(llm):
    for plan in (None, PLAN):
        options = ("--plan", plan) if plan else ()
        expected = run("-n", 60, "--logprobs", 3, *options)
        (output,) = llm.generate(TEXT, SamplingParams(max_tokens=60, logprobs=3), plan=plan)
        answer = output.outputs[0]
        assert answer.text == output.text == expected["text"]
        assert answer.token_ids == expected["tokens"]
        assert answer.finish_reason == "length"
        content = expected["logprobs"]["content"]
        assert len(answer.logprobs) == len(content)
        for found, row in zip(answer.logprobs, content):
            assert found[row["id"]].logprob == np.float32(row["logprob"])
            top = {each["id"]: np.float32(each["logprob"]) for each in row["top_logprobs"]}
            assert {id: each.logprob for id, each in found.items() if each.rank} == top
            assert found[row["id"]].decoded_token == row["token"]
        assert answer.cumulative_logprob == pytest.approx(sum(row["logprob"] for row in content))
        assert answer.metrics.new_tokens == 60


def test_drawn_text_is_the_commands(llm):
    expected = run("-n", 40, "--temperature", 0.9, "--top-k", 30, "--top-p", 0.9, "--min-p", 0.02, "--seed", 7,
                   "--repetition-penalty", 1.1, "--frequency-penalty", 0.3, "--presence-penalty", 0.2,
                   "--logit-bias", "15=-2")  # fmt: skip
    params = SamplingParams(
        max_tokens=40,
        temperature=0.9,
        top_k=30,
        top_p=0.9,
        min_p=0.02,
        seed=7,
        repetition_penalty=1.1,
        frequency_penalty=0.3,
        presence_penalty=0.2,
        logit_bias={15: -2.0},
    )
    assert llm.generate(TEXT, params)[0].outputs[0].token_ids == expected["tokens"]


def test_several_answers_are_drawn_with_following_seeds(llm):
    params = SamplingParams(n=3, max_tokens=12, temperature=1.0, seed=5)
    (output,) = llm.generate([TEXT], params)
    assert [answer.index for answer in output.outputs] == [0, 1, 2]
    for i, answer in enumerate(output.outputs):
        alone = llm.generate(TEXT, SamplingParams(max_tokens=12, temperature=1.0, seed=5 + i))[0]
        assert alone.outputs[0].token_ids == answer.token_ids


def test_answers_end_where_they_are_told(llm):
    stopped = llm.generate(TEXT, SamplingParams(max_tokens=60, stop=[" the"]))[0].outputs[0]
    whole = llm.generate(TEXT, SamplingParams(max_tokens=60))[0].outputs[0]
    assert whole.text.startswith(stopped.text) and stopped.text == whole.text.split(" the")[0]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", "stop_string")
    by_id = llm.generate(TEXT, SamplingParams(max_tokens=60, stop_token_ids=[whole.token_ids[3]]))[0].outputs[0]
    assert by_id.token_ids == whole.token_ids[: whole.token_ids.index(whole.token_ids[3])]
    assert (by_id.finish_reason, by_id.stop_reason) == ("stop", "eos")


def test_many_prompts_come_back_in_their_order(llm):
    texts = [f"{TEXT} {number}" for number in ("one", "two", "three", "four", "five")] * 4
    progress = []
    params = [SamplingParams(max_tokens=1 + i % 5) for i in range(len(texts))]
    outputs = llm.generate(texts, params, progress=lambda *seen: progress.append(seen))
    assert [output.prompt for output in outputs] == texts
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1 + i % 5 for i in range(len(texts))]
    assert progress == [("generate", i + 1, len(texts)) for i in range(len(texts))]
    assert llm.generate([]) == []


def test_prompts_may_be_ids(llm):
    ids = llm.encode(TEXT)
    expected = llm.generate(TEXT, SamplingParams(max_tokens=5))[0].outputs[0].token_ids
    for prompt in (ids, np.array(ids), {"prompt": TEXT}, {"prompt_token_ids": ids}, [ids], tuple(ids)):
        assert llm.generate(prompt, SamplingParams(max_tokens=5))[0].outputs[0].token_ids == expected
    assert llm.decode(ids) == TEXT
    assert llm.tokenize(TEXT) == ids[1:]


def test_a_prompt_of_both_kinds_is_read_as_ids(llm):
    ids = llm.encode(TEXT)
    (output,) = llm.generate({"prompt": "what the ids were made of", "prompt_token_ids": ids}, SamplingParams(max_tokens=2))
    assert (output.prompt, output.prompt_token_ids) == ("what the ids were made of", ids)


def test_chat_is_the_commands(llm):
    expected = run("--chat", "-n", 20, prompt="Hello.")
    messages = [{"role": "user", "content": "Hello."}]
    (output,) = llm.chat(messages, SamplingParams(max_tokens=20))
    assert output.outputs[0].token_ids == expected["tokens"]
    assert output.prompt_token_ids == llm.encode_chat(messages)
    both = llm.chat([messages, messages], SamplingParams(max_tokens=3))
    assert [len(each.outputs[0].token_ids) for each in both] == [3, 3]
    assert llm.stream_chat(messages, SamplingParams(max_tokens=1)).__next__().token_id == expected["tokens"][0]


def test_a_conversation_takes_the_form_that_is_asked_for(llm):
    messages = [{"role": "user", "content": "Hello."}]
    params = SamplingParams(max_tokens=8)
    template = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    for given in ({"chat_form": "llama-2"}, {"chat_template": template}):
        ids = llm.encode_chat(messages, **given)
        assert ids != llm.encode_chat(messages)
        (output,) = llm.chat(messages, params, **given)
        assert output.prompt_token_ids == ids
        stream = llm.stream_chat(messages, params, **given)
        assert [event.token_id for event in stream if event.token_id is not None] == output.outputs[0].token_ids
        assert stream.output.prompt_token_ids == ids

        async def in_a_loop(given=given):
            events = llm.stream_chat_async(messages, params, **given)
            return await llm.chat_async(messages, params, **given), [event.token_id async for event in events]

        whole, streamed = asyncio.run(in_a_loop())
        assert whole.prompt_token_ids == ids
        assert whole.outputs[0].token_ids == output.outputs[0].token_ids == [id for id in streamed if id is not None]


def test_answers_of_a_form(llm):
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    answer = llm.generate(TEXT, SamplingParams(max_tokens=100, json_schema=schema))[0].outputs[0]
    assert isinstance(json.loads(answer.text)["age"], int)
    assert llm.generate(TEXT, SamplingParams(choice=["north", "south"]))[0].text in ("north", "south")
    assert llm.generate(TEXT, SamplingParams(regex="[0-9]{4}"))[0].text.isdigit()
    assert llm.generate(TEXT, SamplingParams(grammar='root ::= "yes"'))[0].text == "yes"


def test_logits_and_hidden_states_are_the_commands(llm, tmp_path: pathlib.Path):
    ids = llm.encode(TEXT)
    (tmp_path / "ids.json").write_text(json.dumps(ids))
    for plan, prompt_tokens in ((None, -1), (PLAN, 5)):
        options = [*(("--plan", plan) if plan else ()), "--prompt-tokens", prompt_tokens]
        command("logits", "--model", MODEL, "--threads", 2, "--ids", tmp_path / "ids.json", *options,
                "--out", tmp_path / "out.safetensors")  # fmt: skip
        expected = read_safetensors(tmp_path / "out.safetensors")
        given = {"plan": plan, "prompt_tokens": None if prompt_tokens < 0 else prompt_tokens}
        logits = llm.logits(ids, **given)
        assert logits.dtype == np.float32 and logits.shape == (len(ids), llm.info["vocab_size"])
        assert np.array_equal(logits, expected["logits"])
        assert np.array_equal(llm.hidden(ids, **given), expected["hidden"])
        some = [0, 7, len(ids) - 1]
        command("logits", "--model", MODEL, "--threads", 2, "--ids", tmp_path / "ids.json", *options,
                "--positions", ",".join(map(str, some)), "--out", tmp_path / "out.safetensors")  # fmt: skip
        found = llm.logits(np.array(ids, dtype=np.int16), positions=some, **given)
        assert np.array_equal(found, read_safetensors(tmp_path / "out.safetensors")["logits"])


def test_logits_go_on_by_dlpack(llm):
    logits = llm.logits([1, 2, 3])
    assert np.shares_memory(np.from_dlpack(logits), logits)


def test_scores_are_those_of_the_logits(llm):
    ids = llm.encode(TEXT)
    logits = llm.logits(ids).astype(np.float64)
    logprobs = logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
    logprobs -= logits.max(-1, keepdims=True)
    found, greedy = llm.score(ids, first=4)
    expected = [logprobs[i - 1, ids[i]] for i in range(4, len(ids))]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert list(greedy) == [logits[i - 1].argmax() == ids[i] for i in range(4, len(ids))]
    assert llm.score(ids, first=len(ids))[0].shape == (0,)


def test_a_stream_is_the_answer_in_pieces(llm):
    expected = llm.generate(TEXT, SamplingParams(max_tokens=30, logprobs=1))[0].outputs[0]
    stream = llm.stream(TEXT, SamplingParams(max_tokens=30, logprobs=1))
    events = list(stream)
    assert "".join(event.text for event in events) == expected.text
    assert [event.token_id for event in events if event.token_id is not None] == expected.token_ids
    assert [event.logprobs for event in events if event.token_id is not None] == expected.logprobs
    assert stream.output.outputs[0].text == expected.text
    assert list(stream) == []


def test_a_stream_in_an_event_loop_has_the_whole_answer_in_the_end(llm):
    params = SamplingParams(max_tokens=12, logprobs=1)
    expected = llm.generate(TEXT, params)[0]

    async def main() -> None:
        stream = llm.stream_async(TEXT, params)
        assert stream.output is None
        events = [event async for event in stream]
        assert "".join(event.text for event in events) == expected.text
        (answer,) = stream.output.outputs
        assert (answer.token_ids, answer.text, answer.logprobs) == (
            expected.outputs[0].token_ids,
            expected.text,
            expected.outputs[0].logprobs,
        )
        assert (stream.output.prompt, stream.output.prompt_token_ids) == (TEXT, expected.prompt_token_ids)
        assert answer.finish_reason == "length" and [event async for event in stream] == []
        nothing_kept = llm.stream_async(TEXT, params, collect=False)
        assert len([event async for event in nothing_kept if event.token_id is not None]) == 12
        assert nothing_kept.output.outputs[0].token_ids == []

    asyncio.run(main())


def test_a_mapping_without_ids_is_its_text(llm):
    params = SamplingParams(max_tokens=3)
    prompt = {"prompt": TEXT, "prompt_token_ids": None}
    assert llm.generate(prompt, params)[0].prompt_token_ids == llm.encode(TEXT)
    sequence = llm.sequence(200)
    sequence.read(prompt)
    assert sequence.num_tokens == len(llm.encode(TEXT))
    sequence.read(prompt)  # goes on: begins no text
    assert sequence.num_tokens == 2 * len(llm.encode(TEXT)) - 1


def test_an_endless_stream_is_left_when_one_likes(llm):
    plan = headwise.plan.streaming(MODEL, sink=4, recent=60)
    with llm.stream(TEXT, SamplingParams(max_tokens=math.inf, ignore_eos=True), plan=plan, collect=False) as stream:
        texts = [event.text for event, _ in zip(stream, range(200))]
    assert len(texts) == 200
    for _ in stream:  # what was there already; then the end
        pass
    assert stream.output.outputs[0].finish_reason == "abort"


def test_a_sequence_goes_on_and_forks(llm):
    params = SamplingParams(max_tokens=10)
    sequence = llm.sequence(400, plan=PLAN)
    sequence.read(TEXT)
    before = sequence.num_tokens
    fork = sequence.fork()
    first = sequence.generate(" she", params).outputs[0]
    assert fork.num_tokens == before
    assert fork.generate(" she", params).outputs[0].token_ids == first.token_ids
    assert sequence.num_tokens == before + len(llm.tokenize(" she")) + 9
    assert sequence.kv_bytes > 0
    assert repr(sequence) == f"Sequence({sequence.num_tokens} of at most 400 tokens, {sequence.kv_bytes} bytes)"
    again = sequence.fork().generate(" and", params).outputs[0].token_ids
    assert sequence.generate(" and", params).outputs[0].token_ids == again


def test_bounded_heads_hold_what_the_plan_says(llm):
    dense, bounded = llm.sequence(2000), llm.sequence(2000, plan=PLAN)
    for sequence in (dense, bounded):
        sequence.read(" ".join([TEXT] * 40))
    assert bounded.kv_bytes < dense.kv_bytes / 2


def test_a_fork_keeps_its_plan_or_takes_another(llm):
    plan = headwise.plan.streaming(MODEL, sink=4, recent=60, positions="text")
    sequence = llm.sequence(400, plan=plan)
    sequence.read(TEXT)
    longer = sequence.fork(max_tokens=2000)
    longer.read(" ".join([TEXT] * 40))
    assert longer.max_tokens == 2000 and longer.kv_bytes < llm.info["shape"]["num_layers"] * 4 * 6 * 32 * 512
    with pytest.raises(headwise.InvalidInput, match="other rules"):
        sequence.fork(plan="full")
    # A prompt that is not over has been read by both as by full heads.
    late = headwise.plan.streaming(MODEL, sink=4, recent=60, positions="text", from_="end_of_prompt")
    open_prompt = llm.sequence(400, plan=late, prompt_tokens=300)
    open_prompt.read(TEXT)
    assert open_prompt.fork(plan="full").num_tokens == open_prompt.num_tokens


def test_logits_behind_a_sequence(llm):
    ids = llm.encode(TEXT)
    sequence = llm.sequence(100)
    sequence.read(ids[:8])
    np.testing.assert_allclose(sequence.logits(ids[8:]), llm.logits(ids)[8:], atol=1e-4)
    assert sequence.num_tokens == len(ids)
    assert sequence.hidden([1], positions=[0]).shape == (1, llm.info["model_dim"])
