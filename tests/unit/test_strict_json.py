"""JSON from outside is parsed strictly, so that no value can surprise the code that uses it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from tflaunch_worker import wire

pytestmark = pytest.mark.unit

ESCAPED_BYTES = some.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF, categories=["Cs"])
TEXT = some.text(some.characters(exclude_categories=["Cs"]) | ESCAPED_BYTES, max_size=10)
SCALARS = some.none() | some.booleans() | some.integers(-(2**63), 2**63 - 1) | some.floats(allow_nan=False) | TEXT
VALUES = some.recursive(
    SCALARS.filter(lambda value: value not in (float("inf"), float("-inf"))),
    lambda inner: some.lists(inner, max_size=5) | some.dictionaries(TEXT, inner, max_size=5),
    max_leaves=40,
)


@given(VALUES, some.booleans())
@example(["\udc80"], False)
def test_what_we_write_is_read(value: Any, is_ascii: bool) -> None:
    """Every value that our side may send is accepted."""
    text = json.dumps(value, ensure_ascii=is_ascii)
    assert wire.parse(text) == value
    if is_ascii:
        assert wire.parse(text.encode()) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"1e999", "too large"),
        (b"-1e999", "too large"),
        (b"1" + b"0" * 400 + b".5", "too large"),
        (b"NaN", "not a number"),
        (b'{"at": -Infinity}', "not a number"),
        (b"9223372036854775808", "64 bits"),
        (b"-9223372036854775809", "64 bits"),
        (b"1" + b"0" * 5000, "64 bits"),
        (b"[" * 40_000, "deep"),
        (b"[" * 33 + b"1" + b"]" * 33, "deep"),
        (b'{"a":' * 33 + b"1" + b"}" * 33, "deep"),
        (b'"\\ud800"', "surrogate"),
        (b'{"\\uDFFF": 1}', "surrogate"),
        (b'"\xed\xa0\x80"', "utf-8"),
        (b'"\xff"', "utf-8"),
        (b"[" + b"1," * 1_000_000 + b"1]", "too many"),
        (b"", "Expecting"),
        (b"{} {}", "Extra"),
    ],
)
def test_what_could_surprise_is_refused(text: bytes, reason: str) -> None:
    """The error is a ValueError that gives the reason."""
    with pytest.raises(ValueError, match=reason):
        wire.parse(text)


def test_limits_are_the_largest_that_are_read() -> None:
    """Values at the limits are accepted."""
    assert wire.parse("[" * 32 + "]" * 32)
    assert wire.parse(str(2**63 - 1)) == 2**63 - 1
    assert wire.parse(str(-(2**63))) == -(2**63)
    assert wire.parse('"\\udcff"') == "\udcff"
    assert wire.parse('"\\ud83d\\ude00"') == "\U0001f600"
