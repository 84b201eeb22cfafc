"""The run directory, and the journal in it: every event and action, one line each, plan first."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tflaunch import private_files
from tflaunch.core import replay
from tflaunch.core.actions import Action
from tflaunch.core.events import Event, kind_of
from tflaunch.core.job_state import Job
from tflaunch.core.record_check import DamagedRecordError, check_record
from tflaunch.errors import EXIT_INTERNAL, TflaunchError
from tflaunch.store.append_file import open_to_append
from tflaunch_worker import wire

_ENCODE = json.JSONEncoder(separators=(",", ":")).encode
JOURNAL_NAME = "events.jsonl"
"""The journal, in the directory of its run."""
RESERVE_NAME = "reserve"
"""Room for the last records, in the directory of a run that has not ended by itself."""
_RESERVE = 64 * 1024
_MOST_VALUES = 1 << 24  # of a record: a plan of 10,000 tasks has a tenth of that
_MOST_WAITING = 16 * 1024 * 1024
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


def home() -> Path:
    """Return the directory for everything that tflaunch keeps: $TFLAUNCH_HOME or the platform's place.

    Raises:
        TflaunchError: it is there, and another user could have put files into it.
    """
    configured = os.environ.get("TFLAUNCH_HOME")
    if configured:
        path = Path(configured).absolute()
    else:
        import platformdirs

        path = Path(platformdirs.user_state_dir("tflaunch", appauthor=False))
    _require_own(path, is_base=True)
    return path


def runs_directory() -> Path:
    """Return the directory that holds those of all runs.

    Raises:
        TflaunchError: it is there, and another user could have put files into it.
    """
    path = home() / "runs"
    _require_own(path)
    return path


def open_run(path: Path) -> Path:
    """Return the directory of a run for which everything above it has been checked, or a path that was handed to us.

    Raises:
        TflaunchError: it is not there, or another user could have put files into it.
    """
    try:
        private_files.require_own(path)
    except OSError as error:
        raise TflaunchError(f"{path}: {error.strerror}", EXIT_INTERNAL) from None
    return path


def _require_own(path: Path, *, is_base: bool = False) -> None:
    try:
        private_files.require_own(path, is_base=is_base)
    except (FileNotFoundError, NotADirectoryError):
        pass  # it is made when something is written, which tells what is in the way
    except OSError as error:
        raise TflaunchError(f"{path}: {error.strerror}; set TFLAUNCH_HOME", EXIT_INTERNAL) from None


class RunDirectory:
    """The private directory of one run."""

    def __init__(self, name: str, log_directory: Path | None = None) -> None:
        """Make the directory, with a name that no other run has.

        Args:
            name: the job's name.
            log_directory: where the tasks' logs go instead of into the run directory.

        Raises:
            TflaunchError: the directory cannot be made or belongs to somebody else.
        """
        self.run = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"
        runs = home() / "runs"
        self.path = runs / self.run
        self.logs = log_directory.absolute() if log_directory is not None else self.path / "logs"
        try:
            private_files.make_directories(runs)
            private_files.require_own(runs)
            self.path.mkdir(mode=0o700)
            private_files.make_directories(self.logs)
            if log_directory is not None:
                (self.path / "logs").symlink_to(self.logs)
        except OSError as error:
            message = f"{error.filename}: {error.strerror}; set TFLAUNCH_HOME to a directory you can write"
            raise TflaunchError(message, EXIT_INTERNAL) from None

    @classmethod
    def existing(cls, path: Path, logs: Path) -> RunDirectory:
        """Return the directory of a run that was begun before."""
        directory = cls.__new__(cls)
        directory.run, directory.path, directory.logs = path.name, path, logs
        return directory

    @property
    def marks(self) -> Path:
        """The file with the `Marks` of the logs."""
        return self.path / "marks.jsonl"

    @property
    def times(self) -> Path:
        """The directory for the indices of when the words in the logs were written; made when needed."""
        return self.path / "times"

    def agent_directory(self, host: str) -> Path:
        """Return the place of the agent on this machine that serves ``host``."""
        return self.path / "agents" / host

    def keep_spec(self, suffix: str, data: bytes) -> None:
        """Keep what the user wrote, as it was; ``suffix`` is that of its file."""
        descriptor = os.open(self.path / f"spec{suffix}", _FLAGS, 0o600)
        with open(descriptor, "wb") as file:
            file.write(data)

    def write_plan(self, plan: dict[str, Any]) -> None:
        """Write ``plan.json``."""
        descriptor = os.open(self.path / "plan.json", _FLAGS, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(_ENCODE(plan) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    """Return the records of the journal in a run's directory; a last line that was cut off is left out.

    Raises:
        TflaunchError: there is no journal, or it is damaged.
    """
    try:
        lines = (path / JOURNAL_NAME).read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise TflaunchError(f"{error.filename}: {error.strerror}", EXIT_INTERNAL) from None
    with readable(path):
        return [parse_record(line, number) for number, line in enumerate(lines)]


def read_job(path: Path) -> tuple[list[dict[str, Any]], Job]:
    """Return the records of the journal in a run's directory, and the job after them.

    Raises:
        TflaunchError: there is no journal, or it is damaged or empty.
    """
    records = read(path)
    with readable(path):
        return records, replay.fold(records)


def parse_record(line: bytes, number: int) -> dict[str, Any]:
    """Return the record in a line of a journal; ``number`` is its place, counted from 0.

    Raises:
        DamagedRecordError: no supervisor can have written it.
    """
    try:
        record = wire.parse(line, max_values=_MOST_VALUES)
    except ValueError as error:
        raise DamagedRecordError(number, str(error)) from None
    return check_record(record, number)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn what is wrong with a record of the journal in a run's directory into a sentence.

    Raises:
        TflaunchError: the journal is damaged.
    """
    try:
        yield
    except DamagedRecordError as error:
        message = (
            f"run {path.name}: line {error.number + 1} of {path / JOURNAL_NAME} is damaged ({error.reason}); "
            f"what its tasks wrote is in {path / 'logs'}"
        )
        raise TflaunchError(message, EXIT_INTERNAL) from None


class Journal:
    """Appends to ``events.jsonl``.

    Records for which the disk has no room wait, so that none is ever missing before another. A full disk may cost
    the last records, never the job.
    """

    def __init__(self, directory: RunDirectory, records: int = 0) -> None:
        """Go on with the journal of a run, which has so many records."""
        self._file = open_to_append(directory.path / JOURNAL_NAME)
        self._seq = records
        self._waiting = b""
        self._dropped = 0
        self._reserve = directory.path / RESERVE_NAME
        self._keep_reserve()

    @property
    def lost(self) -> int:
        """How many records were not written."""
        return self._waiting.count(b"\n") + self._dropped

    def _keep_reserve(self) -> None:
        """Take room for the last records now."""
        try:
            private_files.write_text(self._reserve, "\0" * _RESERVE)
        except OSError:
            pass  # the disk is full already

    def settle(self) -> None:
        """Write what waits, with the room that was kept for it: only the end is to come."""
        self._reserve.unlink(missing_ok=True)
        self._write([])

    def record_plan(self, directory: RunDirectory, plan: dict[str, Any], now: float) -> None:
        """Write the first record; ``now`` is the time at which the job began."""
        self._write([{"kind": "plan", "now": now, "run": directory.run, "logs": str(directory.logs), "plan": plan}])

    def record_supervisor(self, number: int) -> None:
        """Write that another supervisor, the ``number``-th after the first, has taken over."""
        self._write([{"kind": "supervisor", "number": number, "pid": os.getpid()}])

    def record_kept(self, exit_code: int, losses: list[str]) -> None:
        """Write that the job has ended with tflaunch's exit code, while TensorBoard stays; ``losses`` as at the end."""
        self._write([{"kind": "kept", "exit_code": exit_code, "losses": losses}])

    def record_end(self, exit_code: int, losses: list[str], state: str) -> None:
        """Write the last record.

        Args:
            exit_code: tflaunch's.
            losses: sentences on what could not be kept and how a drill went.
            state: of the run, as `status.state_of_run` gives it.
        """
        self._write([{"kind": "ended", "exit_code": exit_code, "losses": losses, "state": state}])

    def record(self, event: Event, actions: list[Action], now: float) -> None:
        """Write an event and the actions that it led to; ``now`` is the time that `step` was given."""
        entries = [{"kind": kind_of(type(event)), "now": now, **event._asdict()}]
        entries += [{"kind": kind_of(type(action)), **action._asdict()} for action in actions]
        self._write(entries)

    def _write(self, entries: list[dict[str, Any]]) -> None:
        lines = []
        for entry in entries:
            head = {"seq": self._seq, "time": round(time.time(), 6)}
            lines.append(_ENCODE({**head, **entry}) + "\n")
            self._seq += 1
        if self._dropped or len(self._waiting) > _MOST_WAITING:
            self._dropped += len(entries)
        else:
            self._waiting += "".join(lines).encode("utf-8")
        try:
            while self._waiting:
                self._waiting = self._waiting[os.write(self._file, self._waiting) :]
        except OSError:
            pass  # it is tried again with the next record

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
