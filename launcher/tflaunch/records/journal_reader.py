"""Reading a journal while it grows, or only its two ends."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tflaunch.errors import EXIT_INTERNAL, TflaunchError
from tflaunch.records.journal import JOURNAL_NAME
from tflaunch.slurm import batch

_BLOCK = 1024 * 1024
_LAST = 64 * 1024


class JournalReader:
    """Gives the records of a run's journal, each once."""

    def __init__(self, directory: Path) -> None:
        """Begin at the first record of the run in ``directory``.

        Raises:
            TflaunchError: there is no journal.
        """
        self._path = directory / JOURNAL_NAME
        self._partial = b""
        self._count = 0
        try:
            self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            reason = batch.not_begun(directory) or f"{self._path}: {error.strerror}"
            raise TflaunchError(reason, EXIT_INTERNAL) from None

    def new_records(self) -> list[dict[str, Any]]:
        """Return the records that came since the last call; a last line that is not whole is left for later.

        Raises:
            TflaunchError: the journal is damaged.
        """
        found = []
        while data := os.read(self._file, _BLOCK):
            *lines, self._partial = (self._partial + data).split(b"\n")
            found += [self._record(line) for line in lines]
        return found

    def _record(self, line: bytes) -> dict[str, Any]:
        try:
            record = json.loads(line)
        except ValueError as error:
            raise TflaunchError(f"{self._path} is damaged: {error}", EXIT_INTERNAL) from None
        if not isinstance(record, dict) or record.get("seq") != self._count:
            raise TflaunchError(f"{self._path} is damaged: record {self._count} is missing", EXIT_INTERNAL)
        self._count += 1
        return record

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def ends(directory: Path) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return the first and the last record of a journal, None when it has none that can be read.

    They may be the same.
    """
    try:
        with open(directory / JOURNAL_NAME, "rb") as file:
            first = file.readline()
            size = os.fstat(file.fileno()).st_size
            file.seek(max(size - _LAST, 0))
            *lines, _ = file.read().split(b"\n")  # after the last newline stands nothing, or a torn line
        records = json.loads(first), json.loads(lines[-1] if lines else first)
    except (OSError, ValueError):
        return None
    head, tail = records
    return (head, tail) if isinstance(head, dict) and isinstance(tail, dict) else None
