#!/usr/bin/env python3
"""The systemd unit and the Containerfile name what there is: options of `headwise serve`, packages, targets, paths; and the
unit's command serves and drains.

Called as packaging_test.py BINARY MODEL_FOLDER [unittest options]. What asks systemd-analyze or dpkg is skipped, and
says so, where those are not installed.
"""
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
import serve  # noqa: E402

BINARY, MODEL = sys.argv[1:3]
UNIT = ROOT / "packaging" / "headwise.service"
ENVIRONMENT = ROOT / "packaging" / "headwise.env"
SYSUSERS = ROOT / "packaging" / "headwise.sysusers"
CONTAINERFILE = ROOT / "Containerfile"
INSTALLED = "/usr/local/bin/headwise"


def unit_values(key):
    return re.findall(rf"^{key}=(.*)$", UNIT.read_text(), re.M)


def environment():
    lines = (line for line in ENVIRONMENT.read_text().splitlines() if line and not line.startswith("#"))
    return dict(line.split("=", 1) for line in lines)


def unit_command(variables):
    """ExecStart as systemd makes it: ${X} is one word, $X as many as it has."""
    words = []
    for word in unit_values("ExecStart")[0].split():
        if re.fullmatch(r"\$\w+", word):
            words += shlex.split(variables[word[1:]])
        else:
            words.append(re.sub(r"\$\{(\w+)\}", lambda name: variables[name[1]], word))
    return words


def known_options():
    text = subprocess.run([BINARY, "serve", "--help"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))


def instructions():
    """The Containerfile's instructions, lines joined: (name, rest)."""
    lines = [line for line in CONTAINERFILE.read_text().splitlines() if not line.startswith("#")]
    text = "\n".join(lines).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line.strip()]


class UnitServer(serve.Server):
    """By a command line of its own."""

    def __init__(self, command):
        self.begin(command)


class Unit(unittest.TestCase):
    def test_options_are_those_of_serve(self):
        command = unit_values("ExecStart")
        self.assertEqual(len(command), 1)
        self.assertTrue(command[0].startswith(INSTALLED + " serve "))
        # The comments of the environment too: people take them as they stand.
        text = command[0] + ENVIRONMENT.read_text()
        options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)) - {"--help"}
        self.assertGreaterEqual(len(options), 6)
        self.assertLessEqual(options, known_options())

    def test_every_variable_has_a_value(self):
        names = set(re.findall(r"\$\{?(\w+)", unit_values("ExecStart")[0]))
        self.assertEqual(names, set(environment()))
        self.assertEqual(unit_values("EnvironmentFile"), ["/etc/headwise/headwise.env"])

    def test_killing_waits_for_the_drain(self):
        drain = int(re.search(r"--drain-seconds (\d+)", unit_values("ExecStart")[0])[1])
        self.assertGreaterEqual(int(unit_values("TimeoutStopSec")[0]), drain + 10)
        self.assertEqual(unit_values("KillSignal"), ["SIGTERM"])

    def test_runs_as_its_own_user(self):
        users = re.findall(r"^u (\w+) ", SYSUSERS.read_text(), re.M)
        self.assertEqual(users, unit_values("User"))
        self.assertEqual(users, unit_values("Group"))
        self.assertEqual(unit_values("NoNewPrivileges"), ["yes"])

    def test_its_command_serves_and_drains(self):
        variables = {**environment(), "HEADWISE_MODEL": MODEL, "HEADWISE_PORT": "0",
                     "HEADWISE_OPTIONS": "--threads 2 --kv-limit-bytes 64MiB"}
        words = unit_command(variables)
        self.assertEqual(words[:2], [INSTALLED, "serve"])
        server = UnitServer([BINARY, *words[1:]])
        reply = urllib.request.urlopen(server.url + "/health", timeout=60)
        self.assertEqual(reply.status, 200)
        self.assertEqual(server.stop(), 0)

    def test_systemd_reads_it(self):
        if not shutil.which("systemd-analyze"):
            self.skipTest("no systemd-analyze: package systemd")
        with tempfile.TemporaryDirectory() as folder:
            unit = pathlib.Path(folder) / UNIT.name
            unit.write_text(UNIT.read_text().replace(INSTALLED, os.path.abspath(BINARY)))
            done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
            self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))
        done = subprocess.run(["systemd-sysusers", "--dry-run", str(SYSUSERS)], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)


class Container(unittest.TestCase):
    def test_its_command_is_one_of_serve(self):
        found = {name: rest for name, rest in instructions()}
        words = json.loads(found["ENTRYPOINT"]) + json.loads(found["CMD"])
        self.assertEqual(words[:2], ["headwise", "serve"])
        options = {word for word in words if word.startswith("--")}
        self.assertLessEqual(options, known_options())
        self.assertEqual(words[words.index("--port") + 1], found["EXPOSE"])
        # Engines kill after ten seconds.
        self.assertLess(int(words[words.index("--drain-seconds") + 1]), 10)
        self.assertEqual(found["USER"], "headwise")
        self.assertIn(f"http://127.0.0.1:{found['EXPOSE']}/health", found["HEALTHCHECK"])
        self.assertEqual(found["STOPSIGNAL"], "SIGTERM")

    def test_it_builds_what_there_is(self):
        text = CONTAINERFILE.read_text()
        for name, rest in instructions():
            if name == "COPY" and not rest.startswith("--from"):
                self.assertTrue((ROOT / rest.split()[0]).exists(), rest)
        preset = re.search(r"--preset (\S+)", text)[1]
        presets = json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]
        self.assertIn(preset, [each["name"] for each in presets])
        self.assertIn(f"build/{preset}", text)
        self.assertIn(f"add_executable({re.search(r'--target ([a-z_]+)', text)[1]} ",
                      (ROOT / "apps" / "headwise" / "CMakeLists.txt").read_text())
        declared = (ROOT / "CMakeLists.txt").read_text() + (ROOT / "cmake" / "HeadwiseCuda.cmake").read_text()
        for option in re.findall(r"-D(\w+)=", text):
            self.assertRegex(declared, rf"(option|set)\({option}\b")
        self.assertIn(f"COMPONENT {re.search(r'--component ([a-z_]+)', text)[1]})",
                      (ROOT / "cmake" / "HeadwiseInstall.cmake").read_text())

    def test_it_has_the_libraries_that_the_command_needs(self):
        if not shutil.which("dpkg") or not shutil.which("ldd"):
            self.skipTest("no dpkg, or no ldd")
        installs = [rest for name, rest in instructions() if name == "RUN" and "apt-get install" in rest]
        packages = set(installs[-1].split())
        # What the base image has.
        packages |= {"libc6", "libgcc-s1", "libstdc++6"}
        dynamic = subprocess.run(["readelf", "-d", BINARY], capture_output=True, text=True, check=True).stdout
        needed = set(re.findall(r"Shared library: \[(.*?)\]", dynamic))
        linked = subprocess.run(["ldd", BINARY], capture_output=True, text=True, check=True).stdout
        paths = {name: path for name, path in re.findall(r"^\s*(\S+) => (/\S+)", linked, re.M) if name in needed}
        self.assertGreater(len(paths), 5)
        for name, path in sorted(paths.items()):
            if re.match(r"lib(a|l|t|ub)san\.", name):
                continue  # a build with a sanitizer, which no container is made of
            real = os.path.realpath(path)
            # Debian 12 has /lib as a link to /usr/lib; dpkg knows a file by either.
            owners = "".join(subprocess.run(["dpkg", "-S", place], capture_output=True, text=True, check=False).stdout
                             for place in (real, real.removeprefix("/usr")))
            if not owners:
                continue  # nobody's package: a library built by hand, say
            owner = owners.split(":")[0]
            self.assertIn(owner, packages, f"{name} is of package {owner}")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
