#!/usr/bin/env python3
"""headwise run: what steers the draws, log-probabilities, and files of prompts."""
import json
import os
import pty
import signal
import subprocess

from cli_support import MODEL, CliTest, command_of, headwise, line_prompt, main

RUN = ("run", "--model", MODEL)
ONCE = (*RUN, "--prompt", "Once upon a time", "--ignore-eos")
EXACT = ("--compute", "f32", "--kv-dtype", "f32")


class Sampling(CliTest):
    def tokens(self, *arguments):
        # The third token is a near tie, and behind the other one comes a text that only repeats itself.
        return json.loads(self.succeeds(*ONCE, *EXACT, "-n", 40, "--json", *arguments).stdout)["tokens"]

    def test_penalties_hold_back_what_was_said(self):
        plain = self.tokens()
        for option in ("--presence-penalty", "--frequency-penalty"):
            self.assertEqual(self.tokens(option, 0), plain)
            self.assertGreater(len(set(self.tokens(option, 2))), len(set(plain)))
            self.assertLess(len(set(self.tokens(option, -2))), len(set(plain)))

    def test_biases(self):
        first = self.tokens()[0]
        self.assertNotIn(first, self.tokens("--logit-bias", f"{first}=-inf"))
        self.assertEqual(self.tokens("--logit-bias", "300=inf"), [300] * 40)
        self.assertEqual(self.tokens("--logit-bias", "300=1e4", "--logit-bias", "301=+20000"), [301] * 40)

    def test_what_is_refused(self):
        for option in ("presence", "frequency"):
            self.refuses(*ONCE, f"--{option}-penalty", 2.5, says=f"{option}_penalty is 2.5, expected a number from -2 to 2")
            self.refuses(*ONCE, f"--{option}-penalty", "nan", status=2, says=f"--{option}-penalty")
        for wrong in ("5", "5=", "=5", "x=5", "5=x", "-5=1", "5=nan", "5=+-1", "5=1 "):
            self.refuses(*ONCE, f"--logit-bias={wrong}", status=2, says=["--logit-bias", f'found "{wrong}"', "TOKEN_ID=BIAS"])
        self.refuses(*ONCE, "--logit-bias", "8192=1", says="logit_bias: token id 8192, expected 0 to 8191")
        self.refuses(*ONCE, "--logit-bias", "5=1", "--logit-bias", "5=2", says="logit_bias of token 5 is given twice")
        self.refuses("chat", "--model", MODEL, "--logit-bias", "8192=1", stdin=b"Hello.\n", says="token id 8192")


class Forms(CliTest):
    SCHEMA = {"type": "object", "properties": {"town": {"type": "string", "maxLength": 10}, "n": {"enum": [1, 2]}},
              "required": ["town", "n"], "additionalProperties": False}

    def setUp(self):
        super().setUp()
        self.schema = self.write("schema.json", json.dumps(self.SCHEMA))
        probe = headwise(*RUN, "--prompt", "x", "-n", 1, "--json-schema", self.schema)
        if b"without constrained decoding" in probe.stderr:
            self.skipTest("built without xgrammar")

    def write(self, name, text):
        path = self.path / name
        path.write_text(text)
        return path

    def test_answers_are_of_the_schema(self):
        for temperature in (0, 2):
            run = self.succeeds(*RUN, "--prompt", "Once", "--temperature", temperature, "--seed", 1, "--json-schema", self.schema)
            answer = json.loads(run.stdout)
            self.assertEqual(list(answer), ["town", "n"])
            self.assertLessEqual(len(answer["town"]), 10)
            self.assertIn(answer["n"], [1, 2])

    def test_answers_are_of_the_grammar(self):
        grammar = self.write("g.gbnf", 'root ::= ("yes" | "no") "!"\n')
        self.assertIn(self.succeeds(*RUN, "--prompt", "Once", "--grammar", grammar).stdout, [b"yes!\n", b"no!\n"])
        lines = self.write("p.jsonl", '{"prompt": "a"}\n{"prompt": "b", "temperature": 2}\n')
        for line in self.succeeds(*RUN, "--prompts", lines, "--grammar", grammar).stdout.splitlines():
            self.assertIn(json.loads(line)["text"], ["yes!", "no!"])

    def test_what_is_refused(self):
        bad = self.write("bad.json", '{"type": "widget"}')
        self.refuses(*RUN, "--prompt", "x", "--json-schema", bad, says=["bad.json: schema: #: type", "widget"])
        self.refuses(*RUN, "--prompt", "x", "--grammar", bad, says="bad.json: grammar:")
        self.refuses(*RUN, "--prompt", "x", "--grammar", "nowhere.gbnf", says="nowhere.gbnf")
        self.refuses(*ONCE, "--json-schema", self.schema, status=2, says="--ignore-eos")


class Logprobs(CliTest):
    def test_json(self):
        result = json.loads(self.succeeds(*ONCE, "-n", 6, "--json", "--logprobs", 3).stdout)
        content = result["logprobs"]["content"]
        self.assertEqual([token["id"] for token in content], result["tokens"])
        self.assertEqual(b"".join(bytes(token["bytes"]) for token in content).decode(), result["text"])
        for token in content:
            self.assertEqual(bytes(token["bytes"]).decode(), token["token"])
            self.assertLess(token["logprob"], 0)
            top = token.pop("top_logprobs")
            self.assertEqual(top[0], token)  # greedy
            self.assertEqual([each["logprob"] for each in top], sorted((each["logprob"] for each in top), reverse=True))
            self.assertEqual(len({each["id"] for each in top}), 3)
        self.assertNotIn("logprobs", json.loads(self.succeeds(*ONCE, "-n", 6, "--json").stdout))

    def test_are_of_the_raw_logits(self):
        def content(*arguments):
            return json.loads(self.succeeds(*ONCE, "-n", 1, "--json", *arguments).stdout)["logprobs"]["content"][0]
        plain = content("--logprobs", 1)
        forced = content("--logprobs", 1, "--logit-bias", "300=inf", "--temperature", 2, "--repetition-penalty", 1.5,
                         "--seed", 1)
        self.assertEqual(forced["id"], 300)
        self.assertEqual(forced["top_logprobs"], plain["top_logprobs"])
        self.assertLess(forced["logprob"], plain["logprob"])
        self.assertEqual(content("--logprobs", 0)["top_logprobs"], [])

    def test_what_is_refused(self):
        self.refuses(*ONCE, "--logprobs", 3, says=["--logprobs", "--json"])
        self.refuses(*ONCE, "--json", "--logprobs", -1, says="--logprobs: found -1, expected 0 to 256")
        self.refuses(*ONCE, "--json", "--logprobs", 257, says="--logprobs: found 257")


class Prompts(CliTest):
    """A file of them."""

    def file(self, *lines):
        path = self.path / "prompts.jsonl"
        path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
        return path

    def results(self, *arguments, **options):
        return [json.loads(line) for line in self.succeeds(*RUN, *arguments, **options).stdout.splitlines()]

    def test_lines_are_in_order_and_what_one_prompt_gives(self):
        names = ("timid-otter", "nimble-heron", "velvet-wagon")
        prompts = ["Once", *map(line_prompt, names), "The pass key is"]
        file = self.file({"prompt": prompts[0], "max_tokens": 60}, "", *({"prompt": each} for each in prompts[1:]))
        common = ("--ignore-eos", *EXACT)
        expected = [json.loads(self.succeeds(*RUN, "--prompt", each, *common, "-n", 60 if each == "Once" else 24,
                                             "--json").stdout) for each in prompts]
        common = ("-n", 24, *common)
        for batch in (1, 2, 8):
            results = self.results("--prompts", file, "--batch", batch, *common)
            self.assertEqual([each["index"] for each in results], list(range(5)))
            for result, alone in zip(results, expected):
                for key in ("text", "tokens", "finish", "prompt_tokens", "new_tokens"):
                    self.assertEqual(result[key], alone[key], (batch, key))
        self.assertEqual(self.results("--prompts", "-", *common, stdin=file.read_bytes())[4]["text"], expected[4]["text"])

    def test_a_line_has_options_of_its_own(self):
        seeds = {"prompt": "Once upon a time", "temperature": 1.5, "top_k": 50}
        file = self.file({"prompt": "Once upon a time", "id": "a", "max_tokens": 3},
                         {"prompt": line_prompt("timid-otter"), "id": 7, "stop": "16"},
                         {"prompt": line_prompt("timid-otter"), "stop": ["2416", "24"]},
                         {"messages": [{"role": "user", "content": "Hello."}]},
                         {**seeds, "seed": 2**63 + 5}, seeds, seeds,
                         {"prompt": "Once upon a time", "logprobs": 2, "frequency_penalty": 2.0})
        results = self.results("--prompts", file, "-n", 30, "--seed", 11, *EXACT)
        self.assertEqual(results[0]["id"], "a")
        self.assertEqual(results[0]["new_tokens"], 3)
        self.assertEqual(results[1]["id"], 7)
        self.assertTrue(results[1]["text"].endswith("<24"), results[1]["text"])
        self.assertTrue(results[2]["text"].endswith("<"), results[2]["text"])
        self.assertNotIn("id", results[2])
        chat = self.succeeds(*RUN, "--chat", "--prompt", "Hello.", "-n", 30, "--json", *EXACT).stdout
        self.assertEqual(results[3]["tokens"], json.loads(chat)["tokens"])
        self.assertEqual([each.get("seed") for each in results], [None] * 4 + [2**63 + 5, 16, 17, None])
        self.assertNotEqual(results[5]["tokens"], results[6]["tokens"])
        again = self.succeeds(*RUN, "--prompt", seeds["prompt"], "-n", 30, "--temperature", 1.5, "--top-k", 50, "--seed",
                              17, "--json", *EXACT).stdout
        self.assertEqual(json.loads(again)["tokens"], results[6]["tokens"])
        self.assertEqual(len(results[7]["logprobs"]["content"]), len(results[7]["tokens"]))

    def test_a_seed_is_drawn_where_a_line_draws(self):
        file = self.file({"prompt": "Once"}, {"prompt": "Once", "temperature": 1})
        done = self.succeeds(*RUN, "--prompts", file, "-n", 2)
        greedy, drawn = map(json.loads, done.stdout.splitlines())
        self.assertNotIn("seed", greedy)
        self.assertIn(f"--seed {drawn['seed'] - 1}\n", done.stderr.decode())

    def test_a_bad_line_is_named_before_anything_runs(self):
        good = {"prompt": "Once"}
        user = {"role": "user", "content": "x"}
        out = self.path / "out.jsonl"
        for bad, says in (('{"prompt": ', "not valid JSON"), ("[1]", "expected an object"), ({}, "neither prompt nor messages"),
                          ({"prompt": "x", "messages": [user]}, "both prompt and messages"), ({"prompt": 3}, "prompt"),
                          ({"messages": []}, "the last is no user's"), ({"messages": [user, {**user, "role": ""}]}, "message 1"),
                          ({**good, "temprature": 1}, '"temprature" is unknown'), ({**good, "temperature": "hot"}, "temperature"),
                          ({**good, "stop": [""]}, "stop"), ({**good, "stop": 3}, "stop"), ({**good, "id": [1]}, "id"),
                          ({**good, "seed": -1}, "seed is -1"), ({**good, "max_tokens": -2}, "max_tokens is -2"),
                          ({**good, "logprobs": 257}, "logprobs is 257"), ({**good, "top_k": 1.5}, "top_k")):
            # The model is not even looked for.
            done = self.refuses("run", "--model", self.path / "nowhere", "--prompts", self.file(good, bad), "--out", out,
                                says=["prompts.jsonl:2: ", says])
            self.assertEqual(done.stdout, b"")
        for bad, says in (({"prompt": ""}, "empty"), ({"messages": [user, {**user, "role": "tool"}]}, "message 1"), ({**good, "temperature": -1}, "temperature is -1"),
                          ({**good, "presence_penalty": 3}, "presence_penalty is 3"), ({**good, "top_p": 1e300}, "top_p")):
            done = self.refuses(*RUN, "--prompts", self.file(good, bad), "--out", out, says=["prompts.jsonl:2: ", says])
            self.assertEqual(done.stdout, b"")
        self.assertFalse(out.exists())
        self.refuses(*RUN, "--prompts", self.file(""), says=["prompts.jsonl", "holds no prompts"])
        self.refuses(*RUN, "--prompts", self.path / "nowhere", says="nowhere")

    def test_one_that_fails_is_a_line_too(self):
        file = self.file({"prompt": "Once"}, {"prompt": line_prompt("timid-otter"), "id": "long"}, {"prompt": "Twice"})
        for limit, says in (("--max-context", "expected less than --max-context 40"), ("--kv-limit-bytes", "are available")):
            done = self.refuses(*RUN, "--prompts", file, "-n", 4, limit, 40 if limit == "--max-context" else "600K",
                                says="1 of 3 prompts failed")
            first, failed, last = map(json.loads, done.stdout.splitlines())
            self.assertEqual(set(failed), {"index", "id", "error"})
            self.assertEqual((failed["index"], failed["id"]), (1, "long"))
            self.assertIn(says, failed["error"])
            self.assertTrue(first["text"] and last["text"])

    def test_out(self):
        file = self.file({"prompt": "Once"}, {"prompt": "Twice"})
        out = self.path / "out.jsonl"
        out.write_text("what was there\n" * 100)
        done = self.succeeds(*RUN, "--prompts", file, "-n", 4, "--out", out, "--stats")
        self.assertEqual(done.stdout, b"")
        self.assertIn(b"tokens/s", done.stderr)
        texts = [json.loads(line)["text"] for line in out.read_text().splitlines()]
        self.assertEqual(texts, [each["text"] for each in self.results("--prompts", file, "-n", 4)])
        self.refuses(*RUN, "--prompts", file, "--out", file, says="is the file of --prompts")
        self.assertIn("Twice", file.read_text())

    def test_wrong_usage(self):
        file = self.file({"prompt": "Once"})
        self.refuses(*RUN, "--prompts", file, "--prompt", "x", status=2, says="")
        self.refuses(*RUN, "--prompts", file, "--json", status=2, says="--json")
        self.refuses(*RUN, "--prompt", "x", "--out", self.path / "out", status=2, says="--prompts")
        self.refuses(*RUN, "--prompt", "x", "--batch", 2, status=2, says="--prompts")
        self.refuses(*RUN, "--prompts", file, "--batch", 0, says="--batch: found 0, expected 1 to")

    def interrupted(self, *lines, batch, shows, reads):
        """Ends it once the bar shows `shows`; its lines and its message."""
        command = command_of(*RUN, "--prompts", self.file(*lines), "--batch", batch, "--ignore-eos")
        ours, theirs = pty.openpty()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs) as process:
            os.close(theirs)
            first = process.stdout.readline() if reads else b""
            message = b""
            while shows not in message:
                message += os.read(ours, 65536)
            process.send_signal(signal.SIGINT)
            try:
                while more := os.read(ours, 65536):
                    message += more
            except OSError:  # it has ended
                pass
            output = first + process.stdout.read()
        os.close(ours)
        self.assertEqual(process.returncode, 130, message)
        return [json.loads(line) for line in output.splitlines()], message

    def test_interrupted(self):
        short, endless = {"prompt": "Once", "max_tokens": 2}, {"prompt": "Once", "max_tokens": 30000}
        # The first line is there while the second is being made.
        lines, message = self.interrupted(short, endless, batch=1, shows=b"1/2", reads=True)
        self.assertEqual([line["index"] for line in lines], [0])
        self.assertIn(b"interrupted: 1 of 2 prompts", message)
        # One that waits for those before it is not lost.
        lines, message = self.interrupted(endless, short, endless, batch=3, shows=b"1/3", reads=False)
        self.assertEqual([line["index"] for line in lines], [1])
        self.assertEqual(lines[0]["new_tokens"], 2)


if __name__ == "__main__":
    main()
