"""Shut down supervisord once all its programs have ended, since it never exits by itself."""

import contextlib
import http.client
import socket
import time
import xmlrpc.client
from pathlib import Path

from process_tree import Started

PAUSE = 0.005  # seconds between two polls


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(5.0)
        self.sock.connect(str(self._path))


class _Transport(xmlrpc.client.Transport):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def make_connection(self, host: object) -> http.client.HTTPConnection:
        return _Connection(self._path)


def shut_down_when_done(started: Started, directory: Path, limit: float) -> None:
    """Poll supervisord over its socket until all programs have ended, and shut it down.

    Polling from here rather than through supervisorctl saves the start of a second interpreter, so its figure is the
    best possible one.
    """
    with xmlrpc.client.ServerProxy("http://localhost", transport=_Transport(directory / "s.sock")) as server:
        while started.process.poll() is None and time.monotonic() < started.begun + limit:
            # Not listening yet, or about to exit: either way the next poll finds out.
            with contextlib.suppress(OSError, http.client.HTTPException, xmlrpc.client.Fault):
                if _all_exited(server.supervisor.getAllProcessInfo()):
                    server.supervisor.shutdown()
                    return
            time.sleep(PAUSE)


def _all_exited(answer: object) -> bool:
    return isinstance(answer, list) and all(task["statename"] in ("EXITED", "FATAL") for task in answer)
