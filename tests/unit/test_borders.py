"""Responses of hosts that violate the protocol, before an agent runs and without a supervisor."""

from __future__ import annotations

import math
import socket
import threading
from typing import Any

import pytest

from fuzz import boot
from tflaunch.agents import snapshot
from tflaunch.agents.rpc import AgentRpc
from tflaunch.transport.base import AgentGoneError, LinkError
from tflaunch.transport.bootstrap import Boot, request
from tflaunch_worker import fields, wire
from tflaunch_worker.agent import orders

pytestmark = pytest.mark.unit


def brought(*answers: bytes) -> None:
    """Bootstrap an agent on a host that sends this response."""
    said = b"".join([b"<MARKER>\n", *(answer + b"\n" for answer in answers)]).decode("latin-1")
    stream = boot.Stream({"pieces": [said], "code": 1, "errors": "", "silence": False})
    Boot(stream, boot.HOST, math.inf).bring(request("start", "run", boot.HOST, boot.ARCHIVE, 5), boot.ARCHIVE)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b'{"kind":"failed"}', "'reason' must be text"),
        (b'{"kind":"failed","reason":"\\u001b[2J evil\\ntflaunch: done"}', r"\x1b[2J evil\ntflaunch: done; fix this"),
        (b"[" * 40_000, "too many values"),
        (b'{"kind":' + b"[" * 90 + b"]" * 90 + b"}", "nested too deep"),
        (b'{"kind":' + b"9" * 5000 + b"}", "64 bits"),
        (b'{"kind":["x"]}', "'kind' must be text"),
        (b'{"kind":"hello"}', "out of turn"),
        (b"x" * 70_000, "answered xxx"),
        (b'{"kind":"ready"', "answered"),
    ],
)
def test_a_host_that_answers_nonsense_is_refused_with_a_sentence(answer: bytes, expected: str) -> None:
    """Without waiting for the end of a connection that has no timeout."""
    with pytest.raises(LinkError) as refused:
        brought(answer)
    assert expected in str(refused.value)
    assert str(refused.value).isprintable()


def test_last_words_of_an_agent_are_printable() -> None:
    with pytest.raises(AgentGoneError, match=r"x1b\[2J"):
        brought(b'{"kind":"gone","words":"\\u001b[2J"}')


class Dripping:
    """An agent that sends a byte now and then, and never a complete response."""

    def __init__(self) -> None:
        self.socket, self._theirs = socket.socketpair()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._drip)
        self._thread.start()

    def _drip(self) -> None:
        self._theirs.sendall(b"\0\0\1\0\0\0\0\0")
        while not self._is_over.wait(0.01):
            self._theirs.send(b" ")

    def resume(self) -> Any:
        return self

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
        self.socket.close()
        self._theirs.close()


def test_an_onlooker_waits_for_an_answer_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise every byte would restart the timeout."""
    monkeypatch.setattr(snapshot, "_PATIENCE", 0.2)
    (seen,) = snapshot.look_at({"a": Dripping()}).values()  # type: ignore[dict-item]
    assert seen.tasks is None
    assert "did not answer: timed out" in seen.reason


PLACE = {"roles": ["worker"], "role": "worker", "index": 0}
START: dict[str, Any] = {
    "kind": "start_task", "order": 1, "task": "worker:0", "attempt": 0, "port": 0, "argv": ["train"], "env": {"A": "1"},
    "unset": [], "workdir": "/", "inherit": True, "exclusive": False, "preload": [], "stall": None,
    "tf_config": PLACE,
}  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("task", "../x"), ("task", ""), ("task", "x" * 300), ("task", 5), ("attempt", -1), ("attempt", True),
        ("attempt", 2**40), ("port", 65536), ("port", "2222"), ("argv", []), ("argv", "train"), ("argv", ["a\0b"]),
        ("argv", [1]), ("env", []), ("env", {"A": 1}), ("env", {"A=B": "1"}), ("env", {"": "1"}), ("env", {"A": "\0"}),
        ("env", {"A": "\ud800"}), ("unset", None), ("workdir", None), ("inherit", 1), ("stall", -1), ("stall", 1e300),
        ("preload", "json"), ("search", "/"), ("order", 1.5), ("warm", []),
        ("warm", {"recipe": "a"}), ("warm", {"recipe": 1, "idle": 1}), ("warm", {"recipe": "a", "idle": -1}),
        ("warm", {"recipe": "a", "idle": 1, "path": "/x"}),
        ("tf_config", []), ("tf_config", {"role": "worker", "index": 0}), ("tf_config", {**PLACE, "roles": "worker"}),
        ("tf_config", {**PLACE, "index": -1}), ("tf_config", {**PLACE, "role": None}), ("tf_config", {**PLACE, "x": 1}),
    ],
)  # fmt: skip
def test_a_malformed_order_is_refused(field: str, value: object) -> None:
    orders.check(START, orders.FIELDS["start_task"])
    with pytest.raises(ValueError, match=r"'|name of a task|surrogates"):
        orders.check({**START, field: value}, orders.FIELDS["start_task"])


def test_text_of_other_systems_may_be_no_utf_8() -> None:
    """A program's argument may hold arbitrary bytes."""
    orders.check({**START, "argv": ["caf\udce9"]}, orders.FIELDS["start_task"])


def test_numbers_are_in_range() -> None:
    for value in (float("nan"), float("inf"), 10**400, "1", None, True):
        with pytest.raises(ValueError, match="'x' must be a number from"):
            fields.number({"x": value}, "x")
    assert fields.number({"x": 1}, "x") == 1.0


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ([{"kind": "ports_held", "ports": {"worker:0": 99999}}], "'ports' must be an integer"),
        ([{"kind": "ports_held", "ports": [1]}], "'ports' must be an object"),
        ([{"kind": "alive"}] * 2000, "more than it was asked"),
        ([{"kind": "refused", "reason": "\x1b[2J"}], r"x1b\[2J"),
    ],
)
def test_a_doctor_is_told_nonsense(said: list[dict[str, Any]], expected: str) -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall(wire.encode({"kind": "greeted"}))
    with ours, theirs:
        interview = AgentRpc(SocketLink(ours), "run")  # type: ignore[arg-type]
        theirs.sendall(b"".join(wire.encode(message) for message in said))
        with pytest.raises(LinkError, match=expected):
            interview.order("hold_ports", "ports_held", "ports_refused", wait=5.0, ports={"worker:0": 0})


class SocketLink:
    """A link over a socket."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"worker": "a:1"}', b'{"worker": [1]}', b'{"worker": ["a\\u0000"]}', b"\xff"]
)
def test_a_malformed_cluster_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        orders.read_cluster(body)
    assert orders.read_cluster(b'{"worker": ["a:1"]}') == {"worker": ["a:1"]}
