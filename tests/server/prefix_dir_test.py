#!/usr/bin/env python3
"""`headwise serve --prefix-dir`: what one server has read, the next goes on from, also where the first was killed.

Called as prefix_dir_test.py BINARY MODEL_FOLDER PLAN [unittest options].
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
import serve  # noqa: E402

BINARY, MODEL, PLAN = sys.argv[1:4]
DOCUMENT = "".join(f"Once upon a time there was a house by the sea, number {i}. " for i in range(40))


class Server(serve.Server):
    def __init__(self, folder, *arguments):
        super().__init__(BINARY, "--model", MODEL, "--plan", PLAN, "--prefix-dir", str(folder), *arguments)

    def complete(self, prompt=DOCUMENT):
        """The first choice, and how many tokens of the prompt were not read again."""
        body = {"prompt": prompt, "max_tokens": 16, "temperature": 0, "logprobs": 2}
        request = urllib.request.Request(self.url + "/v1/completions", data=json.dumps(body).encode(),
                                         headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as response:
            answer = json.load(response)
        return answer["choices"][0], answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    def metric(self, name):
        with urllib.request.urlopen(self.url + "/metrics", timeout=120) as response:
            text = response.read().decode()
        return int(re.search(rf"^headwise:{name}\{{.*\}} (\d+)$", text, re.M)[1])

    def await_saved(self, least):
        """Until so many texts were acknowledged."""
        while self.metric("prefix_dir_saved_total") < least:
            pass

    def kill(self):
        self.process.kill()
        self.process.wait(timeout=60)
        self.reader.join()
        self.process.stderr.close()


def refusal(folder, *arguments):
    """What a server says that does not start."""
    run = subprocess.run([BINARY, "serve", "--port", "0", "--model", MODEL, "--prefix-dir", str(folder), *arguments],
                         capture_output=True, text=True, timeout=120)
    assert run.returncode != 0
    return run.stderr


class PrefixDir(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name) / "prefixes"

    def files(self):
        return sorted(self.folder.glob("*.prefix"))

    def test_goes_on_after_an_end_and_after_a_kill(self):
        server = Server(self.folder)
        server.complete()
        from_memory = server.complete()
        self.assertGreater(from_memory[1], 400)
        self.assertEqual(server.stop(), 0)
        num_files = len(self.files())
        self.assertGreater(num_files, 0)

        server = Server(self.folder)
        self.assertEqual(server.complete(), from_memory)  # the same bits
        self.assertEqual(server.metric("prefix_dir_hit_requests_total"), 1)
        self.assertEqual(server.metric("prefix_dir_hits_total"), from_memory[1])
        server.complete("Another one. " + DOCUMENT)
        server.await_saved(1)
        saved = server.metric("prefix_dir_saved_total")
        server.kill()
        self.assertGreaterEqual(len(self.files()), num_files + saved)

        # The lock went with the process, and nothing that was acknowledged is lost.
        server = Server(self.folder)
        self.assertEqual(server.metric("prefix_dir_entries"), len(self.files()))
        self.assertEqual(server.complete(), from_memory)
        self.assertGreater(server.complete("Another one. " + DOCUMENT)[1], 400)
        self.assertEqual(server.stop(), 0)

    def test_what_is_torn_is_read_anew(self):
        server = Server(self.folder)
        said = server.complete()[0]["text"]
        self.assertEqual(server.stop(), 0)
        for file in self.files():
            os.truncate(file, file.stat().st_size // 2)
        server = Server(self.folder)
        choice, cached = server.complete()
        self.assertEqual((choice["text"], cached), (said, 0))
        self.assertEqual(server.stop(), 0)
        self.assertIn("--prefix-dir: removed: ", "".join(server.log))

    def test_refusals(self):
        server = Server(self.folder)
        self.assertIn("another server has this folder", refusal(self.folder))
        self.assertEqual(server.stop(), 0)
        self.assertIn("is no folder", refusal(pathlib.Path(PLAN)))
        self.assertIn("expected some", refusal(self.folder, "--no-prefix-cache"))

    def test_other_arithmetic_is_told_and_left(self):
        server = Server(self.folder)
        server.complete()
        self.assertEqual(server.stop(), 0)
        files = self.files()
        server = Server(self.folder, "--kv-dtype", "q8", "--prefix-dir-bytes", str(1 << 30))
        self.assertIn(f"0 texts, and {len(files)} of other weights or arithmetic", "".join(server.log))
        self.assertEqual(server.complete()[1], 0)
        self.assertEqual(server.stop(), 0)
        self.assertTrue(set(files) <= set(self.files()))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
