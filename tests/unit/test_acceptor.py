"""Connections to an agent and its lease: who is a supervisor, and when its lease ends by two clocks."""

import random
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tflaunch.agents.link_state import HostClock
from tflaunch.core.events import LONGEST_TIME
from tflaunch_worker import wire
from tflaunch_worker.agent.daemon import Acceptor
from tflaunch_worker.agent.lease import Lease
from tflaunch_worker.frames import Frames

SENT = {"lease": 30.0, "grace": 1.0, "clock": "boot", "sent": 7.0, "fencing": 3, "seen": 0}
HELLO = {"kind": "hello", "protocol": wire.PROTOCOL, "run": "night", **SENT}


class Door:
    def __init__(self) -> None:
        self.watched: dict[int, Callable[[], None]] = {}
        self.admitted: list[dict[str, Any]] = []
        agent = SimpleNamespace(
            is_superseded=lambda message: int(message.get("fencing") or 0) < 3,
            admit=self._admit,
            superseded=lambda: {"kind": "superseded", "by": 3},
            appearance=lambda: {"kind": "seen"},
        )
        loop = SimpleNamespace(now=lambda: 0.0, watch=self.watched.__setitem__, forget=self.watched.__delitem__)
        self._acceptor = Acceptor(loop, agent)  # type: ignore[arg-type]

    def _admit(self, message: dict[str, Any], frames: Frames) -> None:
        self.admitted.append(message)
        frames.heard = lambda later, _: self.admitted.append(later)

    def connect(self) -> tuple[socket.socket, Callable[[], None]]:
        """Connect; return the other end, and a call that lets the agent read."""
        theirs, ours = socket.socketpair()
        theirs.setblocking(False)  # what the agent does is done when it has returned
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


def test_a_supervisor_is_admitted_with_all_that_it_has_sent() -> None:
    frame, more, door = wire.encode(HELLO), {"kind": "keep_alive", "sent": 8.0}, Door()
    theirs, read = door.connect()
    for piece in (frame[:9], frame[9:] + wire.encode(more)):
        theirs.sendall(piece)
        read()
    assert door.admitted == [HELLO, more]


def test_an_older_supervisor_is_told_that_it_was_replaced() -> None:
    """It must not start tasks any more; any number of commands may look at a run, which changes nothing."""
    door = Door()
    assert b"superseded" in door.answer(wire.encode({**HELLO, "fencing": 2}))
    assert b"seen" in door.answer(wire.encode({"kind": "look"}))
    assert not door.admitted


@pytest.mark.parametrize(
    "changed", [{"kind": "start_task"}, {"kind": 7}, {"fencing": "4"}, {"lease": -1.0}, {"sent": None}, {"seen": 0.5}]
)
def test_a_malformed_first_message_closes_the_connection(changed: dict[str, object]) -> None:
    door = Door()
    assert door.answer(wire.encode({**HELLO, **changed})) == b""
    assert door.answer(b"GET / HTTP/1.1\r\n\r\n") == b""
    assert not door.admitted
    assert not door.watched


def test_of_too_many_that_say_nothing_the_oldest_is_closed() -> None:
    door = Door()
    connections = [door.connect()[0] for _ in range(17)]
    assert connections[0].recv(1) == b""
    assert len(door.watched) == 16
    for connection in connections:
        connection.close()


AHEAD = 5000.0  # of the supervisor's clock


class Clock:
    time = 100.0

    def now(self) -> float:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lease(clock: Clock) -> Lease:
    """A lease of 30 s, whose first message took 0.1 s."""
    lease = Lease(clock)  # type: ignore[arg-type]
    lease.begin(30.0, "boot", clock.time + AHEAD - 0.1)
    return lease


def test_a_message_renews_it_from_when_it_was_sent(clock: Clock, lease: Lease) -> None:
    """Not from when it came, as the network may have been cut; messages of two links may come in another order."""
    sent = clock.time + 10.0
    clock.time += 25.0
    lease.renew(sent + AHEAD)
    ends_at = lease.ends_at
    assert sent + 30.0 <= ends_at <= sent + 30.2
    lease.renew(sent + AHEAD - 9.0)
    assert lease.ends_at == ends_at


def test_another_supervisor_has_another_clock(clock: Clock, lease: Lease) -> None:
    clock.time += 20.0
    lease.begin(30.0, "another boot", 7.0)
    assert lease.ends_at == clock.time + 30.0
    clock.time += 29.9
    assert not lease.is_over
    clock.time += 0.2
    assert lease.is_over
    silent = Lease(clock)
    clock.time += 300.0  # longer than `timeouts.connect`: a launcher on a busy machine may be slow to say hello
    assert not silent.is_over
    clock.time += 600.0
    assert silent.is_over


def test_the_fastest_way_of_each_direction_counts() -> None:
    chance, clock, ahead = random.Random(1), HostClock(), 4321.0
    for number in range(16):
        sent = 100.0 + number
        there = 0.010 + (0.0 if number == 3 else chance.uniform(0.005, 0.2))
        back = 0.010 + (0.0 if number == 11 else chance.uniform(0.005, 0.2))
        clock.compare(sent, sent + there + ahead, sent + there + back)
    assert clock.ours(150.0 + ahead) == pytest.approx(150.0, abs=1e-6)
    for number in range(16):  # clocks drift: the fastest message of an hour ago has expired
        clock.compare(3600.0 + number, 4600.5 + number + 0.001, 3600.0 + number + 0.002)
    assert clock.ours(5000.5) == pytest.approx(4000.0)
    clock = HostClock()
    assert clock.ours(7.0) == 7.0, "one that was never compared is taken as ours"
    clock.compare(sent=100.0, theirs=5000.020, heard=100.040)
    assert clock.ours(5001.0) == pytest.approx(100.020 + 0.98)


def test_a_converted_time_fits_into_an_event() -> None:
    """A host may tell any time that an event can have; the journal could not be read with a later one."""
    clock = HostClock()
    clock.compare(sent=100.0, theirs=50.0, heard=100.0)
    assert clock.ours(LONGEST_TIME) == LONGEST_TIME
    clock.compare(sent=100.0, theirs=350.0, heard=100.0)
    assert clock.ours(-LONGEST_TIME) == -LONGEST_TIME
