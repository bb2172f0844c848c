#!/usr/bin/env python3
"""`headwise bench serve` against a running `headwise serve`: small loads, what is reported of them, and bad inputs.

Called as bench_serve_test.py BINARY MODEL_FOLDER PLAN [unittest options].
"""
import json
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import serve  # noqa: E402

BINARY, MODEL, PLAN = sys.argv[1:4]


def run(*arguments):
    return subprocess.run([BINARY, "bench", "serve", *map(str, arguments)], capture_output=True, text=True, timeout=600,
                          check=False)


class BenchServe(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = serve.Server(BINARY, "--model", MODEL, "--plan", "two-heads=" + PLAN, "--api-key", "sk-load")
        cls.holder = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.holder.name)

    @classmethod
    def tearDownClass(cls):
        status = cls.server.stop()
        cls.holder.cleanup()
        assert status == 0, status

    def load(self, *arguments):
        """The JSON of a run that has to go well."""
        done = run("--base-url", self.server.url, "--api-key", "sk-load", "--json", *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def refuses(self, *arguments, says, status=1):
        done = run(*arguments)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        self.assertIn(says, done.stderr)

    def test_random_prompts_in_a_closed_loop(self):
        out, report = self.folder / "out.json", self.folder / "report.html"
        result = self.load("--num-prompts", 6, "--random-input-len", 48, "--random-output-len", 8,
                           "--random-range-ratio", 0.25, "--max-concurrency", 2, "--ignore-eos", "--plan", "two-heads",
                           "--seed", 3, "--out", out, "--report", report)
        self.assertEqual((result["completed"], result["failed"], result["failures"]), (6, 0, {}))
        self.assertLessEqual(result["max_concurrent_requests"], 2)
        self.assertEqual(result["state"], "finished")
        self.assertEqual(result["token_counts"], "usage")
        self.assertEqual(result["short_answers"], 0)
        self.assertEqual(result["config"]["prompt_form"], "ids")
        self.assertEqual(result["config"]["model"], "headwise-17m")
        self.assertEqual(result["config"]["body"]["plan"], "two-heads")
        self.assertNotIn("sk-load", json.dumps(result))
        requests = result["requests"]
        self.assertEqual([request["request"] for request in requests], list(range(6)))
        for request in requests:
            self.assertEqual(request["status"], 200)
            self.assertTrue(36 <= request["input_tokens"] <= 60, request)
            self.assertTrue(6 <= request["output_tokens"] <= 10, request)
            self.assertLessEqual(request["ttft_ms"], request["e2el_ms"])
        self.assertEqual(result["total_input_tokens"], sum(request["input_tokens"] for request in requests))
        self.assertEqual(result["total_output_tokens"], sum(request["output_tokens"] for request in requests))
        for time in ("ttft", "tpot", "itl", "longest_itl", "e2el"):
            figures = [result[f"{what}_{time}_ms"] for what in ("min", "p50", "p90", "p95", "p99", "max")]
            self.assertEqual(figures, sorted(figures))
        self.assertEqual(json.loads(out.read_text()), result)
        self.assertIn("until the first token", report.read_text())

    def test_poisson_arrivals_and_shared_beginnings(self):
        result = self.load("--num-prompts", 8, "--request-rate", 200, "--random-prefix-len", 256, "--num-prefixes", 2,
                           "--random-input-len", 16, "--random-output-len", 2, "--ignore-eos", "--max-concurrency", 1)
        self.assertEqual(result["completed"], 8)
        arrivals = [request["arrival_ms"] for request in result["requests"]]
        self.assertEqual(arrivals, sorted(set(arrivals)))
        for request in result["requests"]:
            self.assertEqual(request["input_tokens"], 272)
            self.assertGreaterEqual(request["start_ms"], request["arrival_ms"])
        # One by one: from the third with a beginning on it is found, at the latest.
        self.assertGreaterEqual(result["total_cached_tokens"], 4 * 224)

    def test_prompts_of_a_file_and_the_table(self):
        prompts = self.folder / "prompts.jsonl"
        prompts.write_text('{"prompt": "Once upon a time", "max_tokens": 3}\n{"prompt": [5, 6, 7]}\n')
        arguments = ("--base-url", self.server.url + "/v1", "--api-key", "sk-load", "--prompts", prompts,
                     "--random-output-len", 2, "--ignore-eos", "--model", "headwise-17m")
        done = run(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"requests that came whole +2\n")
        self.assertRegex(done.stdout, r"tokens of answers +5\n")
        self.assertRegex(done.stdout, r"time to first token( +[0-9]+\.[0-9]{2}){8}\n")
        self.refuses(*arguments, "--num-prompts", 3, says="--num-prompts: found 3, expected at most the 2 of")

    def test_words_where_no_ids_are_wanted(self):
        result = self.load("--num-prompts", 2, "--prompt-form", "text", "--random-input-len", 20, "--random-output-len", 2)
        self.assertEqual(result["config"]["prompt_form"], "text")
        self.assertGreaterEqual(result["total_input_tokens"], 40)

    def test_failures_are_counted(self):
        prompts = self.folder / "mixed.jsonl"
        prompts.write_text('{"prompt": "Once"}\n{"prompt": [999999999]}\n')
        done = run("--base-url", self.server.url, "--api-key", "sk-load", "--prompts", prompts, "--json",
                   "--random-output-len", 2)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("requests failed: 1 x http_400; request 1: ", done.stderr)
        result = json.loads(done.stdout)
        self.assertEqual((result["completed"], result["failures"]), (1, {"http_400": 1}))
        prompts.write_text('{"prompt": [999999999]}\n')
        self.refuses("--base-url", self.server.url, "--api-key", "sk-load", "--prompts", prompts,
                     says="no request came whole: 1 x http_400")

    def test_servers_that_do_not_want_it(self):
        url = self.server.url
        self.refuses("--base-url", url, says="401")
        self.refuses("--base-url", url, "--model", "headwise-17m", "--prompt-form", "text", says="http_401")
        self.refuses("--base-url", url, "--api-key", "sk-load", "--model", "other", "--prompt-form", "text",
                     says="the request that warms up failed: http_404")
        self.refuses("--base-url", url, "--api-key", "sk-load", "--plan", "other", says="http_404")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            nobody = f"http://127.0.0.1:{free.getsockname()[1]}"
        self.refuses("--base-url", nobody, says=nobody)

    def test_bad_options(self):
        for arguments, says in (
                (("--base-url", "localhost:1"), "--base-url: \"localhost:1\": it begins with neither"),
                (("--request-rate", "fast"), "--request-rate: found \"fast\""),
                (("--request-rate", "0"), "--request-rate: found \"0\""),
                (("--request-rate", "nan"), "--request-rate"),
                (("--num-prompts", 0), "--num-prompts: found 0"),
                (("--max-concurrency", -1), "--max-concurrency: found -1"),
                (("--random-range-ratio", 1), "--random-range-ratio: found 1"),
                (("--random-input-len", 0), "--random-input-len: found 0"),
                (("--timeout", 0), "--timeout: found 0"),
                (("--out", "/nowhere/at/all"), "/nowhere/at/all")):
            self.refuses(*arguments, says=says)
        known = ("--base-url", self.server.url, "--api-key", "sk-load")
        self.refuses(*known, "--extra-body", "[1]", says="--extra-body: found no JSON object")
        self.refuses(*known, "--extra-body", "{", says="--extra-body")
        self.refuses(*known, "--prompts", "/nowhere.jsonl", says="/nowhere.jsonl")
        self.refuses("--prompts", "a", "--random-input-len", 3, says="excludes", status=2)
        self.refuses("--num-prefixes", 3, says="requires", status=2)

    def test_ctrl_c_keeps_what_there_is(self):
        out = self.folder / "stopped.json"
        # The second answer would take minutes; the first has come when the file says so or the load is told to end.
        command = [BINARY, "bench", "serve", "--base-url", self.server.url, "--api-key", "sk-load", "--num-prompts", "3",
                   "--num-warmups", "0", "--prompt-form", "text", "--random-input-len", "4", "--random-output-len",
                   "30000", "--ignore-eos", "--max-concurrency", "1", "--out", str(out)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        # The server has a request of it.
        while "headwise:num_requests_running" not in (text := self.metrics()) or not re.search(
                r"^headwise:num_requests_running\S* [1-9]", text, re.M):
            self.assertIsNone(process.poll())
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, errors)
        self.assertIn("ended after 0 of 3 requests", errors)
        self.assertEqual(json.loads(out.read_text())["state"], "stopped")

    def metrics(self):
        import urllib.request
        request = urllib.request.Request(self.server.url + "/metrics", headers={"Authorization": "Bearer sk-load"})
        return urllib.request.urlopen(request, timeout=60).read().decode()


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
