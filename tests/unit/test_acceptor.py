"""A connection to an agent: its first message decides whether it is a supervisor's, and is checked."""

from __future__ import annotations

import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from support.waiting import PATIENCE
from tflaunch_worker import wire
from tflaunch_worker.agent.acceptor import Acceptor

pytestmark = pytest.mark.unit

SENT = {"lease": 30.0, "grace": 1.0, "clock": "boot", "sent": 7.0, "fencing": 3, "seen": 0}
HELLO = {"kind": "hello", "protocol": wire.PROTOCOL, "run": "night", **SENT}


class Agent:
    """Serves a supervisor with the number 3."""

    def __init__(self) -> None:
        self.admitted: list[tuple[dict[str, Any], bytes]] = []
        self.kept: list[socket.socket] = []

    def is_superseded(self, message: dict[str, Any]) -> bool:
        return int(message.get("fencing") or 0) < 3

    def admit(self, message: dict[str, Any], connection: socket.socket, heard: bytes) -> None:
        self.admitted.append((message, heard))
        self.kept.append(connection)

    def superseded(self) -> dict[str, object]:
        return {"kind": "superseded", "by": 3}

    def appearance(self) -> dict[str, object]:
        return {"kind": "seen"}


class Door:
    """An acceptor, and what connects to it."""

    def __init__(self) -> None:
        self.watched: dict[int, Callable[[], None]] = {}
        self.agent = Agent()
        loop = SimpleNamespace(watch=self.watched.__setitem__, forget=self.watched.__delitem__)
        self._acceptor = Acceptor(loop, self.agent)  # type: ignore[arg-type]

    def connect(self) -> tuple[socket.socket, Callable[[], None]]:
        """Connect; return the other end, and a call that lets the agent read."""
        theirs, ours = socket.socketpair()
        theirs.settimeout(PATIENCE)
        self._acceptor.accept(ours)
        return theirs, self.watched[ours.fileno()]

    def answer(self, *frames: bytes) -> bytes:
        """Return what the agent sends after these pieces until it closes the connection."""
        theirs, read = self.connect()
        with theirs:
            for frame in frames:
                theirs.sendall(frame)
                read()
            return theirs.recv(1000)


@pytest.fixture
def door() -> Door:
    return Door()


def test_a_supervisor_is_admitted_with_all_that_it_has_sent(door: Door) -> None:
    frame = wire.encode(HELLO)
    theirs, read = door.connect()
    for piece in (frame[:9], frame[9:] + b"more"):
        theirs.sendall(piece)
        read()
    assert door.agent.admitted == [(HELLO, frame + b"more")]


def test_an_older_supervisor_is_told_that_it_was_replaced(door: Door) -> None:
    """It must not start tasks any more; any number of commands may look at a run, which changes nothing."""
    assert b"superseded" in door.answer(wire.encode({**HELLO, "fencing": 2}))
    assert b"seen" in door.answer(wire.encode({"kind": "look"}))
    assert not door.agent.admitted


@pytest.mark.parametrize(
    "changed", [{"kind": "start_task"}, {"kind": 7}, {"fencing": "4"}, {"lease": -1.0}, {"sent": None}, {"seen": 0.5}]
)
def test_a_malformed_first_message_closes_the_connection(door: Door, changed: dict[str, object]) -> None:
    assert door.answer(wire.encode({**HELLO, **changed})) == b""
    assert door.answer(b"GET / HTTP/1.1\r\n\r\n") == b""
    assert not door.agent.admitted
    assert not door.watched


def test_of_too_many_that_say_nothing_the_oldest_is_closed(door: Door) -> None:
    connections = [door.connect()[0] for _ in range(17)]
    assert connections[0].recv(1) == b""
    assert len(door.watched) == 16
    for connection in connections:
        connection.close()
