"""A headless Chromium that a test drives: the DevTools protocol over two pipes, which takes no package and no port."""
import base64
import fcntl
import json
import os
import pathlib
import select
import shutil
import subprocess
import time

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# Until a page does what it is waited for.
SECONDS = 300


class Browser:
    """One page. Every request that it makes is noted in `requests`, and what it complains of in `complaints`."""

    def __init__(self, folder):
        def high(fd):  # away from 3 and 4, where Chromium looks for them
            return fcntl.fcntl(fd, fcntl.F_DUPFD, 20)

        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        read, write = high(theirs_in), high(theirs_out)
        self.out, self.input = high(ours_out), high(ours_in)
        for fd in (theirs_in, ours_out, ours_in, theirs_out):
            os.close(fd)

        def give_pipes():
            os.dup2(read, 3)
            os.dup2(write, 4)

        command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe",
                   "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
                   "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", f"--user-data-dir={folder}", "about:blank"]
        self.log = open(pathlib.Path(folder).with_suffix(".log"), "wb")
        self.process = subprocess.Popen(command, preexec_fn=give_pipes, pass_fds=(3, 4), stdin=subprocess.DEVNULL,
                                        stdout=self.log, stderr=self.log)
        os.close(read)
        os.close(write)
        self.buffer = b""
        self.next_id = 0
        self.session = None
        self.requests = []
        self.complaints = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Network", "Page", "Runtime", "Log"):
            self.call(domain + ".enable")

    def close(self):
        self.process.terminate()
        self.process.wait(timeout=60)
        os.close(self.out)
        os.close(self.input)
        self.log.close()

    def receive(self, deadline):
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.input], [], [], max(0, deadline - time.monotonic()))
            piece = os.read(self.input, 1 << 20) if ready else b""
            if not piece:
                raise TimeoutError("the browser says nothing: " + pathlib.Path(self.log.name).read_text()[-2000:])
            self.buffer += piece
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def note(self, event):
        method, said = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(said["request"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(said["exceptionDetails"].get("exception", {}).get("description", str(said)))
        elif method == "Log.entryAdded" and said["entry"]["level"] == "error":
            self.complaints.append(said["entry"]["text"])

    def call(self, method, **params):
        self.next_id += 1
        message = {"id": self.next_id, "method": method, "params": params}
        if self.session is not None:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.out, data):]
        deadline = time.monotonic() + SECONDS + 30
        while True:
            answer = self.receive(deadline)
            if answer.get("id") != self.next_id:
                self.note(answer)
                continue
            if "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            return answer["result"]

    def evaluate(self, expression):
        """The value of an expression of the page; a promise's when it has one."""
        done = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in done:
            raise RuntimeError(f"{expression}: {done['exceptionDetails']}")
        return done["result"].get("value")

    def wait(self, condition):
        """Until an expression of the page is true: it is looked at with every frame, until the deadline."""
        is_so = self.evaluate(f"""new Promise((resolve) => {{
            const end = performance.now() + {1000 * SECONDS};
            const look = () => {{
                if ({condition}) resolve(true);
                else if (performance.now() > end) resolve(false);
                else requestAnimationFrame(look);
            }};
            look();
        }})""")
        if not is_so:
            raise TimeoutError(f"{condition}: not in {SECONDS} s; the page shows: "
                               + self.evaluate("document.body.innerText")[-2000:])

    def watch(self, value):
        """From now on whatever an expression of the page becomes is in window.seen, in its order: no change is missed."""
        self.evaluate(f"""window.seen = []; new MutationObserver(() => {{
            const value = {value};
            if (value !== window.seen.at(-1)) window.seen.push(value);
        }}).observe(document.body, {{subtree: true, childList: true, characterData: true, attributes: true}}), 0""")

    def open(self, url, ready):
        """Goes to a page, or opens the same anew, and waits until `ready`."""
        self.evaluate("window.isOld = true")
        self.call("Page.navigate", url=url)
        deadline = time.monotonic() + SECONDS
        while self.evaluate("window.isOld === true || document.readyState !== 'complete'"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{url} does not open")
        self.wait(ready)

    def write(self, text):
        self.call("Input.insertText", text=text)

    def press(self, key, shift=False):
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowDown": 40, "ArrowRight": 39}
        event = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key], "modifiers": 8 if shift else 0}
        if key == "Enter":
            event["text"] = "\r"
        self.call("Input.dispatchKeyEvent", type="keyDown", **event)
        self.call("Input.dispatchKeyEvent", type="keyUp", **{name: event[name] for name in event if name != "text"})

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)

    def theme(self, name):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def picture(self, path):
        pathlib.Path(path).write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
