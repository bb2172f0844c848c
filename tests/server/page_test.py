#!/usr/bin/env python3
"""The page of `headwise serve` in a browser: a message is answered, stopped, asked for again, compared under two plans.

Called as page_test.py BINARY MODEL_FOLDER PLAN [unittest options]. Standard library only. The browser is Chromium,
headless; where there is none nothing is tested, and the status is 77. With HEADWISE_PICTURES=FOLDER it leaves pictures
of the page there.
"""
import json
import os
import pathlib
import re
import sys
import tempfile
import unittest

sys.path.insert(0, os.fspath(pathlib.Path(__file__).resolve().parent.parent / "support"))
import browser  # noqa: E402
from serve import Server  # noqa: E402

SKIPPED = 77
KEY = "sk-page"
STORY = "Tell me about the house by the sea, and of all who lived in it."
READY = "document.getElementById('prompt')?.dataset.ready === 'true'"
IDLE = "document.getElementById('stop').hidden"
BUSY = "!document.getElementById('stop').hidden"
HTML = ("<h1 id='evil'>Big</h1><img id='evil' src=x onerror='document.title=\"evil\"'><script>document.title='evil'</script>"
        "\n\n```html\n<b id='evil'>bold</b>\n```\n\n- **one** `<i id='evil'>`\n- [link](javascript:alert(1))")


def model_without_chat(folder, made):
    """The model under a vocabulary that tells no chat format."""
    made.mkdir()
    for path in pathlib.Path(folder).iterdir():
        if path.suffix == ".json":
            text = path.read_text(encoding="utf-8")
            (made / path.name).write_text(text.replace("<|im_start|>", "<|begins|>").replace("<|im_end|>", "<|ends|>"),
                                          encoding="utf-8")
        else:
            (made / path.name).symlink_to(path.resolve())
    return made


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="headwise-page-", ignore_cleanup_errors=True)
        folder = pathlib.Path(cls.temporary.name)
        base = model_without_chat(MODEL, folder / "base")
        cls.server = Server(BINARY, "--model", MODEL, "--model", f"base={base}", "--plan", "two-heads=" + PLAN)
        cls.browser = browser.Browser(folder / "profile")
        cls.pictures = os.environ.get("HEADWISE_PICTURES")

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        status = cls.server.stop()
        cls.temporary.cleanup()
        assert status == 0, "".join(cls.server.log)

    def setUp(self):
        self.page = self.browser
        self.page.size(1280, 800)
        self.page.theme("light")
        self.page.open(self.server.url + "/", READY)
        self.page.evaluate("localStorage.clear(); sessionStorage.clear()")
        self.set_settings()
        self.page.requests.clear()
        self.page.complaints.clear()

    def tearDown(self):
        self.page.evaluate("document.getElementById('stop').click()")
        self.page.wait(IDLE)
        self.assertEqual(self.page.complaints, [])

    # ---- the page's parts ----

    def open(self):
        self.page.open(self.server.url + "/", READY)

    def set_settings(self, **settings):
        self.page.evaluate(f"localStorage.setItem('headwise.settings', {json.dumps(json.dumps({'temperature': '0', **settings}))})")
        self.open()

    def click(self, selector):
        self.page.evaluate(f"document.querySelector({json.dumps(selector)}).click()")

    def text(self, selector):
        return self.page.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? null")

    def choose(self, selector, value):
        self.page.evaluate(f"""(() => {{ const node = document.querySelector({json.dumps(selector)});
            node.value = {json.dumps(value)}; node.dispatchEvent(new Event("change")); }})()""")

    def send(self, text):
        self.page.evaluate("document.getElementById('prompt').focus()")
        self.page.write(text)
        self.page.press("Enter")

    def ask(self, text):
        self.send(text)
        self.page.wait(f"{IDLE} && document.querySelector('.assistant .facts')?.innerText.includes('tokens')")

    def count(self, selector):
        return self.page.evaluate(f"document.querySelectorAll({json.dumps(selector)}).length")

    def stored(self):
        kept = self.page.evaluate("Object.entries(localStorage).filter(([key]) => key.startsWith('headwise.conversation.'))")
        return [json.loads(value) for _, value in kept]

    def heads(self, column=0):
        """The first number of every label of the grid: the tokens that a head holds."""
        labels = self.page.evaluate(
            f"[...document.querySelectorAll('[data-column=\"{column}\"] .cell')].map((cell) => cell.getAttribute('aria-label'))")
        return [int(re.search(r": ([\d,]+) of", label).group(1).replace(",", "")) for label in labels]

    def await_memory(self, column, tokens):
        self.page.wait(f"document.querySelector('[data-column=\"{column}\"] .tokens').innerText === '{tokens:,}'")

    def picture(self, name):
        if self.pictures:
            self.page.picture(pathlib.Path(self.pictures) / f"{name}.png")

    # ---- what is tested ----

    def test_an_answer_streams_and_stays(self):
        self.set_settings(max_tokens="200", plans=["two-heads", ""])
        self.page.watch(f"{BUSY} && document.querySelector('.assistant .text')?.textContent")
        self.ask(STORY)
        whole = self.text(".assistant .text")
        early = [text for text in self.page.evaluate("window.seen") if text]
        self.assertGreater(len(early), 2)
        self.assertGreater(len(early[1]), len(early[0]))
        self.assertGreater(len(whole), len(early[0]))
        self.assertEqual(self.text("#prompt") or "", "")
        self.assertIn("two-heads · 200 tokens", self.text(".assistant .facts"))
        self.assertIsNone(self.page.evaluate("document.querySelector('.log').getAttribute('aria-busy')"))
        self.assertIn("200 tokens", self.page.evaluate("document.getElementById('status').textContent"))
        # The grid holds what the request's usage says.
        answer = self.stored()[0]["turns"][0]["answers"][0]
        self.await_memory(0, answer["heldTokens"])
        heads = self.heads()
        self.assertEqual(max(heads), answer["heldTokens"])
        self.assertEqual(heads.count(min(answer["heldTokens"], 16 + 128)), 30)
        self.assertEqual(self.text(".bytes"), f"{answer['kvBytes'] / 2**20:.2f} MiB")
        self.picture("answer-light")
        self.open()
        self.assertEqual(self.text(".assistant .text"), whole)
        self.await_memory(0, answer["heldTokens"])

    def test_the_memory_grows_while_it_streams(self):
        self.set_settings(max_tokens="3000", plans=["full", ""])
        self.page.watch("document.querySelector('.tokens').textContent")
        self.send(STORY)
        self.page.wait("new Set(window.seen).size >= 4")
        self.page.press("Escape")
        self.page.wait(IDLE)
        asked = [request for request in self.page.requests if "/heads?" in request["url"]]
        self.assertGreaterEqual(len(asked), 4)
        numbers = [int(text.replace(",", "")) for text in self.page.evaluate("window.seen")]
        self.assertEqual(numbers[:4], sorted(numbers[:4]))

    def test_escape_stops_and_the_answer_so_far_stays(self):
        self.set_settings(max_tokens="20000")
        self.send(STORY)
        self.page.wait("document.querySelector('.assistant .text')?.innerText.length > 40")
        self.page.press("Escape")
        self.page.wait(IDLE)
        self.assertIn("stopped", self.text(".assistant .facts"))
        stopped = self.text(".assistant .text")
        self.assertGreater(len(stopped), 40)
        self.assertEqual(self.stored()[0]["turns"][0]["answers"][0]["finish"], "stopped")
        self.page.wait("document.querySelector('.tokens').innerText !== '0'")
        # Nobody is answered any more.
        self.page.wait("""(window.left ??= fetch("/metrics").then((reply) => reply.text()).then((text) => {
            window.left = undefined; window.running = text.match(/num_requests_running\\{[^}]*\\} (\\d+)/)[1]; }),
            window.running === "0")""")

    def test_regenerate(self):
        self.set_settings(max_tokens="60", temperature="1")
        self.ask(STORY)
        first = self.text(".assistant .text")
        self.page.evaluate("document.querySelector('.assistant').isOld = true")
        self.click("#regenerate")
        self.page.wait(f"{IDLE} && document.querySelector('.assistant') && !document.querySelector('.assistant').isOld && "
                       "document.querySelector('.assistant .facts').innerText.includes('tokens')")
        self.assertNotEqual(self.text(".assistant .text"), first)
        self.assertEqual(self.count(".assistant"), 1)
        self.assertEqual(self.count(".user"), 1)
        self.assertEqual(len(self.stored()[0]["turns"]), 1)

    def test_two_plans_side_by_side(self):
        self.set_settings(max_tokens="400")
        self.click("#compare")
        self.assertEqual(self.count(".column"), 2)
        self.page.watch("document.querySelectorAll('[aria-busy=true]').length")
        self.send(STORY)
        self.page.wait(f"{IDLE} && document.querySelectorAll('.assistant').length === 2")
        self.assertEqual(max(self.page.evaluate("window.seen")), 2)
        answers = self.stored()[0]["turns"][0]["answers"]
        self.assertEqual([answer["plan"] for answer in answers], ["full", "two-heads"])
        for column, answer in enumerate(answers):
            self.await_memory(column, answer["heldTokens"])
            self.assertRegex(self.text(f"[data-column='{column}'] .speed"), r"^\d+\.\d$")
        self.assertLess(sum(self.heads(1)), sum(self.heads(0)))
        self.assertLess(answers[1]["kvBytes"], answers[0]["kvBytes"])
        self.assertTrue(self.text("[data-column='0'] .given-back").startswith("0 of"))
        self.assertFalse(self.text("[data-column='1'] .given-back").startswith("0 of"))
        self.picture("compare-light")
        # The next turn goes on under each.
        self.send("And then?")
        self.page.wait(f"{IDLE} && document.querySelectorAll('.assistant').length === 4")
        self.assertEqual(len(self.stored()[0]["turns"][1]["answers"]), 2)

    def test_deleting_a_conversation_empties_the_heads(self):
        self.set_settings(max_tokens="40")
        self.ask(STORY)
        self.page.wait("document.querySelector('.bytes').innerText !== '0 B'")
        self.click("#new")
        self.await_memory(0, 0)
        self.assertEqual(self.count("#conversations li"), 2)
        self.click("#conversations li:nth-child(2) .open")
        self.page.wait("document.querySelector('.bytes').innerText !== '0 B'")
        self.click("#conversations [aria-current] + .delete")
        self.page.wait("document.querySelector('.bytes').innerText === '0 B'")
        self.assertEqual(self.stored(), [])
        self.assertEqual(set(self.heads()), {0})

    def test_an_answer_in_html_is_text(self):
        conversation = {"id": "x", "created": 1, "turns": [{"user": "<b id='evil'>me</b>", "answers": [
            {"text": HTML, "plan": "full", "finish": "stop", "error": ""}, None]}]}
        broken = ['{"id": "y", "created": 1, "turns": [{"user": 1}]}', "{", "null"]
        for name, text in [("x", json.dumps(conversation)), *zip("yzw", broken)]:
            self.page.evaluate(f"localStorage.setItem('headwise.conversation.{name}', {json.dumps(text)})")
        self.open()
        self.assertEqual(self.count("#evil"), 0)
        self.assertEqual(self.count(".log img, .log script, .log a, .log b, .log i"), 0)
        self.assertEqual(self.page.evaluate("document.title"), "headwise")
        self.assertIn("<h1 id='evil'>Big</h1>", self.text(".assistant .text"))
        self.assertEqual(self.text(".assistant pre code"), "<b id='evil'>bold</b>")
        self.assertEqual(self.text(".assistant li strong"), "one")
        self.assertEqual(self.text(".assistant li code"), "<i id='evil'>")
        self.assertEqual(self.text(".user"), "<b id='evil'>me</b>")
        self.assertEqual(self.count("#conversations li"), 1)

    def test_markdown(self):
        cases = {
            "one\ntwo\n\nthree": "<p>one\ntwo</p><p>three</p>",
            "# T #\n## U": "<h3>T</h3><h4>U</h4>",
            "a **b *c* d** _e_ f_g_h": "<p>a <strong>b <em>c</em> d</strong> <em>e</em> f_g_h</p>",
            "`` a`b `` `c": "<p><code>a`b</code> `c</p>",
            "1. a\n2. b\n   - c\n\n   d": "<ol><li>a</li><li>b<ul><li>c</li></ul><p>d</p></li></ol>",
            "- a\n\n- b\n1. c": "<ul><li>a</li><li>b</li></ul><ol><li>c</li></ol>",
            "~~~\na\n```\n~~~\nb": '<pre tabindex="0"><code>a\n```</code></pre><p>b</p>',
            "```js\nopen": '<pre tabindex="0" aria-label="Code: js"><code>open</code></pre>',
            "2 * 3 * 4 ** 5 &amp; <i>": "<p>2 * 3 * 4 ** 5 &amp;amp; &lt;i&gt;</p>",
        }
        for text, expected in cases.items():
            made = self.page.evaluate(f"""import("/page/markdown.js").then(({{markdown}}) => {{
                const box = document.createElement("div"); box.append(...markdown({json.dumps(text)})); return box.innerHTML; }})""")
            self.assertEqual(made, expected, text)
        # What nobody wrote by hand ends soon, too.
        for text in ("*" * 100000, "`" * 100000, "- " * 50000, "_a" * 50000, "[" * 100000, "** a" * 25000):
            size = self.page.evaluate(f"""import("/page/markdown.js").then(({{markdown}}) =>
                markdown({json.dumps(text)}).length)""")
            self.assertGreater(size, 0)

    def test_a_model_without_a_chat_format(self):
        self.choose("#model", "base")
        self.assertIn("has no chat format", self.text("#notice"))
        self.set_settings(model="base", max_tokens="20")
        self.assertIn("has no chat format", self.text("#notice"))
        self.ask("Once upon a time")
        asked = [request["url"] for request in self.page.requests]
        self.assertTrue(any(url.endswith("/v1/completions") for url in asked), asked)
        self.assertFalse(any("/chat/" in url for url in asked), asked)

    def test_parameters_are_sent(self):
        self.click("#parameters summary")
        wanted = {"system": "Be brief.", "temperature": "0.5", "top_p": "0.9", "max_tokens": "7", "seed": "3"}
        for name, value in wanted.items():
            self.choose("#" + name, value)
        self.picture("parameters")
        self.ask("Hello")
        body, = (json.loads(request["postData"]) for request in self.page.requests
                 if request["url"].endswith("/v1/chat/completions"))
        self.assertEqual(body["messages"], [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}])
        self.assertEqual({name: body[name] for name in ("temperature", "top_p", "max_tokens", "seed")},
                         {"temperature": 0.5, "top_p": 0.9, "max_tokens": 7, "seed": 3})
        first = self.text(".assistant .text")
        # The same seed gives the same answer, and what was written stays for the next time.
        self.open()
        self.assertEqual(self.page.evaluate("document.getElementById('seed').value"), "3")
        self.click("#new")
        self.ask("Hello")
        self.assertEqual(self.text(".assistant .text"), first)

    def test_who_reads_the_end_stays_there(self):
        self.set_settings(max_tokens="2000")
        self.page.size(390, 600)
        self.send(STORY)
        log = "document.querySelector('.log')"
        self.page.wait(f"{log}.scrollHeight > {log}.clientHeight + 200")
        self.assertLess(self.page.evaluate(f"{log}.scrollHeight - {log}.scrollTop - {log}.clientHeight"), 40)
        self.page.evaluate(f"{log}.scrollTop = 0")
        height = self.page.evaluate(f"{log}.scrollHeight")
        self.page.wait(f"{log}.scrollHeight > {height} + 100 || {IDLE}")
        self.assertEqual(self.page.evaluate(f"{log}.scrollTop"), 0)
        self.page.press("Escape")
        self.page.wait(IDLE)

    def test_errors_are_told(self):
        self.set_settings(max_tokens="99999999")
        self.send("Hello")
        self.page.wait(f"{IDLE} && document.querySelector('.facts.error')")
        self.assertIn("maximum context length", self.text(".facts.error"))
        self.page.complaints = [text for text in self.page.complaints if "400" not in text]

    def test_keys(self):
        self.page.evaluate("document.getElementById('prompt').focus()")
        self.page.write("one")
        self.page.press("Enter", shift=True)
        self.page.write("two")
        self.assertEqual(self.page.evaluate("document.getElementById('prompt').value"), "one\ntwo")
        self.assertEqual(self.count(".user"), 0)
        self.page.wait("document.querySelectorAll('.cell').length > 0")
        self.page.evaluate("document.querySelector('.cell').focus()")
        self.page.press("ArrowDown")
        self.page.press("ArrowRight")
        self.assertTrue(self.text(".readout").startswith("layer 1, head 1"), self.text(".readout"))
        self.assertEqual(self.count(".cell[tabindex='0']"), 1)
        # Every control has a name, and what has the focus shows it.
        nameless = self.page.evaluate("""[...document.querySelectorAll("button, input, select, textarea")].filter((node) =>
            !(node.getAttribute("aria-label") || node.textContent.trim() || node.labels?.length)).map((node) => node.outerHTML)""")
        self.assertEqual(nameless, [])
        self.page.evaluate("document.activeElement.blur()")
        stops = []
        for _ in range(30):
            self.page.press("Tab")
            stops.append(self.page.evaluate("document.activeElement.id || document.activeElement.className"))
            shown = self.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            self.assertTrue(shown != "none" or stops[-1] == "", stops[-1])
        for name in ("model", "compare", "theme", "new", "plan", "log", "prompt", "send"):
            self.assertIn(name, stops)

    def test_themes_and_widths(self):
        self.set_settings(max_tokens="300", plans=["two-heads", "full"])
        self.ask(STORY)
        for theme in ("light", "dark"):
            self.page.theme(theme)
            page, ink = self.page.evaluate(
                "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]")
            is_dark = sum(map(int, re.findall(r"\d+", page)[:3])) < sum(map(int, re.findall(r"\d+", ink)[:3]))
            self.assertEqual(is_dark, theme == "dark")
            for width, height in ((390, 844), (900, 700), (1280, 800)):
                self.page.size(width, height)
                self.open()
                self.page.wait("document.querySelector('.tokens').textContent !== '0'")
                self.assertLessEqual(self.page.evaluate("document.documentElement.scrollWidth"), width)
                self.assertLessEqual(self.page.evaluate("document.documentElement.scrollHeight"), height)
                self.picture(f"{theme}-{width}")
                self.click("#compare")
                self.page.wait("document.querySelector('[data-column=\"1\"] .tokens').textContent !== '0'")
                self.assertIn("Not asked under this plan", self.text("[data-column='1'] .log"))
                self.assertLessEqual(self.page.evaluate("document.documentElement.scrollWidth"), width)
                self.picture(f"{theme}-{width}-compare")
                self.click("#compare")
                if width < 760:
                    self.click("#menu")
                    self.picture(f"{theme}-{width}-menu")
                    self.page.press("Escape")
                    self.assertEqual(self.page.evaluate("document.getElementById('menu').ariaExpanded"), "false")
                    self.click(".memory summary")
                    self.picture(f"{theme}-{width}-memory")
        # The switch goes before what the system wants.
        self.page.theme("dark")
        self.click("#theme")
        self.assertEqual(self.text("#theme"), "Theme: light")
        self.assertEqual(self.page.evaluate("getComputedStyle(document.documentElement).colorScheme"), "light")

    def test_grids_of_large_models(self):
        for layers, heads in ((32, 8), (80, 8), (24, 32)):
            self.open()
            self.page.wait("document.querySelectorAll('.cell').length > 0")
            self.page.evaluate(f"""import("/page/memory.js").then(({{MemoryView}}) => {{
                const rows = (of) => Array.from({{length: {layers}}}, (_, layer) => Array.from({{length: {heads}}}, (_, head) => of(layer, head)));
                const isFull = (layer, head) => (layer * 7 + head * 5) % 9 === 0;
                window.view = new MemoryView(document.querySelector(".memory"));
                window.view.draw({{tokens: 32000, rules: ["sink 16, recent 128", "full: every token"],
                    rule_of: rows((layer, head) => isFull(layer, head) ? 1 : 0),
                    kept_tokens: rows((layer, head) => isFull(layer, head) ? 32000 : 144),
                    kv_bytes: rows((layer, head) => isFull(layer, head) ? 16384000 : 98304),
                    total: {{kv_bytes: 5e9, kv_bytes_all_full: 3e10, pages: 20000, pages_given_back: 400000}}}});
                document.querySelector(".alternative").open = true; }})""")
            self.page.wait(f"document.querySelectorAll('table tbody tr').length === {layers * heads}")
            self.assertEqual(self.count(".cell"), layers * heads)
            self.assertTrue(self.page.evaluate("""[...document.querySelectorAll(".cell")].every((cell) => {
                const box = cell.getBoundingClientRect(), grid = document.querySelector(".cells").getBoundingClientRect();
                return box.width >= 3 && box.height >= 3 && box.right <= grid.right + 1; })"""))
            self.assertTrue(self.page.evaluate(
                "document.querySelector('.memory').scrollWidth <= document.querySelector('.memory').clientWidth"))
            self.picture(f"grid-{layers}x{heads}")

    def test_nothing_leaves_the_host(self):
        self.set_settings(max_tokens="20")
        self.ask(STORY)
        urls = [request["url"] for request in self.page.requests]
        self.assertTrue(urls)
        for url in urls:
            self.assertTrue(url.startswith((self.server.url + "/", "data:")), url)
        # Not even what a script of the page would ask for.
        refused = self.page.evaluate("fetch('http://127.0.0.1:9/x', {mode: 'no-cors'}).then(() => 'asked', () => 'refused')")
        self.assertEqual(refused, "refused")
        self.assertTrue(any("Content Security Policy" in text for text in self.page.complaints), self.page.complaints)
        self.page.complaints.clear()


class PageWithKeys(unittest.TestCase):
    def test_the_key_is_asked_for_and_sent(self):
        with tempfile.TemporaryDirectory(prefix="headwise-page-", ignore_cleanup_errors=True) as folder:
            server = Server(BINARY, "--model", MODEL, "--api-key", KEY)
            page = browser.Browser(pathlib.Path(folder) / "profile")
            try:
                page.open(server.url + "/", READY)
                self.assertIn("asks for an API key", page.evaluate("document.getElementById('notice').innerText"))
                self.assertEqual(page.evaluate("document.activeElement.id"), "key")
                page.write(KEY)
                page.press("Tab")
                page.wait("document.querySelectorAll('.cell').length > 0")
                page.evaluate("document.getElementById('prompt').focus()")
                page.write("Hello")
                page.press("Enter")
                page.wait(f"{IDLE} && document.querySelector('.assistant .facts')?.innerText.includes('tokens')")
                self.assertEqual(page.evaluate("sessionStorage.getItem('headwise.key')"), KEY)
                self.assertNotIn(KEY, page.evaluate("JSON.stringify(localStorage)"))
                for request in page.requests:
                    self.assertNotIn(KEY, request["url"])
            finally:
                page.close()
                self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    if browser.CHROMIUM is None:
        print("skipped: no Chromium is installed")
        sys.exit(SKIPPED)
    BINARY, MODEL, PLAN = sys.argv[1:4]
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]], verbosity=2)
