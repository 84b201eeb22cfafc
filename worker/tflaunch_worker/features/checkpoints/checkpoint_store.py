"""A host's store of checkpoint files by content, and copies for a program.

What a program has written is copied into the store while its hash is computed, so that the copy can be sent at leisure:
the program may overwrite or remove its own at any time.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from typing import TYPE_CHECKING, Any, Collection, Iterable

from tflaunch_worker import file_trees
from tflaunch_worker.features import background
from tflaunch_worker.features.checkpoints import saved_checkpoints
from tflaunch_worker.features.file_parts import (
    FILE,
    ArrivingFiles,
    FilesError,
    hash_file,
    open_inside,
    read_part,
    reason_of,
    unlink_if_there,
)

if TYPE_CHECKING:
    from tflaunch_worker.features.checkpoints.saved_checkpoints import Found, Stamp

_SMALL = 1 << 22  # bytes that are copied at once; for more, the program that trains goes first
_RATE = 128e6  # bytes per second that are read while a program trains
_SHORTEST, _SHARE = 0.2, 50  # seconds between two searches, and the least multiple of the duration of a search
_ARRIVING, _CAPTURED = ".arriving-", ".captured"
_STAGING = ".tflaunch-restoring-"

NOTHING = {"found": None, "mark": "", "problem": ""}
"""What `CheckpointStore.capture` returns of a checkpoint, if there is none."""


class CheckpointStore:
    """The files of checkpoints on one host, each under the SHA-256 of its content."""

    def __init__(self, directory: str) -> None:
        """Keep files in a directory, which is created for the first one."""
        self._directory = directory
        self._arriving = ArrivingFiles(directory, _ARRIVING)

    def retain(self, kept: Collection[str]) -> None:
        """Remove all files but those with these hashes, and what has arrived of others."""
        names = {*kept, *self._arriving.retain(kept)}
        for name in os.listdir(self._directory) if os.path.isdir(self._directory) else ():
            if name not in names:
                unlink_if_there(os.path.join(self._directory, name))

    def remove(self) -> None:
        """Remove everything."""
        file_trees.remove_tree(self._directory)

    def read(self, digest: str, offset: int) -> bytes:
        """Return a part of a file, empty if it is not here any more."""
        return read_part(lambda: os.open(self._path(digest), FILE), offset)

    def lacks(self, digests: Iterable[str]) -> list[list[Any]]:
        """Return the hashes of missing files, each with the number of bytes received."""
        missing = [digest for digest in dict.fromkeys(digests) if not os.path.exists(self._path(digest))]
        return [[digest, self._arriving.size_of(digest)] for digest in missing]

    def take(self, digest: str, offset: int, data: bytes, is_last: bool) -> None:
        """Store a part of a file.

        Raises:
            FilesError: the disk is full, or the content does not match the hash.
            ValueError: an earlier part is missing.
        """
        if not self._arriving.take(digest, offset, data, is_last, self._path(digest)):
            raise FilesError("a file of the checkpoint arrived damaged")

    def _path(self, digest: str) -> str:
        return os.path.join(self._directory, digest)

    # ---- in a fork: these may take long

    def watch(self, directory: str, known: str) -> dict[str, Any]:
        """Wait for a checkpoint with another mark in a directory; return it as `capture`."""
        while True:
            began_at = time.monotonic()
            found = saved_checkpoints.find_newest(directory, is_quiet=False)
            if found is not None and _mark_of(found) != known:
                if sum(size for size, _, _ in found.files.values()) > _SMALL:
                    background.yield_to_others()
                captured = self.capture(directory, found, _RATE)
                if captured is not None:
                    return captured
            time.sleep(max(_SHORTEST, (time.monotonic() - began_at) * _SHARE))

    def look(self, directory: str) -> dict[str, Any] | None:
        """Capture the newest checkpoint where no program writes any more, or return None."""
        found = saved_checkpoints.find_newest(directory, is_quiet=True)
        return None if found is None else self.capture(directory, found, None)

    def capture(self, directory: str, found: Found, rate: float | None) -> dict[str, Any] | None:
        """Copy a checkpoint into the store; None if it changed in the meantime.

        ``rate``: maximum bytes per second to read, None for no limit.

        Returns:
            ``found``: its name, step, age in seconds, and files as [path, size, SHA-256]; or None and a ``problem``.
            ``mark``: a hash by which it differs from others.
        """
        files, mark = [], _mark_of(found)
        try:
            os.makedirs(self._directory, mode=0o700, exist_ok=True)
            for path, stamp in found.files.items():
                digest = self._capture(directory, path, stamp, rate)
                if digest is None:
                    return None
                files.append([path, stamp[0], digest])
        except OSError as error:
            return {"found": None, "mark": mark, "problem": reason_of(error, directory)}
        age = max(time.time() - found.written_at, 0.0)
        about = {"name": found.name, "step": found.step, "age": age, "files": files}
        return {"found": about, "mark": mark, "problem": ""}

    def _capture(self, directory: str, path: str, stamp: Stamp, rate: float | None) -> str | None:
        """Copy a file into the store; return its hash, None if it was changed or removed."""
        copy = os.path.join(self._directory, _CAPTURED)
        try:
            with open(open_inside(directory, path), "rb") as source, open(copy, "wb") as target:
                size, digest = hash_file(source, target, rate)
                is_same = size == stamp[0] and saved_checkpoints.stamp_of(os.fstat(source.fileno())) == stamp
            if is_same:
                os.replace(copy, self._path(digest))
        except FileNotFoundError:
            return None  # the program has removed it
        finally:
            unlink_if_there(copy)
        return digest if is_same else None

    def place(self, directories: list[str], files: list[list[Any]], age: float) -> dict[str, Any]:
        """Put a checkpoint into directories that lack it and in which no program writes.

        ``files``: [path, size, SHA-256] of each, what refers to others last; ``age``: how many seconds ago it was
        written.

        Returns:
            ``missing``: hashes of the files that have to be sent first; or ``problem``: why it could not be put there.
        """
        try:
            lacking = {
                directory: [file for file in files if not _is_there(directory, *file)] for directory in directories
            }
            wanted = [digest for lacked in lacking.values() for _, _, digest in lacked]
            missing = [digest for digest, _ in self.lacks(wanted)]
            for directory, lacked in lacking.items():
                if lacked and not missing:
                    self._place(directory, lacked, time.time() - age)
        except OSError as error:
            return {"missing": [], "problem": reason_of(error, directories[0])}
        return {"missing": missing, "problem": ""}

    def _place(self, directory: str, files: list[list[Any]], written_at: float) -> None:
        """Copy files to a directory by way of a staging one, so a full disk harms nothing."""
        staging = os.path.join(directory, f"{_STAGING}{os.getpid()}")
        os.makedirs(directory, exist_ok=True)
        for name in os.listdir(directory):
            if name.startswith(_STAGING) and not os.path.exists(f"/proc/{name[len(_STAGING) :]}"):
                file_trees.remove_tree(os.path.join(directory, name))  # left by a fork that was killed
        try:
            os.mkdir(staging, 0o700)
            for number, (_, _, digest) in enumerate(files):
                target = os.path.join(staging, str(number))
                shutil.copyfile(self._path(digest), target)
                os.utime(target, (written_at, written_at))
            for number, (path, _, _) in enumerate(files):
                _make_parents(directory, path)
                os.replace(os.path.join(staging, str(number)), os.path.join(directory, path))
        finally:
            file_trees.remove_tree(staging)


def _mark_of(found: Found) -> str:
    return hashlib.sha256(json.dumps(found.files).encode("ascii")).hexdigest()


def _is_there(directory: str, path: str, size: int, digest: str) -> bool:
    """Whether a file has this content."""
    try:
        with open(open_inside(directory, path), "rb") as file:
            return os.fstat(file.fileno()).st_size == size and hash_file(file) == (size, digest)
    except OSError:
        return False


def _make_parents(directory: str, path: str) -> None:
    """Make the directories of a file; none of them may be a symbolic link.

    Raises:
        OSError: one of them cannot be made, or is something else.
    """
    for parent in path.split("/")[:-1]:
        directory = os.path.join(directory, parent)
        if os.path.islink(directory):
            raise OSError(20, "is a symbolic link, behind which no checkpoint is written", directory)
        os.makedirs(directory, exist_ok=True)
