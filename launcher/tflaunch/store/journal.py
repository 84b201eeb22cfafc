"""Read and write a run's journal: the plan, then events and actions by line."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

from tflaunch import private_files
from tflaunch.core import replay
from tflaunch.core.actions import Action
from tflaunch.core.annotations import Annotation
from tflaunch.core.event_records import kind_of
from tflaunch.core.events import Event
from tflaunch.core.job_state import Job
from tflaunch.errors import EXIT_INTERNAL, TflaunchError
from tflaunch.store.run_dir import JOURNAL_NAME, RESERVE_NAME, RunDirectory
from tflaunch_worker import wire

encode_record = json.JSONEncoder(separators=(",", ":")).encode
_BLOCK = 1024 * 1024
_LAST = 64 * 1024  # bytes, in which the last record is
_RESERVE = 64 * 1024
_MOST_VALUES = 1 << 24  # per record: a plan of 10,000 tasks has a tenth of that
_MOST_WAITING = 16 * 1024 * 1024


class TakenOverError(TflaunchError):
    """Raised in a supervisor when another one has taken over its run."""

    def __init__(self, run: str) -> None:
        super().__init__(f"another tflaunch has taken over run {run}", EXIT_INTERNAL)


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Return the complete records of a run's journal; raises as `JournalReader`."""
    return JournalReader(path).new_records()


def not_begun(path: Path) -> TflaunchError:
    """Return the error for a run in a directory without a journal."""
    return TflaunchError(
        f"run {path.name} has not begun; if its supervisor was killed, start its spec again", EXIT_INTERNAL
    )


def read_job(path: Path) -> tuple[list[dict[str, Any]], Job]:
    """Return a journal's records, and the job after them; raises as `JournalReader`."""
    records = read_journal(path)
    if not records:
        raise not_begun(path)
    with readable(path):
        return records, replay.replay_job(records)


def parse_record(line: bytes, number: int) -> dict[str, Any]:
    """Parse the line with this index, from 0; raises as `replay.check_record`."""
    try:
        record = wire.parse(line, max_values=_MOST_VALUES)
    except ValueError as error:
        raise replay.DamagedRecordError(number, str(error)) from None
    return replay.check_record(record, number)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn an error in a record of a run's journal into a `TflaunchError`."""
    try:
        yield
    except replay.DamagedRecordError as error:
        what = f": line {error.number + 1} of {path / JOURNAL_NAME} is damaged ({error.reason})"
        if isinstance(error, replay.OtherFormatError):
            formats = f"journal format {error.form}; this version reads format {replay.JOURNAL_FORMAT}"
            what = f" was recorded by another version of tflaunch ({formats}); use that version, or delete {path}"
        message = f"run {path.name}{what}; what its tasks wrote is in {path / 'logs'}"
        raise TflaunchError(message, EXIT_INTERNAL) from None


class JournalReader:
    """Returns each record of a run's journal once."""

    def __init__(self, directory: Path) -> None:
        """Open the journal of the run in ``directory`` at its first record.

        Raises:
            TflaunchError: it is missing; so does `new_records` if it is damaged.
        """
        self._path = directory / JOURNAL_NAME
        self._partial = b""
        self._count = 0
        try:
            self._file = FileIO(self._path)  # closes itself with its last reference
        except OSError as error:
            if isinstance(error, FileNotFoundError):
                raise not_begun(directory) from None
            raise TflaunchError(f"{self._path}: {error.strerror}", EXIT_INTERNAL) from None

    def new_records(self) -> list[dict[str, Any]]:
        """Return the complete records written since the last call."""
        found = []
        with readable(self._path.parent):
            while data := self._file.read(_BLOCK):
                *lines, self._partial = (self._partial + data).split(b"\n")
                for line in lines:
                    found.append(parse_record(line, self._count))
                    self._count += 1
        return found


def first_record(directory: Path) -> dict[str, Any] | None:
    """Return the first record of a run's journal, or None; raises as `readable`."""
    try:
        with open(directory / JOURNAL_NAME, "rb") as file:
            line = file.readline()
    except OSError:
        return None
    with readable(directory):
        return parse_record(line, 0) if line.endswith(b"\n") else None


def first_and_last_record(directory: Path) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return the first and the last record of a journal, None if they cannot be read.

    They may be the same. In the last one only the kind and, at a run's end, the exit code are reliable.
    """
    try:
        with open(directory / JOURNAL_NAME, "rb") as file:
            first = file.readline()
            size = os.fstat(file.fileno()).st_size
            file.seek(max(size - _LAST, 0))
            *lines, _ = file.read().split(b"\n")  # the last newline is followed by nothing, or by an incomplete line
        head = parse_record(first, 0)
        if not lines or lines[-1] + b"\n" == first:
            return head, head
        number = json.loads(lines[-1])["seq"]
        return head, parse_record(lines[-1], number)
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


class Journal:
    """Appends to ``events.jsonl``.

    Records that do not fit on the disk are queued, so that the journal never has a gap. A full disk may cost the last
    records, never the job. Where the lock of a run does not keep a second supervisor away, the one that writes first
    goes on, and the next record of the other raises a `TakenOverError`.
    """

    def __init__(self, directory: RunDirectory, records: int = 0) -> None:
        """Open the journal of a run, which already has ``records`` records."""
        self._file = private_files.open_to_append(directory.path / JOURNAL_NAME)
        self._run = directory.run
        self._size = os.fstat(self._file).st_size
        self._seq = records
        self._waiting = b""
        self._dropped = 0
        self._reserve = directory.path / RESERVE_NAME
        try:  # zeros that are written: a file that is only made that long is a hole, which reserves nothing
            private_files.write_text(self._reserve, "\0" * _RESERVE)
        except OSError:
            pass  # the disk is full already

    @property
    def lost(self) -> int:
        """The number of records that were not written."""
        return self._waiting.count(b"\n") + self._dropped

    def settle(self) -> None:
        """Release reserved space and write queued records; only the last one may follow."""
        self._reserve.unlink(missing_ok=True)
        self._write([])

    def record_plan(self, directory: RunDirectory, plan: dict[str, Any], now: float, version: str = "") -> None:
        """Write the first record; ``now``: start of the job; ``version``: of tflaunch."""
        versions = {"format": replay.JOURNAL_FORMAT, "protocol": wire.PROTOCOL, "version": version}
        about = {"run": directory.run, "logs": str(directory.logs), "plan": plan}
        self._write([{"kind": "plan", **versions, "now": now, **about}])

    def note(self, kind: str, **about: object) -> None:
        """Write what the supervisor did beside the job."""
        self._write([{"kind": kind, **about}])

    def record_end(
        self,
        exit_code: int,
        losses: list[str],
        state: str,
        progress: tuple[int | None, dict[str, float]] = (None, {}),
        because: str = "",
    ) -> None:
        """Write the last record.

        ``losses`` are sentences about what could not be stored; ``state`` is that of
        `status.state_of_run`, ``progress`` that of `summary.last_progress`, ``because`` `summary.end_sentence`.
        """
        step, metrics = progress
        about = {"losses": losses, "state": state, "step": step, "metrics": metrics, "because": because}
        self._write([{"kind": "ended", "exit_code": exit_code, **about}])

    def record(self, event: Event | Annotation, actions: list[Action], now: float) -> None:
        """Write an event and its actions, or an annotation; ``now`` as passed to `step`."""
        entries = [{"kind": kind_of(type(event)), "now": now, **event._asdict()}]
        entries += [{"kind": kind_of(type(action)), **action._asdict()} for action in actions]
        self._write(entries)

    def _write(self, entries: list[dict[str, Any]]) -> None:
        lines = []
        for entry in entries:
            head = {"seq": self._seq, "time": round(time.time(), 6)}
            lines.append(encode_record({**head, **entry}) + "\n")
            self._seq += 1
        if self._dropped or len(self._waiting) > _MOST_WAITING:
            self._dropped += len(entries)
        else:
            self._waiting += "".join(lines).encode("utf-8")
        if os.fstat(self._file).st_size > self._size:
            raise TakenOverError(self._run)
        try:  # a full disk may take a part: the rest comes first next time, so that no record begins within another
            while self._waiting:
                written = os.write(self._file, self._waiting)
                self._waiting, self._size = self._waiting[written:], self._size + written
        except OSError:
            pass  # retried with the next record

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
