"""Lines on the screen: complete, prefixed, with progress bars as a terminal would leave them."""

from __future__ import annotations

import pytest

from tflaunch.tui.screen import Screen, _Lines

pytestmark = pytest.mark.unit


def shown(*pieces: bytes) -> bytes:
    """Return what is shown for output that arrives in these chunks."""
    lines = _Lines(b"w:0 | ")
    return b"".join(lines.feed(piece) for piece in pieces) + lines.flush()


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ((b"one\ntwo\n",), b"w:0 | one\nw:0 | two\n"),
        ((b"o", b"n", b"e\ntw", b"o\n"), b"w:0 | one\nw:0 | two\n"),
        ((b"no end",), b"w:0 | no end\n"),
        ((b"\n\n",), b"w:0 | \nw:0 | \n"),
        ((b"10%\r50%\r", b"100%\nnext\n"), b"w:0 | 100%\nw:0 | next\n"),
        ((b"dos\r\nline\r\n",), b"w:0 | dos\nw:0 | line\n"),
        ((b"\xff\x00\n",), b"w:0 | \xff\x00\n"),
    ],
    ids=["lines", "pieces", "unfinished", "empty lines", "progress bar", "carriage returns", "any bytes"],
)
def test_lines_are_whole_and_prefixed(pieces: tuple[bytes, ...], expected: bytes) -> None:
    """However the output is split."""
    assert shown(*pieces) == expected


def test_a_line_without_end_does_not_grow_in_memory() -> None:
    """It is shown in parts."""
    lines = _Lines(b"")
    assert sum(len(lines.feed(b"x" * 10_000)) for _ in range(20)) > 100_000


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ((), ""),
        ((b"one\ntwo\n",), "two"),
        ((b"one\ntwo",), "two"),
        ((b"one\n\n \n", b"\n"), "one"),
        ((b"10%\r50%",), "50%"),
        ((b"10%\r50%\r",), "50%"),
        ((b"one\n", b"\r"), "one"),
        ((b"\xff\n",), "\ufffd"),
    ],
    ids=["nothing", "lines", "unfinished", "empty lines", "progress bar", "its end", "its begin", "any bytes"],
)
def test_the_last_line_is_the_one_that_says_something(pieces: tuple[bytes, ...], expected: str) -> None:
    """Whether or not it has ended."""
    lines = _Lines(b"w:0 | ")
    for piece in pieces:
        lines.feed(piece)
    assert lines.last() == expected


def test_a_message_cannot_act_on_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    """It may quote output of a host or a program; colours are removed, the rest is escaped."""
    screen = Screen(["worker:0"])
    screen.say("failed:\n\tx = \x1b[31m1\x1b[0m\x1b]0;PWNED\x07\x1b[2J\ud800\r\ndone\x85\u202e")
    screen.close()
    said = capfd.readouterr().err
    assert said.splitlines() == [
        "tflaunch: failed:",
        r"tflaunch:         x = 1\x1b]0;PWNED\x07\x1b[2J\ud800",
        r"tflaunch: done\x85\u202e",
    ]
