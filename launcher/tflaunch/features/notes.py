"""Keep records in small files of a run's directory, each read and written whole."""

import json
from pathlib import Path
from typing import Any

from tflaunch import private_files, records
from tflaunch.records import Record
from tflaunch_worker import wire


def write_note(path: Path, note: Any) -> None:
    """Write a record for `read_note`; no process sees only a part of it."""
    private_files.replace_text(path, json.dumps(records.as_json(note)))


def read_note(kind: type[Record], path: Path) -> Record | None:
    """Return the record of a kind in a file, None if there is none, or it is damaged."""
    try:
        return records.read_record(kind, wire.parse(path.read_bytes()))
    except (OSError, ValueError):
        return None
