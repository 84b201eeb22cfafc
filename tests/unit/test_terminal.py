"""The region at the bottom of a terminal, byte by byte."""

from __future__ import annotations

import pyte
import pytest

from tflaunch.tui.terminal import Region

pytestmark = pytest.mark.unit


def shown(*frames: bytes, columns: int = 20) -> list[str]:
    """Return what a terminal shows after these bytes."""
    emulator = pyte.Screen(columns, 10)
    stream = pyte.ByteStream(emulator)
    for frame in frames:
        stream.feed(frame.replace(b"\n", b"\r\n"))
    return "\n".join(line.rstrip() for line in emulator.display).rstrip("\n").split("\n")


def test_a_region_moves_down_grows_and_shrinks() -> None:
    """The lines above it are kept."""
    region = Region()
    frames = [region.frame(b"1\n", ["a", "b"], 20)]
    assert shown(*frames) == ["1", "a", "b"]
    frames.append(region.frame(b"2\n3\n", ["a", "b", "c"], 20))
    assert shown(*frames) == ["1", "2", "3", "a", "b", "c"]
    frames.append(region.frame(b"", ["z"], 20))
    assert shown(*frames) == ["1", "2", "3", "z"]
    frames.append(region.frame(b"4\n", [], 20))
    assert shown(*frames) == ["1", "2", "3", "4"]
    assert not region.is_drawn
    assert region.frame(b"5\n", [], 20) == b"5\n"


def test_a_region_can_be_left() -> None:
    """The next one is drawn below it."""
    region = Region()
    frames = [region.frame(b"", ["a", "b"], 20), region.left(), region.left(), region.frame(b"", ["c"], 20)]
    assert shown(*frames) == ["a", "b", "c"]


def test_lines_that_a_narrower_terminal_wrapped_are_erased_too() -> None:
    """Colours take no columns, wide characters take two."""
    region = Region()
    region.frame(b"", ["\x1b[31m" + "x" * 19 + "\x1b[0m", "日本語日本語", "b"], 20)
    assert b"\x1b[4A\r\x1b[J" in region.frame(b"", ["z"], 10)  # 2 + 2 + 1 rows, and the cursor is on the last


def test_colours_of_what_is_above_do_not_run_into_the_region() -> None:
    """Nor do the region's colours run into what follows."""
    frame = Region().frame(b"\x1b[31mred\n", ["a"], 20)
    assert frame.index(b"\x1b[0m") < frame.index(b"a\x1b")
