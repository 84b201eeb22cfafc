"""A host that violates the protocol: it replaces `docker` and behaves as its mode says.

A program called ``docker`` that runs this file, with the mode in HOSTILE_MODE, makes every host of a spec with
``"hosts": {"h1": {"docker": "c1"}}`` a hostile one. It speaks the protocol of `tflaunch_worker.boot` and then that of
an agent, and deviates where its mode says so. Standard library only.
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

ESCAPES = "\x1b]0;PWNED\x07\x1b[2J\ntflaunch: done: 1 task"
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

    def frame(self, message: dict[str, Any] | bytes, body: bytes = b"") -> None:
        """Write a frame; a message may be given as JSON bytes."""
        head = message if isinstance(message, bytes) else json.dumps(message).encode()
        self.write(_SIZE.pack(len(head), len(body)) + head + body)

    def tell(self, kind: str, **fields: Any) -> None:
        """Send an event."""
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

    def boot(self, command: str) -> None:
        """Respond like the login shell and the bootstrap program."""
        _play(BEFORE_BOOT, self)
        found = re.search(r'printf "%s%s\\n" (\w+) (\w+)', command)
        assert found is not None
        self.write(f"{found[1]}{found[2]}\n".encode())
        _play(AT_BOOT, self)
        received = b""
        while b'"mode"' not in received or not received.endswith(b"\n"):
            received += self._in.read(65536) or sys.exit()
        self.write(b'{"kind":"ready"}\n')

    def serve(self) -> None:
        """Respond like an agent."""
        hello = self.read_frame()
        _play(AT_LOOK if hello["kind"] == "look" else AT_HELLO, self)
        pulse = {"obeyed": 0, "sent": hello.get("sent"), "time": 1.0}
        self.frame(
            {
                "kind": "greeted",
                "protocol": hello.get("protocol"),
                "is_leaving": False,
                "streams": [],
                "addresses": CLAIMS.get(self.mode, ["127.0.0.1"]),
                **pulse,
            }
        )
        _play(AFTER_GREETING, self)
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
            case "offer_files":
                _play(AT_OFFER, self, order)
                self.frame({"kind": "answered", "call": order["call"], "wanted": []})
                self.tell("files_synced")
            case "start_task":
                self._run(order["task"], order["attempt"])
            case "leave":
                sys.exit()

    def _run(self, task: str, attempt: int) -> None:
        self.tell("task_started", task=task, attempt=attempt, pid=1, at=1.0)
        _play(AT_START, self, task, attempt)
        ended = {"code": 0, "signal": None, "at": 1.0, "was_told": False, "evidence": ""}
        ended.update(ENDINGS.get(self.mode, {}))
        self.tell("task_exited", task=task, attempt=attempt, **ended)
        self.frame({"kind": "output_ended", "task": task, "attempt": attempt, "offset": self._offset})
        self.tell("task_gone", task=task, attempt=attempt)

    def output(self, task: str, attempt: int, data: bytes) -> None:
        """Write output of a task."""
        about = {"task": task, "attempt": attempt, "offset": self._offset, "times": [[self._offset, 1.0]]}
        self.frame({"kind": "output", **about}, data)
        self._offset += len(data)


def _play(parts: dict[str, Callable[..., None]], host: Host, *about: Any) -> None:
    """Misbehave at this point of the protocol, if the mode does so here."""
    part = parts.get(host.mode)
    if part is not None:
        part(host, *about)


# ---- before there is an agent


def _noise(host: Host) -> None:
    while True:
        host.write(b"x" * 65536)


def _drip(host: Host) -> None:
    while True:
        host.write(b"x")
        time.sleep(0.2)  # clock: a byte now and then is what it is about


def _silence(host: Host) -> None:
    while True:
        host.read(1)  # until tflaunch hangs up


def _line(text: bytes) -> Callable[[Host], None]:
    """Return a function that sends a line as the bootstrap program, and then nothing."""

    def part(host: Host) -> None:
        host.write(text + b"\n")
        _silence(host)

    return part


BEFORE_BOOT: dict[str, Callable[..., None]] = {"noise": _noise, "drip": _drip, "silence": _silence}
AT_BOOT: dict[str, Callable[..., None]] = {
    "boot-endless": _noise,
    "boot-escapes": _line(json.dumps({"kind": "failed", "reason": ESCAPES}).encode()),
    "boot-deep": _line(b"[" * 40_000),
    "boot-deep-object": _line(b'{"kind":' + b"[" * 30_000),
    "boot-huge-number": _line(b'{"kind":' + b"9" * 5000 + b"}"),
    "boot-no-reason": _line(b'{"kind":"failed"}'),
    "boot-kind-list": _line(b'{"kind":["x"]}'),
    "boot-gone": _line(b'{"kind":"gone"}'),
}


# ---- instead of a greeting, and after it


def _say(*messages: bytes | dict[str, Any]) -> Callable[[Host], None]:
    """Return a function that sends a message."""

    def part(host: Host) -> None:
        for message in messages:
            host.frame(message)

    return part


def _garbage(host: Host) -> None:
    host.write(b"garbage, garbage")


def _hang_up(host: Host) -> None:
    sys.exit()


def _huge_frames(host: Host) -> None:
    while True:
        host.frame(b'{"kind":"answered","call":1,"tasks":{"x":[' + b"[]," * 1_000_000 + b"[]]}}")


AT_HELLO: dict[str, Callable[..., None]] = {
    "events-first": _say({"kind": "port_opened", "seq": 1, "task": "worker:0", "attempt": 0}),
    "refused": _say({"kind": "refused", "reason": ESCAPES}),
    "superseded": _say({"kind": "superseded", "by": 7}),
}
AFTER_GREETING: dict[str, Callable[..., None]] = {
    "infinite-number": _say(b'{"kind":"port_opened","task":"worker:0","attempt":0,"seq":1e999}'),
    "huge-time": _say(b'{"kind":"task_exited","seq":1,"at":1' + b"0" * 400 + b"}"),
    "deep": _say(b'{"kind":' + b"[" * 500_000 + b"}"),
    "garbage": _garbage,
    "hang-up": _hang_up,
    "huge-frames": _huge_frames,
    "unknown-kind": _say({"kind": "host_lost", "seq": 1, "reason": "x"}),
    "kind-list": _say(b'{"kind":["x"]}'),
    "two-greetings": _say(
        {"kind": "greeted", "is_leaving": False, "streams": [], "addresses": [], "obeyed": 0, "sent": 0, "time": 1.0}
    ),
}


# ---- while a task runs


def _flood(host: Host, task: str, attempt: int) -> None:
    while True:
        host.output(task, attempt, b"A" * 1_000_000)


def _many_events(host: Host, task: str, attempt: int) -> None:
    while True:
        host.tell("output_stalled", task=task, attempt=attempt)
        host.tell("output_resumed", task=task, attempt=attempt)
        host.tell("breakpoint_reached", task=task, attempt=attempt, file="a.py", line=1, function="f")


def _huge_gap(host: Host, task: str, attempt: int) -> None:
    host.frame({"kind": "output_lost", "task": task, "attempt": attempt, "offset": 0, "size": 10**30})


def _escapes(host: Host, task: str, attempt: int) -> None:
    host.output(task, attempt, b"\x1b]52;c;ZXZpbA==\x07x\n")


def _other_task(host: Host, task: str, attempt: int) -> None:
    about = {"task": "worker:1", "attempt": 0, "code": 0, "signal": None, "at": 1.0, "was_told": False, "evidence": ""}
    host.tell("task_exited", **about)


def _hold(host: Host, task: str, attempt: int) -> None:
    while True:
        host.answer(host.read_frame())


AT_START: dict[str, Callable[..., None]] = {
    "flood": _flood,
    "many-events": _many_events,
    "huge-gap": _huge_gap,
    "escapes": _escapes,
    "other-task": _other_task,
    "hold": _hold,
}
ENDINGS: dict[str, dict[str, Any]] = {
    "evidence": {"code": None, "signal": 9, "evidence": ESCAPES},
    "surrogate": {"code": None, "signal": 9, "evidence": "\ud800"},
    "nan-time": {"code": 1, "at": float("nan")},
    "huge-code": {"code": 10**30},
    "negative-signal": {"code": None, "signal": -99999},
    "no-code": {"code": None},
}


# ---- when files are offered


def _many_wishes(host: Host, order: dict[str, Any]) -> None:
    sha256 = order["files"][0][2]
    for _ in range(50):
        host.frame({"kind": "answered", "call": order["call"], "wanted": [[sha256, 0]] * 20_000})
    for number in range(60_000):
        host.frame({"kind": "answered", "call": number})


def _want(wanted: Any) -> Callable[[Host, dict[str, Any]], None]:
    """Return a function that requests files incorrectly."""
    return lambda host, order: host.frame({"kind": "answered", "call": order["call"], "wanted": wanted})


AT_OFFER: dict[str, Callable[..., None]] = {
    "many-wishes": _many_wishes,
    "unknown-wish": _want([["00" * 32, 0]]),
    "malformed-wish": _want({"x": 1}),
}


# ---- when it is looked at


def _drip_answer(host: Host) -> None:
    host.write(_SIZE.pack(1_000_000, 0))
    while True:
        host.write(b" ")
        time.sleep(0.2)  # clock: as in `_drip`


AT_LOOK: dict[str, Callable[..., None]] = {
    "look-list": _say({"kind": "seen", "tasks": [], "lease_left": 1.0, "is_leaving": False}),
    "look-infinite": _say(b'{"kind":"seen","tasks":{"worker:0":{"attempt":1e999,"pid":1}},"lease_left":1}'),
    "look-escapes": _say({"kind": "seen", "tasks": {ESCAPES: {"attempt": 0, "pid": 1}}, "lease_left": 1.0}),
    "look-other": _say({"kind": ESCAPES}),
    "look-drip": _drip_answer,
}

CLAIMS = {"claims-loopback": ["127.0.0.77"], "claims-all": ["0.0.0.0"], "claims-zone": ["fe80::1%x"]}
"""The addresses that it claims in its greeting, by mode."""

BOOTING = (*BEFORE_BOOT, *AT_BOOT)
SPEAKING = (*AT_HELLO, *AFTER_GREETING, *(mode for mode in AT_START if mode != "hold"), *ENDINGS, *CLAIMS)
SYNCING = tuple(AT_OFFER)
LOOKED_AT = tuple(AT_LOOK)


def main() -> None:
    """Behave as HOSTILE_MODE says."""
    host = Host(os.environ["HOSTILE_MODE"])
    host.boot(sys.argv[-1])
    host.serve()


if __name__ == "__main__":
    main()
