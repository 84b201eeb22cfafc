"""Write one task's log, and where in it the task's own output is."""

import errno
import json
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tflaunch.core.events import Count
from tflaunch.errors import EXIT_INTERNAL, EXIT_USAGE, TflaunchError
from tflaunch.private_files import append, open_to_append
from tflaunch.records import read_record
from tflaunch.store.log_index import Entry, TimeIndex
from tflaunch_worker import wire

TAIL_BYTES = 64 * 1024
"""How many bytes at the end of a log are searched for a task's last lines."""

OURS = "---- tflaunch: "
"""The prefix of tflaunch's own lines in a log."""

# O_APPEND: if another program truncates the log, such as logrotate, output goes on at its new end, without a hole.
# O_NOFOLLOW: --log-dir may be in a directory where others can put a link to a file of this user.
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class Kept(NamedTuple):
    """The location of output: the log's path, and the first byte's position."""

    path: str
    start: int


class Mark(NamedTuple):
    """At log offset ``at``, the attempt's own output continues at its byte ``offset``."""

    task: str
    attempt: Count
    at: Count
    offset: Count


class Marks:
    """Stores for later supervisors where in the logs the tasks' output goes on."""

    def __init__(self, path: Path) -> None:
        """Open the file of marks at ``path``, and read the marks in it."""
        self.has_earlier = path.exists()
        """Whether an earlier supervisor of this run has made the file."""
        self.earlier = {mark.task: mark for mark in read_marks(path)}
        """The last mark of each task from an earlier supervisor."""
        self._file = open_to_append(path)

    def add(self, mark: Mark) -> bool:
        """Write a mark, before our lines that end at it; return whether the disk had room."""
        return append(self._file, (json.dumps(mark) + "\n").encode("ascii"))

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read_marks(path: Path) -> list[Mark]:
    """Return the marks in a file, [] without it; raises as `parse_mark`."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    return [parse_mark(path, number, line) for number, line in enumerate(lines[:-1], 1)]  # the last one may be torn


def parse_mark(path: Path, number: int, line: bytes) -> Mark:
    """Parse a line of a file with its number, from 1, or raise `TflaunchError`."""
    try:
        return read_record(Mark, wire.parse(line))
    except ValueError:
        message = f"line {number} of {path} is damaged; what the tasks wrote is in {path.parent / 'logs'}"
        raise TflaunchError(message, EXIT_INTERNAL) from None


class TaskLog:
    """A task's output byte for byte, and our lines between attempts and at gaps.

    A full disk costs output, never the job; when there is room again, the log first states how much is missing. The
    same holds for a log that cannot be opened: opening is retried with each output.
    """

    def __init__(self, task: str, path: Path, marks: Marks, times: Path) -> None:
        """Open the log at ``path``, with its time index at ``times``."""
        self._task = task
        self._path = path
        self._marks = marks
        self._times_path = times
        self._file = -1
        self._trouble = ""
        self._ends_line = True
        self._lost = 0
        self._gap = 0
        self._unsaid: list[str] = []
        self._written = 0
        self.first_size = self._size = 0
        self._times: TimeIndex | None = None
        self._lacks_mark = False
        earlier = marks.earlier.get(task)
        self.attempt = 0 if earlier is None else earlier.attempt
        is_open = self._open()
        # with --log-dir, the log may hold the output of an earlier run
        self._attempt_start = self.first_size if earlier is None else earlier.at
        if earlier is not None:
            self._written = earlier.offset + max(self.first_size - earlier.at, 0)
        # A mark is written before the lines that end at it: if the log is shorter, these lines are missing.
        if is_open and (earlier is None or self.first_size < earlier.at):  # our lines before that mark were not written
            if self.attempt:  # one of them has named the attempt, and separates it from the output before
                self._unsaid.append(self._name())
            else:
                self._mark_start()

    def _open(self) -> bool:
        """Open the log and its time index; return whether that succeeded."""
        try:
            file = open_own_log(self._path)
        except OSError as error:
            self._trouble = error.strerror or str(error)
            return False
        size = os.fstat(file).st_size
        try:
            self._times = TimeIndex(self._times_path, size)
        except OSError as error:
            os.close(file)
            self._trouble = error.strerror or str(error)
            return False
        self._file, self.first_size, self._size = file, size, size
        self._ends_line = os.pread(file, 1, max(size - 1, 0)) in (b"", b"\n")  # a supervisor was killed in a line
        return True

    def _mark_start(self) -> None:
        self._lacks_mark = not self._marks.add(Mark(self._task, self.attempt, self.first_size, self._written))

    def _is_open(self) -> bool:
        """Return whether the log is open and has a mark, after another attempt."""
        if self._lacks_mark or (self._file < 0 and self._open()):
            self._mark_start()  # without it, nothing finds the output
        return self._file >= 0 and not self._lacks_mark

    def append(self, data: bytes, times: Sequence[tuple[int, float]]) -> Kept | None:
        """Append output of the task; return its location, None if it does not fit.

        ``times`` are positions in it, each with the seconds since the epoch when the output from there on was written.
        """
        lost = self._lost
        # First what is missing before this output: a later line about the gap would be at the wrong place.
        has_room = self._say_all(times[0][1])
        start = self._size
        if has_room and self._times is not None:
            for position, moment in times:  # before the output, so that its readers know its time
                self._times.add(Entry(moment, self._size + position))
            self._write(data, self._times)
        else:
            self._miss(len(data))
        self._written += len(data)
        return Kept(str(self._path), start) if self._lost == lost else None

    def _write(self, data: bytes, times: TimeIndex) -> None:
        kept = 0
        try:  # the kernel takes less than all when the disk becomes full, and raises at the next call only
            while kept < len(data):
                kept += os.write(self._file, data[kept:])
        except OSError as error:
            self._trouble = error.strerror or str(error)
            self._miss(len(data) - kept)
        self._size += kept
        if kept < len(data):  # entries beyond the end would date what is written there later
            times.cut(self._size)
        if kept:
            self._ends_line = data[:kept].endswith(b"\n")

    def _miss(self, size: int) -> None:
        # The next line that fits states the gap; the loss counts for the end of the run.
        self._gap += size
        self._lost += size

    def begin_attempt(self, attempt: int, moment: float) -> None:
        """Log that a new attempt begins, at ``moment`` (seconds since the epoch)."""
        self._tell_gap()
        self.attempt = attempt
        self._written = 0
        self._say(self._name(), moment)
        self._attempt_start = self._size

    def _name(self) -> str:
        return f"{self._task} attempt {self.attempt}"

    def lose(self, size: int, text: str, moment: float) -> None:
        """Log a gap, dated like the last output or else ``moment`` (seconds since epoch)."""
        self._written += size
        # Date the gap with the previous timestamp: later output may be older than our notice of the gap.
        last = None if self._times is None else self._times.last
        self._say(text, moment if last is None else last)

    def _say(self, text: str, moment: float) -> None:
        self._tell_gap()
        self._unsaid.append(text)
        self._say_all(moment)

    def _tell_gap(self) -> None:
        if self._gap:
            self._unsaid.append(missing(self._gap))
            self._gap = 0

    def _say_all(self, moment: float) -> bool:
        """Write our pending lines; return whether output may follow."""
        if not self._is_open() or self._times is None:
            return False
        texts = [*self._unsaid, missing(self._gap)] if self._gap else self._unsaid
        if not texts:
            return True
        start = b"" if self._ends_line else b"\n"
        words = start + "".join(f"{OURS}{text} ----\n" for text in texts).encode()
        # The mark first: a supervisor that takes over after a kill in between sees that our lines are missing,
        # whereas lines without a mark would be taken for output of the task.
        if not self._marks.add(Mark(self._task, self.attempt, self._size + len(words), self._written)):
            return False
        self._times.add(Entry(moment, self._size + len(start)))
        # All or nothing: half a line of ours could not be told from output.
        if not append(self._file, words):
            self._times.cut(self._size)
            return False
        self._size += len(words)
        self._ends_line = True
        self._gap, self._unsaid = 0, []
        return True

    def tail(self, lines: int) -> list[str]:
        """Return the last ``lines`` lines of the last attempt."""
        if self._file < 0:
            return []
        size = os.fstat(self._file).st_size
        return _last_lines(os.pread(self._file, TAIL_BYTES, max(self._attempt_start, size - TAIL_BYTES)), lines)

    def trouble(self) -> str:
        """Return a sentence about what could not be written, "" if nothing."""
        return f"{self._path}: {self._lost} bytes could not be written: {self._trouble}" if self._lost else ""

    def close(self) -> None:
        """Close the files."""
        if self._times is not None:
            self._times.close()
        if self._file >= 0:
            os.close(self._file)


def open_own_log(path: Path) -> int:
    """Open a log for reading and appending; create it if it is missing.

    Raises:
        OSError: the log cannot be opened, or is not a regular file that belongs to this user alone.
    """
    try:
        descriptor = os.open(path, _FLAGS, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.EPERM, "it is a symbolic link", str(path)) from None
        raise
    reason = _objection(os.fstat(descriptor))
    if reason:
        os.close(descriptor)
        raise OSError(errno.EPERM, f"it {reason}", str(path))
    return descriptor


def require_own_logs(directory: Path, tasks: Iterable[str]) -> None:
    """Check that no other user has put files in place of the logs.

    Raises:
        TflaunchError: a log exists, and is not a regular file that belongs to this user alone.
    """
    for task in tasks:
        path = path_of(directory, task)
        try:
            reason = _objection(path.lstat())
        except OSError:
            continue  # it does not exist, or the error is reported when it is opened
        if reason:
            message = f"--log-dir: {path} {reason}; remove it, or use a directory in which only you can write"
            raise TflaunchError(message, EXIT_USAGE)


def _objection(found: os.stat_result) -> str:
    """Return why a file is not safe as a log; "" if it is."""
    if stat.S_ISLNK(found.st_mode):
        return "is a symbolic link"
    if not stat.S_ISREG(found.st_mode):
        return "is not a regular file"
    if found.st_uid != os.getuid():
        return f"belongs to user {found.st_uid}"
    return "has more than one hard link" if found.st_nlink > 1 else ""


def last_state(line: bytes) -> bytes:
    """Return a line as a terminal shows it after a progress bar."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def missing(size: int) -> str:
    """Return the text logged where bytes of a task's output are missing."""
    return f"{size} bytes of output are missing here: there was no room for them"


def path_of(directory: Path, task: str) -> Path:
    """Return the path of a task's log."""
    return directory / f"{task.replace(':', '-')}.log"


def times_of(directory: Path, task: str) -> Path:
    """Return the path of the time index of a task's log in the directory of indices."""
    return directory / task.replace(":", "-")


def tail(directory: Path, task: str, lines: int) -> list[str]:
    """Return the last ``lines`` lines of a task's log, none if there is no log."""
    try:
        with open(path_of(directory, task), "rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - TAIL_BYTES, 0))
            return _last_lines(file.read(), lines)
    except OSError:
        return []


def _last_lines(data: bytes, count: int) -> list[str]:
    """Return the last lines of the end of a log, up to one that is not blank.

    Blank lines between them are kept: they separate tracebacks.
    """
    lines = [last_state(line).decode("utf-8", "replace") for line in data.split(b"\n")]
    end = next((number for number in range(len(lines), 0, -1) if lines[number - 1].strip()), 0)
    return lines[:end][-count:]
