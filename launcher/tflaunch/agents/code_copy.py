"""Keep a copy of the user's code in the directory of a run: hosts that need it later get what the others got."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from tflaunch import private_files
from tflaunch.agents.user_code import Code, File
from tflaunch_worker import wire

DIRECTORY = "code"
"""The directory of the copies, in that of a run."""
NAME = "code.json"
"""The file that says what the code has, and where its contents are."""
MOST_COPIED = 16 << 20
"""Bytes of a run's copies: programs are small, and data next to them would fill the disk with each run."""

_READ = 1 << 20
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def keep(code: Code, run: Path) -> Code:
    """Copy code to the directory of a run, and return the same code with its contents from there.

    The largest files beyond `MOST_COPIED`, files that cannot be copied and those that change meanwhile are still read
    where they are. Code that comes from there already is returned as it is.
    """
    if code.directory == run / DIRECTORY:
        return code
    copied: set[str] = set()
    room = MOST_COPIED
    for file in sorted(code.files, key=lambda file: file.size):
        room -= file.size
        if room < 0:
            break
        if file.source is None and _copy(code.directory / file.path, file, run / DIRECTORY / file.path):
            copied.add(file.path)
    files = [
        file if file.path in copied else file._replace(source=file.source or code.directory / file.path)
        for file in code.files
    ]
    kept = Code(run / DIRECTORY, tuple(files), code.links)
    try:
        private_files.write_text(run / NAME, _described(kept))
    except OSError:
        return code  # the disk is full, which the journal will tell
    return kept


def _copy(source: Path, file: File, target: Path) -> bool:
    """Copy a file; return whether the copy has the content that its hash promises."""
    digest = hashlib.sha256()
    has_all = False
    try:
        private_files.make_directories(target.parent)
        with source.open("rb") as original, open(os.open(target, _FLAGS, 0o600), "wb") as copy:
            while data := original.read(_READ):
                digest.update(data)
                copy.write(data)
        has_all = digest.hexdigest() == file.sha256
    except OSError:
        pass  # it is read where it is, and so are errors
    if not has_all:
        _remove(target)
    return has_all


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        pass  # its directory could not be created


def describe(code: Code) -> str:
    """Return the text of a file `NAME` for a directory of a run to which all of the code is copied."""
    return _described(code._replace(files=tuple(file._replace(source=None) for file in code.files)))


def _described(code: Code) -> str:
    files = [(*file[:4], None if file.source is None else str(file.source)) for file in code.files]
    return json.dumps({"files": files, "links": code.links})


def read(run: Path) -> Code | None:
    """Return the code that was kept in the directory of a run; None if there is none, or half of it."""
    try:
        found = wire.parse((run / NAME).read_bytes())
        files = tuple(
            File(path, mode, sha256, size, None if source is None else Path(source))
            for path, mode, sha256, size, source in found["files"]
        )
        links = tuple((path, target) for path, target in found["links"])
    except (OSError, ValueError, LookupError, TypeError):
        return None  # for instance, its disk was full
    return Code(run / DIRECTORY, files, links)
