#!/usr/bin/env python3
"""What the options of the headwise command take, what they refuse and in which words."""
import json
import resource
import signal
import subprocess

from cli_support import BINARY, MODEL, CliTest, line_prompt, main


class Run(CliTest):
    def test_interrupted(self):
        command = [BINARY, "run", "--model", MODEL, "--prompt", "Once", "--max-new-tokens", "30000", "--ignore-eos"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            text = process.stdout.read(1)  # it is under way
            process.send_signal(signal.SIGINT)
            rest, message = process.communicate(timeout=600)
        self.assertEqual(process.returncode, 130, message)
        self.assertTrue((text + rest).endswith(b"\n"))
        self.assertIn(b"interrupted", message)

    def test_tokens_are_those_of_the_text(self):
        for stop in ("\n", ">", "6", "line timid-otter is <24"):
            result = json.loads(self.succeeds("run", "--model", MODEL, "--prompt", line_prompt("timid-otter"),
                                              "--max-new-tokens", 48, "--stop", stop, "--json").stdout)
            self.assertEqual(result["finish"], "stop_string")

            def decode(ids):
                return self.succeeds("tokenize", "--model", MODEL, "--decode", stdin=json.dumps(ids).encode()).stdout
            text = result["text"].encode()
            # Ids that stand alone begin without the blank that they have inside a text.
            self.assertTrue(decode(result["tokens"]).lstrip().startswith(text.lstrip()), (stop, result))
            if result["tokens"]:
                self.assertLess(len(decode(result["tokens"][:-1]).lstrip()), max(1, len(text.lstrip())))
            self.assertGreater(result["new_tokens"], len(result["tokens"]) - 1)

    def test_a_seed_is_drawn_and_said(self):
        common = ("run", "--model", MODEL, "--prompt", "Once upon a time", "--max-new-tokens", 12, "--json")
        greedy = self.succeeds(*common)
        self.assertNotIn(b"seed", greedy.stderr + greedy.stdout)
        sampled = (*common, "--temperature", 1.5)
        seeds = set()
        for _ in range(3):
            done = self.succeeds(*sampled)
            result = json.loads(done.stdout)
            self.assertIn(f"--seed {result['seed']}\n", done.stderr.decode())
            again = self.succeeds(*sampled, "--seed", result["seed"])
            self.assertNotIn(b"seed", again.stderr)
            self.assertEqual(json.loads(again.stdout)["tokens"], result["tokens"])
            seeds.add(result["seed"])
        self.assertGreater(len(seeds), 1)
        done = self.succeeds("chat", "--model", MODEL, "--temperature", 1, "--max-new-tokens", 2, stdin=b"Hello.\n")
        self.assertIn(b"--seed ", done.stderr)

    def test_version(self):
        done = self.succeeds("--version")
        self.assertRegex(done.stdout.decode(), r"^headwise \d+\.\d+")


class Words(CliTest):
    """Messages that used to speak of something else."""

    def test_unknown_options(self):
        self.refuses("run", "--model", MODEL, "--prompt", "x", "--kv_dtype", "q8", status=2,
                     says=["run: the option --kv_dtype is unknown", "expected --kv-dtype"])
        self.refuses("run", "--model", MODEL, "-p", "--not an option", "--turbo=3", status=2, says=["--turbo", "--help"])
        self.refuses("run", "--model", MODEL, "q8", status=2, says=["\"q8\"", "standard input", "--prompt"])
        self.refuses("eval", "lines", "--model", MODEL, "--num_cases", 3, status=2, says="expected --num-cases")
        self.refuses("plan", "--verbose", "duo", status=2, says="--verbose")
        # What only looks like one.
        self.succeeds("run", "--model", MODEL, "--prompt", "--turbo", "-n", 1)
        self.succeeds("run", "--model", MODEL, "--prompt=--turbo", "-n", "1")
        self.succeeds("run", "-m", MODEL, "-p", "--turbo", "-n", "1", "--stop", "--x")

    def test_out_of_memory(self):
        def bound():
            resource.setrlimit(resource.RLIMIT_AS, (512 << 20, 512 << 20))
        if subprocess.run([BINARY, "--help"], capture_output=True, preexec_fn=bound, check=False).returncode != 0:
            self.skipTest("this build needs more address space to begin with, as sanitizers do")
        endless = self.path / "sparse"
        with endless.open("wb") as file:
            file.truncate(1 << 32)  # takes no room on the disk
        with endless.open("rb") as file:
            done = subprocess.run([BINARY, "tokenize", "--model", MODEL], stdin=file, capture_output=True,
                                  preexec_fn=bound, timeout=600, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"headwise: error: out of memory", done.stderr)
        self.assertNotIn(b"bad_alloc", done.stderr)

    def test_out_of_memory_in_a_long_prompt(self):
        def bound():
            resource.setrlimit(resource.RLIMIT_AS, (384 << 20, 384 << 20))
        command = [BINARY, "run", "--model", MODEL, "--kv-dtype", "f32", "--threads", "1", "-n", "1", "--max-context", "1000000"]
        short = subprocess.run([*command, "-p", "The"], capture_output=True, preexec_fn=bound, check=False)
        if short.returncode != 0:
            self.skipTest("this build needs more address space to begin with, as sanitizers do")
        text = self.path / "long.txt"
        text.write_bytes(b"The miller waited by the river. " * 8000)  # a gigabyte of keys and values
        done = subprocess.run([*command, "--prompt-file", text], capture_output=True, preexec_fn=bound, timeout=600,
                              check=False)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, rb"headwise: error: could not allocate [0-9.]+ [kMG]?B for ")

    def test_files_are_named(self):
        text = self.path / "latin1.txt"
        text.write_bytes(b"caf\xe9 " * 100)
        for task in ("ppl", "fidelity"):
            self.refuses("eval", task, "--model", MODEL, "--text", text, "--lengths", 32, says=["latin1.txt", "UTF-8"])
        text.write_text("The miller waited by the river. " * 20)
        self.refuses("eval", "ppl", "--model", MODEL, "--text", text, "--lengths", 64, "--kv-limit-bytes", "10K",
                     says=["latin1.txt, window 0 of 64 tokens: full", "10000 are available"])

    def test_what_there_is_and_what_helps(self):
        self.refuses("inspect", "--model", MODEL, "--lengths", 2**41, says=f"--lengths: found {2**41}, expected 1 to {2**40}")
        cases = self.path / "docs.jsonl"
        cases.write_text(json.dumps({"input": "", "context": "The key is 7. " * 40, "answers": ["7"]}) + "\n")
        message = self.refuses("eval", "docs", "--model", MODEL, "--cases", cases, "--lengths", 256, "--prompt", "none",
                               says=["--prompt: no prompt is called \"none\"", "default"]).stderr
        self.assertNotIn(b"none \"default\"", message)
        needle = ("eval", "needle", "--variants", "multiquery", "--model", MODEL, "--lengths", 256, "--num-cases", 4,
                  "--kv-limit-bytes", "10M")
        self.refuses(*needle, "--batch", 4, says=["available", "--batch below 4"])
        self.succeeds(*needle, "--batch", 1)

    def test_bench_asks_before_it_works(self):
        bench = ("bench", "--model", self.path / "nowhere")  # not even looked for
        self.refuses(*bench, "--reps", 0, says="number of timed steps is 0")
        self.refuses(*bench, "--depth", -1, says="depth is -1")
        self.refuses(*bench, "--prefill", 0, says="prefill is 0 tokens")
        self.refuses(*bench, "--kv-dtype", "q3", says="kv_dtype")
        self.refuses(*bench, "--page-tokens", 17, says="page_tokens")
        self.refuses(*bench, "--threads", 2000000, says="num_threads is 2000000")


class Bytes(CliTest):
    def test_units(self):
        common = ("run", "--model", MODEL, "--prompt", line_prompt("timid-otter"), "--max-new-tokens", 1)
        self.succeeds(*common, "--kv-limit-bytes", "1G")
        self.refuses(*common, "--kv-limit-bytes", "100K", says="100000 are available")
        self.refuses(*common, "--kv-limit-bytes", "100KiB", says="102400 are available")
        for wrong in ("1X", "", "-1", "G"):
            self.refuses(*common, "--kv-limit-bytes", wrong, status=2, says=["--kv-limit-bytes", wrong, "MiB"])
        by_unit = self.plan("streaming", "--kv-bytes-at", "2.5M:8192", name="unit.json")
        by_number = self.plan("streaming", "--kv-bytes-at", "2500000:8192", name="number.json")
        self.assertEqual(json.loads(by_unit.read_text())["layers"], json.loads(by_number.read_text())["layers"])
        self.refuses("plan", "duo", "--model", MODEL, "--memory-bytes", "1X", "--out", self.path / "duo.json",
                     says=["--memory-bytes", "1X", "MiB"])


class Numbers(CliTest):
    RUN = ("run", "--model", MODEL, "--prompt", "x")

    def test_what_is_no_number(self):
        for option, value in (("--seed", "-1"), ("--seed", str(2**64)), ("--seed", "0x10"), ("--seed", ""),
                              ("--temperature", ""), ("--temperature", "nan"), ("--temperature", "1e400"),
                              ("--top-k", ""), ("--top-k", "3.0"), ("--max-new-tokens", ""), ("--threads", ""),
                              ("--max-context", str(2**63)), ("--plan", ""), ("--kv-dtype", "")):
            self.refuses(*self.RUN, option, value, status=2, says=[f"{option}: found ", value, "expected"])
        self.refuses("inspect", "--model", MODEL, "--lengths", "1024,x", status=2, says="--lengths: found \"x\"")
        self.refuses("eval", "lines", "--model", MODEL, "--out", "", status=2, says="--out: found nothing")

    def test_sizes_beyond_all_numbers(self):
        plan = self.path / "large.json"
        model = {"architecture": "llama", "num_layers": 1, "num_q_heads": 8, "num_kv_heads": 8, "head_dim": 2**20}
        plan.write_text(json.dumps({"headwise_plan": 1, "model": model, "layers": [[{"full": True}] * 8]}))
        done = self.succeeds("inspect", "--plan", plan, "--lengths", 2**40, "--json")
        for figure in ("kv_bytes", "kv_bytes_full", "kv_bytes_dense", "kv_peak_bytes"):
            self.assertEqual(json.loads(done.stdout)["kv"][0][figure], 2**63 - 1)
        self.assertNotIn(b" -", self.succeeds("inspect", "--plan", plan, "--lengths", 2**40).stdout)

    def test_out_of_range(self):
        self.refuses(*self.RUN, "-n", -2, says="--max-new-tokens: found -2, expected -1 to")
        self.refuses(*self.RUN, "--max-context", -5, says="--max-context: found -5, expected 0 to")
        self.refuses("chat", "--model", MODEL, "--max-context", -5, says="--max-context: found -5, expected 0 to")
        self.refuses("chat", "--model", MODEL, "-n", 0, says="--max-new-tokens: found 0, expected 1 to")
        self.refuses(*self.RUN, "--threads", -1, says="num_threads is -1, expected 0 to 1024")
        self.refuses(*self.RUN, "--threads", 2**40, status=2, says=["--threads: found", f"to {2**31 - 1}"])
        ids = self.path / "ids.json"
        ids.write_text("[0, 1]")
        self.refuses("logits", "--model", MODEL, "--ids", ids, "--out", self.path / "o", "--prompt-tokens", -2,
                     says="--prompt-tokens: found -2, expected -1 to")
        self.refuses("quantize", "--model", MODEL, "--out", self.path / "q.gguf", "--threads", -1,
                     says="num_threads is -1, expected 0 to 1024")
        self.refuses("plan", "duo", "--model", MODEL, "--out", self.path / "p.json", "--threads", 2000000,
                     says="num_threads is 2000000, expected 0 to 1024")
        self.refuses("eval", "ablation", "razor-share", "--model", MODEL, "--out", self.path / "out", "--length", 5,
                     says="--length: found 5, expected 512 to")


if __name__ == "__main__":
    main()
