#!/usr/bin/env python3
"""Plans, planners, models in files and evaluation as a user of the headwise command meets them."""
import json
import os
import pty
import re
import resource
import shutil
import signal
import subprocess

from cli_support import BINARY, GOLDENS, MODEL, CliTest, line_prompt, main


class Plans(CliTest):
    def duo_folder(self, gates):
        folder = self.path / "duo"
        folder.mkdir()
        (folder / "full_attention_heads.tsv").write_text(gates)
        (folder / "config.json").write_text(json.dumps({"sink_size": 16, "recent_size": 64}))
        return folder

    def test_import_duo(self):
        rows = "\n".join("\t".join("0.9" if (layer, head) in ((3, 1), (3, 3)) else "0.1" for head in range(4))
                         for layer in range(8))
        plan = self.plan("import-duo", "--from", self.duo_folder(rows + "\n"), "--threshold", 0.5, "--sink", 16,
                         "--recent", 128)
        done = self.succeeds("run", "--model", MODEL, "--plan", plan, "--prompt", line_prompt("timid-otter"),
                             "--max-new-tokens", 32)
        self.assertIn(b"<2416>", done.stdout)
        exported = self.path / "gates.tsv"
        self.succeeds("plan", "export-duo", "--from", plan, "--out", exported)
        self.assertEqual(len(exported.read_text().splitlines()), 8)

    def test_help_says_what_stands_where_nothing_is_given(self):
        for method in ("streaming", "uniform", "random", "h2o", "snapkv"):
            page = self.succeeds("plan", method, "--help").stdout.decode()
            defaults = re.findall(r"--([a-z-]+) TEXT=(\S+) ", page)
            self.assertGreater(len(defaults), 2, page)
            plain = json.loads(self.plan(method).read_text())
            for name, value in defaults:
                given = json.loads(self.plan(method, f"--{name}", value, name="given.json").read_text())
                self.assertEqual((name, given["layers"]), (name, plain["layers"]))
        for method in ("duo", "zigzag", "razor", "moa", "profile", "import-duo", "import-moa", "manual"):
            page = self.succeeds("plan", method, "--help").stdout.decode()
            bare = set(re.findall(r"--([a-z-]+) TEXT(?! REQUIRED)\s", page))
            # Of these nothing stands in the place.
            self.assertLessEqual(bare, {"from", "text", "prompts", "threshold", "kv-ratio", "at", "kv-bytes-at",
                                        "sparsity"}, method)
            self.assertEqual("sparsity" in bare, method == "import-duo", page)
        for method, option in (("manual", "rules"), ("import-duo", "from"), ("import-moa", "from")):
            page = self.succeeds("plan", method, "--help").stdout.decode()
            self.assertRegex(page, f"--{option} TEXT REQUIRED")
            self.refuses("plan", method, "--model", MODEL, "--out", self.path / "p.json", status=2, says=f"--{option}")

    def test_nan_gates(self):
        gates = "\n".join("\t".join(["nan"] + ["0.5"] * 3) for _ in range(8)) + "\n"
        self.refuses("plan", "import-duo", "--model", MODEL, "--from", self.duo_folder(gates), "--sparsity", 0.5,
                     "--sink", 16, "--recent", 64, "--out", self.path / "p.json", says=["nan"])
        self.assertFalse((self.path / "p.json").exists())

    def test_gates_as_python_reads_numbers(self):
        row = "1e-400\t+0.75\t-1e-400\t.5"
        plan = self.plan("import-duo", "--from", self.duo_folder((row + "\n") * 8), "--sparsity", 0.5, "--sink", 16,
                         "--recent", 64)
        self.assertEqual(json.loads(plan.read_text())["scores"], [[0, 0.75, 0, 0.5]] * 8)
        for wrong in ("1e400", "+-0.5", "++0.5", "+"):
            (self.path / "duo" / "full_attention_heads.tsv").write_text((f"{wrong}\t0\t0\t0\n") * 8)
            self.refuses("plan", "import-duo", "--model", MODEL, "--from", self.path / "duo", "--sparsity", 0.5,
                         "--sink", 16, "--recent", 64, "--out", self.path / "p.json", says=[wrong, "finite number"])

    def test_streaming_without_any_token(self):
        self.refuses("plan", "streaming", "--model", MODEL, "--sink", 0, "--recent", 0, "--out", self.path / "p.json",
                     says=["recent"])

    def test_what_a_plan_is_made_from_stays(self):
        model = self.short_model()
        config = model / "config.json"
        before = config.read_bytes()
        self.refuses("plan", "streaming", "--model", model, "--out", config, says=["config.json", "another file"])
        self.assertEqual(config.read_bytes(), before)
        plan = self.plan("streaming", "--sink", 16, "--recent", 64)
        self.plan("streaming", "--sink", 8, "--recent", 64)  # an earlier plan is replaced
        before = plan.read_bytes()
        self.refuses("plan", "export-duo", "--from", plan, "--out", plan, says=["plan itself"])
        self.assertEqual(plan.read_bytes(), before)

    def test_scores_that_are_no_gates(self):
        plan = self.plan("streaming")
        content = json.loads(plan.read_text())
        content["scores"] = [[0.5, 1, 0, 7]] * 8
        plan.write_text(json.dumps(content))
        self.refuses("plan", "export-duo", "--from", plan, "--out", self.path / "gates.tsv", says=["no gates", "7"])
        self.assertFalse((self.path / "gates.tsv").exists())

    def test_full_disk_leaves_the_old_plan(self):
        plan = self.plan("streaming", "--sink", 16, "--recent", 64)
        before = plan.read_bytes()

        def tiny_files():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then writing fails as on a full disk
            resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))

        self.refuses("plan", "streaming", "--model", MODEL, "--sink", 8, "--recent", 32, "--out", plan,
                     says=["plan.json"], preexec_fn=tiny_files)
        self.assertEqual(plan.read_bytes(), before)
        self.assertEqual([file.name for file in self.path.iterdir()], ["plan.json"])

    def test_inspect(self):
        plan = self.plan("streaming", "--sink", 16, "--recent", 128)
        done = self.succeeds("inspect", "--model", MODEL, "--plan", plan, "--lengths", "1024,8192", "--json")
        report = json.loads(done.stdout)
        by_length = {entry["tokens"]: entry for entry in report["kv"]}
        self.assertEqual(sorted(by_length), [1024, 8192])
        self.assertEqual(by_length[8192]["kv_bytes_dense"], 8192 * 32 * 256)
        self.assertLess(by_length[8192]["kv_bytes"], by_length[8192]["kv_bytes_dense"] / 20)
        self.assertEqual(by_length[8192]["kv_bytes"], by_length[1024]["kv_bytes"])
        self.succeeds("inspect", "--model", MODEL)
        self.succeeds("inspect", "--plan", plan)
        self.assertIn("runs: every key and tensor is there", self.succeeds("inspect", "--model", MODEL).stdout.decode())

    def test_inspect_says_what_fits(self):
        plan = self.plan("streaming", "--sink", 16, "--recent", 48)
        done = self.succeeds("inspect", "--model", MODEL, "--plan", plan, "--fit", "1GB", "--json")
        fit = json.loads(done.stdout)["fit"]
        self.assertEqual(fit["memory_bytes"], 10**9)
        self.assertAlmostEqual(fit["weight_bytes"], os.path.getsize(MODEL / "model.safetensors"), delta=10**5)
        tokens = {(row["plan"], row["kv_dtype"], row["conversations"]): row["tokens"] for row in fit["fits"]}
        one = tokens["full", "f16", 1]
        # Two numbers of 2 bytes for each of 64 dimensions of 32 heads, and room for a chunk.
        self.assertTrue(0.99 < one * 2 * 2 * 64 * 32 / fit["kv_bytes"] <= 1, one)
        self.assertGreater(tokens["full", "q4", 1], 3 * one)
        self.assertTrue(0.95 < 32 * tokens["full", "f16", 32] / one <= 1)
        self.assertEqual(tokens[str(plan), "f16", 1], 2**40)
        limit = fit["kv_bytes"]
        for length, is_refused in ((one, False), (one + 64, True)):
            done = self.succeeds("inspect", "--model", MODEL, "--lengths", length, "--kv-limit-bytes", limit, "--json")
            self.assertEqual(bool(json.loads(done.stdout)["refused"]), is_refused, length)
        self.assertIn("does not fit", self.succeeds("inspect", "--model", MODEL, "--fit", "30MB").stdout.decode())
        self.refuses("inspect", "--plan", plan, "--fit", "1GB", says="--model")
        self.refuses("inspect", "--model", MODEL, "--fit", "much", status=2, says="--fit")

    def test_inspect_shows_both_windows(self):
        model = GOLDENS / "gemma3"
        plan = self.plan("streaming", "--sink", 4, "--recent", 8, model=model)
        text = self.succeeds("inspect", "--model", model, "--plan", plan, "--lengths", 64).stdout.decode()
        self.assertIn("RoPE of theta 1e+06 in 1 of 3 layers", text)
        self.assertIn("the model's own, 16 tokens, in layers 0-1", text)

    def test_inspect_says_what_a_model_lacks(self):
        folder = self.path / "model"
        shutil.copytree(GOLDENS / "qwen3", folder)
        config = json.loads((folder / "config.json").read_text())
        for key, value, says in (("hidden_size", 48, "model.embed_tokens.weight"), ("num_attention_heads", 8, "self_attn.q_proj.weight"),
                                 ("model_type", "no_such", "no_such")):
            (folder / "config.json").write_text(json.dumps(config | {key: value}))
            self.refuses("inspect", "--model", folder, says=says)


class Presets(CliTest):
    """`--preset long`: how it chooses, engine/preset_test.cc has by hand."""

    def setUp(self):
        super().setUp()
        self.model = self.model_variant("m")

    def beside(self, name, *arguments):
        return self.plan(*arguments, name=f"m-{name}.json", model=self.model)

    def preset(self, *arguments):
        done = self.succeeds("inspect", "--model", self.model, "--preset", "long", *arguments, "--json")
        return json.loads(done.stdout)["preset"]

    def test_chooses_among_plans_beside_the_model(self):
        random = self.beside("random", "random", "--sparsity", 0.5, "--sink", 16, "--recent", 64)
        duo = self.beside("window", "streaming", "--sink", 16, "--recent", 128)
        known = json.loads(duo.read_text()) | {"report": {"measured_loss": {"perplexity": 0.05, "answers": 0.01}}}
        duo.write_text(json.dumps(known))
        (self.path / "m-other.json").write_text('{"some": "other file"}')
        ample = self.preset("--fit", "10GB")
        self.assertEqual((ample["chosen"]["plan"], ample["chosen"]["kv_dtype"]), ("full", "f16"))
        self.assertEqual(ample["chosen"]["tokens"], ample["most_tokens"])
        self.assertEqual({each["plan"] for each in ample["options"]}, {"full", str(random), str(duo)})
        self.assertEqual(len(ample["passed_over"]), 1)
        self.assertIn("m-other.json", ample["passed_over"][0])
        scarce = self.preset("--fit", "60MB")
        self.assertEqual(scarce["chosen"]["plan"], str(duo))
        self.assertAlmostEqual(scarce["chosen"]["loss"]["perplexity"], 0.05, delta=0.002)
        self.assertEqual(scarce["kv_limit_bytes"] + scarce["reserve_bytes"], self.preset("--fit", "70MB")["kv_limit_bytes"] - 10**7)
        # Random heads answer nothing, at any share that was measured.
        of_random = [each for each in scarce["options"] if each["plan"] == str(random)]
        self.assertTrue(of_random and not any(each["within_max_loss"] for each in of_random))
        tight = self.preset("--fit", "60MB", "--max-loss", 1)
        self.assertEqual((tight["chosen"]["plan"], tight["chosen"]["kv_dtype"]), ("full", "q4"))
        self.assertLess(tight["chosen"]["tokens"], scarce["chosen"]["tokens"])
        self.assertEqual(self.preset("--fit", "60MB", "--max-loss", 0)["chosen"]["kv_dtype"], "f16")

    def test_what_is_given_stays(self):
        plan = self.beside("window", "streaming", "--sink", 16, "--recent", 128)
        given = self.preset("--fit", "60MB", "--plan", plan, "--kv-dtype", "q8,f16", "--max-loss", 0)
        self.assertEqual((given["chosen"]["plan"], given["chosen"]["kv_dtype"]), (str(plan), "q8,f16"))
        self.assertTrue(given["plan_is_given"] and given["kv_dtype_is_given"])
        self.assertEqual(len(given["options"]), 1)
        self.assertIsNone(given["chosen"]["loss"])  # of a window that narrow nobody measured
        self.assertEqual(self.preset("--kv-limit-bytes", "3MB", "--plan", plan)["kv_limit_bytes"], 3 * 10**6)

    def test_runs_under_what_it_chose(self):
        run = ("run", "--model", self.model, "--preset", "long", "--prompt", "Once upon a time", "-n", 8, "--json")
        plan = self.beside("window", "streaming", "--sink", 16, "--recent", 128)
        plan.write_text(json.dumps(json.loads(plan.read_text()) | {
            "report": {"measured_loss": {"perplexity": 0.05, "answers": 0.01, "from": "this test"}}}))
        done = self.succeeds(*run, "--kv-limit-bytes", "5MB")
        self.assertEqual(json.loads(done.stdout)["kv_bytes_full"], 0)
        for part in (f"preset    long: plan {plan}, cache f16: ", "--kv-limit-bytes 5.00 MB", "this test", "--max-loss"):
            self.assertIn(part, done.stderr.decode())
        done = self.succeeds(*run, "--kv-limit-bytes", "5MB", "--plan", "full")
        self.assertGreater(json.loads(done.stdout)["kv_bytes_full"], 0)
        self.assertIn("plan full (as asked for), cache q4: ", done.stderr.decode())
        done = self.succeeds(*run)  # what is free is enough for every head
        self.assertIn("plan full, cache f16: 32768 tokens", done.stderr.decode())
        self.assertIn("left to others", done.stderr.decode())
        self.succeeds("chat", "--model", self.model, "--preset", "long", "--chat-form", "chatml", stdin=b"/quit\n")
        bench = ("bench", "--model", self.model, "--preset", "long", "--depth", 0, "--prefill", 8, "--reps", 5, "--json")
        rows = json.loads(self.succeeds(*bench, "--kv-limit-bytes", "5MB", "--threads", 1).stdout)
        self.assertEqual([each["plan"] for each in rows["plans"]], [str(plan)])

    def test_says_what_is_missing(self):
        run = ("run", "--model", self.model, "--prompt", "x", "-n", 1)
        self.refuses(*run, "--preset", "long", says=[f"{self.model}-*.json", "found none", "plan razor", "--plan full"])
        self.refuses(*run, "--preset", "fast", status=2, says=["--preset", "fast", "long"])
        self.refuses(*run, "--max-loss", 3, status=2, says="--preset")
        self.refuses(*run, "--preset", "long", "--max-loss", -1, status=2, says="--max-loss")
        self.refuses(*run, "--preset", "long", "--plan", "full", "--kv-limit-bytes", 100, says=["no token fits", "needs 135 kB"])
        fit = ("inspect", "--model", self.model, "--preset", "long", "--plan", "full", "--fit")
        self.refuses(*fit, "30MB", says=["weights 34.6 MB", "no token fits", "needs 43.7 MB"])
        self.refuses("bench", "--shape", "headwise-17m", "--preset", "long", says="--shape")
        self.refuses("serve", "--model", self.model, "--model", MODEL, "--preset", "long", says="2 models")
        other = self.plan("streaming", "--sink", 4, "--recent", 8, name="m-tiny.json", model=GOLDENS / "qwen3")
        self.refuses(*run, "--preset", "long", says=["m-tiny.json", "qwen3"])
        self.refuses(*run, "--preset", "long", "--plan", other, says=["m-tiny.json", "qwen3"])


class Planners(CliTest):
    """Every method end to end, on texts short enough for a test; what the methods find is tested in src/planner."""

    TRAINING = ("--steps", 6, "--passkeys", 2, "--passkey-words", 4, "--min-tokens", 300, "--max-tokens", 400,
                "--train-sink", 4, "--train-recent", 32)

    def kv_at(self, plan, tokens):
        done = self.succeeds("inspect", "--model", MODEL, "--plan", plan, "--lengths", tokens, "--json")
        return json.loads(done.stdout)["kv"][0]

    def num_full(self, plan):
        return sum(rule["full"] for layer in json.loads(plan.read_text())["layers"] for rule in layer)

    def test_duo_and_what_follows_from_its_gates(self):
        gates = self.plan("duo", *self.TRAINING, "--sparsity", 0.75, "--sink", 8, "--recent", 64, name="duo.json")
        plan = json.loads(gates.read_text())
        self.assertEqual(self.num_full(gates), 8)
        self.assertEqual(plan["seed"], 0)
        self.assertIsNotNone(plan["data_hash"])
        self.assertGreater(plan["report"]["seconds"]["train"], 0)
        self.assertGreater(plan["report"]["peak_memory_bytes"], 1 << 20)
        self.assertEqual(len(plan["report"]["training"]["losses"]), plan["report"]["training"]["steps"])
        self.assertTrue(all(0 <= gate <= 1 for layer in plan["scores"] for gate in layer))
        self.assertFalse((self.path / "duo.json.checkpoint").exists())

        again = self.plan("duo", "--from", gates, "--sparsity", 0.5, name="again.json")
        self.assertEqual(json.loads(again.read_text())["scores"], plan["scores"])
        self.assertEqual(self.num_full(again), 16)
        layers = json.loads(self.plan("zigzag", "--from", gates, "--sparsity", 0.75,
                                      name="zigzag.json").read_text())["layers"]
        self.assertEqual(sorted(sum(rule["full"] for rule in layer) for layer in layers), [0] * 6 + [4] * 2)
        self.refuses("plan", "duo", "--model", MODEL, "--from", gates, "--steps", 5, "--out", self.path / "no.json",
                     says=["--steps", "--from"])

        compared = self.succeeds("plan", "compare", gates, again, self.path / "zigzag.json", "--at", "512,4096")
        for part in ("duo.json", "zigzag.json", "4096"):
            self.assertIn(part, compared.stdout.decode())
        json.loads(self.succeeds("plan", "compare", gates, again, "--json", "--model", MODEL).stdout)
        self.refuses("plan", "compare", gates, again, "--model", GOLDENS / "llama-gqa", says=["duo.json"])
        picture = self.path / "gates.svg"
        self.succeeds("inspect", "--plan", gates, "--svg", picture)
        self.assertTrue(picture.read_text().startswith("<svg"))

    def test_ctrl_c_keeps_the_work(self):
        out = self.path / "duo.json"
        command = [BINARY, "plan", "duo", "--model", str(MODEL), *map(str, self.TRAINING[2:]), "--steps", "100000",
                   "--out", str(out)]
        terminal, stderr = pty.openpty()
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr) as process:
            os.close(stderr)
            message = os.read(terminal, 1)  # the progress bar is there: the training runs
            process.send_signal(signal.SIGINT)
            try:
                while part := os.read(terminal, 4096):
                    message += part
            except OSError:  # how a terminal says that the other side has closed it
                pass
        os.close(terminal)
        self.assertEqual(process.returncode, 130, message)
        self.assertIn(b"--resume", message)
        self.assertFalse(out.exists())
        checkpoint = self.path / "duo.json.checkpoint"
        kept = checkpoint.read_bytes()
        self.assertGreater(json.loads(kept)["state"]["num_steps_done"], 0)
        # What ends ahead of its first step leaves it as it is.
        self.refuses("plan", "duo", "--model", MODEL, *self.TRAINING[2:], "--steps", 9, "--memory-bytes", "1K", "--out",
                     out, says=["memory"])
        self.assertEqual(checkpoint.read_bytes(), kept)

    def test_razor(self):
        plan = json.loads(self.plan("razor", model=self.short_model()).read_text())
        self.assertEqual(len(plan["report"]["echo_by_query_head"]), 64)
        bounded = [rule for layer in plan["layers"] for rule in layer if not rule["full"]]
        self.assertTrue(bounded and all(rule["compensate"] and rule["sink"] == 4 for rule in bounded))

    def test_moa(self):
        plan = json.loads(self.plan("moa", "--lengths", "256,320", "--validation-length", 384, "--samples", 1,
                                    "--validation-samples", 1, "--answer-tokens", 8, "--density", 0.7).read_text())
        for name in ("predicted_at_longest", "measured_at_longest", "validation_loss"):
            self.assertIsInstance(plan["report"][name], float)
        for layer in plan["layers"]:
            self.assertLessEqual(len({json.dumps(rule) for rule in layer}), 2)

    def test_every_method_keeps_to_a_budget(self):
        gates = self.plan("duo", *self.TRAINING, name="gates.json")
        asked = self.kv_at(gates, 1024)["kv_bytes_dense"] * 0.25
        short = self.short_model()
        moa = ("--lengths", 256, "--validation-length", 320, "--samples", 1, "--validation-samples", 1,
               "--answer-tokens", 4)
        for method, *arguments in (("duo", "--from", gates), ("zigzag", "--from", gates), ("razor",), ("moa", *moa),
                                   ("profile", "--samples", 1, *self.TRAINING[2:10]), ("streaming",),
                                   ("random", "--seed", 3)):
            plan = self.plan(method, *arguments, "--kv-ratio", 0.25, "--at", 1024, name=f"{method}.json", model=short)
            got = self.kv_at(plan, 1024)["kv_bytes"]
            self.assertLessEqual(got, asked, method)
            self.assertGreaterEqual(got, asked * 0.99, method)
            # Another budget from what the plan carries, and the same one again: no model is run.
            again = self.plan("refit", "--from", plan, "--kv-ratio", 0.25, "--at", 1024, name="again.json", model=short)
            if method != "moa":  # whose choice among several plans was measured
                self.assertEqual(*(json.loads(each.read_text())["layers"] for each in (plan, again)), method)
            wider = self.plan("refit", "--from", plan, "--kv-ratio", 0.6, "--at", 1024, name="wider.json", model=short)
            got = self.kv_at(wider, 1024)["kv_bytes"]
            self.assertTrue(asked * 2.4 * 0.95 <= got <= asked * 2.4, (method, got))

    def test_plans_that_cannot_be_refitted(self):
        rules = [[{"full": True}] * 4] * 8
        (self.path / "rules.json").write_text(json.dumps(rules))
        manual = self.plan("manual", "--rules", self.path / "rules.json")
        refit = ("plan", "refit", "--model", MODEL, "--out", self.path / "no.json", "--from")
        self.refuses(*refit, manual, "--kv-ratio", 0.5, "--at", 512, says="manual")
        self.refuses(*refit, self.plan("streaming"), says="--kv-ratio")

    def test_budgets_that_cannot_be(self):
        for arguments, says in ((("--kv-ratio", 0.0001, "--at", 512), "KV budget"),
                                (("--kv-ratio", 1.5, "--at", 512), "--kv-ratio"),
                                (("--kv-ratio", 0.5), "--at"),
                                (("--kv-bytes-at", "many"), "--kv-bytes-at")):
            self.refuses("plan", "streaming", "--model", MODEL, *arguments, "--out", self.path / "no.json", says=says)
        self.assertFalse((self.path / "no.json").exists())


class GgufFiles(CliTest):
    def quantized(self, type_name):
        path = self.path / f"{type_name}.gguf"
        self.succeeds("quantize", "--model", MODEL, "--type", type_name, "--out", path)
        return path

    def test_a_file_is_a_model(self):
        path = self.quantized("q8_0")
        for compute in ("int8", "bf16", "f32"):
            done = self.succeeds("run", "--model", path, "--prompt", line_prompt("velvet-wagon"), "--max-new-tokens", 40,
                                 "--compute", compute, "--json")
            self.assertIn("12650", json.loads(done.stdout)["text"], compute)
        done = self.succeeds("inspect", "--model", path)
        self.assertIn("llama", done.stdout.decode())
        plan = self.path / "plan.json"
        self.succeeds("plan", "streaming", "--model", path, "--sink", 4, "--recent", 60, "--out", plan)
        done = self.succeeds("run", "--model", MODEL, "--plan", plan, "--prompt", "One", "--max-new-tokens", 2)
        self.assertNotIn("other weights", done.stderr.decode())  # the file remembers its checkpoint

    def test_planners_read_it(self):
        plan = self.path / "razor.json"
        model = self.path / "short.gguf"
        self.succeeds("quantize", "--model", self.short_model(), "--type", "q4_0", "--out", model)
        self.succeeds("plan", "razor", "--model", model, "--out", plan)
        self.assertTrue(plan.exists())

    def test_quantize_json(self):
        done = self.succeeds("quantize", "--model", MODEL, "--type", "q4_k", "--out", self.path / "k.gguf", "--json")
        result = json.loads(done.stdout)
        self.assertEqual(result["matrices"], {"q4_k": 16, "q8_0": 41})
        self.assertLess(result["file_bytes"], result["source_bytes"])

    def test_bad_files(self):
        path = self.quantized("q8_0")
        whole = path.read_bytes()
        for size in (3, 100, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:size])
            self.refuses("run", "--model", path, "--prompt", "x", says=str(path))
        path.write_bytes(b"GGUF" + b"\xff" * 1000)
        self.refuses("run", "--model", path, "--prompt", "x", says=str(path))
        self.refuses("run", "--model", self.path / "none.gguf", "--prompt", "x", says="none.gguf")
        self.refuses("quantize", "--model", path, "--out", self.path / "x.gguf", says="expected a Hugging Face folder")
        self.refuses("quantize", "--model", MODEL, "--type", "q3_k", "--out", self.path / "x.gguf", says="q3_k", status=2)
        self.assertFalse((self.path / "x.gguf").exists())


class Evaluation(CliTest):
    def test_eval_lines(self):
        out = self.path / "run"
        common = ("eval", "lines", "--model", MODEL, "--num-lines", 20, "--num-cases", 3, "--seed", 5, "--out", out)
        result = json.loads(self.succeeds(*common, "--json").stdout)["plans"][0]
        self.assertEqual((result["plan"], result["correct"], result["total"]), ("full", 3, 3))
        self.assertGreater(result["kv_bytes"], 0)
        lines = (out / "results.jsonl").read_text().splitlines()
        self.assertEqual(len(lines), 3)
        self.refuses(*common, says="--resume")
        (out / "results.jsonl").write_text("\n".join(lines[:2]) + "\n" + lines[2][:20])  # interrupted
        again = json.loads(self.succeeds(*common, "--json", "--resume").stdout)["plans"][0]
        self.assertEqual((again["correct"], again["total"]), (3, 3))
        self.assertEqual(len((out / "results.jsonl").read_text().splitlines()), 3)
        other = [6 if argument == 5 else argument for argument in common]
        self.refuses(*other, "--resume", says=["seed", "choose another folder"])
        self.refuses(*common, "--resume", "--batch", 2, says=["give --batch 1", "choose another folder"])
        self.refuses(*common, "--resume", "--page-tokens", 64, says=["page_tokens", "choose another folder"])

    def test_eval_with_two_kv_formats(self):
        # Plans that read a prompt alike cannot share it when their heads are of different kinds.
        plan = self.plan("streaming", "--sink", 16, "--recent", 128, "--from", "end_of_prompt")
        # Nor may sinks fill more pages than the one of a full head that never ages.
        many = self.plan("streaming", "--sink", 80, "--recent", 128, "--from", "end_of_prompt", name="many.json")
        for kv_dtype in ("q8,f16", "q4"):
            done = self.succeeds("eval", "lines", "--model", MODEL, "--num-lines", 20, "--num-cases", 2, "--plan",
                                 "full", "--plan", plan, "--plan", many, "--kv-dtype", kv_dtype, "--json", "--out",
                                 self.path / kv_dtype)
            plans = json.loads(done.stdout)["plans"]
            self.assertEqual([plan["total"] for plan in plans], [2, 2, 2])

    def test_eval_at_equal_bytes_and_report(self):
        out = self.path / "runs" / "passkey"
        streaming = self.plan("streaming", name="window.json")
        self.succeeds("eval", "passkey", "--model", MODEL, "--plan", "full", "--plan", streaming, "--kv-ratio", "0.5,0.25",
                      "--lengths", "256,512", "--cases", 2, "--out", out)
        self.assertEqual(len((out / "results.jsonl").read_text().splitlines()), 3 * 2 * 2)
        report, table = self.path / "report.html", self.path / "table.csv"
        self.succeeds("eval", "report", self.path / "runs", "--out", report, "--csv", table, "--markdown",
                      self.path / "table.md")
        self.assertIn("window@0.25", report.read_text())
        self.assertNotIn("http", report.read_text())
        self.assertIn("window@0.5", (self.path / "table.md").read_text())
        self.refuses("eval", "report", self.path / "nowhere", "--out", report, says="nowhere")

    def test_ablation(self):
        text = self.path / "text.txt"
        text.write_text("It was a bright morning and the road to the village was dry. " * 60)
        sinks = ("eval", "ablation", "sinks", "--model", MODEL, "--length", 512, "--out", self.path / "sinks")
        self.refuses(*sinks, status=2, says="--text")
        done = self.succeeds(*sinks, "--text", text, "--json")
        self.assertEqual([row["plan"] for row in json.loads(done.stdout)["tasks"][0]["plans"]],
                         ["full", "0+64", "1+63", "2+62", "4+60", "8+56", "16+48"])
        self.assertTrue((self.path / "sinks" / "ppl" / "manifest.json").exists())
        self.succeeds(*sinks, "--text", text, "--resume")

    def test_eval_bad_input(self):
        passkey = ("eval", "passkey", "--model", MODEL)
        self.refuses(*passkey, "--lengths", 16, says="16 tokens")
        self.refuses(*passkey, "--kv-ratio", 0.5, "--plan", self.plan("streaming", name="one.json"), "--lengths", "512,256",
                     says="256 after 512")
        self.refuses(*passkey, "--cases", "many", says="--cases")
        self.refuses("eval", "choice", "--model", MODEL, says="--cases")

    def test_eval_ppl(self):
        text = self.path / "text.txt"
        text.write_text("It was a bright morning and the road to the village was dry. " * 20)
        streaming = self.plan("streaming", "--sink", 4, "--recent", 60)
        done = self.succeeds("eval", "ppl", "--model", MODEL, "--text", text, "--tokens", 200, "--plan", "full",
                             "--plan", streaming, "--json")
        full, stream = json.loads(done.stdout)["plans"]
        self.assertEqual(full["total"], 199)
        self.assertGreater(full["ppl"], 1)
        self.assertNotEqual(full["nll"], stream["nll"])
        self.assertLess(stream["kv_bytes"], full["kv_bytes"])


if __name__ == "__main__":
    main()
