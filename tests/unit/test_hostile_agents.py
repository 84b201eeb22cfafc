"""Agents and hosts that violate the protocol: before an agent runs, in a session, and without a supervisor."""

import json
import math
import socket
import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from fuzz import boot
from fuzz.stages import AgentConnector
from support.joined_host import Host, joined_host
from support.waiting import PATIENCE
from tflaunch.agents import replies, snapshot
from tflaunch.agents.calls import Waiter
from tflaunch.core.events import HostDelayed, HostJoined, HostLost, LinkLost, LinkRestored, TaskExited
from tflaunch.features.rpc import AgentRpc
from tflaunch.records import read_record
from tflaunch.runtime import usage_sampler
from tflaunch.transport.base import AgentGoneError, LinkError
from tflaunch_worker import fields, wire
from tflaunch_worker.agent import orders

GREETING = {"is_leaving": False, "streams": [], "addresses": [], "obeyed": 0, "sent": 0.0, "time": 1.0}


@pytest.fixture
def host() -> Host:
    return joined_host()


NOT_ITS_OWN = ["127.0.0.77", "::ffff:127.0.0.77", "0.0.0.0", "::", "224.0.0.1", "ff02::1", "255.255.255.255"]
NO_ADDRESS = ["fe80::1%x", "10.0.0.256", "10.0.0", "", "h1", "\x1b[2J", "1::2::3", "\ud800", "10.0.0.1\0"]


@pytest.mark.parametrize("address", [*NOT_ITS_OWN, *NO_ADDRESS])
def test_a_host_vouches_for_its_own_addresses_only(address: str) -> None:
    """In its greeting, when it holds ports, and when it tells from where peers come; agents read the same."""
    greeting = {**GREETING, "addresses": ["10.0.0.1", address]}
    problem = "cannot vouch for connections" if address in NOT_ITS_OWN else "is not an address"
    with pytest.raises(ValueError, match=problem):
        read_record(replies.Greeting, greeting)
    held = {"kind": "ports_held", "seq": 1, "ports": {"worker:0": 2222}, "addresses": address}
    for said in (held, {"kind": "peer_seen", "seq": 1, "source": address}) if address not in ("", "\ud800") else ():
        liar = Host()
        liar.greets("10.0.0.1")
        liar.session.order("hold_ports", ports={"worker:0": 2222})
        liar.session.order("probe_peers", peers={})
        liar.says(wire.encode(said))
        assert liar.lost(), liar.events
    if address in NO_ADDRESS:
        with pytest.raises(ValueError, match=r"is not an address|surrogate"):
            orders.read_addresses(json.dumps([address]).encode())


def test_a_host_may_have_any_other_address() -> None:
    """Told to the other agents in the form in which they compare it."""
    host = Host()
    host.greets("10.0.0.1", "::FFFF:10.0.0.2", "2001:DB8:0::1", "127.0.0.1", "::1", "fe80::1")
    known = "10.0.0.1 10.0.0.2 2001:db8::1 127.0.0.1 ::1 fe80::1"
    assert host.events == [HostJoined("a", known)]
    assert orders.read_addresses(json.dumps(known.split()).encode()) == known.split()


def frame(text: bytes) -> bytes:
    return len(text).to_bytes(4, "big") + bytes(4) + text


EXIT: dict[str, Any] = {"kind": "task_exited", "seq": 1, "task": "worker:0", "attempt": 0, "at": 1.0}


def exit_of(**fields: object) -> bytes:
    """Return the frame of an exit with code 1 and other fields."""
    return wire.encode({**EXIT, "code": 1, "signal": None, **fields})


def output_of(task: str, offset: int, times: list[list[float]]) -> bytes:
    return wire.encode({"kind": "output", "task": task, "attempt": 0, "offset": offset, "times": times}, b"x")


@pytest.mark.parametrize(
    "said",
    [
        frame(b'{"kind":"port_opened","task":"worker:0","attempt":0,"seq":1e999}'),
        frame(b'{"kind":"task_exited","seq":1,"at":1' + b"0" * 400 + b"}"),
        frame(b'{"kind":' + b"[" * 500_000 + b"}"),
        frame(b'{"kind":"task_exited","seq":1,"task":"worker:0","attempt":0,"at":NaN,"code":1,"signal":null}'),
        exit_of(code=256),
        exit_of(code=None, signal=-9),
        exit_of(code=None, signal=65),
        exit_of(code=None),
        exit_of(signal=9),
        exit_of(at=1e300),
        exit_of(task="worker:1"),
        exit_of(attempt=1),
        wire.encode({"kind": "ports_held", "seq": 1, "ports": {"worker:0": 22}}),
        wire.encode({"kind": "names_resolved", "seq": 1, "found": {"b": "10.0.0.1"}}),
        wire.encode({"kind": "host_prepared", "seq": 1, "what": "code"}),
        wire.encode({"kind": "host_prepared", "seq": 1, "what": "checkpoint"}),
        wire.encode({"kind": "host_lost", "seq": 1, "reason": "x"}),
        wire.encode({"kind": "alive", "obeyed": 9, "sent": 0.0, "time": 1.0}),
        wire.encode({"kind": "alive", "obeyed": 0, "sent": 1e9, "time": 1.0}),
        wire.encode({"kind": "greeted", **GREETING}),
        wire.encode({"kind": "answered", "call": 1, "time": 1.0, "tasks": {}}),
        output_of("worker:0/x", 0, [[0, 1.0]]),
        output_of("worker:1", 0, [[0, 1.0]]),
        output_of("worker:0", 0, []),
        output_of("worker:0", 5, [[5, 1.0]]),
        wire.encode({"kind": "output_lost", "task": "worker:0", "attempt": 0, "offset": 0, "size": 2**60}),
    ],
)
def test_a_frame_that_breaks_the_protocol_ends_the_link(host: Host, said: bytes) -> None:
    host.says(said)
    (_, lost) = host.events[:2]
    assert isinstance(lost, LinkLost)
    assert "its agent broke the protocol: " in lost.reason
    assert lost.reason.isprintable()


def test_texts_of_a_host_are_one_printable_line(host: Host) -> None:
    evil = "\x1b]0;PWNED\x07\n tflaunch: done: \udce9" + "x" * 5000
    host.tells(**EXIT, code=None, signal=9, evidence=evil)
    event = host.last()
    assert isinstance(event, TaskExited)
    assert event.evidence.startswith(r"\x1b]0;PWNED\x07\n tflaunch: done: \udce9xxx")
    assert event.evidence.isprintable()
    assert len(event.evidence) <= 1000


def test_a_host_is_given_up_after_three_violations() -> None:
    """Even if it greets correctly in between; each reconnect waits longer."""
    host = Host(links=5)
    for _ in range(3):
        host.greets()
        host.says(b"garbage, garbage")
        host.wait(3)
    kinds = [type(event) for event in host.events]
    assert kinds == [HostJoined, LinkLost, LinkRestored, LinkLost, LinkRestored, HostLost]
    assert "3 times" in host.last().reason
    assert not host.session.is_open
    host.wait(100)
    assert len(host.events) == 6


def test_a_host_that_drops_every_link_is_sought_ever_more_rarely_and_given_up() -> None:
    """After eight links in a row that greeted and delivered nothing; a link that delivers resets the count."""
    host, waits = Host(links=20), list[float]()
    for number in range(12):
        host.greets()
        if number == 3:
            host.starts()
            host.tells("task_started", seq=1, task="worker:0", attempt=0, pid=5, at=1.0)
        host.says(b"")
        lost_at = host.mailbox.now()
        while host.session.is_open and all(line.serve is None for line in host.lines if not line.is_closed):
            host.wait(0.05)
        waits.append(round(host.mailbox.now() - lost_at, 1))
        if not host.session.is_open:
            break
    assert number == 11
    assert isinstance(host.last(), HostLost)
    assert "8 links in a row" in host.last().reason
    assert waits[0] <= 0.3
    assert waits[4:11] == sorted(waits[4:11])
    assert waits[10] >= 1.9


def test_a_fault_in_the_code_that_reaches_a_host_is_an_attempt_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(links=2)
    monkeypatch.setattr(AgentConnector, "resume", Mock(side_effect=[OSError("no more files"), host.lines[1]]))
    host.greets()
    host.says(b"")
    host.wait(3)
    host.greets()
    assert [type(event) for event in host.events] == [HostJoined, LinkLost, HostDelayed, LinkRestored]
    assert "OSError: no more files" in str(host.events[2])


def test_output_may_not_come_faster_than_it_is_acknowledged(host: Host) -> None:
    host.words.is_slow = True
    size = 0
    while not host.lost() and size < 2**24:
        about = {"task": "worker:0", "attempt": 0, "offset": size, "times": [[size, 1.0]]}
        host.says(wire.encode({"kind": "output", **about}, b"x" * 65536))
        size += 65536
    assert "further ahead" in host.lost()
    assert host.words.size < 2**21


def test_events_may_not_come_faster_than_tasks_can_cause_them() -> None:
    """Each one is written to the journal."""
    host = Host()
    host.greets()
    host.starts()
    for number in range(1, 5000):
        host.tells("breakpoint_left", seq=number, task="worker:0", attempt=0, is_quit=False)
        if host.lost():
            break
    assert number < 3000
    assert "more events" in host.lost()
    host = Host()
    host.greets()
    for attempt in range(1500):
        host.words.begin("worker:0", attempt)
        host.session.order("start_task", task="worker:0", attempt=attempt)
        for number, kind in enumerate(("port_opened", "task_gone"), 1):
            host.tells(kind, seq=2 * attempt + number, task="worker:0", attempt=attempt)
    assert not host.lost(), "those of many attempts are believed"


def test_a_host_that_reads_nothing_is_not_written_to_for_ever(host: Host) -> None:
    host.lines[0].is_full = True
    for _ in range(100):
        for _ in range(1000):
            host.session.calls.begin("measure", Waiter(), why="x" * 10_000)
        host.wait(0)
        if not host.session.is_linked:
            break
    assert "does not read" in host.lost()


def test_only_measurements_of_tasks_that_it_was_asked_to_start_are_passed_on(host: Host) -> None:
    told: list[list[str]] = []
    for call, known, attempt in ((1, "worker:0", 0), (2, "worker:0", 1), (3, "worker:1", 0)):
        usage_sampler.measure(host.session, lambda taken, _: told.append(list(taken)), lambda: None)
        host.tells("answered", call=call, time=1.0, tasks={known: {"attempt": attempt}})
    assert told == [["worker:0"], [], []]
    assert not host.lost()


def brought(*answers: bytes, engine: str | None = None) -> None:
    """Bootstrap an agent on a host that sends this response."""
    said = b"".join([b"<MARKER>\n", *(answer + b"\n" for answer in answers)]).decode("latin-1")
    stream = boot.Stream({"pieces": [said], "code": 1, "errors": "", "silence": False})
    boot.CONNECTORS.bring(stream, "start", boot.HOST._replace(engine=engine), math.inf)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b'{"kind":"failed"}', "'reason' must be text"),
        (b'{"kind":"failed","reason":"\\u001b[2J evil\\ntflaunch: done"}', r"\x1b[2J evil\ntflaunch: done; fix this"),
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
    with pytest.raises(AgentGoneError, match=r"x1b\[2J"):
        brought(b'{"kind":"gone","words":"\\u001b[2J"}')


@pytest.mark.parametrize(("engine", "place"), [(None, "hosts.a.env"), ("kubernetes", "hosts.*.env")])
def test_where_to_name_another_directory_is_a_place_in_the_spec(engine: str | None, place: str) -> None:
    with pytest.raises(LinkError) as refused:
        brought(b'{"kind":"failed","reason":"/root/.local: Read-only file system"}', engine=engine)
    assert str(refused.value).endswith(f"or set TFLAUNCH_HOME in {place} to another directory")


def test_an_onlooker_waits_for_an_answer_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise every byte of an agent that sends one now and then would restart the timeout."""
    monkeypatch.setattr(snapshot, "_PATIENCE", 0.2)
    is_over, (ours, theirs) = threading.Event(), socket.socketpair()

    def drip() -> None:
        theirs.sendall(b"\0\0\1\0\0\0\0\0")
        for _ in range(3000):  # far longer than an onlooker may wait
            if is_over.wait(0.01):
                return
            theirs.send(b" ")
        theirs.shutdown(socket.SHUT_WR)

    dripping = threading.Thread(target=drip)
    dripping.start()
    agent: Any = SimpleNamespace(resume=lambda: agent, socket=ours, close=is_over.set)
    with ours, theirs:
        (seen,) = snapshot.look_at({"a": agent}).values()
        dripping.join()
    assert seen.tasks is None
    assert "did not answer: timed out" in seen.reason


PLACE = {"roles": ["worker"], "role": "worker", "index": 0}
START: dict[str, Any] = {
    "kind": "start_task", "order": 1, "task": "worker:0", "attempt": 0, "port": 0, "argv": ["train"], "env": {"A": "1"},
    "unset": [], "workdir": "/", "inherit": True, "chooses_port": False, "preload": [],
    "tf_config": PLACE,
}  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("task", "../x"), ("task", "x" * 300), ("attempt", -1), ("attempt", True), ("port", 65536), ("port", "2222"),
        ("argv", []), ("argv", "train"), ("argv", ["a\0b"]), ("env", []), ("env", {"A": 1}), ("env", {"A=B": "1"}),
        ("env", {"": "1"}), ("env", {"A": "\ud800"}), ("unset", None), ("inherit", 1),
        ("preload", "json"), ("search", "/"), ("order", 1.5), ("warm", []),
        ("warm", {"recipe": "a"}), ("warm", {"recipe": 1, "idle": 1}), ("warm", {"recipe": "a", "idle": -1}),
        ("warm", {"recipe": "a", "idle": 1, "path": "/x"}),
        ("tf_config", []), ("tf_config", {"role": "worker", "index": 0}), ("tf_config", {**PLACE, "roles": "worker"}),
        ("tf_config", {**PLACE, "index": -1}), ("tf_config", {**PLACE, "role": None}), ("tf_config", {**PLACE, "x": 1}),
    ],
)  # fmt: skip
def test_a_malformed_order_is_refused(field: str, value: object) -> None:
    orders.check({**START, "argv": ["caf\udce9"]}, orders.FIELDS["start_task"])  # another system's text is no UTF-8
    with pytest.raises(ValueError, match=r"'|name of a task|surrogates"):
        orders.check({**START, field: value}, orders.FIELDS["start_task"])


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
        interview = AgentRpc(SimpleNamespace(socket=ours), "run")
        theirs.sendall(b"".join(wire.encode(message) for message in said))
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(LinkError, match=expected):
            interview.order("hold_ports", "ports_held", "ports_refused", wait=PATIENCE, ports={"worker:0": 0})


def test_a_malformed_cluster_and_numbers_beyond_the_range_are_refused() -> None:
    for body in (b"", b"[]", b'{"worker": "a:1"}', b'{"worker": [1]}', b'{"worker": ["a\\u0000"]}', b"\xff"):
        with pytest.raises(ValueError, match=r"\w"):
            orders.read_cluster(body)
    assert orders.read_cluster(b'{"worker": ["a:1"]}') == {"worker": ["a:1"]}
    for value in (float("nan"), float("inf"), 10**400, "1", None, True):
        with pytest.raises(ValueError, match="'x' must be a number from"):
            fields.number({"x": value}, "x")
    assert fields.number({"x": 1}, "x") == 1.0


# ---- frames and JSON from outside


VALUES = some.integers(-(2**63), 2**63 - 1) | some.text(max_size=20)
MESSAGES = some.dictionaries(some.text(max_size=8), VALUES, max_size=4).map(lambda fields: {**fields, "kind": "test"})


@given(some.lists(some.tuples(MESSAGES, some.binary(max_size=200)), max_size=5), some.integers(1, 50))
def test_what_is_sent_arrives_however_it_is_cut(frames: list[tuple[dict[str, object], bytes]], cut: int) -> None:
    stream = b"".join(wire.encode(message, body) for message, body in frames)
    decoder, received = wire.Decoder(), []
    for start in range(0, len(stream), cut):
        received += decoder.feed(stream[start : start + cut])
    assert received == frames


@pytest.mark.parametrize(
    "stream",
    [b"\xff" * 8, b"\0\0\0\2\0\0\0\0[]", b"\0\0\0\2\0\0\0\0{}", b"\0\0\0\1\0\0\0\0x", b"HTTP/1.1 200 OK\r\n\r\n"],
)
def test_nonsense_is_refused(stream: bytes) -> None:
    """The decoder does not wait for a gigabyte that never arrives; what the other side would refuse is not sent."""
    with pytest.raises(wire.WireError):
        wire.Decoder().feed(stream)
    with pytest.raises(wire.WireError):
        wire.encode({"kind": "output"}, b"x" * (wire.MAX_BODY + 1))


# ---- JSON from outside

ESCAPED_BYTES = some.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF, categories=["Cs"])
TEXT = some.text(some.characters(exclude_categories=["Cs"]) | ESCAPED_BYTES, max_size=10)
SCALARS = some.none() | some.booleans() | some.integers(-(2**63), 2**63 - 1) | some.floats(allow_nan=False) | TEXT
ANY_VALUES = some.recursive(
    SCALARS.filter(lambda value: value not in (float("inf"), float("-inf"))),
    lambda inner: some.lists(inner, max_size=5) | some.dictionaries(TEXT, inner, max_size=5),
    max_leaves=40,
)


@given(ANY_VALUES, some.booleans())
@example(["\udc80"], False)
def test_what_we_write_is_read(value: Any, is_ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii)
    assert wire.parse(text) == value
    if is_ascii:
        assert wire.parse(text.encode()) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"1e999", "too large"),
        (b"1" + b"0" * 400 + b".5", "too large"),
        (b"NaN", "not a number"),
        (b'{"at": -Infinity}', "not a number"),
        (b"9223372036854775808", "64 bits"),
        (b"1" + b"0" * 5000, "64 bits"),
        (b"[" * 40_000, "deep"),
        (b"[" * 33 + b"1" + b"]" * 33, "deep"),
        (b'{"a":' * 33 + b"1" + b"}" * 33, "deep"),
        (b'"\\ud800"', "surrogate"),
        (b'"\xed\xa0\x80"', "utf-8"),
        (b"[" + b"1," * 1_000_000 + b"1]", "too many"),
        (b"", "Expecting"),
        (b"{} {}", "Extra"),
    ],
)
def test_what_could_surprise_is_refused(text: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        wire.parse(text)


def test_limits_are_the_largest_that_are_read() -> None:
    assert wire.parse("[" * 32 + "]" * 32)
    assert wire.parse(str(2**63 - 1)) == 2**63 - 1
    assert wire.parse(str(-(2**63))) == -(2**63)
    assert wire.parse('"\\udcff"') == "\udcff"
    assert wire.parse('"\\ud83d\\ude00"') == "\U0001f600"
