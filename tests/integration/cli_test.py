#!/usr/bin/env python3
"""The headwise command as a user meets it: results, messages and exit statuses, on the bundled model."""
import json
import os
import shutil
import struct
import subprocess

from cli_support import BINARY, MODEL, CliTest, line_prompt, main, read_safetensors


class Run(CliTest):
    def test_answers_a_line_question(self):
        done = self.succeeds("run", "--model", MODEL, "--prompt", line_prompt("timid-otter"), "--stop", "\n",
                             "--max-new-tokens", 48)
        self.assertIn("<2416>", done.stdout.decode())

    def test_prompt_from_file_and_stdin_agree(self):
        prompt = line_prompt("velvet-wagon").encode()
        file = self.path / "prompt.txt"
        file.write_bytes(prompt)
        common = ("run", "--model", MODEL, "--max-new-tokens", 32)
        from_file = self.succeeds(*common, "--prompt-file", file)
        from_stdin = self.succeeds(*common, "-", stdin=prompt)
        self.assertEqual(from_file.stdout, from_stdin.stdout)
        self.assertIn(b"<12650>", from_file.stdout)

    def test_json(self):
        done = self.succeeds("run", "--model", MODEL, "--prompt", "The pass key is", "--max-new-tokens", 5,
                             "--ignore-eos", "--json")
        result = json.loads(done.stdout)
        self.assertEqual(len(result["tokens"]), 5)
        self.assertEqual(result["finish"], "length")
        self.assertEqual(result["new_tokens"], 5)
        self.assertGreater(result["prompt_tokens"], 2)
        self.assertGreater(result["kv_bytes"], 0)
        self.assertGreaterEqual(result["kv_peak_bytes"], result["kv_bytes"])
        self.assertEqual(result["kv_bytes"], result["kv_bytes_full"] + result["kv_bytes_bounded"])

    def test_stats_go_to_stderr(self):
        done = self.succeeds("run", "--model", MODEL, "--prompt", "Once", "--max-new-tokens", 4, "--stats")
        self.assertIn(b"tokens/s", done.stderr)
        self.assertNotIn(b"tokens/s", done.stdout)

    def test_seed_fixes_sampling(self):
        def sample(seed):
            return self.succeeds("run", "--model", MODEL, "--prompt", "Once upon a time", "--max-new-tokens", 12,
                                 "--temperature", 1.5, "--top-k", 50, "--top-p", 0.95, "--min-p", 0.01,
                                 "--seed", seed).stdout
        self.assertEqual(sample(7), sample(7))
        self.assertNotEqual(sample(7), sample(8))

    def test_every_backend_agrees(self):
        def tokens(*arguments):
            done = self.succeeds("run", "--model", MODEL, "--prompt", line_prompt("nimble-heron"), "--json",
                                 "--max-new-tokens", 24, "--compute", "f32", "--kv-dtype", "f32", *arguments)
            return json.loads(done.stdout)["tokens"]
        expected = tokens("--backend", "ref")
        self.assertEqual(tokens(), expected)
        self.assertEqual(tokens("--isa", "baseline", "--threads", 1), expected)
        self.assertEqual(tokens("--chunk-tokens", 7, "--page-tokens", 16), expected)

    def test_batch_invariant(self):
        def run(*arguments):
            done = self.succeeds("run", "--model", MODEL, "--prompt", line_prompt("nimble-heron"), "--json", "--logprobs", 20,
                                 "--max-new-tokens", 24, "--batch-invariant", *arguments)
            answer = json.loads(done.stdout)
            return answer["tokens"], answer["logprobs"]
        self.assertEqual(run("--chunk-tokens", 7), run())
        self.assertEqual(run("--kv-dtype", "q8", "--chunk-tokens", 33), run("--kv-dtype", "q8", "--threads", 1))
        done = self.succeeds("run", "--model", MODEL, "--prompt", "x", "--max-new-tokens", 1, "--batch-invariant", "--stats")
        self.assertIn(b"batch-invariant", done.stderr)
        done = self.succeeds("bench", "--model", MODEL, "--batch-invariant", "--depth", 64, "--prefill", 64, "--reps", 5,
                             "--json")
        self.assertEqual(json.loads(done.stdout)["plans"][0]["verified"]["prefill_difference"], 0)
        common = ("run", "--model", MODEL, "--prompt", "x", "--batch-invariant")
        self.refuses(*common, "--kv-dtype", "q4", says=["batch_invariant", "q4", "q8"])
        self.refuses(*common, "--backend", "cuda", says=["cuda", "cannot be batch-invariant"])

    def test_q8_cache(self):
        def run(kv_dtype):
            return json.loads(self.succeeds("run", "--model", MODEL, "--prompt", line_prompt("nimble-heron"), "--json",
                                            "--max-new-tokens", 24, "--kv-dtype", kv_dtype).stdout)
        f16, q8 = run("f16"), run("q8")
        self.assertIn("44109", q8["text"])
        self.assertLess(q8["kv_bytes"], 0.6 * f16["kv_bytes"])
        self.assertIn(b"KV cache in q8", self.succeeds("inspect", "--model", MODEL, "--kv-dtype", "q8").stdout)
        done = self.succeeds("bench", "--model", MODEL, "--kv-dtype", "q8", "--depth", 64, "--prefill", 64, "--reps", 5,
                             "--json")
        bench = json.loads(done.stdout)
        self.assertEqual(bench["model"]["kv_dtype"], "q8")
        decode = bench["plans"][0]["decode"][0]
        self.assertGreater(decode["read_bytes_per_second"], 0)
        self.assertAlmostEqual(decode["share_of_read"], decode["bytes_per_second"] / decode["read_bytes_per_second"])

    def test_q4_cache(self):
        def run(kv_dtype):
            return json.loads(self.succeeds("run", "--model", MODEL, "--prompt", line_prompt("nimble-heron"), "--json",
                                            "--max-new-tokens", 24, "--kv-dtype", kv_dtype).stdout)
        q8, q4 = run("q8"), run("q4")
        self.assertIn("44109", q4["text"])
        # Of its 5 pages, the first and the two newest are still q8.
        self.assertLess(q4["kv_bytes"], 0.85 * q8["kv_bytes"])
        inspected = json.loads(self.succeeds("inspect", "--model", MODEL, "--kv-dtype", "q4", "--lengths", 32768,
                                             "--json").stdout)["kv"][0]
        # 32 heads of 64: a token in an aged page of 64 takes 64 bytes of codes and 12 of scales and lows.
        self.assertLess(inspected["kv_bytes"] / 32768 / 32, 77)
        bench = json.loads(self.succeeds("bench", "--model", MODEL, "--kv-dtype", "q4,f16", "--depth", 256,
                                         "--prefill", 128, "--reps", 5, "--json").stdout)
        self.assertEqual(bench["model"]["kv_dtype"], "q4,f16")
        self.assertLess(bench["plans"][0]["decode"][0]["kv_bytes_read"], 258 * 32 * 132)

    def test_layers_with_windows_of_their_own(self):
        model = self.path / "windowed"
        shutil.copytree(MODEL.parent.parent / "tests/golden/tiny/qwen2", model)
        config = json.loads((model / "config.json").read_text())
        config.pop("layer_types", None)
        config |= {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}
        (model / "config.json").write_text(json.dumps(config))
        text = self.succeeds("inspect", "--model", model).stdout
        self.assertIn(b", RoPE, sliding window 16 in 1 of 2 layers\n", text)
        inspected = json.loads(self.succeeds("inspect", "--model", model, "--lengths", 3200, "--json").stdout)
        self.assertEqual(inspected["model"]["sliding_windows"], [None, 16])
        kv = inspected["kv"][0]
        self.assertEqual(kv["kept_tokens"], inspected["model"]["kv_heads"] * (3200 + 16))
        # 100 pages of 32 tokens beside a ring of two
        self.assertEqual(kv["kv_bytes_full"], 50 * kv["kv_bytes_bounded"])
        written = self.path / "windowed.gguf"
        self.succeeds("quantize", "--model", model, "--out", written, "--type", "f32")
        again = json.loads(self.succeeds("inspect", "--model", written, "--lengths", 3200, "--json").stdout)
        self.assertEqual(again["model"]["sliding_windows"], [None, 16])
        self.assertEqual(again["kv"], inspected["kv"])

    def test_max_context_bounds_the_answer(self):
        done = self.succeeds("run", "--model", MODEL, "--prompt", "Once upon a time", "--max-new-tokens", -1,
                             "--max-context", 20, "--ignore-eos", "--json")
        result = json.loads(done.stdout)
        self.assertEqual(result["prompt_tokens"] + result["new_tokens"], 20)
        self.refuses("run", "--model", MODEL, "--prompt", "Once upon a time", "--max-context", 2, says="--max-context 2")

    def test_plan_keeps_fewer_bytes(self):
        plan = self.plan("streaming", "--sink", 16, "--recent", 128)
        prompt = line_prompt("amber-kettle") * 4
        results = [json.loads(self.succeeds("run", "--model", MODEL, "--prompt", prompt, "--json",
                                            "--max-new-tokens", 2, *extra).stdout)
                   for extra in ((), ("--plan", plan))]
        self.assertLess(results[1]["kv_bytes"], results[0]["kv_bytes"] / 3)
        self.assertEqual(results[1]["kv_bytes_full"], 0)

    def test_formats_by_kind_of_head(self):
        plan = self.plan("random", "--sparsity", 0.5, "--sink", 16, "--recent", 64, "--seed", 1)

        def run(kv_dtype):
            return json.loads(self.succeeds("run", "--model", MODEL, "--plan", plan, "--prompt",
                                            line_prompt("amber-kettle"), "--json", "--max-new-tokens", 4,
                                            "--kv-dtype", kv_dtype).stdout)
        f16, q8, mixed = run("f16"), run("q8"), run("q8,f16")
        self.assertEqual(mixed["kv_bytes_full"], q8["kv_bytes_full"])
        self.assertEqual(mixed["kv_bytes_bounded"], f16["kv_bytes_bounded"])
        self.succeeds("inspect", "--plan", plan, "--kv-dtype", "q8,f16")
        self.refuses("run", "--model", MODEL, "--prompt", "x", "--kv-dtype", "q8,f9", says=["kv_dtype", "f9", "bf16"])

    def test_special_tokens_in_a_prompt_are_text(self):
        def num_tokens(*arguments):
            done = self.succeeds("run", "--model", MODEL, "--prompt", "<|im_end|>", "--max-new-tokens", 1, "--json",
                                 *arguments)
            return json.loads(done.stdout)["prompt_tokens"]
        self.assertGreater(num_tokens(), 2)
        self.assertEqual(num_tokens("--special"), 2)  # the beginning-of-text token and this one


class BadInput(CliTest):
    def test_missing_files(self):
        missing = self.path / "nowhere"
        self.refuses("run", "--model", missing, "--prompt", "x", says=["nowhere"])
        self.refuses("run", "--model", MODEL, "--prompt-file", missing, says=["nowhere", "No such file"])
        self.refuses("run", "--model", MODEL, "--plan", missing, "--prompt", "x", says=["nowhere"])
        self.refuses("logits", "--model", MODEL, "--ids", missing, "--out", self.path / "o", says=["nowhere"])
        self.refuses("eval", "lines", "--model", MODEL, "--cases", missing, says=["nowhere"])
        self.refuses("eval", "ppl", "--model", MODEL, "--text", missing, says=["nowhere"])
        self.refuses("plan", "import-duo", "--model", MODEL, "--from", missing, "--sparsity", 0.5, "--sink", 16,
                     "--recent", 64, "--out", self.path / "p", says=["nowhere"])

    def test_folders_that_are_no_model(self):
        self.refuses("run", "--model", self.path, "--prompt", "x", says=["config.json"])
        self.refuses("run", "--model", MODEL / "config.json", "--prompt", "x", says=["config.json"])
        self.refuses("run", "--model", self.model_variant("empty-config", **{"config.json": b"{}"}), "--prompt", "x",
                     says=["config.json"])
        self.refuses("tokenize", "--model", self.path, stdin=b"x", says=["tokenizer"])

    def test_unreadable_folder(self):
        if os.geteuid() == 0:
            self.skipTest("root reads everything")
        folder = self.model_variant("closed")
        folder.chmod(0)
        self.addCleanup(folder.chmod, 0o700)
        self.refuses("run", "--model", folder, "--prompt", "x", says=["closed", "Permission denied"])

    def test_files_without_an_end(self):
        for file in ("config.json", "model.safetensors", "tokenizer.json", "generation_config.json"):
            for name, make in (("fifo", os.mkfifo), ("device", lambda path: path.symlink_to("/dev/zero"))):
                folder = self.model_variant(f"{name}-{file}", **{file: None})
                make(folder / file)
                kind = "FIFO" if name == "fifo" else "character device"
                self.refuses("run", "--model", folder, "--prompt", "x", says=[file, f"is a {kind}", "expected a file"])
        fifo = self.path / "fifo"
        os.mkfifo(fifo)
        self.refuses("run", "--model", MODEL, "--prompt-file", fifo, says=["fifo: is a FIFO"])
        self.refuses("run", "--model", MODEL, "--prompt", "x", "--plan", fifo, says=["fifo: is a FIFO"])
        self.refuses("logits", "--model", MODEL, "--ids", fifo, "--out", self.path / "o", says=["fifo: is a FIFO"])

    def test_truncated_weights(self):
        weights = (MODEL / "model.safetensors").read_bytes()
        for num_bytes in (0, 4, 100, len(weights) - 1):
            folder = self.model_variant(f"cut-{num_bytes}", **{"model.safetensors": weights[:num_bytes]})
            self.refuses("run", "--model", folder, "--prompt", "x", says=["model.safetensors"])

    def test_weights_that_become_shorter_under_a_running_program(self):
        for flags, says in (((), b"model.safetensors: has become shorter"), (("--no-mmap",), b"")):
            folder = self.model_variant("shrinking" + "".join(flags),
                                        **{"model.safetensors": (MODEL / "model.safetensors").read_bytes()})
            chat = subprocess.Popen([BINARY, "chat", "--model", folder, "--max-new-tokens", "4", *flags],
                                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.assertIn(b"This conversation can grow", chat.stderr.readline())
            os.truncate(folder / "model.safetensors", 4096)
            _, message = chat.communicate(b"Hello.\n", timeout=600)
            self.assertEqual(chat.returncode, 1 if says else 0, message)
            self.assertIn(says, message)

    def test_a_file_in_place_of_its_folder(self):
        for file in ("model.safetensors", "tokenizer.json"):
            self.refuses("run", "--model", MODEL / file, "--prompt", "x",
                         says=[file, f"a Hugging Face model is named by its folder, which here is {MODEL}"])

    def test_plan_for_another_model(self):
        plan = self.plan("streaming", "--sink", 16, "--recent", 64)
        other = self.path / "other.json"
        text = plan.read_text()
        self.assertIn("llama", text)
        other.write_text(text.replace("llama", "gpt_neox"))
        self.refuses("run", "--model", MODEL, "--plan", other, "--prompt", "x", says=["gpt_neox", "llama"])

    def test_broken_plan(self):
        plan = self.path / "broken.json"
        plan.write_text("{\"version\": 1")
        self.refuses("run", "--model", MODEL, "--plan", plan, "--prompt", "x", says=["broken.json"])

    def test_wrong_usage(self):
        self.refuses(status=2, says="subcommand")
        self.refuses("fly", status=2, says=["fly", "inspect"])
        self.refuses("run", "--model", MODEL, "--prompt", "x", "--turbo", status=2, says="--turbo")
        self.refuses("run", "--prompt", "x", status=2, says="--model")
        self.refuses("run", "--model", MODEL, status=2, says="")
        self.refuses("run", "--model", MODEL, "--prompt", "x", "--prompt-file", "y", status=2, says="")
        self.refuses("run", "--model", MODEL, "--prompt", "x", "--max-new-tokens", "many", status=2, says="many")
        self.refuses("plan", "telepathy", "--model", MODEL, "--out", "x", status=2, says=["telepathy", "import-moa"])
        self.refuses("eval", "telepathy", "--model", MODEL, status=2, says="telepathy")
        self.succeeds("--help")
        self.succeeds("run", "--help")

    def test_unknown_values(self):
        common = ("run", "--model", MODEL, "--prompt", "x")
        self.refuses(*common, "--backend", "abacus", says=["abacus", "cpu"])
        self.refuses(*common, "--isa", "mmx", says=["mmx", "baseline"])
        self.refuses(*common, "--compute", "f8", says=["f8", "bf16"])
        self.refuses(*common, "--kv-dtype", "f8", says=["kv_dtype", "f8", "f32, f16, bf16, q8 or q4"])
        self.refuses(*common, "--temperature", -1, says=["temperature", "-1"])
        self.refuses(*common, "--top-p", 0, says=["top_p"])
        self.refuses(*common, "--chunk-tokens", 0, says=["chunk_tokens"])
        self.refuses(*common, "--page-tokens", 17, says=["page_tokens"])
        self.refuses(*common, "--stop", "", says=["stop"])

    def test_prompts_that_are_no_text(self):
        self.refuses("run", "--model", MODEL, "--prompt", "", says="empty")
        self.refuses("run", "--model", MODEL, "-", stdin=b"", says="empty")
        file = self.path / "latin1.txt"
        file.write_bytes(b"caf\xe9")
        self.refuses("run", "--model", MODEL, "--prompt-file", file, says=["UTF-8", "3"])
        self.refuses("tokenize", "--model", MODEL, stdin=b"caf\xe9", says=["UTF-8", "3"])

    def test_prompt_beyond_the_trained_length_is_a_warning(self):
        config = json.loads((MODEL / "config.json").read_text())
        config["max_position_embeddings"] = 32
        folder = self.model_variant("short", **{"config.json": json.dumps(config).encode()})
        done = self.succeeds("run", "--model", folder, "--prompt", line_prompt("timid-otter"), "--max-new-tokens", 1)
        self.assertIn(b"warning", done.stderr)
        self.assertIn(b"trained on texts of at most 32", done.stderr)

    def test_kv_limit_names_needed_and_available(self):
        done = self.refuses("run", "--model", MODEL, "--prompt", line_prompt("timid-otter"), "--kv-limit-bytes", 100000,
                            says=["100000 are available", "needs"])
        self.assertEqual(done.stdout, b"")

    def test_bad_ids(self):
        ids = self.path / "ids.json"
        for content in ("", "{}", "[1, -1]", "[1.5]", "[99999999999]", "[1, 8192]", "[]"):
            ids.write_text(content)
            self.refuses("logits", "--model", MODEL, "--ids", ids, "--out", self.path / "o.safetensors", says="")
        self.assertFalse((self.path / "o.safetensors").exists())

    def test_bad_cases(self):
        cases = self.path / "cases.jsonl"
        cases.write_text("{\"prompt\": \"a\", \"expected_number\": 1}\n{\"prompt\": \"b\"}\n")
        self.refuses("eval", "lines", "--model", MODEL, "--cases", cases, says=["cases.jsonl:2", "expected_number"])


class BenchOp(CliTest):
    """Every operation alone: what is asked and what is printed, no time."""

    OPS = ["matmul", "attention-decode", "attention-prefill", "append", "age", "compensate", "norm", "rope",
           "activate", "embed", "draw"]
    SMALL = ("--rows", "1,3", "--depth", 64, "--reps", 2)

    def test_json_of_every_operation(self):
        done = self.succeeds("bench", "op", "--shape", "headwise-17m", *self.SMALL, "--weights", "q8_0,bf16",
                             "--kv-dtype", "f16,q8,q4", "--json")
        bench = json.loads(done.stdout)
        for machine in ("machine", "machine_before", "machine_after"):
            for key in ("processor", "isa", "threads", "read_bytes_per_second", "f32_flops", "bf16_dot_flops",
                        "int8_dot_flops"):
                self.assertTrue(bench[machine][key], (machine, key))
        self.assertIn("headwise-17m", bench["model"]["name"])
        self.assertEqual(list(dict.fromkeys(line["op"] for line in bench["ops"])), self.OPS)
        for line in bench["ops"]:
            self.assertEqual(set(line), {
                "op", "part", "shape", "format", "heads", "rows", "depth", "seconds", "calls_per_sample", "bytes_read",
                "bytes_written", "multiply_adds", "bytes_per_second", "flops_per_second", "peak", "cycled_bytes",
                "cached", "bound_seconds", "bound_by", "share_of_bound"})
            self.assertEqual(set(line["seconds"]), {"median", "min", "max", "count"})
            self.assertIn(line["bound_by"], ("memory", "compute"))
            self.assertGreater(line["share_of_bound"], 0)
        products = [line for line in bench["ops"] if line["op"] == "matmul" and line["part"] == "down"]
        self.assertEqual([(line["format"], line["rows"]) for line in products],
                         [("q8_0", 1), ("q8_0", 3), ("bf16", 1), ("bf16", 3)])
        self.assertEqual(products[1]["multiply_adds"], 3 * 1024 * 384)
        self.assertEqual(products[1]["bytes_read"], 1024 * 384 * 34 // 32 + 3 * (1024 + 384) * 4)
        decode = [line for line in bench["ops"] if line["op"] == "attention-decode"]
        self.assertEqual([(line["format"], line["depth"], line["heads"]) for line in decode],
                         [("f16", 64, "full"), ("q8", 64, "full"), ("q4", 64, "full")])

    def test_table_of_a_model(self):
        done = self.succeeds("bench", "op", "norm", "attention-decode", "--model", MODEL, *self.SMALL, "--sink", 4,
                             "--recent", 16)
        text = done.stdout.decode()
        for part in ("ceilings", "before", "after", "norm rms", "attention-decode", "4+16", "of bound"):
            self.assertIn(part, text)
        self.assertNotIn("matmul", text)

    def test_table_of_a_layer_of_mixed_heads(self):
        done = self.succeeds("bench", "op", "attention-decode", "--model", MODEL, *self.SMALL, "--sink", 4, "--recent",
                             "16,8", "--full-heads", 1)
        self.assertIn("1 full, 1 of 4+16, 1 of 4+8, 1 of 4+16", done.stdout.decode())

    def test_what_means_nothing(self):
        common = ("bench", "op", "--shape", "headwise-17m")
        self.refuses(*common, "--recent", 16, "--full-heads", 4, says=["--full-heads is 4", "0 to 3", "4 KV heads"])
        self.refuses(*common, "--full-heads", 1, status=2, says=["--full-heads", "--recent"])
        self.refuses(*common, "softmax", says=["softmax", *self.OPS])
        self.refuses(*common, "--rows", "1,0", says=["rows is 0", "1 to"])
        self.refuses(*common, "--depth", "-1", says=["depth is -1", "1 to"])
        self.refuses(*common, "--reps", 0, says=["samples is 0", "1 to"])
        self.refuses(*common, "--threads", 100000, says=["num_threads is 100000", "1024"])
        self.refuses(*common, "--recent", 0, says="recent")
        self.refuses(*common, "--weights", "q8_0,q3_k", says=["--weights", "q3_k", "q8_0"])
        self.refuses(*common, "--weights", "q4_k", says=["q4_k", "384", "256"])
        self.refuses(*common, "--kv-dtype", "f16,f8", says=["kv_dtype", "f8", "bf16"])
        self.refuses(*common, "--compute", "f8", says=["compute", "f8", "bf16"])
        self.refuses(*common, "--backend", "abacus", says=["abacus", "cpu"])
        self.refuses(*common, "attention-prefill", "--rows", 1, says=["attention-prefill", "2 rows"])
        self.refuses(*common, "compensate", "--depth", 8, says=["compensate", "depth 8"])
        self.refuses(*common, "append", "--page-tokens", 17, says="page_tokens")
        self.refuses("bench", "op", "--model", self.path / "nowhere", says="nowhere")

    def test_wrong_usage(self):
        self.refuses("bench", "op", status=2, says=["--model", "--shape"])
        self.refuses("bench", "op", "--shape", "llama-9", status=2, says=["llama-9", "llama-3.2-1b"])
        self.refuses("bench", "op", "--shape", "headwise-17m", "--sink", 4, status=2, says="--recent")
        self.refuses("bench", "op", "--model", MODEL, "--weights", "f16", status=2, says="--shape")
        self.refuses("bench", "--reps", 7, "op", "--shape", "headwise-17m", status=2, says="--reps")
        self.refuses("bench", "sing", status=2, says=["sing", "op"])
        self.succeeds("bench", "op", "--help")


class Tools(CliTest):
    def test_tokenize_round_trip(self):
        text = "Grüße, 12 naïve 漢字 🎉\n  and spaces"
        ids = self.succeeds("tokenize", "--model", MODEL, stdin=text.encode()).stdout
        self.assertIsInstance(json.loads(ids), list)
        back = self.succeeds("tokenize", "--model", MODEL, "--decode", stdin=ids).stdout
        self.assertEqual(back.decode(), text)

    def test_logits(self):
        ids = self.path / "ids.json"
        ids.write_text(json.dumps([0] + list(range(100, 140))))
        out = self.path / "out.safetensors"
        self.succeeds("logits", "--model", MODEL, "--ids", ids, "--positions", "0,15,40", "--out", out)
        listed = read_safetensors(out)
        self.assertEqual(listed["logits"][:2], ("F32", [3, 8192]))
        self.assertEqual(listed["hidden"][:2], ("F32", [3, 384]))
        self.succeeds("logits", "--model", MODEL, "--ids", ids, "--out", out)
        every = read_safetensors(out)
        self.assertEqual(every["logits"][1], [41, 8192])
        row_bytes = 8192 * 4
        last = struct.unpack("<8192f", every["logits"][2][-row_bytes:])
        last_listed = struct.unpack("<8192f", listed["logits"][2][-row_bytes:])
        self.assertLess(max(abs(a - b) for a, b in zip(last, last_listed)), 1e-3)
        self.refuses("logits", "--model", MODEL, "--ids", ids, "--positions", "41", "--out", out, says="41")

    def test_chat_reads_lines(self):
        done = self.succeeds("chat", "--model", MODEL, "--max-new-tokens", 8, stdin=b"Hello.\n\nAnd again?\n")
        self.assertIn(b"32768 tokens", done.stderr)
        streaming = self.plan("streaming", "--sink", 16, "--recent", 64, "--positions", "cache")
        done = self.succeeds("chat", "--model", MODEL, "--plan", streaming, "--max-new-tokens", 8, stdin=b"Hello.\n")
        self.assertIn(b"for ever", done.stderr)


if __name__ == "__main__":
    main()
