"""The backlog of a screen: complete and ordered for any reader, bounded in memory, with every skip reported."""

from __future__ import annotations

import threading
import tracemalloc
from pathlib import Path

import pytest

from support.waiting import PATIENCE
from tflaunch.store.log_line import Kept
from tflaunch.tui import backlog
from tflaunch.tui.backlog import Backlog, Piece

pytestmark = pytest.mark.unit

A, B = "worker:0", "worker:1"
LINE = b"x" * 99 + b"\n"


class Logs:
    """Task logs whose output is also added to a backlog."""

    def __init__(self, directory: Path, is_skipping: bool = False) -> None:
        self.directory = directory
        self.backlog = Backlog(is_skipping)

    def write(self, task: str, data: bytes, is_kept: bool = True) -> None:
        """Write output of a task, whether or not its log has room for it."""
        path = self.directory / task
        with path.open("ab") as log:
            start = log.tell()
            if is_kept:
                log.write(data)
        self.backlog.add(Piece(task, data), Kept(str(path), start) if is_kept else None)

    def taken(self) -> list[Piece]:
        found = []
        while (piece := self.backlog.take(0)) is not None:
            found.append(piece)
            self.backlog.note_written()
        return found


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    """Logs, and a reader that wants all output."""
    return Logs(tmp_path)


def of(task: str | None, pieces: list[Piece]) -> bytes:
    """Return a task's output from the pieces."""
    return b"".join(piece.data for piece in pieces if piece.task == task)


def test_a_slow_reader_gets_everything_and_costs_little_memory(logs: Logs) -> None:
    """60 MB from two tasks with messages in between: each line once, and output and messages keep their order."""
    tracemalloc.start()
    sentences = 3
    for number in range(1, sentences + 1):
        for _ in range(1000):
            logs.write(A, LINE * 100)
            logs.write(B, LINE * 100)
        logs.backlog.add(Piece(None, b"%d %d\n" % (number * 10_000_000, number * 10_000_000)))
    assert tracemalloc.get_traced_memory()[1] < 2 * backlog.MEMORY
    seen = {A: 0, B: 0}
    while (piece := logs.backlog.take(0)) is not None:
        if piece.task is None:
            assert piece.data == b"%d %d\n" % (seen[A], seen[B])
            sentences -= 1
        else:
            assert piece.data == LINE * (len(piece.data) // 100)
            seen[piece.task] += len(piece.data)
    assert (seen, sentences) == ({A: 30_000_000, B: 30_000_000}, 0)
    assert tracemalloc.get_traced_memory()[1] < 3 * backlog.MEMORY
    tracemalloc.stop()


def test_a_reader_that_keeps_up_or_catches_up_is_served_from_memory(logs: Logs) -> None:
    logs.write(A, b"one\n")
    logs.write(B, b"two\n")
    logs.backlog.add(Piece(None, b"tflaunch: three\n"))
    logs.backlog.add(Piece(A, b"", ends_line=True))
    ours = (None, b"tflaunch: three\n", False)
    assert logs.taken() == [(A, b"one\n", False), (B, b"two\n", False), ours, (A, b"", True)]
    assert logs.backlog.take(0) is None
    text = b"".join(b"%099d\n" % number for number in range(100_000))
    for start in range(0, len(text), 100_000):
        logs.write(A, text[start : start + 100_000])
    pieces = logs.taken()
    for path in logs.directory.iterdir():
        path.rename(logs.directory / "moved")
    logs.write(A, b"late\n")
    pieces += logs.taken()
    assert of(A, pieces) == text + b"late\n"


def test_a_terminal_that_is_far_behind_skips_and_says_how_much(tmp_path: Path) -> None:
    """The newest output and every message are shown; unfinished lines end where output is missing."""
    logs = Logs(tmp_path, is_skipping=True)
    for number in range(60):
        logs.write(A, b"%099d\n" % number * 10_000)
        logs.backlog.add(Piece(None, b"sentence\n"))
    pieces = logs.taken()
    assert of(A, pieces).endswith(b"%099d\n" % 59 * 10_000)
    said = of(None, pieces).decode()
    assert said.count("sentence") == 60
    (skipped,) = [float(line.split()[1]) for line in said.splitlines() if "not shown" in line]
    assert skipped * 1e6 + len(of(A, pieces)) == 60e6
    assert len(of(A, pieces)) <= backlog.MOST_BEHIND + backlog.MEMORY
    assert Piece(A, b"", ends_line=True) in pieces


def test_what_no_log_has_room_for_and_what_was_removed_is_stated(logs: Logs) -> None:
    for _ in range(100):
        logs.write(A, LINE * 1000, is_kept=False)
    pieces = logs.taken()
    missed = 10_000_000 - len(of(A, pieces))
    assert missed > 0
    assert f"{missed / 1e6:.1f} MB of output are not shown here".encode() in of(None, pieces)
    for _ in range(100):
        logs.write(B, LINE * 1000)
    (logs.directory / B).unlink()
    assert b"was changed by another program" in of(None, logs.taken())
    logs.write(A, LINE)
    logs.backlog.add(Piece(None, b"sentence\n"))
    logs.backlog.drop_output()  # nobody reads it; messages may have a reader of their own
    assert logs.taken() == [(None, b"sentence\n", False)]


def test_waiting_ends_when_everything_is_written(logs: Logs) -> None:
    """Not when it is taken from the backlog."""
    logs.write(A, b"one\n")
    assert logs.backlog.take(None) is not None
    happened: list[str] = []

    def wait() -> None:
        logs.backlog.wait_until_written()
        happened.append("the wait is over")

    waiter = threading.Thread(target=wait)
    waiter.start()
    happened.append("all is written")
    logs.backlog.note_written()
    waiter.join(PATIENCE)
    assert happened == ["all is written", "the wait is over"]
    logs.backlog.close()
    assert logs.backlog.take(None) is None
    assert logs.backlog.is_over
