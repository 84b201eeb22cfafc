"""Which parts of a task's lines reach a terminal."""

from __future__ import annotations

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tflaunch.tui.escapes import without_commands

pytestmark = pytest.mark.unit

RED, RESET = b"\x1b[31m", b"\x1b[0m"


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        (b"plain\ttext\n\xc3\xa4\xe6\x97\xa5\n", b"plain\ttext\n\xc3\xa4\xe6\x97\xa5\n"),
        (b"\xff\xfe not UTF-8\n", b"\xff\xfe not UTF-8\n"),
        (RED + b"red\nnext\n", RED + b"red" + RESET + b"\nnext\n"),
        (b"a " + RED + b"b" + RESET + b" c", b"a " + RED + b"b" + RESET + b" c" + RESET),
        (b"\x1b[38;2;1;2;3m\x1b[4:3mx\n", b"\x1b[38;2;1;2;3m\x1b[4:3mx" + RESET + b"\n"),
        (b"\x1b]0;title\x07a\x1b]2;title\x1b\\b\n", b"ab\n"),
        (b"\x1b]0;never ends\nnext\n", b"\nnext\n"),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\\n", b"link\n"),
        (b"\x1b[2J\x1b[H\x1b[?1049h\x1b[6n\x1b[3A\x1bcx\n", b"x\n"),
        (b"\x1bP1$r\x1b\\\x1b_x\x1b\\\x1b^y\x1b\\z\n", b"z\n"),
        (b"\x1b(0lqk\x1b)Bx\n", b"lqkx\n"),
        (b"a\x08\x08b\x07\x00\x0e\x0f\x7f\x0b\x0cc\n", b"abc\n"),
        (b"\xc2\x9b2Jx\xc2\x85y\xc2\xa0z\n", b"2Jxy\xc2\xa0z\n"),
        (b"\x1b\nx\x1b[", b"\nx"),
        ("a\u202eb\u2066c\u2069\u202a\u2067d\u2028e\u2603f\n".encode(), "abcd\u2028e\u2603f\n".encode()),
        (b"\xe2\x07\x80\xaex\xe2\x80\x07\xaey\xe2\xe2\x80\xae\x80\xaez\n", b"\x80\xaex\xaey\x80\xaez\n"),
        (b"\xc2\x1b\x9b2Jx\xc2\xc2\x9b\x9b\n", b"\x9b2Jx\x9b\n"),
    ],
)
def test_text_and_colours_pass_and_nothing_else_does(lines: bytes, shown: bytes) -> None:
    """No title changes, cursor movement, clearing, bell or character sets."""
    assert without_commands(lines) == shown


@given(st.lists(st.sampled_from([b"\x1b", b"[", b"]", b"31", b";", b"m", b"J", b"A", b"\x07", b"x", b"\xc2", b"\x9b"])))
def test_a_terminal_is_where_it_was(pieces: list[bytes]) -> None:
    """Regardless of the task's output: the line above is kept, and what follows is plain and in place."""
    screen = pyte.Screen(200, 5)
    stream = pyte.ByteStream(screen)
    stream.feed(b"above\r\n" + without_commands(b"".join(pieces)) + b"\r\nbelow")
    assert screen.title == ""
    assert screen.display[0].rstrip() == "above"
    assert screen.display[2].rstrip() == "below"
    assert all(screen.buffer[2][column].fg == "default" for column in range(5))
