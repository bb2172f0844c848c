"""`headwise serve` for tests: one on a port of its own, and how it ends."""
import re
import signal
import subprocess
import threading


class Server:
    def __init__(self, binary, *arguments):
        self.begin([binary, "serve", "--port", "0", "--threads", "2", *arguments])

    def begin(self, command):
        """Returns when it listens."""
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.log = []
        self.url = None
        for line in self.process.stderr:
            self.log.append(line)
            found = re.match(r"listening on (http\S+)", line)
            if found:
                self.url = found.group(1)
                break
        if self.url is None:
            raise RuntimeError("the server did not start:\n" + "".join(self.log))
        # Read on, so that it never waits for room.
        self.reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True)
        self.reader.start()

    def stop(self):
        """Its exit status, once it has let answers finish."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout=60)
        self.reader.join()
        self.process.stderr.close()
        return status
