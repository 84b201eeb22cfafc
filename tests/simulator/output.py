"""The output of tasks where it arrives: in the real logs, and before the eyes of a user who reads when it suits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from simulator.file_system import FileSystem, SimPath
from simulator.world import Violation, World
from tflaunch.store.log_reader import LogReader
from tflaunch.store.log_sink import LogSink, Times
from tflaunch.store.log_writer import OURS, Kept, Marks, last_state
from tflaunch.store.run_dir import RunDirectory
from tflaunch.tui.backlog import Backlog, Piece

if TYPE_CHECKING:
    from simulator.mailbox import SimMailbox
    from simulator.oracle import Oracle

_READ = 0.005  # seconds for a quick reader to take a piece
_STATES_LOSS = b"missing"
"""What is in each line of the logs about output that is not there."""


class SimRunDirectory:
    """The part of a run's directory with the logs, in memory."""

    def __init__(self, machine: FileSystem) -> None:
        self.path: Any = SimPath("/runs/run", machine)
        self.logs: Any = self.path / "logs"
        machine.make_directories(str(self.logs))
        self.directory = RunDirectory.existing(cast("Path", self.path), cast("Path", self.logs))

    def sink(self, oracle: Oracle, mailbox: SimMailbox, screen: Reader) -> WatchedSink:
        return WatchedSink(self.directory, oracle, mailbox, screen)

    def lines(self, task: str) -> list[tuple[int, bytes]]:
        """Return all that a task's log has, as `tflaunch logs` reads it: attempts, each with a line."""
        reader = LogReader(self.path, self.logs, [task])
        return [(line.attempt, line.text) for line in [*reader.read(), *reader.rest()]]


class WatchedSink(LogSink):
    """The real sink of output; the oracle compares what comes with what was written."""

    def __init__(self, run: RunDirectory, oracle: Oracle, mailbox: SimMailbox, screen: Reader) -> None:
        super().__init__(run.logs, Marks(run.marks), run.times, cast("Any", screen), mailbox)
        self.mailbox = mailbox
        """For bugs that are planted."""
        self._oracle = oracle
        self._reader = screen

    def write(self, task: str, attempt: int, data: bytes, times: Times, done: Callable[[], None]) -> None:
        self._oracle.dated(task, attempt, len(data), times)
        self._oracle.heard(task, attempt, data)
        self._reader.attempt = attempt

        def kept() -> None:
            self._oracle.kept(task, attempt)
            done()

        super().write(task, attempt, data, times, kept)

    def kept(self, task: str, attempt: int) -> int | None:
        """Return how many bytes of an attempt an earlier supervisor stored."""
        size = super().kept(task, attempt)
        self._oracle.resumed(task, attempt, size)
        return size

    def lose(self, task: str, attempt: int, size: int) -> None:
        self._oracle.lost(task, attempt, size)
        super().lose(task, attempt, size)

    def end(self, task: str, attempt: int) -> None:
        self._oracle.ended(task, attempt)
        super().end(task, attempt)

    def abandon(self, task: str, attempt: int) -> None:
        self._oracle.abandoned(task, attempt)
        super().abandon(task, attempt)


class Reader:
    """The user before the screen: takes pieces of the real backlog, quickly or slowly, or not for a while."""

    def __init__(self, world: World, oracle: Oracle, machine: FileSystem, seconds: float, *, is_skipping: bool) -> None:
        """Read a piece in this number of seconds; ``is_skipping``: on a terminal, not through a pipe."""
        self.attempt = 0
        """The attempt of the output that is shown next."""
        self._world = world
        self._oracle = oracle
        self._machine = machine
        self._seconds = seconds or _READ
        self._backlog = Backlog(is_skipping)
        self._due: dict[str, bytearray] = {}
        self._has_missed = False
        self._is_reading = self._is_dead = False
        self._pauses_until = 0.0

    def show(self, task: str, data: bytes, kept: Kept | None) -> None:
        """Show output: it is in the log already, unless the disk had no room."""
        if kept is None:
            self._oracle.not_logged(task, self.attempt, len(data))
        else:
            log = self._machine.find(kept.path).content
            if log[kept.start : kept.start + len(data)] != data:
                raise Violation("I6", f"{task} is shown, but its log has something else at {kept.start}")
        self._due.setdefault(task, bytearray()).extend(data)
        self._backlog.add(Piece(task, data), kept)
        self._begin()

    def finish(self, task: str) -> None:
        self._backlog.add(Piece(task, b"", ends_line=True))
        self._begin()

    def pause(self, seconds: float) -> None:
        self._pauses_until = self._world.now + seconds

    def die(self) -> None:
        """Read nothing more: the screen is that of the supervisor, which was killed."""
        self._is_dead = True

    def read_rest(self) -> None:
        """Read all that is left; nothing of it may be missing without a note."""
        while (piece := self._backlog.take(0)) is not None:
            self._see(piece)
        left = [task for task, due in self._due.items() if due]
        if left and not self._has_missed:
            raise Violation("I16", f"the screen never shows the last output of {left}")

    def _begin(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            self._world.after(self._seconds, self._read)

    def _read(self) -> None:
        if self._is_dead:
            return
        if self._world.now < self._pauses_until:
            self._world.at(self._pauses_until, self._read)
            return
        piece = self._backlog.take(0)
        if piece is None:
            self._is_reading = False
            return
        self._see(piece)
        self._world.after(self._seconds, self._read)

    def _see(self, piece: Piece) -> None:
        self._backlog.note_written()
        if piece.task is None:
            self._has_missed |= b"not shown here" in piece.data
        elif self._has_missed:
            self._due.pop(piece.task, None)  # what was skipped is not said
        elif piece.data:
            due = self._due[piece.task]
            if not due.startswith(piece.data):
                raise Violation("I16", f"the screen shows {piece.data[:60]!r} of {piece.task}, not {bytes(due[:60])!r}")
            del due[: len(piece.data)]


def check_log(run: SimRunDirectory, task: str, told: dict[int, bytes], complete: set[int]) -> None:
    """I6: a log has the lines of each attempt once, in their order; all of them if the attempt is ``complete``."""
    found: dict[int, list[bytes]] = {}
    gaps: set[int] = set()
    for attempt, text in run.lines(task):
        if not text.startswith(OURS.encode()):
            found.setdefault(attempt, []).append(text)
        elif _STATES_LOSS in text:
            gaps.add(attempt)
    for attempt, data in told.items():
        lines = [last_state(line) for line in data.removesuffix(b"\n").split(b"\n")] if data else []
        there = found.get(attempt, [])
        if attempt in gaps or there == lines:
            continue
        if attempt in complete:
            raise Violation("I6", f"the log of {task} has {len(there)} lines of attempt {attempt}, not {len(lines)}")
        rest = iter(lines)
        if any(not any(_is_part(line, known) for known in rest) for line in there):
            raise Violation("I6", f"the log of {task} has other lines of attempt {attempt} than it wrote")


def _is_part(line: bytes, whole: bytes) -> bool:
    """Return whether a line is a whole one, or what a full disk or the death of the supervisor has left of it."""
    return line == whole or whole.startswith(line) or whole.endswith(line)
