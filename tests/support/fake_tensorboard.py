"""A fake TensorBoard that starts at once, and a running `tflaunch` whose messages are read line by line."""

import queue
import re
import subprocess
import threading
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

from support.launch import PATIENCE, Launch

_PROGRAM = """
import argparse, http.server, os, signal, sys
parser = argparse.ArgumentParser()
for option in ("--logdir", "--host"):
    parser.add_argument(option, required=True)
parser.add_argument("--port", type=int)
options = parser.parse_args()
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
if os.path.exists("waits"):  # until another program has taken the port
    open("told", "w").write(str(options.port))
    open("waits").read()
    os.rename("waits", "waited")
for port in [options.port] if options.port else range(6006, 6106):
    try:
        server = http.server.HTTPServer((options.host, port), http.server.SimpleHTTPRequestHandler)
    except OSError:
        if os.path.exists("refused"):  # until the other program has left the port
            open("refused").read()
    else:
        server.serve_forever()
sys.exit(255)
"""

URL = r"TensorBoard: http://localhost:(\d+)/"
UNTIL_GO = "echo up; until test -e go; do sleep 0.05; done; "
QUICK = {"lease": 60, "grace": 5}


def stand_in(directory: Path) -> None:
    """Put a module `tensorboard.main` that listens as TensorBoard does into a directory, for PYTHONPATH."""
    package = directory / "tensorboard"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "main.py").write_text(_PROGRAM)


class Said:
    """The stderr of a running command, as it arrives."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.lines: list[str] = []
        self._process = process
        self._queue: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        with suppress(ValueError):  # closed at the end of the test
            for line in self._process.stderr:
                self._queue.put(line)
        self._queue.put("")

    def until(self, pattern: str) -> re.Match[str]:
        while True:
            line = self._queue.get(timeout=PATIENCE)
            assert line, f"it ended after {self.lines}"
            self.lines.append(line.rstrip("\n"))
            if found := re.search(pattern, line):
                return found


def job(launch: Launch, script: str, **fields: Any) -> Path:
    """Write the spec of a worker that runs a shell script, with a TensorBoard."""
    if not (launch.directory / "tensorboard").exists():
        stand_in(launch.directory)
    launch.env["PYTHONPATH"] = str(launch.directory)
    return launch.shell(
        script, **{"workers": 1, "strategy": "none", "tensorboard": "logs/", "timeouts": QUICK, **fields}
    )


def answers(port: int) -> bool:
    """Return whether pages are served on a port of the loopback address."""
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=PATIENCE) as page:
        return bool(page.status == 200)
    return False
