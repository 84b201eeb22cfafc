"""What a supervisor knows of the output that an earlier one has stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from tflaunch.mailbox import Mailbox
from tflaunch.store.log_line import Kept
from tflaunch.store.log_sink import LogSink
from tflaunch.store.log_writer import Marks

pytestmark = pytest.mark.unit

TASK = "worker:0"


class Screen:
    """Shows nothing."""

    def show(self, task: str, data: bytes, kept: Kept | None) -> None:
        """Show nothing."""

    def finish(self, task: str) -> None:
        """Show nothing."""


def sink(path: Path) -> LogSink:
    """Return the sink of the next supervisor, which expects output of the first attempt."""
    sink = LogSink(path, Marks(path / "marks.jsonl"), path / "times", Screen(), Mailbox())
    sink.begin(TASK, 0)
    return sink


def test_the_first_supervisor_has_no_earlier_one(tmp_path: Path) -> None:
    """So output has to begin at its first byte."""
    assert sink(tmp_path).kept(TASK, 0) is None


def test_what_the_log_has_was_kept(tmp_path: Path) -> None:
    """Also with lines of ours between."""
    first = sink(tmp_path)
    first.write(TASK, 0, b"hello\n", [(0, 0.0)], lambda: None)
    first.lose(TASK, 0, 10)
    assert sink(tmp_path).kept(TASK, 0) == 16


def test_an_attempt_may_have_been_acknowledged_and_not_stored(tmp_path: Path) -> None:
    """The disk was full when it began, and the supervisor was killed: not even a line of ours tells of it."""
    sink(tmp_path).write(TASK, 0, b"hello\n", [(0, 0.0)], lambda: None)
    assert sink(tmp_path).kept(TASK, 1) == 0
