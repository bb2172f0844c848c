#!/usr/bin/env python3
"""What becomes of what the headwise command writes: on a full device, in the place of other things, when it is ended."""
import json
import os
import stat
import subprocess

from cli_support import BINARY, MODEL, CliTest, main

SHORT = ("--max-new-tokens", 4, "--ignore-eos")


class LostOutput(CliTest):
    """Output that nobody gets is an error, also where all of it fits into a buffer."""

    def loses(self, *arguments, stdin=b""):
        command = [BINARY, *map(os.fspath, map(str, arguments))]
        with open("/dev/full", "wb") as full:
            done = subprocess.run(command, input=stdin, stdout=full, stderr=subprocess.PIPE, timeout=600, check=False)
        self.assertEqual(done.returncode, 1, (arguments, done.stderr))
        self.assertEqual(done.stderr.count(b"standard output: cannot write: No space left on device"), 1, arguments)

    def test_full_device(self):
        text = self.path / "text.txt"
        text.write_text("The miller waited by the river. " * 20)
        plan = self.plan("streaming", "--sink", 16, "--recent", 64)
        run = ("run", "--model", MODEL, "--prompt", "Once", *SHORT)
        prompts = self.path / "prompts.jsonl"
        prompts.write_text('{"prompt": "Once"}\n' * 3)
        ppl = ("eval", "ppl", "--model", MODEL, "--text", text, "--lengths", 32)
        for arguments in (run, (*run, "--json"), ("run", "--model", MODEL, "--prompts", prompts, *SHORT), ppl, (*ppl, "--json"), ("inspect", "--plan", plan),
                          ("inspect", "--model", MODEL, "--json"), ("plan", "compare", plan, plan),
                          ("plan", "streaming", "--model", MODEL, "--sink", 4, "--recent", 64, "--out",
                           self.path / "other.json"),
                          ("quantize", "--model", MODEL, "--out", self.path / "q.gguf"), ("--help",), ("run", "--help")):
            self.loses(*arguments)
        self.loses("tokenize", "--model", MODEL, stdin=b"x")
        self.loses("tokenize", "--model", MODEL, "--decode", stdin=b"[100]")

    def test_a_chat_that_nobody_hears_ends(self):
        self.loses("chat", "--model", MODEL, "--max-new-tokens", 4, stdin=b"Hello.\nAnd again?\n")

    def test_no_file_takes_the_place_of_a_closed_output(self):
        text = self.path / "text.txt"
        text.write_text("The miller waited by the river. " * 20)
        out = self.path / "run"
        done = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", BINARY, "eval", "ppl", "--model", MODEL, "--text", text,
                               "--lengths", "32", "--out", out], stderr=subprocess.PIPE, timeout=600, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"standard output: cannot write: Bad file descriptor", done.stderr)
        for line in (out / "results.jsonl").read_text().splitlines():
            json.loads(line)


class Terminal(CliTest):
    def test_names_in_files_do_not_reach_it_raw(self):
        plan = self.plan("streaming", "--sink", 16, "--recent", 64)
        content = json.loads(plan.read_text())
        hostile = "\x1b[2Jgone\x9b31m"
        content["notes"] = [hostile]
        plan.write_text(json.dumps(content))
        outputs = [self.succeeds("inspect", "--plan", plan).stdout, self.succeeds("inspect", "--plan", plan, "--json").stdout]
        self.assertEqual(json.loads(outputs[1])["plan"]["notes"], [hostile])
        content["model"]["architecture"] = content["method"] = hostile
        plan.write_text(json.dumps(content))
        outputs.append(self.refuses("run", "--model", MODEL, "--plan", plan, "--prompt", "x", says="u001b[2Jgone").stderr)
        other = self.path / f"{hostile}.json"
        other.write_text("{}")
        outputs.append(self.refuses("plan", "compare", other, says="u001b[2Jgone").stderr)
        for output in outputs:
            self.assertNotIn(b"\x1b[2J", output)
            self.assertNotIn("\x9b".encode(), output)
            self.assertIn(b"\\u009b31m", output)


class OutputFiles(CliTest):
    def test_what_is_no_file_is_not_replaced(self):
        pipe = self.path / "pipe"
        os.mkfifo(pipe)
        plan = self.plan("streaming", "--sink", 16, "--recent", 64)
        ids = self.path / "ids.json"
        ids.write_text("[0, 100]")
        for arguments in (("plan", "streaming", "--model", MODEL, "--sink", 4, "--recent", 64, "--out", pipe),
                          ("plan", "export-duo", "--from", plan, "--out", pipe),
                          ("inspect", "--plan", plan, "--svg", pipe),
                          ("logits", "--model", MODEL, "--ids", ids, "--out", pipe),
                          ("quantize", "--model", MODEL, "--out", pipe),
                          ("run", "--model", MODEL, "--prompts", ids, "--out", pipe)):
            self.refuses(*arguments, says="pipe: is a FIFO, expected a file")
        # Before the model runs.
        self.refuses("plan", "duo", "--model", MODEL, "--out", pipe, says="pipe: is a FIFO, expected a file")
        self.assertTrue(stat.S_ISFIFO(pipe.stat().st_mode))


if __name__ == "__main__":
    main()
