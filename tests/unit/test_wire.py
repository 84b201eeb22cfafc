"""Frames survive any splitting of the stream, and malformed data is refused before it can surprise who uses it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
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
    with pytest.raises(ValueError, match=r".+"):
        event_records.from_agent("localhost", message)


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
