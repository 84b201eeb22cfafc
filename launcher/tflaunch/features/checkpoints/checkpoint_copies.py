"""The kept checkpoints of a run, in its directory and as the program wrote them.

checkpoints/index.json            which there are
checkpoints/0007-ckpt-120/...     a checkpoint; files with the same content are one file with several names
checkpoints/.parts/HASH           what has arrived of a file
"""

import errno
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from tflaunch import private_files
from tflaunch.explain.wording import memory
from tflaunch.features.fetched_files import FetchedFile
from tflaunch.features.uploads import HashedFile
from tflaunch.records import as_json, read_record
from tflaunch.store.run_dir import PARTS_NAME
from tflaunch_worker import file_trees, wire

_INDEX, _NEW = "index.json", ".new"
_RESERVE = 256 * 1024 * 1024  # bytes that stay free for logs and journal


def _check_place(name: str, value: object) -> str:
    if isinstance(value, str) and "/" not in value and value.partition("-")[0].isdecimal():
        return value
    raise ValueError(f"field {name!r} must be the directory of a checkpoint")


class KeptCheckpoint(NamedTuple):
    """A checkpoint that was copied to this machine.

    ``place``: its directory; ``writer``: the host that wrote it; ``written_at``: when, in seconds since the epoch;
    ``hosts`` have it, too.
    """

    place: Annotated[str, _check_place]
    writer: str
    name: str
    step: int
    written_at: float
    files: tuple[HashedFile, ...]
    hosts: tuple[str, ...]


class CheckpointCopies:
    """The copies of a run's checkpoints, the newest last."""

    def __init__(self, directory: Path, keep: int) -> None:
        """Keep the newest ``keep`` checkpoints in a directory, created for the first one."""
        self._directory = directory
        self._keep = keep
        self.kept: list[KeptCheckpoint] = _read_index(directory)

    @property
    def newest(self) -> KeptCheckpoint | None:
        """The checkpoint that was written last, None if there is none."""
        return self.kept[-1] if self.kept else None

    def missing(self, files: Sequence[HashedFile]) -> list[HashedFile]:
        """Return the files whose content is not here.

        Raises:
            OSError: the disk is too full for them.
        """
        contents = {file.sha256: file for file in files}
        lacking = [file for file in contents.values() if self._path(file) is None]
        private_files.make_directories(self._directory)
        needed = sum(file.size - (_size_of(self._part(file)) or 0) for file in lacking)
        free = shutil.disk_usage(self._directory).free
        if needed > 0 and needed + _RESERVE > free:
            room = f"it needs {memory(needed)} beside {memory(_RESERVE)} that stay free"
            raise OSError(errno.ENOSPC, f"{room}, and {memory(free)} are free", str(self._directory))
        return lacking

    def begin(self, file: HashedFile) -> FetchedFile:
        """Return the part of a file that has arrived, or a new one if it is damaged.

        Raises:
            OSError: it cannot be read.
        """
        part = FetchedFile(self._part(file), file.sha256)
        is_damaged = part.size >= file.size and not part.is_intact()
        return FetchedFile(self._part(file), file.sha256) if is_damaged else part

    def add(self, checkpoint: KeptCheckpoint) -> KeptCheckpoint:
        """Keep a checkpoint whose files are all here, and remove the oldest ones.

        Raises:
            OSError: it cannot be written.
        """
        number = 1 + max((int(kept.place.partition("-")[0]) for kept in self.kept), default=0)
        checkpoint = checkpoint._replace(place=f"{number:04d}-{checkpoint.name}"[:200])
        new = self._directory / _NEW
        file_trees.remove_tree(str(new))
        for file in checkpoint.files:
            target = new / file.path
            private_files.make_directories(target.parent)
            os.link(self._path(file) or self._part(file), target)
        file_trees.remove_tree(str(self._directory / checkpoint.place))
        new.rename(self._directory / checkpoint.place)
        kept = sorted([*self.kept, checkpoint], key=lambda each: each.written_at)
        removed, self.kept = kept[: -self._keep], kept[-self._keep :]
        private_files.replace_text(self._directory / _INDEX, json.dumps(as_json(self.kept), indent=1) + "\n")
        for each in removed:
            file_trees.remove_tree(str(self._directory / each.place))
        file_trees.remove_tree(str(self._directory / PARTS_NAME))
        return checkpoint

    def note_hosts(self, checkpoint: KeptCheckpoint, hosts: Sequence[str]) -> None:
        """Note the hosts that have a checkpoint; the index is written with the next one."""
        self.kept = [
            each._replace(hosts=tuple(hosts)) if each.place == checkpoint.place else each for each in self.kept
        ]

    def find(self, files: Sequence[HashedFile]) -> KeptCheckpoint | None:
        """Return the checkpoint that consists of these files, None if it is not kept."""
        wanted = set(files)
        return next((each for each in reversed(self.kept) if set(each.files) == wanted), None)

    def path_of(self, file: HashedFile) -> Path:
        """Return the path of a file's content.

        Raises:
            OSError: it is not here any more.
        """
        path = self._path(file)
        if path is None:
            raise FileNotFoundError(2, "is missing", str(self._directory / file.path))
        return path

    def _path(self, file: HashedFile) -> Path | None:
        """Return the path of a file's content in a checkpoint; None if no copy has it."""
        for kept in reversed(self.kept):
            for each in kept.files:
                path = self._directory / kept.place / each.path
                if each.sha256 == file.sha256 and _size_of(path) == file.size:
                    return path
        return None

    def _part(self, file: HashedFile) -> Path:
        return self._directory / PARTS_NAME / file.sha256


def _size_of(path: Path) -> int | None:
    try:
        return path.lstat().st_size
    except OSError:
        return None


def _read_index(directory: Path) -> list[KeptCheckpoint]:
    """Return the indexed checkpoints that still exist; [] if the index is unreadable."""
    try:
        kept = [read_record(KeptCheckpoint, entry) for entry in wire.parse((directory / _INDEX).read_bytes())]
    except (OSError, ValueError, TypeError):
        return []
    return [
        each for each in kept if all(_size_of(directory / each.place / file.path) == file.size for file in each.files)
    ]
