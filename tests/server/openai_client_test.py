#!/usr/bin/env python3
"""`headwise serve` as OpenAI's own client sees it: every endpoint, streamed and whole, and every kind of error.

Called as openai_client_test.py BINARY MODEL_FOLDER PLAN [unittest options]. Wants the package openai, of this
interpreter or of build/clients (tools/install_deps.sh clients): without it nothing is tested, and the status is 77.
"""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import unittest
import urllib.error
import urllib.request

SKIPPED = 77
ROOT = pathlib.Path(__file__).resolve().parents[2]


def with_openai():
    """This interpreter, or the one of build/clients, in which the package is; exits with 77 where neither has it."""
    try:
        import openai  # noqa: F401
        return
    except ImportError:
        pass
    client_python = ROOT / "build" / "clients" / "bin" / "python3"
    if client_python.exists() and pathlib.Path(sys.prefix) != client_python.parents[1]:
        os.execv(client_python, [str(client_python), *sys.argv])
    print("skipped: no Python package openai; `tools/install_deps.sh clients` installs it into build/clients")
    sys.exit(SKIPPED)


with_openai()
sys.path.insert(0, str(ROOT / "tests" / "support"))
import openai  # noqa: E402
import serve  # noqa: E402

BINARY, MODEL, PLAN = sys.argv[1:4]
KEY = "sk-test"
STORY = "Once upon a time there was a house by the sea, and in the house lived"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who lives by the sea?"}]


class Server(serve.Server):
    """With the ways to ask it."""

    def __init__(self, *arguments):
        super().__init__(BINARY, "--model", MODEL, *arguments)

    def client(self, key=KEY):
        return openai.OpenAI(base_url=self.url + "/v1", api_key=key, max_retries=0, timeout=120)

    def ask(self, method, path, body=None, key=KEY, headers=None):
        """Status and body of a plain request, for what the client has no call for."""
        request = urllib.request.Request(self.url + path, method=method,
                                         data=None if body is None else json.dumps(body).encode())
        request.add_header("Content-Type", "application/json")
        if key:
            request.add_header("Authorization", "Bearer " + key)
        for name, value in (headers or {}).items():
            request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        status = self.process.wait(timeout=60)
        self.reader.join()
        self.process.stderr.close()
        return status


class Api(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--plan", "two-heads=" + PLAN, "--api-key", KEY, "--allow-origin", "https://app.example")
        cls.client = cls.server.client()
        cls.model = cls.client.models.list().data[0].id

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        assert cls.server.stop() == 0

    def complete(self, **more):
        return self.client.completions.create(
            **{"model": self.model, "prompt": STORY, "max_tokens": 16, "temperature": 0, **more})

    def chat(self, **more):
        return self.client.chat.completions.create(
            **{"model": self.model, "messages": MESSAGES, "max_tokens": 16, "temperature": 0, **more})

    def test_models(self):
        self.assertEqual(self.model, pathlib.Path(MODEL).name)
        self.assertEqual(self.client.models.retrieve(self.model).id, self.model)
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.models.retrieve("gpt-4")
        self.assertEqual(caught.exception.code, "model_not_found")

    def test_completion(self):
        answer = self.complete()
        self.assertEqual(answer.object, "text_completion")
        self.assertEqual(answer.choices[0].finish_reason, "length")
        self.assertEqual(answer.usage.completion_tokens, 16)
        self.assertEqual(answer.usage.headwise["plan"], "full")
        self.assertGreater(answer.usage.headwise["kv_bytes"], 0)
        self.assertEqual(self.complete().choices[0].text, answer.choices[0].text)

    def test_completion_stream(self):
        whole = self.complete().choices[0].text
        chunks = list(self.complete(stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(chunk.choices[0].text for chunk in chunks if chunk.choices), whole)
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, 16)
        self.assertTrue(all(chunk.usage is None for chunk in chunks[:-1]))

    def test_many_prompts_and_choices(self):
        answer = self.complete(prompt=[STORY, "The", [5, 6, 7]], n=2, temperature=1, seed=3)
        self.assertEqual([choice.index for choice in answer.choices], list(range(6)))
        self.assertNotEqual(answer.choices[0].text, answer.choices[1].text)
        again = self.complete(prompt=[STORY, "The", [5, 6, 7]], n=2, temperature=1, seed=3)
        self.assertEqual([each.finish_reason for each in again.choices], [each.finish_reason for each in answer.choices])

    def test_echo_and_logprobs(self):
        tokens = json.loads(self.server.ask("POST", "/tokenize", {"prompt": STORY})[1])["tokens"]
        choice = self.complete(prompt=tokens, max_tokens=1, echo=True, logprobs=1).choices[0]
        self.assertEqual(len(choice.logprobs.tokens), len(tokens) + 1)
        self.assertIsNone(choice.logprobs.token_logprobs[0])
        self.assertTrue(all(logprob <= 0 for logprob in choice.logprobs.token_logprobs[1:]))
        for logprob, top in zip(choice.logprobs.token_logprobs[1:], choice.logprobs.top_logprobs[1:]):
            self.assertIn(logprob, top.values())
        self.assertTrue(choice.text.startswith(STORY))

    def test_stop_and_bias(self):
        whole = self.complete().choices[0].text
        stopped = self.complete(stop=whole[5:8]).choices[0]
        self.assertEqual(stopped.text, whole[:whole.index(whole[5:8])])
        self.assertEqual(stopped.finish_reason, "stop")
        self.assertEqual(self.complete(logit_bias={"5": 100}, max_tokens=3).usage.completion_tokens, 3)

    def test_plans(self):
        long = STORY * 30
        full = self.complete(prompt=long).usage.headwise
        bounded = self.complete(prompt=long, extra_body={"plan": "two-heads"}).usage.headwise
        self.assertLess(bounded["kv_bytes"], full["kv_bytes"])
        status, _ = self.server.ask("POST", "/v1/plans", {"name": "mine", "plan": json.loads(pathlib.Path(PLAN).read_text())})
        self.assertEqual(status, 201)
        names = [plan["id"] for plan in json.loads(self.server.ask("GET", "/v1/plans")[1])["data"]]
        self.assertEqual(names, ["full", "two-heads", "mine"])
        self.assertEqual(self.complete(extra_body={"plan": "mine"}).usage.headwise["plan"], "mine")
        self.assertEqual(self.server.ask("DELETE", "/v1/plans/mine")[0], 200)
        with self.assertRaises(openai.NotFoundError):
            self.complete(extra_body={"plan": "mine"})

    def test_chat(self):
        answer = self.chat(logprobs=True, top_logprobs=3)
        message = answer.choices[0].message
        self.assertEqual(message.role, "assistant")
        content = answer.choices[0].logprobs.content
        self.assertEqual(bytes(byte for token in content for byte in token.bytes).decode(errors="replace"), message.content)
        self.assertTrue(all(len(token.top_logprobs) == 3 for token in content))
        # An answer handed back as the client has it.
        again = self.chat(messages=[*MESSAGES, message, {"role": "user", "content": [{"type": "text", "text": "And?"}]}])
        self.assertGreater(again.usage.prompt_tokens, answer.usage.prompt_tokens)

    def test_chat_stream(self):
        whole = self.chat().choices[0].message.content
        chunks = list(self.chat(stream=True))
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual("".join(chunk.choices[0].delta.content or "" for chunk in chunks), whole)
        self.assertIsNotNone(chunks[-1].choices[0].finish_reason)

    def test_leaving_a_stream_ends_it(self):
        stream = self.complete(stream=True, max_tokens=30000, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        for _ in range(600):
            text = self.server.ask("GET", "/metrics")[1]
            # Events that wait to be handed out are counted when they are.
            if re.search(r'finished_reason="abort"\} [1-9]', text) and re.search(r"num_requests_running\{.*\} 0", text):
                break
            threading.Event().wait(0.1)
        self.assertRegex(text, r'finished_reason="abort"\} [1-9]')
        self.assertRegex(text, r"(?m)^headwise:num_requests_running\{.*\} 0$")
        for head_class in ("full", "bounded"):
            self.assertRegex(text, r'(?m)^headwise:kv_cache_bytes\{.*head_class="%s"\} 0$' % head_class)

    def test_tokens(self):
        ids = json.loads(self.server.ask("POST", "/tokenize", {"content": "Hello there"})[1])["tokens"]
        self.assertEqual(json.loads(self.server.ask("POST", "/detokenize", {"tokens": ids})[1])["content"], "Hello there")

    def needs_grammars(self):
        try:
            self.complete(extra_body={"guided_regex": "a"})
        except openai.BadRequestError as error:
            if error.code == "unsupported":
                self.skipTest("built without xgrammar")
            raise

    def test_json_schema(self):
        self.needs_grammars()
        schema = {"type": "object", "properties": {"town": {"type": "string", "maxLength": 12}, "days": {"enum": [1, 2]}},
                  "required": ["town", "days"], "additionalProperties": False}
        form = {"type": "json_schema", "json_schema": {"name": "trip", "schema": schema, "strict": True}}
        for fields in ({}, {"temperature": 2, "seed": 3}):
            choice = self.chat(response_format=form, max_tokens=200, **fields).choices[0]
            self.assertEqual(choice.finish_reason, "stop")
            answer = json.loads(choice.message.content)
            self.assertEqual(list(answer), ["town", "days"])
            self.assertIn(answer["days"], [1, 2])
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "thing"}}})
        self.assertEqual(caught.exception.param, "response_format")
        self.assertIn("schema: #: type", caught.exception.message)
        text = self.complete(extra_body={"structured_outputs": {"choice": ["sea", "wood"]}}).choices[0].text
        self.assertIn(text, ["sea", "wood"])

    def test_tools(self):
        self.needs_grammars()
        parameters = {"type": "object", "properties": {"town": {"type": "string", "maxLength": 12}}, "required": ["town"],
                      "additionalProperties": False}
        tools = [{"type": "function", "function": {"name": name, "parameters": parameters}} for name in ("weather", "map")]
        named = {"type": "function", "function": {"name": "map"}}
        for choice, names in [("required", ["weather", "map"]), (named, ["map"])]:
            answer = self.chat(tools=tools, tool_choice=choice, parallel_tool_calls=False, max_tokens=200).choices[0]
            self.assertEqual(answer.finish_reason, "tool_calls")
            self.assertIsNone(answer.message.content)
            (call,) = answer.message.tool_calls
            self.assertEqual(call.type, "function")
            self.assertIn(call.function.name, names)
            arguments = json.loads(call.function.arguments)
            self.assertEqual(list(arguments), ["town"])

            chunks = list(self.chat(tools=tools, tool_choice=choice, parallel_tool_calls=False, max_tokens=200, stream=True))
            pieces = [piece for chunk in chunks for piece in chunk.choices[0].delta.tool_calls or []]
            self.assertEqual({piece.index for piece in pieces}, {0})
            self.assertTrue(pieces[0].id)
            self.assertEqual([piece.function.name for piece in pieces if piece.function.name], [call.function.name])
            streamed = "".join(piece.function.arguments for piece in pieces)
            self.assertEqual(json.loads(streamed), arguments)
            self.assertEqual(chunks[-1].choices[0].finish_reason, "tool_calls")
        # The result goes back, as clients hand it back.
        messages = [*MESSAGES, answer.message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
        after = self.chat(messages=messages, tools=tools).choices[0]
        self.assertIn(after.finish_reason, ["stop", "length", "tool_calls"])
        # What clients do that make schemas of their types.
        with self.client.chat.completions.stream(model=self.model, messages=MESSAGES, tools=tools, tool_choice="required",
                                                 max_tokens=400, temperature=0) as stream:
            final = stream.get_final_completion()
        self.assertGreaterEqual(len(final.choices[0].message.tool_calls), 1)

    def test_errors(self):
        cases = [
            (openai.BadRequestError, {"temperature": 5}, "temperature"),
            (openai.BadRequestError, {"suffix": "x"}, "suffix"),
            (openai.BadRequestError, {"extra_body": {"frobnicate": 1}}, "frobnicate"),
            (openai.BadRequestError, {"max_tokens": 10**6}, "max_tokens"),
            (openai.NotFoundError, {"model": "gpt-4"}, "model"),
        ]
        for error, fields, param in cases:
            with self.assertRaises(error) as caught:
                self.complete(**fields)
            self.assertEqual(caught.exception.param, param)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.complete(prompt=STORY * 3000)
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "thing"}}}])
        self.assertEqual(caught.exception.param, "tools[0].function.parameters")
        with self.server.client("sk-wrong") as stranger, self.assertRaises(openai.AuthenticationError):
            stranger.models.list()

    def test_what_is_no_request(self):
        ask = self.server.ask
        self.assertEqual(ask("GET", "/health", key=None)[0], 200)
        self.assertEqual(ask("GET", "/metrics", key=None)[0], 401)
        self.assertEqual(ask("GET", "/v1/completions")[0], 405)
        self.assertEqual(ask("GET", "/nowhere")[0], 404)
        for origin, status in [("https://evil.example", 403), ("https://app.example", 200)]:
            body = {"prompt": "x", "max_tokens": 1}
            self.assertEqual(ask("POST", "/v1/completions", body, headers={"Origin": origin})[0], status)
        for status, text in [ask("POST", "/v1/completions", []), ask("GET", "/nowhere")]:
            self.assertGreaterEqual(status, 400)
            self.assertEqual(set(json.loads(text)["error"]), {"message", "type", "param", "code"})


class Life(unittest.TestCase):
    def test_answers_under_way_are_finished(self):
        server = Server()
        with server.client() as client:
            stream = client.completions.create(model=pathlib.Path(MODEL).name, prompt=STORY, max_tokens=200, stream=True,
                                               temperature=0, extra_body={"ignore_eos": True})
            chunks = iter(stream)
            next(chunks)
            server.process.send_signal(signal.SIGTERM)
            last = list(chunks)[-1]
        self.assertEqual(last.choices[0].finish_reason, "length")
        self.assertEqual(server.process.wait(timeout=60), 0)
        server.reader.join()
        server.process.stderr.close()

    def test_a_second_signal_ends_it_at_once(self):
        server = Server("--drain-seconds", "600")
        with server.client() as client:
            stream = client.completions.create(model=pathlib.Path(MODEL).name, prompt=STORY, max_tokens=30000, stream=True,
                                               extra_body={"ignore_eos": True})
            next(iter(stream))
            server.process.send_signal(signal.SIGTERM)
            while not any("stopping" in line for line in server.log):
                threading.Event().wait(0.01)
            self.assertEqual(server.stop(signal.SIGINT), -signal.SIGINT)
            stream.close()

    def test_bad_options(self):
        for arguments, message in [(["--port", "70000"], "--port"), (["--plan", "nowhere.json"], "nowhere.json"),
                                   (["--tls-cert", "x"], "--tls-key"), (["--model", MODEL], "two models are called")]:
            command = [BINARY, "serve", "--model", MODEL, *arguments]
            run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            self.assertEqual(run.returncode, 1, run.stderr)
            self.assertIn(message, run.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
