#!/usr/bin/env python3
"""Every task of the evaluation, for every planner at equal KV bytes, and one report of it all.

Usage: reproduce.py HEADWISE_BINARY SOURCE_DIR [--model M] [--out DIR] [--text FILE] [--longeval DIR] [--only NAME ...]
                    [--ablations]

Plans are made once; each task is one `headwise eval` command, printed before it runs, with a folder of its own in DIR.
Stopped at any time, it goes on where it was when it is called again. Data that is not part of the project (LongEval's
cases, a book) is looked for where it may stand beside it; what is absent is left out, and said.
"""

import argparse
import pathlib
import subprocess
import sys
import tarfile
import time

RATIOS = "0.5,0.25,0.125"
SELECTORS = ("h2o", "tova", "snapkv", "pyramidkv", "adakv", "knorm", "keydiff", "expected")
# Those that can choose in place of another plan's windows.
IN_PLACE_OF_WINDOWS = ("h2o", "tova", "snapkv", "adakv", "knorm", "keydiff", "expected")
METHODS = ("streaming", "duo", "zigzag", "razor", "moa", "moa-integrated", "random")
# Of the small model: sinks and windows of heads that stream, as its README found them to be enough.
SIZES = ("--sink", 16, "--recent", 128)
BOOK = "Emma_158.txt"


def run(command):
    words = [str(word) for word in command]
    print("\n$ " + " ".join(words), flush=True)
    start = time.monotonic()
    code = subprocess.run(words, check=False).returncode
    print(f"  {time.monotonic() - start:.0f} s", flush=True)
    if code != 0:
        sys.exit(code)


class Reproduction:
    def __init__(self, args):
        self.headwise = args.headwise
        self.source = pathlib.Path(args.source)
        self.model = args.model or self.source / "models" / "headwise-17m"
        self.out = pathlib.Path(args.out)
        self.beside = self.source.resolve().parent / "shared"
        self.longeval = pathlib.Path(args.longeval) if args.longeval else self.beside / "data" / "longeval"
        self.text = args.text
        self.only = args.only
        self.skipped = []
        (self.out / "plans").mkdir(parents=True, exist_ok=True)

    def make_plan(self, name):
        """The plan file of this name; it is made when it is first asked for."""
        path = self.out / "plans" / f"{name}.json"
        if not path.exists():
            method, options = self.recipe(name)
            resume = ["--resume"] if path.with_name(path.name + ".checkpoint").exists() else []
            run([self.headwise, "plan", method, "--model", self.model, "--out", path, *options, *resume])
        return path

    def recipe(self, name):
        """The method and the options that make the plan of this name."""
        budget = ("--kv-ratio", 0.25, "--at", 8192)
        texts = ("--min-tokens", 1500, "--max-tokens", 4000)
        moa = ("--lengths", "1024,2048,4096", "--validation-length", 6144)
        special = {
            "duo": ("duo", "--steps", 120, *texts, *SIZES),
            "random": ("random", *SIZES),
            "moa": ("moa", *moa),
            # One interval: the programmes of more take longer than all else here.
            "moa-integrated": ("moa", *moa, "--influence", "integrated", "--samples", 3, "--integration-points", 2,
                               "--validation-samples", 1, "--intervals", 1),
            "fastgen": ("fastgen", *texts),
            # Its budget, as infllm's, is of what a query reads. Two dense layers of eight are a quarter of it already.
            "quest": ("quest", "--dense-layers", 0),
            # SnapKV's kernel as wide as a line of the records.
            "snapkv-41": ("snapkv", "--kernel", 41),
            "adakv-41": ("adakv", "--kernel", 41),
        }
        if name == "zigzag":
            return "zigzag", ("--from", self.make_plan("duo"), *SIZES, *budget)
        if name.startswith("duo-"):
            # The policy in place of the windows.
            return name.removeprefix("duo-"), ("--base", self.make_plan("duo"))
        method, *options = special.get(name, (name,))
        return method, (*options, *budget)

    def book(self):
        """The text that perplexity and fidelity are measured on, or None."""
        if self.text:
            return pathlib.Path(self.text)
        path = self.out / BOOK
        archive = self.beside / "corpus" / "heldout.tar.xz"
        if not path.exists() and archive.exists():
            with tarfile.open(archive) as books:
                member = next(each for each in books.getmembers() if each.name.endswith(BOOK))
                path.write_bytes(books.extractfile(member).read())
        return path if path.exists() else None

    def wants(self, name):
        return not self.only or name in self.only

    def windows(self, model, sizes):
        """Options that name plans of so many sinks and so many recent tokens in every head."""
        options = []
        for sink, recent in sizes.items():
            prefix = "" if model == self.model else f"{model.name}-"
            plan = self.out / "plans" / f"{prefix}{sink}+{recent}.json"
            if not plan.exists():
                run([self.headwise, "plan", "streaming", "--model", model, "--sink", sink, "--recent", recent, "--out",
                     plan])
            options += ["--plan", plan]
        return options

    def evaluate(self, name, task, *options, methods=METHODS, ratios=RATIOS, model=None, full=True, windows=None):
        if not self.wants(name):
            return
        options += tuple(self.windows(model or self.model, windows or {}))
        out = self.out / "runs" / name
        command = [self.headwise, "eval", task, "--model", model or self.model, "--out", out]
        if full:
            command += ["--plan", "full"]
        command += options
        for method in methods:
            command += ["--plan", self.make_plan(method)]
        if methods:
            command += ["--kv-ratio", ratios]
        if (out / "manifest.json").exists():
            command += ["--resume"]
        run(command)

    def skip(self, what):
        self.skipped.append(what)
        print(f"\nleft out: {what}", flush=True)

    def run_retrieval(self):
        if self.longeval.exists():
            files = ",".join(str(self.longeval / f"{n}_lines.jsonl") for n in (200, 400))
            self.evaluate("lines", "lines", "--cases", files)
        else:
            self.skip(f"LongEval's own cases ({self.longeval} is not there): generated ones in their place")
            self.evaluate("lines", "lines", "--num-lines", "200,400", "--num-cases", 50)
        self.evaluate("needle", "needle", "--lengths", "2048,8192", "--num-cases", 20, "--seed", 1)
        self.evaluate("needle-hard", "needle", "--lengths", 4096, "--num-cases", 20, "--seed", 2, "--variants",
                      "multikey,multivalue,multiquery,needles,words")
        self.evaluate("needle-long", "needle", "--lengths", "16384,32768", "--num-cases", 20, "--seed", 1,
                      methods=("duo",), ratios="0.125")
        self.evaluate("passkey", "passkey", "--lengths", "1024,4096,8192", "--num-cases", 20, "--seed", 3)
        self.evaluate("passkey-long", "passkey", "--lengths", "16384,32768", "--num-cases", 20, "--seed", 3,
                      methods=("duo",), ratios="0.125")
        self.evaluate("stream", "stream", "--lengths", 16384, "--distances", "20,40,80,160", "--seed", 4)
        # Three times the trained length: what a bounded cache answers then, and that its memory stays what it was.
        self.evaluate("stream-long", "stream", "--lengths", 100000, "--distances", "20,40,80,160", "--seed", 4,
                      windows={4: 252, 16: 1008}, methods=(), full=False)
        for task in ("variables", "words"):
            self.evaluate(task, task, "--lengths", 2048, "--num-cases", 20, "--seed", 5)

    def run_policies(self):
        """Heads that choose by score: alone, and in place of the windows beside full heads."""
        alone = (*SELECTORS, "fastgen", "quest", "infllm", "snapkv-41", "adakv-41")
        self.evaluate("policies-cost", "cost", "--lengths", 16384, "--num-cases", 2, ratios="0.125",
                      methods=("streaming", *SELECTORS, "fastgen", "quest", "infllm"))
        record = ("--num-lines", 200, "--num-cases", 20, "--seed", 6)
        tasks = {
            "later": ("lines", *record, "--turns", "later"),
            "next": ("lines", *record, "--turns", "next"),
            "passkey": ("passkey", "--lengths", 4096, "--num-cases", 20, "--seed", 3),
            "needle": ("needle", "--lengths", 4096, "--num-cases", 20, "--seed", 1),
            "needle-hard": ("needle", "--lengths", 4096, "--num-cases", 20, "--seed", 2, "--variants",
                            "multikey,multiquery,needles,words"),
        }
        if self.longeval.exists():
            tasks["lines"] = ("lines", "--cases", self.longeval / "200_lines.jsonl")
            self.evaluate("policies-lines-400", "lines", "--cases", self.longeval / "400_lines.jsonl", methods=alone,
                          ratios="0.125")
        else:
            tasks["lines"] = ("lines", "--num-lines", 200, "--num-cases", 50)
        if (book := self.book()) is not None:
            # Policies that cut at the end of the prompt keep what comes behind it: so little does.
            text = ("--text", book, "--lengths", 8192, "--num-cases", 8, "--prompt-tokens", 7680)
            tasks["ppl"] = ("ppl", *text, "--score-from", 7680)
            tasks["fidelity"] = ("fidelity", *text)
        together = tuple(f"duo-{policy}" for policy in IN_PLACE_OF_WINDOWS)
        for name, task in tasks.items():
            self.evaluate(f"policies-{name}", *task, methods=(*alone, *together))

    def run_text(self):
        book = self.book()
        if book is None:
            self.skip("perplexity and fidelity: no text; give one with --text")
            return
        self.evaluate("ppl", "ppl", "--text", book, "--lengths", "2048,8192", "--num-cases", 4, "--prompt-tokens", 1024,
                      "--score-from", 1024)
        self.evaluate("fidelity", "fidelity", "--text", book, "--lengths", "2048,8192", "--num-cases", 4)

    def run_sinks(self):
        """Window only, sinks and window, and the oracle; then models that were trained with other kinds of sinks."""
        book = self.book()
        if book is None:
            return
        windows = {sink: 256 - sink for sink in (0, 1, 4, 16)}
        self.evaluate("sinks", "ppl", "--text", book, "--tokens", 4096, "--recompute-window", 255, windows=windows,
                      methods=())
        self.evaluate("stream-ppl", "ppl", "--text", book, "--tokens", 65536, windows=windows, methods=(), full=False)
        models = sorted((self.beside / "models").glob("headwise-7m-*"))
        if not models:
            self.skip(f"models with other kinds of sinks ({self.beside / 'models'} is not there)")
        for model in models:
            self.evaluate(f"sinks-{model.name}", "ppl", "--text", book, "--tokens", 8192, methods=(), model=model,
                          windows={sink: 256 - sink for sink in (0, 1, 4)})

    def run_ablations(self):
        gates = ("--gates", self.make_plan("duo"))
        needed = {"sinks": ("--text", self.book()), "windows": ("--text", self.book()), "duo-sizes": gates,
                  "identification": gates, "razor-share": (), "razor-heads": (), "compensation": (), "omega": gates,
                  "moa-spans": (), "moa-text": (), "moa-influence": (), "duo-baselines": gates, "razor-baselines": (),
                  "moa-baselines": (), "selectors": ()}
        for name, options in needed.items():
            if None in options or not self.wants(f"ablation-{name}"):
                continue
            out = self.out / "runs" / f"ablation-{name}"
            steps = ("--steps", 60) if name == "identification" else ()
            resume = ("--resume",) if out.exists() else ()
            run([self.headwise, "eval", "ablation", name, "--model", self.model, "--out", out, *options, *steps,
                 *resume])

    def run_cost(self):
        self.evaluate("cost", "cost", "--lengths", "1024,4096,16384,32768", "--num-cases", 3, ratios="0.25,0.125")

    def report(self):
        report = self.out / "report.html"
        run([self.headwise, "eval", "report", self.out / "runs", "--out", report, "--csv", self.out / "results.csv",
             "--markdown", self.out / "results.md"])
        for what in self.skipped:
            print(f"left out: {what}")
        print(f"\nThe report: {report}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("headwise")
    parser.add_argument("source")
    parser.add_argument("--model")
    parser.add_argument("--out", default="build/reproduce")
    parser.add_argument("--text", help="what perplexity and fidelity are measured on")
    parser.add_argument("--longeval", help="folder with 200_lines.jsonl and 400_lines.jsonl")
    parser.add_argument("--only", nargs="*", help="names of runs")
    parser.add_argument("--ablations", action="store_true", help="also the papers' ablations, about an hour more")
    start = time.monotonic()
    args = parser.parse_args()
    reproduction = Reproduction(args)
    reproduction.run_cost()  # first, as long as the machine is cool and alone
    reproduction.run_retrieval()
    reproduction.run_policies()
    reproduction.run_text()
    reproduction.run_sinks()
    if args.ablations:
        reproduction.run_ablations()
    reproduction.report()
    print(f"all of it took {(time.monotonic() - start) / 60:.0f} minutes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
