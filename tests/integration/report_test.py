#!/usr/bin/env python3
"""`headwise eval report` as a user meets it: what the page holds, and how it behaves in a browser without a network.

Usage: report_test.py BINARY [unittest options]. Standard library only. The browser is Chromium, headless; where there is
none those tests are skipped, and the exit status is 77 so that the test driver shows it.
"""
import csv
import html
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.fspath(pathlib.Path(__file__).resolve().parent.parent / "support"))
import synthetic_runs  # noqa: E402

BINARY = ""
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

# Measures the page it stands in and tells the page around it. All is unfolded first: the worst case.
PROBE = """
<script>
addEventListener("load", () => {
  for (const details of document.querySelectorAll("details")) details.open = true;
  setTimeout(() => {
    const outside = [], touching = [];
    for (const svg of document.querySelectorAll("figure > svg")) {
      const box = svg.getBoundingClientRect();
      const ticks = [];
      for (const text of svg.querySelectorAll("text")) {
        const place = text.getBoundingClientRect();
        if (place.left < box.left - 1 || place.right > box.right + 1 || place.top < box.top - 1 ||
            place.bottom > box.bottom + 1) outside.push(text.textContent);
        for (const other of ticks) {
          if (place.left < other.right && other.left < place.right && place.top + 2 < other.bottom &&
              other.top + 2 < place.bottom) touching.push(text.textContent);
        }
        if (text.classList.contains("tick")) ticks.push(place);
      }
    }
    parent.postMessage(JSON.stringify({
      width: innerWidth, content: document.documentElement.scrollWidth, resources: performance.getEntriesByType("resource").length,
      dark: matchMedia("(prefers-color-scheme: dark)").matches, page: getComputedStyle(document.body).backgroundColor,
      ink: getComputedStyle(document.body).color, charts: document.querySelectorAll("figure.chart").length,
      outside, touching}), "*");
  }, 0);
});
</script>
"""
FRAME = """<!DOCTYPE html><body style="margin:0">
<script>addEventListener("message", event => document.body.append(Object.assign(document.createElement("pre"), {{id: "probe",
textContent: event.data}})));</script>
<iframe src="{page}" style="width:{width}px;height:900px;border:0"></iframe></body>"""


def headwise(*arguments):
    command = [BINARY, *map(os.fspath, map(str, arguments))]
    return subprocess.run(command, capture_output=True, timeout=600, check=False)


def brightness(colour):
    return sum(map(int, re.findall(r"\d+", colour)[:3]))


class ReportTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="headwise-report-")
        cls.path = pathlib.Path(cls.temporary.name)
        synthetic_runs.write_all(cls.path / "runs")
        cls.report, cls.csv, cls.markdown = cls.path / "report.html", cls.path / "cells.csv", cls.path / "tables.md"
        done = headwise("eval", "report", cls.path / "runs", "--out", cls.report, "--csv", cls.csv, "--markdown", cls.markdown)
        if done.returncode != 0:
            raise AssertionError(done.stderr.decode(errors="replace"))
        cls.html = cls.report.read_text(encoding="utf-8")

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def refuses(self, *arguments, says):
        done = headwise(*arguments)
        message = done.stderr.decode(errors="replace")
        self.assertEqual(done.returncode, 1, message)
        self.assertIn("headwise: error: ", message)
        self.assertIn(says, message)

    def probe(self, width, theme):
        """What the page says about itself in a frame of this width: windows have a least width, frames have none."""
        page, frame = self.path / "probed.html", self.path / "frame.html"
        page.write_text(self.html.replace("</body>", PROBE + "</body>"), encoding="utf-8")
        frame.write_text(FRAME.format(page=page.name, width=width), encoding="utf-8")
        theme_options = ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if theme == "dark" else [
            "--blink-settings=preferredColorScheme=1"]
        command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
                   "--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND",
                   f"--user-data-dir={self.path / 'profile'}", f"--window-size={width + 200},1000",
                   "--virtual-time-budget=20000", "--dump-dom", *theme_options, frame.as_uri()]
        done = subprocess.run(command, capture_output=True, timeout=300, check=False)
        found = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout.decode(errors="replace"), re.DOTALL)
        self.assertIsNotNone(found, done.stderr.decode(errors="replace")[-2000:])
        return json.loads(html.unescape(found.group(1)))

    def test_every_section_is_there(self):
        for title in ("Summary", "Needle in a haystack", "Variable tracing", "Perplexity", "Questions on documents",
                      "Time and memory", "Plans", "Failures", "What was run"):
            self.assertIn(f"<h2>{title}</h2>", self.html)
        self.assertIn("Unfinished: 120 results so far of 168.", self.html)
        self.assertEqual(set(re.findall(r'href="([^"]*)"', self.html)), {f"#{name}" for name in re.findall(
            r'<section id="([^"]*)"', self.html)})

    def test_nothing_comes_from_outside(self):
        for part in ("http://", "https://", "src=", "@import", "url(", "<link", "<script"):
            self.assertFalse(part in self.html, part)  # not assertNotIn, which would print the page
        self.assertIsNone(re.search(r"\bnan\b|\binf\b", re.sub(r"<pre>.*?</pre>", "", self.html, flags=re.DOTALL)))

    def test_the_same_runs_give_the_same_bytes(self):
        again = self.path / "again.html"
        self.assertEqual(headwise("eval", "report", self.path / "runs", "--out", again).returncode, 0)
        self.assertEqual(again.read_bytes(), self.report.read_bytes())

    def test_tables(self):
        with open(self.csv, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        needle = [row for row in rows if row["task"] == "needle"]
        self.assertEqual(len(needle), 7 * 4)  # three lengths and all of them
        for row in rows:
            rounding = 1e-9 * abs(float(row["mean"]))
            self.assertLessEqual(float(row["low"]), float(row["mean"]) + rounding)
            self.assertGreaterEqual(float(row["high"]), float(row["mean"]) - rounding)
        results = (self.path / "runs/needle/results.jsonl").read_text().splitlines()
        scores = [line["scores"]["right"] for line in map(json.loads, results)
                  if (line["plan"], line["length"]) == ("duo@0.25", 16384)]
        row, = (row for row in needle if (row["plan"], row["length"]) == ("duo@0.25", "16384"))
        self.assertEqual((int(row["count"]), row["kv_ratio"]), (len(scores), "0.25"))
        self.assertAlmostEqual(float(row["mean"]), sum(scores) / len(scores))
        markdown = self.markdown.read_text(encoding="utf-8")
        for line in markdown.splitlines():
            if line.startswith("|"):
                self.assertTrue(line.endswith("|"), line)
        self.assertIn("| Plan | 4K | 16K | 32K | all | minus full | p |", markdown)

    def test_refusals(self):
        self.refuses("eval", "report", self.path / "absent", "--out", self.path / "x.html", says="absent")
        empty = self.path / "empty"
        empty.mkdir()
        self.refuses("eval", "report", empty, "--out", self.path / "x.html", says="manifest.json")
        self.refuses("eval", "report", self.path / "runs", says="--out")
        broken = self.path / "broken"
        broken.mkdir()
        (broken / "manifest.json").write_text("{")
        self.refuses("eval", "report", broken, "--out", self.path / "x.html", says="broken/manifest.json")
        self.assertFalse((self.path / "x.html").exists())

    @unittest.skipIf(CHROMIUM is None, "no Chromium is installed: the page was not opened")
    def test_in_a_browser(self):
        for width in (400, 1200):
            for theme in ("light", "dark"):
                with self.subTest(width=width, theme=theme):
                    seen = self.probe(width, theme)
                    self.assertEqual(seen["width"], width)
                    self.assertLessEqual(seen["content"], width)  # only tables scroll, in boxes of their own
                    self.assertEqual(seen["resources"], 0)
                    self.assertEqual(seen["dark"], theme == "dark")
                    is_dark = brightness(seen["page"]) < brightness(seen["ink"])
                    self.assertEqual(is_dark, theme == "dark", (seen["page"], seen["ink"]))
                    self.assertGreater(seen["charts"], 20)
                    self.assertEqual(seen["outside"], [])
                    self.assertEqual(seen["touching"], [])


if __name__ == "__main__":
    BINARY = sys.argv[1]
    outcome = unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2, exit=False).result
    sys.exit(1 if not outcome.wasSuccessful() else 77 if outcome.skipped else 0)
