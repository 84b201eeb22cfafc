"""Offer a run's files for download: logs, fetched files, measurements, records.

What tflaunch wrote is offered without secrets; what tasks wrote is offered as it is.
"""

import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.parse import quote

from tflaunch.errors import EXIT_INTERNAL, TflaunchError
from tflaunch.features.report.redaction import Redactor
from tflaunch.features.report.support_bundle import diagnose, pack, secrets_of
from tflaunch.plan import tensorboard
from tflaunch.plan.model import Plan
from tflaunch.store.log_writer import path_of
from tflaunch.store.run_dir import (
    CHECKPOINTS_NAME,
    COLLECTED_NAME,
    HISTORY_NAME,
    JOURNAL_NAME,
    PARTS_NAME,
    PATCH_NAME,
    PROFILES_NAME,
    RECORD_NAME,
    SUPERVISOR_LOG,
)
from tflaunch_worker import file_trees
from tflaunch_worker.features.file_parts import open_inside
from tflaunch_worker.readable import printable

_RUN, _LOGS = "run", "logs"
_OWN = frozenset((JOURNAL_NAME, "plan.json", RECORD_NAME, PATCH_NAME, HISTORY_NAME, SUPERVISOR_LOG))
_SPEC = "spec."
_TREES = {"collected": Path(COLLECTED_NAME), "profiles": Path(PROFILES_NAME), "checkpoints": Path(CHECKPOINTS_NAME)}
_MOST_COUNTED = 50_000  # files of a run
_MOST_LISTED = 2000  # files of a group
_LONGEST_NAME = 300
_PIECE = 1024 * 1024


class OfferedFile(NamedTuple):
    """A file for download: ``path`` encoded, below …/files/; ``modified`` since epoch."""

    group: str
    name: str
    path: str
    size: int
    modified: float


def list_files(directory: Path, plan: Plan) -> dict[str, Any]:
    """Return the files of a run that can be downloaded, by group."""
    found: list[OfferedFile] = []
    left_out = 0
    try:
        own = sorted(filter(_is_own, os.listdir(directory)))
    except OSError:
        own = []
    found += filter(None, (_offered(_RUN, directory, Path(name)) for name in own))
    logs = (_offered(_LOGS, directory / "logs", Path(name)) for name in _log_names(plan))
    found += filter(None, logs)
    for group, place in _TREES.items():
        paths = _walk(directory / place)
        if group == "profiles":
            paths = iter(sorted(paths, key=lambda path: path.parts[0], reverse=True))  # the newest first
        some = islice(paths, _MOST_COUNTED)
        listed = [offered for path in some if (offered := _offered(group, directory / place, path))]
        found += listed[:_MOST_LISTED]
        left_out += len(listed[_MOST_LISTED:])
    return {
        "files": [offered._asdict() for offered in found],
        "left_out": left_out,
        "has_tensorboard": tensorboard.tensorboard_of(plan) is not None,
    }


def open_file(directory: Path, plan: Plan, parts: Sequence[bytes]) -> tuple[IO[bytes], Redactor | None]:
    """Open a file that `list_files` offers.

    No part of the path is followed if it is a link, whoever puts it there in the meantime. The ``parts`` are the group,
    and the path in it. What replaces the secrets in the file is None if that is sent as it is.

    Raises:
        OSError: the file does not exist, or is not for users: a link, a pipe, or one of tflaunch's own.
    """
    group, *names = map(os.fsdecode, parts)
    if not names or any(name in ("", ".", "..") or "/" in name or "\0" in name for name in names):
        raise FileNotFoundError
    *inner, last = names
    if group in _TREES and names[0] != PARTS_NAME:
        inner = [*_TREES[group].parts, *inner]
    elif not (group == _RUN and not inner and _is_own(last)):
        if group != _LOGS or inner or last not in _log_names(plan):
            raise FileNotFoundError
        directory = directory / "logs"  # with --log-dir, a link
    descriptor = open_inside(str(directory), "/".join([*inner, last]))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError
    file = FileIO(descriptor)  # unlike a descriptor, it is closed even if it is never read
    return file, Redactor(secrets_of(directory)) if group == _RUN and last != HISTORY_NAME else None


def read_file(file: IO[bytes], size: int, redactor: Redactor | None) -> Iterator[bytes]:
    """Yield a file's first ``size`` bytes, redacted if there is a redactor; close it."""
    with file:
        if redactor is not None:
            yield redactor.redact(file.read(size))
            return
        while size > 0 and (data := file.read(min(_PIECE, size))):
            size -= len(data)
            yield data


def make_report(directory: Path, with_logs: bool) -> IO[bytes]:
    """Return the file that `tflaunch report` writes of a run, without a name.

    Raises:
        TflaunchError: the disk is full.
    """
    file = tempfile.TemporaryFile()  # noqa: SIM115 - it is closed when it has been sent
    try:
        pack(directory, diagnose(directory, with_logs), file, with_logs)
        file.seek(0)
    except OSError as error:
        file.close()
        raise TflaunchError(f"the report cannot be stored: {error.strerror}", EXIT_INTERNAL) from None
    return file


def _is_own(name: str) -> bool:
    return name in _OWN or name.startswith(_SPEC)


def _log_names(plan: Plan) -> list[str]:
    """Return the names of the logs: a directory of --log-dir may have other files."""
    return [path_of(Path(), process.task).name for process in plan.processes()]


def _offered(group: str, place: Path, path: Path) -> OfferedFile | None:
    """Return a file of a group, None if there is none at this path, or something else."""
    try:
        about = (place / path).lstat()
    except OSError:
        return None
    if not stat.S_ISREG(about.st_mode):
        return None
    encoded = "/".join(quote(os.fsencode(part), safe="") for part in (group, *path.parts))
    return OfferedFile(group, printable(str(path), _LONGEST_NAME), encoded, about.st_size, round(about.st_mtime, 1))


def _walk(place: Path) -> Iterator[Path]:
    """Yield paths below a directory: no directories, nothing behind links."""
    with suppress(OSError):  # there is no such directory, or it is moved away just now
        for entry in file_trees.walk(str(place), lambda entry: entry.path != PARTS_NAME):
            if not entry.is_directory:
                yield Path(entry.path)
