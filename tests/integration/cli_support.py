"""What the tests of the headwise command share: running it, models with something wrong, messages and exit statuses.

Every test is called as TEST.py BINARY MODEL_FOLDER [unittest options]. Standard library only. HEADWISE_TEST_DEVICE=cuda
in the environment: run and chat compute on the GPU, but where a test names a backend (tools/cuda_tests.sh).
"""
import json
import os
import pathlib
import pty
import struct
import subprocess
import sys
import tempfile
import unittest

BINARY = sys.argv[1]
MODEL = pathlib.Path(sys.argv[2])
GOLDENS = pathlib.Path(__file__).resolve().parents[1] / "golden" / "tiny"

LINES = [
    ("amber-kettle", 4821), ("quiet-harbour", 17), ("rustic-piano", 39002), ("timid-otter", 2416),
    ("golden-ladder", 31877), ("stormy-quarry", 905), ("velvet-wagon", 12650), ("nimble-heron", 44109),
]


def line_prompt(asked):
    record = "".join(f"line {name}: REGISTER_CONTENT is <{number}>\n" for name, number in LINES)
    return ("Below is a record of lines I want you to remember. Each line begins with 'line <line index>' and contains "
            "a '<REGISTER_CONTENT>' at the end of the line as a numerical value. For each line index, memorize its "
            "corresponding <REGISTER_CONTENT>. At the end of the record, I will ask you to retrieve the corresponding "
            "<REGISTER_CONTENT> of a certain line index. Now the record start:\n\n" + record +
            f"\nNow the record is over. Tell me what is the <REGISTER_CONTENT> in line {asked}? I need the number. ")


def command_of(*arguments):
    command = [BINARY, *map(str, arguments)]
    takes_backend = command[1:2] in (["run"], ["chat"]) and "--backend" not in command
    if os.environ.get("HEADWISE_TEST_DEVICE") == "cuda" and takes_backend:
        command[2:2] = ["--backend", "cuda"]
    return command


def headwise(*arguments, stdin=b"", **options):
    return subprocess.run(command_of(*arguments), input=stdin, capture_output=True, timeout=600, check=False, **options)


def read_safetensors(path):
    data = pathlib.Path(path).read_bytes()
    (header_size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + header_size])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + header_size + offset for offset in entry["data_offsets"])
        tensors[name] = (entry["dtype"], entry["shape"], data[begin:end])
    return tensors


class Terminal:
    """The command on a terminal of its own, its standard files and Ctrl-C included."""

    def __init__(self, *arguments):
        command = command_of(*arguments)
        self.unread = ""
        self.pid, self.file = pty.fork()
        if self.pid == 0:
            os.execv(command[0], command)

    def type(self, text):
        os.write(self.file, text.encode())

    def until(self, text):
        """What it shows up to and with `text`."""
        while text not in self.unread:
            more = self._read()
            if not more:
                raise AssertionError(f"it ended before {text!r}: {self.unread!r}")
            self.unread += more
        end = self.unread.index(text) + len(text)
        shown, self.unread = self.unread[:end], self.unread[end:]
        return shown

    def rest(self):
        """What else it shows, and its exit status."""
        while more := self._read():
            self.unread += more
        os.close(self.file)
        return self.unread, os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _read(self):
        try:
            return os.read(self.file, 65536).decode(errors="replace")
        except OSError:  # how Linux says that nobody has the other end any more
            return ""


class CliTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="headwise-cli-")
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)

    def succeeds(self, *arguments, **options):
        done = headwise(*arguments, **options)
        self.assertEqual(done.returncode, 0, (arguments, done.stderr.decode(errors="replace")))
        return done

    def refuses(self, *arguments, says, status=1, **options):
        """The command fails with this status and a message with all of these parts; it never crashes."""
        done = headwise(*arguments, **options)
        message = done.stderr.decode(errors="replace")
        self.assertEqual(done.returncode, status, (arguments, message))
        for part in [says] if isinstance(says, str) else says:
            self.assertIn(part, message, arguments)
        if status == 1:
            self.assertIn("headwise: error: ", message)
        return done

    def plan(self, *arguments, name="plan.json", model=None):
        path = self.path / name
        self.succeeds("plan", *arguments, "--model", model or MODEL, "--out", path)
        return path

    def short_model(self):
        """Planners take their lengths from the trained length."""
        config = json.loads((MODEL / "config.json").read_text())
        config["max_position_embeddings"] = 1024
        return self.model_variant(**{"config.json": json.dumps(config).encode()})

    def model_variant(self, name="variant", **changes):
        """A model folder like MODEL: links to its files, except those given as name=bytes (None: left out)."""
        folder = self.path / name
        folder.mkdir()
        for file in MODEL.iterdir():
            if file.name not in changes:
                (folder / file.name).symlink_to(file.resolve())
        for file_name, content in changes.items():
            if content is not None:
                (folder / file_name).write_bytes(content)
        return folder


def main():
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
