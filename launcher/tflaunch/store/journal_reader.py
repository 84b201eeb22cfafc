"""Read a journal while it grows, or only its first and last record."""

from __future__ import annotations

import json
import os
from io import FileIO
from pathlib import Path
from typing import Any

from tflaunch.errors import EXIT_INTERNAL, TflaunchError
from tflaunch.store.journal import not_begun, parse_record, readable
from tflaunch.store.run_dir import JOURNAL_NAME

_BLOCK = 1024 * 1024
_LAST = 64 * 1024


class JournalReader:
    """Returns each record of a run's journal once."""

    def __init__(self, directory: Path) -> None:
        """Open the journal of the run in ``directory`` at its first record.

        Raises:
            TflaunchError: there is no journal.
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
        """Return the records written since the last call; an incomplete last line is left for the next one.

        Raises:
            TflaunchError: the journal is damaged.
        """
        found = []
        with readable(self._path.parent):
            while data := self._file.read(_BLOCK):
                *lines, self._partial = (self._partial + data).split(b"\n")
                for line in lines:
                    found.append(parse_record(line, self._count))
                    self._count += 1
        return found

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def first_record(directory: Path) -> dict[str, Any] | None:
    """Return the first record of a run's journal, None if there is none yet.

    Raises:
        TflaunchError: the record is damaged.
    """
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
