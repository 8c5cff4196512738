"""`rankcode serve --api` in a process of its own."""

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

from new_process import ENVIRONMENT


class ServerProcess:
    def __init__(self, folder, model, *options, port=0):
        command = [sys.executable, "-m", "rankcode", "serve", str(model), "--api", "--port", str(port), *options]
        self.process = subprocess.Popen(
            command, cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.lines, self.ready = [], threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self.ready.wait(60) and self.process.poll() is None, self.lines
        self.port = json.loads(self.lines[-1])["port"]
        self.url = f"http://127.0.0.1:{self.port}"

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line)
            if '"event": "started"' in line:
                self.ready.set()
        self.ready.set()

    def rss(self):
        """Resident memory, in bytes."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def stop(self, how=signal.SIGTERM, seconds=15):
        """End it, and return its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        status = self.process.wait(seconds)
        self._reader.join(5)
        return status

    def events(self):
        """The log: every line is JSON."""
        return [json.loads(line) for line in self.lines]


@contextmanager
def served(folder, model, *options, port=0):
    server = ServerProcess(folder, model, *options, port=port)
    try:
        yield server
    finally:
        server.stop(signal.SIGKILL)
