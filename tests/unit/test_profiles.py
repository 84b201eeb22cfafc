"""Profiles on their way: a call to the task's server, the agent's answers, and the drawing of stacks."""

from __future__ import annotations

import socket
import struct
import threading
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from support.xspace import varint
from tflaunch.agents.profile_link import ProfileLink, Receiver
from tflaunch.explain import flame_graph
from tflaunch_worker.agent.left_files import PART
from tflaunch_worker.inspect import grpc_call, task_profile

pytestmark = pytest.mark.unit

_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GO_AWAY, _CONTINUATION = 0, 1, 3, 4, 6, 7, 9


def frame(kind: int, payload: bytes = b"", flags: int = 0, stream: int = 1) -> bytes:
    """Return a frame of HTTP/2."""
    return len(payload).to_bytes(3, "big") + struct.pack("!BBI", kind, flags, stream) + payload


def header(name: str, value: str, bits: int = 0) -> bytes:
    """Return a header as a literal."""
    size = bytes((len(value),)) if len(value) < 127 else bytes((127,)) + varint(len(value) - 127)
    return bytes((bits, len(name))) + name.encode() + size + value.encode()


SETTINGS = frame(_SETTINGS, b"\0\3\0\0\0\x64", stream=0)
HEADERS = frame(_HEADERS, b"\x88" + header("content-type", "application/grpc"), 4)
OK = frame(_HEADERS, header("grpc-status", "0"), 5)


def error(code: int, message: str) -> bytes:
    """Return headers that end a call with an error."""
    return frame(_HEADERS, header("grpc-status", str(code)) + header("grpc-message", message), 5)


@contextmanager
def server(*answer: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """Serve one connection with this answer; yield the port, and what the client sends until it closes."""
    heard: list[bytes] = []

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):  # a client that has given up hangs up
            connection.recv(65536)
            connection.sendall(b"".join(answer))
            connection.shutdown(socket.SHUT_WR)
            while data := connection.recv(65536):
                heard.append(data)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1], heard
        thread.join()


def call(*answer: bytes) -> bytes:
    """Return the reply to a call that is answered like this."""
    with server(*answer) as (port, _), socket.create_connection(("127.0.0.1", port)) as connection:
        return grpc_call.call(connection, "/a.B/C", b"request", 5.0)


def test_a_reply_is_read_however_it_is_framed() -> None:
    """In parts, padded, with headers in two frames, and with frames in between that must be answered."""
    body = b"\0\0\0\0\5hello"
    assert call(SETTINGS, HEADERS, frame(_DATA, body), OK) == b"hello"
    parts = (frame(_DATA, b"\2" + body[:4] + b"xx", 8), frame(_DATA, body[4:]), frame(_DATA, b"other", stream=3))
    split = (
        frame(_HEADERS, header("grpc-status", "0")[:5], 1),
        frame(_CONTINUATION, header("grpc-status", "0")[5:], 4),
    )
    assert call(SETTINGS, frame(_HEADERS, b"\1\0\0\0\0\x10\x88\0", 4 | 8 | 32), *parts, *split) == b"hello"
    with (
        server(SETTINGS, frame(_PING, b"12345678", stream=0), HEADERS, OK) as (port, heard),
        socket.create_connection(("127.0.0.1", port)) as connection,
    ):
        assert grpc_call.call(connection, "/a.B/C", b"", 5.0) == b""
    assert b"".join(heard).endswith(frame(_SETTINGS, b"", 1, 0) + frame(_PING, b"12345678", 1, 0))


@pytest.mark.parametrize(
    ("answer", "code", "message"),
    [
        ((b"HTTP/1.1 400 Bad Request\r\n\r\n",), -1, "does not speak gRPC"),
        ((b"SSH-2.0-OpenSSH_9.2\r\n",), -1, "does not speak gRPC"),
        ((SETTINGS, b"\0\0"), 14, "hung up"),
        ((SETTINGS, frame(_GO_AWAY, stream=0)), 1, "cancelled"),
        ((SETTINGS, frame(_RESET, b"\0\0\0\x08")), 1, "cancelled"),
        ((SETTINGS, error(12, "")), 12, "unimplemented"),
        ((SETTINGS, error(13, "Another profiling session%20active.")), 13, "Another profiling session active."),
        ((SETTINGS, error(13, "x" * 300)), 13, "x" * 300),
        ((SETTINGS, frame(_HEADERS, b"\x88", 5)), -1, "code -1"),
    ],
)
def test_a_failed_call_says_why(answer: tuple[bytes, ...], code: int, message: str) -> None:
    """By the server's code and message, or by what listens instead."""
    with pytest.raises(grpc_call.CallFailed, match=message) as failure:
        call(*answer)
    assert failure.value.code == code


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ((), "TensorFlow does not listen on its port any more"),
        ((b"HTTP/1.1 400 Bad Request\r\n\r\n",), "the server on its port is not TensorFlow's"),
        ((SETTINGS, error(12, "")), "its server has no profiler"),
        ((SETTINGS, error(13, "Another profiling session active.")), "refuses: Another profiling session active."),
        ((SETTINGS, OK), "TensorFlow has written no profile"),
    ],
)
def test_a_task_that_cannot_be_profiled_is_a_sentence(
    answer: tuple[bytes, ...], problem: str, tmp_path: object
) -> None:
    """And nothing is left."""
    with server(*answer) as (port, _):
        found = task_profile.record(task_profile.Server(port, ()), 0.1, f"{tmp_path}/p", "s", "worker-0")
    assert found["problem"].endswith(problem)


class Taker(Receiver):
    """Notes what it takes."""

    def __init__(self, problem: str = "") -> None:
        self.data = b""
        self.ended: list[str] = []
        self.problem = problem

    def take(self, data: bytes) -> str:
        self.data += data
        return self.problem

    def end(self, problem: str) -> None:
        self.ended.append(problem)


class Agent:
    """The far end of a link: what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, object]]] = []

    def ask(self, kind: str, **about: object) -> bool:
        """Note a message."""
        self.asked.append((kind, about))
        return True


def begin(taker: Taker) -> tuple[ProfileLink, Agent, Callable[[], None]]:
    """Return a link over which a task is being profiled."""
    agent = Agent()
    link = ProfileLink(agent.ask)
    return link, agent, link.begin("worker:0", 0, 2.0, taker, is_python=False)


def test_a_profile_is_fetched_part_by_part() -> None:
    """And then released."""
    taker = Taker()
    link, agent, _ = begin(taker)
    link.take({"kind": "profiled", "request": 1, "problem": "", "size": PART + 3}, b"")
    link.take({"kind": "profile_read", "request": 1, "offset": 0}, bytes(PART))
    assert taker.ended == []
    link.take({"kind": "profile_read", "request": 1, "offset": PART}, b"end")
    assert (len(taker.data), taker.ended) == (PART + 3, [""])
    assert [kind for kind, _ in agent.asked] == ["profile_task", "read_profile", "read_profile", "end_profile"]
    link.take({"kind": "profile_read", "request": 1, "offset": 0}, b"late")  # of no profile any more


def test_what_ends_a_profile_early_is_told_once() -> None:
    """The agent's problem, ours, a lost link; the caller who ends it hears nothing."""
    for message, body, problem in (
        ({"kind": "profiled", "problem": "no\x1b port", "size": 0}, b"", "no\\x1b port"),
        ({"kind": "profiled", "problem": "", "size": 0}, b"", "its profile is empty"),
    ):
        taker = Taker()
        link, _, _ = begin(taker)
        link.take({**message, "request": 1}, body)
        link.forget()
        assert taker.ended == [problem]
    full, lost, left = Taker("disk full"), Taker(), Taker()
    link, _, _ = begin(full)
    link.take({"kind": "profiled", "request": 1, "problem": "", "size": 3}, b"")
    link.take({"kind": "profile_read", "request": 1, "offset": 0}, b"abc")
    begin(lost)[0].forget()
    link, agent, end = begin(left)
    end()
    link.forget()
    assert (full.ended, lost.ended, left.ended) == (["disk full"], ["the link to its host is lost"], [])
    assert agent.asked[-1] == ("end_profile", {"request": 1})


@pytest.mark.parametrize(
    ("message", "body"),
    [
        ({"kind": "profiled", "request": 2, "problem": "", "size": 1}, b""),
        ({"kind": "profiled", "request": 1, "problem": "", "size": -1}, b""),
        ({"kind": "profiled", "request": 1, "problem": None, "size": 1}, b""),
        ({"kind": "profiled", "request": 1, "problem": "", "size": 5}, b""),
        ({"kind": "profile_read", "request": 1, "offset": 1}, b"ab"),
        ({"kind": "profile_read", "request": 1, "offset": 0}, b"abcd"),
        ({"kind": "profile_read", "request": 1}, b"abc"),
    ],
)
def test_what_agents_say_about_profiles_is_checked(message: dict[str, object], body: bytes) -> None:
    """Profiles that were not requested, twice the same, parts of another place or length."""
    link, _, _ = begin(Taker())
    link.take({"kind": "profiled", "request": 1, "problem": "", "size": 3}, b"")
    with pytest.raises(ValueError, match=r"must be|profile"):
        link.take(message, body)


def test_stacks_are_drawn() -> None:
    """As wide as they were often, with all that they name; a name cannot become markup."""
    lines = (
        "main thread;<module> (a.py:1);f<script> (a.py:3) 30",
        "main thread;<module> (a.py:1) 10",
        "thread 7;run 40",
    )
    text = "\n".join(lines)
    stacks = flame_graph.read_stacks(text)
    assert flame_graph.samples_of(stacks) == 40
    assert flame_graph.hottest(stacks) == "75% of the main thread in f<script> (a.py:3)"
    drawing = ET.fromstring(flame_graph.draw("worker:1 & co", stacks))
    rectangles = {
        (group[0].text or "").rpartition(":")[0]: float(group[1].get("width", "0"))
        for group in drawing.iter("{http://www.w3.org/2000/svg}g")
    }
    whole = rectangles["all threads"]
    assert rectangles["f<script> (a.py:3)"] == pytest.approx(whole * 30 / 80)
    assert rectangles["thread 7"] == pytest.approx(whole / 2)
