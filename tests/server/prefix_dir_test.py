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
# A server is killed once so much of a file of some ten megabytes is written.
BYTES_AT_KILL = [1, 1 << 20, 4 << 20, 8 << 20, 1 << 40]
DOCUMENT = "".join(f"Once upon a time there was a house by the sea, number {i}. " for i in range(40))


class Server(serve.Server):
    def __init__(self, folder, *arguments):
        self.folder = folder
        super().__init__(BINARY, "--model", MODEL, "--plan", PLAN, "--prefix-dir", str(folder), *arguments)

    def complete(self, prompt=DOCUMENT, **fields):
        """The first choice, and how many tokens of the prompt were not read again."""
        body = {"prompt": prompt, "max_tokens": 16, "temperature": 0, "logprobs": 2, **fields}
        request = urllib.request.Request(self.url + "/v1/completions", data=json.dumps(body).encode(),
                                         headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as response:
            answer = json.load(response)
        return answer["choices"][0], answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    def complete_in_full(self, prompt):
        """The text, and how many tokens of the prompt were not read again, under the plan whose files are large."""
        choice, cached = self.complete(prompt, plan="full")
        return choice["text"], cached

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


def bytes_being_written(server):
    """Of the file that has not got its name yet; none: 0."""
    num_bytes = 0
    for fd in pathlib.Path(f"/proc/{server.process.pid}/fd").iterdir():
        try:
            target = pathlib.Path(os.readlink(fd))
            if target.parent == server.folder and target.name != "lock" and target.suffix != ".prefix":
                num_bytes = max(num_bytes, fd.stat().st_size)
        except FileNotFoundError:
            pass  # closed meanwhile
    return num_bytes


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

    def test_a_kill_amid_a_save_loses_nothing_that_was_acknowledged(self):
        expected = {}
        acknowledged = set()  # prompts of which at least one text was
        num_torn = 0
        for most_bytes in BYTES_AT_KILL:
            server = Server(self.folder)
            # All files are whole, and there is nothing but them and the lock.
            num_files = len(self.files())
            self.assertEqual(server.metric("prefix_dir_entries"), num_files)
            self.assertEqual(len(list(self.folder.iterdir())), num_files + 1)
            prompt = f"Until {most_bytes}. " + 3 * DOCUMENT
            expected[prompt] = server.complete_in_full(prompt)[0]
            # Its texts are being written now. It ends once so much of a file is there, or once one is acknowledged.
            while server.metric("prefix_dir_saved_total") == 0 and bytes_being_written(server) < most_bytes:
                pass
            num_torn += bytes_being_written(server) > 0
            num_saved = server.metric("prefix_dir_saved_total")
            server.kill()
            self.assertGreaterEqual(len(self.files()), num_files + num_saved)
            if num_saved > 0:
                acknowledged.add(prompt)
        self.assertGreater(num_torn, 0)
        self.assertGreater(len(acknowledged), 0)

        # What was acknowledged is found, whatever was killed later, and the rest is read anew.
        server = Server(self.folder)
        self.assertNotIn("removed", "".join(server.log))
        for prompt, text in expected.items():
            again, cached = server.complete_in_full(prompt)
            self.assertEqual(again, text)
            self.assertGreater(cached, 400 if prompt in acknowledged else -1)
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
