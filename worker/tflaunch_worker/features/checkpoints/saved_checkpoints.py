"""The newest complete checkpoint below a directory in which a program may write.

A checkpoint is what a program has to read to go on: of each directory the newest set of files that was written to its
end, and the small files beside it that refer to it. Complete is

- a TensorFlow checkpoint whose ``.index`` ends as an index does and that has all its ``.data-*`` files; if there is a
  file ``checkpoint`` beside it, only the one that this names, since that file is written last;
- a ``.keras`` file that ends with the directory of its archive;
- a ``.h5`` file whose length is the one in its header.

In a directory with ``training_metadata.json`` (Keras' BackupAndRestore), that file is written last. Workers that are
not the chief save into directories that they remove; those are left out by their names.
"""

from __future__ import annotations

import os
import re
import struct
import time
from typing import TYPE_CHECKING, Dict, Tuple

from tflaunch_worker.agent.checkpoint_progress import number_of

if TYPE_CHECKING:
    Stamp = Tuple[int, int, int]
    """Size, time of change and inode of a file: what changes when it is written again."""
    Names = Dict[str, os.stat_result]

MOST_FILES = 2000
"""Maximum number of files of a checkpoint."""

_STATE, _METADATA = "checkpoint", "training_metadata.json"
_SINGLE = (".keras", ".weights.h5", ".h5", ".hdf5")
_SHARD = r"(?P<prefix>.+)\.data-(?P<index>\d{5})-of-(?P<count>\d{5})"
_LATEST = rb'(?m)^model_checkpoint_path: "((?:[^"\\]|\\.)*)"'
_TEMPORARY = r"\..*|workertemp_.*|.*_temp(_.*)?|.*\.tmp"
_INDEX_END = struct.pack("<Q", 0xDB4775248B80FB57)  # the last bytes of TensorFlow's tables (table/format.h)
_ARCHIVE_END = b"PK\5\6"
_LONGEST_ARCHIVE_END = 22 + 65535  # bytes: a comment may follow
_HDF5 = b"\x89HDF\r\n\x1a\n"
_LARGEST_NOTE = 1024 * 1024  # bytes of a file that refers to a checkpoint
_DEEPEST = 4
_MOST_ENTRIES = 5000
_GIVEN_UP = 60.0  # seconds after which a file that is incomplete stays so: its program was killed


class Found:
    """The newest checkpoint below a directory.

    ``name`` is that of its newest file, and ``step`` the number in it, 0 for none; ``written_at`` is when that was
    written, in seconds since the epoch. ``files`` maps relative paths to `Stamp`, in the order in which they are to be
    put into their places: what refers to others comes last.
    """

    def __init__(self, name: str, written_at: float, files: dict[str, Stamp]) -> None:
        self.name = name
        self.step = number_of(name if name.endswith(_SINGLE) else f"{name}.index")
        self.written_at = written_at
        self.files = files


def find_newest(directory: str, is_quiet: bool) -> Found | None:
    """Return the newest complete checkpoint, None if there is none yet.

    Searched are at most 5,000 entries, four levels deep. ``is_quiet``: no program writes there any more, so what is
    incomplete stays so.
    """
    newest, name = 0, ""
    files: dict[str, Stamp] = {}
    notes: dict[str, Stamp] = {}
    for path, names in _directories(directory):
        chosen = _newest_of(os.path.join(directory, path), names)
        if chosen is None:
            if not is_quiet and _may_be_written(names):
                return None  # without it, the others are incomplete
            continue
        main, parts = chosen
        for part in parts:
            (notes if _is_note(part) else files)[os.path.join(path, part)] = stamp_of(names[part])
        if names[main].st_mtime_ns > newest:
            newest, name = names[main].st_mtime_ns, main[: -len(".index")] if main.endswith(".index") else main
    if not newest or len(files) + len(notes) > MOST_FILES:
        return None
    return Found(name, newest / 1e9, {**files, **notes})


def stamp_of(status: os.stat_result) -> Stamp:
    """Return the stamp of a file."""
    return status.st_size, status.st_mtime_ns, status.st_ino


def _is_note(name: str) -> bool:
    """Whether a file refers to others, so that it must not be there before them."""
    return name == _STATE or name.endswith((".index", ".json"))


def _directories(directory: str) -> list[tuple[str, Names]]:
    """Return the directories for checkpoints, as relative paths, with regular files."""
    found, waiting, looked_at = [], [("", 0)], 0
    while waiting and looked_at <= _MOST_ENTRIES:
        path, depth = waiting.pop(0)
        names: Names = {}
        try:
            with os.scandir(os.path.join(directory, path)) as entries:
                for entry in entries:
                    looked_at += 1
                    if re.fullmatch(_TEMPORARY, entry.name) or not entry.name.isprintable():
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        if depth < _DEEPEST:
                            waiting.append((os.path.join(path, entry.name), depth + 1))
                    elif entry.is_file(follow_symlinks=False):
                        names[entry.name] = entry.stat(follow_symlinks=False)
        except OSError:
            continue  # it was removed in the meantime, does not exist, or cannot be read
        if names:
            found.append((path, names))
    return found


def _newest_of(directory: str, names: Names) -> tuple[str, list[str]] | None:
    """Return a directory's newest complete checkpoint: its dating file, and all files."""
    complete = {
        name: parts
        for name in names
        if (parts := _parts(name, names, directory)) and _is_written(directory, name, names)
    }
    if not complete:
        return None
    newest = max(complete, key=lambda name: (names[name].st_mtime_ns, name))
    return newest, [*complete[newest], *(name for name in names if _goes_with(name, newest, names))]


def _may_be_written(names: Names) -> bool:
    """Whether a directory has files of a checkpoint that may still be written."""
    times = [names[name].st_mtime for name in names if name.endswith((*_SINGLE, ".index"))]
    return time.time() - max(times, default=0.0) < _GIVEN_UP


def _parts(name: str, names: Names, directory: str) -> list[str]:
    """Return a complete checkpoint's files, the one that is written last at the end.

    ``name``: the file by which it is recognized, or any other, which has no parts.
    """
    if name.endswith(_SINGLE):
        return [name]
    if not name.endswith(".index"):
        return []
    prefix = name[: -len(".index")]
    if _STATE in names and _latest(directory) != prefix:
        return []
    found = [re.fullmatch(_SHARD, name) for name in names]
    shards = [match for match in found if match and match["prefix"] == prefix]
    counts = {match["count"] for match in shards}
    if len(counts) != 1 or len(shards) != int(counts.pop()):
        return []
    return [*sorted(match[0] for match in shards), name]


def _latest(directory: str) -> str | None:
    """Return the checkpoint's base name in TensorFlow's file ``checkpoint``, or None."""
    try:
        with open(os.path.join(directory, _STATE), "rb") as file:
            match = re.search(_LATEST, file.read(_LARGEST_NOTE))
    except OSError:
        return None
    return None if match is None else os.path.basename(os.fsdecode(match[1]))


def _goes_with(name: str, newest: str, names: Names) -> bool:
    """Whether a small file belongs to the newest checkpoint of its directory."""
    if names[name].st_size > _LARGEST_NOTE:
        return False
    return name == _STATE if newest.endswith(".index") else name.endswith(".json")


def _is_written(directory: str, name: str, names: Names) -> bool:
    """Whether the file that decides about a checkpoint has been written to its end."""
    if not name.endswith(".index") and _METADATA in names and names[_METADATA].st_mtime_ns < names[name].st_mtime_ns:
        return False
    try:
        descriptor = os.open(os.path.join(directory, name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    with open(descriptor, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if name.endswith(".index"):
            return size >= 8 and os.pread(file.fileno(), 8, size - 8) == _INDEX_END
        if name.endswith(".keras"):
            length = min(size, _LONGEST_ARCHIVE_END)
            return _ARCHIVE_END in os.pread(file.fileno(), length, size - length)
        return _hdf5_size(os.pread(file.fileno(), 64, 0)) == size


def _hdf5_size(head: bytes) -> int | None:
    """Return the length in an HDF5 superblock; None for others or unusual offsets."""
    if len(head) < 64 or not head.startswith(_HDF5):
        return None
    version = head[8]
    if version in (0, 1) and head[13] == 8:
        return int(struct.unpack_from("<Q", head, 40 + 4 * version)[0])
    if version in (2, 3) and head[9] == 8:
        return int(struct.unpack_from("<Q", head, 28)[0])
    return None
