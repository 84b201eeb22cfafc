"""The region at the bottom of a terminal, byte by byte."""

from __future__ import annotations

import pyte
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from support.emulator import Emulator
from tflaunch.tui.terminal import Region

pytestmark = pytest.mark.unit

SIZE = (20, 10)


def shown(*frames: bytes) -> list[str]:
    emulator = pyte.Screen(*SIZE)
    stream = pyte.ByteStream(emulator)
    for frame in frames:
        stream.feed(frame.replace(b"\n", b"\r\n"))
    return "\n".join(line.rstrip() for line in emulator.display).rstrip("\n").split("\n")


def test_a_region_moves_down_grows_and_shrinks() -> None:
    region = Region()
    frames = [region.frame(b"1\n", ["a", "b"])]
    assert shown(*frames) == ["1", "a", "b"]
    frames.append(region.frame(b"2\n3\n", ["a", "b", "c"]))
    assert shown(*frames) == ["1", "2", "3", "a", "b", "c"]
    frames.append(region.frame(b"", ["z"]))
    assert shown(*frames) == ["1", "2", "3", "z"]
    frames.append(region.frame(b"4\n", []))
    assert shown(*frames) == ["1", "2", "3", "4"]
    assert not region.is_drawn
    assert region.frame(b"5\n", []) == b"5\n"
    frames = [region.frame(b"", ["a", "b"]), region.left(), region.left(), region.frame(b"", ["c"])]
    assert shown(*frames) == ["a", "b", "c"]


STEPS = some.lists(
    some.one_of(
        some.tuples(some.integers(12, 40), some.integers(4, 20)),
        some.integers(0, 30),
        some.sampled_from([b"^C", b"^C^C", b"typed"]),
    ),
    max_size=20,
)
"""New sizes of a terminal, numbers of lines to print above the region, and keys."""


@pytest.mark.parametrize("wraps", [True, False], ids=["terminals that wrap", "terminals that cut"])
@settings(max_examples=50)
@given(steps=STEPS, rows=some.integers(1, 8))
def test_no_resize_and_no_key_leaves_a_piece_of_the_region(
    wraps: bool, steps: list[tuple[int, int] | int | bytes], rows: int
) -> None:
    """Every line above it is there, once, in order; wide characters take two columns."""
    size, printed, typed, region = (30, 8), 0, 0, Region()
    emulator = Emulator(*size, wraps)
    for step in [0, *steps]:
        if isinstance(step, tuple):
            size = step
            emulator.resize(*size)
        elif isinstance(step, bytes):
            typed += len(step)
            emulator.feed(step if typed < 12 else b"")  # less than a line until the next frame
        else:
            above = b"".join(b"line %d\r\n" % (printed + number) for number in range(step))
            printed, typed = printed + step, 0
            lines = ["日本" + "─" * (size[0] - 5), *["frame".ljust(size[0] - 1, "x")] * (rows - 1)]
            emulator.feed(region.frame(above, lines[: size[1] - 1]))
    emulator.feed(region.frame(b"", []))
    assert emulator.lines() == ([f"line {number}" for number in range(printed)] or [""])


def test_colours_of_what_is_above_do_not_run_into_the_region() -> None:
    """Nor do the region's colours run into what follows."""
    frame = Region().frame(b"\x1b[31mred\n", ["a"])
    assert frame.index(b"\x1b[0m") < frame.index(b"a\x1b")
