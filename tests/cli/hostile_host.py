"""A host that violates the protocol: it replaces `docker` and behaves as its mode says.

A program called ``docker`` that runs this file, with the mode in HOSTILE_MODE, makes every host of a spec with
``"hosts": {"h1": {"docker": "c1"}}`` a hostile one. It speaks the protocol of `tflaunch_worker.boot` and then that of
an agent, and deviates where its mode says so: it floods, drips or ends no task. Messages that are wrong are
in tests/unit/test_hostile_agents.py and tests/fuzz. Standard library only.
"""

from __future__ import annotations

import io
import json
import os
import re
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

_SIZE = struct.Struct("!II")


class Host:
    """The host's end of the stream. ``mode`` selects its behaviour."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self._in = io.FileIO(0, closefd=False)
        self._obeyed = 0
        self._seq = 0
        self._offset = 0

    # ---- bytes

    def write(self, data: bytes) -> None:
        """Write bytes; exit if the reader is gone."""
        try:
            while data:
                data = data[os.write(1, data) :]
        except OSError:
            sys.exit()

    def frame(self, message: dict[str, Any], body: bytes = b"") -> None:
        head = json.dumps(message).encode()
        self.write(_SIZE.pack(len(head), len(body)) + head + body)

    def tell(self, kind: str, **fields: Any) -> None:
        self._seq += 1
        self.frame({"kind": kind, "seq": self._seq, **fields})

    def read(self, size: int) -> bytes:
        """Read this many bytes; exit at the end of the stream."""
        data = b""
        while len(data) < size:
            piece = self._in.read(size - len(data))
            if not piece:
                sys.exit()
            data += piece
        return data

    def read_frame(self) -> dict[str, Any]:
        """Read the message of a frame."""
        head, body = _SIZE.unpack(self.read(_SIZE.size))
        message: dict[str, Any] = json.loads(self.read(head))
        self.read(body)
        return message

    # ---- the conversation

    def play(self, moment: str, *about: Any) -> None:
        """Misbehave at this moment, if the mode does so here."""
        known, part = PARTS[self.mode]
        if known == moment:
            part(self, *about)

    def boot(self, command: str) -> None:
        """Respond like the login shell and the bootstrap program."""
        self.play("login")
        found = re.search(r'printf "%s%s\\n" (\w+) (\w+)', command)
        assert found is not None
        self.write(f"{found[1]}{found[2]}\n".encode())
        received = b""
        while b'"mode"' not in received or not received.endswith(b"\n"):
            received += self._in.read(65536) or sys.exit()
        self.write(b'{"kind":"ready"}\n')

    def serve(self) -> None:
        hello = self.read_frame()
        known = {"protocol": hello.get("protocol"), "sent": hello.get("sent")}
        rest = {"is_leaving": False, "streams": [], "addresses": ["127.0.0.1"], "obeyed": 0, "time": 1.0}
        self.frame({"kind": "greeted", **known, **rest})
        while True:
            self.answer(self.read_frame())

    def answer(self, order: dict[str, Any]) -> None:
        self._obeyed = max(self._obeyed, order.get("order", 0))
        match order["kind"]:
            case "keep_alive":
                pulse = {"obeyed": self._obeyed, "sent": order["sent"], "time": 1.0}
                self.frame({"kind": "alive", **pulse})
            case "look_up_names":
                self.tell("names_resolved", found={})
            case "hold_ports":
                self.tell("ports_held", ports={task: port or 2222 for task, port in order["ports"].items()})
            case "probe_peers":
                self.tell("peers_probed", failed={})
            case "start_task":
                self._run(order["task"], order["attempt"])
            case "leave":
                sys.exit()

    def _run(self, task: str, attempt: int) -> None:
        self.tell("task_started", task=task, attempt=attempt, pid=1, at=1.0)
        self.play("start", task, attempt)

    def output(self, task: str, attempt: int, data: bytes) -> None:
        about = {"task": task, "attempt": attempt, "offset": self._offset, "times": [[self._offset, 1.0]]}
        self.frame({"kind": "output", **about}, data)
        self._offset += len(data)


# ---- before there is an agent


def _noise(host: Host) -> None:
    while True:
        host.write(b"x" * 65536)


def _drip(host: Host) -> None:
    while True:
        host.write(b"x")
        time.sleep(0.2)  # clock: a byte now and then is what it is about


# ---- while a task runs


def _flood(host: Host, task: str, attempt: int) -> None:
    while True:
        host.output(task, attempt, b"A" * 1_000_000)


def _hold(host: Host, task: str, attempt: int) -> None:
    while True:
        host.answer(host.read_frame())


PARTS: dict[str, tuple[str, Callable[..., None]]] = {
    "noise": ("login", _noise),
    "drip": ("login", _drip),
    "flood": ("start", _flood),
    "hold": ("start", _hold),
}
"""For each mode, when it misbehaves, and how."""


def main() -> None:
    host = Host(os.environ["HOSTILE_MODE"])
    host.boot(sys.argv[-1])
    host.serve()


if __name__ == "__main__":
    main()
