#!/usr/bin/env python3
"""The figures of docs/server.md that are compared in one run: many long conversations, a long beginning that questions share,
what a long prompt does to a stream beside it, what the server adds to the engine, and a thousand streams.

Called as measure_serve.py COMMAND MODEL PLAN [--llama-server PROGRAM] [--only conversations|prefix|gap|overhead|streams];
COMMAND: headwise, MODEL: a .gguf file, which llama.cpp's server reads too, PLAN: of its heads. Servers run one behind the other,
each alone with the load generator, and all are asked the same prompts, of random ids where the engine by itself has no part; a
row is printed as soon as it is known.
"""
import argparse
import bisect
import json
import pathlib
import random
import re
import socket
import statistics
import subprocess
import tempfile
import threading
import time
import urllib.request

READY_SECONDS = 60


class Server:
    """One under load: how much memory its process had at most, and of headwise how many requests ran and what KV took."""

    def __init__(self, command):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen([*command, "--host", "127.0.0.1", "--port", str(port)], stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        self.resident = 0
        self.most = {}
        for _ in range(10 * READY_SECONDS):
            if self.process.poll() is not None:
                raise SystemExit(f"{command[0]} ended with status {self.process.returncode} before it listened")
            try:
                self.fetch("/health")
                break
            except OSError:
                time.sleep(0.1)
        self.over = threading.Event()
        self.watcher = threading.Thread(target=self.watch)
        self.watcher.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.over.set()
        self.watcher.join()
        self.process.terminate()
        self.process.wait(timeout=60)

    def fetch(self, path):
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            return answer.read().decode()

    def watch(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status")
        while not self.over.wait(0.5):
            self.resident = max(self.resident, int(re.search(r"VmRSS:\s+(\d+)", status.read_text())[1]) * 1024)
            try:
                metrics = self.fetch("/metrics")
            except OSError:  # llama.cpp's has none unless it is told to
                continue
            for name in ("num_requests_running", "kv_cache_bytes", "num_preemptions_total"):
                found = re.findall(rf"^headwise:{name}\{{[^}}]*\}} (\S+)$", metrics, re.MULTILINE)
                self.most[name] = max(self.most.get(name, 0), sum(map(float, found)))


class Bench:
    def __init__(self, command, folder):
        self.command, self.folder = command, folder

    def prompts(self, name, prompts):
        """A file of (ids, tokens of the answer)."""
        path = self.folder / name
        path.write_text("".join(json.dumps({"prompt": ids, "max_tokens": tokens}) + "\n" for ids, tokens in prompts))
        return path

    def load(self, server, prompts, number, at_once):
        out = self.folder / "load.json"
        subprocess.run([self.command, "bench", "serve", "--base-url", server.url, "--prompts", str(prompts), "--num-prompts",
                        str(number), "--max-concurrency", str(at_once), "--num-warmups", "0", "--ignore-eos", "--out",
                        str(out)], check=True, stdout=subprocess.DEVNULL)
        return json.loads(out.read_text())


def decode_rate(load, at_once):
    """Tokens a second while `at_once` answer and no prompt is read, and how many seconds that was."""
    changes, tokens = [], []
    for request in load["requests"]:
        begin, first = request["start_ms"], request["start_ms"] + request["ttft_ms"]
        changes += [(begin, 1, 0), (first, -1, 1), (begin + request["e2el_ms"], 0, -1)]
        tokens.append(first)
        for gap in request["itl_ms"]:
            tokens.append(tokens[-1] + gap)
    tokens.sort()
    reading = answering = count = span = last = 0
    for when, read, answer in sorted(changes):
        if reading == 0 and answering == at_once:
            count += bisect.bisect_left(tokens, when) - bisect.bisect_left(tokens, last)
            span += when - last
        reading, answering, last = reading + read, answering + answer, when
    return (1000 * count / span if span else float("nan")), span / 1000


def conversations(given, bench):
    draw = random.Random(5)
    prompts = bench.prompts("conversations.jsonl", [([draw.randrange(300, 8000) for _ in range(given.prompt_tokens)],
                                                     given.answer_tokens) for _ in range(given.conversations)])
    context = given.prompt_tokens + given.answer_tokens
    limit = ["--kv-limit-bytes", given.kv_limit_bytes, "--threads", str(given.threads)]
    serve = [given.command, "serve", "--model", given.model, *limit]
    rows = [("the plan", [*serve, "--plan", given.plan], given.conversations, given.conversations),
            ("every head full", serve, 2 * given.dense, given.dense)]
    if given.llama_server:
        # At a context of 64 tokens more, as it counts some of its own; what it would keep of prompts in host memory is off.
        llama = [given.llama_server, "-m", given.model, "-t", str(given.threads), "-np", str(given.dense), "-c",
                 str(given.dense * (context + 64)), "--cache-ram", "0"]
        rows += [("llama.cpp's server, -fa off", [*llama, "-fa", "off"], given.dense, given.dense),
                 ("llama.cpp's server, -fa on", [*llama, "-fa", "on"], given.dense, given.dense)]
    print(f"{'':30} at once  decode tok/s (over s)  answers tok/s  answers  seconds  resident MB  most of metrics", flush=True)
    for name, command, number, at_once in rows:
        tokens = given.answer_tokens
        with Server(command) as server:
            if name.endswith("-fa on"):
                tokens = given.answer_tokens // 8
                prompts = bench.prompts("short.jsonl", [(json.loads(line)["prompt"], tokens)
                                                        for line in prompts.read_text().splitlines()])
            load = bench.load(server, prompts, number, at_once)
        rate, span = decode_rate(load, at_once)
        print(f"{name:30} {at_once:7}  {rate:12.0f} ({span:5.1f})   {load['output_throughput']:12.1f}  {number:3} x {tokens}"
              f"  {load['duration']:7.1f}  {server.resident / 1e6:11.0f}  {server.most}, failed {load['failed']}", flush=True)


def prefix(given, bench):
    draw = random.Random(6)
    shared = [draw.randrange(300, 8000) for _ in range(16384)]
    asked = [shared + [draw.randrange(300, 8000) for _ in range(draw.randrange(16, 48))] for _ in range(50)]
    draw.shuffle(asked)
    prompts = bench.prompts("questions.jsonl", [(ids, 16) for ids in asked])
    read = {}
    for name, options in (("with reuse", []), ("without", ["--no-prefix-cache"])):
        with Server([given.command, "serve", "--model", given.model, "--plan", given.plan, "--threads", str(given.threads),
                     *options]) as server:
            load = bench.load(server, prompts, len(asked), 2)
        read[name] = load["total_input_tokens"] - load["total_cached_tokens"]
        waited = [round(request["ttft_ms"]) for request in load["requests"][:2]]
        print(f"{name:12} {read[name]:8} of {load['total_input_tokens']} prompt tokens read, {load['duration']:.1f} s, first "
              f"tokens of the first two after {waited} ms, median {load['median_ttft_ms']:.0f} ms, failed {load['failed']}", flush=True)
    print(f"{read['without'] / read['with reuse']:.1f} times less is read")


class Stream:
    """An answer that streams until it is closed; when its pieces came."""

    def __init__(self, server):
        body = {"prompt": "Once upon a time", "max_tokens": 30000, "temperature": 0, "ignore_eos": True, "stream": True}
        request = urllib.request.Request(server.url + "/v1/completions", data=json.dumps(body).encode(),
                                         headers={"Content-Type": "application/json"})
        self.pieces, self.over, self.began = [], False, threading.Event()
        self.answer = urllib.request.urlopen(request, timeout=60)
        self.thread = threading.Thread(target=self.read)
        self.thread.start()
        self.began.wait(timeout=60)

    def read(self):
        for line in self.answer:
            if self.over:
                return
            if line.startswith(b"data: {"):
                self.pieces.append(time.perf_counter())
                self.began.set()

    def close(self):
        self.over = True
        self.thread.join()
        self.answer.close()


def gap(given, bench):
    draw = random.Random(7)
    repeats = 3
    prompts = [bench.prompts(f"long-{i}.jsonl", [([draw.randrange(300, 8000) for _ in range(32760)], 1)])
               for i in range(2 * repeats)]
    for max_gap, times in ((100, repeats), (0, 1)):
        with Server([given.command, "serve", "--model", given.model, "--threads", str(given.threads), "--no-prefix-cache",
                     "--max-gap-ms", str(max_gap)]) as server:
            for i in range(times):
                alone = bench.load(server, prompts[2 * i], 1, 1)["requests"][0]["ttft_ms"]
                stream = Stream(server)
                beside = bench.load(server, prompts[2 * i + 1], 1, 1)["requests"][0]["ttft_ms"]
                stream.close()
                gaps = sorted(1000 * (b - a) for a, b in zip(stream.pieces, stream.pieces[1:]))
                print(f"--max-gap-ms {max_gap}: longest gap of {len(gaps)} {gaps[-1]:.0f} ms, then {gaps[-2]:.0f}; a prompt of 32760 "
                      f"tokens {beside / 1000:.2f} s, alone {alone / 1000:.2f}: {beside / alone:.2f} times", flush=True)


WORDS = "apple tree town horse river summer winter music night house paper child letter stone bridge garden bread sea road".split()


def overhead(given, bench):
    draw = random.Random(8)

    def texts(name, number, words, tokens):
        return bench.prompts(name, [(f"{i} " + " ".join(draw.choices(WORDS, k=words)), tokens) for i in range(number)])

    def engine(prompts, batch):
        done = subprocess.run([given.command, "run", "--model", given.model, "--threads", str(given.threads), "--prompts",
                               str(prompts), "--batch", str(batch), "--ignore-eos"], check=True, capture_output=True)
        return [json.loads(line) for line in done.stdout.splitlines()]

    many, few = texts("many.jsonl", 32, 640, 600), texts("few.jsonl", 8, 200, 8)
    shares = []
    with Server([given.command, "serve", "--model", given.model, "--threads", str(given.threads), "--no-prefix-cache"]) as server:
        bench.load(server, few, 8, 1)
        for _ in range(4):  # in turns
            alone = statistics.mean(1000 * row["decode_seconds"] / (row["new_tokens"] - 1) for row in engine(many, 32))
            served = bench.load(server, many, 32, 32)["mean_tpot_ms"]
            first_alone = statistics.median(1000 * row["prefill_seconds"] for row in engine(few, 1))
            first = bench.load(server, few, 8, 1)["median_ttft_ms"]
            shares.append(served / alone - 1)
            print(f"a token of 32 streams: engine {alone:.2f} ms, server {served:.2f}, {100 * shares[-1]:+.1f} %; a first token: engine "
                  f"{first_alone:.1f} ms, server {first:.1f}", flush=True)
    print(f"on average {100 * statistics.mean(shares):+.1f} %")


def streams(given, bench):
    draw = random.Random(9)
    number = 1000
    prompts = bench.prompts("streams.jsonl", [([draw.randrange(300, 8000) for _ in range(64)], 128) for _ in range(number)])
    with Server([given.command, "serve", "--model", given.model, "--threads", str(given.threads), "--kv-limit-bytes",
                 "2GB"]) as server:
        load = bench.load(server, prompts, number, number)
    print(f"{number} streams: {load['max_concurrent_requests']} at once, failed {load['failed']}, {load['output_throughput']:.0f} tokens/s, "
          f"half have their first token after {load['median_ttft_ms'] / 1000:.1f} s, gaps {load['median_itl_ms']:.0f} ms at the median, a "
          f"stream's longest {load['p99_longest_itl_ms']:.0f} ms for 99 of 100; resident {server.resident / 1e6:.0f} MB, {server.most}")


MEASURES = (conversations, prefix, gap, overhead, streams)


def main():
    parser = argparse.ArgumentParser()
    for name in ("command", "model", "plan"):
        parser.add_argument(name)
    parser.add_argument("--llama-server")
    parser.add_argument("--only", choices=[measure.__name__ for measure in MEASURES])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kv-limit-bytes", default="400MB")
    parser.add_argument("--conversations", type=int, default=64)
    parser.add_argument("--dense", type=int, default=5, help="how many the limit has room for with every head full")
    parser.add_argument("--prompt-tokens", type=int, default=7168)
    parser.add_argument("--answer-tokens", type=int, default=1024)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(given.command, pathlib.Path(folder))
        for measure in MEASURES:
            if given.only in (None, measure.__name__):
                measure(given, bench)


if __name__ == "__main__":
    main()
