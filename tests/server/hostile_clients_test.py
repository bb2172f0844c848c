#!/usr/bin/env python3
"""`headwise serve` among clients that mean it harm: each gets a clear status or no word, memory stays where it was, and
an answer that streams meanwhile is the one that it is alone.

Called as hostile_clients_test.py BINARY MODEL_FOLDER PLAN [unittest options].
"""
import json
import pathlib
import re
import resource
import socket
import sys
import threading
import unittest
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
import serve  # noqa: E402

BINARY, MODEL, PLAN = sys.argv[1:4]
STORY = "Once upon a time there was a house by the sea, and in the house lived"
NUM_IDLE = 1000
# Sanitizers take memory of their own, and ten times as long.
IS_SANITIZED = any(library in pathlib.Path(BINARY).read_bytes() for library in (b"libasan.so", b"libtsan.so"))
NUM_IDLE_STREAMS = 100 if IS_SANITIZED else 1000
# Of one request that was answered something may still be there; not of all of them.
MOST_GROWTH = 160 << 20
# What the server of idle streams may have for their KV cache, and what it keeps of answers that nobody reads.
KV_LIMIT = 128 << 20
UNSENT = 128 << 20
TIMEOUT = 120


def completion(**fields):
    return {"prompt": STORY, "max_tokens": 4, "temperature": 0, **fields}


def post(body, path="/v1/completions", fields=""):
    """The bytes of a request."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n{fields}\r\n"
    return head.encode() + data


# What is sent, and the statuses that are right for it.
ATTACKS = {
    "bytes that are no HTTP": (b"\x16\x03\x01\x02 what is this\r\n\r\n", {400}),
    "a header of a megabyte": (b"GET /health HTTP/1.1\r\nX: " + b"x" * (1 << 20) + b"\r\n\r\n", {431}),
    "a hundred thousand headers": (b"GET /health HTTP/1.1\r\n" + b"a: b\r\n" * 100_000 + b"\r\n", {431}),
    "a path of a megabyte": (b"GET /" + b"a" * (1 << 20) + b" HTTP/1.1\r\nHost: a\r\n\r\n", {414, 431}),
    "a way out of the page's files": (b"GET /page/../../../../etc/passwd HTTP/1.1\r\nHost: a\r\n\r\n", {400, 404}),
    "the same, escaped": (b"GET /page/%2e%2e%2f%2e%2e%2fetc%2fpasswd HTTP/1.1\r\nHost: a\r\n\r\n", {400, 404}),
    "two lengths": (b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 20\r\n\r\n{}", {400}),
    "a length of nine exabytes": (b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 9223372036854775807\r\n\r\n", {413}),
    "a chunk without an end": (b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n",
                               {400, 413}),
    "JSON cut short": (post(b'{"prompt": "a'), {400}),
    "lists a million deep": (post(b"[" * 1_000_000), {400}),
    "objects a million deep": (post(b'{"a":' * 1_000_000), {400}),
    "no UTF-8": (post(b'{"prompt": "\xff\xfe\x80"}'), {400}),
    "half of a surrogate": (post(b'{"prompt": "\\ud800"}'), {400}),
    "a million stop strings": (post(completion(stop=["x"] * 1_000_000)), {400}),
    "a million keys": (post(b"{" + b",".join(b'"%d": 1' % i for i in range(1_000_000)) + b"}"), {400}),
    "NaN": (post(b'{"prompt": "a", "temperature": NaN}'), {400}),
    "a number out of all ranges": (post(b'{"prompt": "a", "max_tokens": 1e308}'), {400}),
    "a negative number": (post(completion(max_tokens=-5)), {400}),
    "ids that are none": (post(completion(prompt=[-1, 2 ** 40])), {400}),
    "a prompt of ten million letters": (post(completion(prompt="a " * 5_000_000)), {400}),
    "a billion choices": (post(completion(n=10 ** 9)), {400}),
    "a page of another origin": (post(completion(), fields="Origin: https://evil.example\r\n"), {403}),
    "a page of another origin that unloads a plan": (b"DELETE /v1/plans/two-heads HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                                                     b"Origin: https://evil.example\r\n\r\n", {403}),
    "a schema that is its own part": (post(completion(guided_json={"$ref": "#"})), {400}),
    "an expression that repeats without end": (post(completion(guided_regex="((a{0,4000}){0,4000}){0,4000}")), {400}),
}


class AmongClients(unittest.TestCase):
    """One server for all tests of a class."""
    options = ()

    @classmethod
    def setUpClass(cls):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = 2 * NUM_IDLE + 500
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(hard, wanted), hard))
        cls.server = serve.Server(BINARY, "--model", MODEL, "--plan", "two-heads=" + PLAN, *cls.options)
        cls.address = urllib.parse.urlparse(cls.server.url)

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0, "".join(cls.server.log)

    def connect(self, data=b"", receive_buffer=None):
        connection = socket.socket()
        connection.settimeout(TIMEOUT)
        if receive_buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.connect((self.address.hostname, self.address.port))
        if data:
            connection.sendall(data)
        self.addCleanup(connection.close)
        return connection

    def status_of(self, data):
        """Of the answer; 0 where the server closed the connection while it was still being told."""
        with socket.create_connection((self.address.hostname, self.address.port), timeout=TIMEOUT) as connection:
            try:
                connection.sendall(data)
            except (BrokenPipeError, ConnectionResetError):
                pass
            try:
                line = connection.makefile("rb").readline()
            except ConnectionResetError:
                return 0
        found = re.match(rb"HTTP/1\.\d (\d+)", line)
        return int(found[1]) if found else 0

    def metric(self, name):
        with urllib.request.urlopen(self.server.url + "/metrics", timeout=TIMEOUT) as response:
            text = response.read().decode()
        return sum(int(value) for value in re.findall(rf"^headwise:{name}\{{.*\}} (\d+)$", text, re.M))

    def stream(self, num_tokens, **fields):
        """The text of an answer, piece by piece."""
        body = json.dumps(completion(max_tokens=num_tokens, ignore_eos=True, stream=True, **fields)).encode()
        request = urllib.request.Request(self.server.url + "/v1/completions", data=body,
                                         headers={"Content-Type": "application/json"})
        text = ""
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            for line in response:
                if line.startswith(b"data: {"):
                    text += json.loads(line[6:])["choices"][0]["text"]
        return text

    def resident(self):
        status = pathlib.Path(f"/proc/{self.server.process.pid}/status").read_text(encoding="ascii")
        return int(re.search(r"^VmRSS:\s+(\d+) kB$", status, re.M)[1]) << 10

    def await_none_running(self):
        for _ in range(600):
            if self.metric("num_requests_running") == 0:
                break
            threading.Event().wait(0.1)
        self.assertEqual(self.metric("num_requests_running"), 0)


class HostileClients(AmongClients):
    def test_each_gets_a_clear_status(self):
        for name, (data, statuses) in ATTACKS.items():
            with self.subTest(name):
                self.assertIn(self.status_of(data), statuses)
        self.assertEqual(self.status_of(post(completion())), 200)

    def test_nobody_else_is_disturbed(self):
        num_tokens = 400
        alone = self.stream(num_tokens)
        # What the first of their kind takes stays: threads, grammars, buffers of the allocator.
        for data, _ in ATTACKS.values():
            self.status_of(data)
        before = self.resident()

        # Connections that say nothing, half a header, half a body; and such as ask for streams and never read them.
        idle = [b"", b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nX-Sl", post(completion())[:-5]]
        connections = [self.connect(idle[i % len(idle)]) for i in range(NUM_IDLE)]
        connections += [self.connect(post(completion(max_tokens=60, ignore_eos=True, stream=True))) for _ in range(24)]
        said = []
        honest = threading.Thread(target=lambda: said.append(self.stream(num_tokens)))
        honest.start()
        rounds = 0
        while honest.is_alive() or rounds < 2:
            rounds += 1
            for name, (data, statuses) in ATTACKS.items():
                # Large ones may be cut off before all of them was sent.
                self.assertIn(self.status_of(data), statuses | {0}, name)
        honest.join()
        self.assertEqual(said, [alone])
        for _ in range(600):
            grown = self.resident() - before
            if grown < MOST_GROWTH:  # it goes back once an answer was sent
                break
            threading.Event().wait(0.1)
        self.assertLess(grown, MOST_GROWTH)

        for connection in connections:
            connection.close()
        self.await_none_running()
        self.assertEqual(self.stream(num_tokens), alone)


class IdleStreams(AmongClients):
    options = ("--kv-limit-bytes", str(KV_LIMIT))

    def test_nobody_reads_a_thousand_streams(self):
        num_tokens = 200
        alone = self.stream(num_tokens, user="honest")
        before = self.resident()

        # Together they are told 700 MB, which nobody takes.
        body = completion(prompt="a", max_tokens=60, ignore_eos=True, stream=True, logprobs=256, user="idle")
        idle = [self.connect(post(body), receive_buffer=4096) for _ in range(NUM_IDLE_STREAMS)]
        for connection in idle:  # all of them have begun
            self.assertEqual(connection.recv(12), b"HTTP/1.1 200")
        self.assertEqual(self.stream(num_tokens, user="honest"), alone)
        grown = []
        while self.metric("num_requests_running") + self.metric("num_requests_waiting") > 0:
            grown.append(self.resident() - before)
            self.assertEqual(self.stream(4, user="honest"), self.stream(4, user="honest"))
        grown.append(self.resident() - before)
        if not IS_SANITIZED:
            self.assertLess(max(grown), MOST_GROWTH + KV_LIMIT + UNSENT)

        for connection in idle:
            connection.close()
        self.await_none_running()
        self.assertEqual(self.stream(num_tokens, user="honest"), alone)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
