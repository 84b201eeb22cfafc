"""Frames survive any splitting of the stream, and malformed data is refused before it is used."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tflaunch.core import event_records
from tflaunch_worker import wire

pytestmark = pytest.mark.unit

VALUES = some.integers(-(2**63), 2**63 - 1) | some.text(max_size=20)
MESSAGES = some.dictionaries(some.text(max_size=8), VALUES, max_size=4).map(lambda fields: {**fields, "kind": "test"})


@given(some.lists(some.tuples(MESSAGES, some.binary(max_size=200)), max_size=5), some.integers(1, 50))
def test_what_is_sent_arrives_however_the_stream_is_cut(
    frames: list[tuple[dict[str, object], bytes]], cut: int
) -> None:
    """A decoder returns the same frames for any chunks."""
    stream = b"".join(wire.encode(message, body) for message, body in frames)
    decoder, received = wire.Decoder(), []
    for start in range(0, len(stream), cut):
        received += decoder.feed(stream[start : start + cut])
    assert received == frames


@pytest.mark.parametrize(
    "stream",
    [b"\xff" * 8, b"\0\0\0\2\0\0\0\0[]", b"\0\0\0\2\0\0\0\0{}", b"\0\0\0\1\0\0\0\0x", b"HTTP/1.1 200 OK\r\n\r\n"],
    ids=["too long", "no object", "no kind", "no JSON", "another protocol"],
)
def test_nonsense_is_refused(stream: bytes) -> None:
    """The decoder does not wait for a gigabyte that never arrives."""
    with pytest.raises(wire.WireError):
        wire.Decoder().feed(stream)


def test_a_frame_that_the_other_side_would_refuse_is_not_sent() -> None:
    """Both sides enforce the limits."""
    with pytest.raises(wire.WireError):
        wire.encode({"kind": "output"}, b"x" * (wire.MAX_BODY + 1))


@pytest.mark.parametrize(
    "message",
    [
        {"kind": "task_exited", "task": "worker:0", "attempt": 0, "code": "7", "signal": None, "at": 0},
        {"kind": "task_exited", "task": "worker:0", "attempt": True, "code": 7, "signal": None, "at": 0},
        {"kind": "task_gone", "attempt": 0},
        {"kind": "ports_held", "ports": {"worker:0": "22"}},
        {"kind": "interrupted", "signal": 2},
        {"kind": "unheard_of"},
    ],
    ids=["text for a number", "bool for a number", "missing field", "wrong value", "not an agent's word", "unknown"],
)
def test_events_are_checked_before_they_are_believed(message: dict[str, object]) -> None:
    """A message with an invalid field, or of a kind that no agent may send, is not an event."""
    with pytest.raises(ValueError, match=r".+"):
        event_records.from_agent("localhost", message)
