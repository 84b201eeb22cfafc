"""Output from a host: its times by our clock, its gaps, and what an earlier supervisor has stored of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tflaunch.agents.output import Output, Times
from tflaunch.mailbox import Mailbox
from tflaunch.store.log_sink import LogSink, OutputScreen
from tflaunch.store.log_writer import Marks

pytestmark = pytest.mark.unit

TASK = "worker:0"


class Log:
    """A log of which an earlier supervisor has written ``size`` bytes, None if there was none."""

    def __init__(self, size: int | None = None) -> None:
        self.said: list[str] = []
        self.times: list[Times] = []
        self._size = size

    def write(self, task: str, attempt: int, data: bytes, times: Times, done: Callable[[], None]) -> None:
        self.said.append(data.decode())
        self.times.append(times)

    def kept(self, task: str, attempt: int) -> int | None:
        """Return how much an earlier supervisor has written."""
        return self._size

    def lose(self, task: str, attempt: int, size: int) -> None:
        self.said.append(f"{size} are missing")

    def end(self, task: str, attempt: int) -> None:
        self.said.append("end")


def output(log: Log) -> Output:
    """Return the output of a host whose clock is 100 s ahead."""
    return Output(log, lambda: None, lambda theirs: theirs - 100, lambda *_: True)


def frame(kind: str, offset: int, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "task": TASK, "attempt": 0, "offset": offset, **more}


def test_times_are_by_our_clock_and_by_position() -> None:
    """Even if part of the output was already known."""
    log = Log()
    heard = output(log)
    heard.read(frame("output", 0, times=[[0, 101.0], [4, 102.0]]), b"abcdef")
    heard.read(frame("output", 2, times=[[2, 101.0], [4, 102.0], [7, 103.0]]), b"cdefghi")
    heard.read(frame("output", 0, times=[[0, 101.0]]), b"abcdef")
    assert log.said == ["abcdef", "ghi"]
    assert log.times == [[(0, 1.0), (4, 2.0)], [(0, 2.0), (1, 3.0)]]


@pytest.mark.parametrize(
    "times",
    [
        [], None, 5, "times", [[]], [[1, 1.0]], [[0, 1.0], [0, 2.0]], [[0, 1.0], [3, 2.0], [2, 3.0]],
        [[0, 1.0], [6, 2.0]], [[0, "1"]], [[0, None]], [[0, 1]], [["0", 1.0]], [[False, 1.0]], [[0, float("nan")]],
        [[0, 1.0, 2]], [[-1, 1.0]], [0, 1.0], {"0": 1.0},
    ],
)  # fmt: skip
def test_times_that_are_none_are_refused(times: object) -> None:
    log = Log()
    with pytest.raises((ValueError, TypeError)):
        output(log).read(frame("output", 0, times=times), b"abcdef")
    assert log.said == []


@pytest.mark.parametrize("size", [0, 40])
def test_what_an_earlier_supervisor_could_not_store_is_missing(size: int) -> None:
    """It has acknowledged 100 bytes, and the disk was full: the agent has discarded them."""
    log = Log(size)
    heard = output(log)
    heard.read(frame("output", 100, times=[[100, 1.0]]), b"more")
    heard.read(frame("output_ended", 104), b"")
    assert log.said == [f"{100 - size} are missing", "more", "end"]
    ended = Log(size)
    output(ended).read(frame("output_ended", 100), b"")
    assert ended.said == [f"{100 - size} are missing", "end"], "nothing of it comes again but its end"


@pytest.mark.parametrize("kind", ["output", "output_ended"])
@pytest.mark.parametrize("is_first", [True, False])
def test_no_agent_leaves_out_what_was_never_acknowledged(kind: str, is_first: bool) -> None:
    """Without an earlier supervisor, and after what this one has taken."""
    heard = output(Log(None if is_first else 0))
    if not is_first:
        heard.read(frame("output", 0, times=[[0, 1.0]]), b"some")
    with pytest.raises(ValueError, match="goes on at byte 100"):
        heard.read(frame(kind, 100, times=[[100, 1.0]]), b"more" if kind == "output" else b"")


def sink(path: Path) -> LogSink:
    """Return the sink of the next supervisor, which expects output of the first attempt."""
    sink = LogSink(path, Marks(path / "marks.jsonl"), path / "times", Mock(spec=OutputScreen), Mailbox())
    sink.begin(TASK, 0)
    return sink


def test_what_an_earlier_supervisor_kept_is_what_the_log_has(tmp_path: Path) -> None:
    """Also with lines of ours between. For the first, output has to begin at its first byte.

    Of an attempt that was acknowledged and not stored, as the disk was full when it began, not even a line of ours
    tells.
    """
    first = sink(tmp_path)
    assert first.kept(TASK, 0) is None
    first.write(TASK, 0, b"hello\n", [(0, 0.0)], lambda: None)
    first.lose(TASK, 0, 10)
    assert sink(tmp_path).kept(TASK, 0) == 16
    assert sink(tmp_path).kept(TASK, 1) == 0
