"""Requests at a run's control socket, from any process of the same user."""

from __future__ import annotations

import atexit
import functools
import random
import select
import socket
import struct
import tempfile
from pathlib import Path
from typing import Any

from fuzz.any_record import any_record
from fuzz.borders import Border
from fuzz.mutations import as_json, mutate, mutate_bytes
from fuzz.stages import check_sentence
from support.job_history import mirrored
from support.ungreeted_run import supervision
from tflaunch.agents.calls import Calls
from tflaunch.core.annotations import FaultInjected
from tflaunch.core.events import Interrupted, RestartRequested, StopRequested
from tflaunch.mailbox import Mailbox
from tflaunch.runtime.control_requests import RestartRequest, Service, SignalRequest, StopRequest
from tflaunch.runtime.watchers import Watchers
from tflaunch.store.run_dir import SOCKET_NAME
from tflaunch_worker import signals, wire

_REQUESTS: tuple[dict[str, Any], ...] = (
    {"kind": "status"},
    {"kind": "follow"},
    {"kind": "stacks"},
    {"kind": "debug", "tasks": []},
    {"kind": "debug", "tasks": ["worker:1"]},
    {"kind": "debug_line", "text": "p loss"},
    {"kind": "debug_read"},
    {"kind": "debug_continue"},
    {"kind": "exec", "task": "worker:1", "argv": ["ls"], "columns": 80, "rows": 24, "term": "vt100"},
    {"kind": "exec", "task": "", "argv": [], "columns": 0, "rows": 0, "term": ""},
    {"kind": "exec_tell", "host": "localhost", "what": "took", "size": 1},
    {"kind": "exec_tell", "host": "localhost", "what": "resize", "columns": 80, "rows": 24},
)
_RECORDS = {"stop": StopRequest, "restart": RestartRequest, "signal": SignalRequest}


def _any_request(chance: random.Random) -> dict[str, Any]:
    if chance.random() < 0.6:
        return chance.choice(_REQUESTS)
    kind = chance.choice([*_RECORDS])
    return {**any_record(_RECORDS[kind], chance), "kind": kind}


def generate(chance: random.Random) -> bytes:
    frames = []
    for request in (_any_request(chance) for _ in range(chance.choice((1, 1, 2, 5)))):
        head = as_json(mutate(request, chance) if chance.random() < 0.8 else request)
        frames.append(struct.pack("!II", len(head), 0) + head)
    data = b"".join(frames)
    return mutate_bytes(data, chance) if chance.random() < 0.2 else data


def check(case: bytes) -> None:
    """Send it, and read the responses; then request the status."""
    stage = _stage()
    stage.ask(case)
    status: dict[str, object] = {"kind": "status"}
    answers = stage.ask(wire.encode(status), is_awaited=True)
    assert [answer["kind"] for answer in answers] == ["status"]


@functools.cache
def _stage() -> _Stage:
    return _Stage()


class _Session:
    """A connected host whose agent provides no measurements."""

    host = "localhost"
    is_greeted = True
    silence = 0.5

    def __init__(self) -> None:
        self.calls = Calls(lambda _: None)

    def request(self, kind: str, task: str, attempt: int, signal: int) -> None:
        assert kind == "signal_task"
        assert 0 < signal < 65


class _Stage:
    def __init__(self) -> None:
        directory = tempfile.TemporaryDirectory(prefix="tflaunch-fuzz-")
        atexit.register(directory.cleanup)
        self._path = Path(directory.name)
        self._mailbox = Mailbox()
        sessions: Any = {"localhost": _Session()}
        job = mirrored().job
        self._service = Service(job, "logs", self._mailbox, sessions)
        of_run = supervision(job, self._path, self._mailbox, sessions)._replace(measured=self._service.measured)
        self._service.listen(self._path, Watchers(of_run).answer)

    def ask(self, data: bytes, is_awaited: bool = False) -> list[dict[str, Any]]:
        decoder, answers = wire.Decoder(), list[dict[str, Any]]()
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(self._path / SOCKET_NAME))
            caller.setblocking(False)
            sent = 0
            for _ in range(200):
                if sent < len(data):
                    sent += _try_to_send(caller, data[sent:])
                self._serve()
                if select.select([caller], [], [], 0)[0]:
                    received = _receive(caller)
                    answers += [message for message, _ in decoder.feed(received)]
                    if not received:
                        break
                elif sent == len(data) and (answers or not is_awaited):
                    break
        self._serve()
        for answer in answers:
            check_sentence(str(answer.get("reason", "")))
        return answers

    def _serve(self) -> None:
        for _ in range(10):
            event = self._mailbox.take(self._mailbox.now())
            match event:
                case StopRequested(grace):
                    assert 0 <= grace <= 86_400
                case Interrupted(number):
                    assert number in signals.ENDING | signals.OF_TERMINALS
                case RestartRequested(task):
                    assert task in ("", "worker:0", "worker:1")
                case FaultInjected(what):
                    check_sentence(what)
                case _:
                    assert event is None, event


def _receive(caller: socket.socket) -> bytes:
    try:
        return caller.recv(1 << 20)
    except ConnectionResetError:
        return b""  # it closed the connection before reading everything


def _try_to_send(caller: socket.socket, data: bytes) -> int:
    try:
        return caller.send(data)
    except BlockingIOError:
        return 0
    except OSError:
        return len(data)  # it closed the connection


BORDER = Border(generate, check)
